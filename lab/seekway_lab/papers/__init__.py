"""The studies of each paper: a folder a paper, whose `STUDIES` are in the order of its rows.

A policy of the user's runs wherever the paper's does. The rows are then made once more with its
runs in place of the paper's: each row and each claim has a figure of both.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import seekway

from seekway_lab import engine, runs
from seekway_lab.judge import Row, Runs
from seekway_lab.records import LabError
from seekway_lab.scenarios import Scenario, Table

#: A short run of every kind of policy.
PROBE: Table = {
    "vm": [{"load": [{"app": "uniform", "size": "4KiB", "requests": 1}]}],
    "cache": {"size": "16MiB", "prefetch": "none"},
    "cpu": {"count": 1},
}


def _none() -> list[Scenario]:
    return []


@dataclass(frozen=True)
class Study:
    """Scenarios, and the rows that are made of their results."""

    name: str
    #: Makes the rows. The first line of its docstring is the study's title.
    judge: Callable[[Runs], list[Row]]
    scenarios: Callable[[], list[Scenario]] = _none
    wanted: runs.Wanted = field(default_factory=runs.Wanted)
    #: Patterns of rows that another run cannot repeat, each with the reason.
    unequal: Mapping[str, str] = field(default_factory=dict)
    #: Forms of the paper's policy for which a policy of the user's can stand in.
    papers: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """Its subject in a line."""
        return (self.judge.__doc__ or "").partition("\n")[0]

    def loads(self) -> str:
        """A hash of all that it runs: with another one, recorded rows are of other loads."""
        own = [s for s in self.scenarios() if not s.optional]
        every = [(s.name, runs.canonical(s.table), s.policies) for s in own]
        return hashlib.sha256(json.dumps(every, sort_keys=True).encode()).hexdigest()[:16]

    @staticmethod
    def form(run: runs.Run) -> str:
        """The policy of a run that the study is about."""
        return run.policy

    @staticmethod
    def under(scenario: Scenario, policy: str) -> Scenario:
        """A scenario under another such policy."""
        return replace(scenario, policies=(policy,))

    def takes(self, policy: str) -> bool:
        """Whether a policy can stand in for the paper's."""
        return bool(self.papers) and not refusal(self.under, engine.chosen(), policy)

    def in_place(self, every: Iterable[runs.Run], policy: str) -> list[runs.Run]:
        """Its runs, with those of a policy in place of the paper's."""
        return [
            self._stand_in(run, policy) if self.form(run) in self.papers else run for run in every
        ]

    def _stand_in(self, run: runs.Run, policy: str) -> runs.Run:
        scenario = replace(self.under(run.scenario, policy), seeds=(run.seed,))
        [made] = runs.runs(scenario, self.wanted, [run.seed])
        return made

    def is_unequal(self, row: str) -> str | None:
        """Why a row cannot be repeated."""
        found = (why for pattern, why in self.unequal.items() if fnmatchcase(row, pattern))
        return next(found, None)


@cache
def refusal(under: Callable[[Scenario, str], Scenario], program: Path | None, policy: str) -> str:
    """Why studies with this `under` cannot run a policy; empty if they can."""
    probe = under(Scenario("probe", PROBE, ("noop",)), policy)
    try:
        runs.outcome(probe.table, probe.policies[0], program)
    except (LabError, seekway.SeekwayError, OSError) as error:
        return str(error)
    return ""


def studies(paper: str) -> list[Study]:
    """The studies of a paper."""
    found: list[Study] = importlib.import_module(f"seekway_lab.papers.{paper}").STUDIES
    return found
