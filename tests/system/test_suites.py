"""Counting of `make test`: no suite and no test keeps those behind it from running, and the last
line is the sum."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from conftest import ROOT

# Two checks, of which the first fails, and three tests, one of each kind.
SUITE = f"""
set -euo pipefail
cd "$(dirname "${{BASH_SOURCE[0]}}")/.."
mkdir -p venv/bin
printf '#!/bin/sh\\nexec {sys.executable} "$@"\\n' >venv/bin/python
chmod +x venv/bin/python
. scripts/tally
check "a check" false || true
check "another" true || true
tests venv -q -p no:cacheprovider inner.py
tallied test-python
"""
INNER = """
import pytest

def test_good(): pass
def test_bad(): assert False
@pytest.mark.skip(reason="no such disk")
def test_absent(): pass
"""


def run(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """The status of `scripts/test-all` in a copy of the scripts, and what it printed."""
    command = [folder / "scripts" / "test-all", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def tree(folder: Path, **suites: str) -> Path:
    """A folder with the scripts under test, and with these suites."""
    (folder / "scripts").mkdir()
    for name in ("test-all", "tally"):
        shutil.copy(ROOT / "scripts" / name, folder / "scripts" / name)
    for name, text in suites.items():
        path = folder / "scripts" / name.replace("_", "-")
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    (folder / "inner.py").write_text(INNER)
    (folder / "Makefile").write_text("lint:\n\t@false\n")
    return folder


COUNTED = 'echo "{} {} {}" >"$SEEKWAY_TALLY/{}.counts"; exit {}'


def test_all_suites_run_whatever_fails(tmp_path: Path) -> None:
    folder = tree(
        tmp_path,
        test=COUNTED.format(100, 1, 2, "test", 1),
        test_python=SUITE,
        test_system="exit 3",
    )
    status, lines = run(folder)
    # Of the Python suite two passed (a check, a test), two failed and one was skipped; the last
    # suite ended before it could count.
    assert (status, lines[-1]) == (1, "102 passed, 4 failed, 3 skipped")
    said = "\n".join(lines)
    for part in ("a check", "test_bad", "scripts/test-system: status 3", "no such disk"):
        assert part in said, said
    assert run(folder, "--lint")[1][-1] == "102 passed, 5 failed, 3 skipped"


def test_all_that_passes_is_no_failure(tmp_path: Path) -> None:
    suites = {
        name: COUNTED.format(5, 0, 1, name.replace("_", "-"), 0)
        for name in ("test", "test_python", "test_system")
    }
    status, lines = run(tree(tmp_path, **suites))
    assert (status, lines[-1]) == (0, "15 passed, 0 failed, 3 skipped")
