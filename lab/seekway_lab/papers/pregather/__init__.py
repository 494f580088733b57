"""Pregather: "Pregather: spatial-locality-aware disk scheduling in the virtualized cloud".

Common to all studies: the 7200 rpm disk of 1 TB, images of 12 GB one after the other from sector
1.2832·10⁹ (figure 1 of the paper), noop and Linux's read-ahead of 128 KiB in the guests, one
command at the disk, closed loops. Images are files of the host's ext3, and guests are behind Xen's
block ring of 32 requests of at most 11 pages, unless a case says otherwise. Requests are merged as
they arrive, up to 512 KiB, before a policy sees them, as its host's block layer does. The paper
does not say how long a completion takes to the guest and back; 0.5 ms is a guess.

Sysbench has its defaults: 16 threads and requests of 16 KiB; sequential work is 1 GiB, random work
10,000 requests with an fsync after each 100 writes. A sort is on one machine, without a network.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
import seekway

from seekway_lab import declared, runs, scenarios
from seekway_lab.judge import Row, Runs, mean, measured, value
from seekway_lab.papers import Study
from seekway_lab.scenarios import Scenario

HERE = Path(__file__).parent
ROWS = tomllib.loads((HERE / "rows.toml").read_text())
CFQ, LITERAL, HALF, OURS = (
    ROWS["names"][name]
    for name in ("cfq", "literal form", "literal form with half a rotation", "corrected form")
)
XEN = "Xen ring"
#: Pregather's timers, by which it counts its waits.
TIMERS = ("coarse", "fine")


# --- kept figures of a run


def figures(outcome: seekway.Outcome) -> dict[str, runs.Rows]:
    """A row with bandwidths in MiB/s, ends of applications in s and shares of seeks in percent."""
    [row] = runs.one_row(outcome)["runs"]
    vms = {vm["vm"]: vm for vm in runs.rows_of(outcome.vms) if not vm["host"]}
    rates = {name: vm["bytes"] / 2**20 / (vm["span_ns"] / 1e9) for name, vm in vms.items()}
    row |= {f"mib_s.{name}": rate for name, rate in rates.items()}
    row["bandwidth"] = sum(rates.values())
    row["mib_s"] = row["bytes"] / 2**20 / (row["simulated_ns"] / 1e9)
    ends = defaultdict(list)
    for app in runs.rows_of(outcome.apps):
        name, _, _ = app["app"].partition(".")  # of two equal ones: RW and RW.2
        for of in ["", f".{name}", f".{app['vm']}", f".{app['vm']}.{name}"]:
            ends[of].append(app["finished_ns"] / 1e9)
    row |= {f"mean_s{of}": fmean(times) for of, times in ends.items()}
    row |= {f"last_s{of}": max(times) for of, times in ends.items()}
    seeks = outcome.seeks.to_pandas().groupby(["by", "from_sectors"])["count"].sum()
    command, request = seeks["command"], seeks["request"]
    row["at_zero"] = 100 * command[0] / command.sum()
    row["at_zero_by_request"] = 100 * request[0] / request.sum()
    row["within_2^24"] = 100 * command.loc[: 2**24 - 1].sum() / command.sum()
    row["from_2^25"] = 100 - 100 * command.loc[: 2**25 - 1].sum() / command.sum()
    if "vm3" in vms:  # two random readers; VM2 has one more like them
        random = vms["vm3"]["requests"] * 3 // 2
        row["at_zero_of_streams"] = 100 * command[0] / (row["commands"] - random)
    if "policy.state_bytes" in row:
        row["state_kib"] = row["policy.state_bytes"] / 1024
    if "series" in outcome.tables:
        row["first_mib"] = first_mib(outcome.series.to_pandas(), list(vms))
    if "places" in outcome.tables:
        row |= of_places(outcome.places.to_pandas(), vms)
    return {"runs": [row]}


def first_mib(series: pd.DataFrame, vms: list[str]) -> float:
    """MiB of the first 30 s, in which all applications run."""
    early = series["from_ns"] + series["bin_ns"] <= 30e9
    return float(series["bytes"][early & series["vm"].isin(vms)].sum() / 2**20)


#: Sectors of a part of the disk (100 MB) whose requests are counted, and of an image's journal and
#: inodes (64 MB).
PART, START = 200_000, 131_072


def of_places(places: pd.DataFrame, vms: dict[str, dict[str, int]]) -> dict[str, float]:
    """Where requests lie, in percent.

    `same_places.VM`: overlap of the distributions in the first and the second half of a VM's time
    over parts of the disk, 100 where they are the same. `at_start`: of the requests, in the mean
    of all VMs, at the image's start.
    """
    found, starts = {}, []
    for name, vm in vms.items():
        of_vm = places[places["vm"] == name]
        late = of_vm["arrived_ns"] > vm["last_arrival_ns"] // 2
        parts = of_vm["sector"] // PART
        first, second = (parts[half].value_counts(normalize=True) for half in (~late, late))
        found[f"same_places.{name}"] = 100 * float(first.combine(second, min, fill_value=0).sum())
        starts.append(100 * float((of_vm["sector"] < vm["first_sector"] + START).mean()))
    return found | {"at_start": max(fmean(starts), 0.01)}


TABLES = ("runs", "metrics", "holds", "vms", "apps", "seeks")


# --- rows


def rows(study: str, found: Runs) -> list[Row]:
    """The rows of a study that are data."""
    return declared.rows({**ROWS, "row": ROWS["rows"][study]}, found)


def b(found: Runs) -> list[Row]:
    """The zone size in one VM, from 1 to 10^7 sectors (section VI-A, figure 4)."""
    return rows("pregather-b", found)


def mix(found: Runs) -> list[Row]:
    """Pairs of applications in one VM (section VI-A, table III)."""
    made = rows("pregather-mix", found)
    for guest, policy, form in [
        (XEN, LITERAL, "literal form"),
        (XEN, HALF, "literal form with half a rotation"),
        (XEN, OURS, "corrected form"),
        ("8 requests of 44 KiB", LITERAL, "literal form"),
    ]:
        for pairs, paper in [(["SWSW"], 90.6), (["RWRW", "RRRR"], 80.4)]:
            shares, tried = successful(found, [f"{pair}, {guest}" for pair in pairs], policy)
            name = f"{form}: successful waits, {' and '.join(pairs)}"
            if (guest, policy) == (XEN, LITERAL):
                row = value(name, paper, shares, "%", 0.1)
            else:
                row = measured(f"{guest}: {name}", shares, "%")
            made.append(row.because(f"of {tried:.0f} waits a run"))
    return made


def successful(found: Runs, loads: list[str], policy: str) -> tuple[np.ndarray, float]:
    """Share of the waits of some scenarios that end with a suitable request, in percent by seed,
    and how many waits there are.

    As the paper counts: the policy's own count of waits, coarse and fine, and of those in which a
    suitable request came before the timer or a deadline was over.
    """
    tried, paid = (
        np.sum(
            [
                found.each(load, policy, f"policy.{timer}_{what}")
                for load in loads
                for timer in TIMERS
            ],
            axis=0,
        )
        for what in ("tried", "paid")
    )
    return 100 * paid / np.maximum(tried, 1), mean(tried)


def read(found: Runs) -> list[Row]:
    """Three VMs that read: streams and random readers (section VI-B1, figure 5 and table IV)."""
    made = rows("pregather-read", found)
    for policy, form in [(LITERAL, "literal form"), (HALF, "literal form with half a rotation")]:
        shares, tried = successful(found, [XEN], policy)
        row = measured(f"{form}: successful waits", shares, "%")
        made.append(row.because(f"of {tried:.0f} waits a run"))
    return made


def sensitivity(found: Runs) -> list[Row]:
    """pregather-read with one thing changed: load, disk or a parameter of the policy."""
    made = []
    for s in found.scenarios:
        ratios = found.ratio(s, OURS, CFQ, "bandwidth")
        literal = mean(found.ratio(s, LITERAL, CFQ, "bandwidth"))
        made.append(measured(f"{s}: against cfq", ratios, "×", f"literal form {literal:.2f} ×"))
    for policy in [p for p in found.policies("as it is") if p not in (CFQ, LITERAL, OURS)]:
        ratios = found.ratio("as it is", policy, OURS, "bandwidth")
        form = policy.removeprefix("pregather:")
        made.append(measured(f"{form}: against the default", ratios, "×"))
    return made


def write(found: Runs) -> list[Row]:
    """Three VMs that write: where their requests lie (section III, figure 1(b))."""
    return rows("pregather-write", found)


def hadoop(found: Runs) -> list[Row]:
    """A MapReduce sort, alone and beside TPC-H (section VI-B2, figures 6 to 8)."""
    return rows("pregather-hadoop", found)


def memory(found: Runs) -> list[Row]:
    """The policy's state at the end of pregather-read (section VI-C, figure 9)."""
    return rows("pregather-memory", found)


def sync(found: Runs) -> list[Row]:
    """One request at a time, sequential and random: a reader that waits should lose nothing."""
    return rows("pregather-sync", found)


def _file(name: str) -> list[Scenario]:
    return scenarios.from_file(HERE / f"{name}.toml")


def _memory() -> list[Scenario]:
    """The first scenario of pregather-read under two forms."""
    paper, *_ = _file("pregather-read")
    return [Scenario(paper.name, paper.table, (LITERAL, OURS))]


def _study(
    name: str,
    judge: Callable[[Runs], list[Row]],
    *tables: str,
    papers: tuple[str, ...] = (LITERAL,),
) -> Study:
    wanted = runs.Wanted(figures, (*TABLES, *tables))
    return Study(name, judge, lambda: _file(name), wanted, papers=papers)


STUDIES = [
    _study("pregather-b", b, papers=()),
    _study("pregather-mix", mix),
    _study("pregather-read", read, "series"),
    _study("pregather-sensitivity", sensitivity, papers=()),
    _study("pregather-write", write, "places"),
    _study("pregather-hadoop", hadoop),
    Study("pregather-memory", memory, _memory, runs.Wanted(figures, TABLES)),
    _study("pregather-sync", sync),
]
