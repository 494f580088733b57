"""Figures of the VMCD paper: bandwidths over the whole run, φ, shares of device time, swings.

φ needs what each VM demands: its rate, the paper's figure for VMs that are told apart by the length
of their queues, else the bandwidth that it has alone with the same seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import seekway

from seekway_lab.judge import Runs, Values
from seekway_lab.runs import Rows, rows_of
from seekway_lab.scenarios import Scenario, from_file

FOLDER = Path(__file__).parent
MIB = 1 << 20
#: Before the names of scenarios on the paper's host.
HOST = "paper's host, "
#: Demands of figures 9 and 15: 10, 100 and 300 requests of 64 KiB a second, in MiB/s.
QUEUES, QUEUES_MIB_S = "10, 100 and 300 outstanding", (0.625, 6.25, 18.75)
#: φ below this share of what it is measured in counts as this: less than a thousandth of the
#: bandwidth misplaced is as fair as can be measured, and a ratio of two such figures says nothing.
PHI_FLOOR = 1e-3
#: Demands this near to each other are equal: the class of φ does not depend on a fourth digit.
EQUAL_WITHIN = 1e-3


# --- runs


def loads(study: str) -> list[Scenario]:
    """The scenarios of a study by the names that rows give them.

    Cases with one name are one load, under the policies of all of them.
    """
    found: dict[str, Scenario] = {}
    for scenario in from_file(FOLDER / f"{study}.toml"):
        name = _named(scenario)
        known = found.get(name, dataclasses.replace(scenario, name=name))
        found[name] = known.under(*scenario.policies)
    return list(found.values())


def _named(scenario: Scenario) -> str:
    """With the number of VMs in front, behind the host, and the depth at the end."""
    axes = scenario.axes
    case = str(axes["case"])
    host, parts = case.startswith(HOST), [case.removeprefix(HOST)]
    if "vm.count" in axes:
        parts.insert(0, f"{axes['vm.count']} VMs")
    if "vm.load.iodepth" in axes:
        parts.append(f"{axes['vm.load.iodepth']} outstanding")
    return (HOST if host else "") + ", ".join(filter(None, parts))


def with_alone(scenarios: Iterable[Scenario]) -> list[Scenario]:
    """The scenarios, and each VM alone where that is its demand: sorted, without waits."""
    every = list(scenarios)
    for scenario in list(every):
        for number, vm in enumerate(scenario.table["vm"]):
            if _known_demand(scenario, number) is None:
                table = {**scenario.table, "vm": [_spec(vm)]}
                every.append(Scenario(_alone(scenario.name, number), table, ("deadline",)))
    return every


def _alone(name: str, number: int) -> str:
    return f"{name}: VM {number} alone"


def _spec(vm: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in vm.items() if key not in ("count", "weight")}


def _known_demand(scenario: Scenario, number: int) -> float | None:
    """Demands of an entry's VMs in MiB/s, where its loads state them."""
    load = scenario.table["vm"][number]["load"][0]
    if "rate_iops" in load:
        return float(load["rate_iops"] * int(load["bs"].removesuffix("KiB")) / 1024)
    return QUEUES_MIB_S[number] if QUEUES in scenario.name else None


def reduced(outcome: seekway.Outcome) -> dict[str, Rows]:
    """Figures of a run and of its VMs; with `series`, how bandwidth swings.

    Swings are deviations over means, in per cent, of the bytes of each whole second. An end that
    does not fill a second is left out: of one VM its own, of all VMs the last one's.
    """

    def swing(by_second: pd.Series) -> float:
        return float(100 * by_second.std(ddof=0) / by_second.mean())

    [run] = rows_of(outcome.runs)
    kept = ("requests", "bytes", "simulated_ns", "response_mean_ns", "cpu_ns")
    row = {key: run[key] for key in kept}
    if "series" in outcome.tables:
        bins = outcome.series.to_pandas()
        bins["second"] = bins.from_ns // 10**9
        ends = bins.groupby("vm").bin_ns.sum() // 10**9
        by_vm = bins.pivot_table("bytes", "second", "vm", "sum", fill_value=0)
        by_vm = by_vm.reindex(range(ends.max()), fill_value=0)
        row["swing"] = swing(by_vm.sum(axis=1))
        row["vm_swing"] = sum(swing(by_vm[vm].iloc[:end]) for vm, end in ends.items()) / len(ends)
    vms = [{key: vm[key] for key in ("bytes", "device_time_ns")} for vm in rows_of(outcome.vms)]
    return {"runs": [row], "vms": vms}


# --- measurements


def phi(demands: Sequence[float], got: Sequence[float]) -> float:
    """The paper's index of fairness (section 3.1), smaller is fairer: a sum of distances.

    Of VMs that demand the same from their mean, in MiB/s. Otherwise, as shares, from its demand of
    a VM below the mean demand, and from its part of all that was got of one above.
    """
    d, g = np.asarray(demands, float), np.asarray(got, float)
    if d.max() - d.min() <= EQUAL_WITHIN * d.max():
        return float(abs(g - g.mean()).sum())
    due = np.where(d < d.mean(), d, d / d.sum() * g.sum())
    return float((abs(g - due) / due).sum())


def figures(found: Runs, scenarios: Sequence[Scenario]) -> Runs:
    """The runs of the scenarios with the paper's measures.

    Columns of `runs`: `mib_s`, `iops`, `response_ms`; `cpu`, per cent of a processor; `vms`, their
    number; `got`, their bandwidths; `phi`; `phi_floor`, which φ counts as at least; `misplaced`, φ
    in per cent of the bandwidth of equal VMs, else φ itself; `least_served`, the worst VM's
    bandwidth over its demand; `off_share`, the distance of the share of device time that is
    furthest from an even one, in points.
    """
    vms = dict(list(found.table("vms").groupby(["scenario", "policy", "seed"], sort=False)))
    runs = found.table("runs").copy()
    seconds = runs.simulated_ns / 1e9
    runs["mib_s"], runs["iops"] = runs.bytes / MIB / seconds, runs.requests / seconds
    runs["response_ms"], runs["cpu"] = runs.response_mean_ns / 1e6, runs.cpu_ns / seconds / 1e7
    alone = runs.set_index(["scenario", "seed"]).mib_s
    by_name = {scenario.name: scenario for scenario in scenarios}
    runs = runs[runs.scenario.isin(by_name)]
    beside = []
    for run in runs.to_dict("records"):
        scenario, vm = by_name[run["scenario"]], vms[run["scenario"], run["policy"], run["seed"]]
        demands = _demands(scenario, alone, run["seed"])
        beside.append(_of_run(run, vm, demands, is_equal(scenario)))
    more = pd.DataFrame(beside, index=runs.index)
    return Runs({"runs": pd.concat([runs, more], axis=1)})


def is_equal(scenario: Scenario) -> bool:
    """Whether all VMs of a scenario ask for the same."""
    specs = [_spec(vm) for vm in scenario.table["vm"]]
    return all(spec == specs[0] for spec in specs)


def _demands(scenario: Scenario, alone: pd.Series, seed: int) -> list[float]:
    demands = []
    for number, vm in enumerate(scenario.table["vm"]):
        known = _known_demand(scenario, number)
        demand = alone[_alone(scenario.name, number), seed] if known is None else known
        demands += [demand] * vm.get("count", 1)
    return demands


def _of_run(
    run: dict[str, Any], vms: pd.DataFrame, demands: list[float], equal: bool
) -> dict[str, Any]:
    got = vms.bytes.to_numpy() / MIB / (run["simulated_ns"] / 1e9)
    time = 100 * vms.device_time_ns.to_numpy() / max(vms.device_time_ns.sum(), 1)
    index = phi(demands, got)
    return {
        "vms": len(vms),
        "got": got,
        "phi": index,
        "phi_floor": PHI_FLOOR * run["mib_s"] if equal else PHI_FLOOR,
        "misplaced": 100 * index / run["mib_s"] if equal else index,
        "least_served": min(got / demands),
        "off_share": max(abs(time - 100 / len(vms))),
    }


def ratio(runs: Runs, scenario: str, ours: str, base: str, figure: str) -> np.ndarray:
    """A figure under one policy over that under another, by seed; φ not below the base's floor."""
    if figure != "phi":
        return runs.ratio(scenario, ours, base, figure)
    floor = runs.each(scenario, base, "phi_floor")
    mine, theirs = (np.maximum(runs.each(scenario, p, "phi"), floor) for p in (ours, base))
    return np.asarray(mine / theirs)


def geometric(ratios: Sequence[Values]) -> np.ndarray:
    """Seed by seed the geometric mean of several loads' ratios: each counts the same."""
    return np.asarray(np.exp(np.log(np.asarray(ratios, float)).mean(axis=0)))
