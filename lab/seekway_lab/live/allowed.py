"""Bounds of the recorded schedule of the host: arithmetic on a `Recording`.

Where the reader is, the host sees too: when a task submits a request, the thread of its vCPU wakes
the daemon.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from seekway_lab.live.schedule import Recording, Run

#: A vCPU that is away for less, for QEMU's timers or the daemon, is no reason to move.
BREAK_US = 1000

#: From when to when, in microseconds.
Span = tuple[int, int]


@dataclass(frozen=True)
class Threads:
    """The threads that were recorded."""

    #: Of each guest, in their order.
    vcpus: Sequence[Sequence[int]]
    daemon: Sequence[int]
    #: QEMU's first threads: timers and interrupts.
    qemu: Sequence[int]

    @property
    def tids(self) -> list[int]:
        """All of them."""
        return [tid for of in (*self.vcpus, self.daemon, self.qemu) for tid in of]


def of_guest(recording: Recording, threads: Threads, guest: int) -> dict[str, float]:
    """When a guest's vCPUs ran.

    `any_runs`: share of the time in which one vCPU ran, or more: what moving tasks can reach;
    `reader_runs`: in which the reader's ran, that which had submitted last (0 if none did);
    `moves_s`: how often the next request came from another vCPU, a second; `moves_least_s`: the
    least moves of who knows the schedule and is on a vCPU that runs whenever one does;
    `processors`: those that its vCPUs had, on average.
    """
    span_s = (recording.end_us - recording.begin_us) / 1e6
    ran = [_of_thread(recording, tid) for tid in threads.vcpus[guest]]
    places = _places(recording, threads.vcpus[guest], threads.daemon)
    placed = sum(end - begin for _, begin, end in places)
    under = sum(_overlap(ran[vcpu], begin, end) for vcpu, begin, end in places)
    every = sorted(piece for pieces in ran for piece in pieces)
    return {
        "any_runs": _union(every) / 1e6 / span_s,
        "reader_runs": under / placed if placed else 0.0,
        "moves_s": sum(a[0] != b[0] for a, b in pairwise(places)) / span_s,
        "moves_least_s": least_moves(ran) / span_s,
        "processors": sum(end - begin for begin, end in every) / 1e6 / span_s,
    }


def of_window(recording: Recording, threads: Threads) -> dict[str, float]:
    """The schedule over all guests.

    `slice_*_ms`: lengths of slices, from when a vCPU got a processor to when another vCPU did;
    `served_processors`: those that the daemon and QEMU's first threads had, on average, and
    `served_wait_p99_ms`: how long these waited for a processor once woken.
    """
    helpers = [*threads.daemon, *threads.qemu]
    served = sum(end - begin for tid in helpers for begin, end in _of_thread(recording, tid))
    lengths = slices(recording, {tid for of in threads.vcpus for tid in of})
    return {
        "served_processors": served / (recording.end_us - recording.begin_us),
        "served_wait_p99_ms": quantile(waits(recording, helpers), 0.99) / 1000,
        "slice_p10_ms": quantile(lengths, 0.1) / 1000,
        "slice_median_ms": quantile(lengths, 0.5) / 1000,
        "slice_p90_ms": quantile(lengths, 0.9) / 1000,
    }


def least_moves(ran: Sequence[Sequence[Span]]) -> int:
    """Moves of a task that is on some vCPU that runs whenever one does, and goes each time to the
    one that then runs for longest.
    """
    spans = sorted((*span, vcpu) for vcpu, of in enumerate(ran) for span in _joined(of))
    moves, at_us, following = 0, 0, 0
    on: int | None = None
    # Of those that have begun.
    longest = (0, 0)
    while True:
        while following < len(spans) and spans[following][0] <= at_us:
            longest = max(longest, spans[following][1:])
            following += 1
        if longest[0] > at_us:
            moves += on is not None and on != longest[1]
            at_us, on = longest
        elif following < len(spans):
            at_us = spans[following][0]
        else:
            return moves


def slices(recording: Recording, vcpus: Iterable[int]) -> list[int]:
    """Lengths of slices, sorted. Those at both ends of the recording are not whole, and are left
    out.
    """
    on: dict[int, list[Run]] = {}
    for run in recording.runs:
        if run.tid in vcpus:
            on.setdefault(run.cpu, []).append(run)
    lengths: list[int] = []
    for runs in on.values():
        runs.sort(key=lambda run: run.begin_us)
        of = [list(slice_) for _, slice_ in groupby(runs, key=lambda run: run.tid)]
        lengths += [slice_[-1].end_us - slice_[0].begin_us for slice_ in of[1:-1]]
    return sorted(lengths)


def waits(recording: Recording, tids: Iterable[int]) -> list[int]:
    """From each wake-up of one of these threads to when it ran, sorted."""
    found = []
    for tid in tids:
        begins = [begin for begin, _ in _of_thread(recording, tid)]
        for wake in recording.wakes:
            at = bisect_left(begins, wake.at_us)
            if wake.woken == tid and at < len(begins):
                found.append(begins[at] - wake.at_us)
    return sorted(found)


def quantile(values: Sequence[float], share: float) -> float:
    """Of sorted values; 0 of none."""
    return values[min(int(share * len(values)), len(values) - 1)] if values else 0.0


def _of_thread(recording: Recording, tid: int) -> list[Span]:
    return sorted((run.begin_us, run.end_us) for run in recording.runs if run.tid == tid)


def _places(
    recording: Recording, vcpus: Sequence[int], daemon: Sequence[int]
) -> list[tuple[int, int, int]]:
    """On which vCPU the reader was, from when to when: from each request to the next."""
    known: Mapping[int, int] = {tid: n for n, tid in enumerate(vcpus)}
    seen = [(known[w.by], w.at_us) for w in recording.wakes if w.woken in daemon and w.by in known]
    ends = [*(at for _, at in seen[1:]), recording.end_us]
    return [(vcpu, begin, end) for (vcpu, begin), end in zip(seen, ends, strict=False)]


def _joined(pieces: Iterable[Span]) -> list[Span]:
    """Pieces in order, without the short breaks between them."""
    joined: list[Span] = []
    for begin, end in pieces:
        if joined and begin - joined[-1][1] < BREAK_US:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((begin, end))
    return joined


def _overlap(pieces: Sequence[Span], begin: int, end: int) -> int:
    """Length of a stretch that is covered by pieces, which are in order and apart."""
    covered = 0
    for n in range(bisect_right(pieces, begin, key=lambda piece: piece[1]), len(pieces)):
        if pieces[n][0] >= end:
            break
        covered += min(pieces[n][1], end) - max(pieces[n][0], begin)
    return covered


def _union(pieces: Iterable[Span]) -> int:
    """The time that is covered by one of these sorted pieces or more."""
    covered = until = 0
    for begin, end in pieces:
        covered += max(end - max(begin, until), 0)
        until = max(until, end)
    return covered
