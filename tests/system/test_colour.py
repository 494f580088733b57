"""On a terminal: colours in help, errors and tables unless NO_COLOR is set; tables that fit."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

COLOUR = re.compile(rb"\x1b\[[0-9;:]*m")


def on_a_terminal(command: list[str], **environment: str) -> bytes:
    """Run it on a pseudo-terminal, and return all that it writes there."""
    ours, theirs = pty.openpty()
    variables = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CLICOLOR", "TERM")}
    variables |= {"TERM": "xterm-256color", "COLUMNS": "100", **environment}
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=variables, close_fds=True
    ) as run:
        os.close(theirs)
        written = b""
        try:
            while chunk := os.read(ours, 65536):
                written += chunk
        except OSError:
            pass  # a terminal whose last user has gone gives EIO
        run.wait(60)
    os.close(ours)
    return written


@pytest.mark.parametrize(
    ("arguments", "coloured"),
    [
        (["--help"], True),
        (["compare", "--help"], True),
        (["frobnicate"], True),
        (["doctor"], True),
        (["list", "policies"], False),
        (["compare", "--vm", "app=uniform:requests=500", "--policies", "noop,cfq"], False),
        (["top", "--once", "--socket", "/absent"], False),
    ],
)
def test_no_color_is_respected(seekway: str, arguments: list[str], coloured: bool) -> None:
    command = [seekway, *arguments]
    with_colours = on_a_terminal(command)
    assert with_colours
    # Without NO_COLOR there are colours, or the test could not fail.
    if coloured:
        assert COLOUR.search(with_colours), with_colours
    assert not COLOUR.search(on_a_terminal(command, NO_COLOR="1"))
    # Empty is as if it were not set: https://no-color.org.
    assert bool(COLOUR.search(on_a_terminal(command, NO_COLOR=""))) == bool(
        COLOUR.search(with_colours)
    )


TWO = ["--vm", "name=a-vm-with-a-name,app=uniform", "--vm", "name=b,app=uniform:read=0"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", *TWO, "--until", "50ms", "--fair-to", "private"],
        ["predict", "--on", "cheetah-15k5", *TWO, "--until", "50ms"],
        ["list"],
        ["list", "devices"],
    ],
)
def test_no_table_is_wider_than_the_terminal(seekway: str, arguments: list[str]) -> None:
    command = ["sh", "-c", 'exec "$@" 2>/dev/null', "sh", seekway, *arguments]
    shown = on_a_terminal(command, COLUMNS="80", NO_COLOR="1").decode().splitlines()
    assert len(shown) > 3
    assert [line for line in shown if len(line) > 80] == []
    # A pipe gets each table whole, whatever COLUMNS says, and no figure is left out on a terminal.
    columns = os.environ | {"COLUMNS": "80"}
    piped = subprocess.run(command, env=columns, stdout=subprocess.PIPE, check=True)
    lines = piped.stdout.decode().splitlines()
    assert max(map(len, lines)) > 80
    figures = [set(re.findall(r"\d[\d.,]*", "\n".join(text))) for text in (lines, shown)]
    assert figures[0] == figures[1]


def test_files_have_no_colours(seekway: str, tmp_path: Path) -> None:
    for arguments in (["--help"], ["doctor"], ["frobnicate"]):
        with (tmp_path / "out").open("wb") as out:
            subprocess.run([seekway, *arguments], stdout=out, stderr=out, check=False)
        assert b"\x1b" not in (tmp_path / "out").read_bytes()
