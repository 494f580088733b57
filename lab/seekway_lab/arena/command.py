"""`seekway-lab arena`: every policy through every scene, and one scoreboard."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import seekway

from seekway_lab.arena import drawn, own, report
from seekway_lab.arena.play import Board, check, ended_early, play
from seekway_lab.arena.scenes import ArenaError, File, Scene

# By how much `--quick` divides the time.
QUICK = 10
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
  seekway-lab arena --list"""


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
    add("--jobs", type=int, metavar="N", help="runs at the same time [default: number of cores]")


def run(args: argparse.Namespace) -> int:
    """Runs what was asked for and prints it; 2 for wrong usage."""
    try:
        print(text(args), end="")
    except (ArenaError, seekway.SeekwayError) as error:
        print(f"seekway-lab arena: {error}", file=sys.stderr)
        return 2
    return 0


def text(args: argparse.Namespace) -> str:
    """The output, as it was asked for."""
    if args.list:
        return listing(args)
    found = play_all(args)
    for warning in (line for board in found.boards for line in ended_early(board)):
        print(f"warning: {warning}", file=sys.stderr)
    if args.quick:
        said = "a tenth of each scene's time: this shows that it runs, not a result"
        print(f"warning: {said}", file=sys.stderr)
    if args.report:
        args.report.write_text(report.page(found, args.quick))
    if args.format == "json":
        return report.as_json(found) + "\n"
    if args.format == "csv":
        return report.as_csv(found)
    sheets = report.sheets(found, args.details)
    return "\n".join(s.markdown() if args.format == "markdown" else s.text() for s in sheets)


def play_all(args: argparse.Namespace) -> report.Found:
    """Runs all scenes that were asked for."""
    if args.seeds < 1 or args.seed < 0:
        raise ArenaError("--seeds: at least 1; --seed: at least 0")
    if args.report and not args.report.absolute().parent.is_dir():
        raise ArenaError(f"--report {args.report}: its folder does not exist")
    file, seeds = File.read(), list(range(args.seed, args.seed + args.seeds))
    of_own = [own.scene(args.file)] if args.file else []
    policies = chosen_policies(args, file)
    written = scenes_of_file(args, file)

    def board(what: str, scenes: list[Scene]) -> Board:
        return Board.of(what, policies, play(scenes, policies, seeds, args.jobs))

    def drawn_board(what: str, asked: tuple[int, int] | None, everyday: bool) -> Board | None:
        if asked is None:
            return None
        return board(f"{what} (seed {asked[0]})", drawn_scenes(args, file, asked, everyday))

    return report.Found(
        seeds=seeds,
        written=board("scenes", [*(s for s in written if not s.group), *of_own]),
        everyday=board("everyday scenes", [scene for scene in written if scene.group]),
        drawn=drawn_board("drawn scenes", args.drawn, False),
        drawn_everyday=drawn_board("drawn everyday scenes", args.drawn_everyday, True),
        cpu=args.cpu,
    )


def chosen_policies(args: argparse.Namespace, file: File) -> list[str]:
    """Each once. `all` has those too that the devices set, but for a load of the user's own."""
    if args.policies == "all":
        specs = [policy["name"] for policy in seekway.policies()]
        by_devices = [] if args.file else file.set_policies()
    else:
        specs, by_devices = split_specs(args.policies), []
    check([*specs, *args.policy])
    return list(dict.fromkeys([*specs, *by_devices, *args.policy]))


def split_specs(text: str) -> list[str]:
    """A list with commas, in which ``key=value`` belongs to the policy before it."""
    specs: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if specs and "=" in part.partition(":")[0]:
            specs[-1] += f",{part}"
        else:
            specs.append(part)
    return specs


def scenes_of_file(args: argparse.Namespace, file: File) -> list[Scene]:
    """The scenes of the file that were asked for."""
    pattern = args.scenes
    if pattern is None and not (args.file or args.drawn or args.drawn_everyday):
        pattern = "all"
    return file.matching(pattern, shrink(args)) if pattern else []


def drawn_scenes(
    args: argparse.Namespace, file: File, asked: tuple[int, int], everyday: bool
) -> list[Scene]:
    """The scenes that a seed draws."""
    return drawn.drawn_scenes(file, *asked, shrink(args), everyday)


def shrink(args: argparse.Namespace) -> int:
    """What times are divided by."""
    return QUICK if args.quick else 1


def listing(args: argparse.Namespace) -> str:
    """The scenes, without running any."""
    file = File.read()
    scenes = scenes_of_file(args, file)
    for asked, everyday in ((args.drawn, False), (args.drawn_everyday, True)):
        scenes += drawn_scenes(args, file, asked, everyday) if asked else []
    return report.listing(scenes, args.format)
