"""The man pages of both programs: groff renders them without a warning, and examples can be copied
from them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import need
from doc_commands import unescaped


@pytest.fixture(scope="module")
def pages(seekway: str, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The pages of `seekway`, and of the guest's agent if it lies beside it."""
    folder = tmp_path_factory.mktemp("man")
    guest = Path(seekway).with_name("seekway-guest")
    for program in [Path(seekway), guest]:
        if program.exists():
            subprocess.run([program, "generate", "man", folder], check=True)
    return sorted(folder.glob("*.1"))


def rendered(page: Path) -> tuple[str, str]:
    """A page as a terminal of 80 columns shows it, and groff's warnings."""
    command = ["groff", "-K", "utf8", "-ww", "-man", "-Tutf8", "-P-cbou", str(page)]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LANG": "C"})
    return ran.stdout, ran.stderr


def test_groff_renders_every_page_without_a_warning(pages: list[Path]) -> None:
    need("groff")
    assert len(pages) > 25
    wrong = [said for page in pages if (said := rendered(page)[1])]
    assert not wrong, "".join(wrong)


def test_a_page_reads_like_one(pages: list[Path]) -> None:
    need("groff")
    page = next(page for page in pages if page.name == "seekway-ctl.1")
    text, _ = rendered(page)
    headings = re.findall(r"^[A-Z][A-Z ]+$", text, re.M)
    expected = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "SUBCOMMANDS", "EXAMPLES"]
    assert headings == [*expected, "SEE ALSO"]
    assert "seekway ctl [OPTIONS] <COMMAND>" in text
    assert re.search(r"^seekway 0\.\S+ +seekway-ctl\(1\)$", text, re.M)
    assert "seekway-ctl-limit(1)" in text


def test_examples_keep_their_lines(pages: list[Path], seekway: str) -> None:
    need("groff")
    examples = 0
    for page in pages:
        text, _ = rendered(page)
        for line in unescaped(page.read_text()).splitlines():
            examples += 1
            assert line.rstrip() in text, f"{page.name}: {line}"
    assert examples > 50
