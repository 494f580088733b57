"""The judge of absences (`judge.py`) by scenes of which everything is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from .judge import MS, SEEN_NS, Absence, Truth, Verdict, fit, judge


def scene(behind: int) -> tuple[Truth, list[Absence]]:
    """Four vCPUs on two processors by turns of 11 ms, and the view of a guest whose clock is
    behind."""

    def turn(n: int) -> int:
        """Turns are not all alike."""
        return 11 * MS * n + n * n * 7919 % 600_000

    absences: list[list[Absence]] = []
    seen = []
    for vcpu in range(4):
        absences.append([])
        for n in range(vcpu & 1, 400, 2):
            begin, until = turn(n), turn(n + 1)
            absences[vcpu].append(Absence(vcpu, begin, until, until))
            begin, until = begin - 2 * MS - behind, until + 20_000 - behind
            seen.append(Absence(vcpu, begin, until, begin + 9 * MS))
    return Truth(absences, [(n * MS, n * MS + 50_000) for n in range(5000)]), seen


def verdict(truth: Truth, seen: Sequence[Absence]) -> Verdict:
    return judge(truth, seen, 0, 4500 * MS)


def test_clocks_are_found_to_fit() -> None:
    for ppm in (250, -7_600):
        truth, seen = scene(123_456_789)
        seen = [replace(it, until=it.until - it.until * ppm // 1_000_000) for it in seen]
        clock = fit(truth, seen, 60 * MS, 500 * MS)
        assert abs(clock.slower_ppm - ppm) <= abs(ppm) / 50 + 20, clock
        apart = [clock.apart(truth, it) for it in seen]
        assert all(ns is not None and abs(ns) < MS // 3 for ns in apart), clock


def test_who_sees_what_was_is_accepted() -> None:
    truth, seen = scene(0)
    all_seen = verdict(truth, seen)
    assert all_seen.refused is None and all_seen.enough
    few = verdict(Truth([truth.absences[0][:20]], truth.main_loop), seen[:20])
    assert few.refused is None and not few.enough


def test_who_misses_invents_or_errs_is_refused() -> None:
    truth, seen = scene(0)

    def refused(seen: Sequence[Absence], why: str) -> None:
        assert why in (verdict(truth, seen).refused or "")

    def changed(change: Callable[[Absence], Absence]) -> list[Absence]:
        return [change(it) for it in seen]

    refused(seen[::2], "nine of ten are to be seen")
    refused([], "nine of ten are to be seen")
    refused(changed(lambda it: replace(it, until=it.until + 4 * MS)), "nine of ten")
    refused(changed(lambda it: replace(it, vcpu=it.vcpu ^ 1)), "nine of ten")
    refused(changed(lambda it: replace(it, told=it.begin)), "less than two ticks")
    refused(changed(lambda it: replace(it, begin=it.begin - 12 * MS)), "a loss lies")
    # In the middle of each third time that the vCPU ran.
    ran = [(it.vcpu, it.begin + 13 * MS, it.until + 10 * MS) for it in seen[::3]]
    more = [*seen, *(Absence(vcpu, begin, until, until) for vcpu, begin, until in ran)]
    more = [replace(it, until=max(it.until, it.begin + SEEN_NS)) for it in more]
    refused(more, "one of fifty")


def test_nobody_is_to_see_without_ticks() -> None:
    truth, seen = scene(0)
    truth = Truth(truth.absences, [run for run in truth.main_loop if run[0] > 2000 * MS])
    late = [it for it in seen if it.begin > 2000 * MS]
    found = verdict(truth, late)
    assert found.refused is None and found.enough, "the main loop did not run"
    # An absence that was none, while nobody ticked.
    until = [n * 22 * MS + 20 * MS + 500_000 for n in range(1, 80)]
    none = [Absence(0, at - 8 * MS - 500_000, at, at) for at in until]
    assert verdict(truth, [*late, *none]).refused is None
