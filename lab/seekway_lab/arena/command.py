"""`seekway-lab arena`: every policy through every scene, and one scoreboard."""

from __future__ import annotations

import argparse
import sys

from seekway_lab import engine
from seekway_lab.arena import drawn, own, report, tables
from seekway_lab.arena.play import Board, Player, check, ended_early
from seekway_lab.arena.scenes import File, Scene
from seekway_lab.records import LabError
from seekway_lab.runs import Laboratory

# By how much `--quick` divides the time.
QUICK = 10
TITLES = {
    "written": "scenes",
    "everyday": "everyday scenes",
    "drawn": "drawn scenes",
    "drawn_everyday": "drawn everyday scenes",
}


def text(args: argparse.Namespace) -> str:
    """Runs the command; returns the output.

    Raises:
        LabError: wrong usage, or a scenario that cannot run.
    """
    if args.list:
        return listing(args)
    if args.seeds < 1 or args.seed < 0:
        raise LabError("--seeds: at least 1; --seed: at least 0")
    if args.report and not args.report.absolute().parent.is_dir():
        raise LabError(f"--report {args.report}: its folder does not exist")
    laboratory = Laboratory(args.kept, workers=args.workers, scheduler=args.scheduler)
    player = Player(laboratory, list(range(args.seed, args.seed + args.seeds)))
    if args.write:
        args.scenes, args.drawn, args.drawn_everyday = "all", tables.DRAWN, tables.EVERYDAY
    found = play_all(args, player)
    if args.write:
        tables.write(found, player, File.read(), args.docs)
        return ""
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


def play_all(args: argparse.Namespace, player: Player) -> report.Found:
    """Runs all scenes that were asked for."""
    file = File.read()
    of_own = [own.scene(args.file)] if args.file else []
    policies = chosen_policies(args, file)
    scenes = scenes_by_board(args, file)
    scenes["written"] += of_own
    # All at once, so that workers start once.
    played = iter(player.play([scene for of in scenes.values() for scene in of], policies))

    def board(name: str) -> Board:
        title, asked = TITLES[name], getattr(args, name, None)
        title = f"{title} (seed {asked[0]})" if asked else title
        return Board.of(title, policies, [next(played) for _ in scenes[name]])

    boards = {name: board(name) for name in scenes}
    return report.Found(player.seeds, **boards, cpu=args.cpu)


def scenes_by_board(args: argparse.Namespace, file: File) -> dict[str, list[Scene]]:
    """The scenes that were asked for, by the board that they are on."""
    pattern = args.scenes
    if pattern is None and not (args.file or args.drawn or args.drawn_everyday):
        pattern = "all"
    shrink = QUICK if args.quick else 1
    written = file.matching(pattern, shrink) if pattern else []
    scenes = {
        "written": [scene for scene in written if not scene.group],
        "everyday": [scene for scene in written if scene.group],
    }
    for name in ("drawn", "drawn_everyday"):
        if asked := getattr(args, name):
            seed, count = asked
            everyday = name == "drawn_everyday"
            scenes[name] = drawn.drawn_scenes(file, seed, count, shrink, everyday)
    return scenes


def chosen_policies(args: argparse.Namespace, file: File) -> list[str]:
    """Each once. `all` has those too that the devices set, but for a load of the user's own."""
    if args.policies == "all":
        specs = list(engine.schedulers(engine.chosen()))
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


def listing(args: argparse.Namespace) -> str:
    """The scenes, without running any."""
    scenes = scenes_by_board(args, File.read())
    return report.listing([scene for of in scenes.values() for scene in of], args.format)
