"""SIGKILLs of the daemon under QEMU guests that verify what they write. Nothing may hang, and what
was acknowledged has to be there. `tests/kills` has the other half, under a client of its own.

A few kills run in `make test`; `make kills` runs 500. SEEKWAY_KILLS is the number for both halves,
SEEKWAY_SEED the seed."""

from __future__ import annotations

import os
import random
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from seekway_lab.live.daemon import Daemon
from seekway_lab.live.guest import Disk, Guest
from seekway_lab.live.process import wait_for

from .load import END, LOAD
from .stage import MIB, PATIENCE_S, Programs, say, sparse

#: Longest time without progress after a restart: then the guest hangs.
HANG_S = 600.0
#: Between two looks at the daemon: short, so that some kills hit its first writes.
PAUSE_S = 0.005


class Shape(NamedTuple):
    """A guest: its name, vCPUs (each has a queue), and whether it negotiates event indices."""

    name: str
    vcpus: int
    event_index: bool


def wait_progress(daemon: Daemon, shapes: list[Shape], count: int, kill: int) -> None:
    """Wait until this daemon has served `count` writes of every guest: none hangs."""

    def done() -> bool:
        disks = {
            d["name"]: d["ops"] for device in daemon.status()["devices"] for d in device["disks"]
        }
        for shape in shapes:
            ops = disks[shape.name]
            assert all(op["errors"] == 0 for op in ops.values()), f"guest {shape.name}: {ops}"
        return all(disks[shape.name]["write"]["requests"] >= count for shape in shapes)

    wait_for(f"no guest hangs after kill {kill}: {count} writes of each", done, HANG_S, PAUSE_S)


def test_guests_find_what_they_wrote(programs: Programs, folder: Path) -> None:
    kills = int(os.environ.get("SEEKWAY_KILLS", "6")) // 2
    seed = int(os.environ.get("SEEKWAY_SEED", "1"))
    # The long run has both kinds of guests, the short one less to boot.
    shapes = [Shape("two", 2, event_index=True)]
    if kills > 10:
        shapes = [Shape("two", 2, event_index=False), Shape("eight", 8, event_index=True)]
    rng = random.Random(seed)
    policy = rng.choice(["noop", "fairway", "cfq", "deadline"])
    cache = rng.choice(["off", "16MiB"])
    say(f"          seed {seed}: policy {policy}, cache {cache}")
    arguments = ["--policy", policy, "--cache", cache, "--nbd", "off"]
    for shape in shapes:
        image = sparse(folder / f"{shape.name}.img", 256 * MIB)
        arguments += ["--disk", f"{shape.name}={image}"]
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon(programs.seekway, folder, arguments))
        guests = []
        for shape in shapes:
            disk = Disk(daemon.socket(f"{shape.name}.vhost"), reconnect=True)
            extra = [] if shape.event_index else ["-global", "vhost-user-blk.event_idx=off"]
            guest = Guest(shape.name, [disk], vcpus=shape.vcpus, extra=extra)
            guests.append(stack.enter_context(guest))
        for guest in guests:
            guest.wait_ready()
        for guest in guests:
            guest.check(LOAD, PATIENCE_S)
        for kill in range(kills):
            wait_progress(daemon, shapes, 1 + rng.randrange(300), kill)
            daemon.kill()
            daemon.restart()
        wait_progress(daemon, shapes, 100, kills)
        rounds = [int(guest.check(END, PATIENCE_S)) for guest in guests]
        say(f"          {kills} kills, seed {seed}, {rounds} times written and verified")
        for guest in guests:
            guest.kill()
        daemon.stop()
