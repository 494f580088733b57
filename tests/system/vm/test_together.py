"""The live experiment `together` as a whole, for a moment: guests with their applications on two
daemons in turn, both agents, and turns of the vCPUs. What it measures is not looked at."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from seekway_lab.live import together
from seekway_lab.live.together import BUILD, FILE_SERVER, VIDEO, Plan, Side

from .stage import Programs, say

# No database: where its 16 processes wait for a vCPU, the guest's shell answers after minutes.
LOADS = (VIDEO, FILE_SERVER, BUILD)
EVERYTHING_OFF = Side("intel-x25m-g2:k=1,read_us=2000")
EVERYTHING_ON = replace(
    EVERYTHING_OFF,
    policy="fairway",
    cache=(64 << 10, "vio:interval=continuous"),
    tags="--match fio",
    # Without BPF: see test_migrate.py.
    agent="--no-bpf",
)
ALONE = Side("intel-x25m-g2:k=3,read_us=2000", cache=(16 << 10, "none"))


@pytest.mark.usefixtures("may_hold")
def test_everything_runs_together(programs: Programs) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("no two processors here")
    sides = (EVERYTHING_OFF, EVERYTHING_ON, ALONE)
    plan = Plan(
        programs.seekway, programs.agent, sides, LOADS, rounds=1, window_s=2, seed=1, tell=say
    )
    try:
        rounds, _ = together.measure(plan)
    except PermissionError as error:
        pytest.skip(f"the right to raise the priority of a daemon: {error}")
    assert len(rounds) == 1
    off, on, alone = rounds[0]["off"], rounds[0]["on"], rounds[0]["alone"]
    for guest in (guest for window in (off, on, *alone) for guest in window["guests"]):
        if did_nothing(guest):
            pytest.skip(f"a host that leaves each guest some of two seconds: {guest}")
    for window in (off, on):
        did_something(window, range(len(LOADS)))
    assert len(alone) == len(LOADS)
    for only, window in enumerate(alone):
        did_something(window, [only])
    for guest in off["guests"]:
        assert guest["usage"] is None and guest["agent"] is None and guest["tags"] == 0, guest
        assert guest["compute"]["tag_cpu"] == guest["compute"]["migrate_cpu"] == 0, guest
    assert all(guest["agent"]["preemption"] for guest in on["guests"])
    for guest, load in zip(on["guests"], LOADS, strict=True):
        if guest["load"]:
            assert guest["tags"] >= 1, f"{load.name}: {guest}"
            assert guest["usage"]["read_bytes"] > 0, f"{load.name}: {guest}"


def did_nothing(guest: dict[str, Any]) -> bool:
    """Has a guest stood still, for all that a window of two seconds tells?"""
    return (guest["load"] or {}).get("iops") == 0 or guest["compute"]["mib"] == 0


def did_something(window: dict[str, Any], works: Any) -> None:
    """`works`: the guests whose applications were to run, by index."""
    has_io = [at in works and load is not BUILD for at, load in enumerate(LOADS)]
    assert window["late"] <= window["commands"], window
    assert any(has_io) == (window["commands"] > 0), window
    ours = sum(window["host"]["vcpus"]) + sum(window["host"]["qemu"])
    assert 0 < ours < 1.1, window["host"]
    assert window["slices"] > 0
    for guest, load in zip(window["guests"], has_io, strict=True):
        assert (guest["load"] is not None) == load, guest
        if load:
            assert guest["load"]["iops"] > 0 and guest["load"]["p99_ms"] > 0, guest
        assert guest["compute"]["mib"] > 0 and guest["compute"]["seconds"] >= 1, guest
