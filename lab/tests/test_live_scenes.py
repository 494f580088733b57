"""Live experiments of scenarios: guests' settings, their output, and verdicts."""

from pathlib import Path
from typing import Any

import pytest
import seekway

from seekway_lab.live import pregather, procs, runs, scale, scenes, twin, vpt
from seekway_lab.papers.cats import rank
from seekway_lab.papers.cats.figures import THREE
from seekway_lab.records import LabError
from seekway_lab.scenarios import Table


def test_a_guest_is_told_the_simulators_own_load():
    vm = {
        "name": "web",
        "guest": {"image": "2GiB", "tags": True, "vcpus": 1},
        "load": [{"app": "sysbench", "mode": "SR", "size": "64MiB"}, {"app": "sysbench"}],
    }
    text = twin.vm_text(vm)
    assert text == (
        "name=web,image=2GiB,tags=true,vcpus=1,app=sysbench:mode=SR,size=64MiB,app=sysbench"
    )
    assert twin.image_bytes(vm) == 2 << 30
    device = {"profile": "seagate-1tb-7200"}
    made = twin.figures(twin.simulate({"vm": [vm], "device": device}, "cfq", 1, 0, 0.2))
    compared = seekway.compare(
        vms=[text],
        device=device["profile"],
        policies=["cfq"],
        until="200ms",
        progress=False,
    )
    assert made["iops"] * 0.2 == pytest.approx(compared.table[0]["requests"])


def test_a_profile_is_emulated_by_name_and_by_text(tmp_path: Path):
    assert scenes.emulated("linear-15k4", 8, tmp_path) == "linear-15k4:k=8"
    assert scenes.emulated("linear-15k4:segments=8", 8, tmp_path) == "linear-15k4:segments=8,k=8"
    assert scenes.emulated("name = 1\n", 8, tmp_path) == f"{tmp_path}/device.toml:k=8"
    assert (tmp_path / "device.toml").read_text() == "name = 1\n"


@pytest.mark.parametrize("name", scenes.EXPERIMENTS)
def test_every_policy_runs_in_the_twin(name: str):
    about = scenes.EXPERIMENTS[name]
    scene = scenes.of_study(about.paper, name, about.case)
    names = [vm["name"] for vm in scene.vms]
    assert names == (["guest"] if name == "cats-direct" else ["vm1", "vm2", "vm3"])
    for policy in about.policies:
        found = twin.figures(twin.simulate(scene.scenario, policy, 1, 0, 0.05))
        assert len(found["vms"]) == len(scene.vms) and found["mib_s"] > 0, policy


def load(requests: int, mean: float, stdev: float, mib_s: float = 1) -> Table:
    response = {"mean": mean, "stdev": stdev, "p99": 9.0}
    about = {"requests": requests, "iops": 10.0, "mib_s": mib_s, "tagged": True}
    return {**about, "response_ms": response}


def test_responses_of_all_guests_are_pooled():
    assert scenes.pooled([load(1, 4, 0), load(3, 8, 0)]) == (7, pytest.approx(3**0.5))
    assert scenes.pooled([load(0, 0, 0)]) == (0, 0)


def live_row(policy: str, real: list[Table], simulated_ms: float) -> Table:
    vms = [{"mib_s": 2, "iops": 20, "response_ms": simulated_ms, "p99_ms": 9} for _ in real]
    simulated = {"mib_s": 4, "iops": 40, "response_ms": simulated_ms, "response_stdev_ms": 1}
    live = {"loads": real, "emulated": None, "host_busy": 0.5}
    return scenes.row(policy, live, {**simulated, "service_ms": 1, "vms": vms}, [4, 4])


def test_a_row_has_fairness_against_what_each_has_alone():
    made = live_row("cfq", [load(1, 5, 1, 3), load(1, 5, 1, 1)], 5)
    assert made["live"]["vms_mib_s"] == [3, 1]
    assert (made["live"]["phi"], made["live"]["jain"]) == (2, pytest.approx(0.8))
    assert (made["simulated"]["phi"], made["simulated"]["jain"]) == (0, 1)
    assert made["late_commands"] == 0
    alone = scenes.fairness([], [3.0])
    assert alone == {"phi": None, "jain": None, "vms_mib_s": [3.0]}


def test_both_orders_of_the_policies_are_told():
    rows = [live_row("a", [load(1, 5, 1)] * 2, 5), live_row("b", [load(1, 3, 1)] * 2, 3)]
    assert scenes.order(rows) == "Mean response, real guests and simulator alike: b < a."
    rows[1]["simulated"]["response_ms"] = 8
    assert scenes.order(rows) == "Mean response, real guests: b < a; simulator: a < b."
    scene = scenes.Scene([{"name": "x"}, {"name": "y"}], "cheetah-15k4")
    both, each = map(str, scenes.tables("vmcd-fair-sizes", scene, rows, 5))
    assert "| a | 2 | 4 |" in both and "| y | b | 1 | 2 |" in each


# --- pregather-read


def test_rates_are_read_from_what_sysbench_says():
    said = (
        "Threads started!\n\n"
        "[ 1s ] reads: 12.34 MiB/s writes: 0.00 MiB/s fsyncs: 0.00/s latency (ms,95%): 1.234\n"
        "noise\n"
        "[ 2s ] reads: 0.50 MiB/s writes: 0.00 MiB/s fsyncs: 0.00/s latency (ms,95%): 1.234\n"
    )
    assert pregather.sysbench_rates(said) == [12.34, 0.5]


def test_seeks_are_counted_between_changes_of_policy():
    journal = """seekway-journal 2 policy=cfq depth=1
0 issue 0 R 0+8
1 switch a
2 submit 0 R sync 8+8 tag=0 token=0
2 issue 0 R 8+8
3 issue 1 R 100+8
4 switch b: issuer=vm
5 issue 1 R 0+8
""".splitlines()
    assert pregather.zero_seeks(journal, 2) == [0.5, 0]
    with pytest.raises(LabError, match="3 stretches of 1"):
        pregather.zero_seeks(journal, 1)


def status(reads: int, **device: Any) -> Table:
    disk = {"name": "vm1", "ops": {"read": {"requests": reads, "bytes": reads << 20, "errors": 0}}}
    counts = {"commands": reads * 2, "waits_tried": 0, "waits_paid": 0, "held_ms": {}}
    return {"devices": [{"disks": [disk], "emulated": {"late": 0}, **counts, **device}]}


def test_a_window_is_the_difference_of_two_statuses():
    made = pregather.moved(status(10), status(50, held_ms={"idle": 3, "batch": 4}), 2.0)
    assert (made["mib_s"], made["vms"][0]["iops"], made["kib_per_command"]) == (20, 20, 512)
    assert made["held_ms"] == 7
    failed = status(50)
    failed["devices"][0]["disks"][0]["ops"]["read"]["errors"] = 2
    with pytest.raises(LabError, match="vm1: 2 reads failed"):
        pregather.moved(status(10), failed, 2.0)


def test_the_twin_has_the_guests_images_and_applications():
    made = twin.simulate(pregather.scenario(), "cfq", 1, 0, 1)
    assert [vm["mib_s"] > 0 for vm in twin.figures(made)["vms"]] == [True] * 3
    assert made.vms.to_pandas().first_sector.min() >= pregather.PLACE
    assert 0 < twin.zero_seeks(made) < 1


# --- vio-procs


def test_what_readers_say_is_read():
    said = (
        "cpu  100 0 100 800 0 0 0 0 0 0\ncpu  250 0 250 900 100 0 0 0 0 0\n"
        '{"jobs": [{"read": {"bw_bytes": 1048576}}]}'
    )
    assert procs.parsed(said) == (1, 0.6)
    nothing = said.replace("1048576", "0")
    for bad in [nothing, 'cpu  1 0 1 1\ncpu  1 0 1 1\n{"jobs": []}', "cpu  1 0 1 1\n"]:
        with pytest.raises((ValueError, LookupError)):
            procs.parsed(bad)


def test_every_way_is_a_prefetcher_and_three_are_named():
    for prefetch, tagged, window in procs.WAYS:
        row = {"processes": 1, "prefetch": prefetch, "tagged": tagged, "read_ahead_kb": window}
        assert procs.simulated(row, 1, 1)["mib_s"] > 0, prefetch
    assert procs.WAYS[procs.NONE] == ("none", False, 128)
    assert procs.WAYS[procs.VIO][:2] == ("vio", True)
    assert "continuous" in procs.WAYS[procs.OURS][0] and procs.WAYS[procs.OURS][1]


def rows_of(mib_s: list[float]) -> list[Table]:
    return [
        {
            "processes": 1,
            "prefetch": prefetch,
            "tagged": tagged,
            "read_ahead_kb": window,
            "live": {"mib_s": rate, "accuracy": 0.0, "cost": 0.0},
            "simulated": {"mib_s": rate, "accuracy": 0.0, "cost": 0.0},
            "tags": 0,
            "guest_busy": 0.5,
            "host_busy": 0.5,
            "commands": 1000,
            "late_commands": 10,
        }
        for (prefetch, tagged, window), rate in zip(procs.WAYS, mib_s, strict=True)
    ]


def verdicts(rows: list[Table]) -> list[str]:
    procs.judge(rows)
    return [row["verdict"] for row in rows]


def test_rows_are_judged_unless_drive_or_host_failed_them():
    good = [100.0, 90, 90, 90, 110, 109, 90]
    assert verdicts(rows_of(good)) == ["measured"] * 4 + ["met", "met", "measured"]
    slower = verdicts(rows_of([100.0, 100, 100, 100, 110, 100, 100]))
    assert slower[procs.VIO : procs.OURS + 1] == ["met", "missed"], "worse than half a second"
    late = rows_of(good)
    late[procs.VIO]["late_commands"] = 11
    assert verdicts(late)[procs.VIO : procs.OURS + 1] == ["void", "void"]
    full = rows_of(good)
    full[procs.NONE]["host_busy"] = 0.96
    found = verdicts(full)
    assert [found[n] for n in (procs.NONE, 1, procs.VIO, procs.OURS)] == [
        "void",
        "measured",
        "void",
        "void",
    ]
    assert "none: host CPU 96 % busy" in full[procs.OURS]["why"]
    assert "| vio, tags | 110 | 110 | 1.1 | 1.1 |" in str(procs.table(full, 8))


# --- vpt-rank


def test_every_target_has_the_load_of_the_simulators_study():
    by_name = {one.name: one.table for one in rank.scenarios()}
    models = [rank.REAL, rank.FITTED_LINE, rank.FITTED_LINE, rank.REAL]
    for target, model in zip(vpt.TARGETS, models, strict=True):
        theirs, ours = by_name[f"disk, direct: {model}"], target.scene.scenario
        assert ours["vm"] == theirs["vm"]
        if target.line:
            assert ours["device"]["profile"]["linear"] == theirs["device"]["profile"]["linear"]
        else:
            assert ours["device"]["profile"] == theirs["device"]["profile"]
        assert ours["device"]["slow"] == target.k


def test_what_is_measured_has_no_k_in_it():
    emulated = {"commands": 200, "late": 1, "service_ms": 8.4, "added_ms": 0.4}
    live = {"loads": [load(3200, 320, 9, 0.5)], "emulated": emulated, "host_busy": 0.5}
    made = vpt.window(live, 8)
    assert (made["response_ms"], made["sectors_ms"], made["late"]) == (40, 8.192, 0.005)
    assert (made["service_ms"], made["added"]) == (pytest.approx(1.05), pytest.approx(0.05))


POLICIES = vpt.RANKINGS[0]


def window(response_ms: float, **changes: Any) -> Table:
    made = {"service_ms": response_ms / 50, "response_ms": response_ms}
    made |= {"sectors_ms": 400 / response_ms, "added": 0.02, "late": 0.0, "host_busy": 0.3}
    return {**made, **changes}


def on(
    target: vpt.Target,
    responses: list[list[float]],
    ranking: vpt.Ranking = POLICIES,
    **changes: Any,
) -> list[Table]:
    """The schedulers of a ranking on a target, by their responses window by window."""
    return [
        vpt.row(target, ranking, scheduler, [window(one, **changes) for one in each])
        for scheduler, each in zip(ranking.every, responses, strict=True)
    ]


def of_response(rows: list[Table]) -> Table:
    """The only prediction of the responses."""
    [found] = [one for one in vpt.predictions(rows) if one["measure"] == "response"]
    return found


REAL = [[40.0, 41], [60, 61], [120, 130]]
RIGHT = [[50.0, 51], [70, 71], [110, 111]]
#: What is only shown lies between those that are ranked.
SHOWN = [[55.0, 200]]


@pytest.mark.parametrize("ranking", vpt.RANKINGS)
@pytest.mark.parametrize(
    ("target", "responses", "verdict"),
    [
        (vpt.LITERAL, RIGHT, (2, "holds")),
        (vpt.TARGETS[1], RIGHT, (2, "measured")),
        (vpt.LITERAL, [[50, 72], [70, 71], [90, 95]], (1, "in part")),
        (vpt.LITERAL, [[90, 91], [70, 71], [95, 99]], (0, "refuted")),
    ],
)
def test_a_rank_holds_when_every_window_has_it(
    ranking: vpt.Ranking,
    target: vpt.Target,
    responses: list[list[float]],
    verdict: tuple[int, str],
):
    shown = SHOWN * len(ranking.shown)
    rows = on(vpt.TARGETS[0], REAL + shown, ranking) + on(target, responses + shown, ranking)
    found = of_response(rows)
    assert (found["right"], found["verdict"]) == verdict
    assert found["errors"][2] == pytest.approx(sum(responses[2]) / 250 - 1)
    row = vpt.record(found)
    assert row["row"] == f"{target.name}: rank of {ranking.name} by response"
    assert (row["verdict"], row["paper"]) == (verdict[1], "1" if target == vpt.LITERAL else "")
    assert row["why"] == f"right in {verdict[0]} of 2 windows"


@pytest.mark.parametrize("late", ["disk", "line"])
def test_a_rank_is_void_when_a_window_of_either_side_is_late(late: str):
    guests = vpt.RANKINGS[1]
    sides = [on(vpt.TARGETS[0], REAL + SHOWN, guests), on(vpt.LITERAL, RIGHT + SHOWN, guests)]
    side = sides[late == "line"]
    # Whatever is only shown voids nothing.
    side[3] = vpt.row(vpt.LITERAL, guests, "none", [window(55, late=0.5)] * 2)
    assert of_response(sides[0] + sides[1])["verdict"] == "holds"
    target = vpt.LITERAL if late == "line" else vpt.TARGETS[0]
    side[1] = vpt.row(target, guests, "bfq", [window(65), window(66, late=0.02)])
    found = of_response(sides[0] + sides[1])
    assert (found["right"], found["verdict"], found["void"]) == (2, "void", {target.name: ["bfq"]})
    row = vpt.record(found)
    why = f"right in 2 of 2 windows; above 1 % late on {target.name} (bfq)"
    assert (row["verdict"], row["why"]) == ("void", why)


def test_rankings_do_not_mix():
    rows = [
        row
        for target, responses in [(vpt.TARGETS[0], REAL), (vpt.LITERAL, RIGHT)]
        for ranking in vpt.RANKINGS
        for row in on(target, responses + SHOWN * len(ranking.shown), ranking)
    ]
    found = [one for one in vpt.predictions(rows) if one["measure"] == "response"]
    assert [one["ranking"] for one in found] == [one.name for one in vpt.RANKINGS]
    assert [one["verdict"] for one in found] == ["holds", "holds"]
    assert "mq-deadline" in str(vpt.figures_table(rows, 4))


def test_the_guests_schedulers_stand_above_a_policy_that_leaves_the_order():
    policies, guests = vpt.RANKINGS
    assert policies.window("deadline", 3) == scenes.Window("deadline", 3)
    assert guests.window("bfq", 3) == scenes.Window("noop", 3, elevator="bfq")
    assert scenes.elevator("none") == "echo none >/sys/block/vda/queue/scheduler"
    assert "echo 256 >/sys/block/vda/queue/nr_requests" in scenes.elevator("bfq")


def test_what_the_throttle_adds_is_judged_and_late_commands_void_it():
    def verdict(added: float | None, late: float) -> str:
        windows = [window(40, added=added, late=late)]
        return str(vpt.row(vpt.TARGETS[0], POLICIES, THREE[0], windows)["verdict"])

    assert verdict(0.05, 0.01) == "met"
    assert verdict(0.06, 0) == "missed"
    assert verdict(0.0, 0.02) == "void"
    assert verdict(None, 0) == "measured"


def test_what_has_no_service_predicts_none():
    bare = on(vpt.TARGETS[3], [[6.0, 6], [5, 5], [4, 4]], service_ms=None, added=None)
    rows = on(vpt.TARGETS[0], [[40.0, 40], [60, 60], [120, 120]]) + bare
    found = vpt.predictions(rows)
    assert [(p["measure"], p["right"]) for p in found] == [("response", 0), ("throughput", 0)]
    assert "| – |" in str(vpt.figures_table(rows, 4)) and "0 of 2" in str(vpt.ranks_table(found))


# --- vpt-scale


def scaled(ks: list[float], late: float = 0.0, case: int = 1, others: float = 0.0) -> Table:
    windows = [
        {"k": k, "changes": [], "commands": 9, "late": late, "host_busy": 1.0, "others": others}
        for k in ks
    ]
    return scale.row(scale.CASES[case], windows)


@pytest.mark.parametrize(
    ("ks", "stable", "verdict"),
    [
        ([1, 2, 4.4, 4.4, 4.4], 4.4, "holds"),
        ([4.4, 4.4, 4.4, 4.4, 2.2], None, "refuted"),
        ([1, 2, 4.4, 2.2, 4.4], None, "refuted"),
    ],
)
def test_k_is_stable_when_the_last_windows_end_with_the_same(
    ks: list[float], stable: float | None, verdict: str
):
    found = scaled(ks)
    assert (found["stable_k"], found["verdict"]) == (stable, verdict)
    row = scale.record(found)
    assert (row["row"], row["verdict"]) == (f"{scale.CASES[1].name}: k", verdict)
    assert float(row["largest"]) == max(ks[-3:])
    assert f"| {', '.join(map(runs.number, ks))} |" in str(scale.table([found], 20))


def test_the_load_outlasts_the_windows():
    [vm] = vpt.TARGETS[0].scene.vms
    assert "processes=50" in twin.vm_text(scale.endless(vm))
    assert f"requests={scale.REQUESTS}" in twin.vm_text(scale.endless(vm))


def test_a_stable_k_lets_few_commands_be_late():
    assert scaled([1, 2, 4, 4, 4], late=0.01)["verdict"] == "holds"
    assert scaled([1, 2, 4, 4, 4], late=0.011)["verdict"] == "in part"
    early = scaled([1, 2, 4, 4, 4])["windows"]
    early[1]["late"] = 0.9
    assert scale.row(scale.CASES[1], early)["verdict"] == "holds", "k is being found"


def test_k_stays_1_where_the_image_is_fast_enough():
    [fast] = [n for n, case in enumerate(scale.CASES) if case.is_fast]
    assert scaled([1.0] * 5, case=fast)["verdict"] == "holds"
    assert scaled([1, 2, 2, 2, 2], case=fast)["verdict"] == "refuted"


def test_k_beside_other_work_on_the_machine_says_nothing():
    assert scaled([1, 2, 4, 4, 4], others=0.05)["verdict"] == "holds"
    void = scaled([1, 2, 4, 4, 4], others=0.06)
    assert void["verdict"] == "void" and void["why"].startswith("others had 6.0 % of the CPU; k 1")
