"""A scenario's VMs for real guests and for the simulator: one description, two runs.

Only the simulator's runs need the wheel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from seekway_lab.arena.scenes import size_bytes
from seekway_lab.live.runs import Table as Shown
from seekway_lab.live.runs import number
from seekway_lab.scenarios import Table

if TYPE_CHECKING:
    import seekway

#: Columns of a table by their heads: text or a number of each row.
Columns = dict[str, Callable[[Table], Any]]
MIB = 1 << 20
#: Size of a VM's image unless it says so (`seekway list loads vm`).
IMAGE = "12GiB"


def image_bytes(vm: Mapping[str, Any]) -> int:
    """Size of a VM's image."""
    return size_bytes(vm.get("guest", {}).get("image", IMAGE))


def vm_text(vm: Mapping[str, Any]) -> str:
    """A `[[vm]]` of a scenario as `seekway load --vm` takes it."""

    def pairs(keys: Mapping[str, Any]) -> list[str]:
        texts = {key: str(v).lower() if isinstance(v, bool) else str(v) for key, v in keys.items()}
        return [f"{key}={text}" for key, text in texts.items()]

    parts = [f"name={vm['name']}", *pairs(vm.get("guest", {}))]
    for load in vm["load"]:
        keys = {key: value for key, value in load.items() if key != "app"}
        parts.append(f"app={load['app']}:{','.join(pairs(keys))}".rstrip(":"))
    return ",".join(parts)


def simulate(
    scenario: Table, policy: str, seed: int, settle_s: float, window_s: float
) -> seekway.Outcome:
    """Runs the scenario for the time to settle, which is not measured, and then for the window."""
    import seekway

    measure = {"settle": f"{settle_s:g}s", "until": f"{settle_s + window_s:g}s"}
    table = {**scenario, "policy": policy, "seed": seed, "measure": measure}
    return seekway.run(table, jobs=1, progress=False)


def figures(outcome: seekway.Outcome) -> Table:
    """Figures of a run: `mib_s`, `iops`, times in ms, and `vms` with the same of each."""
    from seekway_lab.runs import rows_of

    [run] = rows_of(outcome.runs)
    found = _rates(run, run["simulated_ns"])
    found |= {
        "response_stdev_ms": run["response_deviation_ns"] / 1e6,
        "service_ms": run["service_mean_ns"] / 1e6,
        "kib_per_command": run["bytes"] / 1024 / max(run["commands"], 1),
        "vms": [_rates(vm, vm["span_ns"]) for vm in rows_of(outcome.vms)],
    }
    return found


def _rates(row: Table, span_ns: int) -> Table:
    """Of a run or of a VM."""
    seconds = max(span_ns, 1) / 1e9
    return {
        "mib_s": row["bytes"] / MIB / seconds,
        "iops": row["requests"] / seconds,
        "response_ms": row["response_mean_ns"] / 1e6,
        "p99_ms": row["response_p99_ns"] / 1e6,
    }


def zero_seeks(outcome: seekway.Outcome) -> float:
    """Share of the commands that begin where the last one ended, 0 to 1."""
    from seekway_lab.runs import rows_of

    commands = [row for row in rows_of(outcome.seeks) if row["by"] == "command"]
    zero = sum(row["count"] for row in commands if row["direction"] == "zero")
    return float(zero / max(sum(row["count"] for row in commands), 1))


def both(figures: Mapping[str, str], unit: float = 1) -> Columns:
    """Columns of figures by head, of real guests and of the simulator side by side."""

    def figure(side: str, key: str, row: Table) -> float | None:
        value = row[side][key]
        return None if value is None else unit * value

    return {
        f"{head}, {name}": partial(figure, side, key)
        for head, key in figures.items()
        for name, side in {"real": "live", "simulator": "simulated"}.items()
    }


def table(title: str, rows: Sequence[Table], columns: Columns, *notes: str) -> Shown:
    """A table of the terminal: text as it is, all else as a number; without columns of nothing."""

    def text(value: Any) -> str:
        return value if isinstance(value, str) else number(value)

    found = {head: [of(row) for row in rows] for head, of in columns.items()}
    found = {head: cells for head, cells in found.items() if any(c is not None for c in cells)}
    heads = [h if any(isinstance(c, str) for c in cells) else f"{h}:" for h, cells in found.items()]
    lines = zip(*(map(text, cells) for cells in found.values()), strict=True)
    return Shown(title, heads, list(map(list, lines)), notes)
