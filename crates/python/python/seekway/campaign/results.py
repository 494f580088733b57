"""The data set of a campaign: a folder of files in Parquet, each written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from seekway._errors import SeekwayError
from seekway.comparison import OPERATIONS, by_operation

if TYPE_CHECKING:
    import pandas
    import polars

_FIGURES = ("iops", "mib_s", "simulated_s", "zero_seek_share", "phi", "jain", "max_min_share")
_TIMES = ("mean", "p50", "p99", "p999", "max")
#: Of a VM, and of the reads and the writes of a VM or a run.
_SERVED = ("iops", "mib_s", *(f"{name}_ms" for name in _TIMES))

_BY_OPERATION = [
    column
    for operation in OPERATIONS
    for column in (
        (f"{operation}s", pyarrow.uint64()),
        *((f"{operation}_{name}", pyarrow.float64()) for name in _SERVED),
    )
]
_VM = pyarrow.struct(
    [
        ("name", pyarrow.string()),
        ("requests", pyarrow.uint64()),
        *((name, pyarrow.float64()) for name in _SERVED),
        *_BY_OPERATION,
    ]
)

#: A row for each cell: `cell` is its key, `axes` the values of its axes as JSON, `error` null or
#: why there are no figures; times in ms, rates a second. `wall_s` is the time that it took.
SCHEMA = pyarrow.schema(
    [
        ("cell", pyarrow.string()),
        ("axes", pyarrow.string()),
        ("policy", pyarrow.string()),
        ("device", pyarrow.string()),
        ("seed", pyarrow.int64()),
        ("traces", pyarrow.list_(pyarrow.string())),
        ("requests", pyarrow.uint64()),
        *((name, pyarrow.float64()) for name in _FIGURES),
        ("service_ms", pyarrow.float64()),
        *((f"{name}_ms", pyarrow.float64()) for name in _TIMES),
        *_BY_OPERATION,
        ("finished", pyarrow.bool_()),
        ("vms", pyarrow.list_(_VM)),
        ("error", pyarrow.string()),
        ("program", pyarrow.string()),
        ("wall_s", pyarrow.float64()),
    ]
)


def figures(run: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of one run of `seekway.compare`."""
    row = {name: run[name] for name in ("requests", "finished", *_FIGURES)}
    row["service_ms"] = run["service_ms"]["mean"]
    row |= {f"{name}_ms": run["response_ms"][name] for name in _TIMES} | by_operation(run)
    row["vms"] = [
        {name: vm[name] for name in ("name", "requests", "iops", "mib_s")}
        | {f"{name}_ms": vm["response_ms"][name] for name in _TIMES}
        | by_operation(vm)
        for vm in run["vms"]
    ]
    return row


def write_batch(folder: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Add one file of rows. It is there whole, also after a power failure, or not at all."""
    table = pyarrow.Table.from_pylist(list(rows), schema=SCHEMA)
    # Named by its first cell: the same cells again would be the same file.
    name = f"{table['cell'][0].as_py()[:32]}-{len(table)}.parquet"
    beside = folder / f".{name}.{os.getpid()}"
    try:
        with open(beside, "wb") as file:
            pyarrow.parquet.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        os.rename(beside, folder / name)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return folder / name


class Results:
    """All rows of a data set, sorted by cell; each cell once.

    Raises:
        SeekwayError: a file cannot be read; it says which.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Read the folder's files. A killed process's temporary files are ignored."""
        self.folder = Path(folder)
        tables = []
        for path in sorted(self.folder.glob("*.parquet")):
            try:
                tables.append(pyarrow.parquet.read_table(path, schema=SCHEMA))
            except (OSError, pyarrow.ArrowException) as error:
                raise SeekwayError(
                    f"{path}: not a batch of results ({error}); delete it, and its cells run again"
                ) from error
        table = pyarrow.concat_tables(tables) if tables else SCHEMA.empty_table()
        self._table = table.sort_by("cell")
        keys = self._table["cell"]
        #: Rows of cells that are there more than once: none, unless two campaigns ran at once.
        self.doubled = len(keys) - len(keys.unique())

    def __len__(self) -> int:
        """Rows."""
        return int(self._table.num_rows)

    @property
    def keys(self) -> set[str]:
        """The cells that are done, failed ones too."""
        return set(self._table["cell"].to_pylist())

    @property
    def errors(self) -> list[tuple[dict[str, Any], str]]:
        """The axes of each failed cell, and why."""
        failed = self._table.filter(pyarrow.compute.is_valid(self._table["error"]))
        return [(json.loads(row["axes"]), row["error"]) for row in failed.to_pylist()]

    def to_arrow(self) -> pyarrow.Table:
        """As Arrow, in the columns of `SCHEMA`."""
        return self._table

    def to_pandas(self) -> pandas.DataFrame:
        """As pandas."""
        frame: pandas.DataFrame = self._table.to_pandas()
        return frame

    def to_polars(self) -> polars.DataFrame:
        """As Polars."""
        import polars

        return polars.DataFrame(self._table)
