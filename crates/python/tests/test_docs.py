"""Runs the blocks of docs/python.md, one after another."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize(("page", "least"), [("python.md", 5), ("scenario.md", 1)])
def test_the_code_of_a_page_runs(page: str, least: int) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)
    assert len(blocks) >= least
    names: dict[str, object] = {}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{page}, block {number}", "exec"), names)


def test_the_study_of_the_page_is_one(tmp_path: Path) -> None:
    from seekway.campaign import Campaign

    text = (DOCS / "campaigns.md").read_text()
    (study,) = re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S)
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "a.vscsi").write_text("0 0 0 8 1\n")
    (tmp_path / "study.toml").write_text(study)
    cells = Campaign.from_file(tmp_path / "study.toml").cells()
    # cfq with each of 4 idle times, and the others once: {idle} does not stand in them.
    assert len(cells) == 2 * 3 * (4 + 2)
