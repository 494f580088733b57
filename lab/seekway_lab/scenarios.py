"""Scenarios of a study: axes and cases become single scenarios, each with a name of its own.

A study is a file as `seekway compare FILE.toml` runs it (docs/scenario.md), or dictionaries with
the same keys. The lists of `policy` and `seed` stay: a scenario runs under each policy with each
seed. `name` may have fields in braces, `{case}` and any key such as `{device.change.segments}` or
`{vm.load.1.app}`; `!u` behind a key makes it upper case. Without braces a scenario is named as in
`compare`: by its case and its axes.
"""

from __future__ import annotations

import copy
import itertools
import string
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seekway_lab.records import LabError

Table = dict[str, Any]

#: Keys that are lists. All others take one value: there a list is an axis.
LISTS = {
    "vm",
    "vm.load",
    "vm.disk",
    "vm.task",
    "vm.task.allowed",
    "group",
    "weights",
    "images.at",
    "outcome.tables",
}


@dataclass(frozen=True)
class Scenario:
    """A load on a device with a stack, under some policies."""

    name: str
    #: All keys but `name`, `policy` and `seed`.
    table: Table
    policies: tuple[str, ...]
    #: Of its own; else those that the laboratory is asked for.
    seeds: tuple[int, ...] = ()
    #: Values by which rows find it: `case` and the axes.
    axes: Mapping[str, Any] = field(default_factory=dict)
    #: Needs files that not everybody has.
    optional: bool = False

    def under(self, *policies: str) -> Scenario:
        """The scenario with these policies besides its own."""
        every = tuple(dict.fromkeys([*self.policies, *policies]))
        return replace(self, policies=every)


def from_file(path: Path) -> list[Scenario]:
    """All scenarios of a study's file."""
    try:
        return scenarios(tomllib.loads(path.read_text()))
    except (LabError, tomllib.TOMLDecodeError) as error:
        raise LabError(f"{path}: {error}") from error


def scenarios(study: Mapping[str, Any]) -> list[Scenario]:
    """All scenarios of a study: each case, times its axes."""
    base = {key: value for key, value in study.items() if key != "case"}
    found = []
    for case in study.get("case", [{}]):
        table = merged(base, {key: value for key, value in case.items() if key != "name"})
        name = table.pop("name", "")
        policies, seeds = _list(table.pop("policy", "noop")), _list(table.pop("seed", ()))
        for point, axes in expanded(table):
            axes = {"case": case.get("name", ""), **axes}
            named = _named(name, point, axes)
            found.append(Scenario(named, point, tuple(policies), tuple(seeds), axes))
    names = [scenario.name for scenario in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise LabError(f"two scenarios are called '{min(twice)}': names differ")
    return found


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """The table with changes: tables merge, into a list of tables into each; all else replaces."""
    made = copy.deepcopy(dict(base))
    for key, value in changes.items():
        old = made.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            made[key] = merged(old, value)
        elif isinstance(value, dict) and isinstance(old, list):
            made[key] = [merged(one, value) for one in old]
        else:
            made[key] = copy.deepcopy(value)
    return made


def expanded(table: Mapping[str, Any]) -> list[tuple[Table, Table]]:
    """All combinations of a table's axes, the first axis slowest, with the chosen values."""
    return [(dict(value), axes) for value, axes in _expand(table, "")]


def _expand(value: Any, path: str) -> Iterator[tuple[Any, Table]]:
    if isinstance(value, Mapping) and path != "device.profile":
        inner = [_expand(value[key], f"{path}.{key}".lstrip(".")) for key in value]
        for choice in itertools.product(*map(list, inner)):
            yield dict(zip(value, (v for v, _ in choice), strict=True)), _joined(choice)
    elif isinstance(value, (list, tuple)):
        is_list = path in LISTS
        if is_list and not any(isinstance(one, (list, tuple)) for one in value):
            for choice in itertools.product(*(list(_expand(one, path)) for one in value)):
                yield [v for v, _ in choice], _joined(choice)
            return
        for number, one in enumerate(value):
            plain = isinstance(one, (str, int, float))
            for made, axes in _expand(one, path):
                yield made, {path: one if plain else f"#{number + 1}", **axes}
    else:
        yield value, {}


def _joined(choice: Iterable[tuple[Any, Table]]) -> Table:
    return {key: value for _, axes in choice for key, value in axes.items()}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


class _Names(string.Formatter):
    """Fields of a scenario by their paths; of a list the entry of a number, else the first."""

    def __init__(self, table: Table, axes: Table) -> None:
        self.table, self.axes = table, axes

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        if field_name in self.axes:
            return self.axes[field_name], field_name
        found: Any = self.table
        for part in field_name.split("."):
            if isinstance(found, list) and part.isdigit() and int(part) < len(found):
                found = found[int(part)]
                continue
            found = found[0] if isinstance(found, list) else found
            if not isinstance(found, Mapping) or part not in found:
                raise LabError(f"name: '{{{field_name}}}' is no key of the scenario")
            found = found[part]
        return found, field_name

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return str(value).upper() if conversion == "u" else super().convert_field(value, conversion)


def _named(name: str, table: Table, axes: Table) -> str:
    if "{" in name:
        return _Names(table, axes).format(name)
    parts = [f"{key}={value}" for key, value in axes.items() if key != "case"]
    return ", ".join(filter(None, [name, axes["case"], *parts]))
