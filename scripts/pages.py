"""Shared by the scripts that write tables into pages."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = os.environ.get("SEEKWAY", str(ROOT / "target" / "release" / "seekway"))


def operator_settings(key: str, value: str) -> list[str]:
    """Policies as an operator sets them for the arena's device with this name or profile."""
    scenes = tomllib.loads((ROOT / "lab/seekway_lab/arena/scenes.toml").read_text())
    return next(entry["set"] for entry in scenes["device"] if entry[key] == value)


def table(titles: list[str], rows: list[list[str]], numbers: bool = True) -> str:
    """A table in Markdown; the first column is text."""
    align = [":--", *("--:" if numbers else ":--" for _ in titles[1:])]
    return "".join(f"| {' | '.join(row)} |\n" for row in [titles, align, *rows])


def written(path: Path, name: str, new: str) -> None:
    """Write the page with `new` between its markers of this name."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, found, rest = path.read_text().partition(begin)
    _, ends, tail = rest.partition(end)
    if not found or not ends:
        sys.exit(f"{path}: no lines {begin.strip()} and {end}")
    path.write_text(head + begin + new + end + tail)
