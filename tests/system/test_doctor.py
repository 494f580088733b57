"""`seekway doctor` as an operator runs it, on this machine. Hosts with something wrong are trees in
the unit tests of crates/hostd/src/doctor."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any


def run(seekway: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([seekway, "doctor", *arguments], capture_output=True, text=True)


def report(seekway: str, *arguments: str) -> Any:
    return json.loads(run(seekway, "--format", "json", *arguments).stdout)


def the(report: Any, check: str) -> Any:
    return next(finding for finding in report["findings"] if finding["check"] == check)


def test_a_good_image_is_ready_and_a_locked_one_is_not(
    seekway: str, image: Any, tmp_path: Path
) -> None:
    web = image("web")
    config = tmp_path / "serve.toml"
    config.write_text(f'listen = "{tmp_path}/run"\n[[disk]]\nname = "web"\npath = "{web}"\n')
    found = report(seekway, "--config", str(config))
    assert the(found, "image")["level"] == "ok"
    assert the(found, "io_uring")["level"] == "ok"
    assert "will be made" in the(found, "sockets")["found"]
    assert not (tmp_path / "run").exists()
    # As QEMU does: a lock of this process, which the image's opener sees.
    lock = (
        "import fcntl, struct, sys; f = open(sys.argv[1], 'r+b');"
        "fcntl.fcntl(f, 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0));"
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        ["python3", "-c", lock, str(web)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "locked\n"
        locked = report(seekway, "--config", str(config))
        text = run(seekway, "--config", str(config))
        holder.stdin.close()
    assert the(locked, "image")["level"] == "problem"
    assert "locked by another program" in the(locked, "image")["found"]
    assert text.returncode == 1
    assert f"image (web): end the program that has it open: fuser -v {web}" in text.stdout
    assert report(seekway, "--config", str(config))["problems"] == 0


def test_a_daemon_that_serves_the_image_is_no_problem(
    seekway: str, serve: Any, image: Any, tmp_path: Path
) -> None:
    web = image("web")
    daemon = serve("--disk", f"web={web}", "--cache", "off")
    config = tmp_path / "serve.toml"
    config.write_text(f'listen = "{daemon.folder}"\n[[disk]]\nname = "web"\npath = "{web}"\n')
    found = report(seekway, "--config", str(config))
    assert "served by the daemon that runs now" in the(found, "image")["found"]
    assert "a daemon serves there now" in the(found, "sockets")["found"]
    assert daemon.disk("web")["name"] == "web"


def test_exit_statuses_say_problem_and_usage(seekway: str, tmp_path: Path) -> None:
    absent = run(seekway, "--disk", f"web={tmp_path}/absent.img")
    assert absent.returncode == 1
    assert f"qemu-img create -f raw {tmp_path}/absent.img 10G" in absent.stdout
    assert run(seekway, "--disk", "web").returncode == 2
    assert run(seekway, "--config", f"{tmp_path}/absent.toml").returncode == 2
    # What others can do nothing about is at most a warning: machines differ.
    assert run(seekway).returncode in (0, 1)
