"""Child processes that end with their owner."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seekway_lab.records import LabError

#: How much of a log an error shows.
TAIL_BYTES = 4096


class LiveError(LabError):
    """A guest, a daemon or a program of the host failed."""


def wait_for(what: str, is_so: Callable[[], Any], patience_s: float, pause_s: float = 0.02) -> Any:
    """Returns the value of `is_so` once it is true; asks again after each pause."""
    until = time.monotonic() + patience_s
    while not (found := is_so()):
        if time.monotonic() > until:
            raise LiveError(f"not within {patience_s:.0f} s: {what}")
        time.sleep(pause_s)
    return found


def find(program: str) -> str | None:
    """Path of a program of the host, also of those for root."""
    return shutil.which(program) or shutil.which(program, path="/sbin:/usr/sbin")


def need(program: str, package: str) -> str:
    """Path of a program of the host, which `package` has."""
    if (found := find(program)) is None:
        raise LiveError(f"{program} is not installed: install Debian's package {package}")
    return found


def output(*command: str | Path, package: str, folder: Path | None = None) -> str:
    """Runs a program of the host, which `package` has, to its end; returns its output."""
    program, *rest = map(str, command)
    done = subprocess.run(
        [need(program, package), *rest],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        line = " ".join([program, *rest])
        raise LiveError(f"`{line}` failed ({done.returncode}): {done.stderr.strip()}")
    return done.stdout


#: The owner, $0, may have ended before the kernel was told to end its child with it.
OWNED = '[ "$PPID" = "$0" ] && exec "$@"'


class Process:
    """A running program. The kernel kills it when the thread that started it ends."""

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        *,
        package: str = "",
        environment: Mapping[str, str] | None = None,
        stdout: int | None = None,
    ) -> None:
        """Starts it.

        Args:
            command: the program and its arguments.
            log: gets what it prints, after what is there.
            package: has the program, should it be missing.
            environment: what it has besides this process's.
            stdout: where standard output goes instead of into the log.
        """
        self.log = log
        program, *rest = map(str, command)
        owned = [need("setpriv", "util-linux"), "--pdeathsig", "KILL", "sh", "-c", OWNED]
        owned += [str(os.getpid()), need(program, package)]
        child: subprocess.Popen[bytes] | None = None
        try:
            with log.open("ab") as file, uninterrupted():
                child = subprocess.Popen(
                    [*owned, *rest],
                    env={**os.environ, **(environment or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=file if stdout is None else stdout,
                    stderr=file,
                )
        except BaseException:
            if child is not None:
                child.kill()
                child.wait()
            raise
        self.child = child

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.child.pid

    def ended(self) -> int | None:
        """Its exit status if it has ended."""
        return self.child.poll()

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self.child.kill()
        self.child.wait()

    def stop(self, patience_s: float) -> int | None:
        """SIGTERM; its exit status, or None if it still runs then."""
        self.child.terminate()
        try:
            return self.child.wait(patience_s)
        except subprocess.TimeoutExpired:
            return None

    def said(self) -> str:
        """The end of its output."""
        return tail(self.log)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Lets signals that interrupt come after the block, when a process that it starts is known."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    every = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {one: signal.signal(one, lambda number, _: came.append(number)) for one in every}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        for number in came:
            signal.raise_signal(number)


def tail(path: Path) -> str:
    """The end of a log, without control characters."""
    if not path.exists():
        return f"({path}: not there)"
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return "".join(c for c in text if c == "\n" or c.isprintable())
