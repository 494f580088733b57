"""noisy: a quiet VM beside a flood on one disk, through real servers, beside the simulator with the
same loads (docs/noisy.md). No guests: the VMs are vhost-user front ends.

A round of a scene measures the quiet VM alone, the flood alone, both under each server, and the
quiet VM alone again. Each measurement has a server of its own, so that none learns from another,
and rounds go forwards and backwards in turn, so that a slow phase of the machine hits all servers
alike.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from seekway_lab.live import frontend, runs
from seekway_lab.live.counters import Cpu, device
from seekway_lab.live.daemon import Daemon
from seekway_lab.live.frontend import Load
from seekway_lab.live.process import LiveError, Process, wait_for
from seekway_lab.live.runs import Options, Report, Table, number, percent
from seekway_lab.records import LabError

KIB, MIB = 1 << 10, 1 << 20
#: Both are alone under it, and the flood's rate is set against it.
BASE = "noop"
POLICIES = [BASE, "cfq", "kyber", "iocost", "fairway"]
#: The policy that has targets on the disk.
JUDGED = "fairway"
#: The peer, which emulates no device: plain, and with a throttle on the flood, which lets through
#: the flood's target beside fairway, as a share of its rate alone.
PEER = "qemu-storage-daemon"
PEERS = {PEER: PEER, "throttled": f"{PEER}, flood at 80 %"}
THROTTLE = 0.8
#: Profiles of the emulated devices, and the machine's own disk.
EMULATED, DISK = ["intel-x25m-g2", "samsung-970-pro"], "disk"
MEMORY = Path("/dev/shm")
#: One random read of 4 KiB at a time.
QUIET = Load(4 * KIB, 1, stamped=True)
#: Floods by their names among the arena's scenes, with the same load.
FLOODS = {
    "flood": Load(64 * KIB, 64, stamped=True),
    "writes": Load(4 * KIB, 128, write=True, stamped=True),
    "stream": Load(MIB, 8, streams=1, stamped=True),
}
PEER_S = 120.0
#: A round is void when the quiet VM alone changed by more from its beginning to its end.
DRIFT_MAX = 0.2
#: Emulated: the quiet VM's IOPS are to be the simulator's, up to this share.
WITHIN = 0.1
#: The disk, over noop: the quiet VM's IOPS at least, its p99 at most, and the flood at least.
IOPS_LEAST, P99_MOST, FLOOD_LEAST = 10.0, 0.2, 0.8

#: One measurement: figures of VMs by name, `host_busy`, `late`, `metrics`; or why there is none.
Window = dict[str, Any] | str
#: `alone` (two windows), `flood_alone`, and `beside` by server.
Round = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Scene:
    """A disk with two images, and its flood."""

    device: str
    flood: str
    folder: Path
    image_bytes: int
    servers: Sequence[str]

    @property
    def name(self) -> str:
        """For `--scenes`."""
        return f"{self.device}/{self.flood}"

    @property
    def emulated(self) -> bool:
        """Whether the daemon emulates the device; else the folder's disk is measured."""
        return self.device != DISK


def run(options: Options) -> Report:
    """Measures all scenes; each server's row meets its targets or not."""
    if options.kvm:
        raise LabError("--kvm: noisy runs no guests")
    quick_s, quick_rounds = (0.3, 1) if options.quick else (1.0, 3)
    seconds = quick_s if options.seconds is None else options.seconds
    rounds = quick_rounds if options.rounds is None else options.rounds
    if not (0.1 <= seconds <= 60 and 1 <= rounds <= 100):
        raise LabError("--seconds: from 0.1 to 60; --rounds: from 1 to 100")
    rows: list[Row] = []
    for _, of_disk in groupby(scenes(options), lambda scene: scene.device):
        with Stage(options, list(of_disk), seconds) as stage:
            for scene in stage.scenes:
                made = [stage.round(scene, number, rounds) for number in range(rounds)]
                twins = simulated(scene, made, seconds, options) if scene.emulated else {}
                rows += [row(scene, server, made, twins.get(server)) for server in scene.servers]
    missed = any(one["verdict"] == "missed" for one in rows)
    return Report(tables(rows, rounds, seconds), rows, missed=missed)


def scenes(options: Options) -> list[Scene]:
    """Scenes that are wanted, the emulated devices first: the disk may be spent later."""
    known = [*POLICIES, *PEERS]
    if unknown := [name for name in options.servers if name not in known]:
        raise LabError(
            f"--servers: no {unknown[0]}; there are {', '.join(known)}; --policy adds one"
        )
    wanted = {BASE, *(options.servers or known)}
    ours = options.policies([name for name in POLICIES if name in wanted])
    peers = [PEERS[name] for name in PEERS if name in wanted]
    folder = options.work_dir or Path(tempfile.gettempdir())
    every = [
        *(Scene(one, flood, MEMORY, 256 * MIB, ours) for one in EMULATED for flood in FLOODS),
        *(Scene(DISK, flood, folder, 64 * MIB, [*ours, *peers]) for flood in FLOODS),
    ]
    found = [scene for scene in every if options.wants(scene.name)]
    if not found:
        names = ", ".join(scene.name for scene in every)
        raise LabError(f"--scenes {options.scenes}: none; there are {names}")
    asked = [name for name in PEERS if name in options.servers]
    if asked and all(scene.emulated for scene in found):
        raise LabError(f"--servers {asked[0]}: in the scenes {DISK}/* only")
    return found


# --- measuring


class Stage:
    """The images of a disk and a folder for servers, and the disk's scenes while they run."""

    def __init__(self, options: Options, scenes: list[Scene], seconds: float) -> None:
        """Of scenes on one disk; each measurement counts for some seconds after half of them."""
        self.options, self.scenes, self.seconds = options, scenes, seconds
        #: The flood's last rate alone: throttles are shares of it.
        self.flood_bytes_s = math.nan

    def __enter__(self) -> Stage:
        """Writes the images."""
        disk = self.scenes[0]
        self.options.tell(f"{disk.device}: two images of {disk.image_bytes // MIB} MiB")
        # The folder's name tells later whether its owner still runs.
        prefix = f"seekway-live-{os.getpid()}-"
        with ExitStack() as stack:
            images, self.folder = (
                Path(stack.enter_context(tempfile.TemporaryDirectory("", prefix, where)))
                for where in (disk.folder, None)
            )
            self.images = {vm: images / f"{vm}.img" for vm in ("quiet", "flood")}
            for path in self.images.values():
                frontend.write_image(path, disk.image_bytes)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def round(self, scene: Scene, number: int, rounds: int) -> Round:
        """One round. A failed measurement is an error of its own only."""
        flood = FLOODS[scene.flood]

        def measure(server: str, **vms: Load) -> Window:
            about = f"{scene.name}, round {number + 1} of {rounds}: {' and '.join(vms)}"
            self.options.tell(f"{about} under {server}")
            try:
                return self._window(scene, server, vms)
            except (LabError, OSError) as error:
                return str(error)

        before = measure(BASE, quiet=QUIET)
        flood_alone = measure(BASE, flood=flood)
        if not isinstance(flood_alone, str):
            self.flood_bytes_s = flood_alone["flood"]["bytes_s"]
        order = scene.servers[::-1] if number % 2 else scene.servers
        beside = {server: measure(server, quiet=QUIET, flood=flood) for server in order}
        after = measure(BASE, quiet=QUIET)
        return {"alone": [before, after], "flood_alone": flood_alone, "beside": beside}

    def _window(self, scene: Scene, server: str, vms: Mapping[str, Load]) -> dict[str, Any]:
        """Starts a server, loads it by these VMs at the same time, ends it."""
        if not scene.emulated and _in_memory(scene.folder):
            raise LiveError(f"{scene.folder} is in memory: name a folder on a disk")
        settle = self.seconds / 2
        end = settle + self.seconds
        with self._served(scene, server) as (sockets, inside):
            cpu = Cpu.now()
            loads = {vm: (sockets[vm], load, 0.0, end) for vm, load in vms.items()}
            made = frontend.together(loads, scene.image_bytes)
            found = {"host_busy": cpu.busy_since(), **inside()}
        for vm, requests in made.items():
            counted = [done - began for began, done in requests if settle <= done < end]
            found[vm] = sample(counted, self.seconds, vms[vm].bytes)
        return found

    @contextmanager
    def _served(
        self, scene: Scene, server: str
    ) -> Iterator[tuple[dict[str, Path], Callable[[], dict[str, Any]]]]:
        """A server that listens: its sockets, and how the device and the policy did."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            folder = Path(name)
            if server in PEERS.values():
                sockets = {vm: folder / f"{vm}.qemu" for vm in self.images}
                limit = THROTTLE * self.flood_bytes_s if server == PEERS["throttled"] else None
                with _peer(sockets, self.images, limit):
                    yield sockets, dict
                return
            # Policies are compared, and the other server has no cache.
            arguments = ["--policy", server, "--cache", "off"]
            if scene.emulated:
                # Times are absolute: a real completion that comes late is counted.
                arguments += ["--emulate", f"{scene.device}:k=1"]
            for n, (vm, path) in enumerate(self.images.items()):
                place = f",lba={n * scene.image_bytes // 512}" if scene.emulated else ""
                arguments += ["--disk", f"{vm}={path}{place}"]
            with Daemon(self.options.program, folder, arguments) as daemon:
                yield {vm: daemon.socket(f"{vm}.vhost") for vm in self.images}, lambda: _in(daemon)
                daemon.stop()


def _in(daemon: Daemon) -> dict[str, Any]:
    """Late share of an emulated device's commands, and the policy's own figures now."""
    status = device(daemon.status())
    emulated = status.get("emulated")
    late = emulated["late"] / max(emulated["commands"], 1) if emulated else None
    return {"late": late, "metrics": status.get("policy_metrics") or {}}


@contextmanager
def _peer(
    sockets: Mapping[str, Path], images: Mapping[str, Path], limit_bytes_s: float | None
) -> Iterator[None]:
    """QEMU's storage daemon with an export for each image, the flood's behind a limit if given."""
    command = [PEER]
    if limit_bytes_s is not None:
        if math.isnan(limit_bytes_s):
            raise LiveError("the flood alone was not measured")
        group = f"throttle-group,id=limit,limits.bps-total={int(limit_bytes_s)}"
        command += ["--object", group]
    for vm, path in images.items():
        file = f"driver=file,node-name={vm},filename={path},aio=io_uring,cache.direct=on"
        command += ["--blockdev", file]
        node = vm
        if limit_bytes_s is not None and vm == "flood":
            node = f"{vm}-limited"
            throttle = f"driver=throttle,node-name={node},throttle-group=limit,file={vm}"
            command += ["--blockdev", throttle]
        export = f"vhost-user-blk,id=export-{vm},node-name={node},writable=on"
        command += ["--export", f"{export},addr.type=unix,addr.path={sockets[vm]}"]
    log = next(iter(sockets.values())).with_name("qemu.log")
    process = Process(command, log, package="qemu-system-common")
    try:

        def listens() -> bool:
            if process.ended() is not None:
                raise LiveError(f"{PEER} does not listen: {process.said()}")
            # Asked of the kernel, because it takes a connection for its one client. 00010000 is
            # __SO_ACCEPTCON.
            every = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
            listening = {words[7] for words in every if len(words) > 7 and words[3] == "00010000"}
            return all(str(path) in listening for path in sockets.values())

        wait_for(f"{PEER} listens", listens, PEER_S)
        yield
        process.stop(PEER_S)
    finally:
        process.kill()


def sample(latencies_s: Sequence[float], seconds: float, block_bytes: int) -> dict[str, float]:
    """Figures of a VM."""
    ordered = sorted(latencies_s) or [math.nan]
    iops = len(latencies_s) / seconds

    def quantile(share: float) -> float:
        return 1e6 * ordered[math.ceil(share * len(ordered)) - 1]

    figures = {"iops": iops, "bytes_s": iops * block_bytes}
    return figures | {"p50_us": quantile(0.5), "p99_us": quantile(0.99)}


def _in_memory(folder: Path) -> bool:
    """Is a folder in memory rather than on a disk?"""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [(at, kind) for at, kind in mounts if folder.resolve().is_relative_to(at)]
    return max(inside, key=lambda mount: len(mount[0]))[1] in ("tmpfs", "ramfs")


# --- the simulator


def simulated(
    scene: Scene, rounds: Sequence[Round], seconds: float, options: Options
) -> dict[str, Row]:
    """The scene in the simulator by policy, each for as long as it is measured.

    The quiet VM's think time makes it as fast alone as it was here: the simulator knows the
    device, and not what the path around it takes.
    """
    from seekway_lab.live import twin

    def run(policy: str, vms: Sequence[Row]) -> tuple[Row, Row]:
        options.tell(f"{scene.name}, {policy} in the simulator")
        table = {"vm": list(vms), "device": {"profile": scene.device}}
        outcome = twin.simulate(table, policy, options.seed, seconds / 2, seconds)
        metrics = [row for row in outcome.metrics.to_arrow().to_pylist() if row["vm"] is None]
        return twin.figures(outcome), {
            m["metric"]: m["value"] for m in metrics if m["of"] == "policy"
        }

    vms = twins(scene)
    alone, _ = run(BASE, vms[:1])
    here = median(alone_of(one, "iops") for one in rounds)
    if here:
        think_ns = 60_000 + 1e9 / here - 1e9 / alone["vms"][0]["iops"]
        vms = twins(scene, max(0, int(think_ns)))
        alone, _ = run(BASE, vms[:1])
    quiet_alone = alone["vms"][0]
    base, _ = run(BASE, vms)
    found = {}
    for policy in scene.servers:
        beside, metrics = run(policy, vms)
        quiet, flood = beside["vms"]
        found[policy] = {
            "quiet_alone_iops": quiet_alone["iops"],
            "quiet_iops": quiet["iops"],
            "quiet_of_alone": quiet["iops"] / quiet_alone["iops"],
            "quiet_p99_us": 1e3 * quiet["p99_ms"],
            "quiet_p99_of_alone": quiet["p99_ms"] / quiet_alone["p99_ms"],
            "flood_of_base": flood["mib_s"] / base["vms"][1]["mib_s"],
            "policy_metrics": metrics,
        }
    return found


def twins(scene: Scene, think_ns: int = 60_000) -> list[Row]:
    """The VMs for the simulator, on images as large as the real ones.

    Writes are asynchronous, as to the daemon: nobody tells it that somebody waits for them.
    """
    flood = FLOODS[scene.flood]
    loads = {"quiet": (QUIET, think_ns), "flood": (flood, 60_000)}
    return [
        {
            "name": name,
            "guest": {"image": f"{scene.image_bytes // MIB}MiB"},
            "load": [
                {
                    "app": "uniform",
                    "size": f"{load.bytes // KIB}KiB",
                    "outstanding": load.depth,
                    "read": 0 if load.write else 100,
                    "sequential": bool(load.streams),
                    "think": f"{think}ns",
                    "sync": False,
                }
            ],
        }
        for name, (load, think) in loads.items()
    ]


# --- judging


def median(values: Iterator[float | None]) -> float | None:
    """Of those that are there; None for none."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def alone_of(one: Round, figure: str) -> float | None:
    """The quiet VM's mean over the windows that it has alone in a round."""
    windows = [window["quiet"][figure] for window in one["alone"] if not isinstance(window, str)]
    return statistics.mean(windows) if windows else None


def void(one: Round, server: str) -> str | None:
    """Why a round says nothing of a server, if so."""
    for window in one["alone"]:
        if isinstance(window, str):
            return f"the quiet VM alone: {window.splitlines()[0]}"
    before, after = (window["quiet"]["iops"] for window in one["alone"])
    if abs(before - after) > DRIFT_MAX * max(before, after):
        return f"the quiet VM alone went from {before:.0f} to {after:.0f} IOPS in the round"
    for name, whose in {server: "", **({} if server == BASE else {BASE: "under noop, "})}.items():
        window = one["beside"][name]
        if isinstance(window, str):
            return f"{whose}{window.splitlines()[0]}"
        why = runs.too_late(window.get("late") or 0) or runs.host_full(window["host_busy"])
        if why:
            return f"{whose}{why}"
    return None


def row(scene: Scene, server: str, rounds: Sequence[Round], twin: Row | None) -> Row:
    """A server's row. The keys stay in JSON. Figures are medians over the rounds that are not void;
    over all of them in a void row.
    """
    voids = [why for one in rounds if (why := void(one, server))]
    # One good round among many is luck.
    is_void = 2 * len(voids) >= len(rounds)
    good = [one for one in rounds if is_void or not void(one, server)]

    def of(vm: str, figure: str, name: str = server) -> list[float | None]:
        windows = [one["beside"][name] for one in good]
        return [None if isinstance(w, str) else w[vm][figure] for w in windows]

    def over(values: Sequence[float | None], base: Sequence[float | None]) -> float | None:
        return median(a / b if a and b else None for a, b in zip(values, base, strict=True))

    alone = {figure: [alone_of(one, figure) for one in good] for figure in ("iops", "p99_us")}
    iops, p99, flood = of("quiet", "iops"), of("quiet", "p99_us"), of("flood", "bytes_s")
    floods = [w["flood"]["bytes_s"] for o in good if not isinstance(w := o["flood_alone"], str)]
    windows = [w for one in good if not isinstance(w := one["beside"][server], str)]
    metrics = {name for window in windows for name in window.get("metrics", {})}
    there = [value for value in iops if value is not None]
    found: Row = {
        "device": scene.device,
        "emulated": scene.emulated,
        "flood": scene.flood,
        "server": server,
        "quiet_alone_iops": median(iter(alone["iops"])),
        "quiet_alone_p99_us": median(iter(alone["p99_us"])),
        "quiet_iops": median(iter(iops)),
        "quiet_iops_range": [min(there), max(there)] if there else None,
        "quiet_of_alone": over(iops, alone["iops"]),
        "quiet_p99_us": median(iter(p99)),
        "quiet_p99_of_alone": over(p99, alone["p99_us"]),
        "flood_alone_mib_s": statistics.median(floods) / MIB if floods else None,
        "flood_mib_s": median(value and value / MIB for value in flood),
        "flood_of_base": over(flood, of("flood", "bytes_s", BASE)),
        "policy_metrics": {
            name: median(w["metrics"].get(name) for w in windows) for name in sorted(metrics)
        },
        "simulated": twin,
        "late": median(window.get("late") for window in windows),
        "host_busy": median(window["host_busy"] for window in windows),
        "rounds": len(rounds),
        "void_rounds": len(voids),
        "verdict": "void",
        "why": "",
    }
    if voids:
        found["why"] = f"{len(voids)} of {len(rounds)} rounds: {voids[0]}"
    if not is_void:
        base = (over(iops, of("quiet", "iops", BASE)), over(p99, of("quiet", "p99_us", BASE)))
        found |= judged(found, *base)
    return found


def judged(found: Row, iops: float | None, p99: float | None) -> Row:
    """The verdict of a row: `met`, `missed`, or `measured` where nothing is asked of it.

    `iops` and `p99` are the quiet VM's over those under noop.
    """
    twin, flood = found["simulated"], found["flood_of_base"]
    if twin:
        of_twin = found["quiet_iops"] / twin["quiet_iops"]
        kept = found["quiet_of_alone"] / twin["quiet_of_alone"]
        met = abs(of_twin - 1) <= WITHIN
        why = (
            f"quiet IOPS {of_twin:.2f} of the simulator's (as parts of those alone: {kept:.2f}); "
            f"{1 - WITHIN:.2f} to {1 + WITHIN:.2f} is asked"
        )
    elif found["server"] != JUDGED or found["emulated"] or None in (iops, p99, flood):
        return {"verdict": "measured"}
    else:
        assert iops is not None and p99 is not None
        met = iops >= IOPS_LEAST and p99 <= P99_MOST and flood >= FLOOD_LEAST
        why = (
            f"over noop: quiet IOPS {iops:.1f} (at least {IOPS_LEAST:g} is asked), p99 {p99:.2f} "
            f"(at most {P99_MOST}), flood {flood:.2f} (at least {FLOOD_LEAST})"
        )
    return {"verdict": "met" if met else "missed", "why": why}


# --- showing


def tables(rows: Sequence[Row], rounds: int, seconds: float) -> list[Table]:
    """The rows, and the device as policies with a bound have learnt it."""

    def ms(us: float | None) -> str:
        return number(us and us / 1e3)

    def times(ratio: float | None) -> str:
        return "–" if ratio is None else f"{ratio:.1f} ×"

    lines = []
    for one in rows:
        twin = one["simulated"] or {}
        least, most = one["quiet_iops_range"] or (None, None)
        pairs = [
            [number(one["quiet_iops"]), number(twin.get("quiet_iops"))],
            [f"{number(least)} to {number(most)}"],
            [percent(one["quiet_of_alone"]), percent(twin.get("quiet_of_alone"))],
            [ms(one["quiet_alone_p99_us"]), ms(one["quiet_p99_us"])],
            [times(one["quiet_p99_of_alone"]), times(twin.get("quiet_p99_of_alone"))],
            [number(one["flood_alone_mib_s"]), number(one["flood_mib_s"])],
            [percent(one["flood_of_base"]), percent(twin.get("flood_of_base"))],
            [percent(one["late"]), percent(one["host_busy"]), one["verdict"], one["why"]],
        ]
        name, alone = f"{one['device']}/{one['flood']}", number(one["quiet_alone_iops"])
        lines.append([name, one["server"], alone, *(cell for pair in pairs for cell in pair)])
    heads = ["device/flood", "server", "quiet alone, IOPS:", "beside:", "simulator:"]
    heads += ["least to most", "of alone:", "simulator:", "p99 alone, ms:", "beside:"]
    heads += ["of alone:", "simulator:", "flood alone, MiB/s:", "beside:", "of noop's:"]
    heads += ["simulator:", "late:", "host CPU:", "verdict", "why"]
    note = (
        f"Medians of {rounds} rounds, each figure over {seconds:g} s after {seconds / 2:g} s. "
        "docs/noisy.md has the loads, what is asked, and when a row is void."
    )
    made = [Table("A quiet VM beside a flood", heads, lines, [note])]
    bounded = [one for one in rows if "bound_bytes" in one["policy_metrics"]]
    if bounded:
        made.append(_learnt(bounded))
    return made


def _learnt(rows: Sequence[Row]) -> Table:
    heads, lines = ["device/flood", "server"], []
    figures = {
        "bound, KiB": ("bound_bytes", KIB),
        "rate, MiB/s": ("rate_bytes_per_s", MIB),
        "delay, µs": ("delay_us", 1),
        "parts, KiB": ("part_bytes", KIB),
    }
    for head in figures:
        heads += [f"{head}:", "simulator:"]
    for one in rows:
        line = [f"{one['device']}/{one['flood']}", one["server"]]
        for name, unit in figures.values():
            for of in (one["policy_metrics"], (one["simulated"] or {}).get("policy_metrics", {})):
                value = of.get(name)
                line.append(number(None if value is None else value / unit))
        lines.append(line)
    note = (
        "At the end of the measurement, medians of the rounds. bound: the most that the others "
        "may have in the device while a VM with a short queue is active; rate: the most that the "
        "device completed, both with 4 KiB for each command; delay: the least that a command "
        "takes, from the daemon to the device and back; parts: of long requests."
    )
    return Table("What the policy has learnt of the device", heads, lines, [note])
