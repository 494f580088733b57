"""Figures of a run that the arena judges."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import seekway

from seekway_lab.arena.scenes import Judging, Promise

# In the order of tables. Of the latencies, the smaller is the better.
MEASURES = ["throughput", "worst_share", "p99", "p999", "jain", "kept"]
LATENCIES = {"p99", "p999"}
MIB = float(1 << 20)
# Columns of an Outcome's tables that are read.
COLUMNS = {
    "runs": ["simulated_ns", "held_idle_ns", "dispatched", "cpu_ns"],
    "vms": ["vm", "host", "requests", "bytes", "unfinished", "oldest_ns", "ended_ns"],
    "histograms": ["vm", "up_to_ns", "count"],
    "series": ["vm", "from_ns", "bin_ns", "bytes"],
}


@dataclass(frozen=True)
class Figures:
    """A run's figures; the mean of several where there are several seeds.

    Attributes:
        values: by measure, `None` where it is not judged. Latencies are factors of what the VM has
            alone, or in ms where that is not known.
        withheld: share of the time in which the policy kept the device idle with work queued.
        requests: reads and writes that were completed.
        ended_early: was a VM's load over before the run was? The figures are of another load then.
        cpu_ns: CPU time of a request, simulator and device model included.
    """

    values: dict[str, float | None]
    withheld: float
    requests: float
    ended_early: bool
    cpu_ns: float | None = None

    def row(self) -> dict[str, Any]:
        """As a row of a table."""
        rest = {name: value for name, value in vars(self).items() if name != "values"}
        return {**self.values, **rest}

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Figures:
        """From a row of a table, whose missing values may be no number."""
        known: dict[str, Any] = {k: None if value != value else value for k, value in row.items()}
        values = {name: known[name] for name in MEASURES}
        rest = [known[name] for name in ("withheld", "requests", "ended_early", "cpu_ns")]
        return cls(values, float(rest[0]), float(rest[1]), bool(rest[2]), rest[3])

    @classmethod
    def mean(cls, runs: list[Figures]) -> Figures:
        """The mean of the runs with several seeds."""

        def of(values: Iterable[float | None]) -> float | None:
            known = [value for value in values if value is not None]
            return sum(known) / len(known) if len(known) == len(runs) else None

        return cls(
            values={name: of(run.values[name] for run in runs) for name in MEASURES},
            withheld=sum(run.withheld for run in runs) / len(runs),
            requests=sum(run.requests for run in runs) / len(runs),
            ended_early=any(run.ended_early for run in runs),
            cpu_ns=of(run.cpu_ns for run in runs),
        )


@dataclass(frozen=True)
class Alone:
    """Rate and latencies of a VM that has the device for itself."""

    mib_s: float
    p99_ms: float
    p999_ms: float

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Alone:
        """From a row of `alone`."""
        return cls(row["mib_s"], row["p99_ms"], row["p999_ms"])


class Times:
    """A VM's response times as the simulator counts them: bins of two digits from 1 µs on.

    A request that the end of the run found waiting counts with its age: a VM that is starved
    looks no better for it.
    """

    def __init__(self, bins: dict[int, int], waiting_ns: int | None) -> None:
        """Counts by the last nanosecond of their bin, and the age of the oldest request."""
        if waiting_ns is not None:
            up_to = bin_end(waiting_ns)
            bins = {**bins, up_to: bins.get(up_to, 0) + 1}
        self.bins = sorted(bins.items())
        self.count = sum(bins.values())

    def ms(self, quantile: float) -> float:
        """This part of the requests takes no longer."""
        before, wanted = 0, max(math.ceil(quantile * self.count), 1)
        for up_to, count in self.bins:
            before += count
            if before >= wanted:
                return up_to / 1e6
        return 0.0

    def within(self, target_ns: int) -> float:
        """The part of the requests that took no longer than a target."""
        last = bin_end(target_ns)
        late = sum(count for up_to, count in self.bins if up_to > last)
        return 1.0 - late / max(self.count, 1)


def bin_end(time_ns: int) -> int:
    """The last nanosecond of the histogram's bin that has this time."""
    shift = max(time_ns.bit_length(), 17) - 8
    return ((time_ns >> shift) + 1 << shift) - 1


@dataclass(frozen=True)
class Vm:
    """A VM's disk in a run."""

    requests: int
    bytes: int
    unfinished: int
    ended: bool
    times: Times
    # Bytes by the beginning of their bin. A bin's length doubles with the VM's last completion.
    bins: dict[int, int]
    bin_ns: int


@dataclass(frozen=True)
class Run:
    """A run, from the tables of an Outcome."""

    simulated_ns: int
    held_idle_ns: int
    dispatched: int
    cpu_ns: int | None
    vms: list[Vm]

    @classmethod
    def of(cls, outcome: seekway.Outcome) -> Run:
        """The only run of an Outcome."""
        tables: dict[str, dict[str, list[Any]]] = {
            name: table.to_arrow().select(COLUMNS[name]).to_pydict()
            for name, table in outcome.tables.items()
        }
        run = {name: column[0] for name, column in tables["runs"].items()}
        times = of_vms(tables.get("histograms"), "up_to_ns", "count")
        series = tables.get("series", {"vm": [], "bin_ns": []})
        bins = of_vms(tables.get("series"), "from_ns", "bytes")
        bin_ns = dict(zip(series["vm"], series["bin_ns"], strict=True))
        disks = tables["vms"]

        def vm(n: int) -> Vm:
            name, unfinished = disks["vm"][n], disks["unfinished"][n]
            waiting = disks["oldest_ns"][n] if unfinished else None
            return Vm(
                requests=disks["requests"][n],
                bytes=disks["bytes"][n],
                unfinished=unfinished,
                ended=disks["ended_ns"][n] is not None,
                times=Times(times.get(name, {}), waiting),
                bins=bins.get(name, {}),
                bin_ns=bin_ns.get(name, 1),
            )

        return cls(
            simulated_ns=run["simulated_ns"],
            held_idle_ns=run["held_idle_ns"],
            dispatched=run["dispatched"],
            cpu_ns=run["cpu_ns"],
            vms=[vm(n) for n, is_host in enumerate(disks["host"]) if not is_host],
        )

    def per_s(self, amount: float) -> float:
        """An amount over the whole run, whether a VM was served to its end or not."""
        return amount / (self.simulated_ns / 1e9) if self.simulated_ns else 0.0

    def mib_s(self, vm: Vm) -> float:
        """A VM's rate."""
        return self.per_s(vm.bytes / MIB)


def of_vms(
    table: dict[str, list[Any]] | None, key: str, value: str
) -> dict[str | None, dict[int, int]]:
    """A table's values by VM and key."""
    found: dict[str | None, dict[int, int]] = {}
    if table is not None:
        for vm, at, amount in zip(table["vm"], table[key], table[value], strict=True):
            if vm is not None:
                found.setdefault(vm, {})[at] = amount
    return found


def alone(outcome: seekway.Outcome) -> dict[str, list[dict[str, Any]]]:
    """The row of a run with one VM."""
    run = Run.of(outcome)
    vm = run.vms[0]
    return {"runs": [vars(Alone(run.mib_s(vm), vm.times.ms(0.99), vm.times.ms(0.999)))]}


def judged(
    outcome: seekway.Outcome, judging: Judging, alone: list[Alone] | None
) -> dict[str, list[dict[str, Any]]]:
    """The row of a run with its figures."""
    return {"runs": [figures(judging, Run.of(outcome), alone).row()]}


def figures(judging: Judging, run: Run, alone: list[Alone] | None) -> Figures:
    """The figures of a run. `alone`: each VM's figures alone, where they are known."""
    total = sum(vm.requests if judging.unit == "IOPS" else vm.bytes for vm in run.vms)
    p99, p999 = latencies(judging, run, alone) if judging.latency else (None, None)
    progress = Progress(judging, run, alone or [])
    judged = judging.judges_shares
    values = {
        "throughput": run.per_s(total if judging.unit == "IOPS" else total / MIB),
        "worst_share": progress.worst_share() if judged else None,
        "p99": p99,
        "p999": p999,
        "jain": progress.jain(judging) if judged and judging.window_ns else None,
        "kept": kept(judging.promises, run),
    }
    return Figures(
        values=values,
        withheld=run.held_idle_ns / (run.simulated_ns + judging.settle_ns),
        requests=float(sum(vm.requests for vm in run.vms)),
        ended_early=any(vm.ended for vm in run.vms),
        cpu_ns=None if run.cpu_ns is None else run.cpu_ns / max(run.dispatched, 1),
    )


def kept(promises: list[Promise], run: Run) -> float | None:
    """The least fraction of a service-level target that was kept, 0 to 1."""
    parts = []
    for vm, promise in zip(run.vms, promises, strict=False):
        if promise.iops:
            parts.append(run.per_s(vm.requests) / promise.iops)
        if promise.bytes_per_s:
            parts.append(run.per_s(vm.bytes) / promise.bytes_per_s)
        if promise.latency_ns:
            parts.append(vm.times.within(promise.latency_ns) / 0.99)
    return min(1.0, *parts) if parts else None


def latencies(judging: Judging, run: Run, alone: list[Alone] | None) -> tuple[float, float]:
    """p99 and p99.9 of the quiet VM, else of the VM that comes off worst.

    All requests together would speak for the VM that is served most.
    """
    p99, p999 = 0.0, 0.0
    for n, vm in enumerate(run.vms[:1] if judging.quiet else run.vms):
        if judging.quiet or vm.requests + vm.unfinished:
            own = alone[n] if alone else Alone(0.0, 1.0, 1.0)
            p99 = max(p99, over(vm.times.ms(0.99), own.p99_ms))
            p999 = max(p999, over(vm.times.ms(0.999), own.p999_ms))
    return p99, p999


def over(value: float, base: float) -> float:
    """A ratio; 0 of nothing, infinite above nothing."""
    return value / base if base else math.inf if value else 0.0


class Progress:
    """VMs that read or write, each relative to its figures alone.

    A VM at 0.5 runs at half its speed, whatever its requests cost.
    """

    def __init__(self, judging: Judging, run: Run, alone: list[Alone]) -> None:
        """Of the VMs that move something alone: those that only discard have no share."""
        self.run = run
        shares = [*judging.shares, *([1.0] * len(run.vms))]
        known = zip(run.vms, alone, shares, strict=False)
        self.vms = [(vm, own.mib_s, share) for vm, own, share in known if own.mib_s > 0.0]
        self.shares = [share for *_, share in self.vms]

    def worst_share(self) -> float | None:
        """The least fraction that a VM got of its max-min fair share."""
        if len(self.vms) < 2:
            return None
        got = [self.run.mib_s(vm) / own for vm, own, _ in self.vms]
        due = max_min_shares(sum(got), [1.0] * len(got), self.shares)
        parts = [part / share for part, share in zip(got, due, strict=True) if share > 0.0]
        # More than alone is luck, such as a neighbour's read-ahead.
        return min(1.0, *parts) if parts else None

    def jain(self, judging: Judging) -> float | None:
        """The mean of Jain's index of progress over share, over the whole windows."""
        if len(self.vms) < 2:
            return None
        window, indices = judging.window_ns, []
        for n in range(self.run.simulated_ns // window):
            index = self.jain_of(self.window(judging.settle_ns + n * window, window))
            if index is not None:
                indices.append(index)
        return sum(indices) / len(indices) if indices else None

    def window(self, from_ns: int, window_ns: int) -> list[float]:
        """Progress of each VM in a window."""

        def got(vm: Vm) -> int:
            first, last = from_ns // vm.bin_ns, -(-(from_ns + window_ns) // vm.bin_ns)
            return sum(vm.bins.get(n * vm.bin_ns, 0) for n in range(first, last)) if vm.bins else 0

        return [got(vm) / own for vm, own, _ in self.vms]

    def jain_of(self, got: list[float]) -> float | None:
        """Jain's index of the VMs' rates over their shares.

        A VM counts with at most the level that an even division of all that was got would have:
        nobody lacks what it has above.
        """
        level = sum(got) / sum(self.shares)
        capped = [min(part / share, level) for part, share in zip(got, self.shares, strict=True)]
        most = max(capped)
        if most <= 0.0:
            return None
        scaled = [part / most for part in capped]
        return sum(scaled) ** 2 / (len(scaled) * sum(part * part for part in scaled))


def max_min_shares(capacity: float, demands: list[float], shares: list[float]) -> list[float]:
    """Bandwidths under weighted max-min fairness (progressive filling).

    No VM gets more than it demands; the others divide by their shares what one leaves.
    """
    due, left, shares_left = [0.0] * len(demands), capacity, sum(shares)
    # The VM that needs the lowest level per share is satisfied first.
    for n in sorted(range(len(demands)), key=lambda n: demands[n] / shares[n]):
        due[n] = min(demands[n], left * min(shares[n] / shares_left, 1.0))
        left = max(left - due[n], 0.0)
        shares_left -= shares[n]
    return due
