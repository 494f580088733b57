"""vpt-rank: the throttle's linear model as a prediction of the detailed disk."""

from __future__ import annotations

import itertools
import tomllib
from functools import cache
from typing import Any

import numpy as np

from seekway_lab.judge import Row, Runs, Verdict, count, factor, mean, measured, value
from seekway_lab.papers.cats import fit
from seekway_lab.papers.cats.figures import PAPER, RANKED, THREE, figures
from seekway_lab.scenarios import Scenario, Table

#: The three as they are today.
TODAY = ["cats", "deadline", "cfq"]
REAL = "itself"
#: Line and cache fitted to reads of the disk: ours.
FITTED = "fitted line and cache"
#: The paper's throttle: the line, the shadow's cache, and a device that is eight times slower
#: (k = 8) while processes and schedulers keep their own times.
LITERAL = "fitted line, shadow's cache, k = 8"
#: The paper's virtual device itself.
VIRTUAL = "the paper's line, k = 8"
#: The line fitted, the cache the paper's: every hit reads 64 sectors further, in no time.
FITTED_LINE = "fitted line, shadow's cache"
PAPERS = "the paper's line"
MEASURED = "line of the measured drive"
#: Names of measured drives.
DRIVES = {"cheetah15k5": "Cheetah 15K.5", "cheetah9LP": "Cheetah 9LP", "atlas10k": "Atlas 10K"}
LOADS = ["direct", "buffered"]


@cache
def scenarios() -> list[Scenario]:
    """Each disk and the models that predict it, with each load."""
    line = fit.of_model(fit.DISK, 1)["profile"]
    disk = {
        REAL: fit.DISK,
        FITTED: fit.with_cache(line, fit.ahead(fit.DISK)),
        LITERAL: f"slow = 8\n{line}",
        VIRTUAL: f"{fit.LINEAR}:slow=8",
        FITTED_LINE: line,
        PAPERS: fit.LINEAR,
    }
    line = fit.of_model(fit.CUT_SHORT, 1)["profile"]
    cut = {
        REAL: fit.CUT_SHORT,
        FITTED: fit.with_cache(line, fit.ahead(fit.CUT_SHORT)),
        FITTED_LINE: line,
    }
    made = []
    for target, models in {"disk": disk, "disk that cuts its read-ahead short": cut}.items():
        for load, (model, device) in itertools.product(LOADS, models.items()):
            both = target == "disk" and model in (REAL, FITTED)
            made.append(_scenario(target, load, model, device, THREE + TODAY if both else THREE))
    for drive, trace in fit.drives().items():
        detailed = fit.DRIVES[drive][0]
        profile = fit.with_cache(fit.of_drive(trace)[1], fit.ahead(detailed))
        for model, device in {REAL: detailed, MEASURED: profile}.items():
            made.append(_scenario(DRIVES[drive], "direct", model, device, THREE))
    return made


def _scenario(target: str, load: str, model: str, device: str, policies: list[str]) -> Scenario:
    """A load on a disk or on a model of it."""
    guest: Table = {"tags": True, "image": "134GiB", "atime": False}
    app: Table = {"app": "surge", "processes": 50, "requests": 20_000, "direct": True, "fill": 34}
    if load == "buffered":
        guest["ram"] = "162MiB"
        app |= {"requests": 80_000, "direct": False}
    if target in DRIVES.values():  # the older drives hold 9 GB
        guest["image"] = "7GiB"
        app = {**app, "requests": 10_000, "files": 100_000}
        del app["fill"]
    profile: Any = device
    if "\n" in device:
        profile = tomllib.loads(device) | {"name": "line", "summary": "a fitted line"}
    table = {
        "device": {"profile": profile},
        "vm": [{"name": "guest", "guest": guest, "load": [app]}],
    }
    name, every = f"{target}, {load}: {model}", tuple(dict.fromkeys(policies))
    return Scenario(name, table, every, optional=target in DRIVES.values())


def tau(predicted: list[float], actual: list[float]) -> float:
    """Kendall's τ-b: 1 when both order all pairs alike."""
    signs = [
        (np.sign(predicted[i] - predicted[j]), np.sign(actual[i] - actual[j]))
        for i, j in itertools.combinations(range(len(predicted)), 2)
    ]
    apart = [count(pair[side] != 0 for pair in signs) for side in (0, 1)]
    return float(sum(p * a for p, a in signs) / np.sqrt(apart[0] * apart[1]))


def same_order(predicted: list[float], actual: list[float]) -> bool:
    """Does the prediction order every pair as it is?"""
    pairs = itertools.combinations(range(len(predicted)), 2)
    return all(
        np.sign(predicted[i] - predicted[j]) == np.sign(actual[i] - actual[j]) for i, j in pairs
    )


class Case:
    """A load on a disk and on a model of it."""

    def __init__(self, found: Runs, scenario: str) -> None:
        self.found, self.name = found, scenario
        self.target, self.model = scenario.split(": ", 1)
        self.k = 8 if self.model in (LITERAL, VIRTUAL) else 1
        self.is_ours = self.target in [f"disk, {load}" for load in LOADS] and self.model == FITTED
        self.load = self.target.rpartition(", ")[2]

    def predicted(self, figure: str, policy: str) -> np.ndarray:
        """A figure of each seed with k taken out of it."""
        unit = self.k if figure == "throughput" else 1 / self.k
        return unit * self.found.each(self.name, policy, RANKED[figure])

    def actual(self, figure: str, policy: str) -> np.ndarray:
        """The disk's own."""
        return self.found.each(f"{self.target}: {REAL}", policy, RANKED[figure])

    def rows(self) -> list[Row]:
        """Only the literal form stands beside the paper's figures; something is asked of ours."""
        rows = [self.rank(figure, THREE) for figure in RANKED]
        virtual, real = PAPER["virtual"].get(self.load, {}), PAPER[self.load]
        if self.k != 1:
            for figure, policy in itertools.product(RANKED, THREE):
                here, paper = self.predicted(figure, policy), virtual[figure][policy]
                if self.model == VIRTUAL:
                    name, unit = f"{self.name}, {figure} under {policy}", UNITS[figure]
                    rows.append(value(name, paper, here, unit, 0.25))
                    continue
                name = f"{self.name}, {figure} over the disk's, {policy}"
                ratios = here / self.actual(figure, policy)
                rows.append(factor(name, paper / real[figure][policy], ratios))
            return rows
        rows += [self.error(policy) for policy in THREE]
        if self.is_ours:
            rows += [self.rank(figure, TODAY, ", today's") for figure in RANKED]
            rows += [self.error(policy) for policy in ["cats", "cfq"]]
        return rows

    def rank(self, figure: str, policies: list[str], suffix: str = "") -> Row:
        """Kendall's τ of each seed's prediction."""
        each = [[of(figure, p) for p in policies] for of in (self.predicted, self.actual)]
        seeds = [[[p[n] for p in side] for side in each] for n in range(len(each[0][0]))]
        right = count(same_order(*seed) for seed in seeds)
        in_the_mean = same_order(*[[mean(p) for p in side] for side in each])
        name = f"{self.name}, rank by {figure}{suffix}"
        why = f"right on {right} of {len(seeds)} seeds"
        row = measured(name, [tau(*seed) for seed in seeds], "τ", why)
        if self.model == LITERAL:
            row.paper = 1
            row.verdict = Verdict.IN_PART if in_the_mean else Verdict.REFUTED
            if right == len(seeds):
                row.verdict = Verdict.HOLDS
        # Two policies may come so close on one seed that neither order says anything.
        if self.is_ours and not suffix:
            row.ask(in_the_mean, "the disk's own rank in the mean over the seeds")
        return row

    def error(self, policy: str) -> Row:
        """By how much the mean service is off, in percent."""
        figure = "mean service"
        errors = 100 * (self.predicted(figure, policy) / self.actual(figure, policy) - 1)
        row = measured(f"{self.name}, {figure} under {policy}", errors, "% off")
        if self.is_ours and policy in THREE:
            row.ask(abs(mean(errors)) <= 15, "15 % in the mean over the seeds")
        return row


UNITS = {"mean service": "ms", "mean response": "ms", "throughput": "sectors/ms"}


def judge(found: Runs) -> list[Row]:
    """The throttle's linear model as a prediction of the detailed disk (section 6)."""
    found = figures(found)
    models = [name for name in found.scenarios if not name.endswith(f": {REAL}")]
    return [row for name in models for row in Case(found, name).rows()]
