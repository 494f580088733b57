"""Learn a scheduling policy by trying, and compare it with others on seeds it has not seen.

A policy scores each queued request by a weighted sum of seven features and sends the one with
the highest score. The cross-entropy method finds the weights: draw candidates around a mean, run
each in the simulator, move mean and spread to the best few, repeat. It takes about a minute on
one core:

    python examples/learn_policy.py
    python examples/learn_policy.py --generations 3 --population 8   # quicker, worse

The same agent could be trained with `seekway.gym.DiskEnv`; candidates that are classes run in
`seekway.compare` without a change of threads for each decision.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import seekway
from seekway import Device, Policy, Request

#: Two VMs that read and write at random, one that reads and one that writes in order. Each ends
#: after a fixed number of requests: a policy that lets some wait for ever gains nothing by it.
VMS = (
    "name=web,app=uniform:outstanding=16,requests=800",
    "name=mail,app=uniform:outstanding=8,requests=400,read=50",
    "name=backup,app=uniform:outstanding=2,requests=1500,sequential=true,size=64KiB",
    "name=log,app=uniform:outstanding=1,requests=500,sequential=true,read=0",
)
FEATURES = ("distance", "ahead", "age", "size", "write", "sync", "same VM")


class Scorer(Policy):
    """Sends the request with the highest score; `weights` has shape (7,), as `FEATURES`."""

    weights = np.zeros(len(FEATURES))

    def __init__(self) -> None:
        """Nothing has been sent."""
        self.last_vm = -1

    def decide(self, now_ns: int, device: Device) -> Request:
        """The best by score; of equal ones the oldest."""
        queued = list(self.queued.values())
        best = queued[0]
        if len(queued) > 1:
            scores = features(queued, now_ns, device, self.last_vm) @ self.weights
            best = queued[int(scores.argmax())]
        self.last_vm = best.vm
        return best


def features(queued: list[Request], now_ns: int, device: Device, last_vm: int) -> np.ndarray:
    """Shape (requests, 7), each about 0 to 1; age is in seconds."""
    rows = np.array(
        [(r.start_sector, r.arrived_ns, r.sectors, r.write, r.sync, r.vm) for r in queued],
        dtype=np.float64,
    )
    offset = rows[:, 0] - device.head_sector
    made = np.empty((len(queued), len(FEATURES)))
    made[:, 0] = np.log1p(np.abs(offset)) / math.log1p(device.capacity_sectors)
    made[:, 1] = offset >= 0
    made[:, 2] = (now_ns - rows[:, 1]) / 1e9
    made[:, 3] = np.log2(rows[:, 2] + 1) / 16
    made[:, 4:6] = rows[:, 3:5]
    made[:, 6] = rows[:, 5] == last_vm
    return made


def scorer(name: str, weights: np.ndarray) -> type[Scorer]:
    """A policy class of this name."""
    return type(name, (Scorer,), {"weights": weights})


@dataclass(frozen=True)
class Budget:
    """The cost of training.

    Attributes:
        generations: rounds of drawing candidates. population: candidates of a round.
        elite: number of the best, which shape the next generation.
        seeds: loads each candidate runs on; they are numbered from 1.
    """

    generations: int = 8
    population: int = 20
    elite: int = 5
    seeds: int = 2


def cost(run: dict) -> float:
    """Milliseconds: the mean response, and a twentieth of the longest so that none starves."""
    return run["response_ms"]["mean"] + run["response_ms"]["max"] / 20


def evaluate(candidates: Sequence[np.ndarray], budget: Budget) -> np.ndarray:
    """Mean cost of each candidate over the training seeds, in milliseconds: shape (candidates,)."""
    own = [scorer(f"candidate{n}", weights) for n, weights in enumerate(candidates)]
    made = seekway.compare(vms=VMS, policies=own, seeds=budget.seeds, alone="never", jobs=1)
    costs: dict[str, list[float]] = {policy.__name__: [] for policy in own}
    for run in made.runs:
        costs[run["policy"]].append(cost(run))
    return np.array([np.mean(costs[policy.__name__]) for policy in own])


def train(
    budget: Budget, seed: int = 1, tell: Callable[[str], None] = lambda line: None
) -> np.ndarray:
    """Weights of shape (7,) with the least cost found. The same seed gives the same weights."""
    random = np.random.default_rng(seed)
    mean, spread = np.zeros(len(FEATURES)), np.ones(len(FEATURES))
    best, least = mean, math.inf
    for generation in range(1, budget.generations + 1):
        drawn = mean + spread * random.standard_normal((budget.population, len(FEATURES)))
        costs = evaluate(drawn, budget)
        order = np.argsort(costs, kind="stable")
        elite = drawn[order[: budget.elite]]
        mean, spread = elite.mean(axis=0), elite.std(axis=0) + 0.1 / generation
        if costs[order[0]] < least:
            best, least = drawn[order[0]], float(costs[order[0]])
        median = float(np.median(costs))
        tell(f"generation {generation:>2}: best {least:.1f} ms, median {median:.1f} ms")
    return best


def held_out(weights: np.ndarray, first: int, count: int) -> seekway.Comparison:
    """The learnt policy beside noop and sstf, on `count` seeds from `first` on."""
    return seekway.compare(
        vms=VMS,
        policies=["noop", "sstf", scorer("learnt", weights)],
        seeds=range(first, first + count),
        alone="never",
    )


def means(made: seekway.Comparison) -> dict[str, float]:
    """Mean response of each policy over the seeds, in milliseconds."""
    found: dict[str, list[float]] = {}
    for run in made.runs:
        found.setdefault(run["policy"], []).append(run["response_ms"]["mean"])
    return {policy: float(np.mean(values)) for policy, values in found.items()}


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train, compare, print; gives back `means` on the held-out seeds."""
    usual = Budget()
    parser = argparse.ArgumentParser(description="Learn a policy and compare it.")
    parser.add_argument("--generations", type=int, default=usual.generations)
    parser.add_argument("--population", type=int, default=usual.population)
    parser.add_argument("--elite", type=int, default=usual.elite)
    parser.add_argument("--seeds", type=int, default=usual.seeds, help="loads to train on")
    parser.add_argument("--seed", type=int, default=1, help="of the search")
    given = parser.parse_args(arguments)
    budget = Budget(given.generations, given.population, given.elite, given.seeds)
    weights = train(budget, given.seed, print)
    print("weights:", ", ".join(f"{n} {w:+.2f}" for n, w in zip(FEATURES, weights, strict=True)))
    made = held_out(weights, 101, 3)
    print(made)
    found = means(made)
    for policy, value in found.items():
        print(f"{policy:<7} mean response over seeds 101 to 103: {value:.1f} ms")
    return found


if __name__ == "__main__":
    main()
