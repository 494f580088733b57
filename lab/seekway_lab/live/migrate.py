"""migrate-live: `seekway-guest migrate` in real guests that share the host's processors, after the
vMigrater paper; no simulator runs it.

Guests have more vCPUs than the host has processors, and a compute task on each; one task reads from
the guest's disk, one block at a time. A window without the agent and one with it make a pair, in
the same guests, several times in turn. The kernel's tracer records the host's schedule of the vCPUs
in each window. From it come the share of time in which a guest has any vCPU running, which is the
most that moving tasks can reach, and that in which the reader's vCPU runs (`allowed`).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from seekway_lab.live import allowed, counters, runs, vcpus
from seekway_lab.live.allowed import Threads
from seekway_lab.live.daemon import Daemon, disks
from seekway_lab.live.guest import Disk, Guest, boot_all
from seekway_lab.live.inside import Computing, Seen
from seekway_lab.live.schedule import Recorder
from seekway_lab.live.shown import Cell, columns
from seekway_lab.live.turns import Slices, Turns
from seekway_lab.records import LabError

NAME = "migrate-live"
#: A solid-state drive as slow as one behind a network: what a read costs an emulated guest and its
#: host in processor time, 0.4 ms, is to be small against its wait. At 0.1 ms the same gain in
#: throughput would take a third of the processors from the compute tasks.
DEVICE = "intel-x25m-g2:k=1,read_us=2000"
#: Guests, and who decides which vCPU runs: turns of 11 ± 0.3 ms, or the kernel, which is asked for
#: slices of 11 ms.
ROWS = ((1, "turns"), (2, "turns"), (4, "turns"), (2, "kernel"))
PAIRS, WINDOW_S = 5, 4
QUICK_PAIRS, QUICK_WINDOW_S = 1, 2
#: vCPUs of each guest.
VCPUS = 4
MEMORY_MIB = 384
#: Sparse: reads give zeros, in the emulated drive's time.
DISK_BYTES = 1 << 30
#: From when the readers read to the window: compute tasks and turns begin, and the agent learns
#: what slices there are and whether moves are worth it (docs/migrate.md).
SETTLE_S = 6
#: Reads after which a guest is at work.
AT_WORK = 50

#: Of the gain that the recorded schedule allows, at least this with two guests.
OF_ALLOWED = 0.55
#: Least gain in I/O throughput: never below that without the agent.
GAIN = 1.0
#: Of the compute tasks' work, lost at most this in emulated guests.
LOSS = 0.10
#: Wake-ups of a guest's agent, a second, at most this.
WAKEUPS = 130.0

#: As JSON has it: a guest in a window, a window, a pair of windows, a row. The keys stay.
Figures = dict[str, Any]


def run(options: runs.Options) -> runs.Report:
    """Runs all rows."""
    if options.policy:
        raise LabError(f"{NAME}: no --policy: it is about vCPUs (--vcpu SPEC)")
    processors = vcpus.processors(2, NAME)
    # Root and tracefs, before anything is begun.
    Recorder().end()
    pairs = QUICK_PAIRS if options.quick else PAIRS
    with ExitStack() as stack:
        stage = Stage(stack, options, max(guests for guests, _ in ROWS), processors)
        rows = [stage.row(guests, host, pairs) for guests, host in ROWS]
        for guest in stage.guests:
            guest.guest.kill()
        stage.daemon.stop()
    tables = [results(rows, pairs, stage.window_s), hosts(rows)]
    return runs.Report(tables, rows, missed=any(row["verdict"] == "missed" for row in rows))


class Stage:
    """The daemon and the guests, which boot once for all rows."""

    def __init__(
        self, stack: ExitStack, options: runs.Options, guests: int, processors: Sequence[int]
    ) -> None:
        """Boots the guests; `stack` ends them."""
        self.options, self.processors = options, processors
        self.window_s = QUICK_WINDOW_S if options.quick else WINDOW_S
        self.agent_args = f"--policy '{options.vcpu}'" if options.vcpu else ""
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seekway-live-")))
        names = [_disk(n) for n in range(guests)]
        arguments = ["--emulate", DEVICE, "--policy", "noop"]
        arguments += disks(folder, dict.fromkeys(names, DISK_BYTES))
        self.daemon = stack.enter_context(Daemon(options.program, folder, arguments))
        options.tell(f"{guests} guests boot")
        booted = [stack.enter_context(self._guest(name)) for name in names]
        boot_all(booted)
        self.threads = [vcpus.place(guest.pid, processors) for guest in booted]
        slice_us = Slices().mean_us
        self.kernel_slice_us = min(
            vcpus.set_slice(tid, slice_us) for tids in self.threads for tid in tids
        )
        self.guests = [Computing(guest) for guest in booted]

    def _guest(self, name: str) -> Guest:
        return Guest(
            name,
            [Disk(self.daemon.socket(f"{name}.vhost"))],
            memory_mib=MEMORY_MIB,
            vcpus=VCPUS,
            kvm=self.options.kvm,
            programs={"seekway-guest": self.options.agent},
        )

    def row(self, guests: int, host: str, pairs: int) -> Figures:
        """Pairs of windows, judged."""
        found = []
        threads = Threads(
            self.threads[:guests],
            [int(task) for task in os.listdir(f"/proc/{self.daemon.pid}/task")],
            [guest.guest.pid for guest in self.guests[:guests]],
        )
        with Recorder(threads.tids) as recorder:
            for n in range(pairs):
                by = "turns of 11 ms" if host == "turns" else "the kernel's slices"
                self.options.tell(f"{guests} guests, {by}: pair {n + 1} of {pairs}")
                # Both of a pair have the same slices.
                seed = 1000 * self.options.seed + n
                found.append(
                    {
                        side: self.window(threads, host, agent, seed, recorder)
                        for side, agent in (("without", None), ("with", self.agent_args))
                    }
                )
        return judged(guests, host, found, self.kernel_slice_us / 1000)

    def window(
        self, threads: Threads, host: str, agent: str | None, seed: int, recorder: Recorder
    ) -> Figures:
        """One window."""
        guests = self.guests[: len(threads.vcpus)]
        self._begin(guests, agent)
        settled_s = time.monotonic() + SETTLE_S
        for guest in guests:
            guest.go_on()
        queues = self._queues(threads) if host == "turns" else []
        with Turns(queues, Slices(seed=seed)) if queues else nullcontext():
            time.sleep(max(settled_s - time.monotonic(), 0))
            sleeps, before = [_sleeps(g) for g in guests], [_look(g) for g in guests]
            reads, begun_s = self._reads(len(guests)), time.monotonic()
            recorder.start()
            time.sleep(self.window_s)
            took_s = time.monotonic() - begun_s
            reads = [now - was for was, now in zip(reads, self._reads(len(guests)), strict=True)]
            recording = recorder.stop()
            after, more = [_look(g) for g in guests], [_sleeps(g) for g in guests]
            # The readers end first, so that their figures are the window's.
            for guest in guests:
                # Its processes end one after the other: one may have gone before it is told.
                guest.run("killall -INT fio 2>/dev/null; true")
        for guest in guests:
            guest.pause()
        found = []
        for n, guest in enumerate(guests):
            found.append(
                {
                    "iops": reads[n] / took_s,
                    **response(guest.end_fio()),
                    **between(before[n], after[n]),
                    "wakeups_s": per_second(sleeps[n], more[n]),
                    **allowed.of_guest(recording, threads, n),
                    "agent": None if agent is None else guest.end_agent(),
                }
            )
        return window(found, allowed.of_window(recording, threads))

    def _begin(self, guests: Sequence[Computing], agent: str | None) -> None:
        """Agents and readers start while compute tasks stand still: a program takes long to start
        with an eighth of a vCPU.
        """
        if agent is not None:
            for guest in guests:
                guest.start_agent(agent)
        idle = self.daemon.status()
        for guest in guests:
            # fio reads until it is told to end, and measures once it has settled.
            guest.start_fio(
                "fio --name=reader --filename=/dev/vda --direct=1 --ioengine=psync --rw=randread "
                f"--bs=4k --numjobs=1 --time_based --ramp_time={1000 * SETTLE_S:.0f}ms "
                "--runtime=3600 --group_reporting --output-format=json --output=/tmp/fio.json"
            )
        names = [_disk(n) for n in range(len(guests))]
        counters.until_at_work(self.daemon, names, idle, AT_WORK)

    def _queues(self, threads: Threads) -> list[list[int]]:
        """Each processor's vCPUs in turn, one of each guest after the other."""
        step = len(self.processors)
        queues = [
            [tids[vcpu] for vcpu in range(processor, VCPUS, step) for tids in threads.vcpus]
            for processor in range(step)
        ]
        return [queue for queue in queues if queue]

    def _reads(self, guests: int) -> list[int]:
        status = self.daemon.status()
        ops = [counters.disk(status, _disk(n))["ops"] for n in range(guests)]
        return [of.get("read", {"requests": 0})["requests"] for of in ops]


def _disk(guest: int) -> str:
    """Name of a guest and of its disk."""
    return f"vm{guest}"


# --- guests' counters


def _look(guest: Computing) -> Seen:
    return guest.look("$(pidof fio) $(pidof seekway-guest)")


def between(before: Seen, after: Seen) -> Figures:
    """Rates between two looks: what the compute tasks hashed a second, and processors of the
    readers and of the agent, as the guest accounts them.
    """
    seconds = after.seconds - before.seconds

    def cpu(seen: Seen, *, readers: bool) -> float:
        return sum(cpu_s for name, cpu_s in seen.cpu if (name == "fio") == readers)

    readers = cpu(after, readers=True) - cpu(before, readers=True)
    agent = cpu(after, readers=False) - cpu(before, readers=False)
    mib = after.mib - before.mib
    if seconds <= 0 or min(readers, agent, mib) < 0:
        raise LabError(f"a reader or the agent has ended in the window: {before}, {after}")
    return {
        "work_mib_s": mib / seconds,
        "readers_cpus": readers / seconds,
        "agent_cpus": agent / seconds,
    }


def _sleeps(guest: Computing) -> tuple[float, int] | None:
    said = guest.run(
        "for p in $(pidof seekway-guest); do cat /proc/uptime; "
        "cat /proc/$p/task/*/status | grep ^voluntary_ctxt_switches; done"
    )
    return sleeps(said)


def sleeps(said: str) -> tuple[float, int] | None:
    """The guest's time in seconds, and the number of sleeps of the agent's threads,
    each to be woken once; None where no agent runs.
    """
    if not said.strip():
        return None
    uptime, *switches = said.splitlines()
    return float(uptime.split()[0]), sum(int(line.split()[-1]) for line in switches)


def per_second(before: tuple[float, int] | None, after: tuple[float, int] | None) -> float:
    """Difference of a counter between two times, a second; 0 for nothing."""
    if before is None or after is None:
        return 0.0
    return max(after[1] - before[1], 0) / max(after[0] - before[0], 1e-9)


def response(fio: Any) -> Figures:
    """Times of reads, as fio measures them."""
    times = fio["jobs"][0]["read"]["clat_ns"]
    return {"mean_ms": times["mean"] / 1e6, "p99_ms": times["percentile"]["99.000000"] / 1e6}


# --- results of windows


def window(guests: Sequence[Figures], schedule: Figures) -> Figures:
    """A window: sums over the guests of rates and processors, means of shares and times."""

    def total(key: str) -> float:
        return sum(float(guest[key]) for guest in guests)

    def mean(key: str) -> float:
        return total(key) / len(guests)

    means = ("any_runs", "reader_runs", "moves_s", "moves_least_s", "wakeups_s")
    found = {
        "iops": total("iops"),
        # Each guest's mean counts as often as it has reads.
        "response_mean_ms": sum(g["iops"] * g["mean_ms"] for g in guests) / total("iops"),
        # The worst of the guests'.
        "response_p99_ms": max(guest["p99_ms"] for guest in guests),
        "work_mib_s": total("work_mib_s"),
        # Of the guests' vCPUs, as the guests count it.
        "readers_share": mean("readers_cpus") / VCPUS,
        "agent_share": mean("agent_cpus") / VCPUS,
        **{key: mean(key) for key in means},
        "processors": total("processors"),
        **schedule,
        "agents": [guest["agent"] for guest in guests if guest["agent"] is not None],
    }
    # The paper's P: moves over the least, one for each slice that the reader ran.
    slices_s = found["reader_runs"] / (found["slice_median_ms"] / 1e3 or float("inf"))
    found["moves_over_least"] = found["moves_s"] / slices_s if slices_s else 0.0
    return found


def _of_compute(pair: Figures, share: float) -> float:
    """A share of the guests' vCPUs as one of the compute tasks' share of them."""
    return float(share / (1 - pair["without"]["readers_share"]))


def _gain(pair: Figures) -> float:
    return float(pair["with"]["iops"] / pair["without"]["iops"])


def _allowed(pair: Figures) -> float:
    return float(pair["with"]["any_runs"] / pair["without"]["reader_runs"])


def _readers(pair: Figures) -> float:
    more = pair["with"]["readers_share"] - pair["without"]["readers_share"]
    return _of_compute(pair, more)


#: Figures of a pair of windows.
OF_PAIR: dict[str, Callable[[Figures], float]] = {
    # I/O throughput with the agent over that without.
    "gain": _gain,
    # Bound of the schedule: the share of the time with any vCPU of the guest running over that
    # in which the reader's ran without the agent.
    "allowed": _allowed,
    "of_allowed": lambda pair: _gain(pair) / _allowed(pair),
    # Of the compute tasks' work, what was lost with the agent.
    "loss": lambda pair: 1 - pair["with"]["work_mib_s"] / pair["without"]["work_mib_s"],
    # Of it, the readers' own additional processor time in the guest, the agent's, and what QEMU and
    # the daemon took from the vCPUs.
    "loss_readers": _readers,
    "loss_agent": lambda pair: _of_compute(pair, pair["with"]["agent_share"]),
    "loss_host": lambda pair: 1 - pair["with"]["processors"] / pair["without"]["processors"],
    # Processor time of the agent, in vCPUs.
    "agent_vcpus": lambda pair: pair["with"]["agent_share"] * VCPUS,
    # Wake-ups of all threads of the agent in one guest, a second.
    "wakeups_s": lambda pair: pair["with"]["wakeups_s"],
}


def judged(guests: int, host: str, pairs: Sequence[Figures], kernel_slice_ms: float) -> Figures:
    """A row: medians over the pairs, and whether they are enough. The kernel's own slices are
    shown, not judged: they are too short to be predicted.
    """
    sides: Figures = {}
    for side in ("without", "with"):
        keys = [key for key in pairs[0][side] if key != "agents"]
        sides[side] = {key: counters.spread(pair[side][key] for pair in pairs) for key in keys}
    row: Figures = {
        "guests": guests,
        "readers": 1,
        "host": host,
        "kernel_slice_ms": kernel_slice_ms,
        **sides,
        **{key: counters.spread(map(of, pairs)) for key, of in OF_PAIR.items()},
        "pairs": list(pairs),
    }
    if host == "kernel":
        slice_ms = row["without"]["slice_median_ms"]["median"]
        return {**row, "verdict": "measured", "why": f"median slice {slice_ms:.1f} ms"}
    gain, wakeups, loss, share = (
        row[key]["median"] for key in ("gain", "wakeups_s", "loss", "of_allowed")
    )
    asked = [
        (gain >= GAIN, f"gain {gain:.2f} ({GAIN:.1f} asked)"),
        (wakeups <= WAKEUPS, f"{wakeups:.0f} wake-ups a second ({WAKEUPS:.0f} at most)"),
        (loss <= LOSS, f"loss {100 * loss:.1f} % ({100 * LOSS:.0f} % at most)"),
    ]
    if guests == 2:
        of_allowed = f"{share:.2f} of the allowed gain ({OF_ALLOWED:.2f} asked)"
        asked.insert(0, (share >= OF_ALLOWED, of_allowed))
    met = all(good for good, _ in asked)
    why = ", ".join(why for good, why in asked if met or not good)
    return {**row, "verdict": "met" if met else "missed", "why": why}


# --- tables


def _name(row: Figures) -> str:
    guests = "1 guest" if row["guests"] == 1 else f"{row['guests']} guests"
    return guests if row["host"] == "turns" else f"{guests}, kernel's slices"


def results(rows: Sequence[Figures], pairs: int, window_s: int) -> runs.Table:
    """The readers, the compute tasks, and the verdict."""

    def one(row: Figures) -> dict[str, Cell]:
        without, having = row["without"], row["with"]
        percent = {
            "compute lost, %": "loss",
            "to readers, %": "loss_readers",
            "to the agent, %": "loss_agent",
            "agent, % of a vCPU": "agent_vcpus",
        }
        return {
            "reads without, IOPS": without["iops"]["median"],
            "with the agent": having["iops"]["median"],
            "gain, ×": row["gain"]["median"],
            "least": row["gain"]["least"],
            "largest": row["gain"]["largest"],
            "allowed, ×": row["allowed"]["median"],
            "gain of allowed": row["of_allowed"]["median"],
            "response without, ms": without["response_mean_ms"]["median"],
            "response with": having["response_mean_ms"]["median"],
            "p99 without, ms": without["response_p99_ms"]["median"],
            "p99 with": having["response_p99_ms"]["median"],
            **{label: 100 * row[key]["median"] for label, key in percent.items()},
            "wake-ups of a guest's agent, 1/s": row["wakeups_s"]["median"],
            "verdict": row["verdict"],
            "why": row["why"],
        }

    note = (
        f"Guests of {VCPUS} vCPUs with a compute task (sha256sum) on each; in each guest fio "
        f"reads 4 KiB at random places, one at a time, on `seekway serve --emulate {DEVICE}`. "
        f"Medians of {pairs} pairs of windows of {window_s} s, without and with `seekway-guest "
        "migrate` in all guests, in turn. IOPS and responses are of all guests. allowed: the "
        "share of the time in which some vCPU of the guest ran, over that in which its reader's "
        "ran without the agent, both from the kernel's record. to readers: their own additional "
        "processor time. Processor times inside of a guest are the guest's count, in which a "
        "vCPU's absence counts for who was on it."
    )
    found = {_name(row): one(row) for row in rows}
    return columns(f"{NAME} in real guests", found, [note])


def hosts(rows: Sequence[Figures]) -> runs.Table:
    """Table of the vCPUs' running time, and of the reader's part of it."""

    def one(side: Figures) -> dict[str, Cell]:
        def median(key: str) -> float:
            return float(side[key]["median"])

        return {
            "some vCPU runs, %": 100 * median("any_runs"),
            "reader's runs, %": 100 * median("reader_runs"),
            "its moves, 1/s": median("moves_s"),
            "a clairvoyant's, 1/s": median("moves_least_s"),
            "P": median("moves_over_least"),
            "slice p10, ms": median("slice_p10_ms"),
            "slice median, ms": median("slice_median_ms"),
            "slice p90, ms": median("slice_p90_ms"),
            "QEMU and daemon, % of a processor": 100 * median("served_processors"),
            "their wait p99, ms": median("served_wait_p99_ms"),
        }

    note = (
        "P, as in the paper: the reader's moves over one for each median slice that its vCPU "
        "ran. A clairvoyant is on a vCPU that runs whenever one does, with the fewest moves. A "
        "slice lasts until another vCPU gets the processor. QEMU's first thread serves timers "
        "and interrupts of an emulated guest and runs on the same processors; under the kernel's "
        "scheduler each time it has run another vCPU may be chosen, whatever slice was asked for."
    )
    sides = ("without", "with")
    found = {f"{_name(row)}, {side}": one(row[side]) for row in rows for side in sides}
    return columns("The host's schedule, as recorded", found, [note])
