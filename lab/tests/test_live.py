"""The harness for real guests, as far as it needs no guest: tests/system/vm boots them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from seekway_lab import rng
from seekway_lab.live import daemon, filesystem, guest, image, process, runs
from seekway_lab.live.filesystem import FileSet
from seekway_lab.live.process import LiveError, Process


def test_an_answer_to_another_command_is_none() -> None:
    assert guest.parse_done("done 3 0 12", 3) == (0, 12)
    for bad in ("done 2 0 12", "done 3 0", "done 3 0 12 1", "done 3 0 -1", "ready 3 0 1", ""):
        assert guest.parse_done(bad, 3) is None, bad
    assert guest.parse_done("done 3 0 1048577", 3) is None


def test_a_tool_comes_with_its_libraries() -> None:
    files = image.linked("sh")
    assert all(path.is_file() for path in files.values())
    with pytest.raises(LiveError, match="no-such-tool is not installed"):
        image.linked("no-such-tool")


def test_random_numbers_are_the_simulators() -> None:
    # The values of rand_xoshiro's own test of Xoshiro256PlusPlus::seed_from_u64(0).
    draw = rng.Rng(0)
    assert [draw.bits() for _ in range(3)] == [
        5987356902031041503,
        7051070477665621255,
        6633766593972829180,
    ]


def test_files_lie_where_the_simulator_has_them(tmp_path: Path) -> None:
    # As the simulator's guest::layout places two sets on 12 GiB with seed 2.
    sets = [FileSet(name, 128, 8 << 20) for name in ("app0", "app1")]
    placed = filesystem.lay_out(12 << 30, sets, 2)
    found = [placed[0][0], placed[0][77], placed[1][0], placed[1][77]]
    assert found == [1426627, 1585540, 2277596, 2436350]

    if process.find("debugfs") is None:
        pytest.skip("no debugfs here")
    path = tmp_path / "disk.img"
    filesystem.make(path, 12 << 30, sets, 2)
    said = process.output("debugfs", "-R", "ex app1/test_file.77", path, package="e2fsprogs")
    last = said.splitlines()[-1].split()
    assert last == f"0/ 0 1/ 1 0 - 2047 2436350 - {2436350 + 2047} 2048".split()
    # Sparse: the data is not there.
    assert path.stat().st_blocks * 512 < 16 << 20
    with pytest.raises(LiveError, match="bytes more"):
        filesystem.make(path, 64 << 20, sets, 2)


def test_images_lie_one_behind_the_other(tmp_path: Path) -> None:
    (tmp_path / "a.img").write_bytes(bytes(512))
    a, b = (f"{name}={tmp_path}/{name}.img" for name in "ab")
    made = daemon.disks(tmp_path, {"a": 512, "b": 1 << 30}, 7)
    assert made == ["--disk", f"{a},lba=7", "--disk", f"{b},lba=8"]
    sizes = [(tmp_path / f"{name}.img").stat().st_size for name in "ab"]
    assert sizes == [512, 1 << 30]


def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    text = (
        "from pathlib import Path\n"
        "from seekway_lab.live.process import Process\n"
        f"print(Process(['sleep', '1000'], Path({str(tmp_path / 'log')!r})).pid, flush=True)\n"
        "input()\n"
    )
    folder = str(Path(runs.__file__).parents[2])
    owner = subprocess.Popen(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": folder},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    owner.send_signal(signal.SIGKILL)
    owner.wait()

    def ended() -> bool:
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"

    process.wait_for("sleep has ended", ended, 60)


def test_a_process_says_how_it_ended(tmp_path: Path) -> None:
    one = Process(["sh", "-c", "echo no; exit 3"], tmp_path / "log")
    assert process.wait_for("its end", lambda: one.ended(), 60) == 3
    assert one.said() == "no\n"
    with pytest.raises(LiveError, match="install Debian's package some"):
        Process(["no-such-program"], tmp_path / "log", package="some")
    with pytest.raises(LiveError, match=r"failed \(2\): no"):
        process.output("sh", "-c", "echo no >&2; exit 2", package="dash")


def test_options_are_of_their_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    from seekway_lab.cli import main

    for arguments, part in [
        (["migrate-live", "--rounds", "2"], "--rounds: for noisy only"),
        (["pregather-read", "--scenes", "disk/*"], "--scenes: for noisy and together only"),
        (["noisy", "--vcpu", "vanilla"], "--vcpu: for migrate-live only"),
        (["noisy", "--daemon", "/nowhere/seekway"], "/nowhere/seekway: no file"),
        (["noisy", "--daemon", "/bin/true"], "--daemon /bin/true: this is not seekway"),
        (["noisy", "--daemon", "/etc/passwd"], "--daemon /etc/passwd: Permission denied"),
        (["noisy", "--seed", "-1"], "--seed -1: 0 to 18446744073709551615"),
    ]:
        assert main(["live", *arguments]) == 2
        assert part in capsys.readouterr().err


def test_void_rules_and_figures() -> None:
    assert runs.too_late(0.01) is None and runs.host_full(0.95) is None
    assert runs.too_late(0.02) == "2.0 % of the commands later than the device"
    assert runs.host_full(0.96) == "host CPU 96 % busy"
    values = (None, 0.0, 0.12345, 12.345, 99.96, 1234.5)
    assert [runs.number(v) for v in values] == ["–", "0", "0.123", "12.3", "100", "1,234"]


def test_scenes_and_policies_are_chosen() -> None:
    options = runs.Options("noisy", Path("p"), Path("a"), policy=["cfq", "sstf"], scenes="a/*, b")
    assert options.policies(["noop", "cfq"]) == ["noop", "cfq", "sstf"]
    assert [name for name in ("a/x", "b", "bc") if options.wants(name)] == ["a/x", "b"]
