"""Rows of the VMCD paper's studies: claims and figures as data, and the targets of vmcd-time."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from seekway_lab import declared, judge
from seekway_lab.judge import Row, Runs, mean
from seekway_lab.papers.vmcd.figures import FOLDER, HOST, geometric, is_equal, ratio
from seekway_lab.scenarios import Scenario

BASES = ["cfq", "deadline", "anticipatory"]
#: Columns of claims' figures.
COLUMNS = {"φ": "phi", "bandwidth": "mib_s", "IOPS": "iops", "mean response": "response_ms"}
#: "At least CFQ's bandwidth" is met within this, "φ no worse" within this of the bandwidth (equal
#: demands) or of each VM's due (unequal ones).
TOLERANCE = 0.01
#: Device time by weight and φ by demand cannot both be.
PHI_NOT_ASKED = {
    "10, 100 and 300 outstanding": "with even weights vmcd-time shares device time, not queues",
    "at a rate, 256 outstanding at most, weights 1:10:30": (
        "a 41st of the time, its weight, is less than VM1's rate"
    ),
}
#: The policies that the paper claims to swing least.
SWINGS_LEAST = [f"{HOST}512 B sequential reads", f"{HOST}64 KiB random writes"]
#: An ablation, of which nothing is asked.
NO_READ_AHEAD = "512 B, no read-ahead in the drive"
#: CPU time above CFQ's, points of a per cent of a processor.
MORE_CPU = 3.0


def rows(study: str, runs: Runs, loads: Sequence[Scenario]) -> list[Row]:
    """The rows of a study that all studies have."""
    data = tomllib.loads((FOLDER / "rows.toml").read_text())
    mine = [
        {key: value for key, value in row.items() if key != "studies"}
        for row in data["row"]
        if study in row["studies"]
    ]
    made = [_swinging_least(row, runs) for row in declared.rows({**data, "row": mine}, runs)]
    made += [row for spec in data["claim"] if spec["study"] == study for row in claims(spec, runs)]
    equal = {load.name: is_equal(load) for load in loads}
    for name in runs.scenarios:
        if not name.startswith(HOST) and name != NO_READ_AHEAD:
            made += ours(runs, name, equal[name])
    return made


def claims(spec: Mapping[str, Any], runs: Runs) -> Iterator[Row]:
    """The rows of a claim: vmcd over each baseline, over all its scenarios."""
    names, figure = spec.get("in", [spec["name"]]), spec["figure"]
    scenarios = [s for s in runs.scenarios if any(fnmatchcase(s, name) for name in names)]
    for base, paper in _papers(spec).items():
        ratios = [ratio(runs, s, "vmcd", base, COLUMNS[figure]) for s in scenarios]
        name = f"{spec['name']}: {figure} of vmcd against {base}"
        yield judge.factor(name, paper, geometric(ratios))


def _papers(spec: Mapping[str, Any]) -> dict[str, float]:
    """The paper's ratio of vmcd over each baseline."""
    if "paper" in spec:
        return dict(spec["paper"])
    table = {policy: np.reshape(figures, (-1, 1)) for policy, figures in spec["table"].items()}
    ours = table.pop("vmcd")
    return {base: float(geometric(list(ours / theirs))[0]) for base, theirs in table.items()}


def ours(runs: Runs, scenario: str, equal: bool) -> list[Row]:
    """Criteria for vmcd-time on the bare disk: CFQ's bandwidth, vmcd's fairness."""
    vms = int(runs.each(scenario, "cfq", "vms")[0])
    bandwidth = runs.ratio(scenario, "vmcd-time", "cfq", "mib_s")
    literal = mean(runs.ratio(scenario, "vmcd", "cfq", "mib_s"))
    name = f"{scenario}: bandwidth of vmcd-time against cfq"
    row = judge.measured(name, bandwidth, "×", f"vmcd itself has {literal:.2f}")
    if mean(runs.each(scenario, "cfq", "least_served")) < 0.25 / vms:
        row.because("nothing is asked, for cfq starves a VM")
    else:
        enough = mean(bandwidth) >= 1 - TOLERANCE
        row.ask(enough, "cfq's bandwidth, to within a per cent,")
    if vms == 1:
        return [row]
    mine, papers = (runs.each(scenario, p, "misplaced") for p in ("vmcd-time", "vmcd"))
    what, unit = ("φ over bandwidth", "%") if equal else ("φ", "")
    why = f"vmcd's is {mean(papers):.3g}"
    fair = judge.measured(f"{scenario}: {what} of vmcd-time", mine, unit, why)
    if scenario in PHI_NOT_ASKED:
        fair.because(f"nothing is asked: {PHI_NOT_ASKED[scenario]}")
    else:
        slack = TOLERANCE * (100 if equal else vms)
        fair.ask(mean(mine) <= mean(papers) + slack, f"no more than that, to within {slack:g},")
    return [row, fair]


def _swinging_least(row: Row, runs: Runs) -> Row:
    """Judges that all VMs together swing least under vmcd, which has no figure in the paper."""
    scenario, _, what = row.name.partition(": ")
    if scenario not in SWINGS_LEAST or not what.startswith("swing of all VMs"):
        return row
    least = np.min([runs.each(scenario, base, "swing") for base in BASES], axis=0)
    right = judge.count(np.asarray(row.values) < least)
    return row.because(f"smallest on {right} of {len(least)} seeds").ordered(right)


def least_gains(runs: Runs) -> list[Row]:
    """Whether each VM gets more than under any baseline, of which there are no figures.

    The figure is the gain of the VM that gains least.
    """
    made = []
    for scenario in (s for s in runs.scenarios if s.endswith(" of 512 B, 4 KiB and 128 KiB")):
        ours, *others = (np.stack(list(runs.cell(scenario, p).got)) for p in ("vmcd", *BASES))
        gains = (ours / np.max(others, axis=0)).min(axis=1)
        name = f"{scenario}: least gain of a VM over its best baseline"
        made.append(judge.measured(name, gains, "×").ordered(judge.count(gains > 1)))
    return made


def path(runs: Runs) -> list[Row]:
    """Bandwidth without a shared thread over the baselines' with one, by the thread's time."""
    made = []
    for vms, time in itertools.product(range(1, 5), ("100 µs", "300 µs")):
        for form, base in [*(("vmcd", base) for base in BASES), ("vmcd:late=free", "cfq")]:
            free = runs.each(f"{HOST}{vms} VMs, no thread", form, "mib_s")
            shared = runs.each(f"{HOST}{vms} VMs, {time}", base, "mib_s")
            name = f"{vms} VMs, {time}: bandwidth of {form} without the thread against {base}"
            made.append(judge.measured(name, free / shared, "×"))
    return made


def cpu(runs: Runs) -> list[Row]:
    """Shares of a processor above CFQ's: the time of the simulation over the simulated time.

    Policies that serve the same number of requests differ by the policies' own time alone.
    """
    made, most = [], []
    for scenario in runs.scenarios:
        more = {
            policy: runs.each(scenario, policy, "cpu") - runs.each(scenario, "cfq", "cpu")
            for policy in ("vmcd", "vmcd-time")
        }
        for policy, points in more.items():
            name = f"{scenario}: share of a CPU, {policy} above cfq"
            made.append(judge.measured(name, points, "points"))
        most.append(more["vmcd"])
    name = "1 to 5 VMs: share of a CPU, vmcd above cfq at most"
    return [*made, judge.limit(name, MORE_CPU, np.max(most, axis=0), "points")]
