from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from seekway_lab import runs, scenarios
from seekway_lab.records import LabError
from seekway_lab.scenarios import Scenario

SMALL = {
    "policy": ["noop", "cfq"],
    "device": {"change": {"queue_depth": [1, 4]}},
    "vm": [{"name": "a", "load": [{"app": "sysbench", "mode": "RR", "requests": 50}]}],
    "case": [
        {"name": "small"},
        {"name": "slow", "device": {"slow": 2, "change": {"queue_depth": 1}}},
    ],
}


def test_axes_and_cases_become_scenarios() -> None:
    found = scenarios.scenarios(SMALL)
    assert [s.name for s in found] == [
        "small, device.change.queue_depth=1",
        "small, device.change.queue_depth=4",
        "slow",
    ]
    assert found[2].table["device"] == {"slow": 2, "change": {"queue_depth": 1}}
    assert found[0].policies == ("noop", "cfq") and "policy" not in found[0].table


def test_names_are_templates() -> None:
    name = "{case}: {device.change.queue_depth} of {vm.load.mode!u}"
    names = [s.name for s in scenarios.scenarios({**SMALL, "name": name})]
    assert names == ["small: 1 of RR", "small: 4 of RR", "slow: 1 of RR"]
    two = {"vm": [{"load": [{"app": "a"}, {"app": "b"}]}]}
    assert [
        s.name for s in scenarios.scenarios({**two, "name": "{vm.load.app}{vm.load.1.app}"})
    ] == ["ab"]
    with pytest.raises(LabError, match=r"'\{vm.color\}' is no key"):
        scenarios.scenarios({**SMALL, "name": "{vm.color}"})
    with pytest.raises(LabError, match="two scenarios are called 'a'"):
        scenarios.scenarios({"case": [{"name": "a"}, {"name": "a"}]})


def test_lists_that_are_lists_anyway_are_no_axes() -> None:
    vm = {"load": [{"app": "a"}, {"app": "b", "size": [1, 2]}]}
    found = scenarios.scenarios({"vm": [vm], "weights": [1, 2]})
    assert [s.name for s in found] == ["vm.load.size=1", "vm.load.size=2"]
    assert found[1].table["vm"] == [{"load": [{"app": "a"}, {"app": "b", "size": 2}]}]
    two = scenarios.scenarios({"weights": [[1, 1], [1, 2]], "device": {"profile": {"x": [1, 2]}}})
    assert [s.table["weights"] for s in two] == [[1, 1], [1, 2]]


def keys(table: dict[str, object], policy: str = "noop") -> str:
    [run] = runs.runs(Scenario("s", table, (policy,)), runs.Wanted(), [1])
    return run.key


def test_a_key_is_of_all_that_decides_a_run(tmp_path: Path) -> None:
    assert keys({"a": 4, "b": True}) == keys({"b": "true", "a": 4.0})
    assert keys({"a": 4}) != keys({"a": 5}) != keys({"a": 4}, "cfq")
    trace = tmp_path / "t.csv"
    trace.write_text("one")
    table = {"vm": [{"trace": {"path": str(trace)}}]}
    before = keys(table)
    trace.write_text("two")
    runs.content_hash.cache_clear()
    assert keys(table) != before
    own = tmp_path / "own.py"
    own.write_text("a policy")
    before = keys({}, f"{own}:Own")
    own.write_text("another")
    runs.content_hash.cache_clear()
    assert keys({}, f"{own}:Own") != before


def made(kept: Path, workers: int) -> tuple[dict[str, bytes], int]:
    """All files of a study, and how many runs were made."""
    wanted = [
        run for s in scenarios.scenarios(SMALL) for run in runs.runs(s, runs.Wanted(), [1, 2])
    ]
    told: list[tuple[int, int]] = []
    laboratory = runs.Laboratory(kept, workers=workers)
    laboratory.make(wanted, lambda done, count: told.append((done, count)))
    assert len(laboratory.read(wanted).table("runs")) == len(wanted) == 12
    files = {path.name: path.read_bytes() for path in kept.rglob("*.json")}
    return files, told[-1][1]


def test_a_study_goes_on_and_two_workers_give_the_same_bytes(tmp_path: Path) -> None:
    files, count = made(tmp_path / "one", workers=0)
    assert (len(files), count) == (12, 12)
    assert made(tmp_path / "one", workers=0) == (files, 0)
    gone = sorted((tmp_path / "one").rglob("*.json"))[:5]
    for path in gone:
        path.unlink()
    assert made(tmp_path / "one", workers=0) == (files, 5)
    assert made(tmp_path / "two", workers=2) == (files, 12)
    row = json.loads(next(iter(files.values())))["runs"][0]
    assert row["requests"] >= 50 and "wall_ns" not in row


def test_tasks_keep_a_load_and_seed_together() -> None:
    every = [run for s in scenarios.scenarios(SMALL) for run in runs.runs(s, runs.Wanted(), [1, 2])]
    together = runs.tasks(every)
    assert [len(task) for task in together] == [6, 6]
    assert [{run.seed for run in task} for task in together] == [{1}, {2}]


def test_an_error_names_the_run(tmp_path: Path) -> None:
    wrong = runs.runs(Scenario("s", {"vm": [{"lode": 1}]}, ("noop",)), runs.Wanted(), [1])
    with pytest.raises(LabError, match="s, noop, seed 1: vm: unknown field"):
        runs.Laboratory(tmp_path, workers=0).make(wrong, lambda done, count: None)


OWN = """
import seekway

class Own(seekway.Policy):
    def decide(self, now_ns, device):
        return next(iter(self.queued.values()))
"""


def test_a_policy_in_python_is_a_file_and_a_class(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    [small, *_] = scenarios.scenarios(SMALL)
    policies = [f"{tmp_path}/own.py:Own", "noop"]
    both = [run for p in policies for run in runs.runs(with_only(small, p), runs.Wanted(), [1])]
    [own], [noop] = [runs.make(run)["runs"] for run in both]
    assert own["response_mean_ns"] == noop["response_mean_ns"]
    [gone] = runs.runs(with_only(small, f"{tmp_path}/own.py:Gone"), runs.Wanted(), [1])
    with pytest.raises(LabError, match="has no class Gone"):
        runs.make(gone)


def with_only(scenario: Scenario, policy: str) -> Scenario:
    return Scenario(scenario.name, scenario.table, (policy,))


def test_keys_that_are_lists_are_those_of_the_program() -> None:
    source = Path(__file__).parents[2] / "crates/sim/src/scenario/read.rs"
    _, _, rest = source.read_text().partition("const LISTS: &[&str] = &[")
    theirs = set(re.findall(r'"([^"]+)"', rest.partition("];")[0]))
    assert theirs - {"case"} == scenarios.LISTS


def test_a_program_makes_the_same_runs_as_the_wheel(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from test_live_noisy import program

    from seekway_lab import engine
    from seekway_lab.cli import main

    [wheel] = runs.runs(Scenario("s", {"vm": SMALL["vm"]}, ("look",)), runs.Wanted(), [1])
    try:
        engine.use(program())
        [own] = runs.runs(Scenario("s", {"vm": SMALL["vm"]}, ("look",)), runs.Wanted(), [1])
        assert "look" in engine.schedulers(engine.chosen())
    finally:
        engine.use(None)
    assert own.key != wheel.key
    assert runs.make(own) == runs.make(wheel)
    assert main(["run", "cats-direct", "--program", str(tmp_path / "none")]) == 2
    assert "none: No such file" in capsys.readouterr().err
