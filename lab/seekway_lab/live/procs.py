"""vio-procs: sequential processes in one real guest, under several ways of reading ahead.

Of the VIO-prefetching paper. Cache and prefetcher are the daemon's, the disk an emulated
solid-state drive, the processes fio's, and their tags those of `seekway-guest tag`. The guest boots
once. Each row reads a part of the disk that no other row reads, so that neither the guest's page
cache nor the host's has it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from seekway_lab.live import counters, runs, twin
from seekway_lab.live.counters import Cpu
from seekway_lab.live.daemon import Daemon, disks
from seekway_lab.live.guest import Disk, Guest
from seekway_lab.live.process import LiveError
from seekway_lab.runs import rows_of
from seekway_lab.scenarios import Table

#: One of the paper's eight drives: an emulated guest can keep it busy.
DEVICE = "intel-x25m-g2"
CACHE = "512MiB"
#: The paper has 1 to 12; a guest of two emulated processors has no more to give.
COUNTS = [1, 3, 6]
WINDOW_S, QUICK_S = 8, 1
#: Time from the readers' start to the window, here and in the simulator: four of the paper's
#: intervals.
SETTLE_S = 2
#: Each row's part of the disk: more than is read in a window at the drive's speed.
AREA_BYTES = 6 << 30
#: The tools, the agent, and a page cache.
MEMORY_MIB = 768
PATIENCE_S = 600
#: Ways of reading ahead: the host's prefetcher, whether the guest's processes have tags, and the
#: guest's own window in KiB. The first is what the others are set beside.
WAYS = [
    ("none", False, 128),
    ("linux", False, 128),
    ("flashy", False, 128),
    ("vio", False, 128),
    ("vio", True, 128),
    ("vio:interval=continuous,threshold=auto", True, 128),
    ("none", False, 512),
]
NONE, VIO, OURS = 0, 4, 5
#: Ways that are judged, and the ways whose bandwidth is their target.
AGAINST = {VIO: [NONE], OURS: [NONE, VIO]}
#: The share of it that is asked, as in the simulator.
FLOOR = 0.98

START_AGENT = (
    "rm -f /tmp/agent.log; (exec seekway-guest tag --match fio --interval 20ms --verbose "
    ">/tmp/agent.log 2>&1) & echo $! >/tmp/agent; "
    "until grep -q ' tags as ' /tmp/agent.log; do sleep 0.1; done"
)
END_AGENT = (
    "kill $(cat /tmp/agent); while kill -0 $(cat /tmp/agent) 2>/dev/null; do sleep 0.1; done"
)


def run(options: runs.Options) -> runs.Report:
    """Runs vio-procs in a guest and in the simulator."""
    window_s = QUICK_S if options.quick else WINDOW_S
    rows = [
        {"processes": count, "prefetch": prefetch, "tagged": tagged, "read_ahead_kb": window}
        for count in (COUNTS[1:2] if options.quick else COUNTS)
        for prefetch, tagged, window in WAYS
    ]
    measure(options, rows, window_s)
    for row in rows:
        options.tell(f"{row['processes']} processes, {way(row)} in the simulator")
        row["simulated"] = simulated(row, options.seed, window_s)
    judge(rows)
    missed = any(row["verdict"] == "missed" for row in rows)
    return runs.Report([table(rows, window_s)], rows, missed=missed)


def simulated(row: Table, seed: int, window_s: int) -> Table:
    """Runs this guest on this drive in the simulator."""
    guest = {"image": "64GiB", "ram": f"{MEMORY_MIB}MiB", "reserved": "200MiB", "vcpus": 2}
    guest |= {"tags": row["tagged"], "read_ahead_kb": row["read_ahead_kb"]}
    load = {"app": "fio", "rw": "read", "bs": "64KiB", "size": "4GiB", "io_size": "1TiB"}
    scenario = {
        "vm": [{"name": "vm0", "guest": guest, "load": [{**load, "numjobs": row["processes"]}]}],
        "device": {"profile": DEVICE},
        "cache": {"size": CACHE, "prefetch": row["prefetch"]},
    }
    made = twin.simulate(scenario, "noop", seed, SETTLE_S, window_s)
    [usage] = [r for r in rows_of(made.cache) if r["vm"] and not r["by_process"]]
    read, used = usage["read_sectors"], usage["used_sectors"]
    unused = max(usage["prefetched_sectors"] - used - usage["dropped_sectors"], 0)
    return {
        "mib_s": twin.figures(made)["vms"][0]["mib_s"],
        "accuracy": min(used, read) / max(read, 1),
        "cost": unused / max(read + unused, 1),
    }


def way(row: Table) -> str:
    """A row's way of reading ahead."""
    tags = ", tags" if row["tagged"] else ""
    kib = row["read_ahead_kb"]
    return f"{row['prefetch']}{tags}" + (f", guest's window {kib} KiB" if kib != 128 else "")


# --- the real guest


def measure(options: runs.Options, rows: Sequence[Table], window_s: int) -> None:
    """Boots the guest; fills each row with its measurements."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="seekway-live-")))
        # Times are absolute: a real completion that comes late is counted.
        arguments = ["--emulate", f"{DEVICE}:k=1", "--policy", "noop", "--cache", CACHE]
        arguments += disks(folder, {"vm0": len(rows) * AREA_BYTES})
        daemon = stack.enter_context(Daemon(options.program, folder, arguments))
        shape: Table = {"vcpus": 2, "memory_mib": MEMORY_MIB, "kvm": options.kvm}
        shape["programs"] = {"seekway-guest": options.agent}
        guest = stack.enter_context(Guest("vm0", [Disk(daemon.socket("vm0.vhost"))], **shape))
        guest.wait_ready().check("echo none >/sys/block/vda/queue/scheduler", PATIENCE_S)
        for number, row in enumerate(rows):
            options.tell(f"{row['processes']} processes, {way(row)}")
            row |= _window(daemon, guest, row, number * AREA_BYTES, window_s)
        guest.kill()
        daemon.stop()


def _window(daemon: Daemon, guest: Guest, row: Table, area: int, window_s: int) -> Table:
    daemon.ask("prefetch", prefetcher=row["prefetch"])
    if row["tagged"]:
        guest.check(START_AGENT, PATIENCE_S)
    cpu, before = Cpu.now(), daemon.status()
    said = guest.check(_read(row, area, window_s), PATIENCE_S + window_s)
    host_busy, after = cpu.busy_since(), daemon.status()
    if row["tagged"]:
        guest.check(END_AGENT, PATIENCE_S)
    try:
        mib_s, guest_busy = parsed(said)
    except (ValueError, LookupError) as error:
        raise LiveError(f"{guest.name}: the readers said {said}") from error
    usage = counters.usage_between(before, after)
    emulated = counters.emulated_between(before, after) or {"commands": 0, "late": 0}
    return {
        "live": {"mib_s": mib_s, "accuracy": usage["accuracy"], "cost": usage["cost"]},
        "tags": counters.tags_between(before, after),
        "guest_busy": guest_busy,
        "host_busy": host_busy,
        "commands": emulated["commands"],
        "late_commands": emulated["late"],
    }


def _read(row: Table, area: int, window_s: int) -> str:
    """A command that reads as the paper's processes do, 64 KiB at a time, by the page cache."""
    each = AREA_BYTES // row["processes"]
    return (
        f"echo {row['read_ahead_kb']} >/sys/block/vda/queue/read_ahead_kb; "
        "echo 3 >/proc/sys/vm/drop_caches; head -n 1 /proc/stat; "
        "fio --name=reader --filename=/dev/vda --rw=read --bs=64k --ioengine=psync "
        f"--numjobs={row['processes']} --group_reporting --offset={area} "
        f"--offset_increment={each} --size={each} --time_based --ramp_time={SETTLE_S} "
        f"--runtime={window_s} --output-format=json --output=/tmp/fio.json && "
        "head -n 1 /proc/stat && cat /tmp/fio.json"
    )


def parsed(said: str) -> tuple[float, float]:
    """MiB a second, and the share of its processors' time that the guest used."""
    first, last = (Cpu.of(line) for line in said.splitlines() if line.startswith("cpu "))
    bytes_s = json.loads(said[said.index("{") :])["jobs"][0]["read"]["bw_bytes"]
    if not bytes_s:
        raise ValueError("nothing was read")
    return bytes_s / twin.MIB, first.busy_until(last)


# --- verdicts


def void(row: Table) -> str | None:
    """Why a row says nothing of a prefetcher, if so."""
    late = row["late_commands"] / max(row["commands"], 1)
    return runs.too_late(late) or runs.host_full(row["host_busy"])


def judge(rows: Sequence[Table]) -> None:
    """Gives each row its verdict (`measured`, `met`, `missed` or `void`), why, and its gains over
    the first way with as many processes.
    """
    for at, row in enumerate(rows):
        first = at - at % len(WAYS)
        for side in ("live", "simulated"):
            row[side]["over_none"] = row[side]["mib_s"] / rows[first][side]["mib_s"]
        beside = [rows[first + other] for other in AGAINST.get(at - first, ())]
        reasons = [f"{way(one)}: {why}" for one in [row, *beside] if (why := void(one))]
        verdict, row["why"] = "measured", "; ".join(reasons)
        if reasons:
            verdict = "void"
        elif beside:
            least = min(row["live"]["mib_s"] / one["live"]["mib_s"] for one in beside)
            verdict = "met" if least >= FLOOR else "missed"
            row["why"] = f"at least {FLOOR} is asked of {least:.2f}"
        row["verdict"] = verdict


def table(rows: Sequence[Table], window_s: int) -> runs.Table:
    """All rows."""
    columns: twin.Columns = {
        "processes": lambda row: row["processes"],
        "prefetcher": way,
        **twin.both({"bandwidth (MiB/s)": "mib_s", "over none (×)": "over_none"}),
        **twin.both({"accuracy (%)": "accuracy", "cost (%)": "cost"}, unit=100),
        "tags": lambda row: row["tags"],
        "guest CPU (%)": lambda row: 100 * row["guest_busy"],
        "host CPU (%)": lambda row: 100 * row["host_busy"],
        "late": lambda row: row["late_commands"],
        "verdict": lambda row: row["verdict"],
        "why": lambda row: row["why"],
    }
    note = (
        "fio reads 64 KiB at a time through the page cache of a guest with two processors for "
        f"{window_s} s; `seekway serve --emulate {DEVICE}:k=1 --cache {CACHE} --policy noop`; tags "
        "by `seekway-guest tag`. Near 100 % it is the guest's, or the host's, processors that are "
        "measured. late: commands whose real completion came after the emulated drive's. A row is "
        f"void when more than {100 * runs.LATE_MAX:g} % of its commands are late or the host's "
        f"processors are over {100 * runs.HOST_FULL:g} % busy, or when a row that it is set beside "
        f"is. Bandwidth is measured after {SETTLE_S} s, here and in the simulator; the real "
        "accuracy and cost are of those seconds too."
    )
    return twin.table("vio-procs on a real guest", rows, columns, note)
