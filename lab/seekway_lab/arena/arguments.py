"""Options of `seekway-lab arena`. This module needs no wheel."""

from __future__ import annotations

import argparse
from pathlib import Path

DRAWN_DEFAULT = 60
DRAWN_MAX = 10_000

DESCRIPTION = """Put every policy through every scene and print one scoreboard.

A scene is some VMs on a modelled device: a quiet VM beside a flood, a hundred equal VMs, a boot
storm, on disks, flash and cloud volumes. In each scene and measure a policy's regret is its
distance from the best of all policies, 0 to 1; the scoreboard shows each policy's mean and worst
regret. Everyday scenes, in which VMs come late, pause, read ahead or ask for much at once, have a
scoreboard of their own. See docs/arena.md."""

EXAMPLES = """examples:
  seekway-lab arena
  seekway-lab arena --scenes 'nvme/*,*/flood' --policies noop,cfq,vmcd-time --details
  seekway-lab arena --scenes all --drawn 20261127 --seeds 5
  seekway-lab arena --policy cfq:low_latency=false --report arena.html
  seekway-lab arena my-vms.toml
  seekway-lab arena --list

What has run is kept: run again to go on where it was stopped."""


def drawing(text: str) -> tuple[int, int]:
    """``SEED`` or ``SEED:COUNT``."""
    seed, _, count = text.partition(":")
    try:
        seed_and_count = int(seed), int(count) if ":" in text else DRAWN_DEFAULT
    except ValueError:
        seed_and_count = -1, 0
    if not (0 <= seed_and_count[0] < 1 << 64 and 1 <= seed_and_count[1] <= DRAWN_MAX):
        expected = f"expected SEED or SEED:COUNT, such as 20261127:60; at most {DRAWN_MAX}"
        raise argparse.ArgumentTypeError(expected)
    return seed_and_count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add(
        "file",
        nargs="?",
        type=Path,
        metavar="SCENARIO.toml",
        help="your own load as one more scene (docs/scenario.md); its policies and seeds are those "
        "of the arena",
    )
    add(
        "--scenes",
        metavar="GLOB",
        help="scenes by name, with * and commas: 'disk/*,*/flood' [default: all, or none beside a "
        "load of your own, --drawn or --drawn-everyday]",
    )
    more = f"SEED[:COUNT], {DRAWN_DEFAULT} scenes unless COUNT is given"
    add(
        "--drawn",
        type=drawing,
        metavar="SEED[:COUNT]",
        help=f"also run scenes that this seed draws, and score them by themselves; {more}",
    )
    add(
        "--drawn-everyday",
        type=drawing,
        metavar="SEED[:COUNT]",
        help="also run everyday scenes that this seed draws, and score them by themselves",
    )
    add("--list", action="store_true", help="list the scenes and run nothing")
    add(
        "--policies",
        default="all",
        metavar="LIST",
        help="policies with their parameters (noop,cfq:quantum=4,slice_idle=0), or all: beside the "
        "arena's own scenes, iocost, kyber and bfq then run a second time, as an operator would "
        "set them for each device [default: all]",
    )
    add("--policy", action="append", default=[], metavar="SPEC", help="also run this policy")
    add(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="first seed of generated loads [default: 1]",
    )
    add(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="number of seeds; the figures are their means [default: 1]",
    )
    add(
        "--quick",
        action="store_true",
        help="run a tenth of each scene's time: to see whether it runs, not what it gives",
    )
    add("--details", action="store_true", help="also print every scene")
    add(
        "--cpu",
        action="store_true",
        help="also show the CPU time of a request, simulator and device model included; it is "
        "measured, so it differs from run to run",
    )
    add(
        "--format",
        choices=["table", "markdown", "json", "csv"],
        default="table",
        help="of the output [default: table]",
    )
    add("--report", type=Path, metavar="FILE", help="also write a page that needs no network")
    add(
        "--write",
        action="store_true",
        help="write the tables of docs/arena.md instead: all scenes, those drawn by "
        "20261127, and what protection costs in throughput",
    )
    add("--workers", type=int, metavar="N", help="processes here [cores]; 0: none")
    add("--scheduler", metavar="ADDRESS", help="a Dask scheduler, tcp://host:8786")
    add("--kept", type=Path, default=Path("out/lab"), help="runs that were made [out/lab]")
