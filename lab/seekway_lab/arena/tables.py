"""Writes the arena's tables into docs/arena.md."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from seekway_lab.arena.play import Board, Player
from seekway_lab.arena.report import Found, Sheet, by_group, summary
from seekway_lab.arena.scenes import File, policy_of
from seekway_lab.pages import between, table

# The seed of the drawn scenes was chosen before any of them had run.
DRAWN, EVERYDAY = (20_261_127, 60), (20_261_127, 20)
COMMAND = "scripts/lab arena --scenes all --drawn {}:{} --drawn-everyday {}:{} --seeds {}"
# A VM with one request outstanding beside others, of every kind.
FRONTIER = ["flood", "floods", "stream", "writes", "small-reads", "mix"]
DEVICES = ["nvme", "sata", "array"]
# fairway's settings, and by how much the others' targets are multiplied.
ISOLATION = [0, 0.2, 0.4, 0.6, 0.8, 1]
TARGETS = [0.25, 0.5, 1, 2, 4]
# Settings that are not shown: they lie between others, or kyber's, which all give the same.
BETWEEN = re.compile("isolation 0.2| (0.5|2) ×|kyber.* (0.25|4) ×")
TIMES = re.compile("(rlat|wlat|read_target|write_target)=([0-9.]+)us")


def write(found: Found, player: Player, file: File, docs: Path) -> None:
    """Writes the scoreboards, and the table of protection's cost."""
    groups = by_group(found)
    if groups is None:
        raise AssertionError("all boards have run")
    command = COMMAND.format(*DRAWN, *EVERYDAY, len(found.seeds))
    scores = f"`{command} --format markdown`:\n\n{summary(found).rows_only()}"
    in_scores = [board.title for board in (found.written, found.everyday, found.drawn) if board]
    texts = {
        "scoreboard": scores,
        "everyday": apart(found.everyday, groups.without(*in_scores)).rows_only(),
        "frontier": frontier(player, file),
    }
    replace(docs / "arena.md", texts)


def apart(board: Board, sheet: Sheet) -> Sheet:
    """The rows of noop, and of policies whose mean regret is less than its by more than 0.02."""
    means = {score.policy: score.mean for score in board.scores}
    rows = [row for row in sheet.rows if row[0] == "noop" or means[row[0]] < means["noop"] - 0.02]
    return dataclasses.replace(sheet, rows=rows)


def replace(path: Path, texts: dict[str, str]) -> None:
    """Writes the page with these texts between their markers."""
    page = path.read_text()
    for name, text in texts.items():
        page = between(page, name, text, path)
    path.write_text(page)


def settings(operator: list[str]) -> dict[str, str]:
    """Policies by the names of the table.

    noop, fairway from no isolation to all, and others as an operator sets them for a device, kyber
    and iocost with tighter and wider targets.
    """
    named = {"noop": "noop"}
    named |= {f"fairway, isolation {part}": f"fairway:isolation={part}" for part in ISOLATION}
    for spec in operator:
        name = f"{policy_of(spec)}, set"
        if not TIMES.search(spec):
            named[name] = spec
            continue
        for by in TARGETS:
            named[f"{name}, {by:g} × its target"] = scaled(spec, by)
    return named


def scaled(spec: str, by: float) -> str:
    """The policy with other targets."""
    return TIMES.sub(lambda time: f"{time[1]}={float(time[2]) * by:g}us", spec)


def frontier(player: Player, file: File) -> str:
    """Each setting's throughput and p99, relative to the best: columns by device."""
    cells: dict[str, list[str]] = {}
    for device in file.devices:
        if device["name"] not in DEVICES:
            continue
        named = settings(device["set"])
        scenes = file.matching(",".join(f"{device['name']}/{scene}" for scene in FRONTIER))
        policies = list(named.values())
        board = Board.of("scenes", policies, player.play(scenes, policies))
        scores = {score.policy: score.by_measure for score in board.scores}
        for label, spec in named.items():
            reached = [f"{1 - scores[spec][name]:.2f}" for name in ("throughput", "p99")]
            cells.setdefault(label, []).extend(reached)
    titles = [f"{device}: {measure}:" for device in DEVICES for measure in ("throughput", "p99")]
    lines = [[name, *values] for name, values in cells.items() if not BETWEEN.search(name)]
    return table(["setting", *titles], lines)
