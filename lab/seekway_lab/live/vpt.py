"""vpt-rank, live (CATS, section 6, table 2): does the throttle's linear model rank three schedulers
as the detailed disk does?

One real guest has the load of the simulator's vpt-rank on `serve --emulate` of the detailed disk,
of the line fitted to it at k = 1 and at the paper's k = 8, and once on the image itself, without a
throttle.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

from seekway_lab.live import runs, scenes, twin
from seekway_lab.live.counters import spread
from seekway_lab.live.scenes import Scene
from seekway_lab.papers.cats import fit
from seekway_lab.papers.cats.figures import THREE
from seekway_lab.papers.cats.rank import same_order
from seekway_lab.records import LabError
from seekway_lab.scenarios import Table

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
    for target in TARGETS:
        options.tell(target.name)
        made = measure(target, seeds, options, window_s)
        for policy in THREE:
            model = [] if target.bare else simulated(target, policy, seeds, window_s)
            rows.append(row(target, policy, made[policy], model))
    found = predictions(rows)
    missed = any(row["verdict"] == "missed" for row in rows)
    shown = [figures_table(rows, window_s), ranks_table(found)]
    return runs.Report(shown, {"ran": rows, "predictions": found}, missed=missed)


def measure(
    target: Target, seeds: Sequence[int], options: runs.Options, window_s: int
) -> dict[str, list[Table]]:
    """All windows on a target by policy. Policies take turns within each seed.

    Slowed down they have a guest and a daemon each, at the same time: one alone makes an eighth of
    the requests.
    """
    scene, seeds = target.scene, seeds[:1] if target.bare else seeds
    if target.bare:
        scene = dataclasses.replace(scene, device=None)
    every = [scenes.Window(policy, seed) for seed in seeds for policy in THREE]
    groups = [every]
    if target.k > 1:
        groups = [[one for one in every if one.policy == policy] for policy in THREE]
    spans = (SETTLE_S * target.k, window_s * target.k)
    with ThreadPoolExecutor(len(groups)) as pool:
        made = pool.map(lambda group: scenes.measure(scene, group, options, *spans), groups)
        pairs = [
            (one.policy, window(live, target.k))
            for group, lives in zip(groups, made, strict=True)
            for one, live in zip(group, lives, strict=True)
        ]
    return {policy: [found for of, found in pairs if of == policy] for policy in THREE}


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
    target: Target, policy: str, windows: Sequence[Table], model: Sequence[Table] = ()
) -> Table:
    """A policy on a target: spreads over its windows, by measure. The keys in JSON stay."""

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
        "policy": policy,
        "live": spreads(windows),
        "simulated": spreads(model),
        "added": added,
        "late": late,
        "host_busy": max(one["host_busy"] for one in windows),
        "windows": list(windows),
        "verdict": verdict,
    }


def predictions(rows: Sequence[Table]) -> list[Table]:
    """Each target's ranking of the policies by each measure, beside the first, which is the disk.

    Only the paper's form is judged: it `holds` when every window has the disk's order, `in part`
    when the medians have it. `void` when a side is.
    """
    n = len(THREE)
    disk, *others = [rows[at : at + n] for at in range(0, len(rows), n)]
    every = [_prediction(target, disk, measure) for target in others for measure in MEASURES]
    return [found for found in every if found]


def _prediction(target: Sequence[Table], disk: Sequence[Table], measure: str) -> Table | None:
    """None where a side has not been measured by it."""
    index = list(MEASURES).index(measure)
    spreads = [[one["live"][index] for one in side] for side in (target, disk)]
    if any(one is None for side in spreads for one in side):
        return None
    predicted, actual = ([one["median"] for one in side] for side in spreads)
    windows = min(len(one["windows"]) for one in [*target, *disk])

    def is_right(n: int) -> bool:
        sides = [[one["windows"][n][KEYS[measure]] for one in side] for side in (target, disk)]
        return None not in sides[0] + sides[1] and same_order(*sides)

    right = sum(map(is_right, range(windows)))
    verdict = "measured"
    if target[0]["target"] == LITERAL.name:
        verdict = "in part" if same_order(predicted, actual) else "refuted"
        verdict = "holds" if right == windows else verdict
    void = any(one["verdict"] == "void" for one in [*target, *disk])
    return {
        "target": target[0]["target"],
        "measure": measure,
        "right": right,
        "windows": windows,
        "predicted": predicted,
        "actual": actual,
        "errors": [p / a - 1 for p, a in zip(predicted, actual, strict=True)],
        "verdict": "void" if void else verdict,
    }


# --- tables


def figures_table(rows: Sequence[Table], window_s: int) -> runs.Table:
    """Every policy on every target."""

    def median(side: str, measure: int) -> Any:
        return lambda row: row[side][measure] and row[side][measure]["median"]

    columns: twin.Columns = {"device": lambda row: row["target"], "policy": lambda r: r["policy"]}
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
        "seeds. throttle adds: what images and timers that were late add to the model's mean "
        f"service, {100 * ADDED:g} % asked at most. late: the largest share of a window's commands "
        f"whose real completion came after the model's; above {100 * runs.LATE_MAX:g} % a row is "
        "void. The image in memory has no throttle: what the guest, virtio and the daemon take by "
        "themselves."
    )
    return twin.table("vpt-rank in a real guest", rows, columns, note)


def ranks_table(found: Sequence[Table]) -> runs.Table:
    """Ranks and errors."""

    def each(key: str, form: str, unit: float = 1) -> Any:
        return lambda one: ", ".join(format(unit * value, form) for value in one[key])

    columns: twin.Columns = {
        "device": lambda one: one["target"],
        "measure": lambda one: one["measure"],
        "right": lambda one: f"{one['right']} of {one['windows']}",
        "predicted": each("predicted", ".2f"),
        "are": each("actual", ".2f"),
        "errors (%)": each("errors", "+.0f", 100),
        "verdict": lambda one: one["verdict"],
    }
    note = (
        f"Figures are of {', '.join(THREE)}, in this order. right: windows in which all three are "
        "in the disk's order. The paper's claim is of its form, the line at k = 8: it holds when "
        "every window is right, in part when the medians are."
    )
    return twin.table("Ranks and errors beside the detailed disk", found, columns, note)
