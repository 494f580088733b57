"""`run`: all that a scenario describes, as tables."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from seekway import _native
from seekway._errors import SeekwayError
from seekway._policy import Policy
from seekway._progress import bar
from seekway._table import Table


class Outcome:
    """Results of a scenario: a table for each of these names, a row for each run or more.

    ``runs``, ``vms`` (a row for each disk), ``apps``, ``holds``, ``metrics``, ``cache``,
    ``streams``, ``vcpus``, ``pcpus``, ``tasks``, ``blocks``, ``histograms``, ``seeks``,
    ``series``, ``places``, ``requests``, ``journals``. Each begins with ``run``, ``name``,
    ``policy`` and ``seed``. ``outcome.tables`` of the scenario names those that are wanted.

    Attributes:
        tables: the tables by their names.
        warnings: what a reader has to know before trusting a figure.
    """

    def __init__(self, tables: list[tuple[str, _native.Records]], warnings: list[str]) -> None:
        """By `run` only."""
        self.tables = {name: Table(records) for name, records in tables}
        self.warnings = warnings

    def __getattr__(self, name: str) -> Table:
        """A table by its name."""
        tables = self.__dict__.get("tables", {})
        if name in tables:
            table: Table = tables[name]
            return table
        raise AttributeError(f"no table {name!r}; there are {', '.join(tables)}")

    def __dir__(self) -> list[str]:
        """With the tables."""
        return [*super().__dir__(), *self.tables]

    def __repr__(self) -> str:
        """Show the number of rows."""
        rows = ", ".join(f"{name}: {len(table)}" for name, table in self.tables.items())
        return f"Outcome({rows})"


def run(
    scenario: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    /,
    *,
    policies: Mapping[str, Callable[[], Policy]] | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
    **keys: Any,
) -> Outcome:
    """Run all that a scenario describes: each combination of its axes and cases.

    Args:
        scenario: the path of a TOML file, or its content as a dictionary (docs/scenario.md). A
            subclass of `seekway.Policy` may stand for the name of a policy.
        policies: policies in Python by the names that the scenario has for them.
        jobs: runs at a time; by default as many as there are cores.
        progress: a bar; by default on a terminal and in a notebook.
        keys: keys of the scenario, instead of a dictionary, or in place of some of its keys:
            ``seekway.run(policy=["noop", "cfq"], vm=[{"load": [{"app": "sysbench"}]}])``.

    Raises:
        TraceError: a trace cannot be read; it says where.
        SeekwayError: the scenario is wrong: file, line, column and key.
        Exception: whatever a policy in Python raises.
    """
    own = dict(policies or {})
    file, text = None, ""
    if isinstance(scenario, (str, os.PathLike)):
        if keys:
            raise SeekwayError(f"{next(iter(keys))}: a file has all keys; or give a dictionary")
        file = os.fspath(scenario)
    else:
        text = _json({**(scenario or {}), **keys}, own)
    with bar(progress) as tell:
        return Outcome(*_native.scenario(file, text, jobs, list(own.items()), tell))


def _json(table: Mapping[str, Any], own: dict[str, Callable[[], Policy]]) -> str:
    """The table as JSON; policies in Python by their names, which `own` takes."""

    def plain(value: object) -> object:
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if isinstance(value, type) and issubclass(value, Policy):
            own[value.__name__] = value
            return value.__name__
        item = getattr(value, "item", None)  # a number of NumPy
        if callable(item):
            return item()
        raise SeekwayError(f"{value!r}: no value of a scenario")

    try:
        return json.dumps(table, default=plain, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SeekwayError(f"scenario: {error}") from error
