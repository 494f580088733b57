"""Recorded rows, `docs/experiments/results/PAPER.csv`, and how new ones differ from them."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TextIO

#: The columns.
COLUMNS = ["experiment", "row", "paper", "ours", "least", "largest", "unit", "verdict", "asked"]
COLUMNS += ["why"]
#: Columns that decide whether two rows are equal: the texts in `why` do not.
COMPARED = COLUMNS[2:-1]

#: A row as text, by its columns.
Record = dict[str, str]


class LabError(Exception):
    """A mistake that the user can mend."""


def digits(value: float | None) -> str:
    """A number with at most six significant digits and without an exponent; "" for none."""
    if value is None or math.isnan(value):
        return ""
    return format(Decimal(f"{value:.6g}"), "f")


def read(path: Path) -> list[Record]:
    """The rows of a file."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != COLUMNS:
            raise LabError(f"{path}: other columns than {','.join(COLUMNS)}")
        return list(reader)


def write(to: TextIO, records: Iterable[Mapping[str, str]], more: Iterable[str] = ()) -> None:
    """Writes rows as CSV, with more columns at the end."""
    out = csv.DictWriter(to, [*COLUMNS, *more], lineterminator="\n")
    out.writeheader()
    out.writerows(records)


def replace(path: Path, new: Iterable[Record]) -> None:
    """Replaces a file's rows of the experiments that these rows are of; a new file is made."""
    made = list(new)
    experiments = {row["experiment"] for row in made}
    old = read(path) if path.exists() else []
    kept = [row for row in old if row["experiment"] not in experiments]
    with path.open("w", newline="") as file:
        write(file, sorted([*kept, *made], key=lambda row: row["experiment"]))


def differences(
    made: Iterable[Record], recorded: Iterable[Record], compared: Iterable[str] | None = COMPARED
) -> dict[str, list[str]]:
    """New rows beside recorded ones: the names of those that are `equal`, that `differ` (with what
    does), that are `missing` now and that are `new`. `compared`: columns; all of a row if None.
    """
    new = {(row["experiment"], row["row"]): row for row in made}
    found: dict[str, list[str]] = {"equal": [], "differ": [], "missing": [], "new": []}
    for row in recorded:
        now = new.pop((row["experiment"], row["row"]), None)
        name = f"{row['experiment']}: {row['row']}"
        if now is None:
            found["missing"].append(name)
            continue
        unlike = [c for c in (row if compared is None else compared) if row[c] != now.get(c)]
        others = [f"{c} was {row[c] or 'none'}, is {now.get(c) or 'none'}" for c in unlike]
        found["differ" if others else "equal"].append(
            f"{name}: {'; '.join(others)}" if others else name
        )
    found["new"] = [f"{experiment}: {row}" for experiment, row in new]
    return found
