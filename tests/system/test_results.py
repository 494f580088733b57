"""The results of the papers' experiments: the rows as CSV, and the pages with their verdicts."""

from __future__ import annotations

import csv
import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from conftest import ROOT

FOLDER = ROOT / "docs" / "experiments"
RESULTS = sorted((FOLDER / "results").glob("*.csv"))
# One that ends soon.
QUICK = "inactivity"


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_page_counts_the_rows_of_its_file(path: Path) -> None:
    rows = rows_of(path)
    verdicts = Counter(row["verdict"] for row in rows)
    counts = [len(rows)]
    counts += [verdicts[name] for name in ["holds", "in part", "refuted", "missed", "measured"]]
    counts.append(sum(row["accepted"] == "false" for row in rows))
    page = (FOLDER / f"{path.stem}-results.md").read_text()
    assert f"| all |  | {' | '.join(map(str, counts))} |" in page
    assert sum(counts[1:6]) == counts[0] > 100


def test_the_files_have_what_the_program_prints(seekway: str, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        ran = subprocess.run([seekway, "experiment", *arguments], capture_output=True, text=True)
        assert ran.returncode in (0, 1), ran.stderr  # 1: a row was not accepted
        return ran.stdout

    quick = ["run", QUICK, "--quick", "--seeds", "1", "--format"]
    (tmp_path / "printed.csv").write_text(run(*quick, "csv"))
    (tmp_path / "run.json").write_text(run(*quick, "json"))
    (tmp_path / "list.json").write_text(run("list", "--format", "json"))
    script = [ROOT / "scripts" / "results-page", "quick", "Quick", "run.json", "list.json"]
    subprocess.run([*script, "--out", "."], cwd=tmp_path, check=True)
    printed = rows_of(tmp_path / "printed.csv")
    written = rows_of(tmp_path / "results" / "quick.csv")
    assert len(printed) == len(written) > 0
    for ours, theirs in zip(written, printed, strict=True):
        assert list(ours) == list(theirs)
        for column in ours:
            if column in ("paper", "ours", "least", "largest") and ours[column]:
                assert float(ours[column]) == pytest.approx(float(theirs[column]), rel=1e-5)
            else:
                assert ours[column] == theirs[column]
    page = (tmp_path / "quick-results.md").read_text()
    entries = json.loads((tmp_path / "list.json").read_text())
    (summary,) = [entry["summary"] for entry in entries if entry["name"] == QUICK]
    assert f"| {QUICK} | {summary} | {len(written)} |" in page
    for path in RESULTS:
        assert list(rows_of(path)[0]) == list(printed[0]), path
