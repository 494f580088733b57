"""Runs scenarios by the wheel, or by a `seekway` program that has policies of its own in Rust."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import seekway
from seekway import _native
from seekway.campaign.study import content_hash

from seekway_lab.records import LabError

#: The program that `use` chose; None is the wheel.
_chosen: Path | None = None
#: Types of columns as `compare --outcome` names them.
TYPES = {"text": pa.string(), "count": pa.uint64(), "number": pa.float64(), "flag": pa.bool_()}


class Columns:
    """A table of a program's output, as `seekway.Outcome` takes it."""

    def __init__(self, columns: list[dict[str, Any]]) -> None:
        """Of columns with `name`, `type` and `values`."""
        arrays = [pa.array(column["values"], TYPES[column["type"]]) for column in columns]
        self.table = pa.table(arrays, names=[column["name"] for column in columns])

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.table.column_names)


def use(program: Path | None) -> None:
    """Chooses the program that makes all later runs of this process; None is the wheel.

    Raises:
        LabError: it cannot be run.
    """
    global _chosen
    if program is not None:
        program = program.resolve()
        _output(program, ["--version"])
    _chosen = program


def chosen() -> Path | None:
    """The program that makes runs, or None for the wheel."""
    return _chosen


@cache
def identity(program: Path | None) -> str:
    """A text that differs for another build."""
    file = str(program or _native.__file__)
    return f"{seekway.__version__}-{content_hash(file)}"


@cache
def schedulers(program: Path | None) -> tuple[str, ...]:
    """The names of policies for disks, in their order."""
    if program is None:
        return tuple(entry["name"] for entry in seekway.policies())
    listed = json.loads(_output(program, ["list", "policies", "--format", "json"]))
    return tuple(entry["name"] for entry in listed)


def outcome(
    scenario: Mapping[str, Any],
    program: Path | None = None,
    policies: Mapping[str, Callable[[], seekway.Policy]] | None = None,
) -> seekway.Outcome:
    """Runs a scenario.

    Args:
        scenario: a table as docs/scenario.md describes it.
        program: the program that runs it; None is the wheel.
        policies: policies in Python by their names; only the wheel has them.

    Raises:
        SeekwayError: the scenario is wrong, or a run cannot be made.
    """
    if program is None:
        return seekway.run(scenario, policies=policies, jobs=1, progress=False)
    if policies:
        raise seekway.SeekwayError(f"--program: {next(iter(policies))} is in Python: by the wheel")
    arguments = ["compare", "-", "--outcome", "--jobs", "1"]
    made = json.loads(_output(program, arguments, json.dumps(scenario)))
    tables: Any = [(name, Columns(columns)) for name, columns in made["tables"].items()]
    return seekway.Outcome(tables, made["warnings"])


def _output(program: Path, arguments: list[str], given: str = "") -> str:
    """The standard output of a call.

    Raises:
        LabError: there is no such program.
        SeekwayError: its standard error, if it fails.
    """
    try:
        done = subprocess.run([program, *arguments], input=given, capture_output=True, text=True)
    except OSError as error:
        raise LabError(f"--program {program}: {error.strerror}") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise seekway.SeekwayError(said[-1].removeprefix("seekway: "))
    return done.stdout
