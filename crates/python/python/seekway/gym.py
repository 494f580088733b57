"""A disk as an environment of Gymnasium: an agent decides which request goes next.

The simulator is that of `seekway.compare`; the agent stands where a `seekway.Policy` would. An
agent that takes a random request of those that wait:

    >>> from seekway.gym import DiskEnv
    >>> vms = ["name=a,app=sysbench:mode=RR", "name=b,app=sysbench:mode=SR"]
    >>> env = DiskEnv(vms=vms, until="1s")
    >>> env.observation_space.shape
    (16, 9)
    >>> env.action_space.seed(1)
    1
    >>> observation, info = env.reset(seed=1)
    >>> total, over = 0.0, False
    >>> while not over:
    ...     action = env.action_space.sample(info["action_mask"])
    ...     observation, reward, terminated, truncated, info = env.step(action)
    ...     total, over = total + reward, terminated or truncated
    >>> terminated, truncated, info["run"]["simulated_s"]
    (False, True, 1.0)
    >>> total < 0
    True
    >>> env.close()

The same by name: ``gymnasium.make("seekway.gym:seekway/Disk-v0", vms=[…])``.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import gymnasium
import numpy
import numpy.typing

from seekway._arguments import Paths, texts
from seekway._errors import SeekwayError
from seekway._policy import Device, Policy, Request
from seekway.comparison import Comparison, compare

__all__ = ["FEATURES", "DiskEnv"]

Observation = numpy.typing.NDArray[numpy.float32]

#: Contents of an observation's columns; a column for each VM follows, 1 for the request's.
FEATURES = ("mask", "offset", "distance", "age", "size", "write", "sync")

#: Options of `compare` that an episode sets itself.
_TAKEN = ("policies", "seeds", "alone", "jobs", "progress")


class _Stopped(Exception):
    """Ends a simulation that its environment does not continue."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """The agent's turn.

    Attributes:
        observation: shape (slots, features).
        now_ns: simulated time since the run began.
        queued: requests that wait, those beyond the slots too.
        waited_ns: time that requests have waited since the last turn, summed over requests.
    """

    observation: Observation
    now_ns: int
    queued: int
    waited_ns: int


@dataclass(frozen=True, slots=True)
class _End:
    """The run is over.

    Attributes:
        made: the comparison of one run, or None after an error.
        error: what the simulator raised.
        waited_ns: as in `_Turn`.
    """

    made: Comparison | None
    error: BaseException | None
    waited_ns: int


class _Agent(Policy):
    """Asks the environment; made inside of the simulator."""

    def __init__(self, episode: _Episode) -> None:
        self.episode = episode
        self.since_ns = 0
        self.waiting = 0
        self.waited_ns = 0

    def pass_time(self, now_ns: int) -> None:
        """Count the wait until now. Called after each change of `queued`."""
        self.waited_ns += self.waiting * (now_ns - self.since_ns)
        self.since_ns = now_ns
        self.waiting = len(self.queued)

    def arrived(self, now_ns: int, request: Request) -> None:
        self.pass_time(now_ns)

    def withdrawn(self, now_ns: int, request: Request) -> None:
        self.pass_time(now_ns)

    def decide(self, now_ns: int, device: Device) -> Request:
        self.pass_time(now_ns)
        episode = self.episode
        first = [request for request, _ in zip(self.queued.values(), episode.rows, strict=False)]
        seen = _observe(first, now_ns, device, episode.shape)
        turn = _Turn(seen, now_ns, len(self.queued), self.waited_ns)
        self.waited_ns = 0
        slot = episode.ask(turn)
        self.waiting -= 1
        return first[slot] if slot < len(first) else first[0]


class _Episode:
    """A run of the simulator on a thread of its own.

    The simulator's thread and the caller's hand over to each other through two queues, so that
    only one of them works at a time.
    """

    def __init__(self, arguments: dict[str, Any], seed: int, shape: tuple[int, int]) -> None:
        self.shape = shape
        self.rows = range(shape[0])
        self._turns: SimpleQueue[_Turn | _End] = SimpleQueue()
        self._slots: SimpleQueue[int | None] = SimpleQueue()
        self._agent: _Agent | None = None
        self._thread = threading.Thread(
            target=self._run, args=(arguments, seed), name="seekway-episode", daemon=True
        )
        self._thread.start()

    def _run(self, arguments: dict[str, Any], seed: int) -> None:
        made, error, waited_ns = None, None, 0
        try:
            made = compare(**arguments, policies=[self.agent], seeds=[seed])
            if self._agent is not None:
                self._agent.pass_time(round(made.runs[0]["simulated_s"] * 1e9))
                waited_ns = self._agent.waited_ns
        except BaseException as raised:
            error = raised
        self._turns.put(_End(made, error, waited_ns))

    def agent(self) -> Policy:
        """The policy of this run; the simulator calls it."""
        self._agent = _Agent(self)
        return self._agent

    def ask(self, turn: _Turn) -> int:
        """Hand a turn over and wait for the slot. Called by the simulator's thread."""
        self._turns.put(turn)
        slot = self._slots.get()
        if slot is None:
            raise _Stopped
        return slot

    def answer(self, slot: int) -> None:
        """Send the request of a slot."""
        self._slots.put(slot)

    def next(self) -> _Turn | _End:
        """Wait until the agent is asked, or the run is over.

        Raises:
            Exception: whatever the simulator raised.
        """
        turn = self._turns.get()
        if isinstance(turn, _End):
            self._thread.join()
            if turn.error is not None:
                raise turn.error
        return turn

    def stop(self) -> None:
        """End the run, if it goes on, and its thread."""
        self._slots.put(None)
        self._thread.join()


def _observe(
    first: list[Request], now_ns: int, device: Device, shape: tuple[int, int]
) -> Observation:
    """The first requests as `DiskEnv` describes them: float32 of `shape`."""
    seen = numpy.zeros(shape, numpy.float32)
    head, capacity = device.head_sector, device.capacity_sectors
    columns = len(FEATURES)
    offset = numpy.array([r.start_sector for r in first], numpy.float64) - head
    age_ms = (now_ns - numpy.array([r.arrived_ns for r in first], numpy.float64)) / 1e6
    sectors = numpy.array([r.sectors for r in first], numpy.float64)
    rows = seen[: len(first)]
    rows[:, 0] = 1
    rows[:, 1] = offset / capacity
    rows[:, 2] = numpy.log1p(numpy.abs(offset)) / numpy.log1p(capacity)
    rows[:, 3] = age_ms / (age_ms + 100)
    rows[:, 4] = numpy.minimum(numpy.log2(sectors + 1) / 16, 1)
    rows[:, 5] = [r.write for r in first]
    rows[:, 6] = [r.sync for r in first]
    rows[range(len(first)), [columns + r.vm for r in first]] = 1
    return seen


class DiskEnv(gymnasium.Env[Observation, numpy.int64]):
    """Which of the queued requests goes to the disk next.

    An episode is one run of `seekway.compare`. It terminates when the load ends, and is truncated
    at `until`.

    Observation: float32 of shape (slots, 7 + VMs), from -1 to 1. A row is one of the first
    requests of the queue, the oldest first; rows without a request are 0. Columns:

        0. mask: 1 if there is a request.
        1. offset: from the head to the request's start, signed; 1 is the whole disk.
        2. distance: log(1 + sectors) of the same without a sign; 1 is the whole disk.
        3. age: a / (a + 100 ms).
        4. size: log2(1 + sectors) / 16, at most 1.
        5. write: 1 for a write.
        6. sync: 1 if somebody waits for it.
        7. and on: 1 in the column of the request's VM.

    Action: the row whose request goes, from 0 to slots - 1. A row without a request sends the
    oldest; `action_masks` says which have one.

    Reward: minus the number of queued requests, integrated over the simulated time since the last
    decision, in milliseconds. The sum of an episode is minus the time that all requests waited in
    the queue, those included that still wait at `until`.

    Info: ``now_ms`` and ``queued`` (requests, those beyond the slots too), ``action_mask`` (int8
    of shape (slots,)) and ``seed`` of the run; at the end also ``run``, the run's dictionary of
    `Comparison.runs` without the wall-clock time, ``device`` and ``warnings``.

    Attributes:
        vms: names of the VMs, in the order of the observation's columns.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(
        self,
        traces: Paths | None = None,
        *,
        vms: Paths = (),
        device: str = "seagate-1tb-7200",
        until: str | None = None,
        slots: int = 16,
        **options: Any,
    ) -> None:
        """Read the load once and learn which VMs it has.

        Args:
            traces: files, one VM each.
            vms: generated VMs, as `seekway.compare` has them.
            device: a profile, or a file.
            until: simulated time at which an episode is cut; by default the load's end.
            slots: requests that an agent sees and chooses from.
            options: other options of `seekway.compare`, of which one run has to come.

        Raises:
            SeekwayError: a wrong argument, or one that asks for several runs.
            TraceError: a trace cannot be read.
        """
        if slots < 1:
            raise SeekwayError(f"slots: {slots}: at least 1")
        for key in _TAKEN:
            if key in options:
                raise SeekwayError(f"{key}: not an option here: an episode sets it")
        self._arguments: dict[str, Any] = {
            **{"traces": texts(traces), "vms": texts(vms), "device": device, "until": until},
            **{"alone": "never", "jobs": 1, "progress": False},
            **options,
        }
        probe = compare(**{**self._arguments, "policies": "noop", "until": "1us"})
        if len(probe.runs) != 1:
            raise SeekwayError(f"an episode is one run; these options ask for {len(probe.runs)}")
        self.vms: list[str] = [vm["name"] for vm in probe.runs[0]["vms"]]
        shape = (slots, len(FEATURES) + len(self.vms))
        self.observation_space = gymnasium.spaces.Box(-1, 1, shape, numpy.float32)
        self.action_space = gymnasium.spaces.Discrete(slots)
        self._shape = shape
        self._seed = 0
        self._now: _Turn | _End | None = None
        self._end = weakref.finalize(self, _nothing)
        self._episode: _Episode | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin a run; one that goes on is ended first.

        Args:
            seed: that of the generated load; without one, the next of this environment's own.
            options: none are known.

        Returns:
            The first observation and info.

        Raises:
            Exception: whatever the simulator raised.
        """
        super().reset(seed=seed)
        self.close()
        self._seed = seed if seed is not None else int(self.np_random.integers(1, 2**31))
        self._episode = _Episode(self._arguments, self._seed, self._shape)
        self._end = weakref.finalize(self, self._episode.stop)
        self._now = self._episode.next()
        return self._seen(self._now)

    def step(
        self, action: numpy.int64 | int
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Send the request of row `action`, and go on to the next decision.

        Returns:
            Observation, reward in ms, terminated, truncated and info.

        Raises:
            SeekwayError: the action is no row.
            gymnasium.error.ResetNeeded: no episode is under way.
        """
        if not self.action_space.contains(action):
            raise SeekwayError(f"action {action!r}: a row from 0 to {self._shape[0] - 1}")
        if self._episode is None or self._now is None:
            raise gymnasium.error.ResetNeeded("no episode is under way: call reset first")
        if isinstance(self._now, _Turn):
            self._episode.answer(int(action))
            self._now = None
            self._now = self._episode.next()
        turn = self._now
        seen, info = self._seen(turn)
        finished = isinstance(turn, _End) and bool(info["run"]["finished"])
        if isinstance(turn, _End):
            self.close()
        return seen, -turn.waited_ns / 1e6, finished, isinstance(turn, _End) and not finished, info

    def action_masks(self) -> numpy.typing.NDArray[numpy.bool_]:
        """Which rows have a request: bool of shape (slots,). MaskablePPO asks for it."""
        queued = self._now.queued if isinstance(self._now, _Turn) else 0
        mask: numpy.typing.NDArray[numpy.bool_] = numpy.arange(self._shape[0]) < queued
        return mask

    def close(self) -> None:
        """End the run that goes on, and its thread."""
        self._end()
        self._episode = self._now = None

    def _seen(self, turn: _Turn | _End) -> tuple[Observation, dict[str, Any]]:
        """Observation and info of a turn."""
        info: dict[str, Any] = {
            "seed": self._seed,
            "queued": 0,
            "action_mask": self.action_masks().astype(numpy.int8),
        }
        if isinstance(turn, _Turn):
            return turn.observation, info | {"now_ms": turn.now_ns / 1e6, "queued": turn.queued}
        assert turn.made is not None
        run = dict(turn.made.runs[0])
        run.pop("wall_s")
        info |= {"now_ms": run["simulated_s"] * 1e3, "run": run}
        info |= {"device": turn.made.device, "warnings": turn.made.warnings}
        return numpy.zeros(self._shape, numpy.float32), info


def _nothing() -> None:
    """The end of an environment without a run."""


if "seekway/Disk-v0" not in gymnasium.registry:
    gymnasium.register("seekway/Disk-v0", entry_point="seekway.gym:DiskEnv")
