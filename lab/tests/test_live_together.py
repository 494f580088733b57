"""together on real guests: reads, medians, targets and void rows."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from seekway_lab.live import runs, together
from seekway_lab.live.counters import Cpu
from seekway_lab.live.process import need
from seekway_lab.live.together import BUILD, DATABASE, FILE_SERVER, LOADS, VIDEO, HostLook, Plan
from seekway_lab.records import LabError

PLAN = Plan(
    Path("seekway"),
    Path("seekway-guest"),
    (together.Side("disk:k=1"), together.Side("disk:k=1"), together.Side("disk:k=2")),
    loads=(DATABASE, BUILD),
    rounds=3,
)


def window(iops: float, p99_ms: float, mib: float) -> dict[str, Any]:
    """A database with these figures, and a build with this much work in ten seconds."""
    compute = {"seconds": 10.0, "look_s": 0.01, "mib": 1000.0, "tag_cpu": 0.1, "migrate_cpu": 0.2}
    load = {"iops": iops, "mib_s": 1.0, "mean_ms": 1.0, "p99_ms": p99_ms, "busy": 0.1}
    guest = {"load": load, "compute": {**compute}, "usage": None, "tags": 0, "agent": None}
    return {
        "guests": [guest, {**guest, "load": None, "compute": {**compute, "mib": mib}}],
        "host": {"vcpus": [0.45, 0.45], "qemu": [0.02, 0.02], "daemons": 0.01, "busy": 0.96},
        "commands": 1000,
        "late": 10,
        "slices": 500.0,
    }


def round_(on: dict[str, Any]) -> dict[str, Any]:
    """Off and alone are alike: 100 IOPS, 50 ms and 50 MiB/s."""
    base = [window(100, 50, 500) for _ in range(3)]
    return {"off": base[0], "on": on, "alone": base[1:]}


def alike(iops: float, mib: float) -> list[dict[str, Any]]:
    return [round_(window(iops, 50, mib)) for _ in range(3)]


def judged(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return together.judge("disk", PLAN, rounds, [])


def test_medians_of_rounds_are_judged_by_the_private_disk() -> None:
    rounds = [round_(window(iops, p99, 490)) for iops, p99 in ((400, 40), (200, 54), (150, 90))]
    for each in rounds:
        each["alone"][0]["guests"][0]["load"]["iops"] = 80.0
        # The others' compute tasks meanwhile are not the build's own window.
        each["alone"][0]["guests"][1]["compute"]["mib"] = 1.0
    found = judged(rounds)
    database, build = found["guests"]
    assert (database["off"]["median"], database["on"]["median"]) == (100, 200)
    assert database["ratio"] == {"median": 2, "least": 1.5, "largest": 4}
    assert (database["alone"]["median"], database["progress_on"]["median"]) == (80, 2.5)
    assert database["progress_off"]["median"] == 1.25
    assert database["p99_over_private"]["median"] == 1.08
    assert (build["alone"]["median"], build["progress_on"]["median"]) == (50, 0.98)
    assert (build["off"]["median"], build["p99_over_private"]) == (50, None)
    assert build["compute_lost"]["median"] == pytest.approx(0.02)
    assert found["progress_on"] == pytest.approx((2.5 * 0.98) ** 0.5)
    assert found["geometric_mean"] == pytest.approx(1.96**0.5)
    assert (found["verdict"], found["worst"], found["void_rounds"]) == ("met", "build", 0)
    assert build["agents_vcpus"]["median"] == pytest.approx(0.03)
    assert found["on"]["others"]["median"] == pytest.approx(0.01)
    assert (found["on"]["mib_s"]["median"], found["on"]["late"]["median"]) == (1, 0.01)
    assert (found["device"], found["private_device"]) == ("disk:k=1", "disk:k=2")


def test_the_sentence_has_the_worst_guest_of_all_scenes() -> None:
    rounds = alike(300, 490)
    for each in rounds:
        each["off"]["guests"][0]["load"]["iops"] = 7.0
    assert together.sentence([judged(rounds), judged(alike(300, 480))]) == (
        "Every guest has at least 0.96 of what a disk of its own would give it; with everything "
        "off, at least 0.07."
    )
    for each in rounds:
        each["on"]["late"] = 11
    assert together.sentence([judged(rounds)]).endswith(". Void, and no result: disk.")


def test_each_miss_is_said() -> None:
    def verdicts(found: dict[str, Any]) -> list[str]:
        return [found["verdict"], *(guest["verdict"] for guest in found["guests"])]

    # No guest has less, and nothing is gained.
    found = judged(alike(100, 500))
    assert verdicts(found) == ["missed", "met", "met"]
    assert found["why"] == "geometric mean of progress 1.00, 1.00 with everything off"
    found = judged(alike(94, 474))
    assert verdicts(found) == ["missed", "missed", "missed"]
    assert found["why"].endswith("missed by database, build")
    assert judged(alike(300, 475))["verdict"] == "met"
    # The database's compute tasks, by more than a tenth.
    rounds = alike(300, 500)
    for each in rounds:
        each["on"]["guests"][0]["compute"]["mib"] = 890.0
    assert judged(rounds)["guests"][0]["why"] == "11 % of its compute lost (10 % at most)"
    # 16 readers in 500 slices: 8,000 moves are one for each.
    rounds = alike(300, 500)
    for each in rounds:
        each["on"]["guests"][0]["agent"] = {"moves": 16_800}
    database = judged(rounds)["guests"][0]
    assert database["moves_a_slice"]["median"] == 2.1
    assert database["why"] == "2.10 moves a slice (1.1 at most)"


def test_void_rounds_and_rows_say_nothing() -> None:
    rounds = alike(300, 500)
    rounds[0]["alone"][1]["late"] = 11
    found = judged(rounds)
    assert (found["verdict"], found["void_rounds"], found["counted_rounds"]) == ("met", 1, 2)
    rounds[1]["off"]["host"] |= {"daemons": 0.0, "busy": 1.0}
    found = judged(rounds)
    assert (found["verdict"], found["void_rounds"], found["counted_rounds"]) == ("void", 2, 3)
    assert all(guest["verdict"] == "void" for guest in found["guests"])
    assert "alone: 1.1 % of the commands later" in found["why"]
    assert "off: others had 6.0 % of the CPU" in found["why"]
    # 2 vCPUs for 16 processes and two compute tasks: 11.1 % each, of which 95 % is 10.6 %.
    rounds = alike(300, 500)
    for each in rounds:
        each["on"]["guests"][0]["load"]["busy"] = 0.108
    found = judged(rounds)
    assert (found["verdict"], [g["verdict"] for g in found["guests"]]) == ("void", ["void", "met"])


def test_tables_have_a_column_for_each_guest() -> None:
    guests, host = map(str, together.shown(judged(alike(300, 500)), PLAN))
    assert "|  | database | build | geometric mean |" in guests
    assert "| progress on, × | 3 | 1 | 1.73 |" in guests
    assert "on: `--emulate disk:k=1 --policy noop`" in guests
    assert "| rest of QEMU, % CPU | 4 | 4 | 4 |" in host


def test_a_private_disk_is_a_fourth_of_the_host() -> None:
    off, on, private = together.sides(*together.SCENES["7200 rpm"])
    assert (off.device, private.device) == ("seagate-1tb-7200:k=1", "seagate-1tb-7200:k=4")
    assert on.cache and private.cache and on.cache[0] == 4 * private.cache[0]
    assert " ".join(off.serve) == "--emulate seagate-1tb-7200:k=1 --policy noop"
    assert on.serve[4:] == ["--cache", "262144KiB", "--prefetch", "vio:interval=continuous"]


def test_every_window_reads_its_own_part_of_its_side() -> None:
    for load in (DATABASE, FILE_SERVER, VIDEO):
        off, on, alone = (together.fio(load, side, 0, 7) for side in range(3))
        assert off.replace("/vda", "/vdb") == on != off, "the other disk has as much work"
        assert off.replace("/vda", "/vdc") == alone, "and the private one"
        assert f"--numjobs={load.processes} " in off
    for n in (0, 1):
        assert f"--offset={n << 31} " in together.fio(VIDEO, 1, n, 7)
    assert "p3j$jobnum/test_file" in together.fio(FILE_SERVER, 1, 3, 7)
    # A film for each round.
    assert together.IMAGE_BYTES // together.FILM_BYTES >= together.ROUNDS


def test_the_file_server_has_files_for_each_round(tmp_path: Path) -> None:
    image = tmp_path / "files.img"
    together.make_image(image, 2, 1)
    command = [need("debugfs", "e2fsprogs"), "-R", "ls -p /p1j1", str(image)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert listed.count("/test_file.") == together.FILES
    assert image.stat().st_size == together.IMAGE_BYTES


def test_compute_tasks_and_agents_are_counted() -> None:
    was = {"seconds": 100.0, "look_s": 0.02, "mib": 4.0, "tag_cpu": 0.12, "migrate_cpu": 0.22}
    now = {**was, "seconds": 102.0, "look_s": 0.5, "mib": 14.0}
    found = together.progress(was, now)
    assert (found["seconds"], found["mib"], found["look_s"], found["tag_cpu"]) == (2, 10, 0.5, 0)
    with pytest.raises(LabError, match="has ended in the window"):
        together.progress(now, was)


def test_an_applications_figures_are_fios() -> None:
    times = {"mean": 2_000_000.0, "percentile": {"99.000000": 36_000_000}}
    mixed = {"iops": 10.0, "bw_bytes": 1 << 20, "clat_ns": times}
    found = together.load_figures({"jobs": [{"usr_cpu": 1.5, "sys_cpu": 2.5, "mixed": mixed}]})
    assert found == {"iops": 10, "mib_s": 1, "mean_ms": 2, "p99_ms": 36, "busy": 0.04}


def test_shares_are_of_all_processors() -> None:
    def look(seconds: int, busy: int, qemu: int, vcpus: int, daemons: int) -> HostLook:
        return HostLook(seconds, Cpu(busy, 200 * seconds), [qemu], [vcpus], daemons)

    found = look(1, 100, 500, 300, 40).until(look(11, 2000, 1600, 1300, 140), processors=2)
    assert (found["vcpus"], found["daemons"]) == ([0.5], 0.05)
    assert (found["qemu"][0], found["busy"]) == pytest.approx((0.05, 0.95))
    assert together.others(found) == pytest.approx(0.35)
    # Clocks of different kinds do not make it negative.
    assert together.others({**found, "busy": 0.5}) == 0


def test_the_guests_are_those_of_an_ordinary_host() -> None:
    assert [load.name for load in LOADS] == ["database", "files", "video", "build"]
    assert together.process_max(DATABASE) == pytest.approx(2 / 18)
    assert together.process_max(VIDEO) == together.process_max(FILE_SERVER) == 0.5


def test_scenes_are_chosen_by_name() -> None:
    def options(**more: Any) -> runs.Options:
        return runs.Options(together.NAME, Path("seekway"), Path("seekway-guest"), **more)

    assert together.chosen(options()) == ["SATA SSD", "7200 rpm"]
    assert together.chosen(options(scenes="7200*")) == ["7200 rpm"]
    with pytest.raises(LabError, match="--scenes tape: none; live together has SATA SSD"):
        together.chosen(options(scenes="tape"))
    with pytest.raises(LabError, match="it has noop off and fairway on"):
        together.run(options(policy=["cfq"]))
