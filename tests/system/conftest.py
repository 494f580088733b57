"""What the system tests share: the program `seekway` as a user runs it, beside the tools that its
users have (libvirt, Prometheus, a browser, a package manager). `scripts/test-system` runs them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Nothing here takes that long, unless it fails.
PATIENCE_S = 600


def wait_for(what: str, is_so: Any, patience_s: float = PATIENCE_S) -> Any:
    """Return what `is_so` returns once it is true; ask again every 50 ms."""
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


class Daemon:
    """A `seekway serve` of a test, with its sockets in a folder of its own."""

    def __init__(self, program: str, folder: Path, arguments: list[str]) -> None:
        self.program = program
        self.folder = folder
        self.log = folder / "serve.log"
        self.command = [program, "serve", "--listen", str(folder), *arguments]
        self.start()

    def start(self) -> None:
        """Start it, also again after its end."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                # Its notes of lost writes are not this computer's.
                env={**os.environ, "STATE_DIRECTORY": str(self.folder.absolute())},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        # At its end the daemon closes this; a line "ready" says that it serves.
        for line in self.process.stdout:
            if line.strip() == "ready":
                return
        raise AssertionError(f"serve ended before it was ready:\n{self.log.read_text()}")

    def ctl(self, *arguments: str) -> str:
        """Run `seekway ctl` and return what it prints."""
        socket = str(self.folder / "control.sock")
        command = [self.program, "ctl", "--socket", socket, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def status(self) -> Any:
        """The daemon's status."""
        return json.loads(self.ctl("status", "--format", "json"))

    def disk(self, name: str) -> Any:
        """The status of one disk."""
        disks = [disk for device in self.status()["devices"] for disk in device["disks"]]
        return next(disk for disk in disks if disk["name"] == name)

    def socket(self, name: str) -> Path:
        """Path of a socket, such as `web.nbd`."""
        return self.folder / name

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End it, and return its exit status."""
        self.process.send_signal(how)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def serve(seekway: str, tmp_path: Path) -> Iterator[Any]:
    """A function that starts daemons, each with a folder of its own; they end with the test.

    `serve("--disk", "web=/…", …)` returns a `Daemon`. Images: the fixture `image`.
    """
    daemons: list[Daemon] = []

    def start(*arguments: str) -> Daemon:
        folder = tmp_path / f"run{len(daemons)}"
        folder.mkdir(mode=0o755)
        daemons.append(Daemon(seekway, folder, list(arguments)))
        return daemons[-1]

    yield start
    for daemon in daemons:
        if daemon.process.poll() is None:
            daemon.process.kill()
            daemon.process.wait()


@pytest.fixture
def image(tmp_path: Path) -> Any:
    """A function that makes an empty raw image: `image("web", "64M")` returns its path."""

    def make(name: str, size: str = "16M") -> Path:
        path = tmp_path / f"{name}.img"
        subprocess.run(["truncate", "--size", size, str(path)], check=True)
        return path

    return make
