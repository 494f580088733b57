"""The other commands of ``seekway`` as functions.

Each gives back what the command prints with ``--format json``, as lists and dictionaries. Every
option of the command is an argument, with ``_`` for ``-``; an option that is also a word of
Python has ``_`` behind it (``for_="latency"``, ``as_="trace"``). What a command warns of goes to
standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from seekway import _native
from seekway._arguments import Paths, options, texts

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def _json(*arguments: str, names: Sequence[str] = ()) -> Any:
    return json.loads(_native.run([*arguments, "--format=json", "--", *names])[0])


def devices() -> list[dict[str, Any]]:
    """All profiles: name, summary, capacity in sectors, revolution in ms, queue depth."""
    listed: list[dict[str, Any]] = _json("list", "devices")
    return listed


def device(name: str) -> dict[str, Any]:
    """A profile as its file has it, by name or path.

    Raises:
        SeekwayError: there is none, or the file is none.
    """
    return tomllib.loads(_native.run(["list", "devices", name])[0])


def policies() -> list[dict[str, Any]]:
    """All policies: name, summary, source and parameters."""
    listed: list[dict[str, Any]] = _json("list", "policies")
    return listed


def policy(name: str) -> str:
    """Describe a policy and its parameters, as Markdown."""
    return _native.run(["list", "policies", name])[0]


def calibrate(
    what: str | os.PathLike[str], *, profile: str | os.PathLike[str] | None = None, **more: Any
) -> dict[str, Any]:
    """Fit a profile to a disk, an image file or a measured trace.

    Args:
        what: device, file or trace. A disk is only read.
        profile: write the profile to this file, for ``device=`` of other functions.
        more: ``reads=2000``, ``time_max="1min"``, ``rpm=7200``, ``one_line=True``, …

    Returns:
        The fit: parameters with their errors, and what fits badly.
    """
    kind = more.pop("as_", None)
    fitted: dict[str, Any] = _json(
        "calibrate",
        *options({"as": kind, "profile": profile, **more}),
        names=[os.fspath(what)],
    )
    return fitted


def fit_model(
    profile: str, *, averaged: bool = False, reads: int = 100_000, seed: int = 1
) -> dict[str, Any]:
    """Fit a line to random reads of a profile's device without its cache.

    Args:
        profile: as for ``device=`` of other functions.
        averaged: through the moving average, as the throttle's paper has it.
        reads: number of reads of a page, one at a time.
        seed: of their places.

    Returns:
        ``intercept_ms``; ``stroke_ms``, what the line adds over the whole device; ``residual_ms``
        and ``demerit_ms``; ``hit_ms``, of a page read again (None without a cache); and the
        text of the line's ``profile``.
    """
    return _native.fit_model(profile, averaged, reads, seed)


def read_ahead(profile: str) -> dict[str, Any]:
    """Measure the read-ahead of a profile's device.

    Returns:
        ``sectors`` that are there when another read has come at once; ``after_hits`` and
        ``when_idle``: whether it reads further then.
    """
    sectors, after_hits, when_idle = _native.read_ahead(profile)
    return {"sectors": sectors, "after_hits": after_hits, "when_idle": when_idle}


def predict(traces: Paths | None = None, *, on: str, **more: Any) -> dict[str, Any]:
    """Predict a load's service by another disk under each policy.

    Args:
        traces: files, one VM each; or ``vm=[…]`` for generated ones.
        on: the disk's profile.
        more: ``against="…"``, ``outstanding=8``, ``policies="noop,cfq"``, ``seeds=5``, …
    """
    found: dict[str, Any] = _json("predict", *options({"trace": traces, "on": on, **more}))
    return found


def advise(traces: Paths, *, device: str = "seagate-exos-x24", **more: Any) -> dict[str, Any]:
    """Which policy for these traces and this disk, and can the disk carry them at all?

    Args:
        traces: files, one VM each.
        device: the disk's profile.
        more: ``for_="latency"``, ``p99_limit="1s"``, ``cache=["512MiB"]``, …

    Returns:
        ``recommend``, ``ranking``, ``carried``, ``worse_for``, ``advice`` and the runs.
    """
    goal = more.pop("for_", None)
    flags = options({"for": goal, **more})
    found: dict[str, Any] = _json("advise", f"--device={device}", *flags, names=texts(traces))
    return found


def inspect(traces: Paths, **more: Any) -> list[dict[str, Any]]:
    """Count what is in each trace: sizes, rates, depth, reuse; ``by_volume`` has a row a volume.

    Args:
        traces: files.
        more: ``split=40`` (volumes), ``max_requests=…``, ``columns="…"``, …
    """
    found: list[dict[str, Any]] = _json("inspect", *options(more), names=texts(traces))["traces"]
    return found
