"""vpt-rank, live (CATS, section 6, table 2): does the throttle's linear model rank schedulers as
the detailed disk does?

One real guest has the load of the simulator's vpt-rank on `serve --emulate` of the detailed disk,
of the line fitted to it at k = 1 and at the paper's k = 8, and once on the image itself, without a
throttle. Ranked are three policies of the daemon, and, as in the paper, three schedulers of the
guest's own kernel, above a daemon that serves requests as they come.
"""

from __future__ import annotations

import dataclasses
import itertools
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

from seekway_lab import judge
from seekway_lab.live import runs, scenes, twin
from seekway_lab.live.counters import spread
from seekway_lab.live.scenes import Scene
from seekway_lab.papers.cats import fit
from seekway_lab.papers.cats.figures import THREE
from seekway_lab.papers.cats.rank import same_order, tau
from seekway_lab.records import LabError, Record
from seekway_lab.scenarios import Table

#: The name in recorded rows, beside the simulator's.
EXPERIMENT = "vpt-rank, live"
#: In the device's time: a window at k = 8 takes eight times as long.
SETTLE_S, WINDOW_S, QUICK_S = 1, 4, 1
WINDOWS, QUICK_WINDOWS = 5, 1
#: Of the model's mean service, throttle and daemon may add this share.
ADDED = 0.05
#: Sectors of 512 bytes a millisecond in one MiB a second.
SECTORS_MS = 2.048
#: Measures by which the paper ranks: keys of a window, and their units.
MEASURES = {"service": "ms", "response": "ms", "throughput": "sectors/ms"}
KEYS = {"service": "service_ms", "response": "response_ms", "throughput": "sectors_ms"}


@dataclass(frozen=True)
class Ranking:
    """Schedulers that are compared with each other."""

    name: str
    #: Those that are ranked, and those that are shown only: policies of the daemon, or with
    #: `is_guests` schedulers of the guest's kernel.
    ranked: Sequence[str]
    shown: Sequence[str] = ()
    is_guests: bool = False

    @property
    def every(self) -> list[str]:
        """All that are measured."""
        return [*self.ranked, *self.shown]

    def window(self, scheduler: str, seed: int) -> scenes.Window:
        """A measurement of one of them."""
        if self.is_guests:
            return scenes.Window("noop", seed, elevator=scheduler)
        return scenes.Window(scheduler, seed)


RANKINGS = [
    Ranking("policies of the daemon", THREE),
    Ranking(
        "schedulers of the guest's kernel",
        ["mq-deadline", "bfq", "kyber"],
        shown=["none"],
        is_guests=True,
    ),
]
#: Requests that a guest has outstanding where its own schedulers are ranked: the others wait in
#: them. The times of the paper's tables are those of a driver with two.
OUTSTANDING = 2


@dataclass(frozen=True)
class Target:
    """Device below the guest's image."""

    name: str
    #: The fitted line instead of the disk.
    line: bool = False
    #: How many times slower the device is.
    k: int = 1
    #: The image without a throttle, in one window a policy.
    bare: bool = False

    @property
    def scene(self) -> Scene:
        """The load of the simulator's vpt-rank on it."""
        study = tomllib.loads((scenes.PAPERS / "cats" / "cats-direct.toml").read_text())
        return Scene(study["vm"], _line() if self.line else fit.DISK, self.k)


#: The slowed line of the paper, the only one that is judged.
LITERAL = Target("line, k = 8", line=True, k=8)
#: The first is the disk that the others predict.
TARGETS = [
    Target("detailed disk"),
    Target("line, k = 1", line=True),
    LITERAL,
    Target("image in memory", bare=True),
]


@cache
def _line() -> str:
    return str(fit.of_model(fit.DISK, 1)["profile"])


def run(options: runs.Options) -> runs.Report:
    """Runs vpt-rank in guests; a row misses its target if the throttle adds too much."""
    if options.policy:
        raise LabError("vpt-rank: no --policy: it ranks the paper's three")
    window_s = QUICK_S if options.quick else WINDOW_S
    seeds = range(options.seed, options.seed + (QUICK_WINDOWS if options.quick else WINDOWS))
    rows = []
    for target, ranking in itertools.product(TARGETS, RANKINGS):
        options.tell(f"{target.name}: {ranking.name}")
        made = measure(target, ranking, seeds, options, window_s)
        for scheduler in ranking.every:
            model = []
            # The simulator has no guest whose kernel schedules.
            if not target.bare and not ranking.is_guests:
                model = simulated(target, scheduler, seeds, window_s)
            rows.append(row(target, ranking, scheduler, made[scheduler], model))
    found = predictions(rows)
    missed = any(row["verdict"] == "missed" for row in rows)
    shown = [figures_table(rows, window_s), ranks_table(found)]
    json = {"ran": rows, "predictions": found}
    return runs.Report(shown, json, missed=missed, records=list(map(record, found)))


def measure(
    target: Target,
    ranking: Ranking,
    seeds: Sequence[int],
    options: runs.Options,
    window_s: int,
) -> dict[str, list[Table]]:
    """All windows on a target by scheduler. Schedulers take turns within each seed.

    Slowed down they have a guest and a daemon each, at the same time: one alone makes an eighth of
    the requests.
    """
    outstanding = OUTSTANDING if ranking.is_guests else None
    scene = dataclasses.replace(target.scene, outstanding=outstanding)
    if target.bare:
        scene, seeds = dataclasses.replace(scene, device=None), seeds[:1]
    every = [(one, ranking.window(one, seed)) for seed in seeds for one in ranking.every]
    groups = [every]
    if target.k > 1:
        groups = [[pair for pair in every if pair[0] == one] for one in ranking.every]
    spans = (SETTLE_S * target.k, window_s * target.k)

    def measured(group: list[tuple[str, scenes.Window]]) -> list[tuple[str, Table]]:
        names, windows = zip(*group, strict=True)
        lives = scenes.measure(scene, windows, options, *spans)
        return list(zip(names, (window(live, target.k) for live in lives), strict=True))

    with ThreadPoolExecutor(len(groups)) as pool:
        pairs = [pair for made in pool.map(measured, groups) for pair in made]
    return {one: [found for of, found in pairs if of == one] for one in ranking.every}


def simulated(target: Target, policy: str, seeds: Iterable[int], window_s: int) -> list[Table]:
    """Runs this load on the model alone, seed by seed."""
    k = target.k
    made = []
    for seed in seeds:
        spans = (SETTLE_S * k, window_s * k)
        found = twin.figures(twin.simulate(target.scene.scenario, policy, seed, *spans))
        made.append(
            {
                "service_ms": found["service_ms"] / k,
                "response_ms": found["response_ms"] / k,
                "sectors_ms": found["vms"][0]["mib_s"] * SECTORS_MS * k,
            }
        )
    return made


# --- figures and verdicts


def window(live: Table, k: int) -> Table:
    """A window of the one guest with k taken out of it. The keys in JSON stay."""
    [load], emulated = live["loads"], live["emulated"]
    service_ms = added = None
    late = 0.0
    if emulated:
        service_ms = emulated["service_ms"] / k
        # The daemon's addition to the mean service, as a share of the model's.
        added = emulated["added_ms"] / (emulated["service_ms"] - emulated["added_ms"])
        late = emulated["late"] / emulated["commands"]
    return {
        "service_ms": service_ms,
        "response_ms": load["response_ms"]["mean"] / k,
        "sectors_ms": load["mib_s"] * SECTORS_MS * k,
        "added": added,
        "late": late,
        "host_busy": live["host_busy"],
    }


def row(
    target: Target,
    ranking: Ranking,
    scheduler: str,
    windows: Sequence[Table],
    model: Sequence[Table] = (),
) -> Table:
    """A scheduler on a target: spreads over its windows, by measure. The keys in JSON stay."""

    def spreads(of: Sequence[Table]) -> list[dict[str, float] | None]:
        return [spread(one[key] for one in of) for key in KEYS.values()]

    added, late = spread(one["added"] for one in windows), max(one["late"] for one in windows)
    verdict = "measured"
    if added is not None:
        verdict = "met" if added["median"] <= ADDED else "missed"
        verdict = "void" if late > runs.LATE_MAX else verdict
    return {
        "target": target.name,
        "k": target.k,
        "ranking": ranking.name,
        "policy": scheduler,
        "live": spreads(windows),
        "simulated": spreads(model),
        "added": added,
        "late": late,
        "host_busy": max(one["host_busy"] for one in windows),
        "windows": list(windows),
        "verdict": verdict,
    }


def predictions(rows: Sequence[Table]) -> list[Table]:
    """Each target's rankings by each measure, beside those of the first, which is the disk.

    Only the paper's form is judged: it `holds` when every window has the disk's order, `in part`
    when the medians have it. `void` when a side is.
    """
    found = []
    for ranking in RANKINGS:
        sides: dict[str, list[Table]] = {}
        for one in rows:
            if one["ranking"] == ranking.name and one["policy"] in ranking.ranked:
                sides.setdefault(one["target"], []).append(one)
        # The first is the disk's.
        for target, measure in itertools.product(list(sides.values())[1:], MEASURES):
            found.append(_prediction(target, sides[TARGETS[0].name], measure))
    return [one for one in found if one]


def _prediction(target: Sequence[Table], disk: Sequence[Table], measure: str) -> Table | None:
    """None where a side has not been measured by it."""
    index, key = list(MEASURES).index(measure), KEYS[measure]
    spreads = [[one["live"][index] for one in side] for side in (target, disk)]
    if any(one is None for side in spreads for one in side):
        return None
    predicted, actual = ([one["median"] for one in side] for side in spreads)
    windows = min(len(one["windows"]) for one in [*target, *disk])
    each = [
        [[one["windows"][n][key] for one in side] for side in (target, disk)]
        for n in range(windows)
    ]
    whole = [sides for sides in each if None not in sides[0] + sides[1]]
    right = judge.count(same_order(*sides) for sides in whole)
    verdict = "measured"
    if target[0]["target"] == LITERAL.name:
        verdict = "in part" if same_order(predicted, actual) else "refuted"
        verdict = "holds" if right == windows else verdict
    void: dict[str, list[str]] = {}
    for one in [*disk, *target]:
        if one["verdict"] == "void":
            void.setdefault(one["target"], []).append(one["policy"])
    return {
        "target": target[0]["target"],
        "ranking": target[0]["ranking"],
        "measure": measure,
        "right": right,
        "windows": windows,
        "tau": [tau(*sides) for sides in whole],
        "predicted": predicted,
        "actual": actual,
        "errors": [p / a - 1 for p, a in zip(predicted, actual, strict=True)],
        "void": void,
        "verdict": "void" if void else verdict,
    }


def record(found: Table) -> Record:
    """A ranking as a row that may decide a claim, as the simulator's are."""
    name = f"{found['target']}: rank of {found['ranking']} by {found['measure']}"
    why = f"right in {found['right']} of {found['windows']} windows"
    if found["void"]:
        sides = [f"{side} ({', '.join(late)})" for side, late in found["void"].items()]
        why += f"; above {100 * runs.LATE_MAX:g} % late on {' and '.join(sides)}"
    paper = 1 if found["target"] == LITERAL.name else None
    verdict = judge.Verdict(found["verdict"])
    return judge.Row(name, paper, found["tau"], "τ", verdict, why).record(EXPERIMENT)


# --- tables


def figures_table(rows: Sequence[Table], window_s: int) -> runs.Table:
    """Every scheduler on every target."""

    def median(side: str, measure: int) -> Any:
        return lambda row: row[side][measure] and row[side][measure]["median"]

    columns: twin.Columns = {"device": lambda row: row["target"]}
    columns["scheduler"] = lambda row: row["policy"]
    for number, (name, unit) in enumerate(MEASURES.items()):
        columns[f"{name} ({unit})"] = median("live", number)
        columns[f"{name}, simulator"] = median("simulated", number)
    columns["throttle adds (%)"] = lambda row: row["added"] and 100 * row["added"]["median"]
    columns["late (%)"] = lambda row: 100 * row["late"]
    columns["host CPU (%)"] = lambda row: 100 * row["host_busy"]
    columns["verdict"] = lambda row: row["verdict"]
    note = (
        f"Medians over the windows, {window_s} s of the device's time each; times are over k, "
        "throughput is times k. The simulator has the same load on the model alone, with the same "
        "seeds, for policies of the daemon. throttle adds: what images and timers that were late "
        f"add to the model's mean service, {100 * ADDED:g} % asked at most. late: the largest "
        "share of a window's commands whose real completion came after the model's; above "
        f"{100 * runs.LATE_MAX:g} % a row is void. The image in memory has no throttle: what the "
        "guest, virtio and the daemon take by themselves."
    )
    return twin.table("vpt-rank in a real guest", rows, columns, note)


def ranks_table(found: Sequence[Table]) -> runs.Table:
    """Ranks and errors."""

    def each(key: str, form: str, unit: float = 1) -> Any:
        return lambda one: ", ".join(format(unit * value, form) for value in one[key])

    columns: twin.Columns = {
        "device": lambda one: one["target"],
        "ranked": lambda one: one["ranking"],
        "measure": lambda one: one["measure"],
        "right": lambda one: f"{one['right']} of {one['windows']}",
        "predicted": each("predicted", ".2f"),
        "are": each("actual", ".2f"),
        "errors (%)": each("errors", "+.0f", 100),
        "verdict": lambda one: one["verdict"],
    }
    lists = " or ".join(", ".join(one.ranked) for one in RANKINGS)
    note = (
        f"Figures are of {lists}, in this order. right: windows in which all three are in the "
        "disk's order. The paper's claim is of its form, the line at k = 8: it holds when every "
        "window is right, in part when the medians are."
    )
    return twin.table("Ranks and errors beside the detailed disk", found, columns, note)
