"""CATS and the throttle: Geist, Jones and Westall, "Disk scheduling in Linux with CATS".

Common to all studies with a load: one guest with SURGE-like processes on a Cheetah 15K.4, in a
closed loop. `cheetah-15k4` is the detailed disk and stands for the paper's real drive,
`linear-15k4` for what its throttle made of a virtual one.
"""

from __future__ import annotations

import itertools
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd

from seekway_lab import declared, runs, scenarios
from seekway_lab.judge import Row, Runs, Verdict, count, mean, measured, value
from seekway_lab.papers import Study
from seekway_lab.papers.cats import example, fit, rank
from seekway_lab.papers.cats.figures import CATS, CFQ, PAPER, figures
from seekway_lab.scenarios import Scenario

HERE = Path(__file__).parent
NO_SHADOW = "cats:segments=0"
#: Of the 50,000 requests of the paper's run under CATS, the drive's actual hits: 31,949.
HITS_PERCENT = 63.9
ROWS = tomllib.loads((HERE / "rows.toml").read_text())


def direct(found: Runs) -> list[Row]:
    """50 processes read files page by page with O_DIRECT (section 6, table 2)."""
    made = declared.rows({**ROWS, "paper": PAPER["direct"]}, figures(found))
    hits = figures(found).each("as in the paper", CATS, "hits")
    name = f"as in the paper: drive hits under {CATS}"
    return [*made, value(name, HITS_PERCENT, hits, "%", 5 / HITS_PERCENT)]


def buffered(found: Runs) -> list[Row]:
    """50 processes read files through a page cache of 65 MB (section 6, table 3)."""
    return declared.rows({**ROWS, "paper": PAPER["buffered"]}, figures(found))


def caches(found: Runs) -> list[Row]:
    """Forty drive caches: does one give both of table 2's headlines with the paper's hits?"""
    found, rows = figures(found), []
    both_ratios, hits_right = [], []
    for scenario in found.scenarios:
        ratios = {
            base: found.ratio(scenario, CATS, base, "response_ms") for base in ["deadline", CFQ]
        }
        hits = found.each(scenario, CATS, "hits")
        for base, ratio in ratios.items():
            rows.append(measured(f"{scenario}: mean response, {CATS} over {base}", ratio, "×"))
        rows.append(measured(f"{scenario}: drive hits under {CATS}", hits, "%"))
        papers = PAPER["direct"]["mean response"]
        near = [
            abs(mean(r) / (papers[CATS] / papers[base]) - 1) <= 0.25 for base, r in ratios.items()
        ]
        both_ratios.append(all(near))
        hits_right.append(abs(mean(hits) - HITS_PERCENT) <= 5)
    why = f"of {len(hits_right)}; a member is judged by its means"
    counts = {
        "that give both ratios": both_ratios,
        "with the paper's hits": hits_right,
        "that give both ratios with the paper's hits": np.logical_and(both_ratios, hits_right),
    }
    return rows + [measured(f"members {what}", [count(r)], "", why) for what, r in counts.items()]


LITERAL = "cats:busdriver=7ms,hit=250us"
MAIN = "LRU, hits extend"
FORMS = {
    f"{LITERAL},segments=32": "shadow of 32 segments",
    f"{LITERAL},segments=128": "shadow of 128 segments",
    f"{LITERAL},prefetch_sectors=32": "shadow with 32 sectors ahead",
    f"{LITERAL},prefetch_sectors=128": "shadow with 128 sectors ahead",
    CATS: "hits by 500 µs",
}
PREDICTED = 97


def predicted(table: pd.DataFrame) -> pd.Series:
    """Share of the actual hits that were predicted, in percent."""
    return 100 * table["policy.predicted_actual_hits"] / table["policy.actual_hits"]


def shadow(found: Runs) -> list[Row]:
    """Predicted beside actual hits of the drive's cache, where it differs from the shadow."""
    rows = []
    for scenario in found.scenarios:
        for policy in found.policies(scenario):
            values = found.each(scenario, policy, predicted)
            if policy in FORMS and scenario == MAIN:
                rows.append(measured(f"{scenario}, {FORMS[policy]}: predicted", values, "%"))
                continue
            name = f"{scenario}: predicted, {policy}"
            if policy != LITERAL:
                rows.append(measured(name, values, "%"))
                continue
            row, enough = (
                value(name, PREDICTED, values, "%", 0.03),
                bool((values >= PREDICTED).all()),
            )
            if enough:
                row.verdict = Verdict.HOLDS
            asked = row.ask(enough, "the paper's share on every seed") if scenario == MAIN else row
            rows.append(asked)
    return rows


DELAYS = {"50 ms": "50ms", "100 ms": "100ms", "200 ms": "200ms", "1 s": "1s", "∞": "0"}
BUSDRIVERS = {f"{ms} ms": f"{ms}ms" if ms else "0" for ms in (0, 1, 3, 5, 7, 10)} | {"auto": "auto"}


def swept(busdriver: str, delay: str) -> str:
    """The policy of a point of the sweep."""
    return f"cats:busdriver={BUSDRIVERS[busdriver]},read_delay={DELAYS[delay]}"


def sweep(found: Runs) -> list[Row]:
    """The busdriver delay, READDELAY and the drive's cache, at 8 and at 50 processes."""
    found, rows = figures(found), []
    for s in found.scenarios:
        for base in ["cats:busdriver=0", CATS]:
            ratios = found.ratio(s, "cats", base, "response_ms")
            row = measured(f"{s}: mean response, cats over {base}", ratios, "×")
            rows.append(row.ask(bool((ratios <= 1.05).all()), "at most 5 % more on every seed"))
        for ours, base in itertools.product([CATS, "cats", NO_SHADOW], ["deadline", CFQ]):
            ratios = found.ratio(s, ours, base, "response_ms")
            rows.append(measured(f"{s}: mean response, {ours} over {base}", ratios, "×"))
        for delay in DELAYS if s.startswith("FIFO") else []:
            each = {b: found.each(s, swept(b, delay), "response_ms") for b in BUSDRIVERS}
            better = np.minimum(each["0 ms"], each["7 ms"])
            name = f"{s}: auto over the better of 0 and 7 ms, READDELAY {delay}"
            rows.append(measured(name, each["auto"] / better, "×"))
            for busdriver, values in each.items():
                name = f"{s}: mean response, busdriver {busdriver}, READDELAY {delay}"
                rows.append(measured(name, values, "ms"))
    return rows


def _file(name: str) -> list[Scenario]:
    return scenarios.from_file(HERE / f"{name}.toml")


STUDIES = [
    Study(
        "table-example",
        example.judge,
        example.scenarios,
        runs.Wanted(example.order, ("requests",)),
        papers=(example.LINES["optimal"][0],),
    ),
    Study("cats-direct", direct, lambda: _file("cats-direct"), papers=(CATS,)),
    Study("cats-buffered", buffered, lambda: _file("cats-buffered"), papers=(CATS,)),
    Study("cats-shadow", shadow, lambda: _file("cats-shadow")),
    Study("cats-sweep", sweep, lambda: _file("cats-sweep"), papers=(CATS,)),
    Study("cats-caches", caches, lambda: _file("cats-caches"), papers=(CATS,)),
    Study(
        "vpt-rank",
        rank.judge,
        rank.scenarios,
        unequal={f"{rank.DRIVES[drive]}, *": why for drive, why in fit.absent().items()},
    ),
    Study("vpt-fit", fit.judge, unequal={f"{d}: *": why for d, why in fit.absent().items()}),
]
