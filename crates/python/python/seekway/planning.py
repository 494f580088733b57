"""How many VMs does a disk carry, and how many disks do these VMs need?

`plan` packs VMs, each a trace, on as few disks as it finds on which every VM meets a target. Each
set of VMs that it considers is simulated on one disk, as a cell of a campaign: on all cores or on
a cluster, and what was simulated once is kept.

It begins with first fit, the most demanding VM first; then it looks for fewer disks by bisection
between that and the lower bound: VMs are dealt out evenly, and moved or swapped away from the disk
that misses the target most.

The lower bound is stated, not assumed away: VMs of which no two can share a disk need a disk each.
It holds if more VMs on a disk never make one of them faster.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seekway import _native
from seekway._arguments import Paths, options, texts, traces_of
from seekway._errors import SeekwayError
from seekway.campaign.results import Results
from seekway.campaign.run import cluster, run_cells
from seekway.campaign.study import Cell, cell_of
from seekway.comparison import OPERATIONS, told_apart

Disk = frozenset[int]
#: A figure as a multiple of its bound, and in ms.
Nearest = tuple[float, float]

_BOUND = re.compile(r"(?:(read|write)\s+)?(mean|p50|p99|p999|max)\s*<\s*(.+)")
TARGET = "bounds for each VM, of all requests or of reads or writes: read p99<20ms, write p99<0.1s"
#: Moves and swaps that are tried for one number of disks.
REPAIRS_MAX = 200


@dataclass(frozen=True)
class Bound:
    """A limit of a figure of each VM, a column of `seekway.compare`'s CSV."""

    figure: str
    ms: float

    def __str__(self) -> str:
        """As it is parsed."""
        operation, _, figure = self.figure.removesuffix("_ms").rpartition("_")
        return f"{operation} {figure}<{self.ms:.12g}ms".lstrip()


@dataclass(frozen=True)
class Target:
    """Bounds that each VM's response times have to keep: ``read p99<20ms, write p99<0.1s``."""

    bounds: tuple[Bound, ...]

    @classmethod
    def parse(cls, text: str) -> Target:
        """From bounds between commas.

        Each is ``mean``, ``p50``, ``p99``, ``p999`` or ``max``, of all requests or after ``read``
        or ``write`` of these, ``<``, and a time with its unit.
        """
        bounds = []
        for part in text.split(","):
            match = _BOUND.fullmatch(part.strip())
            ms = _native.duration_ms(match[3]) if match else None
            if not match or not ms:
                raise SeekwayError(f"target {text!r}: expected for example p99<20ms")
            bounds.append(Bound(f"{match[1]}_{match[2]}_ms" if match[1] else f"{match[2]}_ms", ms))
        return cls(tuple(bounds))

    def nearest(self, vm: Mapping[str, Any]) -> Nearest:
        """The VM's figure that is the largest multiple of its bound.

        A VM keeps the bounds of operations that it has not.
        """
        figures = ((vm[bound.figure] or 0.0, bound.ms) for bound in self.bounds)
        return max((ms / limit, ms) for ms, limit in figures)

    def __str__(self) -> str:
        """As it is parsed."""
        return ", ".join(map(str, self.bounds))


@dataclass
class PolicyPlan:
    """The disks that one policy needs.

    Attributes:
        disks: the VMs on each disk, by name.
        figures: the target's figure of each VM there, in ms; of several the one that is nearest to
            its bound.
        operations: rates and response times of the reads and the writes of each VM there, by the
            names of `seekway.compare`'s CSV: ``read_p99_ms``; None if it has none.
        alone: the target's figure of each VM alone on a disk.
        cannot: VMs that miss the target even alone; they are on no disk.
        lower_bound: fewer disks are not enough (if more VMs never make one faster).
        next_disk: the worst VM's figure with the plan's disks and with one more, VMs spread, in ms.
    """

    policy: str
    disks: list[list[str]]
    figures: dict[str, float]
    operations: dict[str, dict[str, Any]]
    alone: dict[str, float]
    cannot: list[str]
    lower_bound: int
    next_disk: tuple[float, float] | None

    def suffering(self, count: int = 5) -> list[tuple[str, float]]:
        """The VMs that are slowed down most by others, and how many times."""
        slowed = [(vm, ms / max(self.alone[vm], 1e-9)) for vm, ms in self.figures.items()]
        return sorted(slowed, key=lambda entry: -entry[1])[:count]

    def shown(self, vm: str) -> str:
        """The target's figure of a VM, and the p99 of reads and of writes if it has both."""
        of_vm = self.operations[vm]
        apart = [f"{op} p99 {of_vm[f'{op}_p99_ms']:.3g} ms" for op in told_apart([of_vm])]
        return ", ".join([f"{self.figures[vm]:.3g} ms", *apart])


@dataclass
class Plan:
    """The result of `plan`: a `PolicyPlan` for each policy, the fewest disks first."""

    target: Target
    device: str
    policies: list[PolicyPlan]
    simulations: int

    def to_json(self) -> str:
        """All of it."""
        listed = [vars(one) | {"suffering": one.suffering()} for one in self.policies]
        about = {"target": str(self.target), "device": self.device}
        return json.dumps(about | {"simulations": self.simulations, "policies": listed}, indent=1)

    def to_csv(self) -> str:
        """A line for each VM under each policy, with the number of its disk if it has one."""
        text = io.StringIO()
        about = ["policy", "disk", "vm", "figure_ms", "alone_ms"]
        rows = [row for one in self.policies for row in one.operations.values()]
        columns = [*about, *(rows[0] if rows else ())]
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        for one in self.policies:
            disk_of = {vm: number for number, disk in enumerate(one.disks, 1) for vm in disk}
            for vm, alone in one.alone.items():
                row: dict[str, float | str | None] = {"policy": one.policy, "disk": disk_of.get(vm)}
                row |= {"vm": vm, "figure_ms": one.figures.get(vm), "alone_ms": alone}
                writer.writerow(row | one.operations.get(vm, {}))
        return text.getvalue()

    def __str__(self) -> str:
        """A table, and the worst VMs under the best policy."""
        if not self.policies:
            return "no policy"
        width = max(len(one.policy) for one in self.policies)
        lines = [
            f"{self.device}, {self.target}: {self.simulations} simulations",
            f"{'policy':{width}}  disks  at least  cannot  worst, ms  with a disk more, ms",
        ]
        for one in self.policies:
            now, more = (f"{ms:.4g}" for ms in one.next_disk) if one.next_disk else ("–", "–")
            lines.append(
                f"{one.policy:{width}}  {len(one.disks):5}  {one.lower_bound:8}  "
                f"{len(one.cannot):6}  {now:>9}  {more:>20}"
            )
        best = self.policies[0]
        for number, vms in enumerate(best.disks, 1):
            shown = ", ".join(f"{vm} ({best.shown(vm)})" for vm in vms)
            lines.append(f"disk {number} under {best.policy}: {shown}")
        if slowed := ", ".join(f"{vm} {factor:.2g}×" for vm, factor in best.suffering()):
            lines.append(f"slowed down most by the others: {slowed}")
        if best.cannot:
            lines.append(f"too slow even alone: {', '.join(best.cannot)}")
        return "\n".join(lines)


def plan(
    traces: Paths,
    *,
    target: str,
    device: str = "seagate-exos-x24",
    policies: str | Sequence[str] = ("noop", "cfq", "fairway"),
    out: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    **more: Any,
) -> Plan:
    """Pack VMs on as few disks as it finds on which each of them meets a target.

    Args:
        traces: a VM each: files, or one folder of them.
        target: bounds for each VM: ``p99<20ms``, ``read p99<20ms, write p99<0.1s``.
        device: each disk's profile.
        policies: each is planned for by itself.
        out: folder in which simulations are kept for the next plan; otherwise they are forgotten.
        workers: processes on this machine.
        scheduler: address of a Dask scheduler instead.
        more: options of `seekway.compare`: ``max_requests=2000``, ``outstanding=4``.

    Raises:
        SeekwayError: a wrong argument; a trace that cannot be read.
    """
    files = _files(traces)
    bound = Target.parse(target)
    listed = [policies] if isinstance(policies, str) else list(policies)
    if not files or not listed:
        raise SeekwayError("traces and policies: at least one of each")
    keep: AbstractContextManager[str | os.PathLike[str]] = (
        tempfile.TemporaryDirectory() if out is None else nullcontext(out)
    )
    with keep as folder, cluster(workers, scheduler) as client:
        planner = _Planner(files, device, bound, Path(folder), client, options(more))
        plans = [planner.plan(policy) for policy in listed]
        plans.sort(key=lambda one: (len(one.cannot), len(one.disks)))
        return Plan(bound, device, plans, planner.simulations)


def _files(traces: Paths) -> list[str]:
    listed = texts(traces)
    if len(listed) == 1 and Path(listed[0]).is_dir():
        listed = sorted(str(p) for p in Path(listed[0]).iterdir() if p.is_file())
    return traces_of(listed)


@dataclass
class _Planner:
    """Plans on one kind of disk; every set of VMs is simulated once."""

    files: list[str]
    device: str
    target: Target
    folder: Path
    client: Any
    options: list[str]
    known: dict[tuple[str, Disk], dict[int, Nearest]] = field(default_factory=dict)
    simulations: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.names = _names(self.files)
        stored = Results(self.folder).to_arrow().to_pylist()
        self.stored: dict[str, Mapping[str, Any]] = {row["cell"]: row for row in stored}

    def cell(self, policy: str, disk: Disk) -> Cell:
        arguments = [f"--trace={self.files[vm]}" for vm in sorted(disk)]
        arguments += [f"--device={self.device}", f"--policies={policy}", "--seed=1", "--jobs=1"]
        arguments += ["--alone=never", *self.options]
        axes = {"policy": policy, "device": self.device, "seed": 1}
        return cell_of(arguments, axes)

    def simulate(self, policy: str, disks: Iterable[Disk]) -> None:
        """The figure of each VM on each of these disks, all of them at the same time."""
        new = {disk for disk in disks if disk and (policy, disk) not in self.known}
        cells = {disk: self.cell(policy, disk) for disk in sorted(new, key=sorted)}
        left = [cell for cell in cells.values() if cell.key not in self.stored]
        self.stored |= {row["cell"]: row for row in run_cells(self.folder, left, self.client)}
        for disk, cell in cells.items():
            row = self.stored[cell.key]
            if row.get("error") is not None:
                named = ", ".join(self.names[vm] for vm in sorted(disk))
                raise SeekwayError(f"{named}: {row['error']}")
            figures = (self.target.nearest(vm) for vm in row["vms"])
            self.known[policy, disk] = dict(zip(sorted(disk), figures, strict=True))
        self.simulations += len(left)

    def operations(self, policy: str, disk: Disk) -> dict[str, dict[str, Any]]:
        """The columns of reads and writes of each VM on a disk that was simulated."""
        vms = self.stored[self.cell(policy, disk).key]["vms"]
        wanted = tuple(f"{op}{end}" for op in OPERATIONS for end in ("s", "_"))
        return {
            self.names[n]: {key: vm[key] for key in vm if key.startswith(wanted)}
            for n, vm in zip(sorted(disk), vms, strict=True)
        }

    def worst(self, policy: str, disk: Disk) -> Nearest:
        """The worst VM's figure."""
        if not disk:
            return 0.0, 0.0
        self.simulate(policy, [disk])
        return max(self.known[policy, disk].values())

    def excess(self, policy: str, disk: Disk) -> float:
        """The worst VM's figure over the target; below 1 if all meet it."""
        return self.worst(policy, disk)[0]

    def fits(self, policy: str, disk: Disk) -> bool:
        return self.excess(policy, disk) < 1.0

    def plan(self, policy: str) -> PolicyPlan:
        every = range(len(self.files))
        self.simulate(policy, [frozenset([vm]) for vm in every])
        alone = {vm: self.known[policy, frozenset([vm])][vm] for vm in every}
        able = [vm for vm in every if alone[vm][0] < 1.0]
        able.sort(key=lambda vm: (-alone[vm][0], vm))
        least = self.lower_bound(policy, able)
        best = self.first_fit(policy, able)
        low, high = least, len(best)
        while low < high:
            middle = (low + high) // 2
            found = self.repaired(policy, self.dealt(able, middle))
            if found is None:
                low = middle + 1
            else:
                best, high = found, len(found)
        placed = {vm: self.known[policy, disk][vm] for disk in best for vm in disk}
        operations = [self.operations(policy, disk) for disk in best]
        return PolicyPlan(
            policy=policy,
            disks=[[self.names[vm] for vm in sorted(disk)] for disk in best],
            figures={self.names[vm]: placed[vm][1] for vm in sorted(placed)},
            operations={vm: row for disk in operations for vm, row in disk.items()},
            alone={self.names[vm]: alone[vm][1] for vm in every},
            cannot=[self.names[vm] for vm in every if vm not in placed],
            lower_bound=least,
            next_disk=self.next_disk(policy, able, best),
        )

    def lower_bound(self, policy: str, able: list[int]) -> int:
        """VMs of which no two fit together, found greedily."""
        pairs = [frozenset(pair) for pair in itertools.combinations(able, 2)]
        self.simulate(policy, pairs)
        apart = {pair for pair in pairs if not self.fits(policy, pair)}
        degree = {vm: sum(vm in pair for pair in apart) for vm in able}
        clique: list[int] = []
        for vm in sorted(able, key=lambda vm: (-degree[vm], vm)):
            if all(frozenset((vm, other)) in apart for other in clique):
                clique.append(vm)
        return max(len(clique), min(1, len(able)))

    def first_fit(self, policy: str, able: list[int]) -> list[Disk]:
        disks: list[Disk] = []
        for vm in able:
            # All at once: simulations run side by side.
            self.simulate(policy, [disk | {vm} for disk in disks])
            room = [n for n, disk in enumerate(disks) if self.fits(policy, disk | {vm})]
            if room:
                disks[room[0]] |= {vm}
            else:
                disks.append(frozenset([vm]))
        return disks

    def dealt(self, able: list[int], count: int) -> list[Disk]:
        """Deal the VMs out to `count` disks, forth and back, the most demanding first."""
        disks: list[set[int]] = [set() for _ in range(count)]
        for n, vm in enumerate(able):
            turn, place = divmod(n, count)
            disks[place if turn % 2 == 0 else count - 1 - place].add(vm)
        return [frozenset(disk) for disk in disks]

    def repaired(self, policy: str, disks: list[Disk]) -> list[Disk] | None:
        """Move and swap VMs until all disks fit, as long as the sum of excesses shrinks."""
        self.simulate(policy, disks)
        for _ in range(REPAIRS_MAX):
            excess = [max(self.excess(policy, disk) - 0.999999, 0.0) for disk in disks]
            worst = max(range(len(disks)), key=lambda n: excess[n])
            if excess[worst] == 0.0 or self.fits(policy, disks[worst]):
                return [disk for disk in disks if disk]
            changes = list(self.changes(disks, worst))
            self.simulate(policy, {disk for _, a, b in changes for disk in (a, b)})

            def left(change: tuple[int, Disk, Disk]) -> float:
                return sum(max(self.excess(policy, disk) - 0.999999, 0.0) for disk in change[1:])

            gain = {n: left(c) - excess[worst] - excess[c[0]] for n, c in enumerate(changes)}
            if not gain or min(gain.values()) >= 0.0:
                return None
            other, a, b = changes[min(gain, key=lambda n: (gain[n], n))]
            disks[worst], disks[other] = a, b
        return None

    def changes(self, disks: list[Disk], worst: int) -> Iterable[tuple[int, Disk, Disk]]:
        """The other disk, and both disks' VMs after a move or a swap."""
        for other, disk in enumerate(disks):
            if other == worst:
                continue
            for vm in sorted(disks[worst]):
                yield other, disks[worst] - {vm}, disk | {vm}
                for back in sorted(disk):
                    yield other, disks[worst] - {vm} | {back}, disk - {back} | {vm}

    def next_disk(
        self, policy: str, able: list[int], best: list[Disk]
    ) -> tuple[float, float] | None:
        if not best:
            return None
        spread = [disk for disk in self.dealt(able, len(best) + 1) if disk]
        self.simulate(policy, spread)

        worst, spread_worst = (
            max(self.worst(policy, disk) for disk in disks)[1] for disks in (best, spread)
        )
        return worst, spread_worst


def _names(files: list[str]) -> list[str]:
    """Short names, each once."""
    short = [Path(file).name.split(".")[0] for file in files]
    return [
        name if short.count(name) == 1 else Path(file).name if files.count(file) == 1 else f"{n}"
        for n, (name, file) in enumerate(zip(short, files, strict=True))
    ]


def main(arguments: list[str] | None = None) -> int:
    """``python -m seekway plan``: status 0, 1 if a VM fits on no disk, 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m seekway plan",
        description="Find the number of disks that these VMs need to meet their targets.",
        epilog="Other options are those of `seekway compare`: --max-requests=2000. "
        "Exit status 1: some VM misses the target even alone; 2: wrong usage.",
    )
    parser.add_argument("--traces", required=True, nargs="+", metavar="DIR|FILE")
    parser.add_argument("--device", default="seagate-exos-x24", help="profile of each disk")
    parser.add_argument("--target", required=True, metavar="p99<20ms", help=TARGET)
    parser.add_argument("--policies", default="noop,cfq,fairway", metavar="A,B")
    parser.add_argument("--out", metavar="DIR", help="keep simulations for the next plan")
    parser.add_argument("--workers", type=int, metavar="N")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler")
    parser.add_argument("--format", choices=("table", "json", "csv"), default="table")
    args, rest = parser.parse_known_args(arguments)
    try:
        made = plan(
            args.traces,
            target=args.target,
            device=args.device,
            policies=_policies(args.policies),
            out=args.out,
            workers=args.workers,
            scheduler=args.scheduler,
            **_more(rest),
        )
    except SeekwayError as error:
        print(f"python -m seekway plan: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    text = {"json": made.to_json, "csv": made.to_csv, "table": made.__str__}[args.format]()
    print(text.rstrip("\n"))
    return 1 if made.policies and made.policies[0].cannot else 0


def _policies(text: str) -> list[str]:
    """Policies with parameters: a comma before ``key=`` belongs to the policy before it."""
    return re.split(r",(?![^,:]*=)", text)


def _more(rest: list[str]) -> dict[str, Any]:
    """``--key=value`` of other options."""
    more: dict[str, Any] = {}
    for item in rest:
        key, equals, value = item.removeprefix("--").partition("=")
        if not item.startswith("--") or not key:
            raise SeekwayError(f"{item}: expected --option=value")
        more[key.replace("-", "_")] = value if equals else True
    return more
