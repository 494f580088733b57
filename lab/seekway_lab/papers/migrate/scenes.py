"""VMs whose vCPUs share processors: a compute task on each vCPU, and an I/O task in each VM."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seekway_lab.scenarios import Scenario, Table, merged

LOADS = tomllib.loads(Path(__file__).with_name("loads.toml").read_text())
MICRO, APPLICATIONS = list(LOADS["micro"]), list(LOADS["applications"])
WORKS = LOADS["micro"] | LOADS["other"] | LOADS["applications"]
#: Policies for vCPUs: without an agent; the paper's, by its authors' program and by its text; ours.
VANILLA, OURS = "vanilla", "vmigrater"
PROGRAM, TEXT = PAPERS = ["vmigrater:published=true", "vmigrater:literal=true"]
COMPETITORS = ["vslicer", "xballoon"]
OTHERS = [*COMPETITORS, *PAPERS]
OF_VMIGRATER = [VANILLA, *PAPERS, OURS]
COMPARED = [VANILLA, *OTHERS, OURS]
ALL = [*COMPARED, "vsched"]
#: Processors of the paper's server, and vCPUs of each VM. vCPU n of each VM lies on processor n.
CORES = 12
#: The paper's host. Its published code (github.com/hku-systems/vMigrater) mounts a virtio-blk disk,
#: which has one queue in the QEMU of Ubuntu 16.04, and on vCPU 0, which handles all interrupts, it
#: starts no task that computes and to it it moves none (`src/main.c`).
KEPT_FREE, FIRST, ANY, STEERED = LOADS["heard"]
NOT_SHARED = "not shared"


@dataclass(frozen=True)
class Scene:
    """VMs on processors and a disk."""

    name: str
    table: Table
    #: Scenes over which rows are means.
    group: str = ""

    def changed(self, what: str, **keys: Any) -> Scene:
        """The scene with other values of some keys, which its name tells."""
        group = self.group and f"{self.group}, {what}"
        return Scene(f"{self.name}, {what}", merged(self.table, keys), group)

    def of(self, group: str) -> Scene:
        """The scene as one of a group."""
        return replace(self, group=group)

    def heard(self, who: str) -> Scene:
        """The scene with another vCPU that hears of completions."""
        vms = map(_first_kept_free, self.vms) if who == KEPT_FREE else self.vms
        return self.changed(who, cpu={"completes": LOADS["heard"][who]}, vm=list(vms))

    def papers(self) -> Scene:
        """The scene on the paper's host."""
        return self.heard(KEPT_FREE)

    def with_cpu_share(self, percent: int) -> Scene:
        """The two VMs, of which the first has a share of the processors."""
        shares = [percent, 100 - percent]
        vms = [{**vm, "cpu_weight": s} for vm, s in zip(self.vms, shares, strict=True)]
        return self.changed(f"CPU shares {percent}:{100 - percent}", vm=vms)

    def with_quotas(self) -> Scene:
        """The VMs, each with half of what two that read in sequence have from the HDD when nothing
        is shared. The paper gives no figure.
        """
        vms = [{**vm, "limits": {"bandwidth": "46MiB"}} for vm in self.vms]
        return self.changed("equal quotas", vm=vms)

    def unshared(self) -> Scene:
        """The VMs on the disk, each on processors of its own: what there is to be had when no vCPU
        is ever away. Each has vCPUs for all processors, and tasks on its own part.
        """
        cores, made = self.table["cpu"]["count"], []
        for number, vm in enumerate(self.vms):
            first, tasks = cores * number, []
            for task in vm["task"]:
                allowed = [first + n for n in task.get("allowed", range(vm["vcpus"]))]
                start = {"start": first + task["start"]} if "start" in task else {}
                tasks.append({**task, "allowed": allowed, **start})
            made.append({**vm, "agent": False, "vcpus": cores * len(self.vms), "task": tasks})
        return self.changed(NOT_SHARED, cpu={"count": cores * len(made)}, vm=made)

    @property
    def vms(self) -> list[Table]:
        """Its VMs."""
        vms: list[Table] = self.table["vm"]
        return vms


def scene(work: str, disk: str = "SSD", vms: int = 2, cores: int = CORES) -> Scene:
    """The paper's VMs: a compute task on each vCPU, and one that does this work."""
    tasks = [{"name": f"compute{n}", "start": n, "load": "compute"} for n in range(cores)]
    tasks.append({"name": work, "load": WORKS[work]})
    return of_tasks(f"{vms} VMs, {work} on {disk}", disk, cores, [tasks] * vms)


def of_tasks(name: str, disk: str, cores: int, tasks: Sequence[Sequence[Table]]) -> Scene:
    """VMs with these tasks. Their disks are larger than the reads of a run."""
    size = {"vcpus": cores, "size": "40GiB"}
    vms = [{"name": f"vm{n + 1}", **size, "task": list(own)} for n, own in enumerate(tasks)]
    return Scene(name, {**LOADS["disk"][disk], "cpu": {"count": cores}, "vm": vms})


def scenes(works: Iterable[str], kind: str, disk: str, vms: int) -> list[Scene]:
    """The paper's VMs with each of these works, as a group."""
    return [scene(work, disk, vms).of(f"{vms} VMs, {kind} on {disk}") for work in works]


def competing(vm: Table, load: Table) -> Table:
    """The VM with this load of its tasks that compute."""
    tasks = [{**t, "load": load} if t["load"] == "compute" else t for t in vm["task"]]
    return {**vm, "task": tasks}


def _first_kept_free(vm: Table) -> Table:
    tasks = [task for task in vm["task"] if task.get("start") != 0 or task["load"] != "compute"]
    allowed = {"allowed": list(range(1, vm["vcpus"]))}
    return {**vm, "task": [{**task, **allowed} for task in tasks]}


def under(scene: Scene, agents: Iterable[str], base: Scene | None = None) -> list[Scenario]:
    """The scene under policies for vCPUs. `base`: the scene with the best that is possible."""
    free = f"{(base or scene).name}, {NOT_SHARED}"
    axes = {"scene": scene.name, "free": free, "group": scene.group or None}
    made = []
    for agent in agents:
        table = merged(scene.table, {"cpu": {"agent": agent}})
        policy = table.pop("policy")
        made.append(
            Scenario(f"{scene.name}, {agent}", table, (policy,), axes={**axes, "agent": agent})
        )
    return made


def both(scene: Scene, agents: Iterable[str]) -> list[Scenario]:
    """The scene under policies for vCPUs, and not shared."""
    return under(scene, agents) + under(scene.unshared().of(""), [VANILLA])


def unique(*lists: Iterable[Scenario]) -> list[Scenario]:
    """Each scenario once."""
    named: dict[str, Scenario] = {}
    for scenario in itertools.chain(*lists):
        named.setdefault(scenario.name, scenario)
    return list(named.values())
