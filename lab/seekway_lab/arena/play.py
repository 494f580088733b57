"""Runs scenes under policies with seeds."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import seekway

from seekway_lab.arena import measure
from seekway_lab.arena.measure import Alone, Figures
from seekway_lab.arena.scenes import ArenaError, Scene, Table, key
from seekway_lab.arena.score import SceneResult, Score, mean, scoreboard

Made = TypeVar("Made")


def run_all(
    cells: list[tuple[Table, Callable[[Any], Made]]], jobs: int | None = None
) -> list[Made]:
    """What each function makes of its scenario's Outcome."""

    def one(cell: tuple[Table, Callable[[Any], Made]]) -> Made:
        scenario, reduce = cell
        return reduce(seekway.run(scenario, jobs=1, progress=False))

    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        return list(pool.map(one, cells))


@dataclass(frozen=True)
class Played:
    """A scene under every policy: the means over the seeds, and each seed by itself."""

    scene: Scene
    result: SceneResult
    by_seed: list[SceneResult]

    @property
    def latency_unit(self) -> str:
        """``alone`` for factors of what the VM has alone, else ``ms``."""
        return "alone" if self.scene.kinds else "ms"


@dataclass(frozen=True)
class Board:
    """Some scenes, and how the policies stand in them.

    Attributes:
        title: how many scenes and of which kind, as in headings: ``60 drawn scenes (seed 1)``.
    """

    title: str
    policies: list[str]
    scenes: list[Played]
    scores: list[Score]

    @classmethod
    def of(cls, what: str, policies: list[str], scenes: list[Played]) -> Board:
        """With the scores."""
        seeds = range(len(scenes[0].by_seed) if scenes else 0)
        by_seed = [[played.by_seed[seed] for played in scenes] for seed in seeds]
        scores = scoreboard(policies, [played.result for played in scenes], by_seed)
        return cls(f"{len(scenes)} {what}", policies, scenes, scores)

    @property
    def groups(self) -> list[str]:
        """The groups of its scenes, in their order."""
        found = (played.scene.group for played in self.scenes)
        return list(dict.fromkeys(group for group in found if group))

    def regret(self, score: Score, kind: str, value: str) -> float | None:
        """A policy's mean regret in the scenes whose `kind` is this, if there are any.

        `kind` is an attribute of the scene: device, medium or group.
        """
        some = [p.result for p in self.scenes if getattr(p.scene, kind) == value]
        return mean(scene.mean_regret(score.number) for scene in some) if some else None


def play(
    scenes: list[Scene], policies: list[str], seeds: list[int], jobs: int | None
) -> list[Played]:
    """Runs all scenes under all policies with all seeds."""
    kept = alone_by_kind(scenes, seeds, jobs)

    def reduce(scene: Scene, seed: int) -> Callable[[Any], Figures]:
        kinds = [kept[key(kind), scene.alone_seed(seed, seeds)] for kind in scene.kinds]
        by_vm = [kinds[kind] for kind in scene.kind_of]
        return partial(measure.figures, scene.judging, alone=by_vm or None)

    cells = [
        (scene.under(policy, seed), reduce(scene, seed))
        for scene in scenes
        for policy in policies
        for seed in seeds
    ]
    made = iter(run_all(cells, jobs))
    return [
        played(scene, [[next(made) for _ in seeds] for _ in policies], len(seeds))
        for scene in scenes
    ]


def alone_by_kind(
    scenes: list[Scene], seeds: list[int], jobs: int | None
) -> dict[tuple[str, int], Alone]:
    """What each kind of VM has alone, by kind and seed.

    VMs that are equal on one device for one time share a run.
    """
    cells = {
        (key(kind), seed): {**kind, "seed": seed}
        for scene in scenes
        for kind in scene.kinds
        for seed in dict.fromkeys(scene.alone_seed(seed, seeds) for seed in seeds)
    }
    made = run_all([(scenario, measure.alone) for scenario in cells.values()], jobs)
    return dict(zip(cells, made, strict=True))


def played(scene: Scene, runs: list[list[Figures]], seeds: int) -> Played:
    """A scene's results; `runs` are by policy and seed."""

    def result(figures: list[Figures]) -> SceneResult:
        return SceneResult(scene.name, scene.device, figures)

    by_seed = [result([of_policy[seed] for of_policy in runs]) for seed in range(seeds)]
    return Played(scene, result([Figures.mean(of_policy) for of_policy in runs]), by_seed)


def ended_early(board: Board) -> list[str]:
    """Scenes whose figures are of another load than they say."""
    found = []
    for played in board.scenes:
        figures = zip(board.policies, played.result.figures, strict=True)
        if under := ", ".join(policy for policy, of in figures if of.ended_early):
            text = "a VM's load was over before its run was, under"
            found.append(f"{played.scene.name}: {text} {under}")
    return found


def check(policies: list[str]) -> None:
    """Refuses a policy that cannot be built, before anything long runs.

    Raises:
        ArenaError: names the policy, and what there is.
    """
    load = {"app": "uniform", "size": "4KiB", "requests": 1}
    try:
        seekway.run(policy=policies, vm=[{"load": [load]}], progress=False)
    except seekway.SeekwayError as error:
        raise ArenaError(f"--policies: {error}") from error
