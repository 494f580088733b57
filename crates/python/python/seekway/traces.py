"""Traces: every format that Seekway reads, as batches of Arrow; and written as Parquet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

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
    """Write requests as a trace in Parquet, whole or not at all; their number.

    Args:
        requests: anything with Arrow's C stream: tables of pyarrow, pandas and Polars, `Trace`.
            Columns as `Trace` has them; only ``time_ns``, ``op``, ``start_sector`` and ``sectors``
            (or ``offset_bytes`` and ``size_bytes``) are needed.
        path: the file.

    Raises:
        TraceError: a reader would not take it as a trace: the row and what is wrong with it.
    """
    stream = getattr(requests, "__arrow_c_stream__", None)
    if stream is None:
        raise SeekwayError(f"{type(requests).__name__}: expected a table with __arrow_c_stream__")
    return _native.write_trace(stream(), os.fspath(path))
