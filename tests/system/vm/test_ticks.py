"""`seekway-guest` sees by the ticks of its guest when vCPUs are away (`tick-bpf`): compared with
what the host did, which holds the vCPUs and records when each ran."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from seekway_lab.live import schedule, turns, vcpus
from seekway_lab.live.guest import Guest, GuestTimeout

from .judge import MS, Absence, Truth, fit, judge, on_host
from .stage import FIND_DISK, KERNELS, PATIENCE_S, Programs, apart, once_more, oopsed, say

VCPUS = 4
#: /proc/uptime has hundredths of a second.
UPTIME_NS = 20 * MS
#: The kernel has others run now and then, and goes on: no absence.
HICCUP_NS = MS
#: Who got the processor for less may not have come to do anything: no return.
GLIMPSE_NS = 300_000
#: vCPUs are held for this long, while the agent looks.
HELD_S = 5

#: A compute task on each vCPU, and a reader.
LOAD = r"""
for n in 0 1 2 3; do taskset -c $n sha256sum /dev/zero >/dev/null 2>&1 & done
fio --name=reader --filename=$disk --direct=1 --rw=randread --bs=4k --ioengine=psync \
	--thread --time_based --runtime=3600 >/dev/null 2>&1 &"""

#: The agent looks, from now on.
START = """
seekway-guest migrate --probe=60s --format json >/tmp/said 2>&1 &
echo $! >/tmp/probe
n=0; until [ $(ls /proc/$!/task | wc -l) -gt 4 ]; do
	n=$((n+1)); [ $n -lt 600 ] || { cat /tmp/said; exit 1; }; sleep 0.1
done"""

#: The load has ended.
REST = "killall sha256sum fio; while pidof sha256sum fio >/dev/null; do sleep 0.1; done"

#: What it has seen, now that it shall end.
END = """
kill -INT $(cat /tmp/probe); n=0; while kill -0 $(cat /tmp/probe) 2>/dev/null; do
	n=$((n+1)); [ $n -lt 600 ] || exit 1; sleep 0.1
done; cat /tmp/said"""


@pytest.mark.usefixtures("may_hold", "may_record")
@pytest.mark.parametrize("kernel", KERNELS)
def test_ticks_show_who_was_away(programs: Programs, kernel: str) -> None:
    missing: list[str] = []

    def test(folder: Path) -> None:
        with apart(programs, kernel, folder, vcpus=VCPUS) as guest:
            # vCPUs of two processors are away for a slice, those of one for three.
            missing[:] = [text for n in (2, 1) if (text := compare(guest, n))]

    # Under TCG a vCPU that stood still can lose its timer, and then its kernel stands still.
    once_more(test, lambda error: oopsed(error) or isinstance(error, GuestTimeout))
    if missing:
        few = "a processor for QEMU's main loop: too few absences to judge"
        pytest.skip(f"{few}: {'; '.join(missing)}")


def compare(guest: Guest, processors: int) -> str:
    """Hold the vCPUs on some processors. What was found, if it was too little to judge."""
    tids = vcpus.threads(guest.pid)
    available = sorted(os.sched_getaffinity(0))[:processors]
    queues: list[list[int]] = [[] for _ in available]
    for n, tid in enumerate(tids):
        place = n % len(queues)
        os.sched_setaffinity(tid, [available[place]])
        queues[place].append(tid)
    # Programs come and go with changes of the kernel's code, and QEMU 7.2 may run a part of it as
    # it was (Oops: int3) on vCPUs that stand still meanwhile: only while nothing else runs.
    guest.check(START, PATIENCE_S)
    guest.check(FIND_DISK + LOAD, PATIENCE_S)
    # Turns that are not alike: else the two clocks fit at any number of turns.
    slices = turns.Slices(11_000, 1_000, 1)
    with schedule.Recorder([*tids, guest.pid]) as recorder, turns.Turns(queues, slices):
        recorder.start()
        started = time.monotonic_ns()
        uptime = guest.check("cat /proc/uptime", PATIENCE_S)
        answered = time.monotonic_ns() - started
        time.sleep(HELD_S)
        recording = recorder.stop()
    guest.check(REST, PATIENCE_S)
    said = guest.check(END, PATIENCE_S)
    way = next(json.loads(line) for line in said.splitlines() if line.startswith("{"))
    assert way["preemption"] == "tick-bpf", said
    truth = Truth(
        [absences(recording, n, tid) for n, tid in enumerate(tids)], runs(recording, guest.pid)
    )
    seen = seen_by(way)
    begin, end = 1000 * recording.begin_us, 1000 * recording.end_us
    # The guest has read its clock after the start and before the answer.
    since_start = begin - int(float(uptime.split()[0]) * 1e9)
    clock = fit(truth, seen, since_start - UPTIME_NS, since_start + answered + UPTIME_NS)
    # Absences that were seen while vCPUs were held.
    held = [it for it in on_host(seen, clock) if it.begin > begin and it.until < end]
    verdict = judge(truth, held, begin, end)
    say(f"          {VCPUS} vCPUs on {processors}: {verdict.text}")
    assert verdict.refused is None, f"{verdict.refused}: {verdict.text}"
    return "" if verdict.enough else verdict.text


def runs(recording: schedule.Recording, tid: int) -> list[tuple[int, int]]:
    """When a thread ran."""
    return [(1000 * run.begin_us, 1000 * run.end_us) for run in recording.runs if run.tid == tid]


def absences(recording: schedule.Recording, vcpu: int, tid: int) -> list[Absence]:
    """When a vCPU's thread did not run. Runs with hiccups between them are one."""
    joined: list[tuple[int, int]] = []
    for begin, end in runs(recording, tid):
        if joined and begin - joined[-1][1] <= HICCUP_NS:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    stays = [run for run in joined if run[1] - run[0] >= GLIMPSE_NS]
    return [Absence(vcpu, one[1], after[0], after[0]) for one, after in pairwise(stays)]


def seen_by(way: dict[str, Any]) -> Sequence[Absence]:
    """Absences as the guest saw them."""
    return [
        Absence(gone["vcpu"], gone["at_ns"], back["at_ns"], gone["told_ns"])
        for gone, back in pairwise(way["edges"])
        if gone["vcpu"] == back["vcpu"] and gone["away"] and not back["away"]
    ]
