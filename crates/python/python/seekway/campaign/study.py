"""Studies: axes, and their combination into cells."""

from __future__ import annotations

import glob
import hashlib
import itertools
import json
import math
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import seekway
from seekway import _native
from seekway._arguments import options, traces_of
from seekway._errors import SeekwayError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Cells of one study at most.
CELLS_MAX = 1_000_000
#: Keys of a study besides its axes.
_KEYS = ("name", "combine", "samples", "seed", "fixed", "axes")
_WAYS = ("grid", "zip", "random", "latin")


@dataclass(frozen=True)
class Cell:
    """One policy with one seed on one load and device.

    Attributes:
        key: SHA-256 of all inputs, hexadecimal.
        axes: the value of each axis.
        arguments: those of ``seekway compare``.
    """

    key: str
    axes: Mapping[str, Any]
    arguments: tuple[str, ...]

    @property
    def traces(self) -> tuple[str, ...]:
        """Its trace files."""
        flag = "--trace="
        return tuple(a.removeprefix(flag) for a in self.arguments if a.startswith(flag))


@dataclass
class Study:
    """A study as its file has it, checked.

    Attributes:
        axes: values by axis: ``traces`` (files, each a cell's only trace), ``vms`` (a list of
            VMs for each value), ``device``, ``policy``, ``seed``, and any option of ``compare``;
            other names are parameters that stand in braces in a policy or device, ``{idle}``.
        fixed: options of ``compare`` that all cells have.
        combine: ``grid`` (all combinations), ``zip`` (the first values, the second ones, …),
            ``random`` (`samples` of the grid or of ranges) or ``latin`` (a Latin hypercube).
        seed: of ``random`` and ``latin``.
    """

    name: str
    axes: dict[str, list[Any] | Range]
    fixed: dict[str, Any] = field(default_factory=dict)
    combine: str = "grid"
    samples: int = 0
    seed: int = 1

    @classmethod
    def from_file(cls, path: str | Path) -> Study:
        """Read ``study.toml``; relative paths of traces are relative to it.

        Raises:
            SeekwayError: with the file and the key, or the line of a mistake in TOML.
        """
        path = Path(path)
        try:
            with open(path, "rb") as file:
                data = tomllib.load(file)
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise SeekwayError(f"{path}: {error}") from error
        try:
            return cls.from_dict(data, path.parent)
        except SeekwayError as error:
            raise SeekwayError(f"{path}: {error}") from error

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], base: Path | None = None) -> Study:
        """A study from a dictionary with the keys of the file.

        Raises:
            SeekwayError: with the key.
        """
        for key in data:
            if key not in _KEYS:
                raise SeekwayError(f"{key}: no key of a study; there are {', '.join(_KEYS)}")
        combine = data.get("combine", "grid")
        if combine not in _WAYS:
            raise SeekwayError(f"combine: {combine!r}: expected one of {', '.join(_WAYS)}")
        given = data.get("axes")
        if not isinstance(given, Mapping) or not given:
            raise SeekwayError("axes: a study has at least one, such as policy = [...]")
        axes = {key: _axis(key, value, base or Path()) for key, value in given.items()}
        samples = data.get("samples", 0)
        if (combine in ("random", "latin")) != (isinstance(samples, int) and samples > 0):
            raise SeekwayError("samples: their number, for combine = 'random' and 'latin' only")
        for key, axis in axes.items():
            if isinstance(axis, Range) and combine not in ("random", "latin"):
                raise SeekwayError(f"axes.{key}: a range needs combine = 'random' or 'latin'")
        study = cls(
            name=str(data.get("name", "study")),
            axes=axes,
            fixed=_fixed(data.get("fixed", {}), base or Path()),
            combine=combine,
            samples=samples,
            seed=int(data.get("seed", 1)),
        )
        if not {"traces", "vms"} & (study.axes.keys() | study.fixed.keys()):
            raise SeekwayError("axes: no load; give traces or vms")
        if study.count() > CELLS_MAX:
            raise SeekwayError(f"{study.count()} cells, at most {CELLS_MAX}: shorten an axis")
        return study

    def count(self) -> int:
        """Count the cells."""
        lengths = [len(axis) for axis in self.axes.values() if not isinstance(axis, Range)]
        if self.combine == "grid":
            return math.prod(lengths)
        if self.combine == "zip":
            if len(set(lengths)) > 1:
                raise SeekwayError(f"combine = 'zip': axes of {lengths} values; give equally many")
            return lengths[0]
        return self.samples

    def points(self) -> Iterator[dict[str, Any]]:
        """The values of the axes of each cell."""
        names = list(self.axes)
        lists = [[] if isinstance(axis, Range) else axis for axis in self.axes.values()]
        if self.combine == "grid":
            yield from (dict(zip(names, p, strict=True)) for p in itertools.product(*lists))
        elif self.combine == "zip":
            yield from (dict(zip(names, p, strict=True)) for p in zip(*lists, strict=True))
        else:
            yield from self._sampled()

    def _sampled(self) -> Iterator[dict[str, Any]]:
        """Uniform samples; of a Latin hypercube each slice of an axis has one."""
        chance = random.Random(self.seed)
        columns: dict[str, list[float]] = {}
        for name in self.axes:
            if self.combine == "latin":
                column = [(n + chance.random()) / self.samples for n in range(self.samples)]
                chance.shuffle(column)
            else:
                column = [chance.random() for _ in range(self.samples)]
            columns[name] = column
        for n in range(self.samples):
            yield {
                name: axis.at(columns[name][n])
                if isinstance(axis, Range)
                else axis[int(columns[name][n] * len(axis))]
                for name, axis in self.axes.items()
            }

    def cells(self) -> list[Cell]:
        """All cells, each once, those of one load side by side.

        Raises:
            SeekwayError: an axis that is no option and stands in no policy; an unreadable trace.
        """
        cells = {}
        words = self.words()
        for point in self.points():
            cell = self._cell(point, words)
            cells[cell.key] = cell
        return sorted(cells.values(), key=lambda cell: (cell.traces, cell.key))

    def words(self) -> set[str]:
        """Axes that stand in braces in some policy, device or VM."""
        lists = {key: axis for key, axis in self.axes.items() if isinstance(axis, list)}
        everything = [_templates({key: value}) for key, axis in lists.items() for value in axis]
        everything.append(_templates(self.fixed))
        return {key for key in self.axes if any("{" + key + "}" in text for text in everything)}

    def _cell(self, point: Mapping[str, Any], names: set[str]) -> Cell:
        given = {**self.fixed, **point}
        words = {key: given[key] for key in point if key in names}
        used = {key for key in words if "{" + key + "}" in _templates(given)}
        more = {key: value for key, value in given.items() if key not in words}
        traces = _listed(more.pop("traces", []))
        vms = _listed(more.pop("vms", []))
        seed = more.pop("seed", 1)
        policy = _filled(more.pop("policy", "noop"), words)
        device = _filled(more.pop("device", "seagate-exos-x24"), words)
        arguments = [f"--trace={trace}" for trace in traces]
        arguments += [f"--vm={_filled(vm, words)}" for vm in vms]
        arguments += [f"--device={device}", f"--policies={policy}", f"--seed={seed}", "--jobs=1"]
        arguments += options(more)
        axes = {key: value for key, value in point.items() if key not in words or key in used}
        axes |= {"policy": policy, "device": device, "seed": seed}
        return cell_of(arguments, axes)


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, evenly or on a logarithmic scale."""

    low: float
    high: float
    log: bool = False
    integer: bool = False

    def at(self, share: float) -> float | int:
        """The number at a share of the range, 0 to 1."""
        if self.log:
            value = math.exp(math.log(self.low) + share * math.log(self.high / self.low))
        else:
            value = self.low + share * (self.high - self.low)
        return round(value) if self.integer else round(value, 9)


def cell_of(arguments: list[str], axes: Mapping[str, Any]) -> Cell:
    """The cell of these arguments of ``seekway compare``, which name one policy and one seed."""
    return Cell(_hash(arguments), axes, tuple(arguments))


def _axis(key: str, value: Any, base: Path) -> list[Any] | Range:
    if isinstance(value, Mapping):
        unknown = value.keys() - {"min", "max", "log", "integer"}
        if unknown or not {"min", "max"} <= value.keys():
            raise SeekwayError(f"axes.{key}: a range has min, max, log and integer")
        made = Range(
            value["min"], value["max"], value.get("log", False), value.get("integer", False)
        )
        if not made.low < made.high or (made.log and made.low <= 0):
            raise SeekwayError(f"axes.{key}: min below max, and above 0 with log")
        return made
    listed = value if isinstance(value, list) else [value]
    if key == "traces":
        listed = traces_of(file for item in listed for file in _files(str(item), base))
    if not listed:
        raise SeekwayError(f"axes.{key}: no values")
    return listed


def _fixed(given: Any, base: Path) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise SeekwayError("fixed: expected options of compare, such as until = '10s'")
    fixed = dict(given)
    if "traces" in fixed:
        listed = _listed(fixed["traces"])
        fixed["traces"] = traces_of(file for item in listed for file in _files(item, base))
    return fixed


def _files(pattern: str, base: Path) -> list[str]:
    """A file, the files of a folder, or those that a pattern names."""
    path = Path(base, pattern)
    if path.is_dir():
        found = sorted(str(file) for file in path.iterdir() if file.is_file())
    elif path.is_file():
        found = [str(path)]
    else:
        found = sorted(glob.glob(str(path), recursive=True))
    if not found:
        raise SeekwayError(f"traces: {pattern}: no such file")
    return found


def _templates(given: Mapping[str, Any]) -> str:
    texts = [given.get("policy", ""), given.get("device", ""), *_listed(given.get("vms", []))]
    return " ".join(map(str, texts))


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(item) for item in value]


def _filled(text: str, words: Mapping[str, Any]) -> str:
    for key, value in words.items():
        text = text.replace("{" + key + "}", str(value))
    return text


def _hash(arguments: list[str]) -> str:
    """The name of a cell: its arguments, the contents of its traces, and the program."""
    flag = "--trace="
    inputs = [
        flag + content_hash(a.removeprefix(flag)) if a.startswith(flag) else a for a in arguments
    ]
    text = json.dumps([program(), *inputs], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def content_hash(path: str) -> str:
    """SHA-256 of a file's bytes; each file is read once."""
    try:
        with open(path, "rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
            return digest.hexdigest()
    except OSError as error:
        raise SeekwayError(f"traces: {error}") from error


@cache
def program() -> str:
    """The version of the computing program: another build is another program."""
    built = content_hash(str(_native.__file__))
    return f"{seekway.__version__}-{built[:16]}"
