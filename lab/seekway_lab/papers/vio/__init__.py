"""VIO-prefetching: "An adaptive IO prefetching approach for virtualized data centers".

Common to all studies: eight solid-state drives in RAID 0, noop on the host, a host cache of 2 GiB,
and guests that tag their processes. The baseline has the guests' own read-ahead of 128 KiB and the
same cache, which fetches nothing ahead. Throughput is what applications moved.
docs/experiments/vio.md has the setting.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from seekway_lab.judge import Row, Runs, count, difference, factor, mean, measured, ordering
from seekway_lab.papers import Study
from seekway_lab.papers.vio import loads
from seekway_lab.papers.vio.loads import BASE
from seekway_lab.papers.vio.rows import (
    FLOOR,
    OFF,
    OURS,
    PAPER,
    VIO,
    Loads,
    Paper,
    asks,
    mean_of,
    means,
    of_load,
    speed,
    sweep,
)
from seekway_lab.runs import Run, Wanted
from seekway_lab.scenarios import Scenario, merged

#: The paper's mean speed-up of its applications, and of each streaming server at least.
PAPER_MEAN = 1.14
#: The paper's form beside the read-ahead of the host's kernel.
HOST_ON = ", host's read-ahead on"
STREAMS, LITTLE, PREDICTABLE = ["Darwin", "VS"], ["Wiki", "WS"], ["Cloudstone", "FS", "WP"]


def _figure_5(found: Loads, papers: Mapping[str, Paper]) -> list[Row]:
    """Each of the paper's forms with the guest's read-ahead off."""
    each = [(load, way) for load in found.scenarios for way in OFF.values()]
    rows = [of_load(found, load, way, papers.get(load)) for load, way in each]
    return [*rows, *means(found, "mean of all", papers.get("mean of all", {})), *asks(found)]


def _above(found: Loads, load: str) -> np.ndarray:
    """By how much the paper's vio is above its flashy."""
    vio, flashy = (found.speedup(load, OFF[form]) for form in ("vio", "flashy"))
    return np.asarray(vio - flashy, float)


def _above_flashy(found: Loads, paper: float) -> Row:
    """In the mean: flashy's region is the disk, so that it tells no processes apart."""
    values = mean_of(_above(found, load) for load in found.scenarios)
    row = difference("mean of all: vio above flashy, both as in the paper", paper, values)
    return row.ask(mean(values) > 0, "more than nothing")


def vms(found: Loads) -> list[Row]:
    """Sequential readers, one in each of several VMs (figure 5(a))."""
    mean_of_all = {"vio": 1.20, "flashy": 1.19}
    return _figure_5(found, {"6 VMs": {"vio": 1.30, "flashy": 1.35}, "mean of all": mean_of_all})


def procs(found: Loads) -> list[Row]:
    """Sequential readers, several in one VM (figure 5(b))."""
    rows = _figure_5(found, {"1 processes": {"vio": 1.18, "flashy": 1.19}})
    name = "6 processes: vio above flashy, both as in the paper"
    six = difference(name, 0.2, _above(found, "6 processes"))
    return [*rows, _above_flashy(found, 0.15), six]


def mixed_vms(found: Loads) -> list[Row]:
    """Sequential readers beside VMs that read and write at random (figure 5(c))."""
    return _figure_5(found, {"mean of all": {"vio": 1.13, "flashy": 1.13}})


def mixed_procs(found: Loads) -> list[Row]:
    """Sequential readers beside processes that read and write at random (figure 5(d))."""
    one = "1 of 12 processes read in sequence"
    papers = {one: {"vio": 1.10, "flashy": 1.08}, "mean of all": {"vio": 1.13, "flashy": 1.06}}
    least = np.min([_above(found, load) for load in found.scenarios], axis=0)
    name = "least of all: vio above flashy, both as in the paper"
    rows = _figure_5(found, papers)
    return [*rows, _above_flashy(found, 0.07), ordering(name, least, 0, "")]


def random(found: Loads) -> list[Row]:
    """Guests that read and write at random only (ours)."""
    rows = []
    for load in found.scenarios:
        for way in found.ways(load):
            row = of_load(found, load, way)
            # Ours does not pass over reads at polls, as the paper's does.
            if way in (VIO, OURS) and "every poll" not in load:
                row.ask(row.ours >= FLOOR, f"at least {FLOOR}")
            rows.append(row)
    return rows


# --- applications


def apps(found: Loads) -> list[Row]:
    """The paper's seven applications in 1 to 12 VMs (figures 6 to 8)."""
    rows = sweep(found, "mean of all", {"vio": PAPER_MEAN})
    for app in dict.fromkeys(found.of(load, "case") for load in found.scenarios):
        values = mean_of(found.speedups(found.among("case", app), PAPER))
        paper = {"vio": PAPER_MEAN} if app in STREAMS else {}
        rows.append(speed(f"{app}, mean of all: {PAPER}", PAPER, values, paper))
    for way in (VIO, OURS):  # readers beside writers, who fill the array
        for figure in ("read", "written"):
            values = found.ratio("VS, 12 VMs", way, BASE, f"{figure}_mib")
            rows.append(measured(f"VS, 12 VMs: {figure}, {way}", values, "×"))
    return [*rows, *_of_several(found), _accuracy_follows(found)]


def _of_several(found: Loads) -> list[Row]:
    """Claims about several applications, or several numbers of VMs."""
    few, many = (found.among("vms", number) for number in (1, 12))
    predictable, little = found.among("case", *PREDICTABLE), found.among("case", *LITTLE)
    rest = [load for load in found.scenarios if load not in little]

    def gain(loads: list[str]) -> np.ndarray:
        return mean_of(found.speedups(loads, PAPER))

    def most(loads: list[str]) -> np.ndarray:
        return np.asarray(found.speedups(loads, PAPER).max(axis=0), float)

    def costs(loads: list[str]) -> np.ndarray:
        return mean_of(found.each(load, PAPER, "cost") for load in loads)

    one, twelve = ([load for load in predictable if load in of] for of in (few, many))
    return [
        ordering("mean of the others over that of WS and Wiki", gain(rest) / gain(little), 1, "×"),
        factor("the most of all applications and numbers", 1.43, most(found.scenarios)),
        factor("Cloudstone, FS or WP, the most with 1 VM", 1.21, most(one)),
        # The middle of the paper's 1.02 to 1.07.
        factor("Cloudstone, FS and WP, mean with 12 VMs", 1.045, gain(twelve)),
        ordering("mean with 1 VM over that with 12", gain(few) / gain(many), 1, "×"),
        ordering("cost with 1 VM less that with 12", costs(few) - costs(many), 0, "%"),
    ]


def _accuracy_follows(found: Loads) -> Row:
    """The applications' means by seed: "the accuracy reasonably corresponds to the speedups"."""
    names = list(dict.fromkeys(found.of(load, "case") for load in found.scenarios))
    every = [found.among("case", name) for name in names]
    speeds = [mean_of(found.speedups(of, PAPER)) for of in every]
    accuracies = [mean_of(found.each(load, PAPER, "accuracy") for load in of) for of in every]
    values = rank_correlation(np.array(accuracies), np.array(speeds))
    row = ordering("rank correlation of accuracy and speed-up", values, 0, "")
    for name, accuracy, gain in zip(names, accuracies, speeds, strict=True):
        row.because(f"{name} {mean(accuracy):.1f} % and {mean(gain):.2f}")
    return row


def rank_correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Spearman's, of the columns of two tables without ties."""
    squares = (a.argsort(axis=0).argsort(axis=0) - b.argsort(axis=0).argsort(axis=0)) ** 2
    n = len(a)
    return np.asarray(1 - 6 * squares.sum(axis=0) / (n * (n * n - 1)), float)


def loop(found: Loads) -> list[Row]:
    """Behind a loop device, with and without the host's own read-ahead (ours; figures 5(a), 6)."""
    hosts = {"": (PAPER, BASE), HOST_ON: (PAPER + HOST_ON, "host's read-ahead")}
    rows = []
    for where, (way, base) in hosts.items():
        for load in found.scenarios:
            row = measured(f"{load}: {way}", found.ratio(load, way, base, "mib_s"), "×")
            mib_s, array = (found.mean(load, base, figure) for figure in ("mib_s", "array"))
            row.because(f"without {mib_s:.0f} MiB/s, {array:.1f} % of the array")
            rows.append(row.because(f"accuracy {found.mean(load, way, 'accuracy'):.1f} %"))
        readers = found.among("case", "Readers")
        others = [load for load in found.scenarios if load not in readers]
        for name, chosen in (("readers", readers), ("applications", others)):
            values = mean_of(found.ratio(load, way, base, "mib_s") for load in chosen)
            rows.append(measured(f"mean of {name}: {PAPER}{where}", values, "×"))
    return rows


# --- the host (figures 9 to 12)


def ratio(found: Loads) -> list[Row]:
    """Eight VMs with four processes each, of which some read and the others write (figure 9)."""
    rows = sweep(found, paper={"vio": 1.1})
    none, three, all_ = (found.speedup(f"{percent} % readers", PAPER) for percent in (0, 75, 100))
    return [
        *rows,
        ordering(f"three readers of four over none: {PAPER}", three / none, 1, "×"),
        ordering(f"all readers over three of four: {PAPER}", all_ / three, 1, "×"),
    ]


def schedulers(found: Loads) -> list[Row]:
    """Darwin under noop and CFQ in guest and host (figure 10)."""
    noop, *_, cfq = found.scenarios
    gains = {load: found.speedup(load, PAPER) for load in found.scenarios}
    speeds = {load: found.each(load, PAPER, "mib_s") for load in found.scenarios}

    def over(values: dict[str, np.ndarray], best: str) -> np.ndarray:
        others = [values[load] for load in values if load != best]
        return np.asarray(values[best] / np.max(others, axis=0), float)

    name = "speed-up under cfq in both over the most of the others"
    rows = [*sweep(found), ordering(f"{name}: {PAPER}", over(gains, cfq), 1, "×")]
    name = "throughput under noop in both over the most of the others"
    return [*rows, ordering(f"{name}: {PAPER}", over(speeds, noop), 1, "×")]


def mix(found: Loads) -> list[Row]:
    """Streaming VMs among eight (figure 11)."""
    rows, none = sweep(found, paper={"vio": 1.07}), "0 of 8 VMs stream"
    base = np.array(found.cell(none, BASE).app_bytes.to_list())
    for way in (VIO, OURS):  # one VM pays for what another gains, where the servers are most
        ours = np.array(found.cell(none, way).app_bytes.to_list())
        worst = (ours / np.maximum(base, 1)).min(axis=1)
        rows.append(measured(f"{none}: worst VM with {way}", worst, "×"))
    name = f"speed-up of {PAPER} with 8 of 8 streaming over that with none"
    gains = found.speedup("8 of 8 VMs stream", PAPER) / found.speedup(none, PAPER)
    return [*rows, ordering(name, gains, 1, "×")]


def queues(found: Loads) -> list[Row]:
    """Darwin and YCSB3 by the lengths of the guest's and the host's queue (figure 12).

    The paper: a longer one adds nothing for Darwin and nothing in the host.
    """
    rows = sweep(found)
    longer = {"guest": "guest 8192, host 128", "host": "guest 128, host 8192"}
    for app, where in itertools.product(("Darwin", "YCSB3"), longer):
        default = found.speedup(f"{app}, guest 128, host 128", PAPER)
        values = found.speedup(f"{app}, {longer[where]}", PAPER) / default
        name = f"{app}: speed-up with a longer queue in the {where} over the default's"
        is_claimed = (app, where) == ("YCSB3", "guest")
        row = factor(name, 1.1 / 1.04, values) if is_claimed else measured(name, values, "×")
        rows.append(row)
    return rows


INTERVALS = {"0.25 s": "0.25 s", "0.5 s": PAPER, "1 s": "1 s", "2 s": "2 s"}


def interval(found: Loads) -> list[Row]:
    """Mean time of 1 MiB reads by polling interval (figure 3)."""
    rows = []
    for load in found.scenarios:
        # Each VM has one under way at any time.
        times = {
            every: found.each(load, way, lambda runs: 1000 * runs.vms / runs.mib_s)
            for every, way in INTERVALS.items()
        }
        for every, way in INTERVALS.items():
            row = measured(f"{load}, every {every}: mean time of 1 MiB", times[every], "ms")
            gain, busy = mean(found.speedup(load, way)), found.mean(load, way, "busy")
            row.because(f"{gain:.2f} × the baseline's throughput, host thread busy {busy:.1f} %")
            rows.append(row)
        others = np.min([times[every] for every in times if every != "0.5 s"], axis=0)
        values = times["0.5 s"] / others
        row = measured(f"{load}: time at 0.5 s over the best other's", values, "×")
        row.paper = 1
        rows.append(row.ordered(count(values <= 1)))
    values = found.over_loads(INTERVALS["2 s"], "accuracy") / found.over_loads(PAPER, "accuracy")
    row = measured("accuracy at 2 s over that at 0.5 s", values, "×")
    return [*rows, *asks(found), row.ordered(count(values < 1))]


# --- ours


def room(found: Loads) -> list[Row]:
    """The gain over how much of the array is in use without prefetching (ours)."""
    rows = [of_load(found, load, PAPER) for load in found.scenarios]
    points = sorted(
        (found.mean(load, BASE, "array"), mean(found.speedup(load, PAPER)))
        for load in found.among("case", "ring")
    )
    if (at := crossed(points, PAPER_MEAN)) is not None:
        name = f"ring: use of the array at which {PAPER} gains {PAPER_MEAN}"
        rows.append(measured(name, [at], "%", "between two points of the means"))
    return rows


def crossed(points: list[tuple[float, float]], y: float) -> float | None:
    """The last x at which lines between the points fall through y."""
    found = None
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if y0 >= y > y1:
            found = x0 + (x1 - x0) * (y0 - y) / (y0 - y1)
    return found


def blend(found: Loads) -> list[Row]:
    """Several sequential readers on a turning disk, a drive and the array (figure 1)."""
    rows = []
    for disk in dict.fromkeys(found.of(load, "case") for load in found.scenarios):
        every = found.among("case", disk)
        if disk != "array":  # there vio-vms and vio-room have these
            rows += [of_load(found, load, PAPER) for load in every]
        for fewer, more in itertools.pairwise(every):
            values = found.each(more, BASE, "mib_s") / found.each(fewer, BASE, "mib_s")
            number = found.of(more, "vms")
            name = f"{disk}: {number} VMs over {found.of(fewer, 'vms')}"
            row = measured(name, values, "×")
            if disk == "turning disk":
                row = factor(name, 0.5, values)
            elif number == 4:  # the paper: fastest with four
                row = ordering(name, values, 1, "×")
            rows.append(row)
    return rows


def ablation(found: Loads) -> list[Row]:
    """One thing is changed at a time: which decides the speed-ups? (ours)"""
    each = [(load, way) for load in found.scenarios for way in found.ways(load)]
    rows = [of_load(found, load, way) for load, way in each if way in (PAPER, OFF["vio"])]
    # No load here is asked for a gain: some have no room on purpose.
    return [*rows, *asks(found, gains=False)]


class OfPrefetchers(Study):
    """A study of the host's prefetchers."""

    @staticmethod
    def form(run: Run) -> str:
        """The way of reading ahead of a run."""
        return str(run.scenario.axes["way"])

    @staticmethod
    def under(scenario: Scenario, policy: str) -> Scenario:
        """A scenario under another prefetcher."""
        return replace(scenario, table=merged(scenario.table, {"cache": {"prefetch": policy}}))


def _study(judge: Callable[[Loads], list[Row]]) -> Study:
    """A study of the name of its judge."""

    def of(found: Runs) -> list[Row]:
        return judge(Loads(found))

    name, of.__doc__ = "vio-" + judge.__name__.replace("_", "-"), judge.__doc__
    wanted = Wanted(loads.reduce, ("runs", "cache", "apps", "streams"))
    return OfPrefetchers(name, of, partial(loads.of, name), wanted, papers=(PAPER, OFF["vio"]))


FIGURE_5 = [vms, procs, mixed_vms, mixed_procs, random]
HOST = [ratio, schedulers, mix, queues, interval]
STUDIES = [_study(judge) for judge in [*FIGURE_5, apps, loop, *HOST, room, blend, ablation]]
