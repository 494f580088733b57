"""The recorded rows, and the tables of docs/experiments/together.md. Needs no wheel."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from seekway_lab.pages import between, table
from seekway_lab.records import Record

#: Recorded rows of a scene by name.
Rows = Mapping[str, Record]
WITHOUT = {
    "fairway": "all on, noop",
    "the cache": "without the cache",
    "prefetching": "without prefetching",
    "tags": "without tags",
    "the agent": "without the agent",
}
#: Ways on the page, which asks what the parts are worth. Recorded rows have all.
SHOWN = {
    "all on": "all on, fairway",
    "all on but fairway": "all on, noop",
    "all off": "all off",
    "`deadline` alone": "deadline alone, as Linux has it",
    "`bfq` alone": "bfq alone, as Linux has it",
    "`cfq` alone": "cfq alone, the papers' baseline",
    "equal memory": "equal memory: fairway and the agent, guests have the cache's memory",
}


def options(parser: argparse.ArgumentParser) -> None:
    """The options of the command, besides those of all studies."""
    parser.add_argument("--scenes", default="*", metavar="GLOB", help="a scene, or 'SATA*,NVMe'")
    parser.add_argument("--seeds", type=int, metavar="N", help="[5; 2 on NVMe]")
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="SPEC",
        help="run this policy too, with all else on; FILE.py:CLASS for Python",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows, and figures of runs")
    parser.add_argument(
        "--check",
        nargs="?",
        const="",
        metavar="FILE",
        help="do the rows equal the recorded ones, or those of --json's FILE?",
    )
    parser.add_argument("--write", action="store_true", help="write recorded rows and the page")


def recorded(docs: Path) -> Path:
    """The file of recorded rows."""
    return docs / "experiments" / "results" / "together.json"


def text(rows: Iterable[Record], beside: Mapping[str, Any] | None = None) -> str:
    """Rows as JSON, one a line."""
    lists = {"rows": list(rows), **(beside or {})}
    parts = [
        f'"{name}": [\n' + ",\n".join(json.dumps(row, ensure_ascii=False) for row in of) + "\n]"
        for name, of in lists.items()
    ]
    return "{" + ",\n".join(parts) + "}\n"


def replaced(path: Path, rows: Iterable[Record]) -> list[Record]:
    """The rows of a file with new ones in place of their scenes'; scenes stay in order."""
    known: list[Record] = json.loads(path.read_text())["rows"] if path.exists() else []
    by_scene: dict[str, list[Record]] = {row["experiment"]: [] for row in [*known, *rows]}
    new = {row["experiment"] for row in rows}
    for row in [*(row for row in known if row["experiment"] not in new), *rows]:
        by_scene[row["experiment"]].append(row)
    return [row for of in by_scene.values() for row in of]


def pages(docs: Path) -> dict[Path, str]:
    """The page with its tables."""
    scenes: dict[str, dict[str, Record]] = {}
    for row in json.loads(recorded(docs).read_text())["rows"]:
        scenes.setdefault(row["experiment"], {})[row["row"]] = row
    each = {name: rows for name, rows in scenes.items() if WITHOUT["tags"] in rows}
    union = {name: rows for name, rows in scenes.items() if name.endswith(", union")}
    ordinary = {name: rows for name, rows in each.items() if name not in union}
    path = docs / "experiments" / "together.md"
    page = path.read_text()
    tables = {
        "scenes": _scenes(scenes),
        "parts": _columns("part", each, WITHOUT, _worth),
        "vms": f"{_vms(ordinary)}\n{_vms(union)}",
        "ways": _columns("", scenes, SHOWN, _way),
    }
    for name, made in tables.items():
        page = between(page, name, f"\n{made}\n", path)
    return {path: page}


def figure(value: str) -> str:
    """A figure for readers: three digits, two behind the point from 1 on."""
    number = float(value)
    if number >= 1000:
        return f"{number:,.0f}"
    digits = ".2f" if 0.9995 <= number < 10 else ".3f" if 0.01 <= number < 1 else ".3g"
    return format(number, digits)


def _scenes(scenes: Mapping[str, Rows]) -> str:
    """Criteria of each scene."""

    def asked(row: Record | None, more: str = "") -> str:
        if row is None:
            return "–"
        found = figure(row["ours"]) + more
        return f"**{found}**" if row["asked"] == "missed" else found

    lines = []
    for scene, rows in scenes.items():
        worst, mean = rows["the VM with the least progress"], rows["progress, geometric mean"]
        width, p99 = float(worst["largest"]) - float(worst["least"]), rows["the longest p99"]
        seeds = f", {figure(worst['least'])} to {figure(worst['largest'])}" if width > 0.02 else ""
        names = ("the VM with the least progress", "geometric mean")
        near = [rows[f"near the first, {name}"] for name in names]
        lines.append(
            [
                scene,
                f"{asked(worst)} ({worst['who']}{seeds})",
                asked(mean, f" ± {mean['half']}"),
                asked(rows.get("what the host moves")),
                f"{asked(p99)} ({p99['who']})",
                "; ".join(f"{asked(row)} ({row['who']})" for row in near),
            ]
        )
    heads = ["scene", "least progress", "mean:"]
    heads += ["MiB/s over the most:", "longest p99"]
    return table([*heads, "near the first"], lines)


def _columns(head: str, scenes: Mapping[str, Rows], names: Mapping[str, str], cell: Any) -> str:
    """A column a scene; of each row that `names` has, the cell of the recorded row."""
    numbers = ":" if head == "part" else ""
    lines = [
        [name, *(cell(rows, key) if key in rows else "–" for rows in scenes.values())]
        for name, key in names.items()
    ]
    return table([head, *(f"{scene}{numbers}" for scene in scenes)], lines)


def _worth(rows: Rows, key: str) -> str:
    """All on over all but a part, of the means."""
    return f"{float(rows['all on, fairway']['ours']) / float(rows[key]['ours']):.2f}"


def _vms(scenes: Mapping[str, Rows]) -> str:
    """Each VM's progress, off and on."""
    names = [name for name, row in next(iter(scenes.values())).items() if "off" in row]
    return _columns(
        "VM",
        scenes,
        {name: name for name in names},
        lambda rows, key: f"{rows[key]['off']} → {figure(rows[key]['ours'])}",
    )


def _way(rows: Rows, key: str) -> str:
    return f"{figure(rows[key]['ours'])} ({rows[key]['worst']})"
