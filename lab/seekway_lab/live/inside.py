"""Inside of a guest that shares processors: compute tasks, agents and fio."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from seekway_lab.live.guest import Guest
from seekway_lab.live.process import LiveError

T = TypeVar("T")
#: For a command, and for an agent to start: a guest that takes longer is lost.
PATIENCE_S = 600
#: The command of `seekway-guest` that moves tasks.
MIGRATE = "migrate"
#: Ticks of `/proc/PID/stat` in a second (`USER_HZ`).
TICKS = 100
#: Counters whose first and last are read this far apart are as good as one moment's.
SOON_S = 0.02
#: Looks until that is so: one that loses its vCPU on the way takes longer.
LOOKS_MAX = 4


@dataclass
class Seen:
    """A guest's counters."""

    #: The guest's time.
    seconds: float
    #: Time that reading the counters took.
    look_s: float
    #: Hashed by all compute tasks.
    mib: float = 0.0
    #: The other processes: name, and processor time in seconds.
    cpu: list[tuple[str, float]] = field(default_factory=list)

    @classmethod
    def of(cls, text: str) -> Seen:
        """Of `uptime`, each `io`, each `stat`, and `uptime`. ValueError if it is something else."""
        mib, cpu, times = 0.0, [], []
        for line in text.splitlines():
            if line.startswith("rchar: "):
                mib += int(line.split()[1]) / (1 << 20)
            elif ") " in line:
                name = line.rpartition(") ")[0].partition(" (")[2]
                cpu.append((name, ticks(line) / TICKS))
            elif ":" not in line:
                times.append(float(line.split()[0]))
        first, last = times
        return cls((first + last) / 2, last - first, mib, cpu)


class Computing:
    """A guest with a compute task on each vCPU, which stand still at first."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        # sha256sum never comes to the end of zeros, and the kernel counts what it has read.
        said = self.run(
            "for d in /sys/block/vd*; do echo none >$d/queue/scheduler; done; "
            f"for n in $(seq 0 {guest.vcpus - 1}); do "
            "taskset -c $n sha256sum /dev/zero >/dev/null 2>&1 & echo $!; kill -STOP $!; done"
        )
        #: Process ids of the compute tasks, as words.
        self.tasks = " ".join(said.split())

    def run(self, command: str) -> str:
        """Runs a command that has to succeed; returns its output."""
        return self.guest.check(command, PATIENCE_S)

    def pause(self) -> None:
        """The compute tasks stand still."""
        self.run(f"kill -STOP {self.tasks}")

    def go_on(self) -> None:
        """The compute tasks go on."""
        self.run(f"kill -CONT {self.tasks}")

    def start(self, agent: str, arguments: str, at_work: str) -> None:
        """Starts `seekway-guest AGENT`. Returns when the shell command `at_work` succeeds."""
        self.run(
            f"rm -f /tmp/{agent}.log; "
            f"(exec seekway-guest {agent} {arguments} >/tmp/{agent}.log 2>&1) & "
            f"pid=$!; echo $pid >/tmp/{agent}.pid; until {at_work}; do "
            f"kill -0 $pid || {{ cat /tmp/{agent}.log; exit 1; }}; sleep 0.05; done"
        )

    def end(self, agent: str) -> None:
        """Ends an agent. Returns when it has put its changes back."""
        self.run(
            f"pid=$(cat /tmp/{agent}.pid); kill $pid || {{ cat /tmp/{agent}.log; exit 1; }}; "
            "while kill -0 $pid 2>/dev/null; do sleep 0.05; done"
        )

    def start_agent(self, arguments: str) -> None:
        """Starts the agent that moves tasks. Returns when it is at work."""
        self.start(MIGRATE, arguments, "seekway-guest status >/dev/null 2>&1")

    def end_agent(self) -> dict[str, Any]:
        """Ends it; returns its last `seekway-guest status --format json`."""
        said = self.run("seekway-guest status --format json")
        self.end(MIGRATE)
        return self._read(said, "status", json.loads)

    def start_fio(self, arguments: str) -> None:
        """Starts a command of fio. Returns at once."""
        self.run(f"rm -f /tmp/fio.json; (exec {arguments} >/tmp/fio.log 2>&1) &")

    def end_fio(self) -> dict[str, Any]:
        """Figures of fio when it has ended: its JSON, of --output=/tmp/fio.json."""
        said = self.run(
            "while pidof fio >/dev/null; do sleep 0.05; done; cat /tmp/fio.json || cat /tmp/fio.log"
        )
        return self._read(said, "fio", fio_json)

    def look(self, others: str) -> Seen:
        """Counters of the compute tasks (`/proc/PID/io`) and of the processes that the shell words
        `others` name (`/proc/PID/stat`), as of one moment.
        """
        command = (
            f"cd /proc; set --; for p in {self.tasks}; do set -- $@ $p/io; done; "
            f"for p in {others}; do set -- $@ $p/stat; done; cat uptime $@ uptime"
        )
        return shortest(lambda: self._read(self.run(command), "counters", Seen.of))

    def _read(self, said: str, what: str, read: Callable[[str], T]) -> T:
        try:
            return read(said)
        except (ValueError, LookupError) as error:
            raise LiveError(f"guest {self.guest.name}: {what}: {error}: {said}") from error


def shortest(look: Callable[[], Seen]) -> Seen:
    """The shortest of several looks, or the first that is short enough: where there is much other
    load, none may be short.
    """
    best = look()
    for _ in range(LOOKS_MAX - 1):
        if best.look_s <= SOON_S:
            break
        best = min(best, look(), key=lambda seen: seen.look_s)
    return best


def ticks(stat: str) -> int:
    """User's and system's time of a `/proc/PID/stat`, in ticks.

    By proc(5), after the name, which may have spaces, the third field is the first; wanted are the
    14th and the 15th.
    """
    fields = stat.rpartition(") ")[2].split(" ")
    return int(fields[11]) + int(fields[12])


def fio_json(said: str) -> dict[str, Any]:
    """fio's JSON, which may have a message before it."""
    found: dict[str, Any] = json.loads(said[said.find("\n{") + 1 :])
    return found
