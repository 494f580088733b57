"""The results of the papers' experiments: the rows as CSV, the claims, and the pages with their
verdicts, which the laboratory's `seekway-lab page` makes of them."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from conftest import ROOT

LAB = ROOT / "lab"
FOLDER = ROOT / "docs" / "experiments"
RESULTS = sorted((FOLDER / "results").glob("*.csv"))
# One that ends soon.
QUICK = "inactivity"


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def listed(seekway: str) -> list[dict[str, str]]:
    """What `experiment list` says."""
    command = [seekway, "experiment", "list", "--format", "json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def page(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `seekway-lab page`, which needs no wheel."""
    command = [sys.executable, "-m", "seekway_lab", "page", *arguments]
    environment = os.environ | {"PYTHONPATH": str(LAB)}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment)


def in_the_laboratory(experiment: str) -> bool:
    """Is it a study there? Its loads are compared by the laboratory's own tests."""
    sys.path.insert(0, str(LAB))
    from seekway_lab.pages import PAPERS

    moved = [paper for paper in PAPERS if (LAB / "seekway_lab" / "papers" / paper).is_dir()]
    return any(fnmatchcase(experiment, pattern) for p in moved for pattern in PAPERS[p][1])


def test_the_pages_are_what_claims_and_rows_give() -> None:
    checked = page("--check")
    assert checked.returncode == 0, checked.stderr
    counts = json.loads((FOLDER / "claims.json").read_text())["counts"]
    assert sum(counts.values()) > 60
    assert not list(FOLDER.glob("*-results.md")), "pages of every row, as CSV has them"


def test_the_rows_are_of_the_loads_that_the_program_runs(seekway: str) -> None:
    """A load that has changed since `make experiments` ran makes its rows old."""
    ran = json.loads((FOLDER / "results" / "loads.json").read_text())
    now = {entry["name"]: entry["loads"] for entry in listed(seekway)}
    ours = {name: loads for name, loads in ran.items() if not in_the_laboratory(name)}
    old = [name for name, loads in ours.items() if now.get(name) != loads]
    assert not old, "make experiments"
    assert {row["experiment"] for path in RESULTS for row in rows_of(path)} == ran.keys()


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A copy of the pages that the script writes."""
    shutil.copytree(FOLDER, tmp_path / "docs" / "experiments")
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path / "docs"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("rows = [", "rows = []\nwere = [", "no such key: were"),
        ("rows = [", 'rows = ["no such row",', "has no row 'no such row'"),
        ('experiment = "', 'experiment = "gone-', "has no row"),
        ("where = ", "place = ", "lacks where"),
    ],
)
def test_a_claim_that_does_not_stand_is_refused(
    docs: Path, old: str, new: str, complaint: str
) -> None:
    path = docs / "experiments" / "claims.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    ran = page("--docs", docs)
    assert (ran.returncode, complaint in ran.stderr) == (2, True), ran.stderr


def test_a_row_beside_a_papers_figure_belongs_to_a_claim(docs: Path) -> None:
    path = docs / "experiments" / "claims.toml"
    head, _, *claims = path.read_text().split("[[claim]]")
    path.write_text("[[claim]]".join([head, *claims]))
    ran = page("--docs", docs)
    assert ran.returncode == 2 and "in 0 claims, not in one" in ran.stderr, ran.stderr
    path.write_text("[[claim]")
    ran = page("--docs", docs)
    assert ran.returncode == 2 and ran.stderr.startswith("seekway-lab: "), ran.stderr


def test_a_page_older_than_its_rows_is_found(docs: Path) -> None:
    path = docs / "experiments" / "results" / "pregather.csv"
    path.write_text(path.read_text().replace(",holds,", ",refuted,", 1))
    ran = page("--check", "--docs", docs)
    assert ran.returncode in (1, 2)
    assert "older than its inputs" in ran.stderr or "no 'because' says why" in ran.stderr
    assert page("--check", "--docs", ROOT / "docs").returncode == 0


def test_the_files_have_what_the_program_prints(seekway: str, tmp_path: Path) -> None:
    quick = [seekway, "experiment", "run", QUICK, "--quick", "--seeds", "1", "--format", "csv"]
    ran = subprocess.run(quick, capture_output=True, text=True)
    assert ran.returncode in (0, 1), ran.stderr  # 1: something asked is missed in a short run
    (tmp_path / "printed.csv").write_text(ran.stdout)
    printed = rows_of(tmp_path / "printed.csv")
    assert printed
    for path in RESULTS:
        assert list(rows_of(path)[0]) == list(printed[0]), path
    written = [row["row"] for row in rows_of(FOLDER / "results" / "migrate.csv")]
    assert [row["row"] for row in printed] == written[: len(printed)]
