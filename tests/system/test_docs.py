"""Every command of the documentation and of `--help` works: it is run, or at least parsed. A
summary of what ran and what did not is printed at the end; `pytest -rA` shows every line of every
page. How commands are found and treated: doc_commands.py."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from doc_commands import (
    DISKS,
    GROUP,
    STOPPED,
    Folder,
    Line,
    Parser,
    inline,
    lines,
    unescaped,
    why_not,
    wrong_syntax,
)

DOCS = ROOT / "docs"
# Pages for users. What docs/design says is not to be typed.
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
PAGES = [page for page in PAGES if not page.is_relative_to(DOCS / "design")]
VENV = Path(sys.executable).parent


@pytest.fixture(scope="module")
def parser(seekway: str) -> Parser:
    """The programs of these sources."""
    programs = {"seekway": seekway}
    guest = Path(seekway).with_name("seekway-guest")
    if guest.exists():
        programs["seekway-guest"] = str(guest)
    return Parser(programs)


def test_every_command_of_the_pages_is_parsed(parser: Parser) -> None:
    asked = []
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        asked += [(name, command, True) for line in lines(page) for command in line.commands()]
        asked += [(name, command, False) for command in inline(page)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda one: parser.complaint(one[1], one[2]), asked))
    refused = [said for page in PAGES for said in wrong_syntax(page)]
    refused += [
        f"{page}: {' '.join(command)}\n{answer}"
        for (page, command, _), answer in zip(asked, answers, strict=True)
        if answer
    ]
    assert not refused, "\n\n".join(refused)
    print(f"{len(parser.known)} commands are parsed")
    assert len(parser.known) > 100


def test_every_example_of_the_help_is_parsed(parser: Parser, tmp_path: Path) -> None:
    # The man pages have the examples of `--help`, each line whole.
    for path in parser.programs.values():
        subprocess.run([path, "generate", "man", tmp_path], check=True)
    commands = [
        command
        for page in tmp_path.glob("*.1")
        for line in re.findall(r"^seekway.*", unescaped(page.read_text()), re.M)
        for command in Line("", line).commands()
    ]
    complaints = {" ".join(command): parser.complaint(command) for command in commands}
    refused = [f"{command}\n{said}" for command, said in complaints.items() if said]
    assert not refused, "\n\n".join(refused)
    assert len(commands) > 50, commands


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Iterator[Counter[str]]:
    """Results of the lines; printed at the end."""
    counts: Counter[str] = Counter()
    yield counts
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print()
        for what, count in counts.most_common():
            print(f"commands of the pages: {count} {what}")


def needs_daemon(line: Line) -> bool:
    """Does a line speak to a daemon?"""
    return any(
        part in line.text for part in ["seekway ctl", "seekway top", "/run/seekway", "--live"]
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_run(
    page: Path, seekway: str, serve: Any, image: Any, tmp_path: Path, tally: Counter[str]
) -> None:
    found = list(lines(page))
    if not found:
        return
    # The first daemon of `serve` has its sockets there.
    folder = Folder(tmp_path / "page", tmp_path / "run0", seekway, VENV)
    if any(needs_daemon(line) and why_not(line, VENV) is None for line in found):
        disks = [f"{name}={image(name)}" for name in DISKS]
        serve(
            *(w for disk in disks for w in ("--disk", disk)),
            "--group",
            f"{GROUP}:iops=1000",
            "--emulate",
            "intel-320:k=1",
            "--cache",
            "64MiB",
            "--prefetch",
            "vio",
        )
    failed = []
    was_stopped = False
    for line in found:
        reason = why_not(line, VENV)
        if reason is not None:
            print(f"not run: {line.text}\n    {reason}")
            kind = re.sub(r"^\S+ acts", "the program acts", reason)
            tally[f"not run: {kind}"] += 1
            continue
        status, output = folder.run_line(line)
        how = "begun and stopped" if status == STOPPED else f"ran, status {status}"
        print(f"{how}: {line.text}")
        tally[how] += 1
        was_stopped = was_stopped or status == STOPPED
        # 1 of ours is a result that was not accepted: docs/exit-status.md.
        accepted = {0, STOPPED} | ({1} if line.is_ours() else set())
        # On a busy machine a campaign may be stopped before its first result.
        if status == 2 and was_stopped and output.rstrip().endswith(": no results"):
            continue
        if status not in accepted:
            failed.append(f"{line.page}: {line.text}\nstatus {status}: {output}")
    assert not failed, "\n\n".join(failed)
