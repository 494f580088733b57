"""Rows as data: a figure of one cell, or a ratio of two, with the paper's figure and a judge.

A file of rows has

- `[figures]`: by name, `column` of the runs' table and `unit`;
- `[policies]` and `[pairs]`: names for lists of them;
- `[paper.FIGURE]`: the paper's figure by policy;
- `[[row]]`: `figures`, by name; `in` and `not_in`, patterns of scenarios (all); `policies`, by name
  or "all", or `pairs` of policies whose ratio it is; `over`, another scenario to divide by;
  `judge`, one of "measured" (without a paper), "factor", "value" (with `within`), "limit" and
  "above 1"; `paper`, where `[paper]` does not have it; `tie`, so that a paper's ratio that is this
  near to 1 is a "value"; `ask`, a table with `mean_below`, `each_at_most` or `each_at_least`, and
  `what` for the reader; `name`, a template with {scenario}, {figure}, {ours} and {base}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from seekway_lab import judge
from seekway_lab.judge import Row, Runs
from seekway_lab.records import LabError

SINGLE, PAIR = "{scenario}: {figure} under {ours}", "{scenario}: {figure}, {ours} over {base}"
KEYS = {"figures", "in", "not_in", "policies", "pairs", "over", "judge", "paper", "tie", "within"}
KEYS |= {"ask", "name"}
#: Judges that need no figure of the paper's.
UNPAPERED = {"measured", "above 1"}
ASKED: dict[str, Callable[[np.ndarray, float], bool]] = {
    "mean_below": lambda values, bound: judge.mean(values) < bound,
    "each_at_most": lambda values, bound: bool((values <= bound).all()),
    "each_at_least": lambda values, bound: bool((values >= bound).all()),
}


def rows(data: Mapping[str, Any], runs: Runs) -> list[Row]:
    """All rows of a file, by scenario."""
    for spec in data["row"]:
        if unknown := spec.keys() - KEYS:
            raise LabError(f"row: no key '{min(unknown)}'; there are {', '.join(sorted(KEYS))}")
    return [
        row
        for scenario in runs.scenarios
        for spec in data["row"]
        if _is_in(scenario, spec)
        for row in _of(data, spec, scenario, runs)
    ]


def _is_in(scenario: str, spec: Mapping[str, Any]) -> bool:
    def matches(patterns: list[str]) -> bool:
        return any(fnmatchcase(scenario, pattern) for pattern in patterns)

    return matches(spec.get("in", ["*"])) and not matches(spec.get("not_in", []))


def _of(
    data: Mapping[str, Any], spec: Mapping[str, Any], scenario: str, runs: Runs
) -> Iterator[Row]:
    policies, pairs = spec.get("policies", "all"), spec.get("pairs")
    if isinstance(pairs, str):
        pairs = data["pairs"][pairs]
    if isinstance(policies, str):
        known = {"all": runs.policies(scenario), **data.get("policies", {})}
        policies = known[policies]
    pairs = pairs or [(policy, None) for policy in policies]
    for name in spec["figures"]:
        figure = data["figures"][name]
        for ours, base in pairs:
            values, other = runs.each(scenario, ours, figure["column"]), spec.get("over")
            if base or other:
                values = values / runs.each(other or scenario, base or ours, figure["column"])
            label = spec.get("name", PAIR if base else SINGLE)
            label = label.format(scenario=scenario, figure=name, ours=ours, base=base)
            unit = "×" if base or other else figure.get("unit", "")
            paper = _paper(data, spec, name, ours, base)
            yield _asked(_judged(spec, label, values, unit, paper), values, spec.get("ask"))


def _paper(
    data: Mapping[str, Any], spec: Mapping[str, Any], figure: str, ours: str, base: str | None
) -> float | None:
    """The paper's figure or ratio, where the row is judged by one."""
    told = data.get("paper", {}).get(figure)
    if "paper" in spec or told is None or spec.get("judge", "measured") in UNPAPERED:
        found: float | None = spec.get("paper")
        return found
    return float(told[ours] / told[base] if base else told[ours])


def _judged(
    spec: Mapping[str, Any], name: str, values: np.ndarray, unit: str, paper: float | None
) -> Row:
    kind = spec.get("judge", "measured")
    if kind == "measured":
        return judge.measured(name, values, unit)
    if kind == "above 1":
        return judge.ordering(name, values, 1, unit)
    if paper is None:
        raise LabError(f"row '{name}': judge = \"{kind}\" needs the paper's figure")
    if kind == "limit":
        return judge.limit(name, paper, values, unit)
    if kind == "factor" and abs(paper - 1) >= spec.get("tie", 0):
        return judge.factor(name, paper, values)
    if kind in ("factor", "value"):
        return judge.value(name, paper, values, unit, spec["within"])
    raise LabError(f"row '{name}': no judge \"{kind}\"")


def _asked(row: Row, values: np.ndarray, ask: Mapping[str, Any] | None) -> Row:
    for key, bound in (ask or {}).items():
        if key != "what":
            row = row.ask(ASKED[key](values, bound), ask["what"] if ask else "")
    return row
