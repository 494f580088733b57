"""A worker: runs cells, one after the other."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from seekway import _native
from seekway._errors import SeekwayError
from seekway.campaign.results import figures
from seekway.campaign.study import Cell, program


def run_batch(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """A row for each cell. A cell that fails is a row with its error."""
    return [run_cell(cell) for cell in cells]


def run_cell(cell: Cell) -> dict[str, Any]:
    """One cell. The process keeps the traces that it has read."""
    row: dict[str, Any] = described(cell)
    began = time.perf_counter()
    try:
        made = json.loads(_native.compare(list(cell.arguments))[0])
        row |= figures(made["runs"][0])
    except (SeekwayError, OSError, MemoryError) as error:
        row["error"] = str(error) or type(error).__name__
    row["wall_s"] = time.perf_counter() - began
    return row


def described(cell: Cell) -> dict[str, Any]:
    """The columns that say which cell it is."""
    return {
        "cell": cell.key,
        "axes": json.dumps(dict(cell.axes), sort_keys=True),
        "policy": cell.axes["policy"],
        "device": cell.axes["device"],
        "seed": cell.axes["seed"],
        "traces": list(cell.traces),
        "program": program(),
    }
