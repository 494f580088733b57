"""A vhost-user front end without manners: garbage in its rings and messages."""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from pathlib import Path

from conftest import PATIENCE_S
from seekway_lab.live.frontend import FrontEnd, Load

#: How many kinds of garbage there are.
KINDS = 6
SECTOR_BYTES = 512
#: GET_VRING_BASE, which stops a queue.
STOP = 11


class Rude(FrontEnd):
    """A front end with two slots of one sector. It hangs up at the end of its `with` block."""

    def __init__(self, path: Path, *, write: bool) -> None:
        super().__init__(path, Load(SECTOR_BYTES, 2, write=write))

    def __enter__(self) -> Rude:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        for fd in (self.fd, self.kick, self.call):
            os.close(fd)

    def descriptor(self, index: int, address: int, size: int, flags: int, after: int) -> None:
        """Put anything into a descriptor."""
        at = self.DESC + 16 * index
        struct.pack_into("<QIHH", self.memory, at, address, size, flags, after)

    def offer(self, head: int) -> None:
        """Put any head into the available ring."""
        at = self.AVAIL + 4 + 2 * (self.pushed % self.QUEUE)
        struct.pack_into("<H", self.memory, at, head)
        self.pushed = (self.pushed + 1) & 0xFFFF

    def write(self, sector: int, data: bytes) -> None:
        """Write a sector, and wait until it is done."""
        self.memory[self.DATA : self.DATA + SECTOR_BYTES] = data
        self.push(0, sector * SECTOR_BYTES)
        self.ring()
        assert self.done(time.monotonic() + PATIENCE_S) == [0]

    def misbehave(self, kind: int, seed: int) -> None:
        """Say one kind of garbage. The daemon's own tests check its answer."""
        if kind == 0:  # A chain that bites its tail.
            self.push(0, 0)
            self.descriptor(2, self.HEADERS, 16, self.NEXT, 0)
        elif kind == 1:  # Data at the very end of memory, and outside of it.
            flags = self.NEXT | self.DEVICE_WRITES
            self.push(0, 0)
            self.descriptor(1, len(self.memory) - 16, SECTOR_BYTES, flags, 2)
            self.push(1, 0)
            self.descriptor(4, (1 << 64) - 17, SECTOR_BYTES, flags, 5)
        elif kind == 2:  # More entries than the ring has.
            self.pushed = 0x7FFF
        elif kind == 3:  # A head that is no descriptor.
            self.offer(0xFFFF)
        elif kind == 4:  # Noise in descriptors and rings.
            noise = random.Random(seed).randbytes(self.AVAIL + 4)
            self.memory[: len(noise)] = noise
            for head in range(32):
                self.offer(head)
        else:  # A message that is none, with a file that nobody asked for.
            message = struct.pack("<III", 0xDEAD, 0xFFFFFFFF, 64) + b"\xff" * 64
            socket.send_fds(self.socket, [message], [self.kick])
        try:
            self.ring()
            self._send(STOP, struct.pack("<II", 0, 0))
            self.socket.recv(20)
        except OSError:
            pass
