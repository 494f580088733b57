"""The host's own schedule: on which processor each of some threads ran, and when, and who woke
whom, as the kernel's tracer (tracefs) records it in an instance of its own beside other users of
the tracer.

Times are of CLOCK_MONOTONIC, in microseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from seekway_lab.records import LabError

EVENTS = ("sched_switch", "sched_waking")
#: For each processor. An event has 60 bytes or so, and there are some 10,000 a second.
BUFFER_KIB = 16 << 10
#: Where systemd mounts it. Without systemd, or in a container, it is not mounted.
MOUNTED = Path("/sys/kernel/tracing")
PREFIX = "seekway-"
MARK = "seekway asks who is who"
#: A program without a handler ignores it, and QEMU has none.
ASK = signal.SIGURG
FSOPEN, FSCONFIG, FSMOUNT = 430, 431, 432
CREATE, CLOEXEC = 6, 1

#: `  COMM-TID  [CPU] FLAGS SECONDS.MICROSECONDS: EVENT: FIELDS`; a name may have spaces.
LINE = re.compile(r".*-(\d+) +\[(\d+)\] (\S+) +(\d+)\.(\d{6}): (\w+): (.*)")
SWITCH = re.compile(r".* prev_pid=(\d+) .* next_pid=(\d+) ")
WAKING = re.compile(r".* pid=(\d+) ")


class Run(NamedTuple):
    """A thread on a processor, without interruption."""

    tid: int
    cpu: int
    begin_us: int
    #: When it left the processor, or the recording ended.
    end_us: int


class Wake(NamedTuple):
    """A thread was woken (`sched_waking`) by another; by 0: an interrupt, whatever ran then."""

    at_us: int
    by: int
    woken: int


class Recording(NamedTuple):
    """Events from just before the tracer was turned on to just after it was turned off."""

    begin_us: int
    end_us: int
    #: In the order of their ends.
    runs: list[Run]
    wakes: list[Wake]


class Recorder:
    """Records the threads that it was made for. `end` takes its instance of the tracer away."""

    def __init__(self, tids: Sequence[int] = ()) -> None:
        """Each thread gets a signal that threads ignore (SIGURG); none may be stopped."""
        self._mount: int | None = None
        try:
            self._dir = self._instance()
        except OSError as error:
            raise LabError(
                f"tracefs: {error}: the schedule is recorded by the kernel's tracer, which needs "
                "root and Linux 5.2 or a mounted tracefs (mount -t tracefs tracefs "
                f"{MOUNTED})"
            ) from error
        # Open for as long as the instance is used, so that it cannot be removed.
        self._in_use = (self._dir / "tracing_on").open()
        self._begin_us = 0
        try:
            self._names = self._who_is_who(tids)
            self._write("trace_clock", "mono")
            self._write("buffer_size_kb", str(BUFFER_KIB))
            self._write("set_event_pid", " ".join(map(str, self._names)))
            for event in EVENTS:
                self._write(f"events/sched/{event}/enable", "1")
        except BaseException:
            self.end()
            raise

    def start(self) -> None:
        """Clears the record, and begins."""
        self._write("trace", "")
        self._begin_us = _now_us()
        self._write("tracing_on", "1")

    def stop(self) -> Recording:
        """Ends the recording, and returns its events."""
        self._write("tracing_on", "0")
        end_us = _now_us()
        stats = "".join(p.read_text() for p in self._dir.glob("per_cpu/cpu*/stats"))
        if lost := sum(map(int, re.findall(r"overrun: (\d+)", stats))):
            raise LabError(f"{lost} events of the schedule lost: record for a shorter time")
        text = (self._dir / "trace").read_text(errors="replace")
        return parse(text, self._begin_us, end_us, self._names)

    def end(self) -> None:
        """Removes the instance."""
        self._in_use.close()
        self._write("tracing_on", "0")
        self._dir.rmdir()
        if self._mount is not None:
            os.close(self._mount)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _write(self, file: str, what: str) -> None:
        (self._dir / file).write_text(what)

    def _instance(self) -> Path:
        root = MOUNTED
        if not (root / "instances").exists():
            self._mount = _mount()
            root = Path(f"/proc/self/fd/{self._mount}")
        # Remove those of recorders that were killed. Those in use are busy.
        for old in (root / "instances").glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                old.rmdir()
        # A process identifier may exist twice, in two PID namespaces.
        made = root / "instances" / f"{PREFIX}{os.getpid()}-{time.time_ns()}"
        made.mkdir()
        return made

    def _who_is_who(self, tids: Sequence[int]) -> dict[int, int]:
        """The threads by the numbers that the tracer knows them by, those of the initial PID
        namespace: has it say the number of each, by a signal to each in turn.
        """
        event = "events/signal/signal_generate/enable"
        self._write(event, "1")
        self._write("tracing_on", "1")
        self._write("trace_marker", MARK)
        for tid in tids:
            _signal(tid)
        self._write("tracing_on", "0")
        self._write(event, "0")
        text = (self._dir / "trace").read_text(errors="replace")
        self._write("trace", "")
        found = receivers(text)
        if len(found) != len(tids):
            raise LabError(f"the kernel's tracer says '{text}' of threads {tids}")
        return dict(zip(found, tids, strict=True))


def _now_us() -> int:
    return time.monotonic_ns() // 1000


def _signal(tid: int) -> None:
    # A thread's group is needed with it, so that the number is not another one's by now.
    status = Path(f"/proc/{tid}/status").read_text()
    group = int(status.partition("Tgid:")[2].split()[0])
    _call("tgkill", group, tid, int(ASK))


def _call(name: str | int, *arguments: object) -> int:
    """A function of the C library, or a system call by its number."""
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.syscall(name, *arguments) if isinstance(name, int) else libc[name](*arguments)
    if done < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(name))
    return int(done)


def _mount() -> int:
    """Mounts a tracefs that is attached to no folder: it ends when it is closed (Linux 5.2)."""
    context = _call(FSOPEN, b"tracefs", CLOEXEC)
    try:
        _call(FSCONFIG, context, CREATE, None, None, 0)
        return _call(FSMOUNT, context, CLOEXEC, 0)
    finally:
        os.close(context)


def receivers(text: str) -> list[int]:
    """The receivers of the signals that the marker's writer has sent, in order."""
    found: list[int] = []
    sender = None
    for tid, *_, event, fields in _lines(text, strict=False):
        if event == "tracing_mark_write" and fields == MARK:
            sender = tid
        is_ask = event == "signal_generate" and fields.startswith(f"sig={int(ASK)} ")
        if is_ask and tid == sender and (told := WAKING.match(fields)):
            found.append(int(told[1]))
    return found


def _lines(text: str, strict: bool = True) -> Iterable[tuple[int, int, str, int, str, str]]:
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        if found := LINE.match(line):
            tid, cpu, flags, seconds, micros, event, fields = found.groups()
            yield int(tid), int(cpu), flags, int(seconds + micros), event, fields
        elif strict:
            raise LabError(f"the kernel's tracer says '{line}'")


def parse(text: str, begin_us: int, end_us: int, names: dict[int, int]) -> Recording:
    """Reads the tracer's file, begun and ended at these times; threads by `names`, where they
    have one. Switches between threads that are not recorded are not in it.
    """
    runs: list[Run] = []
    wakes: list[Wake] = []
    running: dict[int, tuple[int, int]] = {}
    woken_at: dict[int, int] = {}
    for tid, cpu, flags, at_us, event, fields in _lines(text):
        if event == "sched_switch" and (found := SWITCH.match(f" {fields} ")):
            before, following = int(found[1]), int(found[2])
            woken_at.pop(following, None)
            woken = woken_at.pop(before, None)
            last = running.get(cpu)
            running[cpu] = following, at_us
            if last is None:
                # Without a wake-up it has run since the beginning.
                since: int | None = begin_us if woken is None else woken
            elif last[0] == before:
                since = last[1]
            else:
                # Linux 6.18 was seen to leave out the switches from one processor's idle task;
                # those from other tasks to a recorded thread it reports. So this thread has run
                # since it was woken.
                since = woken if woken is not None and woken >= last[1] else None
            if since is not None and before:
                name = names.get(before, before)
                runs.append(Run(name, cpu, since, at_us))
        elif event == "sched_waking" and (found := WAKING.match(f" {fields} ")):
            woken_at[int(found[1])] = at_us
            # Interrupts off, a switch due, and the context: `.` is a thread's own.
            by = names.get(tid, tid) if flags[2] == "." else 0
            wakes.append(Wake(at_us, by, names.get(int(found[1]), int(found[1]))))
        else:
            raise LabError(f"the kernel's tracer says '{event}: {fields}'")
    for cpu, (tid, since) in running.items():
        if tid:
            runs.append(Run(names.get(tid, tid), cpu, since, end_us))
    return Recording(begin_us, end_us, runs, wakes)
