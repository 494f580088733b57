"""Figures of loads by their ways of reading ahead, and the rows that several studies have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from seekway_lab import judge
from seekway_lab.judge import Figure, Row, Runs, mean, measured
from seekway_lab.papers.vio.loads import BASE, LATER

#: Ways (studies.toml). Only those as in the paper stand beside its figures.
PAPER, VIO, OURS = "vio as in the paper", "vio", "vio, continuous"
OFF = {form: f"{form} as in the paper, guest's read-ahead off" for form in ("flashy", "vio")}
#: With the guest's read-ahead on, no host prefetching may cost more than this. No paper claims it.
FLOOR = 0.98
#: Asked for where readers wait for a device that has bandwidth to spare.
GAIN = 1.15
#: CPU time of a guest for each byte that it reads through its page cache, 64 KiB at a time, by its
#: defaults: 2 µs a call, 1 µs a page.
CPU_S_PER_BYTE = 18e-6 / 65_536
#: Paper's speed-ups of its two forms, where it gives them.
Paper = Mapping[str, float]


def mean_of(values: Iterable[np.ndarray]) -> np.ndarray:
    """Mean of several loads, seed by seed."""
    return np.asarray(np.mean(list(values), axis=0), float)


class Loads(Runs):
    """Runs whose scenarios are loads and whose policies are ways of reading ahead."""

    def __init__(self, found: Runs) -> None:
        runs = found.table("runs").fillna({"read": 0})
        seconds, mib = runs.simulated_ns / 1e9, 2**20
        moved = runs.reader_bytes.where(runs.readers, runs.app_bytes.map(sum))
        read_mib = runs.read * 512 / mib
        written_mib = (runs.bytes / mib - read_mib).clip(lower=0)
        fetched = (runs.missed + runs.prefetched - runs.dropped).clip(lower=0) * 512
        unused = (runs.prefetched - runs.used - runs.dropped).clip(lower=0)
        figures = runs.assign(
            scenario=runs.load,
            policy=runs.way,
            mib_s=moved / mib / seconds,
            read_mib=read_mib,
            written_mib=written_mib,
            # The paper's BW_T, what the array reads at best, was measured before the run.
            array=100 * (written_mib * mib + fetched) / (runs.device_bytes_per_s * seconds),
            accuracy=(100 * np.minimum(runs.used, runs.read) / runs.read).fillna(0),
            cost=(100 * unused / (runs.read + unused)).fillna(0),
            busy=100 * runs.host_busy_ns / runs.simulated_ns,
        )
        super().__init__({"runs": figures})

    def of(self, load: str, key: str) -> Any:
        """An axis of a load."""
        return self.cell(load, BASE)[key].iloc[0]

    def among(self, key: str, *values: object) -> list[str]:
        """Loads that have one of these values."""
        return [load for load in self.scenarios if self.of(load, key) in values]

    def speedup(self, load: str, way: str) -> np.ndarray:
        """Throughput over the baseline's, seed by seed."""
        return self.ratio(load, way, BASE, "mib_s")

    def speedups(self, loads: Sequence[str], way: str) -> np.ndarray:
        """Speed-ups by load and seed."""
        return np.array([self.speedup(load, way) for load in loads])

    def over_loads(self, way: str, figure: Figure) -> np.ndarray:
        """A figure's mean over all loads, seed by seed."""
        return mean_of(self.each(load, way, figure) for load in self.scenarios)

    def ways(self, load: str) -> list[str]:
        """A load's ways but the baseline."""
        return [way for way in self.policies(load) if way not in (BASE, LATER)]


def speed(name: str, way: str, values: np.ndarray, paper: Paper) -> Row:
    """A speed-up beside the paper's, where the way is the paper's and it has one."""
    form, _, rest = way.partition(" ")
    if rest.startswith("as in the paper") and form in paper:
        return judge.factor(name, paper[form], values)
    return measured(name, values, "×")


def of_load(found: Loads, load: str, way: str, paper: Paper | None = None) -> Row:
    """A load's speed-up; use of the array without prefetching, accuracy, cost and S beside."""
    row = speed(f"{load}: {way}", way, found.speedup(load, way), paper or {})
    mib_s, array = (found.mean(load, BASE, figure) for figure in ("mib_s", "array"))
    accuracy, cost, s = (found.mean(load, way, f) for f in ("accuracy", "cost", "scale"))
    row.because(f"without {mib_s:.0f} MiB/s, {array:.1f} % of the array")
    return row.because(f"accuracy {accuracy:.1f} %, cost {cost:.2f} %, S {s:.2f}")


def means(found: Loads, what: str, paper: Paper) -> list[Row]:
    """Each way's mean over all loads, as the paper gives it."""
    every = found.scenarios
    return [
        speed(f"{what}: {way}", way, mean_of(found.speedups(every, way)), paper)
        for way in found.ways(every[0])
    ]


def sweep(found: Loads, what: str = "mean", paper: Paper | None = None) -> list[Row]:
    """The paper's form on each load, the means and the rows of `asks`."""
    each = [of_load(found, load, PAPER) for load in found.scenarios]
    return [*each, *means(found, what, paper or {}), *asks(found)]


def asks(found: Loads, *, gains: bool = True) -> list[Row]:
    """Asks of our forms, each by its worst load."""
    rows = [_floor(found, way) for way in (VIO, OURS)]
    due = [load for load in found.scenarios if gains and _is_due(found, load)]
    rows += [_gain(found, way, due) for way in (VIO, OURS) if due]
    return [*rows, _continuous(found)]


def _worst(loads: Sequence[str], of: Callable[[str], np.ndarray], by: Callable[..., float]) -> str:
    """The load with the least value."""
    return min(loads, key=lambda load: by(of(load)))


def _floor(found: Loads, way: str) -> Row:
    """Never below the floor, on any load with any seed; how much is chance beside."""

    def of(load: str) -> np.ndarray:
        return found.speedup(load, way)

    worst = _worst(found.scenarios, of, min)
    missed = [load for load in found.scenarios if of(load).min() < FLOOR]
    row = measured(
        f"worst load: {way}", of(worst), "×", f"{worst}, of {len(found.scenarios)} loads"
    )
    row.ask(not missed, f"never below {FLOOR} of the guest's own read-ahead")
    for load in missed:
        row.because(f"below: {load} {mean(of(load)):.2f} (least {of(load).min():.3f})")
    for load in found.among("whole_files", True):
        chance = found.ratio(load, LATER, BASE, "mib_s")
        next_window = f"a baseline's next window {chance.min():.2f} to {chance.max():.2f}"
        row.because(f"in the mean: {load} {mean(of(load)):.3f} ({next_window})")
    return row


def _is_due(found: Loads, load: str) -> bool:
    """Do sequential readers wait for the array, and not for their CPUs, while it has room?"""
    if not found.of(load, "readers") or found.mean(load, BASE, "array") >= 60:
        return False
    cpus = found.mean(load, BASE, "reader_vms") * int(found.of(load, "vcpus"))
    return found.mean(load, BASE, "mib_s") * 2**20 * CPU_S_PER_BYTE / cpus < 0.5


def _gain(found: Loads, way: str, due: list[str]) -> Row:
    """A gain wherever readers wait and the array has room."""
    worst = _worst(due, lambda load: found.speedup(load, way), mean)
    values = found.speedup(worst, way)
    name = f"least gain where readers wait and the array has room: {way}"
    row = measured(name, values, "×", f"{worst}, of {len(due)} such loads")
    return row.ask(mean(values) >= GAIN, f"at least {GAIN}")


def _continuous(found: Loads) -> Row:
    """Continuous against half a second, both with our corrections: no spread excuses a loss."""

    def of(load: str) -> np.ndarray:
        return found.ratio(load, OURS, VIO, "mib_s")

    worst = _worst(found.scenarios, of, mean)
    why = f"{worst}, of {len(found.scenarios)} loads"
    row = measured("worst load: continuous against 0.5 s", of(worst), "×", why)
    return row.ask(mean(of(worst)) >= FLOOR, f"a mean of at least {FLOOR}, whatever the spread")
