"""together: real guests of one ordinary host, with everything of Seekway on and with everything
off, and each guest alone on a private disk, which is as many times slower as there are guests.

Each guest has its own application; their vCPUs share the processors in turns, and a compute task on
each vCPU keeps every turn in use. A guest that is alone on its disk has the same turns: the others'
compute tasks run in theirs.

Each guest has three disks: `/dev/vda` is served by a daemon with everything off, `/dev/vdb` by one
with everything on, `/dev/vdc` by that of the private disks. The images have the same content at the
same places of the same emulated device. Only one daemon has work at a time, so none disturbs
another, and no setting or cached block of one is left in another. A window with everything off, one
with everything on and one for each guest alone make a round, in the same guests, several times.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from seekway_lab.live import counters, inside, runs, vcpus
from seekway_lab.live.counters import Cpu, Status, spread
from seekway_lab.live.daemon import Daemon, disks
from seekway_lab.live.filesystem import FileSet, make
from seekway_lab.live.guest import CommandFailed, Disk, Guest, GuestLost, boot_all
from seekway_lab.live.inside import MIGRATE, Computing
from seekway_lab.live.shown import Cell, columns
from seekway_lab.live.turns import Slices, Turns
from seekway_lab.records import LabError

NAME = "together"
#: Disks that the guests share, as the simulator's scenes of the same disks: device, and how many
#: times slower than the model. Emulated guests make a tenth of the requests that keep an X25-M
#: busy.
SCENES = {"SATA SSD": ("intel-x25m-g2", 8), "7200 rpm": ("seagate-1tb-7200", 1)}
OFF_POLICY, ON_POLICY = "noop", "fairway"
#: Less than a guest reads in two windows.
CACHE_KIB = 256 << 10
#: Processes of this name are tagged when they start. Ten looks at all processes a second, the
#: default, take an emulated guest 3 to 4 % of a vCPU; one takes 1 to 2 %.
TAGS = "--match fio --interval 1s"
#: As `serve` prefetches by default.
PREFETCHER = "vio:interval=continuous"
ROUNDS, WINDOW_S = 7, 5
QUICK_ROUNDS, QUICK_WINDOW_S = 1, 3
#: vCPUs of each guest: one on each of two processors.
VCPUS = 2
#: The tools, two agents, and a page cache that is small beside the reads.
MEMORY_MIB = 384
#: From the time at which every application does I/O to the window: compute tasks and turns begin,
#: and agents and prefetchers learn. fio counts from about then on.
SETTLE_S = 3
#: Where images lie: a write to a real disk would end after the emulated one's.
MEMORY = Path("/dev/shm")
#: Guests that may be lost in a run.
LOST_MAX = 4
#: I/Os after which an application is at work.
AT_WORK = 10
#: Of every guest. Sparse: reads give zeros, in the emulated device's time.
IMAGE_BYTES = 16 << 30
#: Of the database's table, at the beginning of its disk.
TABLE_BYTES = 8 << 30
#: A stream reads less of its disk in one round.
FILM_BYTES = 2 << 30
#: Files for each process of the file server in one round: more than it can read.
FILES, FILE_BYTES, FILE_BLOCK_BYTES = 384, 1 << 20, 64 << 10

#: As JSON has it; the keys stay.
Figures = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """A guest's application."""

    #: Of the guest and of its disk.
    name: str
    #: Processes that do I/O.
    processes: int
    #: The figure that counts, and its unit.
    figure: str
    unit: str


#: Random reads and synchronous writes of 16 KiB past the page cache, four of five reads.
DATABASE = Load("database", 16, "iops", "IOPS")
#: Whole files, one after the other, through the page cache.
FILE_SERVER = Load("files", 2, "mib_s", "MiB/s")
#: A stream through the page cache.
VIDEO = Load("video", 1, "mib_s", "MiB/s")
#: Compute tasks alone: the guest's application does no I/O.
BUILD = Load("build", 0, "", "MiB/s hashed")
LOADS = (DATABASE, FILE_SERVER, VIDEO, BUILD)


@dataclass(frozen=True)
class Side:
    """Settings of the windows of one kind."""

    #: The emulated device, as `serve --emulate` takes it.
    device: str
    policy: str = OFF_POLICY
    #: Size of the host's cache, and the prefetcher in front of it.
    cache: tuple[int, str] | None = None
    #: `seekway-guest tag` and `seekway-guest migrate` run in each guest, with these arguments.
    tags: str | None = None
    agent: str | None = None

    @property
    def serve(self) -> list[str]:
        """Arguments of `seekway serve`."""
        cache = []
        if self.cache:
            cache = ["--cache", f"{self.cache[0]}KiB", "--prefetch", self.cache[1]]
        return ["--emulate", self.device, "--policy", self.policy, *cache]


@dataclass(frozen=True)
class Plan:
    """A run on one disk."""

    program: Path
    #: Path of `seekway-guest`.
    agent: Path
    #: Everything off, everything on, and the private disks.
    sides: tuple[Side, Side, Side]
    loads: Sequence[Load] = LOADS
    rounds: int = ROUNDS
    window_s: float = WINDOW_S
    kvm: bool = False
    #: Seed of slices, of the first turns, of files' positions and of reads.
    seed: int = 1
    tell: Callable[[str], None] = print


OFF, ON, PRIVATE = 0, 1, 2


def run(options: runs.Options) -> runs.Report:
    """Runs all scenes that are asked for."""
    if options.policy:
        raise LabError(f"{NAME}: no --policy: it has {OFF_POLICY} off and {ON_POLICY} on")
    scenes = chosen(options)
    plans = [_plan(options, scene) for scene in scenes]
    judged = [judge(scene, plan, *measure(plan)) for scene, plan in zip(scenes, plans, strict=True)]
    said = sentence(judged)
    tables = [
        table for scene, plan in zip(judged, plans, strict=True) for table in shown(scene, plan)
    ]
    tables[-1] = replace(tables[-1], notes=[*tables[-1].notes, said])
    found = {"sentence": said, "scenes": judged}
    return runs.Report(tables, found, missed=any(scene["verdict"] == "missed" for scene in judged))


def chosen(options: runs.Options) -> list[str]:
    """The scenes that are asked for, of which there is at least one."""
    scenes = [scene for scene in SCENES if options.wants(scene)]
    if not scenes:
        raise LabError(f"--scenes {options.scenes}: none; live {NAME} has {', '.join(SCENES)}")
    return scenes


def _plan(options: runs.Options, scene: str) -> Plan:
    return Plan(
        options.program,
        options.agent,
        sides(*SCENES[scene]),
        rounds=QUICK_ROUNDS if options.quick else ROUNDS,
        window_s=QUICK_WINDOW_S if options.quick else WINDOW_S,
        kvm=options.kvm,
        seed=options.seed,
        tell=lambda what: options.tell(f"{scene}: {what}"),
    )


def sides(device: str, slower: int) -> tuple[Side, Side, Side]:
    """Everything off, everything on, and the private disks: as many times slower as there are
    guests, each with its part of the host's cache.
    """
    guests = len(LOADS)
    off = Side(f"{device}:k={slower}")
    on = replace(off, policy=ON_POLICY, cache=(CACHE_KIB, PREFETCHER), tags=TAGS, agent="")
    return off, on, Side(f"{device}:k={slower * guests}", cache=(CACHE_KIB // guests, "none"))


def measure(plan: Plan) -> tuple[list[Figures], list[str]]:
    """Runs all rounds; their windows, and for each time that a guest was lost and the round made
    again: why.
    """
    processors = vcpus.processors(VCPUS, f"live {NAME}")[:VCPUS]
    rounds: list[Figures] = []
    lost: list[str] = []
    while True:
        plan.tell(f"{len(plan.loads)} guests boot")
        with ExitStack() as stack:
            stage = Stage(stack, plan, processors)
            try:
                while len(rounds) < plan.rounds:
                    rounds.append(stage.round(len(rounds)))
                stage.stop()
                return rounds, lost
            except (GuestLost, CommandFailed) as error:
                # When an agent loads its BPF programs, the kernel changes its own code, and with
                # several threads QEMU 7.2 now and then stops a vCPU for ever over it, or runs the
                # old code. 137: killed after its time.
                of_guest = not isinstance(error, CommandFailed) or error.ran.status == 137
                if not of_guest or len(lost) == LOST_MAX:
                    raise
                lost.append(str(error).partition("\n")[0])
                plan.tell(f"a guest is lost, the round is made again: {lost[-1]}")


class Stage:
    """The daemons and the guests, which boot once for all windows."""

    def __init__(self, stack: ExitStack, plan: Plan, processors: Sequence[int]) -> None:
        """Boots the guests; `stack` ends them."""
        self.plan = plan
        # The folder's name tells later whether its owner still runs.
        prefix = f"seekway-live-{os.getpid()}-"
        folder = tempfile.TemporaryDirectory(prefix=prefix, dir=MEMORY)
        root = Path(stack.enter_context(folder))
        self.daemons: list[Daemon] = []
        for n, side in enumerate(plan.sides):
            serve = [*side.serve, *self._images(root / str(n))]
            self.daemons.append(stack.enter_context(Daemon(plan.program, root / str(n), serve)))
            self.daemons[n].prefer()
        guests = [stack.enter_context(self._guest(load)) for load in plan.loads]
        boot_all(guests)
        #: Of each guest's vCPUs.
        self.threads = [vcpus.place(guest.pid, processors) for guest in guests]
        self.guests = [
            Inside(Computing(guest), load) for guest, load in zip(guests, plan.loads, strict=True)
        ]

    def stop(self) -> None:
        """Ends guests, and daemons in good order."""
        for guest in self.guests:
            guest.computing.guest.kill()
        for daemon in self.daemons:
            daemon.stop()

    def _images(self, folder: Path) -> list[str]:
        """Makes the images of a side; the arguments of its daemon for them."""
        folder.mkdir()
        if FILE_SERVER in self.plan.loads:
            make_image(folder / f"{FILE_SERVER.name}.img", self.plan.rounds, self.plan.seed)
        return disks(folder, {load.name: IMAGE_BYTES for load in self.plan.loads})

    def _guest(self, load: Load) -> Guest:
        return Guest(
            load.name,
            [Disk(daemon.socket(f"{load.name}.vhost")) for daemon in self.daemons],
            memory_mib=MEMORY_MIB,
            vcpus=VCPUS,
            kvm=self.plan.kvm,
            programs={"seekway-guest": self.plan.agent},
        )

    def round(self, n: int) -> Figures:
        """One window of each kind."""

        def window(side: int, who: Sequence[int]) -> Figures:
            whose = ["everything off", "everything on", f"{self.plan.loads[who[0]].name} alone"]
            self.plan.tell(f"round {n + 1} of {self.plan.rounds}: {whose[side]}")
            return self.window(side, who, n)

        every = range(len(self.guests))
        order: list[tuple[int, Sequence[int]]] = [(OFF, every), (ON, every)]
        order += [(PRIVATE, [guest]) for guest in every]
        # A drift during the run hits all sides alike.
        if n % 2:
            order = [*order[2:], (ON, every), (OFF, every)]
        found = [(side, window(side, who)) for side, who in order]
        by_side = {side: [made for of, made in found if of == side] for side in (OFF, ON, PRIVATE)}
        return {"off": by_side[OFF][0], "on": by_side[ON][0], "alone": by_side[PRIVATE]}

    def window(self, side: int, who: Sequence[int], round_: int) -> Figures:
        """A window in which the applications of the guests `who` run."""
        daemon, guests = self.daemons[side], self.guests
        working = [guests[at] for at in who if guests[at].load.processes]
        # All windows of a round have the same slices, and read the same.
        seed = 1000 * self.plan.seed + round_
        self._begin(side, working, round_, seed)
        with Turns(self._queues(), Slices(seed=seed)):
            begun_s = time.monotonic()
            time.sleep(SETTLE_S)
            compute = [guest.progress() for guest in guests]
            before, host = daemon.status(), self._look()
            time.sleep(self.plan.window_s)
            shares = host.until(self._look())
            after = daemon.status()
            compute = [progress(was, g.progress()) for was, g in zip(compute, guests, strict=True)]
            # Applications end before turns do, so that their figures are the window's.
            for guest in working:
                guest.interrupt_load()
        turns_s = time.monotonic() - begun_s
        for guest in guests:
            guest.computing.pause()
        emulated = counters.emulated_between(before, after) or {"commands": 0, "late": 0}
        with_cache = self.plan.sides[side].cache is not None
        return {
            "guests": [
                {
                    "load": guest.end_load() if guest in working else None,
                    "compute": done,
                    "usage": counters.usage_between(*of_disk) if with_cache else None,
                    "tags": counters.tags_between(*of_disk),
                    "agent": guest.end_agents(),
                }
                for guest, done in zip(guests, compute, strict=True)
                for of_disk in [[_only(status, guest.load.name) for status in (before, after)]]
            ],
            "host": shares,
            "commands": emulated["commands"],
            "late": emulated["late"],
            # That the vCPUs of each guest had together while agents counted moves.
            "slices": turns_s * 1e6 * VCPUS / (Slices().mean_us * len(guests)),
        }

    def _begin(self, side: int, working: Sequence[Inside], round_: int, seed: int) -> None:
        """Agents and applications start while compute tasks stand still: a program takes long to
        start with an eighth of a processor. Then these go on.
        """
        settings = self.plan.sides[side]
        for guest in self.guests:
            guest.start_agents(settings)
        idle = self.daemons[side].status()
        for guest in working:
            guest.computing.start_fio(fio(guest.load, side, round_, seed))
        names = [guest.load.name for guest in working]
        counters.until_at_work(self.daemons[side], names, idle, AT_WORK)
        for guest in self.guests:
            guest.computing.go_on()

    def _queues(self) -> list[list[int]]:
        """On each processor the guests' vCPUs in turn. Who begins is another on each, as it is on
        processors that know nothing of each other.
        """
        queues = []
        for vcpu in range(VCPUS):
            queue = [tids[vcpu] for tids in self.threads]
            first = vcpu * len(queue) // VCPUS % len(queue)
            queues.append(queue[first:] + queue[:first])
        return queues

    def _look(self) -> HostLook:
        qemus = [guest.computing.guest.pid for guest in self.guests]
        return HostLook.now(qemus, self.threads, [daemon.pid for daemon in self.daemons])


def _only(status: Status, name: str) -> Status:
    """A report of one disk alone."""
    return {"devices": [{**counters.device(status), "disks": [counters.disk(status, name)]}]}


# --- inside of a guest


def make_image(path: Path, rounds: int, seed: int) -> None:
    """Makes the file server's disk for one side. Equal seeds give equal places of files."""
    # No window reads data that another of its side has read.
    names = [f"p{round_}j{n}" for round_ in range(rounds) for n in range(FILE_SERVER.processes)]
    make(path, IMAGE_BYTES, [FileSet(name, FILES, FILE_BYTES) for name in names], seed)


def fio(load: Load, side: int, round_: int, seed: int) -> str:
    """The command line of a load's application in one window."""
    disk = ("vda", "vdb", "vdc")[side]
    own = {
        DATABASE: f"--filename=/dev/{disk} --direct=1 --sync=dsync --rw=randrw --rwmixread=80 "
        f"--bs=16k --size={TABLE_BYTES} --io_size=1T --norandommap",
        FILE_SERVER: f"--directory=/mnt/{disk} "
        f"--filename_format='p{round_}j$jobnum/test_file.$filenum' --allow_file_create=0 --rw=read "
        f"--bs={FILE_BLOCK_BYTES} --nrfiles={FILES} --size={FILE_BYTES * FILES} "
        f"--file_service_type=random:{FILE_BYTES // FILE_BLOCK_BYTES}",
        VIDEO: f"--filename=/dev/{disk} --rw=read --bs=128k --offset={round_ * FILM_BYTES} "
        f"--size={FILM_BYTES}",
    }[load]
    # A reader that has read all files, on a machine so busy that windows last, begins again. As
    # applications do: no hints to the kernel, and no cache is dropped on the way. Places follow
    # from the seed alone: with `randrepeat`, fio's default, two windows of different seeds share
    # four of ten places.
    return (
        f"fio --name={load.name} --ioengine=psync --numjobs={load.processes} --group_reporting "
        f"--unified_rw_reporting=1 --randrepeat=0 --randseed={seed} --fadvise_hint=0 "
        f"--invalidate=0 --ramp_time={1000 * SETTLE_S}ms --runtime=3600 --time_based "
        f"--output-format=json --output=/tmp/fio.json {own}"
    )


class Inside:
    """A guest with its application and its agents."""

    def __init__(self, computing: Computing, load: Load) -> None:
        """Makes the guest ready for its windows."""
        self.computing, self.load = computing, load
        self.agents: list[str] = []
        if load is FILE_SERVER:
            # The files' inodes stay in memory: reading data reads data only.
            computing.run(
                "for d in vda vdb vdc; do mkdir /mnt/$d && "
                "mount -t ext4 -o noatime,noinit_itable /dev/$d /mnt/$d && "
                "find /mnt/$d -type f | xargs stat >/dev/null || exit 1; done"
            )

    def start_agents(self, side: Side) -> None:
        """Empties the page cache (inodes stay), and starts a side's agents. Returns when they are
        at work.
        """
        self.computing.run("sync; echo 1 >/proc/sys/vm/drop_caches")
        if side.tags is not None:
            self.agents.append("tag")
            self.computing.start(
                "tag", f"--verbose {side.tags}", "grep -q ' tags as ' /tmp/tag.log"
            )
        if side.agent is not None:
            self.agents.append(MIGRATE)
            self.computing.start_agent(side.agent)

    def end_agents(self) -> Figures | None:
        """Ends the agents that run. Returns when priorities and masks are as they were, with what
        the agent that moves tasks has done.
        """
        agents, self.agents = self.agents, []
        if "tag" in agents:
            self.computing.end("tag")
        return self.computing.end_agent() if MIGRATE in agents else None

    def interrupt_load(self) -> None:
        """Asks the application to end."""
        # One process more looks after the others.
        alive = self.load.processes + 1
        self.computing.run(
            f"[ $(pidof fio | wc -w) -ge {alive} ] || {{ echo ended before its time; "
            "cat /tmp/fio.log; exit 1; }; killall -INT fio 2>/dev/null; true"
        )

    def end_load(self) -> Figures:
        """Figures of the application when it has ended."""
        found = load_figures(self.computing.end_fio())
        if not found["iops"] > 0:
            raise LabError(f"guest {self.load.name}: fio has measured nothing: {found}")
        return found

    def progress(self) -> Figures:
        """Counters of compute tasks and agents since their starts."""
        seen = self.computing.look(" ".join(f"$(cat /tmp/{agent}.pid)" for agent in self.agents))
        cpu = dict(zip(self.agents, (of for _, of in seen.cpu), strict=True))
        return {
            # By the guest's clock; it may be wrong by `look_s`.
            "seconds": seen.seconds,
            "look_s": seen.look_s,
            "mib": seen.mib,
            # Processor time, as the guest accounts it.
            "tag_cpu": cpu.get("tag", 0.0),
            "migrate_cpu": cpu.get(MIGRATE, 0.0),
        }


def progress(was: Figures, now: Figures) -> Figures:
    """Differences of counters between two looks."""
    found = {key: now[key] - was[key] for key in was}
    if found["seconds"] <= 0 or min(found["mib"], found["tag_cpu"], found["migrate_cpu"]) < 0:
        raise LabError(f"a compute task or an agent has ended in the window: {was}, {now}")
    return {**found, "look_s": max(was["look_s"], now["look_s"])}


def load_figures(report: Any) -> Figures:
    """An application's figures by its own count, of fio's JSON."""
    job = report["jobs"][0]
    mixed = job["mixed"]
    times = mixed["clat_ns"]
    return {
        "iops": mixed["iops"],
        "mib_s": mixed["bw_bytes"] / (1 << 20),
        "mean_ms": times["mean"] / 1e6,
        "p99_ms": times["percentile"]["99.000000"] / 1e6,
        # Processor time of each process, 0 to 1, as the guest accounts it: a vCPU's absence counts
        # for who was on it.
        "busy": (job["usr_cpu"] + job["sys_cpu"]) / 100,
    }


# --- the host's processors


@dataclass(frozen=True)
class HostLook:
    """Processor times since the threads' starts, in ticks, by guest."""

    at_s: float
    cpu: Cpu
    qemus: Sequence[int]
    vcpus: Sequence[int]
    daemons: int

    @classmethod
    def now(
        cls, qemus: Iterable[int], threads: Iterable[Iterable[int]], daemons: Iterable[int]
    ) -> HostLook:
        """Of processes, and of the threads of each QEMU's vCPUs."""

        def ticks(of: str) -> int:
            return inside.ticks(Path(f"/proc/{of}/stat").read_text())

        pids = list(qemus)
        return cls(
            time.monotonic(),
            Cpu.now(),
            [ticks(str(pid)) for pid in pids],
            # Below `task`: a thread's number elsewhere names its whole process.
            [
                sum(ticks(f"{pid}/task/{tid}") for tid in tids)
                for pid, tids in zip(pids, threads, strict=True)
            ],
            sum(ticks(str(pid)) for pid in daemons),
        )

    def until(self, later: HostLook, processors: int | None = None) -> Figures:
        """Shares of all processors from this look to a later one, 0 to 1: of each guest's vCPUs and
        of its other threads (timers, interrupts and completions of an emulated guest), of the
        daemons, and of all that is busy.
        """
        all_ = (
            (later.at_s - self.at_s) * inside.TICKS * (processors or len(os.sched_getaffinity(0)))
        )

        def shares(then: Sequence[int], now: Sequence[int]) -> list[float]:
            return [(b - a) / all_ for a, b in zip(then, now, strict=True)]

        vcpus_ = shares(self.vcpus, later.vcpus)
        qemus = shares(self.qemus, later.qemus)
        return {
            "vcpus": vcpus_,
            "qemu": [max(qemu - vcpu, 0.0) for qemu, vcpu in zip(qemus, vcpus_, strict=True)],
            "daemons": (later.daemons - self.daemons) / all_,
            "busy": self.cpu.busy_until(later.cpu),
        }


# --- results of rounds

#: Each guest's progress with everything on, at least.
PROGRESS = 0.95
#: What each guest's compute tasks lose of their work, on over off, at most.
COMPUTE = 0.10
#: How often a process that does I/O is moved for each slice of a vCPU of its guest, at most.
MOVES = 1.1
#: A round is void when others on this machine had more of the processors. Compute tasks keep these
#: busy in every window, so that being busy tells nothing.
OTHERS = 0.05
#: A guest's row is void when each process of its application is busier than this part of what it
#: gets beside the compute tasks: the emulation of its instructions is what limits it.
PROCESS = 0.95

#: A figure of a guest in a window, None where it has none.
Figure = Callable[[Figures], float | None]


def judge(scene: str, plan: Plan, rounds: Sequence[Figures], lost: Sequence[str]) -> Figures:
    """A disk that the guests share. Figures are over the rounds that are not void; over all of them
    where too few are left.
    """
    voids = [why for why in map(void, rounds) if why]
    # One good round among many is luck.
    is_void = len(voids) * 2 >= len(rounds)
    good = [round_ for round_ in rounds if is_void or not void(round_)]
    guests = [of_guest(load, at, good) for at, load in enumerate(plan.loads)]
    if is_void:
        guests = [{**g, "verdict": "void", "why": "too few good rounds"} for g in guests]
        verdict, why = "void", f"{len(voids)} of {len(rounds)} rounds: {'; '.join(voids)}"
    else:
        verdict, why = _verdict(guests)
    return {
        "scene": scene,
        "device": plan.sides[OFF].device,
        "private_device": plan.sides[PRIVATE].device,
        "guests": guests,
        "off": of_side([[round_["off"]] for round_ in good]),
        "on": of_side([[round_["on"]] for round_ in good]),
        "alone": of_side([round_["alone"] for round_ in good]),
        **{key: _mean(guests, key) for key in ("progress_off", "progress_on")},
        "geometric_mean": _mean(guests, "ratio"),
        "worst": min(guests, key=lambda guest: guest["progress_on"]["median"])["guest"],
        "rounds": len(rounds),
        "void_rounds": len(voids),
        "counted_rounds": len(good),
        "verdict": verdict,
        "why": why,
        "lost": list(lost),
        "windows": list(rounds),
    }


def sentence(scenes: Sequence[Figures]) -> str:
    """Verdict on the whole."""

    def least(key: str) -> float:
        return min(float(guest[key]["median"]) for scene in scenes for guest in scene["guests"])

    said = (
        f"Every guest has at least {least('progress_on'):.2f} of what a disk of its own would give "
        f"it; with everything off, at least {least('progress_off'):.2f}."
    )
    voids = ", ".join(scene["scene"] for scene in scenes if scene["verdict"] == "void")
    return f"{said} Void, and no result: {voids}." if voids else said


def _mean(guests: Sequence[Figures], key: str) -> float:
    """The geometric mean of the guests' medians."""
    return geometric_mean([guest[key]["median"] for guest in guests])


def _verdict(guests: Sequence[Figures]) -> tuple[str, str]:
    on, off = _mean(guests, "progress_on"), _mean(guests, "progress_off")
    mean = f"geometric mean of progress {on:.2f}, {off:.2f} with everything off"
    named = {
        verdict: ", ".join(guest["guest"] for guest in guests if guest["verdict"] == verdict)
        for verdict in ("missed", "void")
    }
    if named["missed"]:
        return "missed", f"{mean}; missed by {named['missed']}"
    if named["void"]:
        return "void", f"{mean}, with void rows: {named['void']}"
    return "met" if on > off else "missed", mean


def void(round_: Figures) -> str | None:
    """Why a round says nothing, if so."""
    windows = [("off", round_["off"]), ("on", round_["on"])]
    for side, window in [*windows, *(("alone", window) for window in round_["alone"])]:
        if why := runs.too_late(_late(window)):
            return f"{side}: {why}"
        if (share := others(window["host"])) > OTHERS:
            return f"{side}: others had {100 * share:.1f} % of the CPU"
    return None


def others(host: Figures) -> float:
    """Share of the processors that other programs had, 0 to 1."""
    return max(float(host["busy"] - sum(host["vcpus"]) - sum(host["qemu"]) - host["daemons"]), 0.0)


def _late(window: Figures) -> float:
    return float(window["late"] / max(window["commands"], 1))


def of_guest(load: Load, at: int, rounds: Sequence[Figures]) -> Figures:
    """A guest's row."""

    def guest(round_: Figures, side: str) -> Figures:
        window = round_["alone"][at] if side == "alone" else round_[side]
        found: Figures = window["guests"][at]
        return found

    def over(side: str, of: Figure) -> Figures | None:
        return spread(of(guest(round_, side)) for round_ in rounds)

    def ratio(side: str, base: str, of: Figure) -> Figures | None:
        both = [(of(guest(round_, side)), of(guest(round_, base))) for round_ in rounds]
        return spread(None if a is None or b is None else a / b for a, b in both)

    def of_load(key: str) -> Figure:
        return lambda guest: guest["load"] and guest["load"][key]

    throughput = of_load(load.figure) if load.processes else _hashed
    p99, process = of_load("p99_ms"), of_load("busy")
    kept = ratio("on", "off", _hashed) or {}
    row: Figures = {
        "guest": load.name,
        # Counters of `off`, `on` and `alone`, a second.
        "unit": load.unit,
        **{side: over(side, throughput) for side in ("off", "on", "alone")},
        "progress_off": ratio("off", "alone", throughput),
        "progress_on": ratio("on", "alone", throughput),
        "ratio": ratio("on", "off", throughput),
        # Processor time of both agents, in vCPUs, as the guest counts it.
        "agents_vcpus": over("on", _agents),
        **{f"p99_{side}_ms": over(side, p99) for side in ("off", "on", "alone")},
        "p99_over_private": ratio("on", "alone", p99),
        # Processor time of each process of the application, 0 to 1, as the guest counts it.
        **{f"process_{side}": over(side, process) for side in ("off", "on")},
        # Share of the compute tasks' work that was lost, on over off.
        "compute_lost": {
            key: 1 - kept[of]
            for key, of in {"median": "median", "least": "largest", "largest": "least"}.items()
        },
        # Share of the guest's reads that the cache had, 0 to 1.
        "hit": over("on", _hit),
        # Share of its prefetched data that it did not use, 0 to 1.
        "prefetch_cost": over("on", lambda guest: guest["usage"] and guest["usage"]["cost"]),
        "tags": max(guest(round_, "on")["tags"] for round_ in rounds),
        # Moves of each process that does I/O, for each slice of a vCPU of the guest.
        "moves_a_slice": spread(
            agent["moves"] / (load.processes * round_["on"]["slices"])
            if load.processes and (agent := guest(round_, "on")["agent"])
            else None
            for round_ in rounds
        ),
    }
    verdict, why = _row_verdict(load, row)
    return {**row, "verdict": verdict, "why": why}


def _hashed(guest: Figures) -> float:
    """Rate of the compute tasks' hashing, in MiB a second of the guest's time."""
    return float(guest["compute"]["mib"] / guest["compute"]["seconds"])


def _agents(guest: Figures) -> float:
    compute = guest["compute"]
    return float((compute["tag_cpu"] + compute["migrate_cpu"]) / compute["seconds"])


def _hit(guest: Figures) -> float | None:
    usage = guest["usage"]
    if not usage or not usage["read_bytes"]:
        return None
    return float((usage["hit_bytes"] + usage["late_bytes"]) / usage["read_bytes"])


def process_max(load: Load) -> float:
    """Share of a vCPU that an application's process gets if it computes all the time, beside a
    compute task on each vCPU.
    """
    return min(VCPUS / (load.processes + VCPUS), 0.5)


def _row_verdict(load: Load, row: Figures) -> tuple[str, str]:
    busy = [row[key]["median"] for key in ("process_off", "process_on") if row[key]]
    if busy and max(busy) > PROCESS * process_max(load):
        most = 100 * process_max(load)
        return "void", f"its processes are busy for {100 * max(busy):.0f} % each, of {most:.0f} %"
    missed = []
    if (got := row["progress_on"]["median"]) < PROGRESS:
        missed.append(f"progress {got:.2f} ({PROGRESS} asked)")
    if (lost := row["compute_lost"]["median"]) > COMPUTE:
        most = 100 * COMPUTE
        missed.append(f"{100 * lost:.0f} % of its compute lost ({most:.0f} % at most)")
    if row["moves_a_slice"] and (moves := row["moves_a_slice"]["median"]) > MOVES:
        missed.append(f"{moves:.2f} moves a slice ({MOVES} at most)")
    return "missed" if missed else "met", ", ".join(missed)


def of_side(rounds: Sequence[Sequence[Figures]]) -> Figures:
    """The host with one side, of the windows of each round. Shares of the processors, 0 to 1."""

    def mean(of: Callable[[Figures], float]) -> Figures | None:
        return spread(fmean(map(of, windows)) for windows in rounds)

    def total(of: Callable[[Figures], float]) -> Figures | None:
        return spread(sum(map(of, windows)) for windows in rounds)

    return {
        "vcpus": mean(lambda window: sum(window["host"]["vcpus"])),
        # QEMU's threads other than vCPUs, of all guests together.
        "qemu": mean(lambda window: sum(window["host"]["qemu"])),
        "daemons": mean(lambda window: window["host"]["daemons"]),
        "others": mean(lambda window: others(window["host"])),
        "busy": mean(lambda window: window["host"]["busy"]),
        # Of the emulated device's commands, 0 to 1.
        "late": spread(max(map(_late, windows)) for windows in rounds),
        "commands": total(lambda window: window["commands"]),
        # Bytes that all applications read and wrote.
        "mib_s": total(
            lambda window: sum(g["load"]["mib_s"] for g in window["guests"] if g["load"])
        ),
    }


# --- tables


def shown(scene: Figures, plan: Plan) -> list[runs.Table]:
    """Tables of one disk's figures."""

    def one(guest: Figures) -> dict[str, Cell]:
        def median(key: str, times: float = 1) -> float | None:
            return float(times * guest[key]["median"]) if guest[key] else None

        return {
            "throughput": guest["unit"],
            **{side: median(side) for side in ("alone", "off", "on")},
            "progress off, ×": median("progress_off"),
            "progress on, ×": median("progress_on"),
            "least": guest["progress_on"]["least"],
            "largest": guest["progress_on"]["largest"],
            "on over off, ×": median("ratio"),
            **{f"p99 {side}, ms": median(f"p99_{side}_ms") for side in ("alone", "off", "on")},
            "p99 on over alone, ×": median("p99_over_private"),
            "a process off, % CPU": median("process_off", 100),
            "a process on, % CPU": median("process_on", 100),
            "compute lost, %": median("compute_lost", 100),
            "agents, % of a vCPU": median("agents_vcpus", 100),
            "cache had, %": median("hit", 100),
            "moves a slice": median("moves_a_slice"),
            "verdict": guest["verdict"],
            "why": guest["why"],
        }

    found = {guest["guest"]: one(guest) for guest in scene["guests"]}
    found["geometric mean"] = {
        "progress off, ×": scene["progress_off"],
        "progress on, ×": scene["progress_on"],
        "on over off, ×": scene["geometric_mean"],
        "verdict": scene["verdict"],
        "why": scene["why"],
    }
    title = f"{NAME}: real guests of one host, {scene['scene']}"
    return [columns(title, found, _notes(scene, plan)), _host(scene)]


def _notes(scene: Figures, plan: Plan) -> list[str]:
    off, on, private = (" ".join(side.serve) for side in plan.sides)
    notes = [
        f"{len(plan.loads)} guests of two vCPUs that share two processors in turns of 11 ms, a "
        f"compute task on each vCPU. off: `seekway serve {off}`, no agents. on: `{on}`, with "
        "`seekway-guest tag` and `seekway-guest migrate` in each guest. alone: only this guest's "
        f"application, in the same turns, on `{private}`. Medians of {scene['counted_rounds']} "
        f"rounds of windows of {plan.window_s:g} s, in turn in the same guests; ratios are taken "
        "in each round. Progress is throughput over that alone.",
        f"Asked with everything on: progress of each guest of at least {PROGRESS}, and a "
        "geometric mean above that with everything off; of each guest's compute at most "
        f"{100 * COMPUTE:.0f} % lost, and at most {MOVES} moves of a process that does I/O for "
        "each slice of a vCPU of its guest. A round is void when more than "
        f"{100 * runs.LATE_MAX:.0f} % of the commands of a window are later than the device, or "
        f"others on this machine have more than {100 * OTHERS:.0f} % of the processors; a row "
        f"when each process of its application is busy for more than {100 * PROCESS:.0f} % of "
        f"what it gets beside the compute tasks. {scene['void_rounds']} of {scene['rounds']} "
        "rounds were void.",
    ]
    if lost := scene["lost"]:
        times = f"QEMU's emulation lost a guest {len(lost)} times, and rounds were made again"
        notes.append(f"{times}: {'; '.join(lost)}.")
    return notes


def _host(scene: Figures) -> runs.Table:
    """Table of the host's processors by process, and in all."""

    def one(side: Figures) -> dict[str, Cell]:
        shares = {
            "late, %": "late",
            "vCPUs, % CPU": "vcpus",
            "rest of QEMU, % CPU": "qemu",
            "daemons, % CPU": "daemons",
            "others, % CPU": "others",
            "host CPU, %": "busy",
        }
        return {
            "all I/O, MiB/s": side["mib_s"]["median"],
            "commands": side["commands"]["median"],
            **{label: 100 * side[key]["median"] for label, key in shares.items()},
        }

    note = (
        "Of all processors. The compute tasks keep them busy in every window. rest of QEMU: "
        "timers, interrupts and completions of emulated guests, and daemons: both run when they "
        "have to, whosever turn it is, so that more I/O leaves less for vCPUs. alone: I/O and "
        "commands of all guests' windows together, the mean of the shares, and late of the worst."
    )
    found = {f"everything {side}": one(scene[side]) for side in ("off", "on")}
    found["alone"] = one(scene["alone"])
    return columns(f"The host, {scene['scene']}", found, [note])
