from __future__ import annotations

from pathlib import Path

import pytest
from conftest import differ_none

from seekway_lab import runs
from seekway_lab.papers.cats import CATS, STUDIES, fit, rank

NAMED = {study.name: study for study in STUDIES}


@pytest.mark.parametrize(
    ("name", "scenarios", "count"),
    [
        ("table-example", ["table 1"], 4),
        ("cats-caches", ["8 FIFO segments, no read-ahead"], 3),
    ],
)
def test_rows_are_those_that_are_recorded(
    tmp_path: Path, name: str, scenarios: list[str], count: int
) -> None:
    differ_none(NAMED[name], tmp_path, lambda name: name in scenarios, count, but="members")


def test_a_policy_stands_in_for_the_papers_form_and_no_other() -> None:
    direct = NAMED["cats-direct"]
    every = [run for s in direct.scenarios() for run in runs.runs(s, direct.wanted, [1, 2])]
    made = direct.in_place(every, "fairway")
    pairs = [(was, now) for was, now in zip(every, made, strict=True) if was != now]
    assert {(was.policy, now.policy) for was, now in pairs} == {(CATS, "fairway")}
    assert all(
        (was.scenario.table, was.seed) == (now.scenario.table, now.seed) for was, now in pairs
    )
    assert len(pairs) == 2 * len(direct.scenarios()), "it runs in each"


def test_what_was_found_of_a_cache_reaches_the_profile() -> None:
    line = fit.of_model("linear-15k4", 1)["profile"]
    found = {"sectors": 32, "after_hits": False, "when_idle": True}
    changed = fit.with_cache(line, found).splitlines()
    for text in ["prefetch_sectors = 32", 'on_hit = "keep"', "idle_ahead = true"]:
        assert text in changed
    nothing = {"sectors": 0, "after_hits": True, "when_idle": True}
    assert fit.with_cache(line, nothing) == line


def test_tau_spans_minus_one_to_one() -> None:
    rising = [1.0, 2.0, 3.0, 4.0]
    assert rank.tau(rising, [10, 20, 30, 40]) == 1
    assert rank.tau(rising, [4, 3, 2, 1]) == -1
    assert rank.tau(rising, [1, 2, 4, 3]) == pytest.approx(4 / 6)
    assert rank.tau(rising, [1, 2, 3, 3]) == pytest.approx(5 / 30**0.5)
    assert not rank.same_order([1, 1], [1, 2]) and rank.same_order([5, 5], [1, 1])
