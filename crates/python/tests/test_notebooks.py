"""The notebooks run as scripts and write their figures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("marimo")

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOKS = ROOT / "docs" / "notebooks"
TRACE = ROOT / "crates" / "workload" / "tests" / "fixtures" / "blkreplay.load"


def run(name: str, *arguments: str | Path, **variables: str) -> str:
    """Run a notebook, which may not fail; returns its output."""
    given = {key: value for key, value in os.environ.items() if not key.startswith("SEEKWAY_")}
    command = [sys.executable, str(NOTEBOOKS / name), *map(str, arguments)]
    done = subprocess.run(command, env=given | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_figure(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def test_which_scheduler(tmp_path: Path) -> None:
    printed = run("which_scheduler.py", "--until", "2s", "--out", tmp_path)
    assert "fairway" in printed and "Advice needs a trace" in printed
    assert is_figure(tmp_path / "policies.png") and is_figure(tmp_path / "latencies.png")


def test_which_scheduler_for_a_trace(tmp_path: Path) -> None:
    printed = run("which_scheduler.py", SEEKWAY_TRACE=str(TRACE), SEEKWAY_OUT=str(tmp_path))
    assert "Advice needs a trace" not in printed and "Use " in printed
    assert is_figure(tmp_path / "latencies.png")


def test_how_many_vms(tmp_path: Path) -> None:
    printed = run("how_many_vms.py", "--until", "4s", "--most", "3", "--out", tmp_path)
    assert "noop: 3 or more VMs with a p99 of at most 100 ms" in printed
    assert is_figure(tmp_path / "how_many_vms.png")


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    before = sorted(NOTEBOOKS.iterdir())
    run("how_many_vms.py", "--until", "1s", "--most", "1")
    assert sorted(NOTEBOOKS.iterdir()) == before
