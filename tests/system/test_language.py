"""Plain language: the lint finds what it should, and the glossary's terms are in use."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT

SAMPLES = {
    "function.rs": ("/// What it does.\nfn f() {}\n", 'begins with "What"'),
    "comment.rs": ("// It waits for so many turns.\n", '"so many"'),
    "lines.rs": ("// It waits for so\n// long a time.\n", '"so long"'),
    "help.rs": ('let spec = ParamSpec { help: "how long" };\n/// How long.\n', 'begins with "How"'),
    "docstring.py": ('"""The same as above."""\n', 'begins with "The same"'),
    "docs/date.md": ("Measured on 24 November 2026.\n", '"24 November 2026"'),
    "docs/commit.md": ("At commit f6b7101 it passes.\n", '"f6b7101"'),
    "docs/history.md": ("Since then the target was missed.\n", '"missed"'),
    "docs/word.md": ("The toll of a call.\n", '"toll"'),
}


def lint(path: Path) -> str:
    ran = subprocess.run([ROOT / "scripts/plain", path], capture_output=True, text=True)
    assert ran.returncode == (1 if ran.stdout else 0), ran.stderr
    return ran.stdout


@pytest.mark.parametrize("name", SAMPLES)
def test_riddles_and_history_are_found(name: str, tmp_path: Path) -> None:
    text, found = SAMPLES[name]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert found in lint(path)


def test_plain_text_passes(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("What does it cost? No longer than 3 ms; `a0b1c2d`.\n")
    assert lint(path) == ""


@cache
def words() -> str:
    """The text of all code and pages but the glossary, in lower case, with `_` as a space."""
    paths = [*ROOT.glob("crates/*/src/**/*.rs"), *ROOT.glob("docs/**/*.md")]
    return (
        "\n".join(path.read_text() for path in paths if path.name != "glossary.md")
        .lower()
        .replace("_", " ")
    )


def test_terms_of_the_glossary_are_in_use() -> None:
    rows = re.findall(r"^\| ([^|`]+) \| [^|]+ \|$", (ROOT / "docs/glossary.md").read_text(), re.M)
    terms = [row for row in rows if row not in ("term", ":--")]
    assert len(terms) > 40
    assert not [term for term in terms if term.lower() not in words()]
