"""table-example: the order in which two policies serve four blocks when time is distance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import seekway

from seekway_lab.judge import Row, Runs, Verdict, value
from seekway_lab.scenarios import Scenario

#: A block is far more sectors than a drive reads ahead, so nothing is a cache hit.
HEAD, BLOCK_SECTORS = 100, 1000
#: By the table's line: policy, order, mean service and mean response in blocks.
LINES = {
    "optimal": ("cats:busdriver=0", [120, 82, 20, 200], 75.0, 124.5),
    "greedy": ("sstf", [82, 120, 200, 20], 79.0, 131.5),
}


def scenarios() -> list[Scenario]:
    """A trace of five reads: the first takes the head to block 100 while the others come."""
    trace = {"path": str(Path(__file__).with_name("table-example.trace")), "format": "mqsim"}
    table = {
        "device": {"profile": "linear-15k4:segments=0"},
        "stack": {"coalesce": 0},
        "images": {"map": "identity"},
        "vm": [{"trace": {**trace, "capacity": f"{1000 * BLOCK_SECTORS}s"}}],
        "outcome": {"requests": True},
    }
    return [Scenario("table 1", table, tuple(line[0] for line in LINES.values()), (1,))]


def order(outcome: seekway.Outcome) -> dict[str, list[dict[str, Any]]]:
    """The blocks in the order in which they are done, without the first read."""
    starts = outcome.requests.to_pandas().sort_values("completed_ns")["start_sector"]
    return {"runs": [{"order": [int(start) // BLOCK_SECTORS for start in starts][1:]}]}


def figures(blocks: list[int]) -> tuple[float, float]:
    """Mean service and response of an order when time is distance."""
    head, now, responses = HEAD, 0, []
    for block in blocks:
        now += abs(head - block)
        head = block
        responses.append(now)
    return now / len(blocks), sum(responses) / len(blocks)


def judge(found: Runs) -> list[Row]:
    """The table's order for a head at 100 and requests at 20, 82, 120 and 200 (table 1)."""
    rows = []
    for line, (policy, expected, *papers) in LINES.items():
        blocks = found.cell("table 1", policy)["order"].iloc[0]
        for what, paper, ours in zip(
            ["mean service", "mean response"], papers, figures(blocks), strict=True
        ):
            exact = ours == paper and blocks == expected
            row = value(f"{line}: {what}", paper, [ours], "blocks", 0)
            row.verdict = Verdict.HOLDS if exact else Verdict.REFUTED
            row.why = f"{policy} serves {blocks}"
            rows.append(row.ask(exact, "the paper's order and figures exactly"))
    return rows
