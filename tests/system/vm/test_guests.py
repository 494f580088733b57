"""Real QEMU guests on the real daemon. They boot once, and the tests are steps in their lives, in
the order of this file: what comes after one that fails is skipped.

Every guest has a disk of its own, and what it writes there carries its own byte, so that data of
one in another's image would be seen.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from seekway_lab.live.daemon import Daemon
from seekway_lab.live.guest import Disk, Guest
from seekway_lab.live.process import LiveError, wait_for

from .front import KINDS, Rude
from .stage import MIB, PATIENCE_S, Programs, say, sparse, step

#: Size of each image at the start.
DISK_BYTES = 512 * MIB
#: Each disk with the byte that its guest fills its blocks with. The last is the hostile client's.
DISKS = {"a": 0xA1, "b": 0xB2, "c": 0xC3, "d": 0xD4, "e": 0xE5}
#: The disk whose guest sees blocks of 4096 bytes; the others see 512.
BLOCKS_4096 = "c"
#: Where fio works, from the start of a disk; where single records are written; where blocks are
#: discarded.
FIO_BYTES, RECORDS_AT, DISCARD_AT = 32 * MIB, 64 * MIB, 128 * MIB


class World:
    """The daemon, its images and the guests on it."""

    def __init__(self, programs: Programs, folder: Path, stack: ExitStack) -> None:
        self.programs, self.folder, self.stack = programs, folder, stack
        self.guests: dict[str, Guest] = {}
        # The first step that failed.
        self.failed = ""
        for name in DISKS:
            sparse(self.image(name), DISK_BYTES)
        self.serve("--journal", str(folder / "journal"))

    def serve(self, *arguments: str) -> None:
        """Start the daemon."""
        disks = []
        for name in DISKS:
            blocks = ",block_size=4096" if name == BLOCKS_4096 else ""
            disks += ["--disk", f"{name}={self.image(name)}{blocks}"]
        daemon = Daemon(self.programs.seekway, self.folder, [*arguments, *disks])
        self.daemon = self.stack.enter_context(daemon)

    def boot(self, *names: str) -> None:
        """Boot guests together, each on the disk of its name."""
        for name in names:
            disk = Disk(self.daemon.socket(f"{name}.vhost"), reconnect=True)
            guest = Guest(name, [disk], reboots=True)
            self.guests[name] = self.stack.enter_context(guest)
        for name in names:
            self.guests[name].wait_ready()

    def run(self, guest: str, command: str) -> str:
        """Run a shell command that has to succeed in a guest."""
        return self.guests[guest].check(command, PATIENCE_S)

    def ops(self, disk: str, op: str) -> Any:
        """Counters of a disk by one operation: requests, bytes, errors."""
        return self.daemon.disk(disk)["ops"][op]

    def image(self, disk: str) -> Path:
        """A disk's image."""
        return self.folder / f"{disk}.img"

    def read_image(self, disk: str, at: int, size: int) -> bytes:
        """A part of an image as the host sees it."""
        with self.image(disk).open("rb") as file:
            data = os.pread(file.fileno(), size, at)
        assert len(data) == size, "the image is too short"
        return data

    def verify(self, *names: str) -> None:
        """Have fio verify what it writes, in all these guests at once."""
        with ThreadPoolExecutor(len(names)) as threads:
            for done in [threads.submit(self.run, name, fio(name)) for name in names]:
                done.result()
        for name in names:
            self.check_owner(name)

    def during_fio(self, more: str, meanwhile: Callable[[], None]) -> None:
        """While fio verifies in guest a, call `meanwhile` over and over, at least once."""
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(self.run, "a", fio("a", more))
            meanwhile()
            while not running.done():
                meanwhile()
        running.result()

    def check_owner(self, disk: str) -> None:
        """Every block of the region that fio works in is empty or the guest's own."""
        image, own, written = self.read_image(disk, 0, FIO_BYTES), DISKS[disk], 0
        for n, last in enumerate(image[4095::4096]):
            says = f"disk {disk}, block {n}: holds {last:#04x}, its guest writes {own:#04x}"
            assert last in (0, own), says
            written += last == own
        assert written > 512, f"disk {disk}: {written} blocks written, expected 2 MiB"

    def check_records(self, disk: str, last: int) -> None:
        """All records up to `last` are in the image."""
        for n in range(last + 1):
            sector = self.read_image(disk, RECORDS_AT + n * 512, 512)
            says = f"disk {disk}: record {n} of {last} was acknowledged and is not in the image"
            assert sector.startswith(b"record %08d" % n), says

    def last_event(self, guest: str, patience_s: float, last: int = 0) -> int:
        """The number of the last record that a guest has reported."""
        while True:
            try:
                line = self.guests[guest].event(patience_s)
            except LiveError:
                return last
            last = int(line)


def fio(guest: str, more: str = "") -> str:
    """fio writes and reads at random, checks every block that it reads, and fills blocks with the
    guest's byte."""
    return (
        "fio --name=verify --filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=16 "
        f"--rw=randrw --bs=16k --size={FIO_BYTES} --verify=crc32c --verify_fatal=1 "
        f"--verify_pattern={DISKS[guest]:#04x} --output=/tmp/fio.log {more} || "
        "{ tail -n 40 /tmp/fio.log; dmesg | tail -n 20; exit 1; }"
    )


@pytest.fixture(scope="module")
def whole(programs: Programs) -> Iterator[World]:
    """A daemon with all disks, and two guests."""
    with TemporaryDirectory(prefix="seekway-vm-") as folder, ExitStack() as stack:
        world = World(programs, Path(folder), stack)
        with step("two guests boot"):
            world.boot("a", "b")
        yield world


@pytest.fixture
def world(request: pytest.FixtureRequest, whole: World) -> Iterator[World]:
    """The world for one step."""
    if whole.failed:
        pytest.skip(f"{whole.failed} has failed")
    failures = request.session.testsfailed
    yield whole
    if request.session.testsfailed > failures:
        whole.failed = request.node.name
        say(f"the daemon said:\n{whole.daemon.said()}")


def test_fio_verifies_what_it_writes(world: World) -> None:
    world.verify("a")
    for op in ("read", "write"):
        done = world.ops("a", op)
        assert done["bytes"] >= 8 * MIB and done["errors"] == 0, f"{op}: {done}"


def test_a_flush_arrives(world: World) -> None:
    before = world.ops("a", "flush")["requests"]
    for _ in range(3):
        world.run("a", "dd if=/dev/zero of=/dev/vda bs=4k count=1 seek=16384 conv=notrunc,fsync")
    flushes = world.ops("a", "flush")["requests"] - before
    assert flushes >= 3, f"3 fsyncs made {flushes} flushes"


def test_a_discard_frees_blocks_of_the_host(world: World) -> None:
    at, mib = DISCARD_AT // MIB, 16
    write = f"dd if=/dev/urandom of=/dev/vda bs=1M count={mib} seek={at} conv=fsync"
    world.run("a", write)
    full = world.image("a").stat().st_blocks
    world.run("a", f"blkdiscard -o {DISCARD_AT} -l {mib * MIB} /dev/vda")
    freed = (full - world.image("a").stat().st_blocks) * 512
    assert freed >= (mib - 1) * MIB, f"{freed} bytes freed of {mib} MiB"
    image = world.read_image("a", DISCARD_AT, mib * MIB)
    assert not any(image), "discarded blocks of the image hold data"
    # The guest's page cache is asked for nothing: the disk itself.
    read = f"dd if=/dev/vda bs=1M skip={at} count={mib} iflag=direct 2>/dev/null"
    left = world.run("a", rf"{read} | tr -d '\0' | wc -c").strip()
    assert left == "0", f"the guest reads {left} bytes that are not 0"


def test_a_guest_sees_its_disk_grow(world: World) -> None:
    size = 2 * DISK_BYTES
    world.daemon.ask("resize", disk="a", size_bytes=size)
    world.run(
        "a",
        f'for n in $(seq 300); do [ "$(cat /sys/block/vda/size)" = {size // 512} ] && exit 0; '
        "sleep 0.1; done; cat /sys/block/vda/size; exit 1",
    )
    # The part behind the old end can be written.
    last = size // 4096 - 1
    write = f"dd if=/dev/urandom of=/dev/vda bs=4k count=1 seek={last} oflag=direct"
    world.run("a", write)
    assert any(world.read_image("a", size - 4096, 4096)), "the new end was not written"


def test_two_guests_verify_at_once(world: World) -> None:
    world.verify("a", "b")


def test_the_policy_changes_under_load(world: World) -> None:
    listed = [str(world.programs.seekway), "list", "policies", "--format", "json"]
    policies = [p["name"] for p in json.loads(subprocess.check_output(listed, text=True))]
    changes = 0

    def change() -> None:
        nonlocal changes
        for policy in policies:
            world.daemon.set_policy(policy)
            changes += 1
            time.sleep(0.05)

    world.during_fio("--loops=3", change)
    world.check_owner("a")
    errors = world.ops("a", "read")["errors"] + world.ops("a", "write")["errors"]
    assert errors == 0, f"{errors} errors in {changes} changes of policy"
    world.daemon.set_policy("pregather")


def test_a_hostile_neighbour(world: World) -> None:
    rounds = 0

    def attack() -> None:
        nonlocal rounds
        for kind in range(KINDS):
            with Rude(world.daemon.socket("e.vhost"), write=kind != 1) as front:
                front.misbehave(kind, rounds)
            # Its requests may wait behind a's. A disk takes 64 connections, and connections that
            # are being closed count.
            closed = "disk e has connections left"
            wait_for(closed, lambda: world.daemon.disk("e")["ports"] == 0, PATIENCE_S)
        rounds += 1

    world.during_fio("", attack)
    world.check_owner("a")
    # The disk itself serves on.
    good = bytes([DISKS["e"]]) * 512
    with Rude(world.daemon.socket("e.vhost"), write=True) as front:
        front.write(7, good)
        assert world.read_image("e", 7 * 512, 512) == good


def test_a_reboot(world: World) -> None:
    read = "dd if=/dev/vda bs=1M count=32 2>/dev/null | md5sum"
    before = world.run("b", read)
    world.guests["b"].reset()
    world.guests["b"].wait_ready()
    assert world.run("b", read) == before
    world.run("b", fio("b"))


#: The guest writes records, each durable before it reports it, until it is told otherwise: a
#: numbered line in a sector of its own.
RECORDER = (
    "n=0; while true; do printf 'record %08d' $n | "
    f"dd of=/dev/vda bs=512 seek=$(({RECORDS_AT // 512}+n)) conv=sync,notrunc,fsync "
    "2>/dev/null || break; echo $n >/dev/events; n=$((n+1)); done"
)


def test_qemu_dies_in_mid_write(world: World) -> None:
    world.run("b", f"({RECORDER}) >/dev/null 2>&1 &")
    last = 0
    while last < 25:
        last = int(world.guests["b"].event(PATIENCE_S))
    world.guests["b"].kill()
    # Records that it reported before it died.
    last = world.last_event("b", 5, last)
    world.check_records("b", last)
    assert world.daemon.process.ended() is None, "the daemon is gone"
    world.run("a", "dd if=/dev/vda of=/dev/null bs=1M count=8 iflag=direct")
    # A new guest finds the same disk, and it works.
    world.boot("b")
    shown = world.run("b", f"dd if=/dev/vda bs=512 skip={RECORDS_AT // 512 + last} count=1")
    assert f"record {last:08}" in shown
    world.run("b", fio("b"))


def test_the_journal_replays(world: World) -> None:
    """The daemon ends in order, and its journals replay; guests wait meanwhile and go on with its
    successor, which has a host cache."""
    world.daemon.stop()
    journals = list((world.folder / "journal").iterdir())
    for path in journals:
        replay = [str(world.programs.seekway), "replay", str(path)]
        done = subprocess.run(replay, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        say(f"          {done.stdout.strip()}")
    assert len(journals) == 1, "journals of one device"
    world.serve("--cache", "64MiB", "--prefetch", "vio")
    world.run("a", fio("a"))
    world.run("b", fio("b"))


def test_writes_are_seen_through_the_hosts_cache(world: World) -> None:
    """Through a cache that holds less than what is read: random writes are verified while another
    process reads the same blocks in sequence and has them prefetched; a discard, and what is
    written after it, are seen."""
    world.run(
        "a",
        "(while true; do dd if=/dev/vda of=/dev/null bs=64k count=1536 iflag=direct; done) "
        ">/dev/null 2>&1 & echo $! >/tmp/sequence",
    )
    world.run("a", fio("a", "--size=96M --io_size=24M --loops=2"))
    world.run("a", "kill $(cat /tmp/sequence); killall dd; true")
    world.check_owner("a")
    mib, at = 8, DISCARD_AT // MIB
    read = f"dd if=/dev/vda bs=1M skip={at} count={mib} iflag=direct 2>/dev/null | md5sum"
    write = (
        f"dd if=/dev/urandom of=/tmp/new bs=1M count={mib} && md5sum </tmp/new >/tmp/sum && "
        f"dd if=/tmp/new of=/dev/vda bs=1M seek={at} oflag=direct"
    )
    same = f'[ "$({read})" = "$(cat /tmp/sum)" ]'
    world.run("a", f"({write}) 2>/dev/null && {same} && {same}")
    # The cached blocks are gone, and zeros come in their place.
    zeros = f"dd if=/dev/zero bs=1M count={mib} 2>/dev/null | md5sum >/tmp/sum"
    discard = f"blkdiscard -o {DISCARD_AT} -l {mib * MIB} /dev/vda"
    world.run("a", f"{discard} && {zeros} && {same} && {same}")
    world.run("a", f"({write}) 2>/dev/null && {same} && {same}")
    usage = world.daemon.disk("a")["cache"]
    worked = usage["hit_bytes"] > MIB and usage["prefetched_bytes"] > MIB
    assert worked, f"the cache had nothing to do: {usage}"


def test_the_daemon_dies_in_mid_write(world: World) -> None:
    world.run("b", f"({RECORDER}) >/dev/null 2>&1 & echo $! >/tmp/recorder")
    kills = 0

    def kill() -> None:
        nonlocal kills
        if kills == 3:
            return time.sleep(0.05)
        # Let it serve for a while, or there is nothing in flight to lose; 10 s at most, for fio may
        # have no reads left.
        enough, until = world.ops("a", "read")["requests"] + 100, time.monotonic() + 10
        while world.ops("a", "read")["requests"] < enough and time.monotonic() < until:
            time.sleep(0.02)
        world.daemon.kill()
        world.daemon.restart()
        kills += 1

    world.during_fio("--loops=3", kill)
    assert kills > 1, f"{kills} kills while fio ran"
    say(f"          killed {kills} times")
    world.check_owner("a")
    world.run("b", "kill $(cat /tmp/recorder); dmesg | grep 'I/O error' && exit 1; true")
    world.run("a", "dmesg | grep 'I/O error' && exit 1; true")
    world.check_records("b", world.last_event("b", 2))


def test_two_more_guests_boot(world: World) -> None:
    world.boot("c", "d")


def test_guests_see_the_block_sizes_of_their_disks(world: World) -> None:
    """Each guest's kernel has the block size of its disk, and writes what is smaller as whole
    blocks."""
    for name in ("c", "d"):
        seen = world.run(name, "cat /sys/block/vda/queue/logical_block_size").strip()
        assert seen == ("4096" if name == BLOCKS_4096 else "512"), f"guest {name}"
        small = "dd if=/dev/urandom of=/dev/vda bs=512 count=1 seek=131073 conv=notrunc,fsync"
        world.run(name, small)
        assert world.ops(name, "write")["errors"] == 0, f"guest {name}: a write failed"


def test_four_guests_verify_at_once(world: World) -> None:
    world.verify("a", "b", "c", "d")


def test_the_daemon_ends_when_asked(world: World) -> None:
    for guest in world.guests.values():
        guest.kill()
    world.daemon.stop()
