"""The VMCD paper's studies: rows by name without a run, and one study's rows as recorded."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
import seekway
from conftest import RESULTS, differ_none

from seekway_lab import beside, records
from seekway_lab.judge import Runs
from seekway_lab.papers import Study
from seekway_lab.papers.vmcd import STUDIES, figures, judge
from seekway_lab.scenarios import Scenario

DOCS = RESULTS.parents[1]


def recorded(study: str) -> list[records.Record]:
    return [row for row in records.read(RESULTS / "vmcd.csv") if row["experiment"] == study]


def made_up(study: Study) -> Runs:
    """Results of a study that nobody ran: each figure has a value, and no two VMs the same."""
    found, vms = [], []
    for scenario in study.scenarios():
        count = sum(vm.get("count", 1) for vm in scenario.table["vm"])
        for policy in scenario.policies:
            for seed in (1, 2):
                cell = {"scenario": scenario.name, "policy": policy, "seed": seed}
                each = [1 << (20 + number + seed) for number in range(count)]
                run = {"requests": 100 * count, "bytes": sum(each), "simulated_ns": 10**9}
                run |= {"response_mean_ns": 1e6, "cpu_ns": 10**6, "swing": 1.0, "vm_swing": 2.0}
                found.append({**cell, **run})
                vms += [{**cell, "bytes": b, "device_time_ns": b} for b in each]
    return Runs({"runs": pd.DataFrame(found), "vms": pd.DataFrame(vms)})


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_a_study_makes_the_recorded_rows(study: Study) -> None:
    of = ("row", "paper", "unit")
    made = [row.record(study.name) for row in study.judge(made_up(study))]
    assert sorted([row[key] for key in of] for row in made) == sorted(
        [row[key] for key in of] for row in recorded(study.name)
    )


def test_a_policy_in_place_of_the_papers_has_the_papers_rows() -> None:
    [study] = (study for study in STUDIES if study.name == "vmcd-fair-sizes")
    theirs = made_up(study)
    ours = Runs({name: table.copy() for name, table in theirs.tables.items()})
    vms = ours.table("vms")
    vms.loc[vms.policy == "vmcd", "bytes"] = 1 << 20
    found, other = ([r.record(study.name) for r in study.judge(runs)] for runs in (theirs, ours))
    said = beside.summary(DOCS, "vmcd", found, {"own": other})
    claims = [line for line in said.splitlines() if line.startswith("| §4.2.2")]
    assert len(claims) == 6 and "| claim | paper | vmcd here | own |" in said, said
    assert "| 67 % less | 1× (refuted) | " in claims[0] and claims[0].endswith("× (holds) |"), (
        claims[0]
    )
    assert "of 6 that can be decided: vmcd here 0, own 6. In 0 more" in said, said


def test_a_load_that_ends_soon_has_the_recorded_figures(tmp_path: Path) -> None:
    name = "random readers, random flood"
    [study] = (study for study in STUDIES if study.name == "vmcd-flood")
    differ_none(study, tmp_path, lambda scenario: scenario.startswith(name), 8)


def test_phi_is_the_papers() -> None:
    demands = figures.QUEUES_MIB_S
    # Figure 9: the paper has 4.404 and 13.687 for these bandwidths.
    assert figures.phi(demands, (3.04, 8.48, 16.83)) == pytest.approx(4.404, rel=0.01)
    assert figures.phi(demands, (8.63, 8.83, 9.04)) == pytest.approx(13.687, rel=0.01)
    assert figures.phi((5, 5.004), (2, 4)) == 2, "nearly equal demands are equal"
    assert figures.phi((1, 1, 1), (3, 3, 3)) == 0


def test_a_ratio_counts_neither_phi_below_the_floor() -> None:
    def cells(policy: str, phi: float, floor: float) -> dict[str, object]:
        return {"scenario": "s", "policy": policy, "seed": 1, "phi": phi, "phi_floor": floor}

    found = Runs({"runs": pd.DataFrame([cells("vmcd", 0.0, 9.0), cells("cfq", 0.5, 0.1)])})
    assert figures.ratio(found, "s", "vmcd", "cfq", "phi") == pytest.approx([0.2])


def test_loads_count_alike_in_a_mean_over_them() -> None:
    assert figures.geometric([[4.0], [0.25]]) == pytest.approx([1.0])
    claim = {"table": {"vmcd": [2.0, 8.0], "cfq": [1.0, 1.0], "deadline": [2.0, 8.0]}}
    assert judge._papers(claim) == pytest.approx({"cfq": 4.0, "deadline": 1.0})


def test_demands_are_rates_or_the_papers_or_measured() -> None:
    def scenario(name: str, **load: object) -> Scenario:
        vm = {"count": 2, "weight": 3, "load": [{"bs": "64KiB", **load}]}
        return Scenario(name, {"vm": [vm]}, ("vmcd",))

    assert figures._known_demand(scenario("a", rate_iops=10), 0) == 0.625
    assert figures._known_demand(scenario(figures.QUEUES), 0) == 0.625
    [_, alone] = figures.with_alone([scenario("a")])
    assert alone.policies == ("deadline",) and alone.table == {"vm": [{"load": [{"bs": "64KiB"}]}]}


def test_swings_are_of_whole_seconds() -> None:
    def vm(io_size: str) -> dict[str, object]:
        load = {"app": "fio", "rw": "randread", "direct": True, "size": "64MiB"}
        return {"load": [{**load, "io_size": io_size}]}

    outcome = seekway.run(
        policy="noop",
        device={"profile": "seagate-1tb-7200"},
        measure={"until": "3500ms"},
        vm=[vm("1TiB"), vm("800KiB")],
        outcome={"tables": ["runs", "vms", "series"]},
        progress=False,
    )
    [run] = figures.reduced(outcome)["runs"]
    bins = outcome.series.to_pandas()
    bins["second"] = bins.from_ns // 10**9
    by_vm = [vm.groupby("second").bytes.sum().tolist() for _, vm in bins.groupby("vm")]
    assert [len(seconds) for seconds in by_vm] == [4, 3], "the second VM ends in the third second"

    def swing(seconds: list[float]) -> float:
        middle = sum(seconds) / len(seconds)
        return 100 * math.sqrt(sum((s - middle) ** 2 for s in seconds) / len(seconds)) / middle

    every = [sum(seconds) for seconds in zip(*by_vm, strict=False)]
    assert run["swing"] == pytest.approx(swing(every))
    assert run["vm_swing"] == pytest.approx((swing(by_vm[0][:3]) + swing(by_vm[1][:2])) / 2)
