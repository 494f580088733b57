"""Where the policies' settings in scenes.toml come from.

What Tejun Heo's `iocost_coef_gen.py` (of the authors of iocost) does on a drive, done on the
modelled one. Rates: sequential and random accesses of 4 KiB at depth 64, and long sequential ones.
Targets: random accesses of 4 KiB at nine tenths of that rate; one and a half times the time that
95 % of them take (half of them, on a disk with a head). The lowest rate of iocost is 60 %, the
highest 100 %. There accesses of 128 MiB go one after the other; the kernel cuts them, so here
there are 32 of 1 MiB. kyber has the same targets; bfq has the VMs in groups and does not raise
weights.
"""

from __future__ import annotations

import math

import seekway

from seekway_lab.arena.measure import MIB, Run, Times
from seekway_lab.arena.scenes import Table, time_ns


def by_rule(device: Table) -> list[str]:
    """The settings for a device of the file, as its `set` has them."""
    rbps, rseq, rrand, rlat = measured(device, 100)
    wbps, wseq, wrand, wlat = measured(device, 0)
    percent = 50 if device["medium"] == "disk" else 95
    return [
        f"iocost:rbps={rbps},rseqiops={rseq},rrandiops={rrand},wbps={wbps},wseqiops={wseq},"
        f"wrandiops={wrand},rpct={percent},rlat={rlat}us,wpct={percent},wlat={wlat}us,"
        "min=60,max=100",
        f"kyber:read_target={rlat}us,write_target={wlat}us",
        "bfq:groups=true,low_latency=false",
    ]


def measured(device: Table, read_percent: int) -> list[int]:
    """Bytes a second, sequential and random accesses a second, and the target in µs."""

    def rate(size: str, depth: int, sequential: bool) -> tuple[float, float]:
        load = {"app": "uniform", "size": size, "outstanding": depth, "read": read_percent}
        run = Run.of(alone(device, {**load, "sequential": sequential}))
        [vm] = run.vms
        return run.mib_s(vm) * MIB, run.per_s(vm.requests)

    long, _ = rate("1MiB", 32, True)
    _, sequential = rate("4KiB", 64, True)
    _, random = rate("4KiB", 64, False)
    at_nine_tenths = {
        "app": "fio",
        "rw": "randread" if read_percent else "randwrite",
        "bs": "4KiB",
        "iodepth": 64,
        "direct": True,
        "size": "16GiB",
        "io_size": "1TiB",
        "norandommap": True,
        "rate_iops": int(0.9 * random),
    }
    quantile = 0.5 if device["medium"] == "disk" else 0.95
    target_us = 1.5 * 1e3 * times(alone(device, at_nine_tenths)).ms(quantile)
    return [rounded(value) for value in (long, sequential, random, target_us)]


def times(outcome: seekway.Outcome) -> Times:
    """The response times of a run."""
    rows = outcome.histograms.to_arrow().to_pylist()
    whole = [row for row in rows if row["of"] == "response" and row["vm"] is None]
    return Times({row["up_to_ns"]: row["count"] for row in whole}, None)


def alone(device: Table, load: Table) -> seekway.Outcome:
    """The only load on a device, half as long as the device's scenes."""
    settle, measure = (time_ns(device[key]) // 2 for key in ("settle", "measure"))
    return seekway.run(
        name="rule",
        device={"profile": device["profile"]},
        stack={"coalesce": 0},
        measure={"settle": f"{settle}ns", "until": f"{settle + measure}ns"},
        vm=[{"name": "a", "guest": {"image": "20GiB"}, "load": [load]}],
        outcome={"tables": ["runs", "vms", "histograms"]},
        progress=False,
    )


def rounded(value: float) -> int:
    """Three significant digits: a change of the last one is none of the drive."""
    unit = int(10 ** max(math.floor(math.log10(max(value, 1.0))) - 2, 0))
    # Halves go up.
    return math.floor(value / unit + 0.5) * unit
