"""A scenario of the user's own as a scene."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import seekway

from seekway_lab import engine
from seekway_lab.arena.scenes import Judging, Promise, Scene, Table, by_vm, time_ns
from seekway_lab.records import LabError

# VMs that run alone at most, for their shares.
ALONE_MAX = 16


def scene(path: Path) -> Scene:
    """The scenario of a file. No VM is the quiet one, and the load comes and goes.

    Raises:
        LabError: the file cannot be read, or is more than one run.
    """
    try:
        scenario = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise LabError(f"{path}: {error}") from error
    not_of_load = ("name", "policy", "seed", "outcome")
    scenario = {name: value for name, value in scenario.items() if name not in not_of_load}
    short = {**scenario, "measure": {"requests": 1}, "outcome": {"tables": ["runs", "vms"]}}
    tables = run_once(path, short)
    disks = tables["vms"]["host"].count(False)
    judging = judging_of(scenario, disks)
    kinds = []
    if 2 <= disks <= ALONE_MAX and each_alone(path, short, disks):
        kinds = [{**scenario, "only": n} for n in range(disks)]
    return Scene(
        name="own",
        about=f"{disks} VMs of your own",
        device=tables["runs"]["device"][0],
        medium=None,
        group=None,
        judging=judging,
        scenario=scenario,
        operator={},
        kinds=kinds,
        kind_of=list(range(len(kinds))),
    )


def run_once(path: Path, scenario: Table) -> dict[str, dict[str, list[Any]]]:
    """The tables of a scenario that is one run."""
    try:
        outcome = engine.outcome(scenario, engine.chosen())
    except seekway.SeekwayError as error:
        raise LabError(f"{path}: {error}") from error
    if len(outcome.runs) != 1:
        raise LabError(f"{path}: {len(outcome.runs)} runs: leave axes and cases out")
    return {name: table.to_arrow().to_pydict() for name, table in outcome.tables.items()}


def each_alone(path: Path, scenario: Table, disks: int) -> bool:
    """Is each disk a VM of its own? Several volumes of one trace cannot run alone."""
    try:
        return len(run_once(path, {**scenario, "only": disks - 1})["vms"]["vm"]) == 1
    except LabError:
        return False


def judging_of(scenario: Table, disks: int) -> Judging:
    """Weights and promises of all disks; those of traces come first, and have none."""
    generated = [vm for vm in scenario.get("vm", []) if "trace" not in vm]
    of_vms = by_vm(generated, ([vm, *vm.get("disk", [])] for vm in generated))
    of_disks = [disk for of_vm in of_vms for disk in of_vm]
    of_disks = [{}] * (disks - len(of_disks)) + of_disks
    settle = scenario.get("measure", {}).get("settle")
    return Judging(
        shares=[float(w) for w in scenario.get("weights", [])]
        or [float(disk.get("weight", 1)) for disk in of_disks],
        promises=[Promise.of(disk) for disk in of_disks],
        settle_ns=time_ns(settle) if settle else 0,
    )
