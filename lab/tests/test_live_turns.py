"""Turns of threads, their places, and the record of the host's schedule."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from seekway_lab.live import allowed, schedule, vcpus
from seekway_lab.live.allowed import Threads
from seekway_lab.live.schedule import Recorder, Recording, Run, Wake
from seekway_lab.live.turns import Slices, Turns
from seekway_lab.records import LabError

PATIENCE_S = 600


@contextmanager
def busy(count: int) -> Iterator[list[int]]:
    processes = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(count)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def held(queues: list[list[int]]) -> Turns:
    try:
        return Turns(queues, Slices(mean_us=4000, jitter_us=1000, seed=1))
    except PermissionError as error:
        pytest.skip(f"no ptrace of processes that are not one's own children: {error}")


def until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


def ran_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def test_one_at_a_time_runs_and_all_go_on_afterwards() -> None:
    with busy(3) as pids:
        begun_s = time.monotonic()
        with held([pids]):
            before = [ran_ns(pid) for pid in pids]

            def ran(more_ns: int, which: slice) -> bool:
                pairs = list(zip(pids, before, strict=True))[which]
                return all(ran_ns(pid) > was + more_ns for pid, was in pairs)

            until("a process has no turns", lambda: ran(100_000_000, slice(3)))
            # Whatever else runs: one at a time cannot run for longer than time passes. A running
            # process's time is brought up to date at ticks only, of at most 10 ms.
            total_s = sum(ran_ns(pid) - was for pid, was in zip(pids, before, strict=True)) / 1e9
            assert total_s <= time.monotonic() - begun_s + 0.03
            # One that dies is left out.
            os.kill(pids[0], signal.SIGKILL)
            before = [ran_ns(pid) for pid in pids]
            until("the others have no turns any more", lambda: ran(20_000_000, slice(1, 3)))
        until("one is still stopped", lambda: all(state(pid) == "R" for pid in pids[1:]))


def test_all_go_on_when_the_owner_of_the_turns_is_killed() -> None:
    holds = (
        "import sys; from seekway_lab.live.turns import *; "
        "turns = Turns([[int(pid) for pid in sys.argv[1:]]]); print('held', flush=True); input()"
    )
    pipe = subprocess.PIPE
    with busy(2) as pids:
        held([pids]).end()
        command = [sys.executable, "-c", holds, *map(str, pids)]
        path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=path) as owner:
            assert owner.stdout is not None and owner.stdout.readline() == "held\n"
            until("none is stopped", lambda: any(state(pid) == "t" for pid in pids))
            owner.kill()
        until("one is still stopped", lambda: all(state(pid) == "R" for pid in pids))


def test_a_thread_that_has_ended_takes_no_turns() -> None:
    with pytest.raises(ProcessLookupError, match=r"hold turns: .*: '/proc/2147483647'"):
        Turns([[2**31 - 1]])


def test_threads_of_vcpus_are_known_by_their_names() -> None:
    with busy(1) as [pid]:
        comm = Path(f"/proc/{pid}/task/{pid}/comm")
        until("sh runs", lambda: comm.read_text() == "sh\n")
        with pytest.raises(LabError, match="threads of vCPUs"):
            vcpus.threads(pid)
    names = ["CPU 0/TCG", "CPU 12/KVM"]
    assert [vcpus.NAME.match(name)[1] for name in names] == ["0", "12"]  # type: ignore[index]
    for other in ("qemu-system-x86", "call_rcu", "CPU", "CPU x/TCG", "xCPU 1/TCG"):
        assert vcpus.NAME.match(other) is None, other


def test_a_thread_is_sliced() -> None:
    with busy(1) as [pid]:
        assert vcpus.set_slice(pid, 11_000) in (11_000, 0)
    with pytest.raises(OSError, match="the slice of /proc/2147483647"):
        vcpus.set_slice(2**31 - 1, 11_000)


def test_few_processors_are_an_error() -> None:
    assert vcpus.processors(1, "this") == sorted(os.sched_getaffinity(0))
    with pytest.raises(LabError, match="this needs 100000 processors"):
        vcpus.processors(100_000, "this")


# --- the record


TRACE = """\
# tracer: nop
#
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
       CPU 0/TCG-7       [001] d..2. 10.000100: sched_switch: prev_comm=CPU 0/TCG prev_pid=7 \
prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120
          <idle>-0       [001] d..2. 10.000200: sched_switch: prev_comm=swapper/1 prev_pid=0 \
prev_prio=120 prev_state=R ==> next_comm=CPU 0/TCG next_pid=7 next_prio=120
       CPU 0/TCG-7       [001] d..5. 10.000300: sched_waking: comm=qemu pid=9 prio=120 target_cpu=0
       CPU 0/TCG-7       [001] dNh5. 10.000400: sched_waking: comm=qemu pid=9 prio=120 target_cpu=0
       CPU 0/TCG-7       [001] d..2. 10.012200: sched_switch: prev_comm=CPU 0/TCG prev_pid=7 \
prev_prio=120 prev_state=R+ ==> next_comm=CPU 1/TCG next_pid=8 next_prio=120
       CPU 1/TCG-8       [001] d..2. 10.013200: sched_switch: prev_comm=CPU 1/TCG prev_pid=8 \
prev_prio=120 prev_state=S ==> next_comm=CPU 2/TCG next_pid=9 next_prio=120
"""
#: Microseconds of its ten seconds.
T = 10_000_000


def switch(at: int, cpu: int, before: int, after: int) -> str:
    return (
        f"me-{before} [00{cpu}] d..2. 10.{at:06}: sched_switch: prev_comm=me prev_pid={before} "
        f"prev_prio=120 prev_state=S ==> next_comm=me next_pid={after} next_prio=120\n"
    )


def waking(at: int, cpu: int) -> str:
    return (
        f"<idle>-0 [00{cpu}] d.h3. 10.{at:06}: sched_waking: comm=me pid=7 prio=120 target_cpu=1\n"
    )


def test_runs_and_wakes_are_read() -> None:
    found = schedule.parse(TRACE, T + 50, T + 20_000, {})
    assert found.runs == [
        Run(7, 1, T + 50, T + 100),
        Run(7, 1, T + 200, T + 12_200),
        Run(8, 1, T + 12_200, T + 13_200),
        Run(9, 1, T + 13_200, T + 20_000),
    ]
    assert found.wakes == [Wake(T + 300, 7, 9), Wake(T + 400, 0, 9)]
    named = schedule.parse(TRACE, T + 50, T + 20_000, {7: 70, 9: 90})
    assert [run.tid for run in named.runs] == [70, 70, 8, 90]
    assert named.wakes[0] == Wake(T + 300, 70, 90)


def test_a_run_whose_beginning_is_left_out_begins_when_it_was_woken() -> None:
    trace = switch(100, 1, 7, 0) + waking(2100, 1) + switch(2200, 1, 7, 0)
    trace += switch(2300, 1, 8, 9) + waking(3100, 1) + switch(3200, 1, 7, 0)
    trace += waking(4100, 2) + switch(4200, 2, 7, 0)
    found = schedule.parse(trace, T + 50, T + 20_000, {})
    # Since when thread 8 ran is not known. Thread 9 is not recorded: nor is when it ended.
    spans = [(1, 50, 100), (1, 2100, 2200), (1, 3100, 3200), (2, 4100, 4200)]
    assert found.runs == [Run(7, cpu, T + begin, T + end) for cpu, begin, end in spans]


def test_other_text_is_refused() -> None:
    for wrong in ("nonsense", "a-1 [000] d..2. 1.500000: sched_switch: prev_pid=1"):
        with pytest.raises(LabError, match="tracer says"):
            schedule.parse(wrong, 0, 1, {})
    assert schedule.parse("# tracer: nop\n", 0, 1, {}) == Recording(0, 1, [], [])


def test_receivers_are_read_in_the_order_of_their_signals() -> None:
    asked = "signal_generate: sig=23 errno=0 code=-6 comm"
    lines = [
        f"go-77 [000] d..1. 1.000050: {asked}=go pid=78 grp=0 res=0",
        f"my test-1200 [001] ..... 1.000100: tracing_mark_write: {schedule.MARK}",
        f"my test-1200 [001] d..1. 1.000200: {asked}=CPU 0/TCG pid=1210 grp=0 res=1",
        f"go-77 [000] d..1. 1.000250: {asked}=go pid=78 grp=0 res=0",
        f"my test-1200 [001] d..1. 1.000300: {asked.replace('23', '17')}=sh pid=9 grp=1 res=0",
        f"my test-1200 [001] d..1. 1.000400: {asked}=a pid=1 pid=1211 grp=0 res=1",
    ]
    assert schedule.receivers("\n".join(lines)) == [1210, 1211]
    assert schedule.receivers("# tracer: nop\n") == []


def test_this_thread_is_seen_to_sleep() -> None:
    try:
        recorder = Recorder([os.getpid()])
    except (LabError, PermissionError) as error:
        pytest.skip(str(error))
    with recorder:
        recorder.start()
        for _ in range(3):
            time.sleep(0.002)
        found = recorder.stop()
        assert sum(run.tid == os.getpid() for run in found.runs) >= 3, found
        assert sum(wake.woken == os.getpid() for wake in found.wakes) >= 3, found
        # A recorder in use is not removed by the next, and one that is done with removes itself.
        Recorder().end()
        assert recorder.stop().begin_us == found.begin_us


# --- arithmetic on it


def recording() -> tuple[Recording, Threads]:
    """Two guests of two vCPUs (1, 2 and 8, 9) on two processors, 40 ms: processor 0 runs 1, 8, 1;
    processor 1 runs 9, 2 with a break of the daemon (5), 9. In ms.
    """
    spans = [(1, 0, 0, 10), (8, 0, 10, 30), (1, 0, 30, 40), (9, 1, 0, 15), (2, 1, 15, 20)]
    spans += [(5, 1, 20, 21), (2, 1, 21, 25), (9, 1, 25, 40)]
    runs = [Run(tid, cpu, 1000 * begin, 1000 * end) for tid, cpu, begin, end in spans]
    # It submits on the first, comes to the second, and is back.
    wakes = [Wake(1000 * at, by, 5) for at, by in ((5, 1), (19, 2), (20, 8), (35, 1))]
    return Recording(0, 40_000, runs, wakes), Threads([[1, 2], [8, 9]], [5], [])


def test_the_bound_is_the_time_with_some_vcpu_running() -> None:
    found = allowed.of_guest(*recording(), 0)
    # 0 to 10, 15 to 20, 21 to 25, 30 to 40.
    assert found["any_runs"] == pytest.approx(29 / 40) == found["processors"]
    # On the first from 5 to 19, of which it ran 5; on the second to 35, which ran 5; then again on
    # the first.
    assert found["reader_runs"] == pytest.approx((5 + 5 + 5) / 35)
    # From the first to the second and back.
    assert found["moves_s"] == pytest.approx(2 / 0.04) == found["moves_least_s"]
    other = allowed.of_guest(*recording(), 1)
    # 0 to 15, 10 to 30, 25 to 40.
    assert (other["any_runs"], other["processors"]) == pytest.approx((1, 50 / 40))
    assert other["reader_runs"] == 0.5, "on the first from 20, which ran to 30"


def test_the_least_moves_go_to_the_one_that_runs_longest() -> None:
    def least(*vcpus_ms: list[tuple[int, int]]) -> int:
        return allowed.least_moves([[(1000 * a, 1000 * b) for a, b in of] for of in vcpus_ms])

    assert least() == 0
    assert least([(0, 10), (12, 20)]) == 0, "nowhere else to be"
    assert least([(0, 10), (20, 30)], [(10, 20)]) == 2
    assert least([(0, 10), (20, 30)], [(5, 12)], [(5, 22)]) == 2, "past the shorter"
    broken = [(0, 5000), (5000 + allowed.BREAK_US // 2, 9000)]
    assert allowed.least_moves([broken, [(0, 7000)]]) == 0, "a short break is none"


def test_a_slice_lasts_until_another_vcpu_runs() -> None:
    found, threads = recording()
    # Whole are 8 on the first processor and 2, over the daemon's break, on the second.
    assert allowed.slices(found, {1, 2, 8, 9}) == [10_000, 20_000]
    window = allowed.of_window(found, threads)
    lengths = [window[f"slice_{name}_ms"] for name in ("p10", "median", "p90")]
    assert lengths == [10, 20, 20]
    assert window["served_processors"] == pytest.approx(1 / 40)
    # Woken at 5, 19 and 20, it ran at 20; then never again.
    assert window["served_wait_p99_ms"] == 15
    assert allowed.waits(found, [5]) == [0, 1000, 15_000]


def test_quantiles_are_of_the_values_that_there_are() -> None:
    assert allowed.quantile([], 0.5) == 0
    assert (allowed.quantile([1], 0.9), allowed.quantile([1, 2, 3], 0.5)) == (1, 2)
