"""vMigrater (sections 2.3 and 5) and our own targets: VMs whose vCPUs share processors.

"Not shared" is the VMs of a scene on the same disk, each on processors of its own. The bound is the
share of the time in which a VM has any vCPU running. See docs/experiments/migrate.md.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from seekway_lab import declared
from seekway_lab.judge import Row, Runs, count, factor, limit, mean, measured, ordering, value
from seekway_lab.papers import Study
from seekway_lab.papers.migrate import scenes
from seekway_lab.papers.migrate.figures import WANTED, Series, across, by_agent
from seekway_lab.papers.migrate.scenes import (
    ALL,
    ANY,
    APPLICATIONS,
    COMPARED,
    COMPETITORS,
    FIRST,
    KEPT_FREE,
    LOADS,
    MICRO,
    OF_VMIGRATER,
    OTHERS,
    OURS,
    PAPERS,
    PROGRAM,
    STEERED,
    TEXT,
    VANILLA,
    Scene,
    both,
    scene,
    under,
)
from seekway_lab.runs import Run
from seekway_lab.scenarios import Scenario, Table, merged

HERE = Path(__file__).parent
ROWS = tomllib.loads((HERE / "rows.toml").read_text())
FIGURES = tomllib.loads((HERE / "paper.toml").read_text())
COUNTS = [2, 4, 8]


class OfAgents(Study):
    """A study of policies for vCPUs."""

    @staticmethod
    def form(run: Run) -> str:
        """The policy for vCPUs of a run."""
        return str(run.scenario.axes["agent"])

    @staticmethod
    def under(scenario: Scenario, policy: str) -> Scenario:
        """A scenario under another policy for vCPUs."""
        return replace(scenario, table=merged(scenario.table, {"cpu": {"agent": policy}}))


def _declared(study: str, found: Runs) -> list[Row]:
    return declared.rows({**ROWS, "row": ROWS[study]}, found)


def _above(found: Runs, what: str, members: list[str]) -> Row:
    """Ours over the best of the others."""
    each = [across(found, members, OURS, policy) for policy in OTHERS]
    values = min(each, key=mean)
    row = measured(f"{what}: ours over the best of the others", values, "×")
    return row.ask(mean(values) > 1, "above all of them")


# --- inactivity


def inactivity_scenarios() -> list[Scenario]:
    """Figure 2: one I/O task, one in each VM, and VMs with 20 and 80 % of the processors."""
    listed = []
    for work, disk in [
        ("sequential read", "SSD"),
        ("sequential read", "HDD"),
        ("sequential read ahead", "HDD"),
    ]:
        two = scene(work, disk, cores=4)
        second = {**two.vms[1], "task": two.vms[1]["task"][:-1]}
        three = [two.changed("one I/O task", vm=[two.vms[0], second]), two, two.with_cpu_share(20)]
        listed += three if work in MICRO else []
        listed += [s.papers() for s in three if disk == "HDD"]
    quotas = scene("sequential read", "HDD", cores=4).with_cpu_share(20).papers().with_quotas()
    return scenes.unique(*(both(s, [VANILLA]) for s in [*listed, quotas]))


def inactivity(found: Runs) -> list[Row]:
    """Two VMs on the cores of one: an I/O task's loss while its vCPU is away (section 2.3)."""
    return _declared("inactivity", by_agent(found))


# --- migrate-scale

CUT = "a tenth of the slices cut short"
WAKES_WAIT = "no wake-up preemption on the host"
IN_ONE = "the agent in one VM only"
EMULATED = "the agent as dear as in an emulated guest"


def _waking(scene: Scene) -> list[Scenario]:
    """xBalloon where a vCPU that wakes has to wait for the end of others' slices."""
    return under(scene.changed(WAKES_WAIT, cpu={"wakeup_preempts": False}), ["xballoon"])


def _micro(disk: str, vms: int) -> list[Scene]:
    """Bursts of 100 MB are for the SSD."""
    works = MICRO if disk == "SSD" else MICRO[:2]
    return scenes.scenes(works, "micro-benchmarks", disk, vms)


def _in_one(vms: int) -> list[Scene]:
    """Two applications in one VM that has the agent; the others have neither."""

    def alone(scene: Scene) -> Scene:
        others = [{**vm, "agent": False, "task": vm["task"][:-1]} for vm in scene.vms[1:]]
        changed = scene.changed(IN_ONE, vm=[scene.vms[0], *others])
        return changed.of(f"{vms} VMs, the agent in one only")

    return [alone(scene(work, vms=vms)) for work in ["HDFS", "LevelDB"]]


def _cached(vms: int) -> Scene:
    table = {**LOADS["disk"]["SSD"], "cpu": {"count": scenes.CORES, "guests_compute": True}}
    table["vm"] = [{"name": f"vm{n + 1}", **LOADS["cached"]} for n in range(vms)]
    return Scene(f"{vms} VMs, sequential read on SSD through the page cache", table)


def scale_scenarios() -> list[Scenario]:
    """Figures 8 to 10."""
    listed: list[list[Scenario]] = []
    for disk, vms in product(LOADS["disk"], [1, *COUNTS]):
        for s in _micro(disk, vms):
            if vms == 1:
                listed.append(under(s.of(""), OF_VMIGRATER))
                continue
            listed += [both(s, ALL), _waking(s)]
            if disk == "HDD":
                listed.append(under(s.heard(ANY), ALL, s))
            else:
                listed += [
                    under(s.heard(who), OF_VMIGRATER) for who in [KEPT_FREE, FIRST, ANY, STEERED]
                ]
            if vms > 2:
                listed.append(under(s.changed(CUT, cpu={"cut": 100}), ALL, s))
    for vms in COUNTS:
        dear = scene("random read", vms=vms).changed(EMULATED, cpu=LOADS["emulated"])
        listed += [under(dear, [VANILLA, OURS, f"{OURS}:except=rest"])]
        listed.append(under(_cached(vms), OF_VMIGRATER))
        for s in scenes.scenes(APPLICATIONS, "applications", "SSD", vms):
            listed += [both(s, ALL), _waking(s)]
            listed.append(under(s.papers(), [VANILLA, *OTHERS]))
        for s in _in_one(vms):
            listed += [both(s, OF_VMIGRATER), under(s.papers(), [VANILLA, *PAPERS])]
    return scenes.unique(*listed)


def scale(found: Runs) -> list[Row]:
    """1 to 8 VMs on the processors of one, under each policy for vCPUs (section 5.2)."""
    found = by_agent(found)
    rows, groups = _declared("scale", found), found.groups("group")
    for what, members in groups.items():
        if what.endswith(("SSD", "HDD", CUT)):
            rows.append(_above(found, what, members))
        if f"{what}, {WAKES_WAIT}" in groups:
            values = found.across(
                members,
                lambda s: (
                    found.each(f"{s}, {WAKES_WAIT}", "xballoon", "rate")
                    / found.each(s, VANILLA, "rate")
                ),
            )
            name = f"{what}: xballoon without the host's wake-up preemption over vanilla"
            rows.append(measured(name, values, "×"))
    rises = [_rises(found, groups, form) for form in PAPERS]
    return [*rows, *_beside_the_paper(found, groups), *rises]


def _beside_the_paper(found: Runs, groups: dict[str, list[str]]) -> list[Row]:
    rows = []
    for of in FIGURES["over"]:
        over = of["figures"]
        for n, vms in enumerate(COUNTS):
            what = f"{vms} VMs, {of['works']}"
            members = groups[f"{what}, {KEPT_FREE}"]
            for ours, (base, papers) in product(PAPERS, over.items()):
                name = f"{what}, the paper's host: {ours} over {base}"
                rows.append(factor(name, papers[n], across(found, members, ours, base)))
            for other in (p for p in COMPETITORS if p in over):
                name = f"{what}, the paper's host: {other} over {VANILLA}"
                rows.append(measured(name, across(found, members, other, VANILLA), "×"))
    return rows


def _rises(found: Runs, groups: dict[str, list[str]], form: str) -> Row:
    """A form of the paper's gains the more, the more VMs there are."""
    host = [groups[f"{vms} VMs, applications on SSD, {KEPT_FREE}"] for vms in COUNTS]
    two, four, eight = (np.asarray(across(found, s, form, VANILLA)) for s in host)
    name = f"applications on SSD, the paper's host: {form}'s gain with 8 VMs over 2"
    return measured(name, eight / two, "×").ordered(count((two < four) & (four < eight)))


# --- migrate-cost


def _competitors() -> list[Scene]:
    """Two VMs with HDFS, and with a competitor on each vCPU instead of a compute task."""
    two = scene("HDFS").papers()
    return [
        two.changed(name, vm=[scenes.competing(vm, load) for vm in two.vms])
        for name, load in LOADS["competitors"].items()
    ]


def cost_scenarios() -> list[Scenario]:
    """Tables 2 and 3, figures 11 and 12."""
    two, four = (
        [scene(work, vms=vms).papers().of(f"{vms} VMs, applications") for work in APPLICATIONS]
        for vms in (2, 4)
    )
    return scenes.unique(
        *(both(s, COMPARED) for s in two), *(under(s, COMPARED) for s in [*four, *_competitors()])
    )


def cost(found: Runs) -> list[Row]:
    """Moves, inactivity, response, and the compute tasks' loss (section 5.2)."""
    found = by_agent(found)
    rows = _declared("cost", found)
    for form, (work, figures) in product(PAPERS, FIGURES["applications"].items()):
        moves, speedup, inactive = figures
        two, four = (f"{vms} VMs, {work} on SSD, {KEPT_FREE}" for vms in (2, 4))
        name, values = f"{two}: moves over the least, {form}", found.each(two, form, "moves")
        rows.append(value(name, moves, values, "×", 0.2))
        gains = found.ratio(two, form, VANILLA, "rate")
        rows.append(factor(f"{two}: {form} over vanilla", speedup, gains))
        less = found.ratio(four, VANILLA, form, "inactive_s")
        name = f"{four}: inactivity for each block, vanilla over {form}"
        rows.append(factor(name, inactive, less))
    # Figure 11: MediaTomb is worst.
    applications = found.groups("group")["2 VMs, applications"]
    media = next(s for s in applications if "MediaTomb" in s)
    others = [s for s in applications if s != media]
    for policy in OTHERS:
        slower = partial(found.each, policy=policy, figure="slower")
        values = slower(media) / found.across(others, slower)
        name = f"2 VMs, MediaTomb: response over that without sharing, over the others', {policy}"
        rows.append(ordering(name, values, 1, "×"))
    return rows


# --- migrate-vary

#: Figure 14: seconds at which clients come, and how many.
ADDED = {0: 8, 4: 4, 8: 8, 11: 16}
PHASES = [*ADDED, 16]
#: Figure 13: clients at a time, in both VMs. From 24 on processors are short.
CLIENTS = [8, 20, 24, 32, 40]
#: "Almost the same" is within this. With two vCPUs the paper's host keeps none free.
ALIKE, HOST = 0.15, f", {FIRST}"


def _clients(name: str, added: dict[int, int]) -> Scene:
    """Two VMs of two vCPUs with HDFS, and clients that each take a fifth of a processor: 2 ms of
    work (a guess), and a sleep of 8 ms.
    """
    load = {"partly": {"burst": "2ms", "permille": 200}}
    reader: Table = {"name": "HDFS", "load": scenes.WORKS["HDFS"]}
    tasks = [[reader], [reader]]
    for at, clients in added.items():
        for number in range(clients):
            own = tasks[number % 2]
            n = len(own) - 1
            own.append({"name": f"client{n}", "start": n % 2, "from": f"{at}s", "load": load})
    return scenes.of_tasks(name, "SSD", 2, tasks)


def vary_scenarios() -> list[Scenario]:
    """Figures 13 and 14, by the vCPU that hears of completions."""
    coming = _clients("clients that come", ADDED)
    coming.table["measure"] = {"settle": "1s", "until": "16s"}
    constant = [_clients(f"{clients} clients", {0: clients}) for clients in CLIENTS]
    own = [under(coming, OF_VMIGRATER), *(under(s, COMPARED) for s in constant)]
    host = [
        under(coming.heard(FIRST), OF_VMIGRATER),
        *(under(s.heard(FIRST), COMPARED) for s in constant),
    ]
    return scenes.unique(*own, *host)


def vary(found: Runs) -> list[Row]:
    """Clients come: throughput over their number, and how soon it is back (section 5.3)."""
    found = by_agent(found)
    rows = _declared("vary", found)
    rows += [_above(found, name, [name]) for name in (f"{n} clients" for n in CLIENTS[2:])]
    for host, n in product(["", HOST], range(1, len(ADDED))):
        rows += _recovery(found, f"clients that come{host}", n)
    some, many = f"20 clients{HOST}", f"40 clients{HOST}"
    for form, policy in product(PAPERS, COMPETITORS):
        before, ahead = (found.ratio(s, form, policy, "rate") for s in (some, many))
        name = f"{many}: {form} over {policy}"
        # "Significantly" is by this factor.
        rows.append(ordering(name, ahead, 1.1, "×"))
        rows.append(ordering(f"{name}, over that of {some}", ahead / before, 1, "×"))
    return rows


def _recovery(found: Runs, scene: str, n: int) -> list[Row]:
    """Throughput before and after the n-th clients come."""
    before, now = ((PHASES[k], PHASES[k + 1]) for k in (n - 1, n))
    what = f"{scene}, {ADDED[now[0]]} more at {now[0]} s"
    rows = []
    for policy in (*PAPERS, OURS):
        series = [Series(run) for _, run in found.cell(scene, policy).iterrows()]
        name, back = f"{what}: back after, {policy}", [s.recovery(*now) for s in series]
        if not scene.endswith(FIRST):
            row = measured(name, back, "s")
            rows.append(row.ask(mean(back) <= 1.3, "at most 1.3 s") if policy == OURS else row)
        elif policy != OURS:
            rows.append(limit(name, 1.3, back, "s"))
            levels = np.array([[s.level(*before), s.level(*now)] for s in series])
            name = f"{what}: what it comes to over that before, {policy}"
            rows.append(value(name, 1, levels[:, 1] / levels[:, 0], "×", ALIKE))
            if n + 1 == len(ADDED):
                # Section 7 gives the drop for the last clients only.
                worst = np.array([s.within(*now).min() for s in series])
                name = f"{what}: the worst quarter of a second over that before, {policy}"
                rows.append(factor(name, 1 - 0.456, worst / levels[:, 0]))
    return rows


# --- migrate-fair


def fair_scenarios() -> list[Scenario]:
    """Figure 15: unequal shares of the processors, on the paper's host and on two others."""
    listed = []
    for percent in (10, 20, 30, 40):
        s = scene("HDFS", "HDD").with_cpu_share(percent).of("2 VMs, HDFS on HDD")
        listed += [s.papers(), s.papers().with_quotas(), s, s.heard(ANY)]
    return scenes.unique(*(both(s, OF_VMIGRATER) for s in listed))


def fair(found: Runs) -> list[Row]:
    """VMs with 10:90 to 40:60 of the processors and equal shares of the disk (section 5.4)."""
    found = by_agent(found)
    rows = _declared("fair", found)
    what = "2 VMs, HDFS on HDD"
    for host in (KEPT_FREE, f"{KEPT_FREE}, equal quotas"):
        uneven, even = (
            found.each(f"{what}, CPU shares {shares}, {host}", VANILLA, "ahead")
            for shares in ("10:90", "40:60")
        )
        name = f"{what}, {host}: vanilla, VM 2 over VM 1 with 10:90 over that with 40:60"
        rows.append(ordering(name, uneven / even, 1, "×"))
    return rows


# --- migrate-ablation

PARTS = ["park", "fresh", "predict", "leave"]
#: Each of our four parts taken away from ours, then added to the text's form; and ours with the
#: paper's beats.
FORMS = [f"{form}except={part}" for form in (f"{OURS}:", f"{TEXT},") for part in PARTS]
FORMS += [f"{OURS}:except=beats"]


def ablation_scenarios() -> list[Scenario]:
    """One thing of the model changed at a time, and one part of the policy."""
    listed = [both(scene("random read", vms=8).papers(), [*OF_VMIGRATER, *FORMS])]
    for base in [
        scene("random read", vms=4),
        scene("random read", vms=8),
        scene("sequential read", "HDD", 4),
    ]:
        listed.append(both(base, FORMS))
        for name, cpu in LOADS["settings"].items():
            listed.append(under(base.changed(name, cpu=cpu), OF_VMIGRATER, base))
    return scenes.unique(*listed)


def ablation(found: Runs) -> list[Row]:
    """One thing changed: stopper, completions, prediction, costs, detector, slices, our parts."""
    return _declared("ablation", by_agent(found))


STUDIES = [
    OfAgents(name, judge, of, WANTED, papers=(PROGRAM,))
    for name, judge, of in [
        ("inactivity", inactivity, inactivity_scenarios),
        ("migrate-scale", scale, scale_scenarios),
        ("migrate-cost", cost, cost_scenarios),
        ("migrate-vary", vary, vary_scenarios),
        ("migrate-fair", fair, fair_scenarios),
        ("migrate-ablation", ablation, ablation_scenarios),
    ]
]
