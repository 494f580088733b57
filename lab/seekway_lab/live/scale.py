"""vpt-scale, live (CATS, section 4): does the throttle find a stable k by itself?

One real guest has the load of vpt-rank on `serve --emulate PROFILE`, whose k is `auto` unless
given. The device that holds the image is fast enough for the model, or it is not. k and the late
commands are read from the daemon's status, window by window, while one load runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from seekway_lab import judge
from seekway_lab.live import runs, scenes, twin, vpt
from seekway_lab.live.counters import device, emulated_between, until_at_work
from seekway_lab.live.daemon import Daemon, disks
from seekway_lab.live.guest import Disk, Guest
from seekway_lab.live.process import LiveError, Process, wait_for
from seekway_lab.live.together import OTHERS, HostLook, others
from seekway_lab.records import LabError, Record
from seekway_lab.scenarios import Table

#: The name in recorded rows.
EXPERIMENT = "vpt-scale"
WINDOW_S, QUICK_S = 30, 3
WINDOWS = 5
#: Windows at the end in which k has to be the same.
STABLE = 3
#: More requests than are made in all windows, even of flash.
REQUESTS = 10_000_000
#: Requests after which a guest is at work.
AT_WORK = 50
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Case:
    """A modelled device on a real one."""

    name: str
    #: The device that is emulated; None: the line fitted to the detailed disk.
    model: str | None = None
    #: Profile of the disk that holds the image; None: memory.
    real: str | None = None
    #: The image is fast enough for the model: k has to stay 1.
    is_fast: bool = False


CASES = [
    Case("fitted line on memory", is_fast=True),
    Case("fitted line on a 7200 rpm disk", real="linear-7200"),
    Case("970 PRO on memory", model="samsung-970-pro"),
]


def run(options: runs.Options) -> runs.Report:
    """Runs all cases. Policies are not compared: requests are served as they come."""
    if options.policy:
        raise LabError("vpt-scale: no --policy: it compares devices")
    window_s = QUICK_S if options.quick else WINDOW_S
    rows = []
    for case in CASES:
        options.tell(f"{case.name}: {WINDOWS * window_s} s")
        rows.append(row(case, measure(case, options, window_s)))
    return runs.Report([table(rows, window_s)], rows, records=list(map(record, rows)))


# --- real guests


def measure(case: Case, options: runs.Options, window_s: float) -> list[Table]:
    """The windows of a case: k at the end, all changes of k, commands, the share of late ones."""
    scene = vpt.Target("line", line=True).scene
    vm = endless(scene.vms[0])
    size = twin.image_bytes(vm)
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(TemporaryDirectory(prefix="seekway-live-", dir=scenes.MEMORY))
        )
        model = scenes.profile(case.model or scene.device or "", folder)
        arguments = ["--policy", "noop", "--cache", "off", "--emulate", model]
        servers: list[int] = []
        if case.real:
            slow = slow_image(options, folder / "real", case.real, size)
            image, servers = stack.enter_context(slow)
            arguments += ["--disk", f"{vm['name']}={image},ro"]
        else:
            arguments += disks(folder, {vm["name"]: size})
        daemon = stack.enter_context(Daemon(options.program, folder / "model", arguments))
        daemon.prefer()
        shape: Table = {"vcpus": 1, "memory_mib": scenes.MEMORY_MIB, "kvm": options.kvm}
        shape["programs"] = {"seekway": options.program}
        disk = Disk(daemon.socket(f"{vm['name']}.vhost"))
        guest = stack.enter_context(Guest(vm["name"], [disk], **shape)).wait_ready()
        idle = daemon.status()
        text = twin.vm_text(vm)
        guest.check(
            f"(exec seekway load --vm '{text}' --on /dev/vda --seed {options.seed} --for 1h) "
            ">/tmp/said 2>&1 &",
            PATIENCE_S,
        )
        until_at_work(daemon, [vm["name"]], idle, AT_WORK)
        looks = partial(HostLook.now, [guest.pid], [[]], [daemon.pid, *servers])
        found = [_window(daemon, looks, window_s) for _ in range(WINDOWS)]
        guest.kill()
        daemon.stop()
    return found


def endless(vm: Table) -> Table:
    """The VM with more requests than all windows take."""
    return {**vm, "load": [{**load, "requests": REQUESTS} for load in vm["load"]]}


def _window(daemon: Daemon, look: Callable[[], HostLook], window_s: float) -> Table:
    host, before = look(), daemon.status()
    time.sleep(window_s)
    after, shares = daemon.status(), host.until(look())
    moved = emulated_between(before, after)
    if moved is None:
        raise LiveError("no command was done in a window")
    was, now = device(before)["emulated"], device(after)["emulated"]
    return {
        "k": now["k"],
        "changes": now["changes"][len(was["changes"]) :],
        "commands": moved["commands"],
        "late": moved["late"] / moved["commands"],
        "host_busy": shares["busy"],
        "others": others(shares),
    }


@contextmanager
def slow_image(
    options: runs.Options, folder: Path, profile: str, size: int
) -> Iterator[tuple[Path, list[int]]]:
    """A file that is as slow as a disk, and the processes that serve it: a second daemon emulates
    the disk in its own times, and QEMU's storage daemon makes a file of it. To read only: QEMU 7.2
    mixes up writes to such a file.
    """
    with ExitStack() as stack:
        folder.mkdir()
        arguments = ["--policy", "noop", "--cache", "off", "--emulate", f"{profile}:k=1"]
        arguments += disks(folder, {"real": size})
        daemon = stack.enter_context(Daemon(options.program, folder, arguments))
        daemon.prefer()
        path = folder / "image"
        path.touch()
        server = f"server.type=unix,server.path={daemon.socket('real.nbd')}"
        export = f"fuse,id=file,node-name=disk,mountpoint={path}"
        command = ["qemu-storage-daemon", "--blockdev", f"nbd,node-name=disk,{server},export=real"]
        command += ["--export", export]
        process = Process(command, folder / "log", package="qemu-system-common")
        # Its end at a signal takes the file away; SIGKILL would leave it in the way.
        stack.callback(process.stop, PATIENCE_S)

        def is_there() -> bool:
            if process.ended() is not None:
                raise LiveError(f"qemu-storage-daemon: {process.said()}")
            return path.stat().st_size == size

        wait_for(f"{path}", is_there, PATIENCE_S)
        yield path, [daemon.pid, process.pid]


# --- figures and verdicts


def stable_k(windows: Sequence[Table]) -> float | None:
    """The k that the last windows have in common at their ends; None if they have none."""
    last = {one["k"] for one in windows[-STABLE:]}
    return last.pop() if len(last) == 1 else None


def row(case: Case, windows: Sequence[Table]) -> Table:
    """A case with its verdict. The keys in JSON stay.

    It `holds` when k is stable and at most 1 % of the commands of each of those windows were late,
    `in part` when only k is stable, else it is `refuted`. A k above 1 where the image is fast
    enough is `refuted` too. `void`: others on this machine had more than `OTHERS` of the processors
    in a window. That the guest and the daemon keep them busy is a part of the case.
    """
    k, last = stable_k(windows), windows[-STABLE:]
    verdict, why = "holds", f"k {', '.join(runs.number(one['k']) for one in windows)}"
    if any(one["late"] > runs.LATE_MAX for one in last):
        verdict = "in part"
    if k is None or (case.is_fast and k != 1):
        verdict = "refuted"
    late = ", ".join(f"{100 * one['late']:.2f}" for one in windows)
    why += f"; late {late} %"
    if (share := max(one["others"] for one in windows)) > OTHERS:
        verdict, why = "void", f"others had {runs.percent(share)} of the CPU; {why}"
    return {
        "case": case.name,
        "stable_k": k,
        "windows": list(windows),
        "verdict": verdict,
        "why": why,
    }


def record(found: Table) -> Record:
    """A case as a row that may decide a claim: k at the ends of the last windows."""
    values = [one["k"] for one in found["windows"][-STABLE:]]
    verdict = judge.Verdict(found["verdict"])
    return judge.Row(f"{found['case']}: k", None, values, "", verdict, found["why"]).record(
        EXPERIMENT
    )


def table(rows: Sequence[Table], window_s: float) -> runs.Table:
    """k and late commands over time."""

    def each(key: str, unit: float = 1) -> Any:
        return lambda row: ", ".join(runs.number(unit * one[key]) for one in row["windows"])

    def most(key: str) -> Any:
        return lambda row: 100 * max(one[key] for one in row["windows"])

    columns: twin.Columns = {
        "device": lambda row: row["case"],
        "k": each("k"),
        "late (%)": each("late", 100),
        "changes of k": lambda row: sum(len(one["changes"]) for one in row["windows"]),
        "commands": lambda row: sum(one["commands"] for one in row["windows"]),
        "host CPU (%)": most("host_busy"),
        "others, CPU (%)": most("others"),
        "verdict": lambda row: row["verdict"],
    }
    note = (
        f"Windows of {window_s:g} s, k at their ends. Holds: the last {STABLE} have the same k, "
        f"and at most {100 * runs.LATE_MAX:g} % of the commands of each were late; in part: only "
        f"the k. On memory the line's k has to stay 1. Void: others had more than {100 * OTHERS:g} "
        "% of the processors."
    )
    return twin.table("Does the throttle find a stable k?", rows, columns, note)
