"""The results of the papers' experiments: the rows as CSV, the claims, and the pages with their
verdicts, which the laboratory's `seekway-lab page` makes of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

LAB = ROOT / "lab"
FOLDER = ROOT / "docs" / "experiments"


def page(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `seekway-lab page`, which needs no wheel."""
    command = [sys.executable, "-m", "seekway_lab", "page", *arguments]
    environment = os.environ | {"PYTHONPATH": str(LAB)}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment)


def test_the_pages_are_what_claims_and_rows_give() -> None:
    checked = page("--check")
    assert checked.returncode == 0, checked.stderr
    claims = json.loads(page("--json").stdout)["claims"]
    assert len(claims) > 60
    assert not list(FOLDER.glob("*-results.md")), "pages of every row, as CSV has them"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A copy of the pages that the script writes."""
    shutil.copytree(FOLDER, tmp_path / "docs" / "experiments")
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
