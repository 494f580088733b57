"""Fixtures of the system tests: the program `seekway` as a user runs it, beside the tools that its
users have (libvirt, Prometheus, a browser, a package manager). `scripts/test-system` runs them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The laboratory's harness for daemons and guests, as it stands in the tree.
sys.path.insert(0, str(ROOT / "lab"))

from seekway_lab.live import daemon as live  # noqa: E402

# Nothing here takes that long, unless it fails.
PATIENCE_S = 600


def wait_for(what: str, is_so: Any, patience_s: float = PATIENCE_S) -> Any:
    """Return the value of `is_so` once it is true; ask again every 50 ms."""
    until = time.monotonic() + patience_s
    while not (found := is_so()):
        assert time.monotonic() < until, f"not within {patience_s} s: {what}"
        time.sleep(0.05)
    return found


def need(*programs: str) -> None:
    """Skip a test where a program is missing; `scripts/install-deps test` installs all of them."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here")


def need_root() -> None:
    """Skip a test that only root can run."""
    if os.geteuid() != 0:
        pytest.skip("only root can do this")


@pytest.fixture(scope="session")
def seekway() -> str:
    """The program of these sources; SEEKWAY names another one."""
    given = os.environ.get("SEEKWAY")
    if given:
        return given
    built = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug" / "seekway"
    if not built.exists():
        subprocess.run(["cargo", "build", "-q", "-p", "seekway"], cwd=ROOT, check=True)
    return str(built)


class Daemon(live.Daemon):
    """A `seekway serve` of a test."""

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End it, and return its exit status."""
        self.process.child.send_signal(how)
        return self.process.child.wait(PATIENCE_S)


@pytest.fixture
def serve(seekway: str, tmp_path: Path) -> Iterator[Any]:
    """A function that starts daemons, each with a folder of its own; they end with the test.

    `serve("--disk", "web=/…", …)` returns a `Daemon`. Images: the fixture `image`.
    """
    with ExitStack() as daemons:
        folders = (tmp_path / f"run{n}" for n in count())

        def start(*arguments: str) -> Daemon:
            folder = next(folders)
            folder.mkdir(mode=0o755)
            return daemons.enter_context(Daemon(seekway, folder, arguments))

        yield start


@pytest.fixture
def image(tmp_path: Path) -> Any:
    """A function that makes an empty raw image: `image("web", "64M")` returns its path."""

    def make(name: str, size: str = "16M") -> Path:
        path = tmp_path / f"{name}.img"
        subprocess.run(["truncate", "--size", size, str(path)], check=True)
        return path

    return make
