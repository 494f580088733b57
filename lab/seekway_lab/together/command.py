"""The command `seekway-lab together`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from seekway_lab import pages, runs
from seekway_lab.records import LabError, Record, differences
from seekway_lab.together import page, scenes
from seekway_lab.together.progress import Judged, worth

#: Runs of a task: each takes seconds.
TASK_RUNS = 2
#: Keys of a row that are its name.
NAME = ("experiment", "row")


def run(args: argparse.Namespace) -> int:
    """Runs the command; its exit status."""
    if args.write and (args.policy or args.seeds):
        raise LabError("--write: recorded rows have all seeds and no further policy")
    rows: list[Record] = []
    figures: runs.Rows = []
    for scene in scenes.chosen(args.scenes):
        made, of_runs = judged(args, scene)
        rows += made
        figures += of_runs
    if args.json:
        args.json.write_text(page.text(rows, {"runs": figures}))
    if args.check is not None:
        recorded = Path(args.check) if args.check else page.recorded(args.docs)
        return int(differ(rows, json.loads(recorded.read_text())["rows"]))
    if args.write:
        path = page.recorded(args.docs)
        path.write_text(page.text(page.replaced(path, rows)))
        for path, text in page.pages(args.docs).items():
            path.write_text(text)
        # Targets that are not met are on the page.
        return 0
    found = [*rows, *worth(rows)]
    print(shown(found))
    return int(any(row.get("asked") == "missed" for row in found))


def judged(args: argparse.Namespace, scene: scenes.Scene) -> tuple[list[Record], runs.Rows]:
    """The rows of a scene, and the figures of its runs."""
    seeds = range(1, (args.seeds or scene.disk["seeds"]) + 1)
    wanted = [
        run
        for scenario in scene.scenarios(args.policy)
        for run in runs.runs(scenario, scenes.WANTED, seeds)
    ]
    laboratory = runs.Laboratory(
        args.kept, workers=args.workers, scheduler=args.scheduler, task_runs=TASK_RUNS
    )
    laboratory.make(wanted, runs.progress(scene.name))
    found = laboratory.read(wanted)
    of_runs: runs.Rows = found.table("runs").to_dict("records")
    # A run of one VM has no figures of the others.
    of_runs = [{key: value for key, value in row.items() if value == value} for row in of_runs]
    return Judged(scene, found, args.policy).rows(), of_runs


def differ(rows: Iterable[Record], recorded: Iterable[Record]) -> bool:
    """Compares all figures of rows with recorded ones of the same scenes; whether some differ."""
    rows = list(rows)
    scenes_ = {row["experiment"] for row in rows}
    known = [row for row in recorded if row["experiment"] in scenes_]
    beside = differences(rows, known, compared=None)
    figures = sum(len(row) - len(NAME) for row in known)
    print(f"together: {len(known)} recorded rows, {figures} figures")
    lines = [f"{what}: {name}" for what in ("missing", "new", "differ") for name in beside[what]]
    print("\n".join(lines) or "all are equal")
    return bool(lines)


def shown(rows: Iterable[Record]) -> str:
    """Rows for readers, a table for each scene."""
    named = {*NAME, "seeds", "ours", "least", "largest", "unit", "half", "asked"}
    by_scene: dict[str, list[list[str]]] = {}
    for row in rows:
        half, asked = row.get("half", ""), row.get("asked", "")
        beside = [f"{key} {value}" for key, value in row.items() if key not in named]
        cells = [row["row"], row["ours"], half, asked, ", ".join(beside)]
        by_scene.setdefault(row["experiment"], []).append(cells)
    heads = ["row", "ours:", "±:", "asked", "beside"]
    return "\n".join(f"## {name}\n\n{pages.table(heads, of)}" for name, of in by_scene.items())
