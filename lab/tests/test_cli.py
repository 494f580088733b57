from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest

from seekway_lab import pages, papers, records
from seekway_lab.cli import ROOT, main

EXAMPLE = "table-example"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A copy of the recorded results."""
    shutil.copytree(ROOT / "docs" / "experiments", tmp_path / "docs" / "experiments")
    return tmp_path / "docs"


def run(command: str, tmp_path: Path, *more: object) -> int:
    """The exit status of a command on the studies of `EXAMPLE`."""
    shared = ["--workers", 0, "--kept", tmp_path / "kept", *more]
    return main([command, EXAMPLE, *map(str, shared)])


def test_equal_rows_are_accepted_and_others_named(
    docs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("check", tmp_path, "--docs", docs) == 0
    assert "4 recorded rows: 4 equal, 0 differ" in capsys.readouterr().out
    path = docs / "experiments" / "results" / "cats.csv"
    path.write_text(path.read_text().replace("124.5,124.5,", "124.5,125,", 1))
    assert run("check", tmp_path, "--docs", docs) == 1
    said = capsys.readouterr().out
    assert "optimal: mean response: ours was 125, is 124.5" in said, said


OWN = """
import seekway

class Own(seekway.Policy):
    def decide(self, now_ns, device):
        return next(iter(self.queued.values()))
"""


def test_a_policy_stands_beside_the_papers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    own = f"{tmp_path}/own.py:Own"
    both = ["--policy", own, "--policy", "noop"]
    assert run("run", tmp_path, "--format", "csv", *both) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["ours"] for row in rows] == ["75", "124.5", "79", "131.5"]
    # Reads in the order in which they come; the greedy policy is not the paper's.
    assert [row["noop"] for row in rows] == ["65", "165.5", "", ""]
    assert [row[own] for row in rows] == ["65", "165.5", "", ""]
    assert run("run", tmp_path) == 0
    said = capsys.readouterr().out
    assert "| greedy: mean response | 131.5 | 131.5 | 131.5 |" in said and "Summary" not in said
    assert run("run", tmp_path, "--policy", "noop") == 0
    said = capsys.readouterr().out
    assert "| optimal: mean service | 75 | 75 | 65 | 75 |" in said
    assert "| 75, 124 blocks (holds) | 65, 166 blocks (refuted) |" in said
    assert "of 1 that can be decided: cats here 1, noop 0. In 0 more" in said


def test_what_cannot_be_is_refused(
    docs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "nothing"]) == 2
    assert "no paper or study 'nothing'" in capsys.readouterr().err
    assert main(["run", "cats-nothing"]) == 2
    assert "no study cats-nothing" in capsys.readouterr().err
    for study, policy, why in [
        (EXAMPLE, "vmigrater", "no policy 'vmigrater'; there are fairway, noop, "),
        (EXAMPLE, "noop:quantum=4", "noop"),
        (EXAMPLE, f"{tmp_path}/none.py:Own", "No such file"),
        ("vio-vms", "noop", "no prefetcher 'noop'; there are "),
        ("inactivity", "noop", "no vCPU policy 'noop'; there are "),
        ("vpt-fit", "noop", "these studies have no policy of the paper's"),
    ]:
        assert main(["run", study, "--policy", policy]) == 2
        assert why in capsys.readouterr().err
    assert run("run", tmp_path, "--write", "--docs", docs) == 2
    assert "run all of cats" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("run", tmp_path, "--write", "--seeds", 1)


def test_papers_and_studies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "cats"]) == 0
    listed = capsys.readouterr().out
    assert "cats: CATS and the throttle" in listed and f"  {EXAMPLE}  The table's order" in listed


def test_rows_are_of_the_loads_that_studies_run() -> None:
    results = ROOT / "docs" / "experiments" / "results"
    known = json.loads((results / "loads.json").read_text())
    assert known == {s.name: s.loads() for paper in pages.PAPERS for s in papers.studies(paper)}
    rows = [row for paper in pages.PAPERS for row in records.read(results / f"{paper}.csv")]
    assert known.keys() == {row["experiment"] for row in rows}


def test_a_live_row_decides_a_claim_and_a_void_one_leaves_it_open() -> None:
    claim = {"paper": "cats", "where": "§4", "claim": "k", "published": "–"}
    claim |= {"experiment": "vpt-scale", "rows": ["a: k"], "because": "why"}

    def verdict(of_row: str) -> dict[str, str]:
        row = dict.fromkeys(records.COLUMNS, "") | {"verdict": of_row, "why": "host CPU 99 % busy"}
        return pages.judged(claim, {("vpt-scale", "a: k"): row})

    assert verdict("holds")["verdict"] == "holds"
    assert verdict("in part")["verdict"] == "in part"
    void = verdict("void")
    assert void["verdict"] == pages.UNDECIDED and void["undecided"] == "void: host CPU 99 % busy"
    with pytest.raises(records.LabError, match="no figure of a paper"):
        verdict("measured")


def test_rows_of_an_experiment_replace_its_older_ones(tmp_path: Path) -> None:
    def rows(experiment: str, *names: str) -> list[records.Record]:
        empty = dict.fromkeys(records.COLUMNS, "")
        return [{**empty, "experiment": experiment, "row": name} for name in names]

    path = tmp_path / "live.csv"
    records.replace(path, rows("vpt-scale", "a", "b"))
    records.replace(path, rows("vpt-rank, live", "c"))
    records.replace(path, rows("vpt-scale", "b"))
    assert [row["row"] for row in records.read(path)] == ["c", "b"]


def test_a_claim_is_decided_by_the_programs_rows_and_the_texts() -> None:
    def row(name: str, ours: str, verdict: str) -> dict[str, str]:
        numbers = {"paper": "5.31", "ours": ours, "least": ours, "largest": ours, "unit": "×"}
        return {
            "experiment": "e",
            "row": name,
            **numbers,
            "verdict": verdict,
            "asked": "",
            "why": "",
        }

    rows = {
        ("e", r["row"]): r
        for r in [row("program", "4.99", "holds"), row("text", "1.29", "refuted")]
    }
    claim = {"paper": "migrate", "where": "§", "claim": "c", "published": "5.31", "experiment": "e"}
    both = {**claim, "rows": ["program"], "text": ["text"], "because": "by the program"}
    found = pages.judged(both, rows)
    assert (found["verdict"], pages.ours_of(found)) == ("in part", "4.99× (text: 1.29×)")
    assert pages.judged({**claim, "rows": ["program"]}, rows)["verdict"] == "holds"
