"""Figures that the paper measures of a run."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pandas as pd

from seekway_lab.judge import Runs

#: CATS and CFQ as in the paper, the literal forms; our default is `busdriver=auto`.
CATS, CFQ = "cats:busdriver=7ms", "cfq:generation=2.6.30"
THREE = [CATS, "deadline", CFQ]
PAPER = tomllib.loads(Path(__file__).with_name("paper.toml").read_text())
#: Columns of the figures, of which the paper ranks by three.
RANKED = {"mean service": "service_ms", "mean response": "response_ms", "throughput": "throughput"}


def figures(found: Runs) -> Runs:
    """The runs with these figures as columns: times in ms, variances in ms², sectors per ms."""
    runs = found.table("runs")
    if "service_ms" in runs:
        return found
    sectors = runs["bytes"] / 512
    stream = runs["device.stream_hits"].fillna(0) if "device.stream_hits" in runs else 0
    made = pd.DataFrame(
        {
            "service_ms": runs["service_mean_ns"] / 1e6,
            "dispatch_ms": runs["service_from_dispatch_mean_ns"] / 1e6,
            "service_variance": (runs["service_deviation_ns"] / 1e6) ** 2,
            "response_ms": runs["response_mean_ns"] / 1e6,
            "response_variance": (runs["response_deviation_ns"] / 1e6) ** 2,
            "p99_ms": runs["response_p99_ns"] / 1e6,
            "throughput": sectors / (runs["simulated_ns"] / 1e6),
            # Commands that read which the drive's cache served, of a stream as they came too.
            "hits": 100 * (runs["device.cache_hits"] + stream) / runs["device.reads"],
        }
    )
    made["product"] = made["throughput"] * made["dispatch_ms"]
    return Runs({**found.tables, "runs": pd.concat([runs, made], axis=1)})
