"""The threads of a guest's vCPUs on the host: which processor each runs on, and for how long at a
time. Several guests on few processors take them from each other, as on a server with more vCPUs
than cores.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from pathlib import Path

from seekway_lab.records import LabError

#: System calls that glibc has no function for, by machine.
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
#: As QEMU names its vCPUs' threads with `debug-threads=on`.
NAME = re.compile(r"CPU (\d+)/")


def threads(pid: int) -> list[int]:
    """The numbers of the threads of QEMU's vCPUs, in the order of the vCPUs."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = NAME.match((task / "comm").read_text())
        except OSError:
            continue  # A thread of another kind that has ended since it was listed.
        if name:
            found[int(name[1])] = int(task.name)
    if not found or sorted(found) != list(range(len(found))):
        raise LabError(f"QEMU {pid}: threads of vCPUs in {found}")
    return [found[n] for n in range(len(found))]


def place(pid: int, processors: Sequence[int]) -> list[int]:
    """Spreads the vCPUs of a QEMU evenly over the processors. Their threads."""
    tids = threads(pid)
    for n, tid in enumerate(tids):
        os.sched_setaffinity(tid, [processors[n % len(processors)]])
    return tids


def processors(least: int, what: str) -> list[int]:
    """The processors that this process may use; an error if there are fewer than `least`."""
    found = sorted(os.sched_getaffinity(0))
    if len(found) < least:
        raise LabError(
            f"{what} needs {least} processors: on one, a guest has no vCPU that runs while another "
            "waits"
        )
    return found


class _SchedAttr(ctypes.Structure):
    """`struct sched_attr` of `sched_setattr(2)`, its first version."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    ]


def set_slice(tid: int, slice_us: int) -> int:
    """Asks for slices of this length for an ordinary thread; returns the new length in us.

    Linux has taken it since 6.12, between 0.1 and 100 ms, and cuts slices at its ticks. Kernels
    before ignore it: 0.
    """
    libc, call = ctypes.CDLL(None, use_errno=True), SCHED_SETATTR[os.uname().machine]
    size = ctypes.sizeof(_SchedAttr)
    attr = _SchedAttr(size=size, runtime_ns=1000 * slice_us)
    for number, more in ((call, ()), (call + 1, (size,))):
        if libc.syscall(number, tid, ctypes.byref(attr), *more, 0) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), f"the slice of /proc/{tid}")
    return int(attr.runtime_ns // 1000)
