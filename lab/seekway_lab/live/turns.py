"""Turns of vCPUs on processors, held exactly: one thread at a time may run on each processor, for a
slice of a given length, and then the next.

Linux cannot be told to do that. Its fair scheduler takes a wish for slices of 11 ms, but chooses
anew whenever another thread has had the processor for a moment, and QEMU's own threads do that a
thousand times a second: what is left are slices of 1 to 4 ms. The round robin of its real-time
class starves all others. So the vCPUs that have no turn are stopped (ptrace), whichever scheduler
the kernel has, and go on as soon as this ends, however it ends.

A process of its own holds the turns of each processor (this file, run as a program): only the
thread that has seized another one can stop it, and a thread of a busy Python program would wait for
the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import random
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

SEIZE, CONT, INTERRUPT = 0x4206, 7, 0x4207
EVENT_STOP = 128
#: `waitpid` of a thread that is no child of this process.
WALL = 0x40000000


@dataclass(frozen=True)
class Slices:
    """Lengths of slices: the mean, longer or shorter by up to the jitter, evenly, by the seed."""

    mean_us: int = 11_000
    jitter_us: int = 300
    seed: int = 1


class Turns:
    """Threads that take turns, until `end`.

    They are other processes' threads, and already pinned to their queue's processor. Those of a
    queue run one after the other, in their order. One that ends is left out.
    """

    def __init__(self, queues: Sequence[Sequence[int]], slices: Slices = Slices()) -> None:
        """Raises OSError if a thread has ended, or may not be traced, or is traced already."""
        self._holders: list[subprocess.Popen[str]] = []
        for n, queue in enumerate(queues):
            given = [list(queue), slices.mean_us, slices.jitter_us, slices.seed + n]
            command = [sys.executable, "-I", "-S", __file__, json.dumps(given)]
            pipe = subprocess.PIPE
            holder = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
            self._holders.append(holder)
            assert holder.stdout is not None
            said = holder.stdout.readline().split()
            if said != ["held"]:
                self.end()
                number = int(said[0]) if said else errno.ECHILD
                raise OSError(number, f"hold turns: {os.strerror(number)}", *said[1:])

    def end(self) -> None:
        """Lets all threads run again. Returns when they may."""
        for holder in self._holders:
            holder.communicate()
        self._holders.clear()

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request: int, tid: int, data: int = 0) -> None:
    if _libc.ptrace(request, tid, None, data or None) == -1:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), f"/proc/{tid}")


def _stop(tid: int) -> bool:
    """Stops a thread that runs; False when it has ended."""
    try:
        _ptrace(INTERRUPT, tid)
        while True:
            status = os.waitpid(tid, WALL)[1]
            if not os.WIFSTOPPED(status):
                return False
            if status >> 16 == EVENT_STOP:
                return True
            # A signal on its way, to be passed on.
            _ptrace(CONT, tid, os.WSTOPSIG(status))
    except OSError:
        return False


def _hold(tids: Sequence[int], mean_us: int, jitter_us: int, seed: int) -> None:
    """Lets one after the other run, until standard input ends. When this process ends, the kernel
    lets all go on.
    """
    for tid in tids:
        _ptrace(SEIZE, tid)
        _stop(tid)
    print("held", flush=True)
    queue, lengths = deque(tids), random.Random(seed)
    until_s = time.monotonic()
    while queue:
        tid = queue.popleft()
        try:
            _ptrace(CONT, tid)
        except OSError:
            continue
        until_s += (mean_us + lengths.randint(-jitter_us, jitter_us)) / 1e6
        if select.select([sys.stdin], [], [], max(until_s - time.monotonic(), 0))[0]:
            return
        if _stop(tid):
            queue.append(tid)


if __name__ == "__main__":
    # Slices are late by as much as this process: it runs for 20 us of each, before all others.
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        _hold(*json.loads(sys.argv[1]))
    except OSError as error:
        print(error.errno, error.filename)
