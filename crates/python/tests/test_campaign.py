"""Campaigns: studies, and that no kill loses or doubles a cell."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import seekway
from distributed import LocalCluster
from seekway.campaign import Campaign, Results, Study
from seekway.campaign.run import _Run, cluster

VMS = ["name=a,app=sysbench:mode=RR", "name=b,app=sysbench:mode=SR"]
SMALL = {
    "axes": {"vms": [VMS], "policy": ["noop", "cfq"], "seed": [1, 2, 3]},
    "fixed": {"until": "1s", "alone": "never"},
}
#: 120 cells, which take some ms each: several batches, however fast the machine.
LARGE = {
    "axes": {"vms": [VMS], "policy": ["fairway", "cfq"], "seed": list(range(1, 61))},
    "fixed": {"until": "20s", "alone": "never"},
}


def without_clock(results: Results) -> dict[str, list]:
    return results.to_arrow().drop_columns("wall_s").to_pydict()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list]:
    return without_clock(Campaign(LARGE).run(tmp_path_factory.mktemp("large"), workers=1))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"unknown": 1}, "unknown: no key of a study"),
        ({"combine": "all"}, "combine: 'all'"),
        ({"axes": {}}, "axes: a study has at least one"),
        ({"axes": {"policy": ["noop"]}}, "no load"),
        ({"axes": {"vms": [VMS], "policy": []}}, "axes.policy: no values"),
        ({"axes": {"vms": [VMS], "x": {"min": 1, "max": 2}}}, "a range needs combine"),
        ({"axes": {"vms": [VMS], "x": {"min": 2, "max": 1}}}, "min below max"),
        ({"axes": {"traces": ["absent*"]}}, "absent\\*: no such file"),
        ({"combine": "random"}, "samples: their number"),
        ({"samples": 3}, "samples: their number"),
        ({"axes": {"vms": [VMS], "seed": list(range(1001)), "until": ["1s"] * 1000}}, "1001000"),
        ({"combine": "zip"}, "give equally many"),
    ],
)
def test_a_wrong_study_says_which_key(change: dict, says: str, tmp_path: Path) -> None:
    with pytest.raises(seekway.SeekwayError, match=says):
        Study.from_dict(SMALL | change, tmp_path)


def test_a_file_that_is_no_study(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text("axes = [\n")
    with pytest.raises(seekway.SeekwayError, match=r"study\.toml: .*(line|end of document)"):
        Study.from_file(path)
    with pytest.raises(seekway.SeekwayError, match="No such file"):
        Study.from_file(tmp_path / "absent.toml")


def test_every_way_to_combine() -> None:
    axes = {"vms": [VMS], "policy": ["cfq:slice_idle={idle}ms"], "idle": [1, 2, 4], "seed": [1, 2]}
    grid = Study.from_dict({"axes": axes}).cells()
    assert len(grid) == 6
    assert {cell.axes["policy"] for cell in grid} == {f"cfq:slice_idle={n}ms" for n in (1, 2, 4)}
    zipped = {"vms": [VMS] * 2, "policy": ["noop", "cfq"], "seed": [1, 2]}
    assert len(Study.from_dict({"axes": zipped, "combine": "zip"}).cells()) == 2
    ranged = axes | {"idle": {"min": 1, "max": 9, "integer": True}}
    for combine in ("random", "latin"):
        study = {"axes": ranged, "combine": combine, "samples": 8, "seed": 5}
        first, again = Study.from_dict(study).cells(), Study.from_dict(study).cells()
        assert [cell.key for cell in first] == [cell.key for cell in again]
        other = Study.from_dict(study | {"seed": 6}).cells()
        assert {cell.key for cell in first} != {cell.key for cell in other}


def test_a_latin_hypercube_has_one_sample_in_each_slice() -> None:
    axes = {"vms": [VMS], "policy": ["noop"], "time_scale": {"min": 1, "max": 101}}
    study = Study.from_dict({"axes": axes, "combine": "latin", "samples": 50, "seed": 1})
    slices = sorted(int((point["time_scale"] - 1) // 2) for point in study.points())
    assert slices == list(range(50))


def test_a_cell_is_named_by_all_its_inputs(tmp_path: Path) -> None:
    def key(**change: object) -> str:
        study = {"axes": {"vms": [VMS], "policy": "noop", "seed": 1, "until": "1s", **change}}
        (cell,) = Study.from_dict(study).cells()
        return cell.key

    changes = [{}, {"policy": "cfq"}, {"seed": 2}, {"until": "2s"}, {"device": "intel-320"}]
    changes.append({"vms": [VMS[:1]]})
    assert len({key(**change) for change in changes}) == len(changes)

    def traced(path: Path, text: str) -> str:
        path.write_text(text)
        (cell,) = Study.from_dict({"axes": {"traces": [str(path)]}}).cells()
        return cell.key

    first = traced(tmp_path / "a.trace", "0 0 0 8 1\n")
    assert traced(tmp_path / "b.trace", "0 0 0 8 1\n") == first, "the path is no input"
    assert traced(tmp_path / "c.trace", "0 0 8 8 1\n") != first


def test_failed_cells_are_rows_and_the_rest_goes_on(tmp_path: Path) -> None:
    study = SMALL | {"axes": SMALL["axes"] | {"policy": ["noop", "nope", "cfq"]}}
    results = Campaign(study).run(tmp_path, workers=2)
    assert (len(results), len(results.errors), results.doubled) == (9, 3, 0)
    assert all(axes["policy"] == "nope" and "no policy" in e for axes, e in results.errors)
    made = seekway.compare(vms=VMS, policies="cfq", until="1s", alone="never").runs[0]
    frame = results.to_pandas()
    row = frame[(frame.policy == "cfq") & (frame.seed == 1)].iloc[0]
    assert (row.iops, row.p99_ms) == (made["iops"], made["response_ms"]["p99"])
    assert [vm["name"] for vm in row.vms] == ["a", "b"]
    assert row.read_p99_ms == made["reads"]["response_ms"]["p99"]
    assert row.vms[0]["reads"] == made["vms"][0]["reads"]["requests"]
    assert len(Campaign(study).run(tmp_path, workers=1)) == 9, "nothing is run again"


def test_the_same_with_more_workers(tmp_path: Path, undisturbed: dict) -> None:
    assert without_clock(Campaign(LARGE).run(tmp_path, workers=8)) == undisturbed


def test_killed_workers_lose_nothing(
    tmp_path: Path, undisturbed: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each of the first three batches a worker is killed."""
    killed: list[int] = []
    take = _Run._take

    def taking(self: _Run, rows: list) -> None:
        take(self, rows)
        if len(killed) < 3:
            pid = next(pid for pid in workers_of(os.getpid()) if pid not in killed)
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(_Run, "_take", taking)
    results = Campaign(LARGE).run(tmp_path, workers=2)
    assert len(killed) == 3 and results.doubled == 0
    assert without_clock(results) == undisturbed


def workers_of(pid: int) -> list[int]:
    """Processes of Dask's workers below a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            line = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ")
            if b"spawn_main" in line:
                found.append(int(child))
    return found


#: A campaign that kills itself and its workers as a file gets its name, after some whole files.
DYING = """
import os, signal, sys
from seekway.campaign import cli, run
run.BATCH_CELLS, run.FLUSH_S = 5, 0
whole = int(sys.argv.pop(1))
def hook(event, arguments):
    global whole
    if event == "os.rename" and str(arguments[1]).endswith(".parquet"):
        if whole == 0:
            os.killpg(0, signal.SIGKILL)
        whole -= 1
sys.addaudithook(hook)
sys.exit(cli.main())
"""


def test_a_killed_campaign_goes_on(tmp_path: Path, undisturbed: dict) -> None:
    study, out = tmp_path / "study.toml", tmp_path / "out"
    write_study(study, LARGE)
    arguments = ["run", study, "--out", out, "--workers=2", "--quiet"]
    rows = 0
    for whole in (0, 2, 3):
        line = [sys.executable, "-c", DYING, str(whole), *arguments]
        assert subprocess.run(line, start_new_session=True).returncode == -signal.SIGKILL
        before, rows = rows, len(Results(out))
        assert before + whole <= rows <= before + 5 * whole, "what was whole is there, once"
    (out / ".cut-short.parquet.1").write_bytes(b"PAR1")
    subprocess.run([sys.executable, "-m", "seekway", "campaign", *arguments], check=True)
    assert without_clock(Results(out)) == undisturbed


def write_study(path: Path, study: dict) -> None:
    """TOML takes JSON's lists and texts."""
    parts = []
    for section in ("axes", "fixed"):
        lines = [f"{key} = {json.dumps(value)}" for key, value in study[section].items()]
        parts.append(f"[{section}]\n" + "\n".join(lines))
    path.write_text("\n".join(parts) + "\n")


def test_a_full_disk(tmp_path: Path) -> None:
    """No file may grow beyond 2,000 bytes: the first batch of results cannot be written."""
    study, out = tmp_path / "study.toml", tmp_path / "out"
    write_study(study, SMALL)
    line = [sys.executable, "-m", "seekway", "campaign", "run", study, "--out", out, "--workers=1"]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    ran = subprocess.run(line, preexec_fn=limit, capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 2, ran.stderr
    assert f"{out}: " in ran.stderr and "run again" in ran.stderr
    assert [path.name for path in out.iterdir()] == ["study.json"]
    subprocess.run(line, check=True, capture_output=True)
    assert (len(Results(out)), Results(out).doubled) == (6, 0)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(seekway.SeekwayError, match=r"x\.parquet: .*delete it"):
        Results(tmp_path)


def test_workers_that_end_late_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = LocalCluster.close

    def late(self: LocalCluster, timeout: float | None = None) -> None:
        closed(self)
        raise asyncio.TimeoutError(f"timed out after {timeout} s.")

    monkeypatch.setattr(LocalCluster, "close", late)
    with cluster(workers=1) as client:
        assert client.submit(abs, -3).result() == 3


def test_a_scheduler_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(seekway.SeekwayError, match="6 cells are left; run again"):
        Campaign(SMALL).run(tmp_path, scheduler="tcp://127.0.0.1:1", patience_s=0.2)


def test_the_command(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    write_study(study, SMALL)

    def call(*arguments: object) -> subprocess.CompletedProcess:
        line = [sys.executable, "-m", "seekway", "campaign", *map(str, arguments)]
        return subprocess.run(line, capture_output=True, text=True)

    assert "6 cells, 0 done" in call("cells", study).stderr
    ran = call("run", study, "--workers", 1)
    assert (ran.returncode, ran.stdout) == (0, f"{tmp_path / 'study.results'}: 6 cells, 0 failed\n")
    assert "6 cells, 6 done" in call("cells", study).stderr
    shown = call("show", tmp_path / "study.results").stdout
    assert "noop" in shown and "cfq" in shown
    assert call("run", tmp_path / "absent.toml").returncode == 2
    assert call("run", study, "--workers", 0).returncode == 2
    assert call("show", tmp_path / "absent").returncode == 2
