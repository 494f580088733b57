"""Makes the runs of studies on Dask's workers, each once: recorded ones are not run again.

A run is a scenario under one policy with one seed. A worker reduces it to small tables, because a
run's histograms and samples take up to 0.15 MB a VM. Its file is named by the hash of all that
decides it: keys and values of the scenario, contents of the files that it names, program, and the
source of the reduction and of a policy in Python. So a study that was killed goes on.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import seekway
from seekway._table import Table as Columns
from seekway.campaign.study import content_hash

from seekway_lab import engine
from seekway_lab.judge import Runs
from seekway_lab.records import LabError
from seekway_lab.scenarios import Scenario

#: Another layout of the files on disk is another number.
LAYOUT = 1
#: Most runs of a task, which a killed study repeats.
TASK_RUNS = 40

#: Rows of one table.
Rows = list[dict[str, Any]]
#: Makes small tables of a run's outcome.
Reduce = Callable[[seekway.Outcome], dict[str, Rows]]


def rows_of(table: Columns, *drop: str) -> Rows:
    """The rows of a table without the columns that all tables have."""
    beside = {"run", "name", "policy", "seed", *drop}
    columns = [name for name in table.columns if name not in beside]
    rows: Rows = table.to_arrow().select(columns).to_pylist()
    return rows


def one_row(outcome: seekway.Outcome) -> dict[str, Rows]:
    """The usual reduction: one row a run, with the figures of policy and device and the holds.

    Columns are those of the table `runs` without what a clock says, `policy.FIGURE`,
    `device.FIGURE`, `prefetcher.FIGURE`, and `held.CAUSE_ns`.
    """
    [row] = rows_of(outcome.runs, "wall_ns", "cpu_ns")
    figures = rows_of(outcome.metrics)
    row |= {f"{f['of']}.{f['metric']}": f["value"] for f in figures if f["vm"] is None}
    row |= {f"held.{hold['cause']}_ns": hold["time_ns"] for hold in rows_of(outcome.holds)}
    return {"runs": [row]}


@dataclass(frozen=True)
class Wanted:
    """The part of each run that a study keeps.

    A key has the source of the reduction, but not of functions that it calls.
    """

    reduce: Reduce = one_row
    #: Tables of the outcome that the reduction reads.
    tables: tuple[str, ...] = ("runs", "metrics", "holds")


@dataclass(frozen=True)
class Run:
    """One run, with the key of its file."""

    key: str
    policy: str
    seed: int
    scenario: Scenario
    wanted: Wanted
    #: The program that makes it; None is the wheel.
    program: Path | None = None


def runs(scenario: Scenario, wanted: Wanted, seeds: Iterable[int]) -> list[Run]:
    """The runs of a scenario, by policy and seed; with these seeds if it has none of its own."""
    reduction = inspect.getsource(wanted.reduce)
    program = engine.chosen()
    inputs = [LAYOUT, engine.identity(program), reduction, wanted.tables, canonical(scenario.table)]
    made = []
    for policy in scenario.policies:
        own = [content_hash(str(_own(policy)[0]))] if _is_own(policy) else []
        for seed in scenario.seeds or seeds:
            text = json.dumps([*inputs, policy, own, seed], sort_keys=True)
            key = hashlib.sha256(text.encode()).hexdigest()
            made.append(Run(key, policy, seed, scenario, wanted, program))
    return made


def canonical(value: Any, key: str = "") -> Any:
    """A value as text: 4, 4.0 and "4" are the same, and a file is its contents."""
    if isinstance(value, Mapping):
        return {key: canonical(one, key) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(one, key) for one in value]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = str(value)
    if key in ("path", "profile") and "\n" not in text:
        name, toml, changes = text.partition(".toml")
        if (found := Path(name + toml)).exists():
            return [found.name, _contents(found), changes]
    return text


def _contents(path: Path) -> list[str]:
    """Hashes of a file's contents, or of all files of a folder."""
    files = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]
    return [content_hash(str(file)) for file in files]


# --- policies in Python: FILE.py:CLASS


def _is_own(policy: str) -> bool:
    return ".py:" in policy


def _own(policy: str) -> tuple[Path, str]:
    path, _, name = policy.rpartition(":")
    return Path(path), name


@cache
def _loaded(policy: str) -> type[seekway.Policy]:
    """The class of `FILE.py:CLASS`."""
    path, name = _own(policy)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise LabError(f"{policy}: cannot read {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, seekway.Policy)):
        raise LabError(f"{policy}: {path} has no class {name} of seekway.Policy")
    return found


# --- on workers


def outcome(scenario: Mapping[str, Any], policy: str, program: Path | None) -> seekway.Outcome:
    """Runs a scenario under a policy, which may be a class in Python."""
    own = {_own(policy)[1]: _loaded(policy)} if _is_own(policy) else {}
    return engine.outcome({**scenario, "policy": next(iter(own), policy)}, program, own)


def make(run: Run) -> dict[str, Rows]:
    """Makes a run; its small tables."""
    scenario = {
        **run.scenario.table,
        "seed": run.seed,
        "outcome": {"tables": list(run.wanted.tables), **run.scenario.table.get("outcome", {})},
    }
    try:
        return run.wanted.reduce(outcome(scenario, run.policy, run.program))
    except seekway.SeekwayError as error:
        raise LabError(f"{run.scenario.name}, {run.policy}, seed {run.seed}: {error}") from error


def make_all(task: Sequence[Run]) -> list[dict[str, Rows]]:
    """Makes the runs of a task. A process keeps the file systems of loads that it has laid out."""
    return [make(run) for run in task]


# --- on the machine that asks


def tasks(missing: Iterable[Run], most: int = TASK_RUNS) -> list[list[Run]]:
    """Runs in tasks: those of one load and seed are together, because they share a file system."""
    groups: dict[str, list[Run]] = {}
    for run in missing:
        load = {key: run.scenario.table.get(key) for key in ("vm", "images")}
        groups.setdefault(json.dumps([canonical(load), run.seed]), []).append(run)
    return [
        group[first : first + most]
        for group in groups.values()
        for first in range(0, len(group), most)
    ]


class Laboratory:
    """Runs on disk, and workers that make those that are missing."""

    def __init__(
        self,
        kept: Path,
        *,
        workers: int | None = None,
        scheduler: str | None = None,
        task_runs: int = TASK_RUNS,
    ) -> None:
        """Of a folder.

        Args:
            kept: the folder of runs.
            workers: processes on this machine, by default one a core; 0 runs in this process.
            scheduler: address of a Dask scheduler instead, whose workers have this package.
            task_runs: runs of a task at most.
        """
        self.kept, self.workers, self.scheduler = kept, workers, scheduler
        self.task_runs = task_runs

    def make(self, wanted: Sequence[Run], tell: Callable[[int, int], None]) -> None:
        """Makes the runs that are not on disk; tells how many of them are done."""
        missing = {run.key: run for run in wanted if not self._path(run.key).exists()}
        todo, done = tasks(missing.values(), self.task_runs), 0
        tell(done, len(missing))
        for task, made in self._made(todo):
            for run, tables in zip(task, made, strict=True):
                self._keep(run.key, tables)
            done += len(task)
            tell(done, len(missing))

    def read(self, wanted: Sequence[Run], named: Sequence[Run] | None = None) -> Runs:
        """The results of runs that are on disk; tables have the scenarios' axes as columns.

        Args:
            wanted: the runs.
            named: runs by whose scenarios and policies they are called, by default their own.
        """
        tables: dict[str, Rows] = {}
        for run, by in zip(wanted, named or wanted, strict=True):
            cell = {"scenario": by.scenario.name, "policy": by.policy, "seed": by.seed}
            cell |= by.scenario.axes
            for name, rows in json.loads(self._path(run.key).read_text()).items():
                tables.setdefault(name, []).extend({**cell, **row} for row in rows)
        return Runs({name: pd.DataFrame(rows) for name, rows in tables.items()})

    def _made(self, todo: Sequence[list[Run]]) -> Iterator[tuple[list[Run], list[dict[str, Rows]]]]:
        if self.workers == 0 or not todo:
            yield from ((task, make_all(task)) for task in todo)
            return
        from distributed import KilledWorker, as_completed

        with self._cluster() as client:
            sent = {client.submit(make_all, task, pure=False): task for task in todo}
            for future in as_completed(list(sent)):
                task = sent.pop(future)
                try:
                    yield task, future.result()
                except KilledWorker as error:
                    about = f"{task[0].scenario.name}, seed {task[0].seed}"
                    raise LabError(f"{about}: its workers die: is memory short?") from error
                future.release()

    @contextmanager
    def _cluster(self) -> Iterator[Any]:
        from seekway.campaign.run import cluster

        # Workers import this package from where this process has it.
        folder = str(Path(__file__).resolve().parents[1])
        known = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, known]))
        try:
            with cluster(self.workers, self.scheduler) as client:
                yield client
        finally:
            os.environ["PYTHONPATH"] = known

    def _path(self, key: str) -> Path:
        return self.kept / key[:2] / f"{key}.json"

    def _keep(self, key: str, tables: Mapping[str, Rows]) -> None:
        """Writes a run's file whole or not at all."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(tables))
        part.rename(path)


def progress(name: str) -> Callable[[int, int], None]:
    """Says on standard error how many runs are done: a line that changes on a terminal, else the
    first and the last.
    """

    def tell(done: int, count: int) -> None:
        if count == 0:
            return
        if sys.stderr.isatty():
            end = "\n" if done == count else "\r"
            print(f"{name}: {done} of {count} runs", end=end, file=sys.stderr, flush=True)
        elif done in (0, count):
            print(f"{name}: {done} of {count} runs", file=sys.stderr, flush=True)

    return tell
