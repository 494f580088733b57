"""``python -m seekway campaign``: studies from the command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import seekway
from seekway._errors import SeekwayError
from seekway.campaign.results import Results
from seekway.campaign.run import Campaign

_STATUS = "Exit status 0: all cells have figures; 1: some failed; 2: wrong usage, or cut short."


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m seekway campaign",
        description="Studies of many comparisons, on this machine or on a cluster.",
        epilog=_STATUS,
    )
    parser.add_argument("--version", action="version", version=seekway.__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run the cells that have no result yet", epilog=_STATUS)
    run.add_argument("study", type=Path, metavar="STUDY.toml")
    run.add_argument("--out", type=Path, metavar="DIR", help="results [default: STUDY.results]")
    run.add_argument("--workers", type=int, metavar="N", help="processes here [default: cores]")
    run.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler, tcp://host:8786")
    run.add_argument("--quiet", action="store_true", help="no progress bar")
    cells = commands.add_parser("cells", help="list the cells, and which are done")
    cells.add_argument("study", type=Path, metavar="STUDY.toml")
    cells.add_argument("--out", type=Path, metavar="DIR", help="results [default: STUDY.results]")
    show = commands.add_parser("show", help="the figures of each policy and device")
    show.add_argument("out", type=Path, metavar="DIR")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command; its exit status."""
    args = _parser().parse_args(arguments)
    try:
        if args.command == "run":
            return _run(args)
        if args.command == "cells":
            return _cells(args)
        return _show(args.out)
    except SeekwayError as error:
        print(f"python -m seekway campaign: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output has seen enough.
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        text = "stopped; run again to go on where this was"
        print(f"python -m seekway campaign: {text}", file=sys.stderr)
        return 130


def _out(args: argparse.Namespace) -> Path:
    study: Path = args.study
    out: Path = args.out or study.with_suffix(".results")
    return out


def _run(args: argparse.Namespace) -> int:
    if args.workers is not None and args.workers < 1:
        raise SeekwayError(f"--workers {args.workers}: at least 1")
    out = _out(args)
    progress = False if args.quiet else None
    results = Campaign.from_file(args.study).run(
        out, workers=args.workers, scheduler=args.scheduler, progress=progress
    )
    errors = results.errors
    for axes, error in errors[:10]:
        print(f"failed: {axes}: {error}", file=sys.stderr)
    print(f"{out}: {len(results)} cells, {len(errors)} failed")
    return 1 if errors else 0


def _cells(args: argparse.Namespace) -> int:
    cells = Campaign.from_file(args.study).cells()
    done = Results(_out(args)).keys
    for cell in cells:
        mark = "done" if cell.key in done else "    "
        print(mark, cell.key[:12], " ".join(cell.arguments))
    print(f"{len(cells)} cells, {sum(c.key in done for c in cells)} done", file=sys.stderr)
    return 0


def _show(out: Path) -> int:
    if not out.is_dir():
        raise SeekwayError(f"{out}: no such folder")
    frame = Results(out).to_pandas()
    if frame.empty:
        raise SeekwayError(f"{out}: no results")
    groups = frame.groupby(["device", "policy"])[["mib_s", "mean_ms", "p99_ms", "max_min_share"]]
    table = groups.median()
    table.insert(0, "cells", frame.groupby(["device", "policy"]).size())
    print(table.sort_values(["device", "p99_ms"]).to_string(float_format="%.4g"))
    print(f"medians of {len(frame)} cells, {frame['error'].notna().sum()} failed", file=sys.stderr)
    return 0
