"""Differences of counters between two looks: the daemon's status, and processors' time."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seekway_lab.live.process import LiveError, wait_for

if TYPE_CHECKING:
    from seekway_lab.live.daemon import Daemon

#: The answer of `ctl status`, or a part of it.
Status = dict[str, Any]
#: Counts that a disk has of its device's cache.
USAGE = ["reads", "read_bytes", "hit_bytes", "late_bytes", "missed_bytes", "prefetched_bytes"]
USAGE += ["used_bytes", "wasted_bytes", "dropped_bytes", "promoted"]
#: For applications to begin.
PATIENCE_S = 600


@dataclass(frozen=True)
class Cpu:
    """Processor time in ticks, of all processors (proc(5), `/proc/stat`)."""

    busy: int
    every: int

    @classmethod
    def now(cls) -> Cpu:
        """This machine's."""
        with Path("/proc/stat").open() as file:
            return cls.of(file.readline())

    @classmethod
    def of(cls, line: str) -> Cpu:
        """Of the first line of a `/proc/stat`, this machine's or a guest's."""
        # user nice system idle iowait irq softirq steal; guest time is in user.
        ticks = [int(field) for field in line.split()[1:9]]
        return cls(sum(ticks) - sum(ticks[3:5]), sum(ticks))

    def busy_until(self, later: Cpu) -> float:
        """Busy share of the time between two looks, 0 to 1."""
        return (later.busy - self.busy) / max(later.every - self.every, 1)

    def busy_since(self) -> float:
        """Busy share of this machine's time since then, 0 to 1."""
        return self.busy_until(Cpu.now())


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """Median, least and largest of the measurements that there are; None for none."""
    every = sorted(value for value in values if value is not None)
    if not every:
        return None
    return {"median": statistics.median(every), "least": every[0], "largest": every[-1]}


def device(status: Status) -> Status:
    """The device of a daemon that has exactly one."""
    if len(status["devices"]) != 1:
        raise LiveError(f"status: {len(status['devices'])} devices, expected one")
    found: Status = status["devices"][0]
    return found


def disk(status: Status, name: str) -> Status:
    """A disk by its name."""
    for one in device(status)["disks"]:
        if one["name"] == name:
            found: Status = one
            return found
    raise LiveError(f"status: no disk {name}")


def until_at_work(daemon: Daemon, names: Iterable[str], idle: Status, requests_more: int) -> None:
    """Waits until each of these disks has had this number of requests more than in `idle`."""

    def requests(status: Status, name: str) -> int:
        return sum(op["requests"] for op in disk(status, name)["ops"].values())

    wanted = {name: requests(idle, name) + requests_more for name in names}

    def are_at_work() -> bool:
        now = daemon.status()
        return all(requests(now, name) >= count for name, count in wanted.items())

    wait_for(f"I/O of {', '.join(wanted)}", are_at_work, PATIENCE_S)


def emulated_between(before: Status, after: Status) -> Status | None:
    """Counters of an emulated device: `commands`, `late` ones, and times in ms. None if nothing.

    `service_ms` is the mean service as guests had it; of it, `added_ms` is what the daemon adds to
    the model's time (times k): images and timers that are late, and other work of its thread.
    """
    was, now = device(before).get("emulated"), device(after).get("emulated")
    if was is None or now is None or now["commands"] == was["commands"]:
        return None
    commands = now["commands"] - was["commands"]

    def served_ms(emulated: Status) -> float:
        return float(emulated.get("service_mean_ms", 0) * emulated["commands"])

    def added_ms(emulated: Status) -> float:
        return float(emulated["late_by_ms"] + emulated["overslept_ms"])

    return {
        "commands": commands,
        "late": now["late"] - was["late"],
        "service_ms": (served_ms(now) - served_ms(was)) / commands,
        "added_ms": (added_ms(now) - added_ms(was)) / commands,
    }


def usage_between(before: Status, after: Status) -> Status:
    """Counters of the first disk that has a cache, with the paper's accuracy and cost.

    What is prefetched and unused at the end counts as unused.
    """
    was, now = _usage(before), _usage(after)
    found: Status = {key: now[key] - was[key] for key in USAGE}
    read, used = found["read_bytes"], found["used_bytes"]
    unused = max(found["prefetched_bytes"] - used - found["dropped_bytes"], 0)
    found["accuracy"] = min(used, read) / read if read else 0.0
    found["cost"] = unused / (read + unused) if unused else 0.0
    return found


def _usage(status: Status) -> Status:
    for one in device(status)["disks"]:
        if cache := one.get("cache"):
            found: Status = cache
            return found
    raise LiveError("status: no disk has a cache")


def tags_between(before: Status, after: Status) -> int:
    """Number of tags under which something was read."""

    def reads(status: Status) -> list[tuple[int, int]]:
        return [
            (process["tag"], process["reads"])
            for one in device(status)["disks"]
            for process in (one.get("cache") or {}).get("processes", [])
            if "tag" in process
        ]

    earlier = reads(before)
    return sum(one not in earlier for one in reads(after))
