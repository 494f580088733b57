"""`compare`: one load, several policies and stacks, on one disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seekway import _native
from seekway._arguments import Paths, options, texts
from seekway._errors import SeekwayError
from seekway._policy import Policy
from seekway._progress import bar as _bar
from seekway._table import Table

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas
    import polars
    import pyarrow

OPERATIONS = ("read", "write")

PolicyLike = str | type[Policy] | Callable[[], Policy]


def compare(
    traces: Paths | None = None,
    *,
    vms: str | Sequence[str] = (),
    device: str = "seagate-1tb-7200",
    policies: PolicyLike | Sequence[PolicyLike] = "all",
    seeds: int | Sequence[int] = 1,
    progress: bool | None = None,
    **more: Any,
) -> Comparison:
    """Put a load through several policies on one model of a disk.

    Args:
        traces: files, one VM each; any format of `seekway.read_trace`.
        vms: generated VMs, as ``--vm`` has them: ``name=web,app=sysbench:mode=RR``.
        device: a profile (`seekway.devices()`), with changes as ``NAME:key=value``, or a file.
        policies: names with parameters (``"cfq:slice_idle=4ms"``), ``"all"``, or subclasses of
            `seekway.Policy` (or functions that make one), alone or in a list.
        seeds: how many seeds from 1 on, or consecutive seeds.
        progress: a bar; by default on a terminal and in a notebook.
        more: the other options of ``seekway compare``, with ``_`` for ``-``: ``until="60s"``,
            ``outstanding=32``, ``cache=["none", "512MiB"]``, ``split=64``, ``time_scale=0.5``.

    Raises:
        TraceError: a trace cannot be read; it says where.
        SeekwayError: a wrong argument.
        Exception: whatever a policy in Python raises.
    """
    listed: Sequence[PolicyLike] = (
        policies if isinstance(policies, Sequence) and not isinstance(policies, str) else [policies]
    )
    names: list[str] = []
    own: dict[str, Callable[[], Policy]] = {}
    for policy in listed:
        if isinstance(policy, str):
            names.append(policy)
            continue
        if not callable(policy):
            raise SeekwayError(
                f"policies: {policy!r}: give the class, not an object: each run makes its own"
            )
        name = getattr(policy, "__name__", type(policy).__name__)
        names.append(name)
        own[name] = policy
    first, count = _seeds(seeds)
    arguments = [f"--trace={path}" for path in texts(traces)]
    arguments += [f"--vm={vm}" for vm in texts(vms)]
    arguments += [f"--device={device}", f"--policies={','.join(names)}"]
    arguments += [f"--seed={first}", f"--seeds={count}"]
    for key in ("trace", "vm", "seed"):
        if key in more:
            raise SeekwayError(f"{key}: not an option here; it is called {key}s")
    arguments += options(more)
    with _bar(progress) as tell:
        made = _native.compare(arguments, list(own.items()), tell)
    return Comparison(arguments, own, *made)


def _seeds(seeds: int | Sequence[int]) -> tuple[int, int]:
    if isinstance(seeds, int):
        return 1, seeds
    listed = list(seeds)
    if not listed or listed != list(range(listed[0], listed[0] + len(listed))):
        raise SeekwayError(f"seeds: {listed}: a number of seeds, or consecutive ones")
    return listed[0], len(listed)


class Comparison:
    """The result of `compare`.

    Attributes:
        runs: a dictionary for each run, with the keys of ``compare --format json``: times in
            milliseconds, rates a second, shares from 0 to 1.
        device: the disk.
        warnings: what a reader has to know before trusting a figure.
        arguments: those of the command line that gives the same figures.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        own: Mapping[str, Callable[[], Policy]],
        text: str,
        csv: str,
        columns: _native.Records,
        html: str,
        warnings: list[str],
    ) -> None:
        """By `compare` only."""
        made = json.loads(text)
        self.runs: list[dict[str, Any]] = made["runs"]
        self.device: str = made["device"]
        self.warnings = warnings
        self.arguments = list(arguments)
        self._own = dict(own)
        self._csv = csv
        self._columns = columns
        self._html = html

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row for each run with the figures of all VMs together."""
        keys = ("policy", "seed", "requests", "iops", "mib_s", "phi", "jain", "max_min_share")
        rows = []
        for run in self.runs:
            times = {f"{key}_ms": value for key, value in run["response_ms"].items()}
            rows.append({key: run[key] for key in keys} | times | by_operation(run))
        return rows

    def requests(self, run: int = 0, *, progress: bool | None = None) -> Requests:
        """All requests of one run (its place in `runs`), which is made once more to record them.

        Times are simulated nanoseconds since the run began. The run is the same to the bit.
        """
        if not 0 <= run < len(self.runs):
            raise SeekwayError(f"run {run}: there are {len(self.runs)}, counted from 0")
        with _bar(progress) as tell:
            return Requests(_native.requests(self.arguments, run, list(self._own.items()), tell))

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the page of ``--report``: one file with all figures that needs no network."""
        with open(path, "w", encoding="utf-8") as page:
            page.write(self._html)

    def to_csv(self) -> str:
        """As ``compare --format csv`` prints it: a line for each run and VM."""
        return self._csv

    def to_arrow(self) -> pyarrow.Table:
        """The table of `to_csv` in typed columns, as Arrow, without a copy."""
        import pyarrow

        return pyarrow.table(self)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's C stream of that table, for any library that reads Arrow."""
        return self._columns.__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> pandas.DataFrame:
        """The table of `to_csv`, as pandas."""
        frame: pandas.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_polars(self) -> polars.DataFrame:
        """The table of `to_csv`, as Polars."""
        import polars

        return polars.DataFrame(self)

    def plot(self) -> matplotlib.figure.Figure:
        """Response times and bandwidth of each run, as a figure of matplotlib."""
        from seekway._plot import comparison

        return comparison(self)

    def _repr_html_(self) -> str:
        from seekway._html import comparison

        return comparison(self)

    def __repr__(self) -> str:
        """The table as text."""
        rows = self.table
        if not rows:
            return "Comparison()"
        head = ["policy", "seed", "MiB/s", "IOPS", "mean ms", "p99 ms", "max ms"]
        keys = ["policy", "seed", "mib_s", "iops", "mean_ms", "p99_ms", "max_ms"]
        head += [f"{operation} p99 ms" for operation in told_apart(rows)]
        keys += [f"{operation}_p99_ms" for operation in told_apart(rows)]
        cells = [head] + [[_shown(row[key]) for key in keys] for row in rows]
        widths = [max(len(row[n]) for row in cells) for n in range(len(head))]
        first = widths[0]
        lines = [
            row[0].ljust(first)
            + "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
            for row in cells
        ]
        return "\n".join([f"On {self.device}:", *lines, *(f"warning: {w}" for w in self.warnings)])


def by_operation(of: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of reads and of writes of a run or a VM, named as in CSV; None if it has none."""
    row: dict[str, Any] = {}
    for operation in OPERATIONS:
        served = of[f"{operation}s"]
        row[f"{operation}s"] = served and served["requests"]
        for key in ("iops", "mib_s"):
            row[f"{operation}_{key}"] = served and served[key]
        for key in of["response_ms"]:
            row[f"{operation}_{key}_ms"] = served and served["response_ms"][key]
    return row


def told_apart(rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Reads and writes, if any of these rows of `by_operation` has both; else nothing."""
    both = any(all(row[f"{operation}s"] for operation in OPERATIONS) for row in rows)
    return OPERATIONS if both else ()


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return "–" if value is None else str(value)


class Requests(Table):
    """Requests of a run in the order of their completion, as Arrow keeps them.

    Columns: ``vm`` and ``op`` (names), ``process`` (number in the guest, null if unknown),
    ``sync``, ``start_sector`` and ``sectors`` (512 bytes, on the VM's disk), ``submitted_ns``
    and ``completed_ns`` (simulated, since the run began).
    """
