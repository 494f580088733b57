"""Experiments that are still a part of the program: run by `seekway experiment run`."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from seekway_lab.records import LabError, Record, digits

ASKED = {None: "", True: "met", False: "missed"}


def default() -> Path:
    """Seekway's program: SEEKWAY, else this tree's."""
    ours = Path(__file__).resolve().parents[2] / "target" / "release" / "seekway"
    return Path(os.environ.get("SEEKWAY", ours))


def loads(program: Path, patterns: list[str]) -> dict[str, str]:
    """The experiments with these names, each with the hash of its loads."""
    listing: list[str | Path] = [program, "experiment", "list", "--format", "json"]
    entries = json.loads(subprocess.run(listing, check=True, capture_output=True).stdout)
    named = {e["name"]: e["loads"] for e in entries if e["loads"]}
    return {n: h for n, h in named.items() if any(fnmatchcase(n, p) for p in patterns)}


def rows(
    program: Path, names: list[str], seeds: int, policies: list[str], out: Path
) -> list[Record]:
    """The rows of these experiments; one that this very program has run is not run again."""
    if len(policies) > 1 or any(".py:" in policy for policy in policies):
        raise LabError("--policy: the program's experiments take one, and none in Python")
    out.mkdir(parents=True, exist_ok=True)
    found = []
    for number, name in enumerate(names):
        print(f"{name}, {number + 1} of {len(names)}", file=sys.stderr, flush=True)
        ran = _ran(program, name, seeds, policies, out)
        found += [_record(ran["experiment"], row) for row in ran["rows"]]
    return found


def _ran(program: Path, name: str, seeds: int, policies: list[str], out: Path) -> dict[str, Any]:
    kept = out / f"{name}.json"
    key = {
        "program": hashlib.sha256(program.read_bytes()).hexdigest(),
        "seeds": seeds,
        "policies": policies,
    }
    if kept.exists() and (before := json.loads(kept.read_text()))["key"] == key:
        known: dict[str, Any] = before["ran"]
        return known
    command: list[str | Path] = [program, "experiment", "run", name, "--format", "json"]
    command += ["--seeds", str(seeds), "--report", out / f"{name}.html"]
    command += [f"--policy={policy}" for policy in policies]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):  # 1: something that is asked is missed; the page says what
        raise LabError(f"{name}: exit status {done.returncode}")
    ran: dict[str, Any] = json.loads(done.stdout)
    part = kept.with_suffix(".part")
    part.write_text(json.dumps({"key": key, "ran": ran}))
    part.rename(kept)
    return ran


def _record(experiment: str, row: dict[str, Any]) -> Record:
    names = ["paper", "ours", "least", "largest"]
    numbers = dict(zip(names, [row["paper"], row["ours"], *row["range"]], strict=True))
    return {
        "experiment": experiment,
        "row": row["name"],
        **{name: digits(value) for name, value in numbers.items()},
        "unit": row["unit"],
        "verdict": row["verdict"],
        "asked": ASKED[row["asked"]],
        "why": row["why"],
    }
