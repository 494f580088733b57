"""Writes to an NBD export until it fails, and says what has been flushed; for tests with kills.

/usr/bin/python3 nbd_writer.py URI SEED BLOCKS FIRST_GENERATION

Each generation is several writes in flight at once, then a flush, then a line `flushed N`. A block
says which block and which generation it is of, so that a reader can tell what it has found.
"""

from __future__ import annotations

import random
import struct
import sys

BLOCK = 4096
WRITES = 16


def block_of(block: int, generation: int) -> bytes:
    """What a generation writes into a block of `BLOCK` bytes."""
    return struct.pack("<QQ", block, generation) * (BLOCK // 16)


def plan(seed: int, blocks: int, generation: int) -> list[tuple[int, int]]:
    """The writes of a generation: first block and number of blocks."""
    rng = random.Random(seed * 1_000_003 + generation)
    lengths = [rng.choice((1, 1, 1, 2, 5, 17, 40)) for _ in range(WRITES)]
    return [(rng.randrange(blocks - length), length) for length in lengths]


def write(uri: str, seed: int, blocks: int, generation: int) -> None:
    """Write until the export fails."""
    import nbd

    handle = nbd.NBD()
    handle.connect_uri(uri)
    while True:
        cookies = []
        for at, length in plan(seed, blocks, generation):
            data = b"".join(block_of(block, generation) for block in range(at, at + length))
            cookies.append(handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), at * BLOCK))
        while cookies:
            handle.poll(-1)
            cookies = [cookie for cookie in cookies if not handle.aio_command_completed(cookie)]
        handle.flush()
        print("flushed", generation, flush=True)
        generation += 1


if __name__ == "__main__":
    try:
        write(sys.argv[1], *map(int, sys.argv[2:]))
    except Exception as error:
        print("failed", error, flush=True)
