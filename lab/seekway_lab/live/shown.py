"""Tables with a column for each row of an experiment: figures below each other fit a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from seekway_lab.live import runs

Cell = float | str | None


def columns(
    title: str, found: Mapping[str, Mapping[str, Cell]], notes: Sequence[str]
) -> runs.Table:
    """A table of columns by their heads; each has cells by their labels."""
    labels = dict.fromkeys(label for cells in found.values() for label in cells)
    rows = [[label, *(_text(cells.get(label)) for cells in found.values())] for label in labels]
    return runs.Table(title, ["", *(f"{head}:" for head in found)], rows, notes)


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else runs.number(cell)
