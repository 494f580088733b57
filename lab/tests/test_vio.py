from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import RESULTS, ran

from seekway_lab import judge, records, runs
from seekway_lab.judge import Runs
from seekway_lab.papers import vio
from seekway_lab.papers.vio import loads, rows
from seekway_lab.scenarios import Scenario

RECORDED = records.read(RESULTS / "vio.csv")
STUDIES = {study.name: study for study in vio.STUDIES}
#: Rows that are there only if a curve is crossed.
MAY = {f"ring: use of the array at which {rows.PAPER} gains {vio.PAPER_MEAN}"}


def made(scenarios: list[Scenario], **figures: object) -> Runs:
    """Runs that are all alike, with two seeds."""
    run = {"simulated_ns": 1e9, "bytes": 2**29, "device_bytes_per_s": 2e9, "host_busy_ns": 1e6}
    run |= {"read": 2**19, "missed": 2**18, "prefetched": 2**18, "used": 2**17, "dropped": 0}
    run |= {"reader_bytes": 2**28, "reader_vms": 1, "scale": 1}
    cells = [
        {"scenario": s.name, "policy": s.policies[0], "seed": seed, **s.axes, **run, **figures}
        for s in scenarios
        for seed in (1, 2)
    ]
    return Runs({"runs": pd.DataFrame([{**cell, "app_bytes": [2**28]} for cell in cells])})


def test_a_reader_has_what_is_recorded(tmp_path: Path) -> None:
    study = STUDIES["vio-vms"]
    one = [s for s in study.scenarios() if s.axes["load"] == "1 VMs"]
    found = {row.name: row for row in study.judge(ran(tmp_path, study.wanted, one, 1))}
    checked = [row for row in RECORDED if row["experiment"] == study.name]
    checked = [row for row in checked if row["row"].startswith(("1 VMs", "least gain"))]
    assert len(checked) == 4
    for row in checked:
        least, largest = float(row["least"]), float(row["largest"])
        assert least <= float(records.digits(found[row["row"]].ours)) <= largest, row["row"]
        assert found[row["row"]].record(study.name)["asked"] == row["asked"]


@pytest.mark.parametrize("name", STUDIES)
def test_each_judge_makes_the_recorded_rows(name: str) -> None:
    study = STUDIES[name]
    names = [row.name for row in study.judge(made(study.scenarios()))]
    recorded = {row["row"] for row in RECORDED if row["experiment"] == name}
    assert len(names) == len(set(names)) and set(names) == recorded - MAY


def test_each_study_is_of_the_loads_that_its_rows_are_of() -> None:
    recorded = json.loads((RESULTS / "loads.json").read_text())
    assert {name: study.loads() for name, study in STUDIES.items()} == {
        name: recorded[name] for name in STUDIES
    }


def test_parts_and_changes_reach_each_vm() -> None:
    ways = {s.axes["way"]: s.table for s in loads.of("vio-mixed-vms") if s.name.startswith("1 of")}
    reader, rover = ways[rows.OFF["vio"]]["vm"]
    assert (reader.get("count", 1), rover["count"]) == (1, 11)
    for vm in (reader, rover):
        assert vm["guest"]["read_ahead_kb"] == 0 and vm["load"][0]["direct"] is True
    assert ways["none"]["vm"][0]["guest"]["read_ahead_kb"] == 128
    assert "direct" not in ways["none"]["vm"][0]["load"][0]
    bare = [s for s in loads.of("vio-random") if s.axes["way"] == "no host cache"]
    assert {s.table["cache"] for s in bare} == {"none"}
    assert sum(len(loads.of(name)) for name in STUDIES) == 601


def test_a_prefetcher_stands_in_for_the_papers() -> None:
    study = STUDIES["vio-vms"]
    every = [run for s in study.scenarios() for run in runs.runs(s, study.wanted, [1])]
    made = study.in_place(every, "linux")
    pairs = [
        (was.scenario, now.scenario) for was, now in zip(every, made, strict=True) if was != now
    ]
    assert {was.axes["way"] for was, _ in pairs} == {rows.OFF["vio"]}
    assert {now.table["cache"]["prefetch"] for _, now in pairs} == {"linux"}
    assert all(was.table["vm"] == now.table["vm"] for was, now in pairs)


def test_loads_of_whole_files_have_a_next_window() -> None:
    later = [s for name in STUDIES for s in loads.of(name) if s.axes["way"] == loads.LATER]
    assert len(later) == 6
    assert all(s.table["measure"] == {"settle": "5s", "until": "9s"} for s in later)


def test_a_spread_over_the_seeds_excuses_nothing() -> None:
    scenarios = [s for s in loads.of("vio-ratio") if s.axes["case"] == "0"]

    def met(*ratios: float) -> bool | None:
        table = made(scenarios).table("runs")
        ours = [[int(2**28 * ratio)] for ratio in ratios]
        table.loc[table.way == rows.OURS, "app_bytes"] = pd.Series(
            ours, index=table.index[table.way == rows.OURS]
        )
        return rows.asks(rows.Loads(Runs({"runs": table})))[-1].asked

    assert not met(1.0, 0.7) and met(1.0, 0.97) and met(1.4, 1.0)


def test_ranks_correlate_from_minus_one_to_one() -> None:
    a = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    b = np.array([[10.0, 30.0], [20.0, 20.0], [30.0, 10.0]])
    assert vio.rank_correlation(a, b).tolist() == [1.0, -1.0]


def test_a_curve_is_crossed_between_two_points() -> None:
    assert vio.crossed([(20.0, 2.0), (40.0, 1.5), (60.0, 1.0)], 1.25) == 50.0
    assert vio.crossed([(20.0, 1.1), (40.0, 1.0)], 1.25) is None


def test_only_the_papers_forms_stand_beside_its_figures() -> None:
    values, paper = np.array([1.2, 1.3]), {"vio": 1.3, "flashy": 1.3}
    judged = {way: rows.speed(way, way, values, paper).verdict for way in loads.STUDIES["way"]}
    is_papers = {way for way, verdict in judged.items() if verdict != judge.Verdict.MEASURED}
    assert is_papers == {rows.PAPER, rows.PAPER + vio.HOST_ON, *rows.OFF.values()}
