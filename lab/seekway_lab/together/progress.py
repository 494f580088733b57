"""Progress: a VM's MiB/s over those on its private disk; and the rows of a scene."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from seekway_lab.judge import Runs, mean
from seekway_lab.records import Record, digits
from seekway_lab.together.oracle import Use, divided
from seekway_lab.together.scenes import ASKED, EACH, OFF, ON, Scene, contestants

Values = Sequence[float]
#: A VM or a policy, and its figure by seed.
Named = tuple[str, Values]

#: A VM has as much as it asks for from this part of it on.
REACHED = 0.98
#: The quantiles 0.975 of Student's t by degrees of freedom, from 1; beyond them the last.
STUDENT = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228]
ALL_ON, ALL_OFF = f"all on, {ON}", "all off"


def geometric_mean(values: Values) -> float:
    """The geometric mean; 0 if a value is."""
    if min(values) <= 0:
        return 0.0
    return math.exp(sum(map(math.log, values)) / len(values))


def half_width(values: Values) -> float | None:
    """Half of the 95 % interval of the mean, by Student's t; None for fewer than two."""
    freedom, middle = len(values) - 1, mean(values)
    if freedom < 1:
        return None
    error = math.sqrt(sum((v - middle) ** 2 for v in values) / freedom / len(values))
    return STUDENT[min(freedom, len(STUDENT)) - 1] * error


def over(ours: Values, base: Values) -> list[float]:
    """One figure over another, seed by seed."""
    return [a / b for a, b in zip(ours, base, strict=True)]


def short(value: float) -> str:
    """A figure with the digits that matter."""
    return f"{value:.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"


def least(all_: Iterable[Named]) -> Named:
    """The one with the least mean; of equal ones the first."""
    return min(all_, key=lambda one: mean(one[1]))


def most(all_: Iterable[Named]) -> Named:
    """The one with the greatest mean; of equal ones the last."""
    return max(reversed(list(all_)), key=lambda one: mean(one[1]))


class Judged:
    """The results of a scene."""

    def __init__(self, scene: Scene, found: Runs, policies: Iterable[str] = ()) -> None:
        self.scene, self.found, self.ways = scene, found, scene.ways(policies)
        self.contestants = [f"all on, {policy}" for policy in contestants()]

    def each(self, way: str, figure: str) -> list[float]:
        """A figure, as `VM.FIGURE`, by seed."""
        return list(self.found.each(*self.ways[way], figure))

    def single(self, vm: str, where: str, figure: str) -> list[float]:
        """A figure of a VM that runs alone, by seed."""
        scenario = f"{self.scene.name}, {vm}: {where}"
        return list(self.found.each(scenario, OFF, f"{vm}.{figure}"))

    def progress(self, way: str, vm: str) -> list[float]:
        """A VM's progress by seed; at least 1 where it has a rate and reaches it."""
        ours, private = self.each(way, f"{vm}.mib_s"), self.single(vm, "private", "mib_s")
        progress = over(ours, private)
        if not self.scene.is_paced(vm):
            return progress
        asked = self.single(vm, "alone", "mib_s")
        reached = [got >= REACHED * rate for got, rate in zip(ours, asked, strict=True)]
        return [max(p, 1.0) if ok else p for p, ok in zip(progress, reached, strict=True)]

    def worst(self, way: str) -> Named:
        """The VM with the least progress."""
        return least((vm, self.progress(way, vm)) for vm in self.scene.vms)

    def longest(self, way: str) -> Named:
        """The VM whose p99 is longest beside that on its private disk, and the ratio."""
        return most(
            (vm, over(self.each(way, f"{vm}.p99_ms"), self.single(vm, "private", "p99_ms")))
            for vm in self.scene.vms
        )

    def geometric(self, way: str) -> list[float]:
        """The geometric mean of progress over the VMs without a rate."""
        each = [self.progress(way, vm) for vm in self.scene.free]
        return [geometric_mean(seed) for seed in zip(*each, strict=True)]

    def total(self, way: str) -> list[float]:
        """MiB/s of all VMs."""
        each = [self.each(way, f"{vm}.mib_s") for vm in self.scene.vms]
        return [sum(seed) for seed in zip(*each, strict=True)]

    @cached_property
    def most_moved(self) -> Values:
        """MiB/s of all VMs under the policy that moves most."""
        return most((way, self.total(way)) for way in self.contestants)[1]

    def first(self, figure: Callable[[str], Values]) -> Named:
        """The policy that is first with everything else on."""
        return most((way.removeprefix("all on, "), figure(way)) for way in self.contestants)

    def oracle(self) -> list[float]:
        """The oracle's geometric mean by seed, of the seeds in which nobody lacks time."""

        def uses(vm: str) -> list[Use]:
            whole, paced = self.single(vm, "whole", "mib_s"), self.scene.is_paced(vm)
            progress = over(whole, self.single(vm, "private", "mib_s"))
            busy = self.single(vm, "whole", "busy")
            return [Use(b, p, paced) for b, p in zip(busy, progress, strict=True)]

        found = map(divided, zip(*map(uses, self.scene.vms), strict=True))
        return [geometric_mean(progress) for progress in found if progress]

    # --- rows

    def row(self, name: str, values: Values, unit: str = "×", **more: str) -> Record:
        """A row: six digits of mean, least and largest; other figures short."""
        row = {"experiment": self.scene.name, "row": name, "seeds": str(len(values))}
        row |= {"ours": digits(mean(values)), "least": digits(min(values))}
        row |= {"largest": digits(max(values)), "unit": unit, **more}
        half = half_width(values)
        return row if half is None else {**row, "half": short(half)}

    def asked(self) -> list[Record]:
        """Criteria of all parts together."""
        asked = self.scene.disk["asked"]

        def at_least(bound: float, name: str, values: Values, **more: str) -> Record:
            met = "met" if mean(values) >= bound else "missed"
            return self.row(name, values, **more, asked=met)

        def near(what: str, figure: Callable[[str], Values]) -> Record:
            policy, values = self.first(figure)
            ours = [value / mean(values) for value in figure(ALL_ON)]
            return at_least(ASKED["near_first"], f"near the first, {what}", ours, who=policy)

        vm, worst = self.worst(ALL_ON)
        name = "the VM with the least progress"
        rows = [at_least(ASKED["worst"], name, worst, who=vm)]
        mean_name = "progress, geometric mean"
        rows.append(at_least(asked["mean"], mean_name, self.geometric(ALL_ON)))
        if "moved" in asked:
            moved = over(self.total(ALL_ON), self.most_moved)
            rows.append(at_least(asked["moved"], "what the host moves", moved))
        vm, longest = self.longest(ALL_ON)
        met = "met" if mean(longest) <= ASKED["p99"] else "missed"
        rows.append(self.row("the longest p99", longest, who=vm, asked=met))
        rows.append(near(name, lambda way: self.worst(way)[1]))
        return [*rows, near("geometric mean", self.geometric)]

    def of_vm(self, vm: str) -> Record:
        """A VM's progress with everything on, beside everything off and its private disk."""
        more = {"off": short(mean(self.progress(ALL_OFF, vm)))}
        rates = [self.each(way, f"{vm}.mib_s") for way in (ALL_ON, ALL_OFF)]
        more["over_off"] = short(mean(over(*rates)))
        for figure in ("mib_s", "p99_ms", "lost"):
            for where, way in (("on", ALL_ON), ("off", ALL_OFF)):
                more[f"{where}_{figure}"] = short(mean(self.each(way, f"{vm}.{figure}")))
        for figure in ("mib_s", "p99_ms"):
            more[f"private_{figure}"] = short(mean(self.single(vm, "private", figure)))
        return self.row(vm, self.progress(ALL_ON, vm), **more)

    def of_way(self, way: str) -> Record:
        """The geometric mean of progress in a way, the worst VM, and the host's throughput."""
        (worst_vm, worst), (longest_vm, longest) = self.worst(way), self.longest(way)
        total = self.total(way)
        return self.row(
            way,
            self.geometric(way),
            worst=short(mean(worst)),
            worst_vm=worst_vm,
            mib_s=short(mean(total)),
            moved=short(mean(over(total, self.most_moved))),
            longest=short(mean(longest)),
            longest_vm=longest_vm,
        )

    def yardsticks(self) -> list[Record]:
        """The oracle, where there is time for everybody, and the private disk's own spread: the
        largest half-width over the mean, with several seeds.
        """
        rows = []
        if oracle := self.oracle():
            share = short(mean(self.geometric(ALL_ON)) / mean(oracle))
            rows.append(self.row("oracle", oracle, all_on_over=share))
        private = {vm: self.single(vm, "private", "mib_s") for vm in self.scene.free}
        widths = {vm: half_width(values) for vm, values in private.items()}
        spreads = [(vm, [100 * w / mean(private[vm])]) for vm, w in widths.items() if w is not None]
        if spreads:
            vm, spread = most(spreads)
            rows.append(self.row("the private disk's own spread", spread, "%", who=vm))
        return rows

    def rows(self) -> list[Record]:
        """All rows of the scene."""
        made = [*self.asked(), *map(self.of_vm, self.scene.vms), *map(self.of_way, self.ways)]
        made += self.yardsticks()
        on = self.geometric(ALL_ON)
        if self.scene.has_each_part:
            worth = {part: over(on, self.geometric(way)) for part, way in EACH.items()}
            made += [self.row(f"{part}: what it adds", values) for part, values in worth.items()]
        return made


def worth(rows: Iterable[Record]) -> list[Record]:
    """Worth of each part: enough in some scene, and harm in none."""
    made = []
    for part in EACH:
        of = [row for row in rows if row["row"] == f"{part}: what it adds"]
        if of:
            best = max(of, key=lambda row: float(row["ours"]))
            enough = float(best["ours"]) >= ASKED["worth"]
            enough = enough and all(float(row["ours"]) >= ASKED["harm"] for row in of)
            name = f"{part}: what it adds to the others, at best"
            made.append({**best, "row": name, "asked": "met" if enough else "missed"})
    return made
