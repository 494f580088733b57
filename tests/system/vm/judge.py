"""Compares absences of vCPUs as the guest saw them with what the host did.

On a busy host QEMU's main loop, which makes the guest's ticks, has to wait for a processor as vCPUs
do. Then no guest can tell that a vCPU was away, or takes a late tick for an absence. So only those
absences are judged in which the main loop ran when a tick was due. These criteria hold however busy
the host is; only how many absences there are to judge depends on it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

MS = 1_000_000
# Two ticks of these kernels: a longer absence is seen.
SEEN_NS, TICK_NS = 8 * MS, 4 * MS
# A return that the guest told differs from one of the host's by this at most.
SAME_NS = 2 * MS
# The main loop needs some time to make a tick, and a vCPU to take it.
MARGIN_NS = MS // 2
# Fewer absences tell nothing.
DUE_MIN = 50
# A guest measures its clock's frequency when it boots, and QEMU's other threads disturb that on a
# busy host. Linux takes a measurement that is off by up to this (arch/x86/kernel/tsc.c).
SLOWER_PPM = 10_000

Times = NDArray[np.int64]


@dataclass(frozen=True)
class Absence:
    """A vCPU was away: from and until when, in nanoseconds of one clock."""

    vcpu: int
    begin: int
    until: int
    # When the guest first told of it.
    told: int


@dataclass
class Truth:
    """Record of the host, by its own clock."""

    # Of each vCPU, in order.
    absences: list[list[Absence]]
    # From and until when QEMU's main loop ran, in order.
    main_loop: list[tuple[int, int]]
    returns: list[Times] = field(init=False)

    def __post_init__(self) -> None:
        self.returns = [np.array([it.until for it in all], np.int64) for all in self.absences]

    def ticked(self, begin: int, until: int) -> bool:
        """Did the main loop make the tick that was due for a vCPU that looked at the clock last at
        `begin`, in time for a look before `until`?"""
        begin, until = begin + TICK_NS + MARGIN_NS, until - MARGIN_NS
        at = bisect_left(self.main_loop, begin, key=lambda run: run[1])
        return at < len(self.main_loop) and self.main_loop[at][0] <= until

    def nearest(self, vcpu: int, until: Times) -> Times:
        """The number of the return that is nearest to each of these times."""
        returns = self.returns[vcpu]
        after = np.searchsorted(returns, until)
        before, after = np.maximum(after - 1, 0), np.minimum(after, len(returns) - 1)
        nearer = np.abs(returns[after] - until) < np.abs(returns[before] - until)
        return np.where(nearer, after, before)

    def same(self, vcpu: int, until: int) -> Absence | None:
        """The absence whose return this is, if one is near."""
        if not self.absences[vcpu]:
            return None
        near = self.absences[vcpu][int(self.nearest(vcpu, np.array(until)))]
        return near if abs(near.until - until) <= SAME_NS else None

    def due(self, begin: int, until: int) -> list[Absence]:
        """Those that a guest sees whose ticks come."""
        clear = []
        for all in self.absences:
            for it, after in zip(all, [*all[1:], None], strict=True):
                # The vCPU stays for a tick, in which it can look at the clock.
                stays = after is None or after.begin - it.until >= TICK_NS
                inside = it.begin > begin and it.until < until
                long = it.until - it.begin >= SEEN_NS + MARGIN_NS
                # The tick waits for the vCPU when it returns.
                if long and inside and stays and self.ticked(it.begin, it.until):
                    clear.append(it)
        return clear


@dataclass(frozen=True)
class Clock:
    """From the guest's clock to the host's."""

    # When both were compared, by the guest's.
    since: int
    offset: int
    # The guest's is slower by this many millionths.
    slower_ppm: int

    def on_host(self, at: int) -> int:
        """A time of the guest's by the host's clock."""
        return at + self.offset + (at - self.since) * self.slower_ppm // 1_000_000

    def apart(self, truth: Truth, seen: Absence) -> int | None:
        """Delay in ns from a return until it was seen."""
        at = self.on_host(seen.until)
        same = truth.same(seen.vcpu, at)
        return None if same is None else at - same.until


def fit(truth: Truth, seen: Sequence[Absence], least: int, most: int) -> Clock:
    """The clock with which returns fit best, of those whose offset is in between. How close they
    are counts, too: absences are as good as periodic, and at an offset of a whole turn most returns
    are near others."""
    middle = (least + most) // 2
    if not seen:
        return Clock(0, middle, 0)
    best = Clock(seen[0].until, middle, 0)
    best = _near(truth, seen, best, ((most - least) // 2 + 1, MS // 2), (SLOWER_PPM, 100))
    best = _near(truth, seen, best, (MS, 50_000), (100, 10))
    # The fastest of twenty is told when it was.
    apart = sorted(ns for it in seen if (ns := best.apart(truth, it)) is not None)
    return replace(best, offset=best.offset - (apart[len(apart) // 20] if apart else 0))


def _near(
    truth: Truth, seen: Sequence[Absence], clock: Clock, ns: tuple[int, int], ppm: tuple[int, int]
) -> Clock:
    """The best of the clocks around this one: offsets and frequencies up to the first number away,
    in steps of the second."""
    some = seen[:: len(seen) // 200 + 1]
    slowers = range(clock.slower_ppm - ppm[0], clock.slower_ppm + ppm[0] + 1, ppm[1])
    places = 2 * ns[0] // ns[1] + 1
    # The earliest time by the clock that is furthest back, and the latest by the other end's.
    ends = [
        Clock(clock.since, clock.offset + shift, slower).on_host(it.until)
        for it in some
        for slower in (slowers[0], slowers[-1])
        for shift in (-ns[0], ns[0])
    ]
    first = min(ends)
    # How good a return at each time is, in steps: offsets of one return are neighbours there.
    grid = np.arange(first, max(ends) + 2 * ns[1], ns[1], dtype=np.int64)
    good = []
    for vcpu, returns in enumerate(truth.returns):
        apart = grid - returns[truth.nearest(vcpu, grid)] if len(returns) else SAME_NS
        good.append(np.broadcast_to(np.maximum(SAME_NS - np.abs(apart), 0), grid.shape))
    most, best = -1, clock
    for slower in slowers:
        at = Clock(clock.since, clock.offset - ns[0], slower)
        sums = np.zeros(places, np.int64)
        for it in some:
            place = (at.on_host(it.until) - first) // ns[1]
            sums += good[it.vcpu][place : place + places]
        if sums.max() > most:
            most, best = int(sums.max()), replace(at, offset=at.offset + int(sums.argmax()) * ns[1])
    return best


def on_host(seen: Iterable[Absence], clock: Clock) -> list[Absence]:
    """Moves these absences to the host's clock."""
    return [
        Absence(it.vcpu, *(clock.on_host(at) for at in (it.begin, it.until, it.told)))
        for it in seen
    ]


def quantiles(all: Iterable[int]) -> list[float]:
    """Percentiles 10, 50 and 90, in milliseconds."""
    ordered = sorted(all)
    return [ordered[len(ordered) * p // 100] / 1e6 if ordered else 0.0 for p in (10, 50, 90)]


@dataclass(frozen=True)
class Verdict:
    """Findings in words; why they are refused; whether there was enough to judge."""

    text: str
    refused: str | None
    enough: bool


def judge(truth: Truth, seen: Sequence[Absence], begin: int, until: int) -> Verdict:
    """All by the host's clock; vCPUs were held from `begin` until `until`."""
    pairs = [(it, same) for it in seen if (same := truth.same(it.vcpu, it.until))]
    due = truth.due(begin, until)
    matched = {same for _, same in pairs}
    found = sum(it in matched for it in due)

    def strange(it: Absence) -> bool:
        # The first look may have been before the vCPUs were held.
        overlaps = (t.begin < it.until and it.begin < t.until for t in truth.absences[it.vcpu])
        return it.begin > begin and not any(overlaps)

    invented = sum(strange(it) and truth.ticked(it.begin, it.until) for it in seen)

    def off(of: Callable[[Absence, Absence], int]) -> list[float]:
        return quantiles(of(seen, truth) for seen, truth in pairs)

    loss = off(lambda seen, truth: seen.begin - truth.begin)
    text = (
        f"away for {off(lambda _, truth: truth.until - truth.begin)} ms: seen {found} of {len(due)}"
        f" (of {sum(map(len, truth.absences))} in all), {invented} of {len(seen)} were none; loss"
        f" off by {loss} ms, return by {off(lambda seen, truth: seen.until - truth.until)} ms; told"
        f" {off(lambda seen, truth: seen.told - truth.begin)} ms after the loss,"
        f" {sum(seen.told < truth.until for seen, truth in pairs)} while it lasted"
    )
    short = [it for it in seen if min(it.told, it.until) - it.begin < SEEN_NS]
    refused = None
    if found * 10 < len(due) * 9:
        refused = "nine of ten are to be seen"
    elif invented * 50 > len(seen):
        refused = "one of fifty may be none"
    elif short:
        refused = f"an absence of less than two ticks is not to be told of ({short[0]})"
    elif pairs and not -2 * TICK_NS / 1e6 <= loss[1] < 1.0:
        refused = "a loss lies between the last look and the next tick"
    return Verdict(text, refused, len(due) >= DUE_MIN)
