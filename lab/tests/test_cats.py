from __future__ import annotations

from pathlib import Path

import pytest
from conftest import differ_none

from seekway_lab import papers
from seekway_lab.papers.cats import STUDIES, fit, rank

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


def test_a_further_policy_runs_where_cfq_runs() -> None:
    direct = NAMED["cats-direct"]
    with_sstf = {s.name: s.policies for s in direct.with_policies("fairway")}
    assert papers.base_policy(direct.scenarios()) == "cfq"
    assert [name for name, policies in with_sstf.items() if "fairway" in policies] == [
        "as in the paper"
    ]


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
