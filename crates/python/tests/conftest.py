"""Fixtures of all tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TRACES = ROOT.parent / "shared" / "traces"


@pytest.fixture(scope="session")
def command_line() -> str:
    """The program `seekway` of the same sources."""
    given = os.environ.get("SEEKWAY")
    if given:
        return given
    built = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug" / "seekway"
    if not built.exists():
        subprocess.run(["cargo", "build", "-q", "-p", "seekway"], cwd=ROOT, check=True)
    return str(built)


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of real traces; without it a test is skipped."""
    if not TRACES.is_dir():
        pytest.skip(f"no traces in {TRACES}")
    return TRACES
