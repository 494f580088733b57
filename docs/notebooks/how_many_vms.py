"""How many VMs can share this disk? A notebook of marimo.

python docs/notebooks/how_many_vms.py [--device NAME] [--app APP] [--most N] [--target MS]
    [--until TIME] [--out DIR]
marimo edit docs/notebooks/how_many_vms.py
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
    from seekway._plot import COLOURS

    return COLOURS, Figure, Path, mo, os, seekway


@app.cell
def _(mo):
    mo.md("""
    # How many VMs can share this disk?

    Equal VMs are put on one disk, one more each time. The VM that fares worst counts: it is not
    to wait longer than the target for 99 of 100 requests. The answer depends on the policy. Only
    requests that were served count; beyond what the disk carries, many are not.
    """)
    return


@app.cell
def _(mo, os):
    given = mo.cli_args()
    device = given.get("device") or "seagate-1tb-7200"
    most = int(given.get("most") or 12)
    target_ms = float(given.get("target") or 100)
    until = given.get("until") or "20s"
    out = given.get("out") or os.environ.get("SEEKWAY_OUT")
    app_of_each = (
        given.get("app") or "iometer:random=100,read=70,iops=15,arrival=exponential,depth=64"
    )
    policies = ("noop", "deadline", "cfq", "fairway")
    return app_of_each, device, most, out, policies, target_ms, until


@app.cell
def _(app_of_each, device, most, policies, seekway, until):
    def worst_p99(n):
        """The p99 of the VM with the largest one among n VMs, in ms, for each policy."""
        vms = [f"name=vm{k},app={app_of_each}" for k in range(1, n + 1)]
        made = seekway.compare(
            vms=vms, device=device, policies=list(policies), until=until, alone="never"
        )
        return {
            run["policy"]: max(vm["response_ms"]["p99"] or 0.0 for vm in run["vms"])
            for run in made.runs
        }

    measured = {n: worst_p99(n) for n in range(1, most + 1)}
    return (measured,)


@app.cell
def _(measured, mo, policies, target_ms):
    def largest(policy):
        """The most VMs up to which no number of them misses the target."""
        fit = 0
        for n, worst in measured.items():
            if worst[policy] > target_ms:
                break
            fit = n
        return fit

    answers = {policy: largest(policy) for policy in policies}
    lines = [
        f"- **{policy}**: {fit}{' or more' if fit == max(measured) else ''} "
        f"{'VM' if fit == 1 else 'VMs'} with a p99 of at most {target_ms:g} ms"
        for policy, fit in answers.items()
    ]
    print("\n".join(lines).replace("**", ""))
    mo.md("\n".join(lines))
    return (answers,)


@app.cell
def _(mo, measured):
    mo.ui.table(
        [
            {"VMs": n} | {policy: round(ms, 2) for policy, ms in worst.items()}
            for n, worst in measured.items()
        ],
        selection=None,
        label="p99 of the worst VM, ms",
    )
    return


@app.cell
def _(COLOURS, Figure, answers, device, measured, policies, target_ms):
    def growth():
        """The worst VM's p99 against the number of VMs, a line for each policy."""
        figure = Figure(figsize=(7.5, 4.4), layout="constrained")
        axes = figure.subplots()
        for colour, mark, policy in zip(COLOURS, "os^D", policies, strict=False):
            axes.plot(
                list(measured),
                [worst[policy] for worst in measured.values()],
                color=colour,
                marker=mark,
                ms=5,
                label=f"{policy}: {answers[policy]} VMs",
            )
        axes.axhline(target_ms, color="black", lw=1, ls="--", label=f"target, {target_ms:g} ms")
        axes.set_yscale("log")
        axes.set_xticks(list(measured))
        axes.set_xlabel("VMs on the disk")
        axes.set_ylabel("p99 of the worst VM, ms")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        axes.set_title(f"VMs that share {device}")
        return figure

    figure = growth()
    figure  # noqa: B018 - a cell shows its last expression
    return (figure,)


@app.cell
def _(Path, figure, out):
    if out:
        Path(out).mkdir(parents=True, exist_ok=True)
        figure.savefig(Path(out) / "how_many_vms.png", dpi=110)
    return


if __name__ == "__main__":
    app.run()
