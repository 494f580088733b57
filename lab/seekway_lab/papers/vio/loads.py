"""Loads of the studies, each in its ways of reading ahead, and the kept figures of a run."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import seekway

from seekway_lab import scenarios
from seekway_lab.judge import mean
from seekway_lab.runs import Rows, rows_of
from seekway_lab.scenarios import Scenario, Table, merged

STUDIES = tomllib.loads((Path(__file__).parent / "studies.toml").read_text())
#: What everything is set beside: Linux's own read-ahead in the guest, and a host cache that fetches
#: nothing ahead.
BASE = "none"
#: The baseline once more in the next seconds: how much of a ratio is chance.
LATER = "none, the next window"
KEPT = ["simulated_ns", "bytes", "response_mean_ns", "device_bytes_per_s", "host_busy_ns"]
CACHED = ["read", "missed", "prefetched", "used", "dropped"]


def reduce(outcome: seekway.Outcome) -> dict[str, Rows]:
    """A row a run: its array, its host, applications' bytes and the cache's counts."""
    [run] = rows_of(outcome.runs)
    row = {key: run[key] for key in KEPT}
    for line in rows_of(outcome.cache):
        if line["vm"] is None:
            row |= {key: line[f"{key}_sectors"] for key in CACHED}
    apps = rows_of(outcome.apps)
    readers = [app for app in apps if app["app"].startswith("fio.read")]
    row["app_bytes"] = [app["bytes"] for app in apps]
    row["reader_bytes"] = sum(app["bytes"] for app in readers)
    row["reader_vms"] = len({app["vm"] for app in readers})
    armed = [stream["scale"] for stream in rows_of(outcome.streams) if stream["armed"]]
    row["scale"] = mean(armed) if armed else 0
    return {"runs": [row]}


def filled(value: Any) -> Any:
    """The value with the parts that its tables are `like`."""
    if isinstance(value, list):
        return [filled(one) for one in value]
    if not isinstance(value, dict):
        return value
    like = value.get("like", [])
    made: Table = {}
    for part in [like] if isinstance(like, str) else like:
        made = merged(made, filled(STUDIES["part"][part]))
    return merged(made, {key: filled(one) for key, one in value.items() if key != "like"})


@cache
def of(study: str) -> list[Scenario]:
    """A study's loads in each of their ways. `load` and `way` are among their axes."""
    base = merged(filled(STUDIES["base"]), filled(STUDIES["study"][study]))
    name, made = base.pop("name", "{case}"), []
    for case in base.pop("case", [{"name": ""}]):
        table = merged(base, case)
        table["name"], table["case"] = name, [{"name": case["name"]}]
        lab = table.pop("lab")
        ways = lab["ways"] + [LATER] * lab.get("whole_files", False)
        loads = scenarios.scenarios(table)
        made += [_in(way, load, lab) for load in loads for way in ways]
    return made


def _in(way: str, load: Scenario, lab: Table) -> Scenario:
    """A load in a way."""
    table = merged(load.table, STUDIES["way"][BASE if way == LATER else way])
    if way == LATER:
        table = merged(table, {"measure": {"settle": "5s", "until": "9s"}})
    vms = load.table["vm"]
    axes = {
        "load": load.name,
        "way": way,
        "case": load.axes["case"],
        "readers": lab.get("readers", False),
        "whole_files": lab.get("whole_files", False),
        "vms": sum(vm.get("count", 1) for vm in vms),
        "vcpus": vms[0]["guest"]["vcpus"],
    }
    return Scenario(f"{load.name}; {way}", table, load.policies, axes=axes)
