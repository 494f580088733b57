"""cats-direct and vmcd-fair-sizes: a scenario of the simulator on real guests.

Each guest runs `seekway load` with the simulator's own description of its load on its
virtio-blk disk, served by `seekway serve` as the emulated disk. Guests boot once. In each window
all loads start at the same time, and each measures itself over the same seconds.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from seekway_lab.live import runs, twin
from seekway_lab.live.counters import Cpu, emulated_between
from seekway_lab.live.daemon import Daemon, disks
from seekway_lab.live.guest import Disk, Guest, boot_all
from seekway_lab.live.process import LiveError
from seekway_lab.papers.cats.rank import same_order
from seekway_lab.papers.vmcd.figures import phi
from seekway_lab.scenarios import Table, from_file

PAPERS = Path(__file__).resolve().parents[1] / "papers"
#: Images in memory: a read of a real disk would end after the emulated one's.
MEMORY = "/dev/shm"
#: The tools, the program (once in memory, once unpacked), the load's own state.
MEMORY_MIB = 768
#: Time outside of the measurement, to start loads and to end them.
PATIENCE_S = 600
SETTLE_S, WINDOW_S, QUICK_S = 3, 20, 5
#: Requests that a scheduler of a guest's kernel sees at most: Linux's number for a disk that takes
#: 128 at once or more.
QUEUED = 256
SIDES = ("live", "simulated")


@dataclass(frozen=True)
class Scene:
    """VMs on their disk, for real guests and for the simulator."""

    #: As `[[vm]]` of a scenario, with names; their images lie one behind the other.
    vms: Sequence[Table]
    #: A profile's name with its changes, or its text; None: the images as fast as memory is.
    device: str | None
    #: How many times slower than the profile.
    k: int = 1
    #: Requests that each guest has outstanding at most; None: QEMU's choice, more than it needs.
    outstanding: int | None = None

    @property
    def scenario(self) -> Table:
        """Runs these loads on this disk in the simulator."""
        device = self.device or ""
        profile = tomllib.loads(device) if "\n" in device else device
        return {"vm": list(self.vms), "device": {"profile": profile, "slow": self.k}}


@dataclass(frozen=True)
class Window:
    """One measurement of a scene."""

    policy: str
    #: Of the loads.
    seed: int
    #: Only this guest, by its index.
    only: int | None = None
    #: Scheduler of the guest's kernel, above the policy.
    elevator: str = "none"


def of_study(paper: str, study: str, case: str) -> Scene:
    """The scene of a paper's study."""
    every = from_file(PAPERS / paper / f"{study}.toml")
    table = next(one.table for one in every if one.axes["case"] == case)
    vms = [{"name": f"vm{number + 1}", **vm} for number, vm in enumerate(table["vm"])]
    return Scene(vms, table["device"]["profile"])


# --- real guests


def measure(
    scene: Scene, windows: Sequence[Window], options: runs.Options, settle_s: int, window_s: int
) -> list[Table]:
    """Boots the guests and makes all windows.

    Each gives `loads`, the figures of `seekway load` by guest; `emulated`, what the disk
    did while they ran, settling included; `host_busy`, 0 to 1.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="seekway-live-", dir=MEMORY)))
        daemon = stack.enter_context(Daemon(options.program, folder, _arguments(scene, folder)))
        daemon.prefer()
        # One vCPU: all guests share the host's processors with the daemon.
        shape: Table = {"vcpus": 1, "memory_mib": MEMORY_MIB, "kvm": options.kvm}
        shape["programs"] = {"seekway": options.program}
        guests = [
            stack.enter_context(Guest(name, [_disk(scene, daemon, name)], **shape))
            for name in (vm["name"] for vm in scene.vms)
        ]
        boot_all(guests)
        found = []
        for window in windows:
            alone = "" if window.only is None else f", {guests[window.only].name} alone"
            above = "" if window.elevator == "none" else f" below {window.elevator}"
            options.tell(f"{window.policy}{above}{alone}")
            found.append(_window(scene, window, daemon, guests, settle_s, window_s))
        daemon.stop()
    return found


def _disk(scene: Scene, daemon: Daemon, name: str) -> Disk:
    return Disk(daemon.socket(f"{name}.vhost"), entries=scene.outstanding)


def _arguments(scene: Scene, folder: Path) -> list[str]:
    """Makes the images; the options of `serve`."""
    # A cache would hide the images, as it would hide a device.
    arguments = ["--cache", "off"]
    if scene.device is not None:
        arguments += ["--emulate", emulated(scene.device, scene.k, folder)]
    return arguments + disks(folder, {vm["name"]: twin.image_bytes(vm) for vm in scene.vms})


def emulated(device: str, k: int, folder: Path) -> str:
    """Value of `serve --emulate`, with a k that is fixed: a real completion that comes late is
    counted.
    """
    device = profile(device, folder)
    return f"{device}{',' if ':' in device else ':'}k={k}"


def profile(device: str, folder: Path) -> str:
    """A profile as `serve --emulate` takes it: a text becomes a file in the folder."""
    if "\n" not in device:
        return device
    path = folder / "device.toml"
    path.write_text(device)
    return str(path)


def _window(
    scene: Scene,
    window: Window,
    daemon: Daemon,
    guests: Sequence[Guest],
    settle_s: int,
    window_s: int,
) -> Table:
    daemon.set_policy(window.policy)
    running = [n for n in range(len(guests)) if window.only in (None, n)]
    for n in running:
        guests[n].check(elevator(window.elevator), PATIENCE_S)
    cpu, before = Cpu.now(), daemon.status()
    for n in running:
        # As in the simulator, which gives each VM a stream of its own.
        text, seed = twin.vm_text(scene.vms[n]), window.seed + n
        guests[n].check(
            f"rm -f /tmp/said; (seekway load --vm '{text}' --on /dev/vda --seed {seed} "
            f"--settle {settle_s}s --for {window_s}s --format json >/tmp/out 2>/tmp/err; "
            "echo $? >/tmp/status; mv /tmp/status /tmp/said) >/dev/null 2>&1 &",
            PATIENCE_S,
        )
    loads = [_ended(guests[n], PATIENCE_S + settle_s + window_s) for n in running]
    emulated = emulated_between(before, daemon.status()) if scene.device else None
    return {"loads": loads, "emulated": emulated, "host_busy": cpu.busy_since()}


def elevator(name: str) -> str:
    """Shell command that gives the disk of a guest a scheduler of the kernel's."""
    queue = "/sys/block/vda/queue"
    # The kernel gives a scheduler twice the requests that the disk takes at once. Behind a disk
    # that takes few, all processes are to wait in the scheduler.
    queued = "" if name == "none" else f" && echo {QUEUED} >{queue}/nr_requests"
    return f"echo {name} >{queue}/scheduler{queued}"


def _ended(guest: Guest, patience_s: int) -> Table:
    """Waits for a load's end and reads its output."""
    wait = "while [ ! -f /tmp/said ]; do sleep 0.1; done; cat /tmp/said /tmp/err /tmp/out"
    said = guest.check(wait, patience_s)
    status, _, text = said.partition("\n")
    try:
        found: Table = json.loads(text)
    except ValueError:
        found = {}
    if status != "0" or not found:
        raise LiveError(f"{guest.name}: seekway said {said}")
    return found


# --- two of the papers' studies


@dataclass(frozen=True)
class Experiment:
    """A study that runs live too."""

    paper: str
    case: str
    policies: tuple[str, ...]
    #: Each VM also alone: its demand in φ.
    alone: bool


CATS = ("cfq:generation=2.6.30", "deadline", "cats:busdriver=7ms", "cats")
VMCD = ("cfq", "deadline", "anticipatory", "vmcd", "vmcd-time")
EXPERIMENTS = {
    "cats-direct": Experiment("cats", "as in the paper", CATS, alone=False),
    "vmcd-fair-sizes": Experiment("vmcd", "sizes", VMCD, alone=True),
}


def run(options: runs.Options) -> runs.Report:
    """Runs a study in guests and in the simulator; judges nothing."""
    experiment = EXPERIMENTS[options.name]
    scene = of_study(experiment.paper, options.name, experiment.case)
    policies = options.policies(experiment.policies)
    windows = [Window(policy, options.seed) for policy in policies]
    if experiment.alone:
        windows += [Window("noop", options.seed, n) for n in range(len(scene.vms))]
    window_s = QUICK_S if options.quick else WINDOW_S
    simulated = []
    for policy in policies:
        options.tell(f"{policy} in the simulator")
        outcome = twin.simulate(scene.scenario, policy, options.seed, 0, window_s)
        simulated.append(twin.figures(outcome))
    made = measure(scene, windows, options, SETTLE_S, window_s)
    demands = [one["loads"][0]["mib_s"] for one in made[len(policies) :]]
    pairs = zip(policies, made, simulated, strict=False)
    rows = [row(policy, live, twins, demands) for policy, live, twins in pairs]
    return runs.Report(tables(options.name, scene, rows, window_s), rows)


def row(policy: str, live: Table, simulated: Table, demands: Sequence[float]) -> Table:
    """A policy in guests and in the simulator. The keys in JSON stay."""
    loads, emulated = live["loads"], live["emulated"] or {}
    mean, deviation = pooled(loads)
    real = {
        "mib_s": sum(load["mib_s"] for load in loads),
        "iops": sum(load["iops"] for load in loads),
        "response_ms": mean,
        "response_stdev_ms": deviation,
        "service_ms": emulated.get("service_ms"),
        "vms": [
            {
                "mib_s": load["mib_s"],
                "iops": load["iops"],
                "response_ms": load["response_ms"]["mean"],
                "p99_ms": load["response_ms"]["p99"],
            }
            for load in loads
        ],
    }
    for figures in (real, simulated):
        figures |= fairness(demands, [vm["mib_s"] for vm in figures["vms"]])
    return {
        "policy": policy,
        "live": real,
        "simulated": simulated,
        "late_commands": emulated.get("late", 0),
        "host_busy": live["host_busy"],
        "tagged": any(load["tagged"] for load in loads),
    }


def fairness(demands: Sequence[float], got: list[float]) -> Table:
    """VMCD's φ against each VM's bandwidth alone, and Jain's index of the bandwidths."""
    squares = len(got) * sum(value**2 for value in got)
    jain = sum(got) ** 2 / squares if len(got) > 1 and squares else None
    index = phi(demands, got) if len(demands) == len(got) else math.nan
    return {"phi": index if math.isfinite(index) else None, "jain": jain, "vms_mib_s": got}


def pooled(loads: Sequence[Table]) -> tuple[float, float]:
    """Mean and deviation of the response over all loads, from those of each."""
    every = max(sum(load["requests"] for load in loads), 1)
    each = [(load["requests"] / every, load["response_ms"]) for load in loads]
    mean = sum(share * response["mean"] for share, response in each)
    square = sum(share * (r["mean"] ** 2 + r["stdev"] ** 2) for share, r in each)
    return mean, math.sqrt(max(square - mean**2, 0))


def tables(name: str, scene: Scene, rows: Sequence[Table], window_s: int) -> list[runs.Table]:
    """Tables of all VMs together, and of each."""
    figures = {
        "bandwidth (MiB/s)": "mib_s",
        "response (ms)": "response_ms",
        "deviation (ms)": "response_stdev_ms",
        "service (ms)": "service_ms",
        "φ": "phi",
        "Jain": "jain",
    }
    columns: twin.Columns = {"policy": lambda row: row["policy"], **twin.both(figures)}
    columns["late"] = lambda row: row["late_commands"]
    columns["host CPU (%)"] = lambda row: 100 * row["host_busy"]
    notes = [
        f"Each guest ran its load by `seekway load` on a disk of `seekway serve --emulate "
        f"{scene.device}`, all over the same {window_s} s; the simulator the same loads on the "
        "same disk. late: commands whose real completion came after the emulated disk's.",
        order(rows),
    ]
    if name == "cats-direct" and not all(row["tagged"] for row in rows):
        notes.append("The guests' kernel did not take process tags: CFQ saw one issuer, not fifty.")
    each = [
        {"policy": row["policy"], "vm": vm["name"], **dict(zip(SIDES, sides, strict=True))}
        for n, vm in enumerate(scene.vms)
        for row in rows
        for sides in [[row[side]["vms"][n] for side in SIDES]]
    ]
    figures = {
        "MiB/s": "mib_s",
        "IOPS": "iops",
        "response (ms)": "response_ms",
        "p99 (ms)": "p99_ms",
    }
    of_vm = {"VM": lambda row: row["vm"], "policy": lambda row: row["policy"], **twin.both(figures)}
    guests = "a real guest" if len(scene.vms) == 1 else "real guests"
    return [
        twin.table(f"{name} on {guests}", rows, columns, *notes),
        twin.table("Each VM", each, of_vm),
    ]


def order(rows: Sequence[Table]) -> str:
    """Compare both orders of the policies by mean response."""
    real, simulated = ([row[side]["response_ms"] for row in rows] for side in SIDES)

    def ordered(values: list[float]) -> str:
        return " < ".join(rows[n]["policy"] for n in np.argsort(values, kind="stable"))

    if same_order(real, simulated):
        return f"Mean response, real guests and simulator alike: {ordered(real)}."
    return f"Mean response, real guests: {ordered(real)}; simulator: {ordered(simulated)}."
