from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from conftest import RESULTS, differ_none, ran

from seekway_lab import records
from seekway_lab.judge import Runs
from seekway_lab.papers import pregather

RECORDED = {(row["experiment"], row["row"]): row for row in records.read(RESULTS / "pregather.csv")}
NAMED = {study.name: study for study in pregather.STUDIES}


@pytest.mark.parametrize(
    ("name", "scenarios", "count"),
    [("pregather-sync", None, 14), ("pregather-b", ["not merged"], 5)],
)
def test_rows_are_those_that_are_recorded(
    tmp_path: Path, name: str, scenarios: list[str] | None, count: int
) -> None:
    differ_none(NAMED[name], tmp_path, lambda name: not scenarios or name in scenarios, count)


def test_one_seed_lies_between_the_least_and_the_largest(tmp_path: Path) -> None:
    rows = []
    for study in (NAMED["pregather-write"], NAMED["pregather-memory"]):
        found = ran(tmp_path, study.wanted, study.scenarios(), 1)
        rows += pregather.rows(study.name, found)
    assert len(rows) == 12
    recorded = {name: row for (_, name), row in RECORDED.items()}
    for row in rows:
        least, largest = (float(recorded[row.name][column]) for column in ("least", "largest"))
        assert least <= float(records.digits(row.ours)) <= largest, row.name


@pytest.mark.parametrize("name", NAMED)
def test_every_recorded_row_is_made_once(name: str) -> None:
    columns = [figure["column"] for figure in pregather.ROWS["figures"].values()]
    columns += [f"policy.{t}_{what}" for t in pregather.TIMERS for what in ("tried", "paid")]
    cells = [
        {"scenario": s.name, "policy": policy, "seed": 1, **dict.fromkeys(columns, 1.0)}
        for s in NAMED[name].scenarios()
        for policy in s.policies
    ]
    rows = [row.name for row in NAMED[name].judge(Runs({"runs": pd.DataFrame(cells)}))]
    assert len(rows) == len(set(rows))
    assert not {row for study, row in RECORDED if study == name} - set(rows)


def test_places_overlap_by_the_halves_of_a_vms_time() -> None:
    places = pd.DataFrame(
        {
            "vm": "a",
            "arrived_ns": [1, 2, 3, 4, 6, 7, 8, 10],
            "sector": [0, 10, pregather.PART, 0, 0, 3 * pregather.PART, 5, 20],
        }
    )
    vms = {"a": {"last_arrival_ns": 10, "first_sector": 0}}
    found = pregather.of_places(places, vms)
    assert found == {"same_places.a": 75.0, "at_start": 75.0}


def test_the_first_half_minute_is_of_whole_bins_of_the_vms() -> None:
    series = pd.DataFrame(
        {"vm": ["a", "a", "b", "host's ext3"], "from_ns": [0, 20e9, 15e9, 0], "bin_ns": [15e9] * 4}
    )
    series["bytes"] = [2**20, 2**20, 2**21, 2**22]
    assert pregather.first_mib(series, ["a", "b"]) == 3


def test_waits_of_two_scenarios_are_summed_before_they_are_divided() -> None:
    table = pd.DataFrame(
        {
            "scenario": ["one", "two"] * 2,
            "policy": "p",
            "seed": [1, 1, 2, 2],
            "policy.coarse_tried": [1, 1, 0, 0],
            "policy.coarse_paid": [1, 0, 0, 0],
            "policy.fine_tried": [0, 2, 0, 0],
            "policy.fine_paid": [0, 0, 0, 0],
        }
    )
    shares, tried = pregather.successful(Runs({"runs": table}), ["one", "two"], "p")
    assert (list(shares), tried) == ([25, 0], 2)
