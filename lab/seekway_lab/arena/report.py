"""Results of the arena, as JSON, CSV, tables and a page."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from seekway_lab.arena.measure import MEASURES
from seekway_lab.arena.play import Board, Played
from seekway_lab.arena.scenes import MEDIA, Scene, policy_of, time_ns
from seekway_lab.arena.score import DOMINATES_BY, Score
from seekway_lab.pages import table

NAMES = {"worst_share": "worst share", "p999": "p99.9", "jain": "Jain"}
ABSENT = "–"

NOTE = (
    "Regret: distance from the best of these policies in a scene, 0 (as good) to 1. mean: over all "
    "scenes, the measures of each counted alike; then for each measure by itself. pareto: the "
    "distance that remains under the weighting of throughput, worst share and p99 that suits the "
    "policy best in each scene. dominated: scenes in which one other policy is better in "
    f"throughput, worst share and p99, by more than {100 * DOMINATES_BY:.0f} % each. withheld: "
    "time in which the policy let the device wait with work queued."
)
NOTES = {
    "spread": "spread: the largest less the least mean regret of a single seed.",
    "drawn": "drawn: mean regret in the drawn scenes.",
    "CPU (ns)": "CPU: of a request, mean over all requests, simulator and device model included. "
    "Measured: it differs from run to run.",
}


@dataclass(frozen=True)
class Found:
    """Everything that ran: the scenes of the file with the user's own, and the other kinds."""

    seeds: list[int]
    written: Board
    everyday: Board
    drawn: Board | None = None
    drawn_everyday: Board | None = None
    cpu: bool = False

    @property
    def boards(self) -> list[Board]:
        """Those that have scenes, the file's first."""
        every = [self.written, self.everyday, self.drawn, self.drawn_everyday]
        return [board for board in every if board and board.scenes]

    def drawn_like(self, board: Board) -> Board | None:
        """The drawn scenes of the same kind."""
        if board is self.written:
            return self.drawn
        return self.drawn_everyday if board is self.everyday else None


def as_json(found: Found) -> str:
    """One document. Absent figures are null."""
    document = {"seeds": found.seeds, **board_json(found.written, found.cpu)}
    for name in ("everyday", "drawn", "drawn_everyday"):
        board = getattr(found, name)
        if board is not None and (name != "everyday" or board.scenes):
            document[name] = board_json(board, found.cpu)
    return json.dumps(finite(document), indent=2, allow_nan=False)


def finite(value: Any) -> Any:
    """With null for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def board_json(board: Board, cpu: bool) -> dict[str, Any]:
    """Scores and scenes of a board."""
    scores = board.scores if board.scenes else []
    return {
        "scoreboard": [score_json(board, score) for score in scores],
        "scenes": [scene_json(board, played, cpu) for played in board.scenes],
    }


def score_json(board: Board, score: Score) -> dict[str, Any]:
    """A policy over all scenes of a board."""
    worst, scene, measure = score.worst or (0.0, None, None)
    groups = {group: board.regret(score, "group", group) for group in board.groups}
    return {
        "policy": score.policy,
        "mean_regret": score.mean,
        "spread": score.spread,
        "pareto": score.pareto,
        "worst_regret": worst,
        "worst_scene": scene,
        "worst_measure": measure,
        "regret_by_measure": {name: score.by_measure.get(name) for name in MEASURES},
        "regret_by_device": score.by_device,
        "regret_by_medium": {m: board.regret(score, "medium", m) for m in MEDIA},
        **({"regret_by_group": groups} if groups else {}),
        "dominated_in": score.dominated,
        "withheld": score.withheld,
    }


def scene_json(board: Board, played: Played, cpu: bool) -> dict[str, Any]:
    """A scene under every policy."""
    scene, result = played.scene, played.result

    def policy(n: int, name: str) -> dict[str, Any]:
        figures = result.figures[n]
        return {
            "policy": name,
            **figures.values,
            "withheld": figures.withheld,
            "requests": figures.requests,
            "regret": {name: result.regrets[n].get(name) for name in MEASURES},
            "mean_regret": result.mean_regret(n),
            "pareto": result.pareto(n),
            **({"cpu_ns": figures.cpu_ns} if cpu else {}),
        }

    return {
        "scene": scene.name,
        "about": scene.about,
        "device": scene.device,
        **({"group": scene.group} if scene.group else {}),
        "unit": scene.judging.unit,
        "latency_unit": played.latency_unit,
        "policies": [policy(n, name) for n, name in enumerate(board.policies)],
    }


def as_csv(found: Found) -> str:
    """A line for each scene and policy."""
    lines = []
    for board in found.boards:
        for played in board.scenes:
            scene = scene_json(board, played, found.cpu)
            policies = scene.pop("policies")
            scene.pop("about")
            for policy in policies:
                regret = {f"regret_{name}": value for name, value in policy.pop("regret").items()}
                lines.append(finite({**scene, "group": scene.get("group"), **policy, **regret}))
    text = io.StringIO()
    writer = csv.DictWriter(text, lines[0] if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


@dataclass(frozen=True)
class Sheet:
    """A table: titles, and cells as they are shown. Columns of words stand left."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]
    words: frozenset[str] = frozenset({"policy", "in", "scene", "device", "what happens"})

    @classmethod
    def of(
        cls,
        title: str,
        rows: Iterable[Any],
        columns: dict[str, Callable[[Any], str]],
        notes: Iterable[str] = (),
    ) -> Sheet:
        """From each column's value of a row."""
        cells = [[shown(row) for shown in columns.values()] for row in rows]
        return cls(title, list(columns), cells, list(notes))

    def markdown(self) -> str:
        """For a document."""
        title = [f"**{self.title}**\n"] if self.title else []
        return "\n".join([*title, self.rows_only(), *(f"{note}\n" for note in self.notes)])

    def rows_only(self) -> str:
        """The table of Markdown without title and notes."""
        heads = [name if name in self.words else f"{name}:" for name in self.columns]
        return table(heads, self.rows)

    def without(self, *columns: str) -> Sheet:
        """The table without some columns."""
        kept = [n for n, name in enumerate(self.columns) if name not in columns]
        rows = [[row[n] for n in kept] for row in self.rows]
        return replace(self, columns=[self.columns[n] for n in kept], rows=rows)

    def text(self) -> str:
        """Aligned, for a terminal."""
        every = [self.columns, *self.rows]
        widths = [max(map(len, column)) for column in zip(*every, strict=True)]
        lefts = [name in self.words for name in self.columns]

        def line(row: list[str]) -> str:
            cells = zip(row, widths, lefts, strict=True)
            return "  ".join(c.ljust(w) if left else c.rjust(w) for c, w, left in cells).rstrip()

        title = [self.title] if self.title else []
        return "\n".join([*title, *map(line, every), *self.notes]) + "\n"

    def html(self) -> str:
        """For the page."""

        def row(tag: str, cells: list[str]) -> str:
            styled = zip(self.columns, cells, strict=True)
            kinds = [' class="w"' if name in self.words else "" for name, _ in styled]
            inner = zip(kinds, cells, strict=True)
            return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in inner)

        body = "".join(f"<tr>{row('td', cells)}</tr>" for cells in self.rows)
        head = f"<thead><tr>{row('th', self.columns)}</tr></thead>"
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f"<h3>{escape(self.title)}</h3><table>{head}<tbody>{body}</tbody></table>{notes}"


def regret(value: float | None) -> str:
    """Three decimals: seeds differ by more than the fourth."""
    return ABSENT if value is None else f"{value:.3f}"


def in_measure(name: str) -> Callable[[Score], str]:
    """A column of the mean regret in a measure."""
    return lambda score: regret(score.by_measure.get(name))


def in_all(board: Board) -> Callable[[Score], str]:
    """A column of the mean regret in all scenes of a board, whichever board the score is of."""
    own = {score.policy: score.mean for score in board.scores}
    return lambda score: regret(own[score.policy])


def in_some(board: Board, kind: str, value: str) -> Callable[[Score], str]:
    """A column of the mean regret in some scenes of a board, see `Board.regret`."""
    return lambda score: regret(board.regret(score, kind, value))


def in_scene(number: int) -> Callable[[Played], str]:
    """A column of a policy's regret in each scene."""
    return lambda played: regret(played.result.mean_regret(number))


def share(value: float) -> str:
    """A share in percent."""
    return f"{100 * value:.1f} %"


def scoreboard(found: Found, board: Board) -> Sheet:
    """Every policy over all scenes of a board."""
    drawn = found.drawn_like(board)
    in_drawn = {score.policy: score.mean for score in drawn.scores} if drawn else {}

    def place(score: Score) -> str:
        worst, scene, measure = score.worst or (0.0, "", "")
        return f"{scene}: {NAMES.get(measure, measure)}" if worst > 0.0 else ABSENT

    columns: dict[str, Callable[[Score], str]] = {
        "policy": lambda score: score.policy,
        "mean regret": lambda score: regret(score.mean),
    }
    if len(found.seeds) > 1:
        columns["spread"] = lambda score: regret(score.spread)
    if drawn:
        columns["drawn"] = lambda score: regret(in_drawn.get(score.policy))
    columns["pareto"] = lambda score: regret(score.pareto)
    columns["worst"] = lambda score: regret(score.worst[0] if score.worst else None)
    columns["in"] = place
    for name in MEASURES:
        columns[NAMES.get(name, name)] = in_measure(name)
    columns["dominated"] = lambda score: str(len(score.dominated))
    columns["withheld"] = lambda score: share(score.withheld)
    if found.cpu:
        columns["CPU (ns)"] = lambda score: f"{cpu_ns(board, score.number):.0f}"
    notes = [NOTE, *(note for name, note in NOTES.items() if name in columns)]
    return Sheet.of(f"Scoreboard of {board.title}", board.scores, columns, notes)


def summary(found: Found) -> Sheet:
    """The policies over all scenes in a table narrow enough for a page."""
    board, everyday, drawn = found.written, found.everyday, found.drawn
    columns: dict[str, Callable[[Score], str]] = {
        "policy": lambda score: score.policy,
        "mean regret": lambda score: regret(score.mean),
        "spread": lambda score: regret(score.spread),
    }
    for title, other in {"everyday": everyday, "drawn": drawn}.items():
        if other and other.scenes:
            columns[title] = in_all(other)
    media = {played.scene.medium for played in board.scenes}
    columns |= {name: in_some(board, "medium", name) for name in MEDIA if name in media}
    for name in ("throughput", "worst_share", "p99", "kept"):
        columns[NAMES.get(name, name)] = in_measure(name)
    columns["worst"] = lambda score: regret(score.worst[0] if score.worst else None)
    columns["dominated"] = lambda score: str(len(score.dominated))
    return Sheet.of("", board.scores, columns)


def cpu_ns(board: Board, policy: int) -> float:
    """CPU time of a request over all requests: the clock is too coarse for a scene of few."""
    figures = [played.result.figures[policy] for played in board.scenes]
    total = sum((one.cpu_ns or 0.0) * one.requests for one in figures)
    return total / max(sum(one.requests for one in figures), 1.0)


def by_device(board: Board) -> Sheet | None:
    """Mean regret on each device and kind of device, where there are several devices."""
    devices = list(dict.fromkeys(played.scene.device for played in board.scenes))
    if len(devices) < 2:
        return None
    media = {played.scene.medium for played in board.scenes}
    columns: dict[str, Callable[[Score], str]] = {"policy": lambda score: score.policy}
    for medium in (name for name in MEDIA if name in media):
        columns[f"all {medium}"] = in_some(board, "medium", medium)
    for device in devices:
        columns[device] = in_some(board, "device", device)
    return Sheet.of(f"Mean regret on each device, {board.title}", board.scores, columns)


def by_group(found: Found) -> Sheet | None:
    """Mean regret in each group of everyday scenes beside that of the others.

    A column for each board and group that ran, in the order of the first board.
    """
    boards = found.boards
    if not any(board.groups for board in boards):
        return None
    columns: dict[str, Callable[[Score], str]] = {"policy": lambda score: score.policy}
    for board in boards:
        columns[board.title] = in_all(board)
        for group in board.groups if len(board.groups) > 1 else []:
            columns[group] = in_some(board, "group", group)
    return Sheet.of("Mean regret in each group of scenes", boards[0].scores, columns)


def one_scene(board: Board, played: Played, cpu: bool) -> Sheet:
    """One scene under every policy."""
    result = played.result
    latency = "× alone" if played.latency_unit == "alone" else "ms"
    units = {"throughput": played.scene.judging.unit, "p99": latency, "p999": latency}

    def figure(name: str) -> Callable[[int], str]:
        def shown(n: int) -> str:
            value = result.figures[n].values[name]
            return ABSENT if value is None else significant(value)

        return shown

    columns: dict[str, Callable[[int], str]] = {"policy": lambda n: board.policies[n]}
    for name in MEASURES:
        unit = f" ({units[name]})" if name in units else ""
        columns[f"{NAMES.get(name, name)}{unit}"] = figure(name)
    columns["withheld"] = lambda n: share(result.figures[n].withheld)
    columns["mean regret"] = lambda n: regret(result.mean_regret(n))
    columns["pareto"] = lambda n: regret(result.pareto(n))
    if cpu:
        columns["CPU (ns)"] = lambda n: f"{result.figures[n].cpu_ns or 0.0:.0f}"
    title = f"{played.scene.name}: {played.scene.about}"
    return Sheet.of(title, range(len(board.policies)), columns)


def significant(value: float) -> str:
    """Four digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def regrets(board: Board) -> Sheet:
    """Every scene's mean regret, a column for each policy."""
    columns: dict[str, Callable[[Played], str]] = {"scene": lambda played: played.scene.name}
    for score in board.scores:
        columns[score.policy] = in_scene(score.number)
    return Sheet.of("Mean regret in each scene", board.scenes, columns)


def sheets(found: Found, details: bool) -> list[Sheet]:
    """All tables: of each board, then of the groups."""
    every: list[Sheet | None] = []
    for board in found.boards:
        every += [scoreboard(found, board), by_device(board)]
        if details:
            every += [one_scene(board, played, found.cpu) for played in board.scenes]
    return [sheet for sheet in [*every, by_group(found)] if sheet]


STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:90em;padding:0 1em}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:1em 0;font-size:13px}
td,th{padding:.2em .6em;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}
td.w,th.w{text-align:left}svg{max-width:100%;height:auto}section{overflow-x:auto}"""


def page(found: Found, quick: bool) -> str:
    """A page of everything: one file that needs no network."""
    sentences = [sentence(board) for board in found.boards]
    if quick:
        sentences.append("A quick run with a tenth of the time: not a result.")
    seeds = ", ".join(map(str, found.seeds))
    groups = by_group(found)
    sections = [groups.html()] if groups else []
    for board in found.boards:
        tables = [scoreboard(found, board), by_device(board), regrets(board)]
        tables += [one_scene(board, played, found.cpu) for played in board.scenes]
        html = "".join(sheet.html() for sheet in tables if sheet)
        sections.append(f"<h2>{escape(board.title)}</h2>{figures(board)}{html}")
    body = "".join(f"<section>{section}</section>" for section in sections)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Seekway: the arena</title>'
        f"<style>{STYLE}</style><h1>Seekway: the arena</h1><p>{escape(' '.join(sentences))} "
        f"Seeds: {seeds}.</p>{body}</html>\n"
    )


def sentence(board: Board) -> str:
    """The result of a board in a sentence."""
    first = board.scores[0]
    worst = first.worst[0] if first.worst else 0.0
    return (
        f"Of {len(board.policies)} policies in {board.title}, {first.policy} is nearest to the "
        f"best of all on average: a mean regret of {first.mean:.2f}, at worst {worst:.2f}."
    )


def figures(board: Board) -> str:
    """Each policy beside the best: bars for three measures, and points for two."""
    import matplotlib
    from matplotlib.figure import Figure

    def reached(score: Score, measure: str) -> float:
        return 1.0 - score.by_measure.get(measure, math.nan)

    scores = board.scores
    figure = Figure(figsize=(13, 1 + 0.32 * len(scores)), layout="constrained")
    bars, points = figure.subplots(1, 2)
    measures = {"throughput": "throughput", "worst_share": "worst VM's share", "p99": "p99"}
    for n, (measure, label) in enumerate(measures.items()):
        places = [place + 0.27 * (n - 1) for place in range(len(scores))]
        bars.barh(places, [reached(score, measure) for score in scores], height=0.25, label=label)
    bars.set_yticks(range(len(scores)), [score.policy for score in scores])
    bars.invert_yaxis()
    bars.set_xlabel("part of the best, mean over the scenes")
    bars.legend()
    by_name: dict[str, list[Score]] = {}
    for score in sorted(scores, key=lambda score: score.number):
        by_name.setdefault(policy_of(score.policy), []).append(score)
    for name, settings in by_name.items():
        at = [[reached(score, measure) for score in settings] for measure in ("throughput", "p99")]
        points.plot(*at, marker="o", label=name)
    points.set_xlabel("throughput, part of the best")
    points.set_ylabel("p99, part of the best")
    points.legend(fontsize="small", ncols=2)
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "arena"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    caption = (
        "Left: what each policy reaches of the best of all policies. Right: the same as points; "
        "nobody is better in both than a policy in the upper right corner. A line joins the "
        "settings of one policy, in the order of the command."
    )
    svg = text.getvalue()
    return f"<figure>{svg[svg.index('<svg') :]}<figcaption>{caption}</figcaption></figure>"


def listing(scenes: list[Scene], form: str) -> str:
    """The scenes as a table or JSON, without a run."""

    def row(scene: Scene) -> dict[str, Any]:
        settle_ns, until_ns = (time_ns(scene.scenario["measure"][k]) for k in ("settle", "until"))
        return {
            "scene": scene.name,
            "about": scene.about,
            "device": scene.scenario["device"]["profile"],
            **({"group": scene.group} if scene.group else {}),
            "vms": len(scene.kind_of),
            "settle_s": settle_ns / 1e9,
            "measured_s": (until_ns - settle_ns) / 1e9,
        }

    rows = [row(scene) for scene in scenes]
    if form == "json":
        return json.dumps(rows, indent=2) + "\n"
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "scene": lambda row: row["scene"],
        "what happens": lambda row: row["about"],
        "device": lambda row: row["device"],
        "VMs": lambda row: str(row["vms"]),
        "settles (s)": lambda row: f"{row['settle_s']:g}",
        "measured (s)": lambda row: f"{row['measured_s']:g}",
    }
    sheet = Sheet.of("", rows, columns)
    return sheet.markdown() if form == "markdown" else sheet.text()
