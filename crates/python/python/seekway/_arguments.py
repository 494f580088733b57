"""From Python's arguments to those of the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from seekway._errors import SeekwayError

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

#: Options whose values form one list with commas; for others each value is an option.
_LISTS = ("policies", "weights", "cache", "prefetch", "limits", "vcpu", "columns")
#: Options without a meaning here: results come back as objects.
_NOT_HERE = ("format", "report", "journal")

#: A CPU's file of a blktrace; the group is the same for all files of the trace.
_CPU_FILE = re.compile(r"(.*\.blktrace)\.\d{1,4}(\.(gz|bz2|xz|zst|zstd))?")


def texts(value: Paths | None) -> list[str]:
    """One or many paths or words as a list of text."""
    if value is None:
        return []
    if isinstance(value, (str, os.PathLike)):
        return [os.fspath(value)]
    return [os.fspath(item) for item in value]


def traces_of(files: Iterable[str]) -> list[str]:
    """The files without those of a blktrace of which another CPU's file is there already.

    The name of one CPU's file stands for all. The same name twice is two VMs.
    """
    first: dict[str, str] = {}
    kept = []
    for file in files:
        found = _CPU_FILE.fullmatch(file)
        if found is None or first.setdefault(found[1], file) == file:
            kept.append(file)
    return kept


def options(more: Mapping[str, Any]) -> list[str]:
    """``key=value`` as ``--key=value``; ``True`` is the option alone, ``None`` not one."""
    arguments: list[str] = []
    for key, value in more.items():
        if key in _NOT_HERE or not key.isidentifier():
            raise SeekwayError(f"{key}: not an option here")
        flag = "--" + key.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            arguments.append(flag)
        elif isinstance(value, Iterable) and not isinstance(value, (str, os.PathLike)):
            listed = [_text(item) for item in value]
            if key in _LISTS:
                listed = [",".join(listed)]
            arguments += [f"{flag}={item}" for item in listed]
        else:
            arguments.append(f"{flag}={_text(value)}")
    return arguments


def _text(value: object) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
