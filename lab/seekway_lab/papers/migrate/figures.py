"""Figures of a run of the vMigrater studies: throughput as tasks see it, moves, their costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import seekway

from seekway_lab.judge import Runs, Values
from seekway_lab.papers.migrate.scenes import NOT_SHARED
from seekway_lab.runs import Wanted

MIB = 2**20
#: Length of a bin of the table `blocks`.
BIN_S = 0.25


def reduced(outcome: seekway.Outcome) -> dict[str, list[dict[str, Any]]]:
    """A run's figures: rates in MiB/s, times in seconds, response in ms."""
    run, vms, cpu, tasks, blocks = (
        outcome.tables[name].to_pandas() for name in ("runs", "vms", "vcpus", "tasks", "blocks")
    )
    io, computing = tasks[tasks["io"]], tasks[~tasks["io"]]
    span_ns = run["simulated_ns"][0]
    span_s = span_ns / 1e9
    by_vm = io.groupby("vm")["bytes"].sum().reindex(cpu["vm"], fill_value=0)
    rates = by_vm.to_numpy(float) / MIB / span_s
    count, of_io = io["ios"].sum(), io.sum(numeric_only=True)
    of_vms = cpu.sum(numeric_only=True)
    bins = blocks.groupby("from_ns")["blocks"].sum()
    row = {
        "rate": rates.sum(),
        "bandwidth": (vms["bytes"] / MIB / (vms["span_ns"] / 1e9)).sum(),
        "computed_s": computing["ran_ns"].sum() / 1e9,
        "inactive_s": of_io["inactive_ns"] / count / 1e9,
        "response_ms": (io["response_mean_ns"] * io["ios"]).sum() / count / 1e6,
        # A least number of moves, as the paper counts it: one a slice of 11 ms.
        "moves": of_vms["moves"] * 0.011 / (span_s * len(cpu)),
        "work_time": 1 / max(io.loc[io["task"].str.startswith("compute"), "ios"].sum(), 1),
        "least_over_most": rates.min() / rates.max() if rates.any() else np.nan,
        "ahead": rates[-1] / rates[0] if rates[0] else np.nan,
    }
    kept = run[["bytes", "simulated_ns", "response_mean_ns"]].to_dict("records")[0]
    lists = {
        "rates": rates.tolist(),
        "any": (cpu["any_ran_ns"] / span_ns).tolist(),
        "bins_s": (bins.index / 1e9).tolist(),
        "bins": (bins * (of_io["bytes"] / count / MIB / BIN_S)).tolist(),
    }
    return {"runs": [kept | {name: float(value) for name, value in row.items()} | lists]}


WANTED = Wanted(reduced, ("runs", "vms", "vcpus", "tasks", "blocks"))


def by_agent(found: Runs) -> Runs:
    """The runs by scene and policy for vCPUs, beside the VMs' figures when nothing is shared.

    Columns are `kept`, throughput over that; `slower`, response over that; and `share`, throughput
    over what the schedule allows: that, for the time in which any vCPU of a VM runs.
    """
    runs = found.table("runs")
    runs = runs.assign(scenario=runs["scene"], policy=runs["agent"])
    free = runs[runs["scene"].str.endswith(NOT_SHARED)]
    free = free[["scene", "seed", "rate", "rates", "response_ms"]].rename(columns={"scene": "free"})
    runs = runs.merge(free, how="left", on=["free", "seed"], suffixes=("", "_free"))
    runs["kept"] = runs["rate"] / runs["rate_free"]
    runs["slower"] = runs["response_ms"] / runs["response_ms_free"]
    bounds = [
        np.dot(own, free) if isinstance(free, list) else np.nan
        for own, free in zip(runs["any"], runs["rates_free"], strict=True)
    ]
    runs["share"] = runs["rate"] / bounds
    return Runs({"runs": runs})


class Series:
    """MiB/s of a run by quarter of a second."""

    def __init__(self, run: pd.Series) -> None:
        self.from_s, self.rates = np.asarray(run["bins_s"]), np.asarray(run["bins"])

    def within(self, first: float, end: float) -> np.ndarray:
        """The rates of the bins that lie within a time."""
        inside = (self.from_s >= first) & (self.from_s + BIN_S <= end + 1e-9)
        found: np.ndarray = self.rates[inside]
        return found

    def level(self, first: float, end: float) -> float:
        """Result of a phase: the mean of its last second."""
        last = self.within(max(end - 1, first), end)
        return float(last.mean()) if len(last) else np.nan

    def recovery(self, first: float, end: float) -> float:
        """Seconds until 0.9 of the phase's final rate; the whole phase if it is never reached."""
        back = (self.from_s >= first) & (self.rates >= 0.9 * self.level(first, end))
        return float(self.from_s[back][0] + BIN_S - first) if back.any() else end - first


def across(found: Runs, members: list[str], ours: str, base: str, column: str = "rate") -> Values:
    """A ratio of two policies, seed by seed its mean over scenes."""
    return found.across(members, lambda scene: found.ratio(scene, ours, base, column))
