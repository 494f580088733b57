"""A container with a real systemd as process 1, over the files of this computer: packages are
installed in it, and this computer does not change. It has namespaces of its own for mounts,
processes, control groups, and an empty network."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from conftest import PATIENCE_S, ROOT, wait_for

CGROUPS = Path("/sys/fs/cgroup")


class Container:
    """Starts the container and waits until systemd is up. `end` leaves nothing behind.

    Its files are mounted in `folder`, which must exist; `log` is what its start has to say."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder = folder
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        # systemd makes control groups for its services: below one of ours. Control groups of
        # version 1 have a hierarchy for that.
        v1 = CGROUPS / "systemd"
        self.cgroup = (v1 if v1.is_dir() else CGROUPS) / f"seekway-test-{os.getpid()}"
        self.cgroup.mkdir()
        join = f"echo 0 >{self.cgroup}/cgroup.procs; exec setpriv --pdeathsig=KILL"
        spaces = "--mount --propagation private --pid --uts --ipc --cgroup --net"
        init = f"{ROOT}/tests/system/container-init {folder}"
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                ["bash", "-c", f"{join} unshare {spaces} --fork --kill-child {init}"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            self.wait_until_up()
        except BaseException:
            self.end()
            raise

    def wait_until_up(self) -> None:
        """Wait for systemd, and for its jobs before services."""
        self.init = wait_for("process 1 of the container", self.find_init)
        wait_for("systemd in the container", self.is_up)

    def find_init(self) -> int | None:
        """The process number, outside, of the container's systemd."""
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        for child in children.split():
            if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                return int(child)
        return None

    def is_up(self) -> bool:
        """Whether all that comes before services is done."""
        run = self.try_run("systemctl", "is-active", "sysinit.target")
        return run.stdout.strip() == "active"

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs something in the container."""
        enter = ["nsenter", f"--target={self.init}", "--mount", "--pid", "--uts", "--ipc", "--net"]
        environment = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"]
        return [*enter, "--cgroup", "--root", "--wd", *environment, *arguments]

    def try_run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container."""
        return subprocess.run(
            self.command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str) -> str:
        """Run a command that must not fail in the container, and return its output."""
        done = self.try_run(*arguments)
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def start(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        """Start a program in the container. It ends with the container at the latest."""
        return subprocess.Popen(
            self.command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **more,
        )

    def path(self, inside: str) -> Path:
        """A file of the container, as this computer reaches it."""
        return Path(f"/proc/{self.init}/root{inside}")

    def property(self, unit: str, name: str) -> str:
        """A property of a unit, such as MainPID."""
        return self.run("systemctl", "show", "--value", "--property", name, unit).strip()

    def changed(self) -> dict[str, str]:
        """Each path that differs from this computer's, with its kind."""
        enter = ["nsenter", f"--target={self.init}", "--mount"]
        find = ["find", f"{self.folder}/upper", "-printf", "%P %y %m %U:%G\\n"]
        listing = subprocess.run([*enter, *find], check=True, capture_output=True, text=True)
        rows = [line.split(" ", 1) for line in listing.stdout.splitlines()]
        return {path: what for path, what in rows if path}

    def end(self) -> None:
        """Kill all that runs in it; its mounts end with it."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(PATIENCE_S)
        for cgroup in sorted(self.cgroup.glob("**/"), reverse=True):
            wait_for(f"{cgroup} is empty", lambda cgroup=cgroup: gone(cgroup))


def gone(cgroup: Path) -> bool:
    """Remove a control group; its last processes may still be ending."""
    try:
        cgroup.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
