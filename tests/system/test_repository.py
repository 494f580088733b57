"""A public forge's files: workflows, issue forms, the citation; and that a version has notes."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tomllib
from conftest import ROOT

FORMS = [f".github/ISSUE_TEMPLATE/{name}.yml" for name in ("bug", "result", "idea")]
SCHEMAS = {
    "vendor.github-workflows": [".github/workflows/ci.yml", ".github/workflows/release.yml"],
    "vendor.github-issue-forms": FORMS,
    "vendor.github-issue-config": [".github/ISSUE_TEMPLATE/config.yml"],
    "vendor.citation-file-format": ["CITATION.cff"],
}


def version() -> str:
    with (ROOT / "Cargo.toml").open("rb") as file:
        return str(tomllib.load(file)["workspace"]["package"]["version"])


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_forge_can_read_it(schema: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
    ran = subprocess.run([*command, *SCHEMAS[schema]], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_file_for_the_forge_is_checked() -> None:
    found = {str(path.relative_to(ROOT)) for path in (ROOT / ".github").rglob("*.yml")}
    assert found == {name for names in SCHEMAS.values() for name in names} - {"CITATION.cff"}


def test_the_version_has_notes_and_is_the_cited_one(seekway: str) -> None:
    now = version()
    assert f"\n## {now} " in (ROOT / "CHANGELOG.md").read_text()
    assert (ROOT / f"docs/releases/v{now}.md").is_file()
    assert f"\nversion: {now}\n" in (ROOT / "CITATION.cff").read_text()
    ran = subprocess.run([seekway, "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["seekway", now]
