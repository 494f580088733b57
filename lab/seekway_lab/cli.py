"""The command `seekway-lab`: runs the papers' studies, compares their rows, writes the pages; the
arena; and experiments on real guests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from seekway_lab import beside, pages, records
from seekway_lab.arena import arguments
from seekway_lab.live import runs as live
from seekway_lab.records import LabError, Record
from seekway_lab.together import page as together_page

if TYPE_CHECKING:
    from seekway_lab.papers import Study
    from seekway_lab.runs import Run

ROOT = Path(__file__).resolve().parents[2]
STATUS = (
    "Exit status 0: all that is asked is met; 1: some of it is missed, or rows differ; 2: wrong "
    "usage, or cut short."
)
KEPT = " What has run is kept: run again to go on."
PROGRAM = "a `seekway` program that makes the runs [the wheel]: one that has your own policies"
SEEDS = 5


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="seekway-lab", description=__doc__, epilog=STATUS + KEPT, allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, about: str) -> argparse.ArgumentParser:
        status = STATUS if name == "live" else STATUS + KEPT
        made = commands.add_parser(name, help=about, description=about, epilog=status)
        docs = ROOT / "docs"
        made.add_argument("--docs", type=Path, default=docs, help="the pages' folder [docs]")
        return made

    lists = command("list", "list papers and studies")
    run = command("run", "run studies; print their rows")
    check = command("check", "run studies; do their rows equal the recorded ones, to six digits?")
    together = command("together", "run all parts on one host, in every way; print what is asked")
    page = command("page", "write the pages from claims and recorded rows")
    about = "every policy through every scene: how far is each from the best of all?"
    arena = command("arena", about)
    arguments.add_arguments(arena)
    live.add_options(command("live", "run an experiment on real guests, beside the simulator"))
    for one in (lists, run, check):
        one.add_argument("names", nargs="*", help="a paper, a study ('cats-*' for several), or all")
    for one in (run, check, together):
        one.add_argument("--workers", type=int, metavar="N", help="processes here [cores]; 0: none")
        one.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler, tcp://host:8786")
        one.add_argument("--kept", type=Path, default=Path("out/lab"), help="runs [out/lab]")
    for one in (run, check, together, arena):
        one.add_argument("--program", type=Path, metavar="FILE", help=PROGRAM)
    run.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help=f"[{SEEDS}]")
    run.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="SPEC",
        help="also run this policy in place of the paper's, and compare both by the paper's "
        "claims; FILE.py:CLASS for Python; in vio a prefetcher, in migrate a policy for vCPUs",
    )
    run.add_argument("--format", choices=["text", "csv"], default="text", help="[text]")
    run.add_argument("--write", action="store_true", help="write the recorded rows and the pages")
    page.add_argument("--check", action="store_true", help="write nothing; 1 if a page is old")
    about = "write nothing; print the claims with figures and verdicts"
    page.add_argument("--json", action="store_true", help=about)
    together_page.options(together)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit status."""
    parser = _parser()
    args = parser.parse_args(arguments)
    try:
        if program := getattr(args, "program", None):
            from seekway_lab import engine

            engine.use(program)
        if args.command == "page":
            return _page(args.docs, args.check, args.json)
        if args.command == "list":
            return _list(args.names)
        if args.command == "together":
            from seekway_lab.together import command as together

            return together.run(args)
        if args.command == "arena":
            from seekway_lab.arena import command

            print(command.text(args), end="")
            return 0
        if args.command == "live":
            missed = live.command(args)
            return _page(args.docs, check=False) or missed if args.write else missed
        if args.command == "check":
            args.seeds, args.policy = SEEDS, []
        if getattr(args, "write", False) and (args.policy or args.seeds != SEEDS):
            parser.error(f"--write: recorded rows have {SEEDS} seeds and no further policy")
        return _run(args)
    except (LabError, OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"seekway-lab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        kept = "" if args.command == "live" else "; run again to go on where this was"
        print(f"seekway-lab: stopped{kept}", file=sys.stderr)
        return 130


def _chosen(names: Sequence[str]) -> dict[str, list[str] | None]:
    """Papers, each with the patterns of studies that are wanted; None for all."""
    chosen: dict[str, list[str] | None] = {}
    for name in names or ["all"]:
        if name == "all":
            chosen |= dict.fromkeys(pages.PAPERS)
        elif name in pages.PAPERS:
            chosen[name] = None
        else:
            family = name.partition("-")[0]
            known = {p: paper for paper, (_, ps) in pages.PAPERS.items() for p in ps}
            of = [paper for p, paper in known.items() if p.partition("-")[0] == family]
            if not of:
                papers = ", ".join(pages.PAPERS)
                raise LabError(f"no paper or study '{name}'; papers: {papers}; studies: list")
            wanted = chosen.setdefault(of[0], [])
            if wanted is not None:
                wanted.append(name)
    return chosen


def _matching(studies: list[Study], patterns: list[str] | None) -> list[Study]:
    found = [
        study
        for study in studies
        if patterns is None or any(fnmatchcase(study.name, pattern) for pattern in patterns)
    ]
    if not found:
        raise LabError(f"no study {', '.join(patterns or [])}; seekway-lab list")
    return found


def _list(names: Sequence[str]) -> int:
    from seekway_lab import papers

    for paper in _chosen(names):
        print(f"{paper}: {pages.PAPERS[paper][0]}")
        for study in papers.studies(paper):
            print(f"  {study.name}  {study.summary}")
    return 0


def _run(args: argparse.Namespace) -> int:
    missed, chosen = False, _chosen(args.names)
    if getattr(args, "write", False) and (parts := [p for p, of in chosen.items() if of]):
        raise LabError(f"--write: the rows of a paper are one file: run all of {parts[0]}")
    _check_policies(args.policy, chosen)
    for paper, patterns in chosen.items():
        found, others = _rows(args, paper, patterns)
        if args.command == "check":
            missed |= _compare(args, paper, found, patterns)
            continue
        missed |= any(row["asked"] == "missed" for row in found)
        if args.write:
            with _recorded(args.docs, paper).open("w", newline="") as file:
                records.write(file, found)
            _write_loads(args.docs, paper)
        else:
            _show(found, args.format, others)
            if others and args.format == "text":
                print(beside.summary(args.docs, paper, found, others), end="")
    if getattr(args, "write", False):
        # The pages list the rows below their targets.
        return _page(args.docs, check=False)
    return int(missed)


def _check_policies(policies: Sequence[str], chosen: dict[str, list[str] | None]) -> None:
    """Refuses a policy that can stand in for none of the chosen studies' own."""
    from seekway_lab import engine, papers

    every = [s for paper, of in chosen.items() for s in _matching(papers.studies(paper), of)]
    kinds = dict.fromkeys(study.under for study in every if study.papers)
    if policies and not kinds:
        raise LabError("--policy: these studies have no policy of the paper's for it to stand in")
    for policy in policies:
        why = [papers.refusal(kind, engine.chosen(), policy) for kind in kinds]
        if all(why):
            raise LabError(f"--policy {policy}: {'; '.join(why)}")


def _rows(
    args: argparse.Namespace, paper: str, patterns: list[str] | None
) -> tuple[list[Record], dict[str, list[Record]]]:
    """Rows of a paper's studies, and by policy those with it in place of the paper's policy."""
    from seekway_lab import papers, runs

    studies = _matching(papers.studies(paper), patterns)
    laboratory = runs.Laboratory(args.kept, workers=args.workers, scheduler=args.scheduler)
    seeds = range(1, args.seeds + 1)
    wanted = {
        study.name: [run for s in study.scenarios() for run in runs.runs(s, study.wanted, seeds)]
        for study in studies
    }
    others = {
        policy: {
            study.name: study.in_place(wanted[study.name], policy)
            for study in studies
            if study.takes(policy)
        }
        for policy in args.policy
    }
    sets = [wanted, *others.values()]
    every = [run for of in sets for made in of.values() for run in made]
    laboratory.make(every, runs.progress(paper))

    def rows(made: Mapping[str, list[Run]]) -> list[Record]:
        return [
            row.record(study.name)
            for study in studies
            if study.name in made
            for row in study.judge(laboratory.read(made[study.name], wanted[study.name]))
        ]

    return rows(wanted), {policy: rows(made) for policy, made in others.items() if made}


def _recorded(docs: Path, paper: str) -> Path:
    return docs / "experiments" / "results" / f"{paper}.csv"


def _show(found: list[Record], form: str, others: Mapping[str, list[Record]]) -> None:
    beside.add_columns(found, others)
    if form == "csv":
        records.write(sys.stdout, found, others)
        return
    heads = ["row", "paper:", "ours:", *(f"{policy}:" for policy in others)]
    heads += ["least:", "largest:", "unit", "verdict", "asked"]
    for experiment in dict.fromkeys(row["experiment"] for row in found):
        print(f"## {experiment}\n")
        lines = [
            [row[head.rstrip(":")] for head in heads]
            for row in found
            if row["experiment"] == experiment
        ]
        print(pages.table(heads, lines))


def _compare(
    args: argparse.Namespace, paper: str, found: list[Record], patterns: list[str] | None
) -> bool:
    """Compares rows with the recorded ones; whether some differ."""
    from seekway_lab import papers

    made = {row["experiment"] for row in found}
    known = records.read(_recorded(args.docs, paper))
    known = [row for row in known if row["experiment"] in made or patterns is None]
    reasons = {study.name: study.is_unequal for study in papers.studies(paper)}

    def why(row: Record) -> str | None:
        return reasons[row["experiment"]](row["row"])

    cannot = [row for row in known if row["experiment"] in made and why(row)]
    found = [row for row in found if not why(row)]
    beside = records.differences(found, [row for row in known if row not in cannot])
    counts = ", ".join(f"{len(rows)} {what}" for what, rows in beside.items())
    print(f"{paper}: {len(known)} recorded rows: {counts}, {len(cannot)} cannot be equal")
    for what in ("differ", "missing", "new"):
        for name in beside[what][:20]:
            print(f"  {what}: {name}")
    for row in cannot:
        print(f"  cannot be equal: {row['experiment']}: {row['row']}: {why(row)}")
    return any(beside[what] for what in ("differ", "missing", "new"))


def _write_loads(docs: Path, paper: str) -> None:
    """Notes which loads the rows are of."""
    from seekway_lab import papers

    path = docs / "experiments" / "results" / "loads.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    patterns = pages.PAPERS[paper][1]
    others = {n: h for n, h in known.items() if not any(fnmatchcase(n, p) for p in patterns)}
    ours = {study.name: study.loads() for study in papers.studies(paper)}
    path.write_text(json.dumps(dict(sorted((others | ours).items())), indent=1) + "\n")


def _page(docs: Path, check: bool, as_json: bool = False) -> int:
    found = pages.claims_of(docs)
    if as_json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return 0
    texts = pages.pages(found, docs) | together_page.pages(docs)
    old = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in old:
        if check:
            print(f"{path}: older than its inputs; seekway-lab page", file=sys.stderr)
        else:
            path.write_text(texts[path])
            print(path)
    return int(check and bool(old))
