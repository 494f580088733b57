"""A `seekway serve` of one's own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from seekway_lab.live.process import LiveError, Process

#: To open its images, to answer, and to end.
PATIENCE_S = 300.0


def disks(folder: Path, sizes: Mapping[str, int], place: int = 0) -> list[str]:
    """Options of `serve` for images that lie one behind the other, from sector `place` on.

    Those that are missing are made, sparse: zeros are read, in the emulated device's time.
    """
    arguments = []
    for name, size in sizes.items():
        image = folder / f"{name}.img"
        if not image.exists():
            image.touch()
            os.truncate(image, size)
        arguments += ["--disk", f"{name}={image},lba={place}"]
        place += size // 512
    return arguments


class Daemon:
    """A daemon with its sockets and its log in a folder. It ends with its `with` block, by `kill`,
    and with the process that started it.
    """

    def __init__(self, program: str | Path, folder: Path, arguments: Sequence[str]) -> None:
        """Runs `PROGRAM serve --listen FOLDER ARGUMENTS…` and waits until it serves.

        What it prints is in `FOLDER/serve.log`.
        """
        self.program, self.folder = str(program), folder
        self.log = folder / "serve.log"
        self.command = [self.program, "serve", "--listen", str(folder), *arguments]
        folder.mkdir(parents=True, exist_ok=True)
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Starts it, also again after its end."""
        # Its notes of lost writes are not this computer's.
        own = {"STATE_DIRECTORY": str(self.folder.absolute())}
        self.process = Process(
            self.command, self.log, environment=own, stdout=subprocess.PIPE, package="seekway"
        )
        try:
            self._wait_ready()
        except BaseException:
            self.kill()
            raise

    def _wait_ready(self) -> None:
        pipe = self.process.child.stdout
        assert pipe is not None
        # At its end the daemon closes this; a line "ready" says that it serves.
        for line in pipe:
            if line.strip() == b"ready":
                return
        status = self.process.child.wait(PATIENCE_S)
        raise LiveError(f"seekway: ended ({status}) before it was ready:\n{self.said()}")

    def restart(self) -> None:
        """Kills it if it runs, and starts it with the same arguments.

        Tries for a while, as a supervisor would: a killed program's io_uring lets go of the images'
        locks only a moment after the program has ended.
        """
        until = time.monotonic() + PATIENCE_S
        while True:
            self.kill()
            try:
                return self.start()
            except LiveError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def ask(self, command: str, **arguments: Any) -> Any:
        """The result of a command of the control socket (docs/json.md)."""
        with socket.socket(socket.AF_UNIX) as end:
            end.settimeout(PATIENCE_S)
            try:
                end.connect(str(self.folder / "control.sock"))
                end.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
                line = end.makefile("rb").readline()
                answer = json.loads(line)
            except (OSError, ValueError) as error:
                raise LiveError(f"seekway: {command}: {error}\n{self.said()}") from error
        if "error" in answer:
            raise LiveError(f"seekway: {command}: {answer['error']}")
        return answer["result"]

    def ctl(self, *arguments: str) -> str:
        """Runs `seekway ctl`, and returns its output."""
        control = str(self.folder / "control.sock")
        command = [self.program, "ctl", "--socket", control, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def status(self) -> Any:
        """The daemon's status, as `seekway ctl status --format json` prints it."""
        return self.ask("status")

    def disk(self, name: str) -> Any:
        """The status of one disk."""
        disks = [disk for device in self.status()["devices"] for disk in device["disks"]]
        return next(disk for disk in disks if disk["name"] == name)

    def set_policy(self, policy: str) -> None:
        """Gives all devices another policy."""
        self.ask("policy", policy=policy)

    def socket(self, name: str) -> Path:
        """Path of a socket, such as `web.nbd` or `web.vhost`."""
        return self.folder / name

    def prefer(self) -> None:
        """Lets its threads run before others (nice -20), as far as the kernel's fair scheduler does
        that: a daemon that emulates a device is the device, and that waits for no processor. Only
        root may; others change nothing.
        """
        if os.geteuid() != 0:
            return
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            try:
                # Threads that start later inherit from these.
                os.setpriority(os.PRIO_PROCESS, int(thread.name), -20)
            except ProcessLookupError:
                continue

    def said(self) -> str:
        """The end of its output."""
        return self.process.said()

    def kill(self) -> None:
        """SIGKILL, as a crash would be."""
        self.process.kill()

    def stop(self) -> None:
        """SIGTERM, and waits for its orderly end."""
        status = self.process.stop(PATIENCE_S)
        if status is None:
            raise LiveError(f"seekway: runs {PATIENCE_S:.0f} s after SIGTERM")
        if status != 0:
            raise LiveError(f"seekway: ended with {status} on SIGTERM:\n{self.said()}")
