"""From five seeds to a verdict.

*Holds* when the paper's ordering stands on every seed and the gain is between half of the paper's
and twice it, *exceeds* when it is more, *in part* when the mean has a tenth of the gain at least,
*refuted* otherwise. Rows whose figure no paper claims anything of are *measured*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from seekway_lab.records import COLUMNS, Record, digits

Values = np.ndarray | Sequence[float]
#: A figure of the runs: a column of their table, or a function of the table that gives one.
Figure = str | Callable[[pd.DataFrame], Any]


class Verdict(StrEnum):
    """Outcome for a paper's claim, with the loads and devices of the row."""

    HOLDS = "holds"
    EXCEEDS = "exceeds"
    IN_PART = "in part"
    REFUTED = "refuted"
    MEASURED = "measured"
    #: The machine measured something else. Such a row decides nothing.
    VOID = "void"


@dataclass
class Row:
    """One claim, and our result."""

    name: str
    #: The paper's figure, where it gives one.
    paper: float | None
    #: Ours by seed.
    values: Values
    unit: str
    verdict: Verdict = Verdict.MEASURED
    why: str = ""
    #: Whether the row meets a target of Seekway itself; None if it has none.
    asked: bool | None = None

    @property
    def ours(self) -> float:
        """Mean over the seeds."""
        return mean(self.values)

    @property
    def range(self) -> tuple[float, float]:
        """Least and largest over the seeds."""
        if not len(self.values):
            return math.nan, math.nan
        return float(np.fmin.reduce(self.values)), float(np.fmax.reduce(self.values))

    def ask(self, enough: bool, what: str) -> Row:
        """Sets a target for the row, and whether it is met."""
        self.asked = bool(enough)
        return self.because(f"{what} is asked: {'met' if enough else 'NOT MET'}")

    def because(self, why: str) -> Row:
        """Adds a reason."""
        self.why = "; ".join(filter(None, [self.why, why]))
        return self

    def ordered(self, right: int) -> Row:
        """Judges an ordering without a size that is `right` on this number of seeds."""
        every = right == len(self.values)
        self.verdict = Verdict.HOLDS if every else Verdict.IN_PART if right else Verdict.REFUTED
        return self

    def record(self, experiment: str) -> Record:
        """The row as in `docs/experiments/results`."""
        least, largest = self.range
        numbers = [self.paper, self.ours, least, largest]
        asked = {None: "", True: "met", False: "missed"}[self.asked]
        texts = [self.unit, str(self.verdict), asked, self.why]
        return dict(
            zip(COLUMNS, [experiment, self.name, *map(digits, numbers), *texts], strict=True)
        )


def mean(values: Values) -> float:
    """Mean of some values, summed in their order; NaN for none."""
    return sum(map(float, values)) / len(values) if len(values) else math.nan


def count(right: Iterable[Any]) -> int:
    """On how many seeds something is true."""
    return sum(map(bool, right))


def measured(name: str, values: Values, unit: str, why: str = "") -> Row:
    """A figure that no paper claims anything of."""
    return Row(name, None, values, unit, Verdict.MEASURED, why)


def factor(name: str, paper: float, values: Values) -> Row:
    """A claim "by this factor more" (`paper` above 1) or "less" (below 1)."""
    return _claim(name, paper, values, "×", lambda v: v - 1 if paper >= 1 else 1 - v)


def difference(name: str, paper: float, values: Values) -> Row:
    """A claim "this much above" (`paper` above 0), of differences of factors."""
    return _claim(name, paper, values, "", lambda v: v)


def _claim(
    name: str, paper: float, values: Values, unit: str, gain: Callable[[float], float]
) -> Row:
    seeds, right = len(values), count(gain(v) > 0 for v in values)
    share = gain(mean(values)) / gain(paper)
    if right == seeds and share >= 0.5:
        verdict = Verdict.EXCEEDS if share > 2 else Verdict.HOLDS
    else:
        verdict = Verdict.IN_PART if share >= 0.1 else Verdict.REFUTED
    why = f"the ordering on {right} of {seeds} seeds"
    why += f", {100 * share:.0f} % of the gain" if share > 0 else ""
    return Row(name, paper, values, unit, verdict, why)


def value(name: str, paper: float, values: Values, unit: str, within: float) -> Row:
    """A figure of which the paper gives the value, held to `within` of it (a share)."""
    off = mean(values) / paper - 1
    near = [(within, Verdict.HOLDS), (2 * within, Verdict.IN_PART)]
    verdict = next((verdict for most, verdict in near if abs(off) <= most), Verdict.REFUTED)
    return Row(name, paper, values, unit, verdict, f"{100 * off:+.0f} % of the paper's figure")


def limit(name: str, paper: float, values: Values, unit: str) -> Row:
    """A figure of which the paper says that it is never above this."""
    within = count(v <= paper for v in values)
    row = Row(name, paper, values, unit).ordered(within)
    if row.verdict != Verdict.HOLDS:
        row.verdict = Verdict.IN_PART if mean(values) <= paper else Verdict.REFUTED
    return row.because(f"within the paper's limit on {within} of {len(values)} seeds")


def ordering(name: str, values: Values, bound: float, unit: str, *, above: bool = True) -> Row:
    """An ordering of which the paper gives no size: above `bound`, or below it, on every seed."""
    right = count(v > bound if above else v < bound for v in values)
    side = "above" if above else "below"
    why = f"{side} {bound:g} on {right} of {len(values)} seeds"
    return measured(name, values, unit, why).ordered(right)


class Runs:
    """Results of a study: figures by scenario and policy, seed by seed.

    Attributes:
        tables: the tables by name; each has `scenario`, `policy` and `seed` in front. `runs` has a
            row for each run.
    """

    def __init__(self, tables: Mapping[str, pd.DataFrame]) -> None:
        self.tables = dict(tables)
        cells = tables["runs"].groupby(["scenario", "policy"], sort=False) if tables else ()
        self._cells = {key: cell.sort_values("seed") for key, cell in cells}

    def table(self, name: str) -> pd.DataFrame:
        """A table by its name."""
        if name not in self.tables:
            raise KeyError(f"no table {name!r}; there are {', '.join(self.tables)}")
        return self.tables[name]

    @property
    def scenarios(self) -> list[str]:
        """Names in the order of the study."""
        return list(dict.fromkeys(scenario for scenario, _ in self._cells))

    def groups(self, axis: str | None) -> dict[str, list[str]]:
        """Scenarios by their value of an axis; each by itself without one."""
        if axis is None:
            return {scenario: [scenario] for scenario in self.scenarios}
        named = self.table("runs").groupby(axis, sort=False)["scenario"]
        return {str(value): list(dict.fromkeys(scenarios)) for value, scenarios in named}

    def across(self, scenarios: Sequence[str], figure: Callable[[str], np.ndarray]) -> np.ndarray:
        """A figure's mean over scenarios, seed by seed."""
        found: np.ndarray = np.mean([figure(scenario) for scenario in scenarios], axis=0)
        return found

    def policies(self, scenario: str) -> list[str]:
        """Policies of a scenario in their order."""
        return [policy for name, policy in self._cells if name == scenario]

    def cell(self, scenario: str, policy: str) -> pd.DataFrame:
        """The runs of a scenario under a policy by seed."""
        try:
            return self._cells[scenario, policy]
        except KeyError:
            raise KeyError(f"no runs of '{scenario}' under {policy}") from None

    def each(self, scenario: str, policy: str, figure: Figure) -> np.ndarray:
        """A figure of each seed."""
        cell = self.cell(scenario, policy)
        found = figure(cell) if callable(figure) else cell[figure]
        return np.asarray(found, float)

    def mean(self, scenario: str, policy: str, figure: Figure) -> float:
        """A figure's mean over the seeds."""
        return mean(self.each(scenario, policy, figure))

    def ratio(self, scenario: str, ours: str, base: str, figure: Figure) -> np.ndarray:
        """A figure under one policy over that under another, seed by seed."""
        both = [self.each(scenario, policy, figure) for policy in (ours, base)]
        ratio: np.ndarray = both[0] / both[1]
        return ratio
