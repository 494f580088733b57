from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import RESULTS, differ_none, ran

from seekway_lab import records, runs
from seekway_lab.judge import Runs
from seekway_lab.papers.migrate import STUDIES, figures, scenes
from seekway_lab.scenarios import Scenario

RECORDED = records.read(RESULTS / "migrate.csv")
NAMED = {study.name: study for study in STUDIES}


def some(name: str, *patterns: str) -> list[Scenario]:
    """The scenarios of a study whose names match."""
    every = NAMED[name].scenarios()
    return [s for s in every if any(fnmatchcase(s.name, pattern) for pattern in patterns)]


@pytest.mark.parametrize(
    ("name", "patterns", "count"),
    [
        ("inactivity", ["2 VMs, sequential read on SSD*"], 3),
        ("migrate-ablation", ["4 VMs, *HDD, slices exact,*", "4 VMs, *HDD, not shared*"], 4),
    ],
)
def test_rows_are_those_that_are_recorded(
    tmp_path: Path, name: str, patterns: list[str], count: int
) -> None:
    wanted = {s.name for s in some(name, *patterns)}
    differ_none(NAMED[name], tmp_path, wanted.__contains__, count)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The figures of one short run."""
    [scenario] = some("inactivity", "2 VMs, sequential read on SSD, vanilla")
    scenario.table["measure"] = {"settle": "1s", "until": "1250ms"}
    found = ran(tmp_path_factory.mktemp("kept"), figures.WANTED, [scenario], 1)
    return dict(found.table("runs").iloc[0])


@pytest.mark.parametrize("name", NAMED)
def test_every_row_is_made_whatever_the_runs_gave(name: str, one: dict[str, object]) -> None:
    bins = {"bins_s": np.arange(1, 16, 0.25).tolist(), "bins": [1.0] * 60}
    cells = [
        {**one, "scenario": s.name, "policy": s.policies[0], **s.axes, **bins}
        for s in NAMED[name].scenarios()
    ]
    rows = NAMED[name].judge(Runs({"runs": pd.DataFrame(cells)}))
    assert len({row.name for row in rows}) == len(rows)
    papers = {row.name: records.digits(row.paper) for row in rows}
    assert papers == {row["row"]: row["paper"] for row in RECORDED if row["experiment"] == name}


def test_each_study_is_of_the_loads_that_its_rows_are_of() -> None:
    recorded = json.loads((RESULTS / "loads.json").read_text())
    assert {n: s.loads() for n, s in NAMED.items()} == {name: recorded[name] for name in NAMED}


def test_no_processor_has_tasks_of_two_vms_when_nothing_is_shared() -> None:
    made = scenes.scene("random read", cores=4).unshared()
    assert made.table["cpu"]["count"] == 8
    of = [{n for task in vm["task"] for n in task["allowed"]} for vm in made.vms]
    assert of == [{0, 1, 2, 3}, {4, 5, 6, 7}]
    assert [sum(t.get("start") == 4 for t in vm["task"]) for vm in made.vms] == [0, 1]
    assert not any(vm["agent"] for vm in made.vms)


def test_nothing_runs_on_the_first_vcpu_of_the_papers_host() -> None:
    made = scenes.scene("random read", cores=4).papers()
    assert [len(vm["task"]) for vm in made.vms] == [4, 4], "three compute"
    tasks = [task for vm in made.vms for task in vm["task"]]
    assert all(task["allowed"] == [1, 2, 3] and task.get("start") != 0 for task in tasks)


def test_a_policy_for_vcpus_stands_in_for_the_papers() -> None:
    study = NAMED["migrate-cost"]
    every = [run for s in study.scenarios() for run in runs.runs(s, study.wanted, [1])]
    made = study.in_place(every, "xballoon")
    pairs = [
        (was.scenario, now.scenario) for was, now in zip(every, made, strict=True) if was != now
    ]
    assert {was.axes["agent"] for was, _ in pairs} == {scenes.PROGRAM}
    assert {now.table["cpu"]["agent"] for _, now in pairs} == {"xballoon"}


def test_it_is_back_when_it_reads_as_much_as_in_the_end() -> None:
    def series(*rates: float) -> figures.Series:
        from_s = [4 + n * figures.BIN_S for n in range(len(rates))]
        return figures.Series(pd.Series({"bins_s": from_s, "bins": list(rates)}, dtype=object))

    slow = series(10, 50, 95, *[100] * 5)
    assert (slow.level(4, 6), slow.recovery(4, 6)) == (100, 0.75)
    assert series(*[100] * 8).recovery(4, 6) == 0.25
    assert series().recovery(4, 6) == 2, "never"
