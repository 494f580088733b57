"""Traces: every format that Seekway reads, as batches of Arrow; written as CSV or Parquet."""

from __future__ import annotations

import gzip
import itertools
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from seekway import _native
from seekway._arguments import options
from seekway._errors import SeekwayError

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


def read_trace(path: str | os.PathLike[str], **more: Any) -> Trace:
    """Open a trace; its format is detected.

    Args:
        path: a file, compressed or not; one CPU's file of a blktrace stands for all of them.
        more: ``input_format="msr"``, ``columns="time_us,op,offset,size"`` of a table without a
            header, ``event="issue"`` of a blktrace, ``lenient=True``, ``max_requests=1000``,
            ``max_time="30s"``.

    Raises:
        TraceError: it cannot be read. While it is iterated over: with the place in the file.
    """
    return Trace(os.fspath(path), options(more))


class Trace:
    """A trace that is read as it is needed, in bounded memory.

    Iterating gives batches (`pyarrow.RecordBatch`) of at most 65,536 requests, sorted by time:
    ``time_ns`` since the first request, ``volume`` and ``op`` (names), ``process`` (0: not known),
    ``sync``, ``start_sector`` and ``sectors`` (512 bytes). Each iteration reads the file again.
    """

    def __init__(self, path: str, arguments: list[str]) -> None:
        """By `read_trace` only."""
        self.path = path
        self._arguments = arguments
        self._open()

    def _open(self) -> _native.TraceBatches:
        return _native.TraceBatches(self.path, self._arguments)

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        """Batches from the beginning."""
        import pyarrow

        batches = self._open()
        while (records := batches.next_batch()) is not None:
            yield from pyarrow.table(records).to_batches()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's C stream from the beginning, for any library that reads Arrow."""
        return self._open().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pyarrow.Table:
        """All requests, as Arrow."""
        import pyarrow

        batches = list(self)
        if not batches:
            raise SeekwayError(f"{self.path}: no requests in this trace")
        return pyarrow.Table.from_batches(batches).unify_dictionaries()

    def to_pandas(self) -> pandas.DataFrame:
        """All requests, as pandas."""
        frame: pandas.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_polars(self) -> polars.DataFrame:
        """All requests, as Polars."""
        import polars

        return polars.DataFrame(self.to_arrow())


def write_trace(requests: Any, path: str | os.PathLike[str]) -> int:
    """Write requests as a trace in CSV, or as Parquet, whole or not at all; their number.

    Args:
        requests: a trace in Parquet, by its path; or anything with Arrow's C stream: tables of
            pyarrow, pandas and Polars, `Trace`. Columns as `Trace` has them, or as a CSV of one's
            own may have them; nested ones are left out. Dates become nanoseconds.
        path: the file. One that ends in ``.parquet`` is Parquet, for other programs: the columns
            as they are. Any other is CSV, which all commands take as a trace, packed with gzip if
            its name ends in ``.gz``.

    Raises:
        TraceError: a CSV would not be taken as a trace: the line and what is wrong with it.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise SeekwayError(f"cannot write {target}: its folder does not exist")
    batches = _batches(requests)
    first = next(batches, None)
    if first is None:
        raise SeekwayError(f"cannot write {target}: there are no requests")
    batches = itertools.chain([first], batches)
    with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as folder:
        beside = Path(folder) / target.name
        if target.suffix == ".parquet":
            count = _write_parquet(batches, first.schema, beside)
        else:
            with beside.open("wb") as file:
                _write_csv(batches, file, packed=target.suffix == ".gz")
            count = _native.check_trace(beside, os.fspath(path))
        beside.replace(target)
    return count


def _batches(requests: Any) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow
    import pyarrow.parquet

    if isinstance(requests, Trace):
        yield from requests
    elif isinstance(requests, (str, os.PathLike)):
        yield from pyarrow.parquet.ParquetFile(requests).iter_batches()
    elif hasattr(requests, "__arrow_c_stream__"):
        yield from pyarrow.RecordBatchReader.from_stream(requests)
    else:
        kind = type(requests).__name__
        raise SeekwayError(f"{kind}: expected a table with __arrow_c_stream__, or a path")


def _write_parquet(
    batches: Iterator[pyarrow.RecordBatch], schema: pyarrow.Schema, path: Path
) -> int:
    import pyarrow.parquet

    count = 0
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _write_csv(
    batches: Iterator[pyarrow.RecordBatch], file: IO[bytes] | gzip.GzipFile, packed: bool
) -> None:
    import pyarrow.csv

    if packed:
        # No time and no name in it: the same requests are the same bytes.
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as to:
            return _write_csv(batches, to, packed=False)
    first = _flat(next(batches))
    with pyarrow.csv.CSVWriter(file, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(_flat(batch))
    return None


def _flat(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """The columns as text and numbers, under the names that a trace in CSV has."""
    import pyarrow
    from pyarrow import types

    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        kind = column.type
        if types.is_nested(kind):
            continue
        if types.is_timestamp(kind) or types.is_duration(kind):
            of_ns = pyarrow.duration("ns")
            if types.is_timestamp(kind):
                of_ns = pyarrow.timestamp("ns", kind.tz)
            column = column.cast(of_ns).cast(pyarrow.int64())
            name = re.sub("_(s|ms|us|ns)$", "", name) + "_ns"
        elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            column = column.cast(pyarrow.string())
        columns["pid" if name == "process" else name] = column
    return pyarrow.RecordBatch.from_pydict(columns)
