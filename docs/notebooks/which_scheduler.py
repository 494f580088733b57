"""Which scheduler for my trace? A notebook of marimo.

python docs/notebooks/which_scheduler.py [--trace FILE] [--device NAME] [--until TIME] [--out DIR]
marimo edit docs/notebooks/which_scheduler.py

Without a trace (here or in SEEKWAY_TRACE), the load is two generated VMs.
"""

import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import os
    from pathlib import Path

    import marimo as mo
    import seekway
    from matplotlib.figure import Figure

    return Figure, Path, mo, os, seekway


@app.cell
def _(mo):
    mo.md("""
    # Which scheduler for my trace?

    One load, one disk, every policy of Seekway. The table has all figures; the curves show how
    long requests take under the three policies with the shortest mean response.
    """)
    return


@app.cell
def _(mo, os):
    given = mo.cli_args()
    trace = given.get("trace") or os.environ.get("SEEKWAY_TRACE")
    device = given.get("device") or "seagate-1tb-7200"
    until = given.get("until") or (None if trace else "20s")
    out = given.get("out") or os.environ.get("SEEKWAY_OUT")
    vms = (
        "name=web,app=sysbench:mode=RR,app=sysbench:mode=RW",
        "name=db,app=sysbench:mode=SR",
    )
    load = {"traces": [trace]} if trace else {"vms": vms}
    return device, load, out, trace, until


@app.cell
def _(device, load, mo, seekway, until):
    made = seekway.compare(**load, device=device, policies="all", until=until, alone="never")
    print(made)
    mo.ui.table(made.table, selection=None)
    return (made,)


@app.cell
def _(made):
    overview = made.plot()
    overview  # noqa: B018 - a cell shows its last expression
    return (overview,)


@app.cell
def _(mo):
    mo.md("""
    ## How long does a request take?

    A curve shows which share of the requests takes at most a given time: higher and further left is
    better. Only requests that were served count.
    """)
    return


@app.cell
def _(Figure, made):
    from seekway._plot import COLOURS

    def latencies(made):
        """Cumulative distribution of the response times under the three best policies."""
        order = sorted(range(len(made.runs)), key=lambda n: made.runs[n]["response_ms"]["mean"])
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.subplots()
        for colour, run in zip(COLOURS, order[:3], strict=False):
            requests = made.requests(run).to_pandas()
            taken = (requests["completed_ns"] - requests["submitted_ns"]).sort_values() / 1e6
            shares = [100 * (n + 1) / len(taken) for n in range(len(taken))]
            axes.step(taken.clip(lower=1e-3), shares, where="post", color=colour, lw=1.8)
            mean = made.runs[run]["response_ms"]["mean"]
            axes.plot([], [], color=colour, label=f"{made.runs[run]['policy']}, mean {mean:.3g} ms")
        axes.set_xscale("log")
        axes.set_ylim(0, 101)
        axes.set_xlabel("response time, ms")
        axes.set_ylabel("requests done within this time, %")
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left", frameon=False)
        axes.set_title(f"Response times on {made.device}")
        return figure

    curves = latencies(made)
    curves  # noqa: B018 - a cell shows its last expression
    return (curves,)


@app.cell
def _(device, mo, seekway, trace, until):
    if trace:
        advised = seekway.advise([trace], device=device, **({"max_time": until} if until else {}))
        advice = advised["advice"]
    else:
        advice = "Advice needs a trace: give one with `--trace FILE`."
    text = advice if isinstance(advice, str) else "\n\n".join(str(line) for line in advice)
    print(text)
    mo.md("## Advice\n\n" + text)
    return


@app.cell
def _(Path, curves, out, overview):
    if out:
        Path(out).mkdir(parents=True, exist_ok=True)
        overview.savefig(Path(out) / "policies.png", dpi=110)
        curves.savefig(Path(out) / "latencies.png", dpi=110)
    return


if __name__ == "__main__":
    app.run()
