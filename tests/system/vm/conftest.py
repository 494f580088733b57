"""Fixtures of the tests of guests: the agent, folders, and the right to hold vCPUs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from conftest import ROOT, need
from seekway_lab.live import schedule, turns
from seekway_lab.records import LabError

from .stage import Programs, step


@pytest.fixture(scope="session", autouse=True)
def qemu() -> None:
    """Skip all where there is no QEMU."""
    need("qemu-system-x86_64", "fio", "sysbench")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Say how long a test took."""
    with step(item.name.removeprefix("test_").replace("_", " ")):
        return (yield)


@pytest.fixture(scope="session")
def programs(seekway: str) -> Programs:
    """The programs of these sources; SEEKWAY and SEEKWAY_GUEST name others."""
    agent = os.environ.get("SEEKWAY_GUEST")
    if agent is None:
        built = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug" / "seekway-guest"
        if not built.exists():
            # As `scripts/test` builds it: of other packages, all would be built a second time.
            command = ["cargo", "test", "-q", "--no-run", "--workspace", "--test", "agent"]
            command += ["--features", "seekway-guestd/bpf"]
            subprocess.run(command, cwd=ROOT, check=True)
        agent = str(built)
    return Programs(Path(seekway), Path(agent))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of the test, which ends with it: images are large."""
    with TemporaryDirectory(prefix="seekway-vm-") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def may_hold() -> None:
    """Skip where this process may not hold its children's threads. Every user may, unless the
    computer forbids ptrace."""
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            turns.Turns([[sleeper.pid]], turns.Slices(1000, 0, 1)).end()
        except OSError as error:
            pytest.skip(f"ptrace: {error}")
        finally:
            sleeper.kill()


@pytest.fixture(scope="session")
def may_record() -> None:
    """Skip where the kernel's tracer does not record the schedule."""
    try:
        schedule.Recorder().end()
    except LabError as error:
        pytest.skip(str(error))
