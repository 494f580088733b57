"""Runs scenes under policies with seeds."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import seekway

from seekway_lab import engine, runs
from seekway_lab.arena import measure
from seekway_lab.arena.measure import Alone, Figures
from seekway_lab.arena.scenes import Scene, Table, key
from seekway_lab.arena.score import SceneResult, Score, mean, scoreboard
from seekway_lab.records import LabError
from seekway_lab.runs import Laboratory, Run, Wanted
from seekway_lab.scenarios import Scenario


@dataclass(frozen=True)
class Played:
    """A scene under every policy: the means over the seeds, and each seed by itself."""

    scene: Scene
    result: SceneResult
    by_seed: list[SceneResult]

    @property
    def latency_unit(self) -> str:
        """``alone`` for multiples of the VM's figure alone, else ``ms``."""
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


class Player:
    """Runs scenes with some seeds in a laboratory, which keeps the runs."""

    def __init__(self, laboratory: Laboratory, seeds: list[int]) -> None:
        self.laboratory, self.seeds = laboratory, seeds

    def play(self, scenes: list[Scene], policies: list[str]) -> list[Played]:
        """Runs all scenes under all policies with all seeds."""
        alone = self.alone(scenes)

        def run(scene: Scene, policy: str, seed: int) -> Run:
            kinds = [alone[key(kind), scene.alone_seed(seed, self.seeds)] for kind in scene.kinds]
            by_vm = [kinds[kind] for kind in scene.kind_of]
            wanted = Wanted(
                partial(measure.judged, judging=scene.judging, alone=by_vm or None),
                tuple(scene.judging.tables),
            )
            return run_of(scene.name, scene.scenario, scene.spec(policy), seed, wanted, by_vm)

        cells = [run(s, policy, seed) for s in scenes for policy in policies for seed in self.seeds]
        figures = iter(Figures.of_row(row) for row in self.rows("arena", cells))
        return [
            played(scene, [[next(figures) for _ in self.seeds] for _ in policies])
            for scene in scenes
        ]

    def alone(self, scenes: list[Scene]) -> dict[tuple[str, int], Alone]:
        """Figures of each kind of VM alone, by kind and seed.

        VMs that are equal on one device for one time share a run.
        """
        wanted = Wanted(measure.alone, ("runs", "vms", "histograms"))
        cells = {
            (key(kind), seed): run_of("alone", kind, "noop", seed, wanted)
            for scene in scenes
            for kind in scene.kinds
            for seed in dict.fromkeys(scene.alone_seed(seed, self.seeds) for seed in self.seeds)
        }
        rows = self.rows("each VM alone", list(cells.values()))
        return {cell: Alone.of_row(row) for cell, row in zip(cells, rows, strict=True)}

    def rows(self, name: str, cells: list[Run]) -> list[dict[str, Any]]:
        """The only row of each run."""
        if not cells:
            return []
        self.laboratory.make(cells, runs.progress(name))
        rows: list[dict[str, Any]] = self.laboratory.read(cells).table("runs").to_dict("records")
        return rows


def run_of(
    name: str,
    table: Table,
    policy: str,
    seed: int,
    wanted: Wanted,
    alone: list[Alone] | None = None,
) -> Run:
    """A run whose key also has the judge's source and rules."""
    scenario = Scenario(name, table, (policy,), (seed,))
    [run] = runs.runs(scenario, Wanted(measure.alone, wanted.tables), [seed])
    judging = getattr(wanted.reduce, "keywords", {}).get("judging")
    by = [run.key, inspect.getsource(measure), repr(judging), repr(alone)]
    return replace(run, key=hashlib.sha256("\n".join(by).encode()).hexdigest(), wanted=wanted)


def played(scene: Scene, by_policy: list[list[Figures]]) -> Played:
    """A scene's results; the figures are by policy and seed."""

    def result(figures: list[Figures]) -> SceneResult:
        return SceneResult(scene.name, scene.device, figures)

    by_seed = [result(list(of_seed)) for of_seed in zip(*by_policy, strict=True)]
    return Played(scene, result([Figures.mean(of_policy) for of_policy in by_policy]), by_seed)


def ended_early(board: Board) -> list[str]:
    """Scenes whose loads ended early, so that their figures are of another load."""
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
        LabError: names the policy, and what there is.
    """
    load = {"app": "uniform", "size": "4KiB", "requests": 1}
    try:
        for policy in policies:
            runs.outcome({"vm": [{"load": [load]}]}, policy, engine.chosen())
    except (seekway.SeekwayError, OSError) as error:
        raise LabError(f"--policies: {error}") from error
