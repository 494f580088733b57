"""The scenes, each a mix of VMs on a disk, and the scenarios of each."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import seekway

from seekway_lab.records import LabError
from seekway_lab.runs import Rows, Wanted, rows_of
from seekway_lab.scenarios import Scenario, Table, merged

DATA: Table = tomllib.loads(Path(__file__).with_name("scenes.toml").read_text())
HOST: Table = DATA["host"]
ASKED: Table = DATA["asked"]
#: All parts beside the policy.
ALL = ("cache", "prefetching", "tags", "agent")
OFF, ON = "noop", "fairway"
#: Setting that leaves each part out.
EACH = {"fairway": f"all on, {OFF}"} | {
    part: f"without {part}" for part in ("the cache", "prefetching", "tags", "the agent")
}


@dataclass(frozen=True)
class Scene:
    """A mix of VMs on a disk."""

    name: str
    disk: Table
    mix: Table

    @property
    def vms(self) -> list[str]:
        """Names in the order of every table."""
        return list(self.mix["vm"])

    @property
    def free(self) -> list[str]:
        """VMs without a rate."""
        return [vm for vm in self.vms if not self.is_paced(vm)]

    @property
    def has_each_part(self) -> bool:
        """Whether its parts run one by one."""
        return bool(self.mix.get("each_part"))

    def is_paced(self, vm: str) -> bool:
        """Whether more of the disk is of no use to a VM."""
        return bool(self.mix["vm"][vm].get("paced"))

    def ways(self, policies: Iterable[str] = ()) -> dict[str, tuple[str, str]]:
        """All ways in which it runs, with scenario and policy of each; with further policies."""
        on = {f"all on, {policy}": {"policy": policy, "parts": ALL} for policy in contestants()}
        on |= {f"all on, {policy}": {"policy": policy, "parts": ALL} for policy in policies}
        every = on | DATA["way"] | (DATA["each_part"] if self.has_each_part else {})
        return {
            name: (self._name(way.get("parts", ())), way.get("policy", ON))
            for name, way in every.items()
        }

    def scenarios(self, policies: Iterable[str] = ()) -> list[Scenario]:
        """All that runs: the ways, each VM alone on its private disk and with the whole host."""
        named: dict[str, tuple[Table, list[str]]] = {}
        for parts in self._parts():
            named[self._name(parts)] = (self._table(parts, self.vms), [])
        for name, policy in self.ways(policies).values():
            named[name][1].append(policy)
        share = {"cache": {"size": f"{HOST['cache_mib'] // len(self.vms)}MiB"}}
        slow = {"device": {"slow": len(self.vms)}, "cpu": {"part": len(self.vms)}}
        for vm in self.vms:
            private = merged(merged(self._table(["cache"], [vm]), share), slow)
            named[f"{self.name}, {vm}: private"] = (private, [OFF])
            whole = merged(self._table(ALL, [vm]), share)
            named[f"{self.name}, {vm}: whole"] = (whole, [OFF])
            if self.is_paced(vm):
                named[f"{self.name}, {vm}: alone"] = (self._table([], [vm]), [OFF])
        return [Scenario(name, table, tuple(ps)) for name, (table, ps) in named.items() if ps]

    def _parts(self) -> list[Sequence[str]]:
        ways = [*DATA["way"].values(), *DATA["each_part"].values()]
        return [ALL, *(way.get("parts", ()) for way in ways)]

    def _name(self, parts: Sequence[str]) -> str:
        return f"{self.name}: {', '.join(parts) or 'nothing'}"

    def _table(self, parts: Sequence[str], vms: Iterable[str]) -> Table:
        """Some of its VMs on its disk with these parts."""
        cache = {
            "size": f"{HOST['cache_mib']}MiB",
            "prefetch": HOST["prefetch"] if "prefetching" in parts else "none",
        }
        return {
            "device": {"profile": self.disk["profile"]},
            "measure": self.disk["measure"],
            "cache": cache if "cache" in parts else "none",
            "cpu": {
                "count": HOST["processors"],
                "agent": HOST["agent"] if "agent" in parts else "vanilla",
                "guests_compute": self.mix.get("guests_compute", False),
            },
            "vm": [self._vm(name, parts) for name in vms],
        }

    def _vm(self, name: str, parts: Sequence[str]) -> Table:
        vm = self.mix["vm"][name]
        more = HOST["cache_mib"] // len(self.vms) if "memory" in parts else 0
        guest = {"vcpus": HOST["processors"], "ram": f"{vm['ram'] + more}MiB", "warm": True}
        guest |= {"tags": "tags" in parts, **vm.get("guest", {})}
        return {"name": name, "guest": guest, "load": _filled(vm["load"], self.disk["load"])}


def _filled(load: Sequence[Table], values: Table) -> list[Table]:
    def filled(value: Any) -> Any:
        return value.format(**values) if isinstance(value, str) else value

    return [{key: filled(value) for key, value in one.items()} for one in load]


def contestants() -> list[str]:
    """All policies."""
    return [policy["name"] for policy in seekway.policies()]


def every() -> list[Scene]:
    """All scenes in the order of every table."""
    return [
        Scene(disk["name"] if mix == "ordinary" else f"{disk['name']}, {mix}", disk, table)
        for mix, table in DATA["mix"].items()
        for disk in DATA["disk"]
        if mix != "union" or "even" in disk["load"]
    ]


def chosen(patterns: str) -> list[Scene]:
    """The scenes of a name or a pattern, or of several with commas between them."""
    names = [scene.name for scene in every()]
    is_one = any(fnmatchcase(name, patterns) for name in names)
    wanted = [patterns] if is_one else [one.strip() for one in patterns.split(",")]
    found = [s for s in every() if any(fnmatchcase(s.name, one) for one in wanted)]
    if not found:
        raise LabError(f"no scene {patterns}; there are {'; '.join(names)}")
    return found


# --- kept figures of a run

#: A VM that moved nothing counts as this, so that ratios stay finite, MiB/s.
RATE_MIN = 1e-6
MIB = 1 << 20


def reduced(outcome: seekway.Outcome) -> dict[str, Rows]:
    """One row a run: figures of each VM as `VM.FIGURE`.

    `mib_s` is what its applications read and wrote; `p99_ms` of its tasks' waits for the disk, from
    asking to running again, at least 1; `lost` per cent of its vCPUs' time in which they had
    something to run and no processor; `busy` the part of the time in which the disk worked for it.
    """
    [run] = rows_of(outcome.runs)
    seconds = run["simulated_ns"] / 1e9
    row: dict[str, Any] = {"simulated_s": seconds}
    apps, disks = rows_of(outcome.apps), rows_of(outcome.vms)
    for vm, disk in zip(rows_of(outcome.vcpus), disks, strict=True):
        name = vm["vm"]
        moved = sum(app["bytes"] for app in apps if app["vm"] == name)
        figures = {
            "mib_s": max(moved / MIB / seconds, RATE_MIN),
            "p99_ms": max(vm["wait_p99_ns"], 1_000_000) / 1e6,
            "lost": 100 * vm["stolen_ns"] / 1e9 / (seconds * vm["vcpus"]),
            "busy": min(disk["device_time_ns"] / 1e9 / seconds, 1.0),
        }
        row |= {f"{name}.{figure}": value for figure, value in (vm | figures).items()}
    return {"runs": [row]}


WANTED = Wanted(reduced, ("runs", "vms", "apps", "vcpus"))
