from __future__ import annotations

import json
from pathlib import Path

import pytest

from seekway_lab import program
from seekway_lab.records import LabError

ROW = {
    **{"name": "a row", "paper": None, "ours": 2.5, "range": [1.0, 4.0], "unit": "ms"},
    **{"verdict": "measured", "asked": False, "why": "so"},
}


@pytest.fixture
def seekway(tmp_path: Path) -> Path:
    """A program with one experiment, which counts its runs."""
    listed = [{"name": "vio-vms", "loads": "ab"}, {"name": "noisy", "loads": None}]
    path = tmp_path / "seekway"
    path.write_text(f"""#!/bin/sh
case $2 in
list) echo '{json.dumps(listed)}' ;;
run) echo "$*" >>"{tmp_path}/ran"; echo '{json.dumps({"experiment": "vio-vms", "rows": [ROW]})}'
     exit 1 ;;
esac
""")
    path.chmod(0o755)
    return path


def test_experiments_of_the_program_run_once(seekway: Path, tmp_path: Path) -> None:
    assert program.loads(seekway, ["vio-*"]) == {"vio-vms": "ab"}
    for _ in range(2):
        [row] = program.rows(seekway, ["vio-vms"], 5, [], tmp_path / "out")
        assert [row[c] for c in ("paper", "ours", "least", "largest", "asked")] == [
            *("", "2.5", "1", "4", "missed")
        ]
    program.rows(seekway, ["vio-vms"], 5, ["noop"], tmp_path / "out")
    ran = (tmp_path / "ran").read_text().splitlines()
    assert len(ran) == 2 and "--policy=noop" in ran[1], ran
    with pytest.raises(LabError, match="take one"):
        program.rows(seekway, ["vio-vms"], 5, ["own.py:Own"], tmp_path / "out")
