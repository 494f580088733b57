"""The arena: figures as recorded, scenes, scores, formats, and refusals."""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seekway_lab.arena import arguments, command, drawn, measure, peers, score, tables
from seekway_lab.arena.measure import MEASURES, Alone, Figures, Progress, Run, Times, Vm
from seekway_lab.arena.play import Player
from seekway_lab.arena.scenes import File, Judging, Scene, key, scene_on, shares
from seekway_lab.arena.score import SceneResult, scoreboard
from seekway_lab.records import LabError
from seekway_lab.runs import Laboratory

RECORDED = Path(__file__).parent / "arena"
SMALL = "--scenes sata/flood,nvme/weights,sata/target,sata/late-flood --drawn 7:3 --quick"
POLICIES = "--policies noop,cfq,fairway,kyber"
SEED = 20_261_127


def args(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="arena")
    arguments.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What ran is kept in out/lab.
    monkeypatch.chdir(tmp_path)


def arena(line: str) -> str:
    return command.text(args("--workers", "0", *line.split()))


def equal(found: Any, known: Any, at: str = "") -> None:
    """Equal to six digits."""
    if isinstance(known, dict):
        assert list(sorted(found)) == list(sorted(known)), at
        for name in known:
            equal(found[name], known[name], f"{at}.{name}")
    elif isinstance(known, list):
        assert len(found) == len(known), at
        for n, (one, other) in enumerate(zip(found, known, strict=True)):
            equal(one, other, f"{at}[{n}]")
    elif isinstance(known, float):
        assert found == pytest.approx(known, rel=5e-7, abs=1e-12), at
    else:
        assert found == known, at


# --- figures


def test_figures_are_those_that_were_recorded() -> None:
    found = json.loads(arena(f"{SMALL} {POLICIES} --seeds 2 --format json"))
    equal(found, json.loads((RECORDED / "small.json").read_text()))


def test_a_load_of_ones_own_has_the_recorded_figures() -> None:
    line = f"{RECORDED / 'own.toml'} --policies noop,mclock,fairway --seeds 2 --format json"
    equal(json.loads(arena(line)), json.loads((RECORDED / "own.json").read_text()))


def test_a_bin_of_the_histogram_has_two_digits() -> None:
    assert [measure.bin_end(ns) for ns in (0, 511, 512, 131_071)] == [511, 511, 1023, 131_071]
    assert measure.bin_end(131_072) == 132_095
    for ns in (200_000, 3_456_789, 10**12):
        assert 0 <= measure.bin_end(ns) - ns < ns / 100


def test_a_request_that_waits_counts_with_its_age() -> None:
    times = Times({1023: 99, 2047: 1}, None)
    assert (times.ms(0.5), times.ms(0.99), times.ms(0.999)) == (1023e-6, 1023e-6, 2047e-6)
    assert Times({1023: 99, 2047: 1}, 10**9).ms(0.999) == measure.bin_end(10**9) / 1e6
    assert times.within(1_000) == pytest.approx(0.99)
    assert (Times({}, None).ms(0.99), Times({}, None).within(5)) == (0.0, 1.0)


def test_a_window_counts_each_vms_own_bins() -> None:
    # The bins of a VM that was starved at the end are shorter: they did not double.
    bins = [({20: 6, 40: 2}, 20), ({20: 1, 30: 2, 40: 4}, 10), ({}, 1)]
    vms = [Vm(1, 1, 0, False, Times({}, None), of, bin_ns) for of, bin_ns in bins]
    run = Run(simulated_ns=60, held_idle_ns=0, dispatched=1, cpu_ns=None, vms=vms)
    alone = [Alone(1.0, 1.0, 1.0)] * 3
    assert Progress(Judging(), run, alone).window(20, 20) == [6.0, 3.0, 0.0]


def test_a_max_min_division_fills_small_demands_first() -> None:
    assert measure.max_min_shares(10.0, [2.0, 8.0, 8.0], [1.0] * 3) == [2.0, 4.0, 4.0]
    assert measure.max_min_shares(9.0, [8.0, 8.0], [1.0, 2.0]) == [3.0, 6.0]


# --- scenes


def test_every_scene_is_read_once_under_its_name() -> None:
    file = File.read()
    every = file.all()
    for everyday in (False, True):
        every += drawn.drawn_scenes(file, SEED, 60, 1, everyday)
    names = [scene.name for scene in every]
    assert len(set(names)) == len(names) > 290
    for scene in every:
        assert len(scene.kind_of) == sum(vm.get("count", 1) for vm in scene.scenario["vm"])
        for vm in scene.scenario["vm"]:
            assert all(load["app"] != "uniform" or "think" in load for load in vm["load"])
    written = {scene.name: scene.group for scene in every if scene.group not in (None, "drawn")}
    assert set(written.values()) == {"late", "pauses", "prefetch", "long"}
    assert all(name.split("/")[1].startswith(f"{group}-") for name, group in written.items())


@pytest.mark.parametrize(
    ("everyday", "known"),
    [(False, "f8e03fb53f19ca02"), (True, "3495ccac945c0b58")],
    ids=["drawn", "everyday"],
)
def test_the_published_draws_stay(everyday: bool, known: str) -> None:
    # Figures in documents are of these scenes.
    scenes = drawn.drawn_scenes(File.read(), SEED, 60, 1, everyday)
    drawn_keys = ("device", "vm", "measure", "cache")
    of = [{name: scene.scenario.get(name) for name in drawn_keys} for scene in scenes]
    text = "\n".join(f"{scene.about} {key(of)}" for scene, of in zip(scenes, of, strict=True))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == known, "drawn otherwise"


def test_a_seed_draws_the_same_scenes_whatever_the_count() -> None:
    file = File.read()
    first = drawn.drawn_scenes(file, 7, 40, 1, False)
    assert first[:10] == drawn.drawn_scenes(file, 7, 10, 1, False)
    assert first != drawn.drawn_scenes(file, 8, 40, 1, False)

    def some(of: Callable[[Scene], bool]) -> bool:
        return any(map(of, first)) and not all(map(of, first))

    assert some(lambda scene: scene.judging.quiet) and some(lambda scene: scene.judging.latency)
    assert all(2 <= len(scene.kind_of) <= 25 for scene in first)


def test_a_late_vm_is_measured_from_when_it_comes_however_short_the_run() -> None:
    for shrink in (1, 20):
        [scene] = File.read().matching("sata/late-flood", shrink)
        start = scene.scenario["vm"][0]["load"][0]["start"]
        assert start == scene.scenario["measure"]["settle"] == f"{2_000_000_000 // shrink}ns"


def test_a_pause_that_outlasts_a_quick_run_is_measured_from_the_beginning() -> None:
    for shrink, settles in ((1, True), (10, False)):
        [scene] = File.read().matching("sata/pauses-2s", shrink)
        assert [("settle" in kind["measure"]) for kind in scene.kinds] == [settles, True]
    assert json.loads(arena("--scenes sata/pauses-2s --policies noop --quick --format json"))


def test_scenes_of_prefetches_have_a_cache_alone_too() -> None:
    [cached], [without] = (File.read().matching(f"sata-320/{n}") for n in ("prefetch-*", "flood"))
    assert all("cache" in scenario for scenario in [cached.scenario, *cached.kinds])
    assert not any("cache" in scenario for scenario in [without.scenario, *without.kinds])


def test_a_peer_runs_as_the_scenes_device_sets_it() -> None:
    file = File.read()
    assert file.set_policies() == ["iocost, set", "kyber, set", "bfq, set"]
    for scene in file.matching("*/flood"):
        for policy in file.set_policies():
            assert ":" in scene.spec(policy), scene.name
        assert scene.spec("kyber") == "kyber"


def test_a_groups_share_is_divided_among_its_members() -> None:
    of = [{"limits": {"group": "a"}}, {"count": 4, "limits": {"group": "b"}}, {"weight": 3}]
    groups = [{"name": "a", "limits": {"weight": 2}}, {"name": "b", "limits": {"weight": 1}}]
    assert shares(of, groups) == [2.0, 0.25, 0.25, 0.25, 0.25, 3.0]


def test_a_scene_with_an_unknown_key_is_refused() -> None:
    file = File.read()
    with pytest.raises(LabError, match="no key mesure"):
        scene_on(file.devices[0], {**file.scenes[0], "mesure": "1s"}, 1)


def test_peers_are_set_by_the_rule() -> None:
    # Flash takes a minute.
    for device in File.read().devices:
        if device["medium"] != "flash":
            assert peers.by_rule(device) == device["set"], device["name"]


# --- scores


def result(name: str, *values: tuple[float, float, float]) -> SceneResult:
    absent = dict.fromkeys(MEASURES)
    judged = [dict(zip(["throughput", "worst_share", "p99"], of, strict=True)) for of in values]
    figures = [Figures({**absent, **of}, 0.1, 1.0, False) for of in judged]
    return SceneResult(name, name.split("/")[0], figures)


def test_policies_stand_by_their_mean_regret_over_scenes() -> None:
    scenes = [
        result("a/x", (100.0, 0.5, 2.0), (50.0, 1.0, 1.0), (40.0, 0.9, 1.5)),
        result("b/x", (10.0, 1.0, 1.0), (10.0, 1.0, 1.0), (5.0, 0.5, 4.0)),
    ]
    # With the second seed, both scenes come out as the first one.
    board = scoreboard(["fast", "fair", "poor"], scenes, [scenes, [scenes[0]] * 2])
    assert [score.policy for score in board] == ["fair", "fast", "poor"]
    # Half of the throughput in one scene and one of three measures.
    assert board[0].mean == pytest.approx(0.5 / 3 / 2)
    assert board[0].worst == (0.5, "a/x", "throughput")
    assert board[0].by_device == pytest.approx({"a": 0.5 / 3, "b": 0.0})
    assert "p999" not in board[0].by_measure
    assert board[0].spread == pytest.approx(0.5 / 3 / 2)
    assert board[2].dominated == ["a/x", "b/x"]
    assert not board[0].dominated and not board[1].dominated


def test_the_distance_from_the_hull_is_what_no_weighting_excuses() -> None:
    # By hand: of the best, they reach (1, 1/2, 1/2), (1/2, 1, 1), 1/2 and 3/4 of each.
    every = [(100.0, 0.5, 2.0), (50.0, 1.0, 1.0), (50.0, 0.5, 2.0), (75.0, 0.75, 4.0 / 3.0)]
    assert result("a/x", *every).paretos == pytest.approx([0.0, 0.0, 0.25, 0.0])
    assert result("a/x", *((t, s, None) for t, s, _ in every)).pareto(2) == pytest.approx(0.25)
    assert result("a/x", *((t, None, None) for t, *_ in every)).pareto(2) is None
    assert [len(score.weightings(n)) for n in (2, 3)] == [21, 231]


def test_a_policy_that_is_better_by_a_hair_does_not_dominate() -> None:
    hair = result("a/x", (100.0, 0.5, 2.0), (100.5, 0.502, 1.99))
    assert not hair.is_dominated(0)
    clearly = result("a/x", (100.0, 0.5, 2.0), (102.0, 0.51, 1.9))
    assert clearly.is_dominated(0) and not clearly.is_dominated(1)
    # One measure alone dominates no policy.
    assert not result("a/x", (100.0, None, None), (102.0, None, None)).is_dominated(0)


def test_where_nobody_got_anything_nobody_did_worse() -> None:
    assert score.regret("worst_share", 0.0, 0.0) == 0.0
    assert score.regret("worst_share", 0.0, 0.5) == 1.0
    assert score.regret("p99", 4.0, 1.0) == 0.75


# --- the command


def test_markdown_has_a_column_for_each_kind_that_ran() -> None:
    line = "--scenes sata/equal-2,sata/late-flood,sata/pauses-50ms --policies noop,cscan --quick"
    text = arena(f"{line} --drawn-everyday 7:1 --format markdown")
    groups = "| policy | 1 scenes | 2 everyday scenes | late | pauses | 1 drawn everyday scenes"
    assert groups in text and "| policy | mean regret | drawn | pareto |" in text
    found = json.loads(arena(f"{line} --format json"))
    assert [scene["group"] for scene in found["everyday"]["scenes"]] == ["late", "pauses"]
    for of in found["everyday"]["scoreboard"]:
        assert of["mean_regret"] == pytest.approx(sum(of["regret_by_group"].values()) / 2)
    assert "drawn" not in found and len(found["scoreboard"]) == 2


def test_the_tables_of_the_pages_are_written_between_their_markers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).parents[2]
    (tmp_path / "docs").mkdir()
    shutil.copy(root / "docs/arena.md", tmp_path / "docs/arena.md")
    monkeypatch.setattr(tables, "FRONTIER", ["flood"])
    monkeypatch.setattr(tables, "DEVICES", ["sata"])
    player = Player(Laboratory(tmp_path / "kept", workers=0), [1])
    asked = f"{SMALL} --policies noop,cscan --drawn-everyday 7:1"
    found = command.play_all(args(*asked.split()), player)
    tables.write(found, player, File.read(), tmp_path / "docs")
    arena = (tmp_path / "docs/arena.md").read_text()
    for begin in ("scoreboard", "everyday", "frontier"):
        assert f"<!-- {begin}: begin -->" in arena and f"<!-- {begin}: end -->" in arena
    assert "\n| policy | 1 drawn everyday scenes" in arena
    assert "| fairway, isolation 0.4 | " in arena and "isolation 0.2" not in arena
    head = "| policy | mean regret | spread | everyday |"
    assert head in arena


def test_csv_has_a_line_for_each_scene_and_policy(capsys: pytest.CaptureFixture[str]) -> None:
    text = arena("--scenes sata/weights,disk/flood --policies noop,cscan --quick --format csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["scene"] for row in rows] == [*["sata/weights"] * 2, *["disk/flood"] * 2]
    assert rows[0]["p99"] == "" and float(rows[2]["regret_p99"]) >= 0.0
    assert "a tenth of each scene's time" in capsys.readouterr().err


OWN = """
import seekway

class Own(seekway.Policy):
    def decide(self, now_ns, device):
        return next(iter(self.queued.values()))
"""


def test_a_policy_in_python_takes_part(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    line = f"--scenes sata/flood --policies noop --policy {tmp_path}/own.py:Own --quick"
    [scene] = json.loads(arena(f"{line} --format json"))["scenes"]
    [noop, own] = scene["policies"]
    assert own["policy"].endswith("own.py:Own")
    equal(own["regret"], noop["regret"])


def test_all_has_the_policies_that_the_devices_set_but_for_a_load_of_ones_own() -> None:
    file = File.read()
    every = command.chosen_policies(args(), file)
    assert every[-3:] == file.set_policies() and "fairway" in every
    assert not set(file.set_policies()) & set(command.chosen_policies(args("own.toml"), file))
    more = args("--policies", "noop,cfq:quantum=4,slice_idle=0", "--policy", "noop")
    assert command.chosen_policies(more, file) == ["noop", "cfq:quantum=4,slice_idle=0"]


def test_the_page_has_figures_and_every_scene(tmp_path: Path) -> None:
    page = tmp_path / "arena.html"
    arena(f"--scenes sata/weights,disk/flood --policies noop,cscan --quick --report {page}")
    html = page.read_text()
    for part in (
        "<svg",
        "sata/weights",
        "disk/flood",
        "worst VM's share",
        "Scoreboard of 2 scenes",
    ):
        assert part in html, part
    assert "<script" not in html and 'src="' not in html


def test_the_list_runs_nothing() -> None:
    listed = json.loads(arena("--list --format json"))
    thousand = next(row for row in listed if row["scene"] == "nvme/equal-1000")
    assert (thousand["vms"], thousand["settle_s"], thousand["measured_s"]) == (1000, 0.2, 0.3)
    text = arena("--list --scenes disk/*")
    assert "disk/demo" in text and "nvme/" not in text
    assert "/drawn-02" in arena("--list --drawn 7:2")


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("--scenes nvme/nothing", "no such scene; there are nvme/flood"),
        ("--scenes disk/flood --policies cqf", "no policy 'cqf'; there are fairway"),
        ("--scenes disk/flood --policy cfq:quantun=4", "it has slice_idle"),
        ("--scenes disk/flood --policy none.py:Own", "No such file"),
        ("--scenes disk/flood --seeds 0", "at least 1"),
        ("--scenes disk/flood --report /nowhere/a.html", "its folder does not exist"),
        ("/nowhere/own.toml", "/nowhere/own.toml"),
    ],
)
def test_wrong_usage_is_refused(line: str, part: str) -> None:
    with pytest.raises(LabError, match=part):
        arena(line)


def test_axes_in_a_load_of_ones_own_are_refused(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    text = (RECORDED / "own.toml").read_text()
    own.write_text(text.replace('"intel-x25m-g2"', '["intel-x25m-g2", "intel-320"]'))
    with pytest.raises(LabError, match="2 runs: leave axes and cases out"):
        arena(f"{own} --policies noop")


@pytest.mark.parametrize("drawing", ["1:0", "some", "-1", "1:", "1:10001"])
def test_a_drawing_is_a_seed_and_a_count(drawing: str) -> None:
    with pytest.raises(SystemExit):
        args(f"--drawn={drawing}")
