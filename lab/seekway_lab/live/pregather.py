"""pregather-read on real guests: figure 5 of the Pregather paper, with the paper's own program.

Three guests read with sysbench through the page cache of a real Linux. Places, disk and files are
the simulator's. Guests boot once. For each policy caches are dropped, all applications start, and
the daemon's counters are read at both ends of a window in which all of them run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from seekway_lab.live import counters, filesystem, runs, twin
from seekway_lab.live.counters import Cpu, Status
from seekway_lab.live.daemon import Daemon, disks
from seekway_lab.live.filesystem import FileSet
from seekway_lab.live.guest import Disk, Guest
from seekway_lab.live.process import LiveError
from seekway_lab.scenarios import Table

#: The disk. Without scaling: its times are absolute, and a real completion that is late is counted.
DEVICE = "seagate-1tb-7200"
#: Sector of the first image on it (figure 1 of the paper).
PLACE = 1_283_200_000
IMAGE_BYTES = 12 << 30
FILES, SET_BYTES = 128, 1 << 30
#: Page cache and all: less than what the applications read.
MEMORY_MIB = 384
#: Time from the first reads of all guests to the window.
SETTLE_S = 3
WINDOW_S, QUICK_S = 20, 5
#: Reads after which a guest is at work.
AT_WORK = 50
PATIENCE_S = 600
#: The guests, and sysbench's mode in each of their applications: sequential or random reads.
VMS = {"vm1": ["SR", "SR"], "vm2": ["SR", "RR"], "vm3": ["RR", "RR"]}
MODES = {"SR": "seqrd", "RR": "rndrd"}
#: More than can be read in a window: applications do not end.
WORK: dict[str, Table] = {"SR": {"size": "1GiB"}, "RR": {"requests": 1_000_000}}
#: The policy that others are compared with.
POLICIES = ["cfq", "pregather", "fairway"]


def run(options: runs.Options) -> runs.Report:
    """Runs pregather-read in guests and in the simulator; judges nothing."""
    window_s = QUICK_S if options.quick else WINDOW_S
    policies, simulated = options.policies(POLICIES), []
    for policy in policies:
        options.tell(f"{policy} in the simulator")
        simulated.append(twin.simulate(scenario(), policy, options.seed, 0, window_s))
    rows = measure(options, policies, window_s)
    for row, outcome in zip(rows, simulated, strict=True):
        found = twin.figures(outcome)
        row |= {
            "simulated_mib_s": found["mib_s"],
            "simulated_zero_seeks": twin.zero_seeks(outcome),
            "simulated_kib_per_command": found["kib_per_command"],
        }
        for vm, figures in zip(row["vms"], found["vms"], strict=True):
            vm["simulated_mib_s"], vm["simulated_iops"] = figures["mib_s"], figures["iops"]
    return runs.Report(tables(rows, window_s), rows)


def scenario() -> Table:
    """Runs these guests and loads in the simulator."""
    # The initramfs and the kernel's own memory are not the page cache's.
    guest = {"ram": f"{MEMORY_MIB}MiB", "reserved": "200MiB", "vcpus": 1, "max_request_kib": 128}
    vms = [
        {
            "name": name,
            "guest": guest,
            "load": [{"app": "sysbench", "mode": mode, **WORK[mode]} for mode in modes],
        }
        for name, modes in VMS.items()
    ]
    images = {"map": "packed", "from": PLACE}
    return {"vm": vms, "device": {"profile": DEVICE}, "images": images}


# --- real guests


def measure(options: runs.Options, policies: Sequence[str], window_s: int) -> list[Table]:
    """Boots the guests and measures each policy."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="seekway-live-")))
        journal = folder / "journal"
        arguments = ["--emulate", f"{DEVICE}:k=1", "--journal", str(journal)]
        for n, (name, modes) in enumerate(VMS.items()):
            image = folder / f"{name}.img"
            sets = [FileSet(f"app{app}", FILES, SET_BYTES // FILES) for app in range(len(modes))]
            filesystem.make(image, IMAGE_BYTES, sets, options.seed + n)
        arguments += disks(folder, dict.fromkeys(VMS, IMAGE_BYTES), PLACE)
        daemon = stack.enter_context(Daemon(options.program, folder, arguments))
        # One vCPU: three guests share two cores or so with the daemon.
        shape: Table = {"vcpus": 1, "memory_mib": MEMORY_MIB, "kvm": options.kvm}
        guests = [
            stack.enter_context(Guest(name, [Disk(daemon.socket(f"{name}.vhost"))], **shape))
            for name in VMS
        ]
        for guest in guests:
            # The files' inodes stay in memory: reading data reads data only, as in the simulator.
            guest.wait_ready().check(
                "mount -t ext4 -o noatime,noinit_itable /dev/vda /mnt && "
                "echo 128 >/sys/block/vda/queue/max_sectors_kb && "
                "find /mnt -type f | xargs stat >/dev/null",
                PATIENCE_S,
            )
        rows = []
        for policy in policies:
            options.tell(f"{policy}: {SETTLE_S + window_s} s")
            rows.append(_window(daemon, guests, policy, options.seed, window_s))
        for guest in guests:
            guest.kill()
        daemon.stop()
        lines = (line for file in sorted(journal.iterdir()) for line in file.open())
        for row, share in zip(rows, zero_seeks(lines, len(rows)), strict=True):
            row["zero_seeks"] = share
    return rows


def _window(
    daemon: Daemon, guests: Sequence[Guest], policy: str, seed: int, window_s: int
) -> Table:
    daemon.set_policy(policy)
    for guest in guests:
        guest.check("sync; echo 1 >/proc/sys/vm/drop_caches", PATIENCE_S)
    idle = daemon.status()
    for guest in guests:
        guest.check(_start(VMS[guest.name], seed), PATIENCE_S)
    counters.until_at_work(daemon, VMS, idle, AT_WORK)
    time.sleep(SETTLE_S)
    cpu, before, began = Cpu.now(), daemon.status(), time.monotonic()
    time.sleep(window_s)
    after, seconds = daemon.status(), time.monotonic() - began
    row = {"policy": policy, **moved(before, after, seconds), "host_busy": cpu.busy_since()}
    for guest, vm in zip(guests, row["vms"], strict=True):
        vm["apps_mib_s"] = _stop(guest, window_s)
    return row


def _start(modes: Sequence[str], seed: int) -> str:
    """A command that starts sysbench once for each mode and returns."""
    return "".join(
        f"cd /mnt/app{n}; (exec sysbench fileio --file-num={FILES} --file-total-size={SET_BYTES} "
        f"--file-block-size=16384 --file-test-mode={MODES[mode]} --file-fsync-freq=0 --threads=16 "
        f"--time=3600 --report-interval=1 --rand-seed={seed + n + 1} run) >/tmp/app{n} 2>&1 & "
        for n, mode in enumerate(modes)
    )


def _stop(guest: Guest, window_s: int) -> list[float]:
    """Ends a guest's applications; MiB a second of each in the window, which ends now."""
    end = "killall -9 sysbench; while pidof sysbench >/dev/null; do sleep 0.1; done"
    guest.check(end, PATIENCE_S)
    found = []
    for n, mode in enumerate(VMS[guest.name]):
        said = guest.check(f"cat /tmp/app{n}", PATIENCE_S)
        rates = sysbench_rates(said)[-window_s:]
        if not rates:
            raise LiveError(f"{guest.name}: sysbench ({mode}) reports nothing: {said}")
        found.append(sum(rates) / len(rates))
    return found


def sysbench_rates(said: str) -> list[float]:
    """MiB a second by `[ 3s ] reads: 12.34 MiB/s writes: 0.00 MiB/s …`, a line for each second."""
    return [float(rate) for rate in re.findall(r"\] reads: (\S+)", said)]


def moved(before: Status, after: Status, seconds: float) -> Table:
    """Figures of the disks and the policy between two statuses, by their keys in JSON."""
    was, now = counters.device(before), counters.device(after)
    vms = []
    for disk in now["disks"]:
        first = counters.disk(before, disk["name"])["ops"]["read"]
        last = disk["ops"]["read"]
        if last["errors"] > first["errors"]:
            failed = last["errors"] - first["errors"]
            raise LiveError(f"{disk['name']}: {failed} reads failed")
        vms.append(
            {
                "name": disk["name"],
                "mib_s": (last["bytes"] - first["bytes"]) / twin.MIB / seconds,
                "iops": (last["requests"] - first["requests"]) / seconds,
            }
        )
    mib_s = sum(vm["mib_s"] for vm in vms)
    commands = now["commands"] - was["commands"]
    return {
        "seconds": seconds,
        "mib_s": mib_s,
        "kib_per_command": mib_s * seconds * 1024 / max(commands, 1),
        "held_ms": sum(now["held_ms"].values()) - sum(was["held_ms"].values()),
        "waits_tried": now["waits_tried"] - was["waits_tried"],
        "waits_paid": now["waits_paid"] - was["waits_paid"],
        "late_commands": now["emulated"]["late"] - was["emulated"]["late"],
        "vms": vms,
    }


def zero_seeks(journal: Iterable[str], policies: int) -> list[float]:
    """Share of the commands that begin where the last one ended, of each policy: from one change of
    policy in the daemon's journal to the next.
    """
    # The first stretch is the boot's, under the policy of the start.
    stretches, head = [[0, 0]], None
    for line in journal:
        match line.split():
            case [_, "switch", *_]:
                stretches.append([0, 0])
            case [_, "issue", _, _, extent] if "+" in extent:
                start, length = map(int, extent.split("+"))
                stretches[-1][0] += start == head
                stretches[-1][1] += 1
                head = start + length
    if len(stretches) != policies + 1:
        raise LiveError(f"{len(stretches)} stretches of {policies} policies in the journal")
    return [zero / max(every, 1) for zero, every in stretches[1:]]


# --- tables


def tables(rows: Sequence[Table], window_s: int) -> list[runs.Table]:
    """Tables of all VMs together, and of each."""
    base = rows[0]
    totals: twin.Columns = {
        "policy": lambda row: row["policy"],
        "real guests (MiB/s)": lambda row: row["mib_s"],
        f"over {base['policy']} (×)": lambda row: row["mib_s"] / base["mib_s"],
        "simulator (MiB/s)": lambda row: row["simulated_mib_s"],
        "over it (×)": lambda row: row["simulated_mib_s"] / base["simulated_mib_s"],
        "a command, real (KiB)": lambda row: row["kib_per_command"],
        "a command, simulator (KiB)": lambda row: row["simulated_kib_per_command"],
        "seeks at 0, real (%)": lambda row: 100 * row["zero_seeks"],
        "seeks at 0, simulator (%)": lambda row: 100 * row["simulated_zero_seeks"],
        "withheld (%)": lambda row: row["held_ms"] / row["seconds"] / 10,
        "waits": lambda row: row["waits_tried"],
        "paid (%)": lambda row: 100 * row["waits_paid"] / max(row["waits_tried"], 1),
        "late": lambda row: row["late_commands"],
        "host CPU (%)": lambda row: 100 * row["host_busy"],
    }
    note = (
        f"sysbench in QEMU guests on `seekway serve --emulate {DEVICE}:k=1`, windows of {window_s} "
        "s in which all six applications read; the simulator with the same disk, places and files. "
        "late: commands whose real completion came after the emulated disk's. Where the host's "
        "processors are nearly all busy, the guests' emulation is measured and not the disk."
    )
    each = [{"policy": row["policy"], **row["vms"][n]} for n in range(len(VMS)) for row in rows]
    of_vm: twin.Columns = {
        "VM": lambda vm: vm["name"],
        "policy": lambda vm: vm["policy"],
        "real (MiB/s)": lambda vm: vm["mib_s"],
        "simulator (MiB/s)": lambda vm: vm["simulated_mib_s"],
        "real (IOPS)": lambda vm: vm["iops"],
        "simulator (IOPS)": lambda vm: vm["simulated_iops"],
        "applications, real (MiB/s)": lambda vm: ", ".join(
            f"{mode} {rate:.2f}"
            for mode, rate in zip(VMS[vm["name"]], vm["apps_mib_s"], strict=True)
        ),
    }
    full = [
        f"{row['policy']}: {why}. What real guests get is bound by their emulation there, not by "
        "the disk."
        for row in rows
        if (why := runs.host_full(row["host_busy"]))
    ]
    title = "pregather-read on three real guests"
    return [twin.table(title, rows, totals, note, *full), twin.table("Each VM", each, of_vm)]
