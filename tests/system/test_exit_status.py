"""The exit statuses of docs/exit-status.md occur: 0, 1, 2, and a signal's."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

LOAD = ["--vm", "name=a,app=uniform:outstanding=4,requests=200"]


def status(command: list[str]) -> int:
    return subprocess.run(command, capture_output=True, check=False).returncode


def test_done_not_accepted_and_wrong(seekway: str, tmp_path: Path) -> None:
    assert status([seekway, "list", "policies"]) == 0
    assert status([seekway, "list", "policies", "absent"]) == 2
    assert status([seekway, "frobnicate"]) == 2
    assert status([seekway]) == 2
    assert status([seekway, "--help"]) == 0
    assert status([seekway, "ctl", "--socket", f"{tmp_path}/absent.sock", "status"]) == 2
    assert status([seekway, "doctor", "--disk", f"a={tmp_path}/absent.img"]) == 1
    published = [seekway, "predict", "--against", "published", "--on"]
    assert status([*published, "intel-320"]) == 0
    assert status([*published, "intel-320:program_us=3500"]) == 1
    assert status([*published, "absent"]) == 2


def test_a_journal_that_differs(seekway: str, tmp_path: Path) -> None:
    command = [seekway, "compare", *LOAD, "--policies", "cfq", "--journal", str(tmp_path)]
    assert status(command) == 0
    (journal,) = tmp_path.glob("*.journal")
    assert status([seekway, "replay", str(journal)]) == 0
    # The same journal, as if another policy had written it.
    text = journal.read_text()
    head, rest = text.split("\n", 1)
    journal.write_text(
        head.replace("policy=cfq", "policy=noop").replace("cfq", "noop") + "\n" + rest
    )
    assert status([seekway, "replay", str(journal)]) == 1
    journal.write_text("no journal\n")
    assert status([seekway, "replay", str(journal)]) == 2


def test_a_closed_pipe_is_no_error_and_a_full_disk_is(seekway: str) -> None:
    # Too much to fit a pipe: the reader has gone before all is written.
    vms = "--vm image=8MiB,app=uniform:requests=1 " * 400
    command = f"{seekway} compare {vms} --policies noop --alone never --format json"
    script = f'{command} | head -c 1 >/dev/null; echo "${{PIPESTATUS[0]}}"'
    piped = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert piped.stdout == "0\n"
    assert piped.stderr == ""
    for command in (["list", "policies"], ["--help"], ["generate", "bash"], ["doctor"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [seekway, *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert done.returncode == 2, command
        assert "No space left on device" in done.stderr, command


def test_control_c_ends_a_run_by_its_signal(seekway: str) -> None:
    endless = ["--vm", "name=a,app=uniform", "--until", "900h", "--policies", "noop"]
    with subprocess.Popen(
        [seekway, "compare", *endless, "--trace", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Background jobs of a shell ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as run:
        # It reads standard input, which does not end, whatever it has come to.
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == -signal.SIGINT


def test_help_and_man_pages_say_the_statuses(seekway: str, tmp_path: Path) -> None:
    subprocess.run([seekway, "generate", "man", str(tmp_path)], check=True)
    pages = {page.name: page.read_text() for page in tmp_path.iterdir()}
    leaves = [name for name, text in pages.items() if ".SH SUBCOMMANDS" not in text]
    assert len(leaves) > 20
    without = [name for name in leaves if "Exit status" not in pages[name].replace("\\ ", " ")]
    assert without == []
