"""The studies of each paper: a folder a paper, whose `STUDIES` are in the order of its rows."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from seekway_lab import engine, runs
from seekway_lab.judge import Figure, Row, Runs, measured
from seekway_lab.scenarios import Scenario


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

    @property
    def summary(self) -> str:
        """Its subject in a line."""
        return (self.judge.__doc__ or "").partition("\n")[0]

    def loads(self) -> str:
        """A hash of all that it runs: with another one, recorded rows are of other loads."""
        own = [s for s in self.scenarios() if not s.optional]
        every = [(s.name, runs.canonical(s.table), s.policies) for s in own]
        return hashlib.sha256(json.dumps(every, sort_keys=True).encode()).hexdigest()[:16]

    def taken(self, policies: Iterable[str]) -> list[str]:
        """The policies that it can run: those for disks."""
        return [policy for policy in policies if is_for_disks(policy)]

    def with_policies(self, *policies: str) -> list[Scenario]:
        """Its scenarios, those of the base policy with further policies."""
        every = self.scenarios()
        base = base_policy(every)
        return [s.under(*policies) if base in s.policies else s for s in every]

    def rows(self, found: Runs, *policies: str) -> list[Row]:
        """Its rows, and those that compare further policies with the base policy."""
        every = self.scenarios()
        base = base_policy(every)
        made = list(self.judge(found))
        compared = policies if "response_mean_ns" in found.tables.get("runs", ()) else ()
        for s in every:
            for policy in compared if base in s.policies else ():
                for figure, column in BESIDE.items():
                    name = f"{s.name}: {figure}, {policy} over {base}"
                    made.append(measured(name, found.ratio(s.name, policy, base, column), "×"))
        return made

    def is_unequal(self, row: str) -> str | None:
        """Why a row cannot be repeated."""
        found = (why for pattern, why in self.unequal.items() if fnmatchcase(row, pattern))
        return next(found, None)


def is_for_disks(policy: str) -> bool:
    """Whether a specification is of a scheduler. Others are left to studies of vCPUs, which refuse
    what is none of theirs either.
    """
    known = engine.schedulers(engine.chosen())
    return ".py:" in policy or policy.partition(":")[0] in known


#: Figures by which a further policy is compared, where a study keeps the columns.
BESIDE: dict[str, Figure] = {
    "mean response": "response_mean_ns",
    "bandwidth": lambda runs: runs["bytes"] / runs["simulated_ns"],
}


def base_policy(scenarios: list[Scenario]) -> str:
    """The policy that further ones are compared with: cfq where it runs, else the first."""
    every = [policy for scenario in scenarios for policy in scenario.policies]
    return "cfq" if "cfq" in every else (every or [""])[0]


def studies(paper: str) -> list[Study]:
    """The studies of a paper."""
    found: list[Study] = importlib.import_module(f"seekway_lab.papers.{paper}").STUDIES
    return found
