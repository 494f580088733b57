"""A policy of the user's beside a paper's, by the paper's claims. This module needs no wheel."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seekway_lab import pages
from seekway_lab.records import Record

REACHED = ("holds", "exceeds")
UNDECIDED = "undecided"


def add_columns(found: Sequence[Record], others: Mapping[str, Sequence[Record]]) -> None:
    """Adds each row's figure under other policies; empty where it is that of the row itself."""
    for policy, records in others.items():
        made = _by_row(records)
        for row in found:
            other = made.get(_key(row), row)
            row[policy] = "" if _figures(other) == _figures(row) else other["ours"]


def summary(
    docs: Path, paper: str, found: Sequence[Record], others: Mapping[str, Sequence[Record]]
) -> str:
    """A table of the claims in whose figures the policies differ from the paper's, and a sentence.

    Args:
        docs: folder of the pages.
        paper: its name.
        found: rows under the paper's policy.
        others: rows by policy that stood in for it.
    """
    claims = tomllib.loads((docs / "experiments" / "claims.toml").read_text())["claim"]
    heads = [f"{paper} here", *others]
    theirs, *ours = _by_row(found), *map(_by_row, others.values())
    lines, reached, decided, equal = [], Counter[str](), 0, 0
    for claim in claims:
        names = [(claim["experiment"], row) for row in pages.names_of(claim)]
        if names[0] not in theirs or not any(name in made for made in ours for name in names):
            continue
        # Other rows are about the paper's other policies.
        names = [n for n in names if any(_figures(m.get(n)) != _figures(theirs[n]) for m in ours)]
        if not names:
            equal += 1
            continue
        each = [[made[name] for name in names if name in made] for made in (theirs, *ours)]
        verdicts = [_verdict(claim, rows) for rows in each]
        decided += UNDECIDED not in verdicts
        reached.update(head for head, v in zip(heads, verdicts, strict=True) if v in REACHED)
        cells = [_cell(rows, verdict) for rows, verdict in zip(each, verdicts, strict=True)]
        lines.append([f"{claim['where']}: {claim['claim']}", claim["published"], *cells])
    table = pages.table(["claim", "paper", *heads], lines) + "\n" if lines else ""
    counts = ", ".join(f"{head} {reached[head]}" for head in heads)
    return (
        f"## Summary: {', '.join(others)} in place of the paper's policy\n\n{table}Claims that "
        f"hold or exceed, of {decided} that can be decided: {counts}. In {equal} more the figures "
        "are equal.\n"
    )


def _key(row: Record) -> tuple[str, str]:
    return row["experiment"], row["row"]


def _by_row(records: Sequence[Record]) -> dict[tuple[str, str], Record]:
    return {_key(row): row for row in records}


def _figures(row: Record | None) -> list[str]:
    return [row["ours"], row["least"], row["largest"]] if row else []


def _verdict(claim: Mapping[str, Any], rows: Sequence[Record]) -> str:
    if "undecided" in claim or not rows or not all(row["ours"] for row in rows):
        return UNDECIDED
    return pages.whole([row["verdict"] for row in rows])


def _cell(rows: Sequence[Record], verdict: str) -> str:
    return f"{pages.ours_of({'ours': rows})} ({verdict})"
