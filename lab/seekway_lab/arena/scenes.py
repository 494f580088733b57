"""Scenes: VMs on a device, as scenarios, and how a policy is judged there."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from seekway_lab.records import LabError

SCENES = Path(__file__).with_name("scenes.toml")
CACHE = {"size": "1GiB", "prefetch": "vio:interval=continuous"}
UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
UNITS_BYTES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
# Media in the order of tables.
MEDIA = ["flash", "cloud", "disk"]
# Follows the name of a policy that runs as the scene's device sets it.
SET = ", set"

Table = dict[str, Any]


def time_ns(text: str) -> int:
    """A time with its unit, in nanoseconds."""
    found = re.fullmatch(r"(\d+)(ns|us|ms|s)", text)
    if not found:
        raise LabError(f"{text}: a time with its unit, such as 500ms")
    return int(found[1]) * UNITS_NS[found[2]]


def size_bytes(value: str | int) -> int:
    """A size in bytes."""
    found = re.fullmatch(r"(\d+)\s*(\w*)", str(value))
    if not found or found[2] not in UNITS_BYTES:
        raise LabError(f"{value}: a size with its unit, such as 20MiB")
    return int(found[1]) * UNITS_BYTES[found[2]]


def policy_of(spec: str) -> str:
    """The policy's name in its specification."""
    return re.split("[:,]", spec, maxsplit=1)[0]


@dataclass(frozen=True)
class Promise:
    """A VM's service-level targets; 0 where there is none."""

    iops: int = 0
    bytes_per_s: int = 0
    latency_ns: int = 0

    @classmethod
    def of(cls, vm: Table) -> Promise:
        """The promises among a VM's limits."""
        limits = vm.get("limits", {})
        latency = limits.get("latency")
        return cls(
            iops=int(limits.get("reserve_iops", 0)),
            bytes_per_s=size_bytes(limits.get("reserve_bandwidth", 0)),
            latency_ns=time_ns(latency) if latency else 0,
        )


@dataclass(frozen=True)
class Judging:
    """Rules for judging a load.

    Attributes:
        shares: by VM, its share of the device where all are busy; 1 for those missing.
        promises: by VM.
        quiet: is the first VM's latency judged, instead of that of the VM that comes off worst?
        latency: is latency judged at all? Where weights say whose requests wait, it is not.
        judges_shares: are shares judged? Where promises say who gets what, they are not.
        unit: of throughput, ``MiB/s`` or ``IOPS``.
        window_ns: windows of Jain's index; 0 for a load that comes and goes.
        settle_ns: up to here nothing is measured.
    """

    shares: list[float] = field(default_factory=list)
    promises: list[Promise] = field(default_factory=list)
    quiet: bool = False
    latency: bool = True
    judges_shares: bool = True
    unit: str = "MiB/s"
    window_ns: int = 0
    settle_ns: int = 0

    @property
    def tables(self) -> list[str]:
        """The tables of an Outcome that the judge reads."""
        by_need = {
            "histograms": self.latency or any(promise.latency_ns for promise in self.promises),
            "series": self.window_ns > 0 and self.judges_shares,
        }
        return ["runs", "vms", *(name for name, needed in by_need.items() if needed)]


@dataclass(frozen=True)
class Scene:
    """VMs on a device.

    Attributes:
        name: device and scene, such as ``nvme/flood``.
        group: of an everyday scene, such as ``late``.
        scenario: all but policy and seed.
        operator: the policies that the device sets, by their names.
        kinds: for each kind of VM, the scenario in which it is alone, under noop.
        kind_of: by VM, its kind.
    """

    name: str
    about: str
    device: str
    medium: str | None
    group: str | None
    judging: Judging
    scenario: Table
    operator: dict[str, str]
    kinds: list[Table]
    kind_of: list[int]

    def spec(self, policy: str) -> str:
        """Specification that runs for a policy; the scene's device may set it."""
        return self.operator.get(policy.removesuffix(SET), policy) if SET in policy else policy

    def alone_seed(self, seed: int, seeds: list[int]) -> int:
        """The seed of the runs alone: of a load of the user's own, the first."""
        return seed if self.medium else seeds[0]


@dataclass(frozen=True)
class File:
    """A file of scenes."""

    devices: list[Table]
    scenes: list[Table]

    @classmethod
    def read(cls, path: Path = SCENES) -> File:
        """Devices and scenes as they stand in the file."""
        content = tomllib.loads(path.read_text())
        return cls(content["device"], content["scene"])

    def set_policies(self) -> list[str]:
        """The policies that the devices set, as `Scene.under` takes them."""
        return [f"{policy_of(spec)}{SET}" for spec in self.devices[0]["set"]]

    def all(self, shrink: int = 1) -> list[Scene]:
        """All scenes by device; times are divided by `shrink`."""
        pairs = [(d, s) for d in self.devices for s in self.scenes if d["name"] in s["on"]]
        if len(pairs) != sum(len(scene["on"]) for scene in self.scenes):
            raise LabError("a scene is on a device that is not in the file")
        return [scene_on(device, scene, shrink) for device, scene in pairs]

    def matching(self, pattern: str, shrink: int = 1) -> list[Scene]:
        """The scenes whose names match a pattern: `*`, commas, `all`."""
        known = self.all(shrink)
        parts = [part.strip() for part in pattern.split(",")]
        found = [s for s in known if any(p == "all" or fnmatchcase(s.name, p) for p in parts)]
        if not found:
            names = ", ".join(scene.name for scene in known)
            raise LabError(f"--scenes {pattern}: no such scene; there are {names}")
        return found


KEYS = {
    *("name", "about", "on", "quiet", "vms", "unit", "steady", "latency", "shares", "groups"),
    *("settle", "measure", "place", "group", "late", "prefetch"),
}


def scene_on(device: Table, scene: Table, shrink: int) -> Scene:
    """A scene of the file on a device; times are divided by `shrink`."""
    name = f"{device['name']}/{scene['name']}"
    if strange := set(scene) - KEYS:
        raise LabError(f"{name}: no key {strange.pop()}")
    times = {**device, **scene}
    settle_ns, measure_ns = (time_ns(times[key]) // shrink for key in ("settle", "measure"))
    vms = [dict(vm) for vm in scene["vms"]]
    if quiet := copy.deepcopy(scene.get("quiet")):
        if scene.get("late"):
            quiet["load"][-1]["start"] = f"{time_ns(scene['late']) // shrink}ns"
        vms.insert(0, {"name": "quiet", **quiet})
    groups = scene.get("groups", [])
    base = {
        "device": {"profile": device["profile"]},
        "measure": {"settle": f"{settle_ns}ns", "until": f"{settle_ns + measure_ns}ns"},
        **({"images": {"from": scene["place"]}} if scene.get("place") else {}),
        **({"cache": CACHE} if scene.get("prefetch") else {}),
        **({"group": groups} if groups else {}),
    }
    steady, latency = scene.get("steady", True), scene.get("latency", True)
    judging = Judging(
        shares=shares(vms, groups),
        promises=by_vm(vms, [Promise.of(vm) for vm in vms]),
        quiet=quiet is not None,
        latency=latency,
        judges_shares=scene.get("shares", True),
        unit={"mib_s": "MiB/s", "iops": "IOPS"}[scene.get("unit", "mib_s")],
        window_ns=time_ns(device["window"]) // shrink if steady else 0,
        settle_ns=settle_ns,
    )
    kinds = [alone(base, vm) for vm in vms]
    distinct = list({key(kind): kind for kind in kinds}.values())
    return Scene(
        name=name,
        about=scene["about"],
        device=device["name"],
        medium=device["medium"],
        group=scene.get("group"),
        judging=judging,
        scenario={**base, "vm": vms},
        operator={policy_of(spec): spec for spec in device["set"]},
        kinds=distinct,
        kind_of=by_vm(vms, [distinct.index(kind) for kind in kinds]),
    )


def alone(base: Table, vm: Table) -> Table:
    """The scenario in which a VM of this kind is the only one."""
    kept = {key: value for key, value in vm.items() if key not in ("count", "weight")}
    measure = dict(base["measure"])
    if any(is_over_before(load, measure) for load in vm["load"]):
        del measure["settle"]
    return {**base, "measure": measure, "vm": [{**kept, "name": "alone"}]}


def is_over_before(load: Table, measure: Table) -> bool:
    """Does nothing happen after settling? With --quick a pause may last longer than the run."""
    start, think = (time_ns(load.get(key, "0ns")) for key in ("start", "think"))
    settle, until = (time_ns(measure[key]) for key in ("settle", "until"))
    return start < settle and start + think >= until


def key(scenario: Table) -> str:
    """A text that equal scenarios share."""
    return json.dumps(scenario, sort_keys=True)


def by_vm(vms: list[Table], values: Iterable[Any]) -> list[Any]:
    """One value for each VM, from one for each entry."""
    return [value for vm, value in zip(vms, values, strict=True) for _ in range(vm.get("count", 1))]


def shares(vms: list[Table], groups: list[Table]) -> list[float]:
    """By VM, its weight, or its part of its group's."""
    of_group = {g["name"]: g["limits"].get("weight") for g in groups}
    members = by_vm(vms, [(vm.get("weight", 1), vm.get("limits", {}).get("group")) for vm in vms])
    totals: dict[str, int] = {}
    for weight, group in members:
        totals[group] = totals.get(group, 0) + weight

    def share(weight: int, group: str | None) -> float:
        whole = of_group.get(group) if group else None
        return float(weight) if whole is None else whole * weight / totals[str(group)]

    return [share(weight, group) for weight, group in members]
