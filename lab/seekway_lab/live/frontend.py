"""VMs without guests: vhost-user front ends in a closed loop, each in a process of its own."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import random
import select
import signal
import socket
import struct
import time
from array import array
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from seekway_lab.live.process import LiveError
from seekway_lab.rng import mix64

BLOCK_BYTES = 4096
#: How long a server may be silent.
PATIENCE_S = 60.0

#: Of a request: when it began and ended.
Requests = list[tuple[float, float]]


@dataclass(frozen=True)
class Load:
    """Requests in a closed loop."""

    bytes: int
    depth: int
    #: Requests go on in order from this number of places; at random if 0.
    streams: int = 0
    write: bool = False
    #: Requests lie in this much of the image's begin; 0: anywhere.
    span_bytes: int = 0
    #: From a completion to the next request.
    pause_s: float = 0.0
    #: The image is one of `write_image`: reads are checked, and writes keep it so.
    stamped: bool = False


def stamp(offset: int) -> bytes:
    """The first eight bytes of the block at a byte offset (SplitMix64's finalizer)."""
    return mix64(offset + 1).to_bytes(8, "little")


def write_image(path: Path, image_bytes: int) -> None:
    """Writes an image whose blocks say where they belong, so that no file system answers from a
    hole and no server with another block; waits until it is on the disk.
    """
    rest = random.Random(1).randbytes(BLOCK_BYTES - 8)
    with path.open("wb") as file:
        for offset in range(0, image_bytes, BLOCK_BYTES):
            file.write(stamp(offset) + rest)
        file.flush()
        os.fsync(file.fileno())


class FrontEnd:
    """A vhost-user-blk front end with one queue."""

    QUEUE = 512
    DESC, AVAIL, USED, HEADERS, STATUS, DATA = 0, 0x2000, 0x3000, 0x5000, 0x8000, 0x10000
    #: Addresses of the front end itself, which the rings are told by.
    USER = 0x7F0000000000
    #: Features. A disk whose driver knows no flush has to make each write last: it is synchronous.
    VERSION_1, FLUSH = 1 << 32, 1 << 9
    #: Of descriptors, and of a request.
    NEXT, DEVICE_WRITES, OUT = 1, 2, 1

    def __init__(self, path: Path, load: Load) -> None:
        """Connects to a disk's socket, with as many slots as the load is deep."""
        self.load = load
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(str(path))
        # Data that is not checked goes to one buffer.
        self.slot_bytes = load.bytes if load.stamped else 0
        size = self.DATA + max(load.bytes, self.slot_bytes * load.depth)
        self.fd = os.memfd_create("front-end")
        os.ftruncate(self.fd, size)
        self.memory = mmap.mmap(self.fd, size)
        self.kick, self.call = (os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2))
        self.pushed = self.taken = 0
        self._available = ctypes.c_uint16.from_buffer(self.memory, self.AVAIL + 2)
        self._connect(size)
        for slot in range(load.depth):
            self._chain(slot)

    def _send(self, request: int, body: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        self.socket.sendmsg([struct.pack("<III", request, 1, len(body)) + body], files)

    def _ask(self, request: int) -> int:
        self._send(request)
        reply = b""
        while len(reply) < 20:
            part = self.socket.recv(20 - len(reply))
            if not part:
                raise ConnectionResetError("the server has closed the connection")
            reply += part
        return int(struct.unpack("<Q", reply[12:])[0])

    def _connect(self, size: int) -> None:
        """Messages by their numbers in QEMU's docs/interop/vhost-user.rst."""
        self._send(3)
        offered = self._ask(1)
        # No protocol feature: then rings are enabled from the beginning.
        self._send(2, struct.pack("<Q", (self.VERSION_1 | self.FLUSH) & offered))
        region = struct.pack("<IIQQQQ", 1, 0, 0, size, self.USER, 0)
        self._send(5, region, (self.fd,))
        self._send(8, struct.pack("<II", 0, self.QUEUE))
        self._send(10, struct.pack("<II", 0, 0))
        places = (self.DESC, self.USED, self.AVAIL)
        addresses = (self.USER + place for place in places)
        self._send(9, struct.pack("<IIQQQQ", 0, 0, *addresses, 0))
        self._send(13, struct.pack("<Q", 0), (self.call,))
        self._send(12, struct.pack("<Q", 0), (self.kick,))

    def _chain(self, slot: int) -> None:
        """Header, data, status: the descriptors of a slot."""
        data = self.DATA + slot * self.slot_bytes
        flags = self.NEXT if self.load.write else self.NEXT | self.DEVICE_WRITES
        parts = [
            (self.HEADERS + 16 * slot, 16, self.NEXT),
            (data, self.load.bytes, flags),
            (self.STATUS + slot, 1, self.DEVICE_WRITES),
        ]
        for n, (address, size, flag) in enumerate(parts):
            at = self.DESC + 16 * (3 * slot + n)
            struct.pack_into("<QIHH", self.memory, at, address, size, flag, 3 * slot + n + 1)

    def push(self, slot: int, offset: int) -> None:
        """Puts a request for a byte offset into the queue; `ring` tells the server."""
        kind = self.OUT if self.load.write else 0
        struct.pack_into("<IIQ", self.memory, self.HEADERS + 16 * slot, kind, 0, offset // 512)
        self.memory[self.STATUS + slot] = 0xFF
        if self.load.write and self.load.stamped:
            data = self.DATA + slot * self.slot_bytes
            self.memory[data : data + 8] = stamp(offset)
        at = self.AVAIL + 4 + 2 * (self.pushed % self.QUEUE)
        struct.pack_into("<H", self.memory, at, 3 * slot)
        self.pushed = (self.pushed + 1) & 0xFFFF

    def ring(self) -> None:
        """Tells the server of new requests."""
        # In one store: the server looks at it meanwhile.
        self._available.value = self.pushed
        os.eventfd_write(self.kick, 1)

    def check(self, slot: int, offset: int) -> None:
        """Checks a slot's data against the image."""
        data = self.DATA + slot * self.slot_bytes
        if self.memory[data : data + 8] != stamp(offset):
            raise OSError(f"other data than the image has at byte {offset}")

    def done(self, until: float) -> list[int]:
        """Slots whose requests are done; waits for one up to a time."""
        while True:
            used = struct.unpack_from("<H", self.memory, self.USED + 2)[0]
            if used != self.taken:
                break
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no answer within {PATIENCE_S:.0f} s")
            if select.select([self.call], [], [], left)[0]:
                os.eventfd_read(self.call)
        slots = []
        while self.taken != used:
            at = self.USED + 4 + 8 * (self.taken % self.QUEUE)
            slot = struct.unpack_from("<I", self.memory, at)[0] // 3
            if self.memory[self.STATUS + slot]:
                raise OSError(f"a request failed: status {self.memory[self.STATUS + slot]}")
            slots.append(slot)
            self.taken = (self.taken + 1) & 0xFFFF
        return slots


def run(path: Path, load: Load, image_bytes: int, begin: float, end: float) -> Requests:
    """Makes requests from `begin` to `end`, and waits for the last ones."""
    vm = FrontEnd(path, load)
    blocks = (load.span_bytes or image_bytes) // load.bytes
    draw = random.Random(7)
    at = [stream * blocks // load.streams for stream in range(load.streams)]
    began, offsets = [0.0] * load.depth, [0] * load.depth
    requests: Requests = []

    def start(slot: int, now: float) -> None:
        if load.streams:
            stream = slot % load.streams
            block = at[stream] = (at[stream] + 1) % blocks
        else:
            block = int(draw.random() * blocks)
        began[slot], offsets[slot] = now, block * load.bytes
        vm.push(slot, offsets[slot])

    time.sleep(max(0.0, begin - time.monotonic()))
    now = time.monotonic()
    for slot in range(load.depth):
        start(slot, now)
    vm.ring()
    outstanding = load.depth
    while outstanding:
        slots = vm.done(now + PATIENCE_S)
        now = time.monotonic()
        outstanding -= len(slots)
        requests += [(began[slot], now) for slot in slots]
        if load.stamped and not load.write:
            for slot in slots:
                vm.check(slot, offsets[slot])
        if load.pause_s:
            time.sleep(load.pause_s)
            now = time.monotonic()
        if now < end:
            for slot in slots:
                start(slot, now)
            outstanding += len(slots)
            vm.ring()
    return requests


#: A VM's socket and load, and its begin and end in seconds from now.
Vm = tuple[Path, Load, float, float]


def together(vms: Mapping[str, Vm], image_bytes: int) -> dict[str, Requests]:
    """Runs VMs at the same time; their requests, with times from the start."""
    zero = time.monotonic() + 0.2
    found: dict[str, Requests] = {}
    with ExitStack() as ended:
        ends: dict[str, Connection] = {}
        for vm, (path, load, begin, end) in vms.items():
            ends[vm], there = multiprocessing.Pipe(duplex=False)
            args = (there, path, load, image_bytes, zero + begin, zero + end)
            worker = multiprocessing.Process(target=_worker, args=args, daemon=True)
            worker.start()
            ended.callback(worker.join)
            ended.callback(worker.terminate)
            there.close()
        for vm, pipe in ends.items():
            try:
                made = pipe.recv()
            except EOFError:
                made = "its process has ended"
            if isinstance(made, str):
                raise LiveError(f"{vm}: {made}")
            found[vm] = [(began - zero, done - zero) for began, done in made]
    return found


def _worker(
    pipe: Connection, path: Path, load: Load, image_bytes: int, begin: float, end: float
) -> None:
    """A VM's process. An interrupt is the parent's, which ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        pipe.send(run(path, load, image_bytes, begin, end))
    except OSError as error:
        pipe.send(str(error))
