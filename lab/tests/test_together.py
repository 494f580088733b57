from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import seekway

from seekway_lab import runs
from seekway_lab.judge import Runs
from seekway_lab.records import LabError
from seekway_lab.together import command, page, progress, scenes
from seekway_lab.together.oracle import Use, divided

DOCS = Path(__file__).parents[2] / "docs"


def test_scenes_are_chosen_by_names_and_patterns() -> None:
    def names(patterns: str) -> list[str]:
        return [scene.name for scene in scenes.chosen(patterns)]

    assert names("7200 rpm, flood") == ["7200 rpm, flood"]
    assert names("7200 rpm") == ["7200 rpm"]
    assert names("SATA*,NVMe") == ["SATA SSD", "NVMe", "SATA SSD, flood"]
    assert names("*, union") == ["7200 rpm, union", "array, union"]
    assert len(names("*")) == 10
    with pytest.raises(LabError, match="no scene tape; there are 7200 rpm; "):
        names("tape")


def test_scenes_run_in_every_way() -> None:
    """The numbers of runs are those of the recorded rows."""
    for scene in scenes.every():
        every = scene.scenarios()
        count = sum(len(scenario.policies) for scenario in every)
        paced = len(scene.vms) - len(scene.free)
        assert count == len(scene.ways()) + 2 * len(scene.vms) + paced
        assert len(scene.ways(["own.py:Own"])) == len(scene.ways()) + 1
    [flood] = scenes.chosen("array, flood")
    private = next(s for s in flood.scenarios() if s.name == "array, flood, video: private")
    assert private.table["device"] == {"profile": "raid0-8x-x25m-g2", "slow": 8}
    assert private.table["cache"] == {"size": "256MiB", "prefetch": "none"}
    [video] = private.table["vm"]
    assert (video["load"][0]["rate"], video["guest"]["ram"]) == ("237MiB", "1024MiB")
    equal = next(s for s in flood.scenarios() if s.name == "array, flood: agent, memory")
    assert equal.table["vm"][0]["guest"]["ram"] == "1024MiB"


def test_every_load_and_device_can_be_run() -> None:
    """For some milliseconds: all VMs of each scene, and all scenarios of one."""
    [union] = scenes.chosen("7200 rpm, union")
    short = {"measure": {"until": "5ms"}, "policy": "fairway"}
    for scenario in [*(scene.scenarios()[0] for scene in scenes.every()), *union.scenarios()]:
        outcome = seekway.run({**scenario.table, **short}, jobs=1, progress=False)
        [row] = scenes.reduced(outcome)["runs"]
        assert all(f"{vm['name']}.mib_s" in row for vm in scenario.table["vm"]), scenario.name
        assert outcome.warnings == [], scenario.name


def test_equal_vms_have_equal_time() -> None:
    assert divided([Use(1.0, 8.0)] * 4) == pytest.approx([2.0] * 4)


def test_who_needs_more_has_it_and_who_cannot_use_it_leaves_it() -> None:
    """One can use a tenth of the time only, one needs half of it for its private disk, one has a
    rate and needs a tenth: 0.3 are left for the last.
    """
    uses = [Use(0.1, 3.0), Use(1.0, 2.0), Use(0.4, 4.0, is_paced=True), Use(1.0, 10.0)]
    assert divided(uses) == pytest.approx([3.0, 1.0, 3.0])


def test_without_time_for_everybody_there_is_no_answer() -> None:
    assert divided([Use(1.0, 1.5), Use(1.0, 1.5)]) is None
    assert divided([Use(0.0, 5.0), Use(1.0, 1.0)]) == pytest.approx([5.0, 1.0])


def test_the_interval_is_students() -> None:
    """Of 1, 2, 3, 4, 5 the standard error is √0.5, and t(4) is 2.776."""
    assert progress.half_width([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.776 * 0.5**0.5)
    assert progress.half_width([1.0]) is None and progress.half_width([]) is None


def test_the_page_has_the_recorded_rows(tmp_path: Path) -> None:
    for path, text in page.pages(DOCS).items():
        assert path.read_text() == text
    rows = json.loads(page.recorded(DOCS).read_text())["rows"]
    copy = tmp_path / "together.json"
    copy.write_text(page.text(rows))
    assert copy.read_text() == page.recorded(DOCS).read_text()
    one = [row for row in rows if row["experiment"] == "NVMe"]
    assert page.replaced(copy, one) == rows
    assert not command.differ(rows, rows) and not command.differ(one, rows)
    assert command.differ([{**one[0], "ours": "0"}], rows)


def test_rows_are_those_that_are_recorded(tmp_path: Path) -> None:
    """Of one VM on its private disk: the private disk's figures of the recorded row."""
    [union] = scenes.chosen("array, union")
    wanted = [
        run
        for scenario in union.scenarios()
        if scenario.name in {f"array, union, {vm}: private" for vm in ("little", "much", "reader")}
        for run in runs.runs(scenario, scenes.WANTED, range(1, 6))
    ]
    laboratory = runs.Laboratory(tmp_path, workers=0)
    laboratory.make(wanted, lambda done, count: None)
    judged = progress.Judged(union, laboratory.read(wanted))
    recorded = json.loads(page.recorded(DOCS).read_text())["rows"]
    by_name = {row["row"]: row for row in recorded if row["experiment"] == union.name}
    for vm in ("little", "much", "reader"):
        for figure in ("mib_s", "p99_ms"):
            made = progress.short(progress.mean(judged.single(vm, "private", figure)))
            assert made == by_name[vm][f"private_{figure}"]


def test_progress_is_over_the_private_disk() -> None:
    """A VM with a rate has at least 1 where it reaches 0.98 of what it gets alone."""
    [scene] = scenes.chosen("NVMe, flood")

    def run(scenario: str, policy: str, mib_s: float) -> dict[str, object]:
        figures = {"mib_s": mib_s, "p99_ms": 1.0, "lost": 0.0, "busy": 0.1}
        of = {f"{vm}.{name}": value for vm in scene.vms for name, value in figures.items()}
        return {"scenario": scenario, "policy": policy, "seed": 1, **of}

    rates = {"private": 2.0, "whole": 4.0, "alone": 1.0}
    made = [
        run(s.name, policy, rates.get(s.name.rpartition(" ")[2], 1.0))
        for s in scene.scenarios()
        for policy in s.policies
    ]
    judged = progress.Judged(scene, Runs({"runs": pd.DataFrame(made)}))
    assert judged.progress("all off", "web") == [0.5]
    assert judged.progress("all off", "idle") == [1.0]
    rows = {row["row"]: row for row in judged.rows()}
    assert rows["progress, geometric mean"]["asked"] == "missed"
    assert rows["the longest p99"]["who"] == "idle", "of equal ones the last"
    assert rows["oracle"]["ours"] == "2"
    assert len(rows) == 6 + len(scene.vms) + len(scene.ways()) + 1
