"""scripts/demo: its tables fit a terminal, its children end with it, its failures show the log."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from seekway_lab.cli import ROOT
from seekway_lab.live.process import wait_for

POLICIES = ["fairway", "noop", "deadline", "cfq", "bfq", "kyber", "iocost"]
POLICIES += ["pregather", "cats", "vmcd", "mclock"]


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, whose folder of output is another."""
    monkeypatch.setenv("OUT", str(tmp_path))
    loader = SourceFileLoader("demo", str(ROOT / "scripts" / "demo"))
    spec = importlib.util.spec_from_loader("demo", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader.exec_module(module)
    return module


def run(mib_s: float) -> dict[str, Any]:
    vms = [{"name": f"vm{n}", "mib_s": mib_s / 3} for n in (1, 2, 3)]
    private = {"least_progress": 0.9, "least_progress_vm": "database", "mean_progress": 12.5}
    response, busy = {"p99": 12_345.6}, 0.99
    return {
        "mib_s": mib_s,
        "vms": vms,
        "response_ms": response,
        "private": private,
        "host_busy": busy,
    }


def test_all_parts_together_are_short_and_narrow(demo: ModuleType) -> None:
    ran = {policy: run(1_000 + n) for n, policy in enumerate(POLICIES)}
    linux, papers = demo.best(ran, demo.LINUX), demo.best(ran, demo.PAPERS)
    assert (linux, papers) == ("iocost", "mclock"), "the last, which moves most"
    rows = [ran[policy] for policy in ("fairway", linux, papers)]
    parts = [
        demo.three(ran, linux, papers),
        demo._part("Guests", *demo.real(rows, linux, papers)),
        demo.eight({**ran, demo.ALL_ON: run(1)}, linux, papers),
    ]
    lines = "\n\n".join(parts).splitlines()
    assert lines[-1].startswith("Each VM beside its private disk: ")
    assert len(lines) <= 50 and max(map(len, lines[:-1])) <= 80, "\n".join(lines)
    said = " ".join(" ".join(lines).split())
    assert "processors were 99 % busy" in said and "at least 0.90 of what a private" in said


def test_the_page_shows_what_the_demo_prints(demo: ModuleType) -> None:
    """The bandwidths of the page's table of all policies, which the program's tests compare."""
    page = (ROOT / "docs" / "demo.md").read_text()
    shown, table = (part.partition("```")[0] for part in page.split("```text\n")[1:])
    heads, _, *lines = table.splitlines()[2:]
    at = re.split(r" {2,}", heads).index("bandwidth (MiB/s)")
    rows = {line.split()[0]: re.split(r" {2,}", line)[at] for line in lines}
    policies = ["fairway", "bfq", "pregather"]
    names = zip(policies, demo._names("bfq", "pregather"), strict=True)
    said = [re.split(r" {2,}", line)[:2] for line in shown.splitlines()]
    for policy, name in names:
        assert [name, rows[policy]] in said


def test_a_program_that_fails_is_named_and_its_output_kept(demo: ModuleType) -> None:
    with pytest.raises(demo.Failed, match="sh ended with 3"):
        demo.output("sh", "-c", "echo so; echo why >&2; exit 3")
    log = demo.LOG.read_text()
    assert "why\n" in log and "so\n" in log
    assert demo.output("echo", "fine") == "fine\n"


def test_guests_that_cannot_run_are_left_out(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*words: object, what: str = "") -> str:
        raise demo.Failed(what)

    monkeypatch.setattr(demo, "output", failing)
    _title, *reason = demo.guests("bfq", "pregather").splitlines()
    assert reason[0].startswith("Left out: QEMU or sysbench is missing")
    monkeypatch.setattr(demo, "output", lambda *words, what="": "")
    monkeypatch.setattr(demo.pregather, "measure", lambda *words: demo.LOG.open())
    _title, *reason = demo.guests("bfq", "pregather").splitlines()
    assert reason[0].startswith("Left out: [Errno 2] No such file"), reason


def test_what_it_runs_ends_with_it(tmp_path: Path) -> None:
    text = (
        "from importlib.machinery import SourceFileLoader\n"
        f"demo = SourceFileLoader('demo', {str(ROOT / 'scripts' / 'demo')!r}).load_module()\n"
        "demo.build = lambda *words: demo.output('sh', '-c', 'sleep 1000 & echo $! >&2; wait')\n"
        "print(demo.main())\n"
    )
    script = subprocess.Popen(
        [sys.executable, "-B", "-c", text],
        env={**os.environ, "OUT": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    log = tmp_path / "demo-build.log"

    def said() -> list[str]:
        assert script.poll() is None
        return log.read_text().splitlines() if log.exists() else []

    wait_for("the child's child is named", lambda: len(said()) == 2, 600)
    child = Path(f"/proc/{said()[1]}/status")
    script.send_signal(signal.SIGTERM)
    assert script.communicate()[0] == "130\n"
    wait_for("it ends", lambda: not child.exists() or "State:\tZ" in child.read_text(), 600)
