"""`run` gives a scenario's tables, with the command line's figures."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyarrow
import pytest
import seekway

VM = {"name": "a", "load": [{"app": "sysbench", "mode": "RR"}]}
SCENARIO = {"policy": ["noop", "cfq"], "seed": [1, 2], "measure": {"until": "1s"}, "vm": [VM]}
TEXT = """
policy = ["noop", "cfq"]
seed = [1, 2]
measure.until = "1s"
[[vm]]
name = "a"
load = [{ app = "sysbench", mode = "RR" }]
"""


class Oldest(seekway.Policy):
    """The request that came first."""

    def decide(self, now_ns: int, device: seekway.Device) -> seekway.Request:
        return next(iter(self.queued.values()))


def figures(made: seekway.Outcome) -> list[dict]:
    clocks = ("wall_ns", "cpu_ns")
    rows = made.runs.to_arrow().to_pylist()
    return [{key: value for key, value in row.items() if key not in clocks} for row in rows]


def test_a_dictionary_a_file_and_keywords_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(TEXT)
    made = seekway.run(SCENARIO)
    assert figures(made) == figures(seekway.run(tmp_path / "s.toml"))
    assert figures(made) == figures(seekway.run(str(tmp_path / "s.toml"), jobs=1))
    assert figures(made) == figures(seekway.run({"vm": [VM]}, **{**SCENARIO, "vm": [VM]}))
    names = [(row["policy"], row["seed"]) for row in figures(made)]
    assert names == [("noop", 1), ("noop", 2), ("cfq", 1), ("cfq", 2)]


def test_figures_are_the_command_lines_to_the_bit(command_line: str, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(TEXT)
    line = [command_line, "compare", str(tmp_path / "s.toml"), "--format=json"]
    printed = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
    for row, run in zip(figures(seekway.run(SCENARIO)), printed["runs"], strict=True):
        assert row["requests"] == run["requests"]
        assert row["response_mean_ns"] / 1e6 == run["response_ms"]["mean"]
        assert row["response_p99_ns"] / 1e6 == run["response_ms"]["p99"]
        assert row["read_response_p99_ns"] / 1e6 == run["reads"]["response_ms"]["p99"]
        assert (row["writes"], row["write_response_p99_ns"], run["writes"]) == (0, None, None)
        assert row["bytes"] / 2**20 / (row["simulated_ns"] / 1e9) == pytest.approx(run["mib_s"])


def test_tables_cross_as_arrow_and_only_those_that_are_wanted() -> None:
    made = seekway.run(SCENARIO, outcome={"tables": ["vms", "requests"], "requests": True})
    assert list(made.tables) == ["vms", "requests"]
    assert "vms: 4" in repr(made)
    requests = pyarrow.table(made.requests)
    assert requests.num_rows == sum(made.vms.to_arrow().column("requests").to_pylist())
    assert made.vms.columns[:4] == ["run", "name", "policy", "seed"]
    with pytest.raises(AttributeError, match="no table 'runs'; there are vms, requests"):
        made.runs  # noqa: B018


def test_policies_in_python_stand_in_a_scenario() -> None:
    scenario = {**SCENARIO, "policy": ["noop", Oldest], "seed": 1}
    made = seekway.run(scenario)
    rows = figures(made)
    assert [row["policy"] for row in rows] == ["noop", "Oldest"]
    named = seekway.run({**scenario, "policy": "mine"}, policies={"mine": Oldest})
    assert figures(named)[0]["requests"] == rows[1]["requests"]


@pytest.mark.parametrize(
    ("scenario", "part"),
    [
        ({"vm": [VM], "polcy": "noop"}, "unknown field `polcy`"),
        ({"vm": [VM], "policy": "nop"}, "no policy 'nop'"),
        ({"vm": [VM], "policy": object()}, "no value of a scenario"),
        ({"vm": [VM], "measure": {"until": float("nan")}}, "scenario: "),
        ({}, "nothing to run"),
    ],
)
def test_what_is_wrong_is_told(scenario: dict, part: str) -> None:
    with pytest.raises(seekway.SeekwayError, match=part):
        seekway.run(scenario)


def test_a_wrong_file_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text("policy = 3\n")
    with pytest.raises(seekway.SeekwayError, match=r"s\.toml:1:10: policy: "):
        seekway.run(tmp_path / "s.toml")
    with pytest.raises(seekway.SeekwayError, match="a file has all keys"):
        seekway.run(tmp_path / "s.toml", seed=3)
