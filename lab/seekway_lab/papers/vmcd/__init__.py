"""The VMCD paper's evaluation (section 4), and our additions.

Beside the paper's figures stands its own form, `vmcd`, on its host as near as we have it ("paper's
host"): a 7200 rpm SATA drive with native command queueing and its write cache on, guests of 512 MB
with Xen's ring of 32 requests of 11 pages, kernel 3.8's CFQ (`cfq`, the form of 4.x). The way to
the host is a guess; for sequential reads it is 8 ms, at which one VM streams the 11.7 MiB/s of
table 4(b). The same loads run on a bare disk that takes one command at a time without a write
cache, where the order is the scheduler's alone; those rows are measured, and there something is
asked of `vmcd-time`.

Common to all: images of 12 GB one after the other from the disk's beginning, each with a file of
4 GiB; Iometer-like workers without think time, one request at a time unless said; runs of a fixed
time, bandwidth over the whole of it. The paper's "Mbps" are MiB/s.
"""

from __future__ import annotations

from collections.abc import Callable

from seekway_lab.judge import Row, Runs
from seekway_lab.papers import Study
from seekway_lab.papers.vmcd import figures, judge
from seekway_lab.runs import Wanted
from seekway_lab.scenarios import Scenario

_CLOCK = "a processor's clock: another run does not repeat it"


def _study(
    name: str,
    summary: str,
    more: Callable[[Runs], list[Row]] | None = None,
    tables: tuple[str, ...] = ("runs", "vms"),
) -> Study:
    def rows(found: Runs) -> list[Row]:
        loads = figures.loads(name)
        runs = figures.figures(found, loads)
        return [*judge.rows(name, runs, loads), *(more(runs) if more else [])]

    rows.__doc__ = summary

    def scenarios() -> list[Scenario]:
        return figures.with_alone(figures.loads(name))

    unequal = {"*: share of a CPU, *": _CLOCK} if name == "vmcd-cpu" else {}
    return Study(name, rows, scenarios, Wanted(figures.reduced, tables), unequal, ("vmcd",))


STUDIES = [
    _study("vmcd-fair-same", "2 to 4 VMs with the same load: how far from equal bandwidths"),
    _study(
        "vmcd-stable",
        "3 VMs: bandwidth from second to second",
        tables=("runs", "vms", "series"),
    ),
    _study("vmcd-fair-sizes", "sequential readers of 512 B, 64 KiB and 512 KiB"),
    _study(
        "vmcd-fair-demand",
        "three VMs that ask for 10, 100 and 300 random reads of 64 KiB a second",
    ),
    _study(
        "vmcd-bandwidth",
        "aggregate bandwidth of 1 to 4 VMs with the same load",
        judge.least_gains,
    ),
    _study(
        "vmcd-path",
        "table 4(b) with a thread of the host that all VMs share, and VMCD without it",
        judge.path,
    ),
    _study("vmcd-art", "mean response of three VMs with different demands"),
    _study("vmcd-real", "file server, web server and OLTP at depths 1 to 256, and one of each"),
    _study(
        "vmcd-ssd",
        "three VMs that ask for 10, 100 and 300 random writes of 64 KiB a second on an SSD",
    ),
    _study("vmcd-cpu", "CPU time with 1 to 5 sequential readers", judge.cpu),
    _study(
        "vmcd-flood",
        "two quiet VMs and one with 64 requests outstanding: device time of each",
    ),
]
