"""Figures of matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import matplotlib.figure

    from seekway.comparison import Comparison

#: Colours that people with any colour vision can tell apart (Okabe and Ito).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")


def comparison(made: Comparison) -> matplotlib.figure.Figure:
    """Response times by quantile, and the bandwidth of each VM, a bar for each run."""
    from matplotlib.figure import Figure

    runs = made.runs
    several = len({run["seed"] for run in runs}) > 1
    limits = len({run.get("limits") for run in runs}) > 1
    names = [_name(run, several, limits) for run in runs]
    figure = Figure(figsize=(10, 1.2 + 0.36 * max(len(runs), 4)), layout="constrained")
    times, rates = figure.subplots(1, 2, sharey=True)
    places = range(len(runs))
    marks = (("p50", "|"), ("mean", "o"), ("p99", "D"), ("max", "x"))
    for n, (key, mark) in enumerate(marks):
        values = [max(run["response_ms"][key], 1e-4) for run in runs]
        times.plot(
            values,
            places,
            linestyle="none",
            marker=mark,
            color=COLOURS[n],
            label=key,
            markeredgewidth=1.6,
        )
    times.set_xscale("log")
    times.set_xlabel("response time, ms")
    times.set_yticks(places, names)
    times.invert_yaxis()
    times.grid(axis="x", alpha=0.3)
    times.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False)
    vms = [vm["name"] for vm in runs[0]["vms"]] if runs else []
    left = [0.0] * len(runs)
    for n, vm in enumerate(vms):
        widths = [run["vms"][n]["mib_s"] for run in runs]
        colour = COLOURS[n % len(COLOURS)]
        label = vm if n < len(COLOURS) else None
        rates.barh(places, widths, left=left, color=colour, label=label, height=0.7)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    rates.set_xlabel("bandwidth, MiB/s")
    rates.grid(axis="x", alpha=0.3)
    if len(vms) > 1:
        columns = min(len(vms), 4)
        rates.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False)
    figure.suptitle(f"{len(runs)} runs on {made.device}")
    return figure


def _name(run: dict[str, Any], several: bool, limits: bool) -> str:
    parts = [run["policy"]]
    if run.get("cache_mib"):
        parts.append(f"{run['cache_mib']:g} MiB, {run['prefetch']}")
    if limits and run.get("limits") == "none":
        parts.append("no limits")
    if several:
        parts.append(f"#{run['seed']}")
    return " ".join(parts)
