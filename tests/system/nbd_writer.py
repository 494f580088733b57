"""Writes to an NBD export until it fails, and reports the flushed blocks; for tests with kills.

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
    """A generation's contents of a block of `BLOCK` bytes."""
    return struct.pack("<QQ", block, generation) * (BLOCK // 16)


def of_blocks(first: int, length: int, generation: int) -> bytearray:
    """A generation's contents of neighbouring blocks."""
    return bytearray().join(block_of(n, generation) for n in range(first, first + length))


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
        writes = plan(seed, blocks, generation)
        # They have to live until their writes have ended.
        buffers = [nbd.Buffer.from_bytearray(of_blocks(*one, generation)) for one in writes]
        sent = zip(buffers, writes, strict=True)
        cookies = [handle.aio_pwrite(buffer, at * BLOCK) for buffer, (at, _) in sent]
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
