"""The scoreboard: how far each policy is from the best of all, scene by scene.

**Regret** of a policy in a scene and measure is its distance from the best of all policies there,
0 to 1: how much less throughput, share or fairness it has, or how much longer its latency is
(1 - best / own). Time withheld stands beside it and is not a measure: it is a means, and what it
costs is in the throughput.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from seekway_lab.arena.measure import LATENCIES, MEASURES, Figures

# How much better a policy has to be in each of these measures to dominate another.
DOMINATES_BY = 0.01
WHOLE = ["throughput", "worst_share", "p99"]
# Step of the weightings of these measures, as one part in this number.
PARETO_STEPS = 20


def regret(measure: str, value: float, best: float) -> float:
    """Distance of `value` from `best`: 0 for as good, up to 1."""
    part, whole = (best, value) if measure in LATENCIES else (value, best)
    # Where all got nothing, none did worse.
    if not whole or not math.isfinite(part / whole):
        return 0.0
    return min(max(1.0 - part / whole, 0.0), 1.0)


def mean(values: Iterable[float]) -> float:
    """The arithmetic mean; 0 if there are no values."""
    known = list(values)
    return sum(known) / max(len(known), 1)


@dataclass(frozen=True)
class SceneResult:
    """A scene under every policy, in their order."""

    scene: str
    device: str
    figures: list[Figures]

    @cached_property
    def best(self) -> dict[str, float]:
        """The best value of each measure that the scene has."""
        found = {}
        for name in MEASURES:
            values = [figures.values[name] for figures in self.figures]
            known = [value for value in values if value is not None]
            if known:
                found[name] = min(known) if name in LATENCIES else max(known)
        return found

    @cached_property
    def regrets(self) -> list[dict[str, float]]:
        """By policy, its distance from the best in each measure that it has."""

        def of(figures: Figures) -> dict[str, float]:
            known = ((name, figures.values[name]) for name in self.best)
            return {n: regret(n, value, self.best[n]) for n, value in known if value is not None}

        return [of(figures) for figures in self.figures]

    def mean_regret(self, policy: int) -> float:
        """The mean over the scene's measures."""
        return mean(self.regrets[policy].values())

    @property
    def whole(self) -> list[str]:
        """The measures in which a policy is compared as a whole."""
        return [name for name in WHOLE if name in self.best]

    def is_dominated(self, policy: int) -> bool:
        """Is another policy better in all of them, if the scene has at least two?"""

        def beats(other: Figures, name: str) -> bool:
            ours, theirs = self.figures[policy].values[name], other.values[name]
            if ours is None or theirs is None:
                return False
            better = theirs <= ours if name in LATENCIES else theirs >= ours
            return better and regret(name, ours, theirs) > DOMINATES_BY

        judged = self.whole
        others = (all(beats(other, name) for name in judged) for other in self.figures)
        return len(judged) > 1 and any(others)

    @cached_property
    def paretos(self) -> list[float] | None:
        """By policy, how far it is from the best under the weighting that suits it best.

        The least, over all weightings, of its weighted regret less the least weighted regret of
        any policy. That is its distance from the convex hull of all policies, taken the same way in
        each measure (the dual of the linear programme; weights go in steps, so it may be too large
        by less than a step). None if the scene has fewer than two of the measures.
        """
        judged = self.whole
        if len(judged) < 2:
            return None
        regrets = np.array([[own.get(name, 1.0) for name in judged] for own in self.regrets])
        weighted = regrets @ weightings(len(judged)).T
        return [float(least) for least in (weighted - weighted.min(axis=0)).min(axis=1)]

    def pareto(self, policy: int) -> float | None:
        """The policy's distance, see `paretos`."""
        return None if self.paretos is None else self.paretos[policy]


def weightings(measures: int) -> np.ndarray:
    """All weightings of two or three measures in steps, a row each; each sums up to 1."""
    parts = range(PARETO_STEPS + 1)
    every = [parts_ for parts_ in product(parts, repeat=measures) if sum(parts_) == PARETO_STEPS]
    return np.array(every) / PARETO_STEPS


@dataclass(frozen=True)
class Score:
    """A policy over all scenes.

    Attributes:
        number: of the policy among all.
        mean: over the scenes, of the mean over each scene's measures.
        spread: the largest less the least mean regret of a single seed, if there are several.
        pareto: mean of `SceneResult.pareto` over the scenes that have it.
        worst: the largest regret, with its scene and measure.
        by_measure: mean over the scenes, of the measures that any has.
        by_device: mean over the scenes of each device.
        dominated: scenes in which another policy is better in throughput, worst share and p99.
        withheld: mean share of the time in which it withheld the device.
    """

    number: int
    policy: str
    mean: float
    spread: float | None
    pareto: float | None
    worst: tuple[float, str, str] | None
    by_measure: dict[str, float]
    by_device: dict[str, float]
    dominated: list[str]
    withheld: float


def scoreboard(
    policies: list[str], scenes: list[SceneResult], by_seed: list[list[SceneResult]]
) -> list[Score]:
    """The scores of all policies, the least mean regret first.

    `scenes` has the means over all seeds, `by_seed` the same scenes with each seed by itself.
    """

    def spread(n: int) -> float | None:
        means = [mean(scene.mean_regret(n) for scene in seed) for seed in by_seed]
        return max(means) - min(means) if len(means) > 1 else None

    scores = [score(n, policy, scenes, spread(n)) for n, policy in enumerate(policies)]
    return sorted(scores, key=lambda score: score.mean)


def score(n: int, policy: str, scenes: list[SceneResult], spread: float | None) -> Score:
    """A policy, by number, over all scenes."""
    worst: tuple[float, str, str] | None = None
    for scene in scenes:
        for name, value in scene.regrets[n].items():
            if worst is None or value > worst[0]:
                worst = (value, scene.scene, name)
    paretos = [part for part in (scene.pareto(n) for scene in scenes) if part is not None]
    of_measure = {m: [s.regrets[n][m] for s in scenes if m in s.regrets[n]] for m in MEASURES}
    devices = dict.fromkeys(scene.device for scene in scenes)
    return Score(
        number=n,
        policy=policy,
        mean=mean(scene.mean_regret(n) for scene in scenes),
        spread=spread,
        pareto=mean(paretos) if paretos else None,
        worst=worst,
        by_measure={name: mean(values) for name, values in of_measure.items() if values},
        by_device={
            device: mean(scene.mean_regret(n) for scene in scenes if scene.device == device)
            for device in devices
        },
        dominated=[scene.scene for scene in scenes if scene.is_dominated(n)],
        withheld=mean(scene.figures[n].withheld for scene in scenes),
    )
