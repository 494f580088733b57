"""Rows as data: a figure of one cell, or a ratio of two, with the paper's figure and a judge.

A file of rows has

- `[figures]`: by name, `column` of the runs' table and `unit`;
- `[names]`: what rows call a policy, and its specification; others are called by theirs;
- `[policies]` and `[pairs]`: names for lists of them;
- `[paper.FIGURE]`: the paper's figure by policy;
- `pair`: a template of names, in place of `PAIR`;
- `[[row]]`: `figures`, by name; `in` and `not_in`, patterns of scenarios (all); `policies`, by name
  or "all", or `pairs` of policies whose ratio it is, or with `difference` how far the first is
  above the second; a third entry of a pair is the paper's figure; `over`, another scenario to
  divide by; `across`, an axis: the mean over the scenarios that have one value of it, which is then
  the name; `judge`, one of "measured" (without a paper), "factor", "value" (with `within`),
  "limit", and "above" or "below" a number, as "above 1"; `paper`, where neither `[paper]` nor the
  pair has it; `tie`, so that a paper's ratio that is this near to 1 is a "value"; `ask`, a table
  with bounds of `ASKED` and `what` for the reader; `name`, a template with {scenario}, {figure},
  {ours} and {base}.

A figure that no run of a scenario has makes no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np

from seekway_lab import judge
from seekway_lab.judge import Row, Runs
from seekway_lab.records import LabError

SINGLE, PAIR = "{scenario}: {figure} under {ours}", "{scenario}: {figure}, {ours} over {base}"
KEYS = {"figures", "in", "not_in", "policies", "pairs", "over", "judge", "paper", "tie", "within"}
KEYS |= {"across", "ask", "name", "difference"}
#: Judges, by their first words, that need no figure of the paper's.
UNPAPERED = {"measured", "above", "below"}
ASKED: dict[str, Callable[[np.ndarray, float], bool]] = {
    "mean_below": lambda values, bound: judge.mean(values) < bound,
    "mean_at_least": lambda values, bound: judge.mean(values) >= bound,
    "each_at_most": lambda values, bound: bool((values <= bound).all()),
    "each_at_least": lambda values, bound: bool((values >= bound).all()),
}


def rows(data: Mapping[str, Any], runs: Runs) -> list[Row]:
    """All rows of a file, by scenario."""
    for spec in data["row"]:
        if unknown := spec.keys() - KEYS:
            raise LabError(f"row: no key '{min(unknown)}'; there are {', '.join(sorted(KEYS))}")
    axes = dict.fromkeys(spec.get("across") for spec in data["row"])
    return [
        row
        for axis in axes
        for name, members in runs.groups(axis).items()
        for spec in data["row"]
        if spec.get("across") == axis and _is_in(name, spec)
        for row in _of(data, spec, name, members, runs)
    ]


def _is_in(scenario: str, spec: Mapping[str, Any]) -> bool:
    def matches(patterns: list[str]) -> bool:
        return any(fnmatchcase(scenario, pattern) for pattern in patterns)

    return matches(spec.get("in", ["*"])) and not matches(spec.get("not_in", []))


def _of(
    data: Mapping[str, Any],
    spec: Mapping[str, Any],
    scenario: str,
    members: Sequence[str],
    runs: Runs,
) -> Iterator[Row]:
    policies, pairs = spec.get("policies", "all"), spec.get("pairs")
    if isinstance(pairs, str):
        pairs = data["pairs"][pairs]
    if isinstance(policies, str):
        known = {"all": runs.policies(members[0]), **data.get("policies", {})}
        policies = known[policies]
    pairs, names = pairs or [(policy, None) for policy in policies], data.get("names", {})
    for name in spec["figures"]:
        figure = data["figures"][name]
        for ours, base, *paper in pairs:
            other = names.get(base or ours, base or ours) if base or "over" in spec else None
            of = partial(_values, spec, runs, figure["column"], names.get(ours, ours), other)
            values = runs.across(members, of)
            if np.isnan(values).all():
                continue
            label = spec.get("name", data.get("pair", PAIR) if base else SINGLE)
            label = label.format(scenario=scenario, figure=name, ours=ours, base=base)
            is_ratio = other is not None and not spec.get("difference", False)
            unit = "×" if is_ratio else figure.get("unit", "")
            published = paper[0] if paper else _paper(data, spec, name, ours, base)
            yield _asked(_judged(spec, label, values, unit, published), values, spec.get("ask"))


def _values(
    spec: Mapping[str, Any], runs: Runs, column: str, ours: str, other: str | None, scenario: str
) -> np.ndarray:
    values = runs.each(scenario, ours, column)
    if other is None:
        return values
    beside = runs.each(spec.get("over", scenario), other, column)
    found: np.ndarray = values - beside if spec.get("difference", False) else values / beside
    return found


def _paper(
    data: Mapping[str, Any], spec: Mapping[str, Any], figure: str, ours: str, base: str | None
) -> float | None:
    """The paper's figure or ratio, where the row is judged by one."""
    told = data.get("paper", {}).get(figure)
    kind, *_ = spec.get("judge", "measured").split()
    if "paper" in spec or told is None or kind in UNPAPERED:
        found: float | None = spec.get("paper")
        return found
    return float(told[ours] / told[base] if base else told[ours])


def _judged(
    spec: Mapping[str, Any], name: str, values: np.ndarray, unit: str, paper: float | None
) -> Row:
    kind = spec.get("judge", "measured")
    if kind == "measured":
        return judge.measured(name, values, unit)
    side, _, bound = kind.partition(" ")
    if side in ("above", "below") and bound:
        return judge.ordering(name, values, float(bound), unit, above=side == "above")
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
    if not ask:
        return row
    bounds = {key: bound for key, bound in ask.items() if key != "what"}
    return row.ask(all(ASKED[key](values, bound) for key, bound in bounds.items()), ask["what"])
