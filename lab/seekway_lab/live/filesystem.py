"""Disk images with an ext4 file system whose files lie where the simulator's guest has them, made
without root and without writing the files' data.

mke2fs makes an empty file system in a sparse file; debugfs enters each file with its one extent,
marked as written, so that a guest reads it from the disk (a hole, or an extent that was only
reserved, would read as zeros without any I/O); e2fsck puts the counters right. It takes a tenth of
a second and a few MiB, and what the files read as are zeros.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from seekway_lab.live.process import LiveError, need, output
from seekway_lab.rng import Rng

PAGE_BYTES, PAGE_SECTORS = 4096, 8
MIB_PAGES = 256
#: At most this many free pages between one file and the next.
FILE_GAP_PAGES = 32
#: Few groups' tables at the front, no journal, no checksums: less to write and to read, and debugfs
#: can enter extents as numbers.
FEATURES = "^has_journal,^resize_inode,^metadata_csum,^64bit,extent,flex_bg"


@dataclass(frozen=True)
class FileSet:
    """Files of one size in a directory of the root: `test_file.0`, `test_file.1`, … as sysbench
    names them.
    """

    directory: str
    count: int
    #: Size of each: a multiple of 4 KiB, at most 128 MiB (one extent).
    file_bytes: int


def make(path: Path, image_bytes: int, sets: Sequence[FileSet], seed: int) -> None:
    """Makes a sparse image with these files. A seed has one layout."""
    placed = lay_out(image_bytes, sets, seed)
    with path.open("wb") as file:
        file.truncate(image_bytes)
    inodes = sum(one.count + 16 for one in sets)
    options = ["-q", "-F", "-t", "ext4", "-b", str(PAGE_BYTES), "-m", "0", "-G", "4096"]
    options += ["-O", FEATURES, "-E", "lazy_itable_init=1", "-N", str(inodes)]
    output("mke2fs", *options, path, package="e2fsprogs")
    script = path.with_suffix(".debugfs")
    script.write_text("".join(f"{line}\n" for line in _entries(sets, placed)))
    output("debugfs", "-w", "-f", script, path, package="e2fsprogs")
    script.unlink()
    # The first check puts the counters of free blocks right, the second has to find nothing.
    fsck = need("e2fsck", "e2fsprogs")
    subprocess.run([fsck, "-fy", path], capture_output=True, check=False)
    output(fsck, "-fn", path, package="e2fsprogs")


def lay_out(image_bytes: int, sets: Sequence[FileSet], seed: int) -> list[list[int]]:
    """First page on the image of each file of each set, as `guest/layout.rs` of the simulator
    places contiguous files behind superblock, inode area and journal, with random gaps.
    """
    draw = Rng(seed)
    pages = image_bytes // PAGE_BYTES
    data = MIB_PAGES + min(max(pages // 64, 8), 64 * MIB_PAGES)
    data += min(max(pages // 32, 16), 128 * MIB_PAGES)
    areas = [one.count * (one.file_bytes // PAGE_BYTES + FILE_GAP_PAGES) for one in sets]
    free = pages - data - sum(areas)
    if free < 0:
        raise LiveError(f"an image's files need {-free * PAGE_BYTES} bytes more")
    cuts = sorted(draw.below(free + 1) for _ in sets)
    placed = []
    for number, (one, cut) in enumerate(zip(sets, cuts, strict=True)):
        page = data + cut + sum(areas[:number])
        files = []
        for _ in range(one.count):
            page += draw.below(FILE_GAP_PAGES)
            files.append(page)
            page += one.file_bytes // PAGE_BYTES
        placed.append(files)
    return placed


def _entries(sets: Sequence[FileSet], placed: Sequence[Sequence[int]]) -> Iterator[str]:
    """Commands of debugfs."""
    for one, files in zip(sets, placed, strict=True):
        pages = one.file_bytes // PAGE_BYTES
        yield f"mkdir {one.directory}"
        for number, block in enumerate(files):
            name = f"{one.directory}/test_file.{number}"
            yield f"write /dev/null {name}"
            fields = {
                "size": one.file_bytes,
                # EXT4_EXTENTS_FL
                "flags": 0x80000,
                "blocks": pages * PAGE_SECTORS,
                # The header: magic 0xf30a, one entry of at most four, depth 0.
                "block[0]": 0x1F30A,
                "block[1]": 4,
                "block[2]": 0,
                # The extent: first block of the file, length, first block on the disk (images are
                # below 16 TiB).
                "block[3]": 0,
                "block[4]": pages,
                "block[5]": block,
            }
            for field, value in fields.items():
                yield f"set_inode_field {name} {field} {value}"
            yield f"setb {block} {pages}"
