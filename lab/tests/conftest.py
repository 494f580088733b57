from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

# The package as it stands in the tree.
sys.path.insert(0, str(Path(__file__).parents[1]))

if TYPE_CHECKING:
    from seekway_lab.judge import Runs
    from seekway_lab.papers import Study
    from seekway_lab.runs import Wanted
    from seekway_lab.scenarios import Scenario

RESULTS = Path(__file__).parents[2] / "docs" / "experiments" / "results"


def ran(kept: Path, wanted: Wanted, scenarios: Iterable[Scenario], seeds: int = 5) -> Runs:
    """The results of scenarios, which run in this process."""
    from seekway_lab import runs

    every = [run for s in scenarios for run in runs.runs(s, wanted, range(1, seeds + 1))]
    laboratory = runs.Laboratory(kept, workers=0)
    laboratory.make(every, lambda done, count: None)
    return laboratory.read(every)


def differ_none(
    study: Study, kept: Path, chosen: Callable[[str], bool], count: int, but: str = "!"
) -> None:
    """The rows of the chosen scenarios are `count` recorded ones; `but` begins those left out."""
    from seekway_lab import records

    (paper,) = (path for path in RESULTS.glob("*.csv") if f"\n{study.name}," in path.read_text())
    found = ran(kept, study.wanted, [s for s in study.scenarios() if chosen(s.name)])
    made = [row.record(study.name) for row in study.judge(found) if not row.name.startswith(but)]
    beside = records.differences(made, records.read(paper))
    assert (beside["differ"], beside["new"], len(beside["equal"])) == ([], [], count)
