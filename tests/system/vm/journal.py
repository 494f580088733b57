"""Entries of the daemon's journal, as `crates/stack/src/journal.rs` says what its lines hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LINE = re.compile(
    r"\d+ (?:(switch) (\S+)|(submit) \d+ (\w) \w+ (\d+)\+[1-9]\d* tag=(\d+) "
    r"|(issue) \d+ (\w)\S* (\d+)\+)"
)


class Entry(NamedTuple):
    """A guest's request (`submit`), a command to the device (`issue`), or a change of policy
    (`switch`)."""

    what: str
    policy: str = ""
    # R, W, D, Z.
    op: str = ""
    sector: int = 0
    # 0: none.
    tag: int = 0


def entries(folder: Path) -> Iterator[Entry]:
    """Read all journals of a folder."""
    for path in sorted(folder.iterdir()):
        with path.open() as lines:
            for line in lines:
                if not (found := LINE.match(line)):
                    continue
                if found[1]:
                    yield Entry("switch", policy=found[2])
                elif found[3]:
                    yield Entry("submit", op=found[4], sector=int(found[5]), tag=int(found[6]))
                else:
                    yield Entry("issue", op=found[8], sector=int(found[9]))
