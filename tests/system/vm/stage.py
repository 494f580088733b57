"""Guests, the daemon and the agent, as several tests set them up."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Self

from seekway_lab.live.daemon import Daemon
from seekway_lab.live.guest import Disk, Guest, GuestGone

from .journal import Entry, entries

MIB = 1 << 20
#: For any command in a guest: a busy computer is slow.
PATIENCE_S = 900.0
#: The kernels of Debian 12 and of its backports.
KERNELS = ("current", "backport")


class Programs(NamedTuple):
    """The programs under test."""

    seekway: Path
    agent: Path

    @property
    def in_guest(self) -> dict[str, Path]:
        """The agent, for guests."""
        return {"seekway-guest": self.agent}


def say(line: str) -> None:
    """Say something on standard error, which `-s` shows at once."""
    print(line, file=sys.stderr)


@contextmanager
def step(name: str) -> Iterator[None]:
    """Say how long a step took, unless it failed."""
    began = time.monotonic()
    yield
    say(f"{time.monotonic() - began:6.1f} s  {name}")


def sparse(path: Path, size: int) -> Path:
    """Make an image without data."""
    with path.open("wb") as file:
        file.truncate(size)
    return path


def until(condition: str, complain: str, tries: int = 600) -> str:
    """A shell command that waits until `condition` is true, for a minute. Then it complains by
    another command, and fails."""
    return (
        f"n=0; until {condition}; do n=$((n+1)); [ $n -lt {tries} ] || {{ {complain}; exit 1; }}; "
        "sleep 0.1; done"
    )


def oopsed(error: Exception) -> bool:
    """Did the guest's kernel end by a fault of its own code?"""
    return isinstance(error, GuestGone) and "---[ end trace " in error.console


def once_more(test: Callable[[Path], None], excused: Callable[[Exception], bool] = oopsed) -> None:
    """Run what a test does with a guest of its own, in a folder of its own. If its kernel ends with
    an oops run it once more, and say so: QEMU 7.2 with several threads breaks an emulated kernel
    now and then (seen: int3, a list of Debian's 6.12 in `percpu_counter_destroy_many`)."""
    for last in (False, True):
        with TemporaryDirectory(prefix="seekway-vm-") as folder:
            try:
                return test(Path(folder))
            except Exception as error:
                if last or not excused(error):
                    raise
                say(f"{error}; once more")


#: In a guest's shell: `$disk` is the disk of a guest that is apart.
FIND_DISK = (
    'for d in /sys/block/vd*; do [ "$(cat $d/serial)" = apart ] && disk=/dev/${d##*/}; done\n'
)


@contextmanager
def apart(
    programs: Programs, kernel: str, folder: Path, *, vcpus: int = 2, one_thread: bool = False
) -> Iterator[Guest]:
    """Boot a guest without the daemon: it has the agent, and a disk of QEMU's own to read from."""
    disk = sparse(folder / "disk.img", 64 * MIB)
    extra = ["-drive", f"file={disk},format=raw,if=none,id=apart"]
    extra += ["-device", "virtio-blk-pci,drive=apart,serial=apart"]
    with Guest(
        "apart",
        kernel=kernel,
        vcpus=vcpus,
        one_thread=one_thread,
        programs=programs.in_guest,
        extra=extra,
    ) as guest:
        yield guest.wait_ready()


class Stage(ExitStack):
    """A guest with the agent, on a daemon that keeps a journal. Its disk lies at sector 0 of an
    emulated device, so that the journal's sectors are the disk's."""

    def __init__(
        self,
        programs: Programs,
        kernel: str,
        folder: Path,
        image: Path,
        device: str,
        vcpus: int = 2,
    ) -> None:
        super().__init__()
        self.folder = folder
        arguments = ["--emulate", device, "--journal", str(folder / "journal")]
        arguments += ["--disk", f"disk={image},lba=0"]
        self.daemon = self.enter_context(Daemon(programs.seekway, folder, arguments))
        disk = Disk(self.daemon.socket("disk.vhost"))
        guest = Guest("stage", [disk], kernel=kernel, vcpus=vcpus, programs=programs.in_guest)
        self.guest = self.enter_context(guest)

    def __enter__(self) -> Self:
        self.guest.wait_ready()
        return self

    def run(self, command: str) -> str:
        """Run a command in the guest that has to succeed."""
        return self.guest.check(command, PATIENCE_S)

    def finish(self) -> list[Entry]:
        """End the guest and the daemon; the journal."""
        self.guest.kill()
        self.daemon.stop()
        return list(entries(self.folder / "journal"))
