"""noisy: judgement of given rounds, and a real round. Its figures are not looked at."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seekway_lab.live import frontend, noisy, process, runs
from seekway_lab.live.frontend import Load
from seekway_lab.records import LabError

LAB = Path(__file__).parents[1]
DISK = noisy.Scene("disk", "flood", Path("/"), noisy.MIB, ["noop", "fairway"])
DRIVE = noisy.Scene("intel-x25m-g2", "flood", Path("/"), noisy.MIB, ["noop", "fairway"])


def options(**changes: Any) -> runs.Options:
    return runs.Options("noisy", Path("seekway"), Path("seekway-guest"), **changes)


def vm(iops: float, p99_us: float = 100, mib_s: float = 1) -> dict[str, float]:
    return {"iops": iops, "p99_us": p99_us, "bytes_s": mib_s * noisy.MIB}


def window(quiet: Any, flood: Any = None, late: float = 0, busy: float = 0.5) -> noisy.Window:
    return {"quiet": quiet, "flood": flood, "late": late, "host_busy": busy, "metrics": {}}


def a_round(fairway: noisy.Window, after: float = 1000) -> noisy.Round:
    """Alone the quiet VM has 1,000 IOPS, beside the flood 20 under noop."""
    return {
        "alone": [window(vm(1000)), window(vm(after))],
        "flood_alone": window(None, vm(0, mib_s=120)),
        "beside": {"noop": window(vm(20, 4000), vm(0, mib_s=100)), "fairway": fairway},
    }


def test_fairway_is_judged_on_the_disk() -> None:
    good = a_round(window(vm(400, 500), vm(0, mib_s=90)))
    row = noisy.row(DISK, "fairway", [good], None)
    assert row["verdict"] == "met", row["why"]
    assert (row["quiet_of_alone"], row["quiet_p99_of_alone"], row["flood_of_base"]) == (0.4, 5, 0.9)
    assert noisy.row(DISK, "noop", [good], None)["verdict"] == "measured"
    for quiet, flood in [(vm(190, 500), 90), (vm(400, 900), 90), (vm(400, 500), 79)]:
        bad = a_round(window(quiet, vm(0, mib_s=flood)))
        assert noisy.row(DISK, "fairway", [bad], None)["verdict"] == "missed"


def test_emulated_drives_are_judged_by_the_simulator() -> None:
    good = a_round(window(vm(400, 500), vm(0, mib_s=90)))
    for there, verdict in [(380, "met"), (440, "met"), (300, "missed"), (500, "missed")]:
        twin = {"quiet_iops": there, "quiet_of_alone": there / 1000}
        row = noisy.row(DRIVE, "fairway", [good], twin)
        assert row["verdict"] == verdict, row["why"]


def test_a_row_is_void_when_half_of_its_rounds_are() -> None:
    flood = vm(0, mib_s=90)
    good = a_round(window(vm(400, 500), flood))
    for bad, why in [
        (a_round(window(vm(1, 500), flood, late=0.02)), "2.0 % of the commands later"),
        (a_round(window(vm(1, 500), flood, busy=0.99)), "host CPU 99 % busy"),
        (a_round(window(vm(1, 500), flood), after=700), "from 1000 to 700 IOPS in the round"),
        (a_round("it broke\nat night"), "it broke"),
    ]:
        row = noisy.row(DISK, "fairway", [good, good, bad], None)
        assert (row["verdict"], row["void_rounds"], row["quiet_iops"]) == ("met", 1, 400)
        row = noisy.row(DISK, "fairway", [good, bad], None)
        assert row["verdict"] == "void" and why in row["why"]
        assert row["why"].startswith("1 of 2 rounds: ")


def test_scenes_and_servers_are_chosen_and_unknown_ones_refused() -> None:
    assert len(noisy.scenes(options())) == 9
    chosen = noisy.scenes(options(scenes="*/writes", servers=["throttled", "fairway"]))
    assert [list(scene.servers) for scene in chosen] == [
        ["noop", "fairway"],
        ["noop", "fairway"],
        ["noop", "fairway", "qemu-storage-daemon, flood at 80 %"],
    ]
    for changes, part in [
        ({"scenes": "sata/flood"}, "intel-x25m-g2/flood, "),
        ({"servers": ["bfq"]}, "--policy adds one"),
    ]:
        with pytest.raises(LabError, match=part):
            noisy.scenes(options(**changes))
    for changes in ({"seconds": 0}, {"seconds": math.nan}, {"rounds": 101}, {"kvm": True}):
        with pytest.raises(LabError, match="--"):
            noisy.run(options(**changes))


def test_the_simulator_has_the_same_loads() -> None:
    seekway = pytest.importorskip("seekway")
    for scene in noisy.scenes(options(scenes="intel-x25m-g2/*")):
        quiet, flood = noisy.twins(scene, 96_000)
        assert quiet["guest"] == flood["guest"] == {"image": "256MiB"}
        assert (quiet["load"][0]["think"], flood["load"][0]["think"]) == ("96000ns", "60000ns")
        scenario = {"vm": [quiet, flood], "device": {"profile": scene.device}}
        made = seekway.run({**scenario, "measure": {"until": "1ms"}}, progress=False)
        assert len(made.vms.to_arrow()) == 2


def test_an_image_says_where_its_blocks_belong(tmp_path: Path) -> None:
    path = tmp_path / "image"
    frontend.write_image(path, 4 * frontend.BLOCK_BYTES)
    blocks = [path.read_bytes()[n * frontend.BLOCK_BYTES :][:8] for n in range(4)]
    assert blocks == [frontend.stamp(n * frontend.BLOCK_BYTES) for n in range(4)]
    assert len(set(blocks)) == 4


def program() -> Path:
    """The program of these sources."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", LAB.parent / "target"))
    found = Path(os.environ.get("SEEKWAY", target / "debug" / "seekway"))
    if not found.exists():
        pytest.skip("no program seekway here: cargo build")
    return found


def test_policies_are_checked_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    from seekway_lab.cli import main

    for name, option, spec, part in [
        ("noisy", "--policy", "cfq:quantum=x", "quantum=x"),
        ("pregather-read", "--policy", "bfqq", "no policy 'bfqq'"),
        ("migrate-live", "--vcpu", "vanilla:wake=1", "--vcpu: "),
        ("migrate-live", "--vcpu", "vsmt", "no vCPU policy 'vsmt'"),
    ]:
        assert main(["live", name, "--daemon", str(program()), option, spec]) == 2
        assert part in capsys.readouterr().err


def test_front_ends_read_and_write_what_the_image_has(tmp_path: Path) -> None:
    from seekway_lab.live.daemon import Daemon

    path, size = tmp_path / "a.img", noisy.MIB
    frontend.write_image(path, size)
    arguments = ["--cache", "off", "--journal", str(tmp_path / "journal"), "--disk", f"a={path}"]
    with Daemon(program(), tmp_path / "run", arguments) as daemon:
        socket = daemon.socket("a.vhost")
        for load in [
            Load(4096, 128, write=True, stamped=True),
            Load(65536, 8, streams=1, stamped=True),
            Load(4096, 1, stamped=True),
        ]:
            made = frontend.together({"a": (socket, load, 0, 0.1)}, size)["a"]
            assert len(made) >= load.depth
        with path.open("r+b") as file:
            file.write(bytes(size))
        with pytest.raises(process.LiveError, match="a: other data than the image has at byte"):
            frontend.together({"a": (socket, Load(4096, 8, stamped=True), 0, 0.1)}, size)
        daemon.stop()
    # Plain writes of a driver that knows flushes: nobody waits for them.
    journal = "".join(file.read_text() for file in (tmp_path / "journal").iterdir())
    assert " W async " in journal and " W sync " not in journal


def command(tmp_path: Path, *arguments: str) -> list[str]:
    rest = ["--quick", "--seconds=0.1", "--json", str(tmp_path / "rows.json"), *arguments]
    daemon = ["--daemon", str(program())]
    return [sys.executable, "-m", "seekway_lab", "live", "noisy", *daemon, *rest]


@pytest.fixture
def folder() -> Iterator[Path]:
    """For temporary files; a socket's path is short."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def start(folder: Path, arguments: list[str]) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(LAB), "TMPDIR": str(folder)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        arguments,
        env=environment,
        stdout=pipe,
        stderr=pipe,
        text=True,
        # A shell that starts the tests in the background has SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def left(folder: Path, ran: subprocess.Popen[str]) -> list[Path]:
    """Folders that it has left."""
    return [*folder.iterdir(), *noisy.MEMORY.glob(f"seekway-live-{ran.pid}-*")]


def test_a_round_gives_rows_and_leaves_nothing(tmp_path: Path, folder: Path) -> None:
    pytest.importorskip("seekway")
    arguments = command(tmp_path, "--scenes=intel-x25m-g2/flood", "--servers=fairway")
    ran = start(folder, arguments)
    _, said = ran.communicate()
    # 1 where the machine is slower than the drive, and says so in time.
    assert ran.returncode in (0, 1), said
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["server"] for row in rows] == ["noop", "fairway"], said
    for row in rows:
        assert row["verdict"] in ("met", "missed", "void"), row
        # A busy host may do nothing in a tenth of a second.
        assert row["quiet_iops"] >= 0 and row["flood_mib_s"] >= 0, row
        assert row["simulated"]["quiet_iops"] > 0
    assert left(folder, ran) == []


def test_a_missing_peer_is_a_void_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = program().absolute()
    monkeypatch.setattr(noisy, "PEER", "no-such-server")
    monkeypatch.setattr(noisy, "PEERS", {"peer": "no-such-server", "throttled": "limited"})
    changes = {"scenes": "disk/stream", "servers": ["peer"], "work_dir": tmp_path}
    report = noisy.run(
        runs.Options("noisy", found, found, seconds=0.1, rounds=1, **changes)  # type: ignore[arg-type]
    )
    assert [row["server"] for row in report.json] == ["noop", "no-such-server"]
    peer = report.json[1]
    # The folder of the test may be in memory: then no row is of a disk.
    assert peer["verdict"] == "void" and any(
        part in peer["why"] for part in ("is not installed", "is in memory", "the quiet VM alone")
    )


def test_an_interrupted_run_ends_and_leaves_nothing(tmp_path: Path, folder: Path) -> None:
    arguments = command(tmp_path, "--scenes=intel-x25m-g2/flood", "--rounds=100")
    ran = start(folder, arguments)
    assert ran.stderr is not None
    # Images have been written when the first round begins.
    while "round 1 of 100" not in (line := ran.stderr.readline()):
        assert line, "it has ended"
    ran.send_signal(signal.SIGINT)
    assert ran.wait() == 130
    assert "stopped" in ran.stderr.read()
    assert left(folder, ran) == []
