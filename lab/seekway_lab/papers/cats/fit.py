"""vpt-fit: the throttle's line, recovered from random reads of models and of measured drives."""

from __future__ import annotations

import os
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import seekway

from seekway_lab.judge import Row, Runs, limit, measured, value

#: The detailed disk. It reads 64 sectors ahead before another command cuts in.
DISK = "cheetah-15k4:read_ahead_min=64"
#: The profile as it stands: the next command ends the read-ahead at once.
CUT_SHORT = "cheetah-15k4"
#: The paper's model of it.
LINEAR = "linear-15k4"
SEEDS = range(1, 6)
#: Fits by others of the same traces: model, R/2 and S in ms.
DRIVES = {
    "atlas10k": ("atlas-10k", 4.64, 5.02),
    "cheetah15k5": ("cheetah-15k5", 4.71, 4.22),
    "cheetah9LP": ("cheetah-9lp", 4.83, 5.49),
}


@cache
def of_model(profile: str, seed: int, averaged: bool = False) -> dict[str, Any]:
    """The line through 100,000 random reads of a page without the drive's cache."""
    fitted: dict[str, Any] = seekway.fit_model(profile, averaged=averaged, seed=seed)
    return fitted


@cache
def ahead(profile: str) -> dict[str, Any]:
    """Sectors that a drive reads ahead, and when."""
    found: dict[str, Any] = seekway.read_ahead(profile)
    return found


def with_cache(profile: str, found: dict[str, Any]) -> str:
    """The profile with what was found of the cache. A drive that reads nothing ahead under load
    keeps the 64 sectors: it does when it is given the time.
    """
    if found["sectors"]:
        profile = re.sub(
            r"(?m)^prefetch_sectors .*$", f"prefetch_sectors = {found['sectors']}", profile
        )
    keep = f'on_hit = "keep"\nidle_ahead = {str(found["when_idle"]).lower()}'
    return profile if found["after_hits"] else re.sub(r"(?m)^on_hit .*$", keep, profile)


def drives() -> dict[str, Path]:
    """Traces of measured drives: of SEEKWAY_DRIVES, a folder with one for each drive."""
    beside = Path(__file__).resolve().parents[5] / "shared" / "traces" / "drives"
    folder = Path(os.environ.get("SEEKWAY_DRIVES", beside))
    found = {drive: sorted(folder.glob(f"{drive}/*.trace")) for drive in DRIVES}
    return {drive: traces[0] for drive, traces in found.items() if traces}


def absent() -> dict[str, str]:
    """The measured drives of which there is no trace here, with the reason."""
    return {drive: "no trace of it in SEEKWAY_DRIVES" for drive in DRIVES.keys() - drives().keys()}


@cache
def of_drive(trace: Path) -> tuple[dict[str, Any], str]:
    """One line through a measured trace: its figures and its profile."""
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder, "profile.toml")
        found = seekway.calibrate(trace, profile=profile, as_="trace", one_line=True)
        return found, profile.read_text()


def judge(_found: Runs) -> list[Row]:
    """The throttle's line, recovered from random reads of models and of measured drives."""
    rows = _recovered() + _of_the_disk()
    for profile in [DISK, CUT_SHORT, LINEAR]:
        found = ahead(profile)
        name = f"{profile}: read ahead when another read comes at once"
        rows.append(measured(name, [found["sectors"]], "sectors", _further(found)))
    for drive, trace in drives().items():
        line, (_, base, stroke) = of_drive(trace)[0], DRIVES[drive]
        for what, ours, other in [
            ("at distance 0", line["intercept_ms"], base),
            ("added at full stroke", line["full_stroke_ms"], stroke),
        ]:
            row = measured(f"{drive}: {what}", [ours], "ms", f"an independent fit has {other} ms")
            rows.append(row.ask(abs(ours - other) <= 0.05, "that fit within 0.05 ms"))
    return rows


def _recovered() -> list[Row]:
    """4.25 + 5.25·(d/D), out of the linear device's own reads: a check of our fit."""
    rows = []
    for form, averaged in {"points": False, "moving average of 1001": True}.items():
        fits = [of_model(LINEAR, seed, averaged) for seed in SEEDS]
        for what, key, own in [
            ("at distance 0", "intercept_ms", 4.25),
            ("added at full stroke", "stroke_ms", 5.25),
        ]:
            values = [fit[key] for fit in fits]
            right = all(abs(v / own - 1) <= 0.01 for v in values)
            row = measured(f"{LINEAR}, {form}: {what}", values, "ms", f"the model has {own}")
            rows.append(row.ask(right, "the model's own line within 1 % on every seed"))
    return rows


def _of_the_disk() -> list[Row]:
    """The line through the detailed disk, which the throttle gets in vpt-rank."""

    def each(key: str) -> list[float]:
        return [of_model(DISK, seed)[key] for seed in SEEDS]

    size = "the paper's line is its own drive's, of half the size"
    # A band of 4 ms that is evenly filled has an RMS of 4 / √12.
    return [
        value(f"{DISK}: at distance 0", 4.25, each("intercept_ms"), "ms", 0.25).because(size),
        value(f"{DISK}: added at full stroke", 5.25, each("stroke_ms"), "ms", 0.25).because(size),
        value(f"{DISK}: RMS about the line", 1.155, each("residual_ms"), "ms", 0.25),
        limit(f"{DISK}: cache hit", 0.25, each("hit_ms"), "ms"),
        measured(f"{DISK}: demerit", each("demerit_ms"), "ms"),
    ]


def _further(found: dict[str, Any]) -> str:
    if found["after_hits"]:
        return "a hit always reads further"
    when_idle = found["when_idle"]
    return (
        f"a hit reads {'further only when nothing else comes' if when_idle else 'nothing further'}"
    )
