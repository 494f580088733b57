"""A guest moves between two daemons on this host (live migration) while it writes and verifies what
it has written. SEEKWAY_MOVES says how often."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from seekway_lab.live.daemon import Daemon
from seekway_lab.live.guest import Disk, Guest
from seekway_lab.live.process import LiveError, wait_for

from .load import END, LOAD
from .stage import MIB, PATIENCE_S, Programs, say, sparse, step

#: Writes between two moves.
WRITES = 200


def is_elsewhere(daemons: list[Daemon]) -> list[bool]:
    """Whether another daemon serves the disk, for each."""
    return [daemon.disk("web").get("elsewhere", False) for daemon in daemons]


def writes(daemon: Daemon) -> int:
    ops = daemon.disk("web")["ops"]
    assert all(op["errors"] == 0 for op in ops.values()), ops
    return int(ops["write"]["requests"])


def wait_writes(daemon: Daemon, guest: Guest) -> None:
    """Wait until a daemon has served enough writes more."""
    before = writes(daemon)
    stands = f"the guest writes; its console:\n{guest.console()}"
    wait_for(stands, lambda: writes(daemon) >= before + WRITES, PATIENCE_S)


def test_a_guest_moves_between_daemons_and_loses_nothing(programs: Programs, folder: Path) -> None:
    moves = int(os.environ.get("SEEKWAY_MOVES", "2"))
    image = sparse(folder / "web.img", 256 * MIB)
    with ExitStack() as stack:
        daemons = []
        for name, more in (("a", ""), ("b", ",incoming")):
            arguments = ["--disk", f"web={image}{more}", "--nbd", "off", "--cache", "16MiB"]
            daemon = Daemon(programs.seekway, folder / name, arguments)
            daemons.append(stack.enter_context(daemon))
        sockets = [daemon.socket("web.vhost") for daemon in daemons]
        guest = stack.enter_context(Guest("mover", [Disk(sockets[0])])).wait_ready()
        guest.check(LOAD, PATIENCE_S)
        for number in range(moves):
            wait_writes(daemons[number % 2], guest)
            assert is_elsewhere(daemons) == [number % 2 == 1, number % 2 == 0]
            try:
                with step(f"move {number}"):
                    guest.migrate([sockets[(number + 1) % 2]])
            except LiveError:
                say("\n".join(daemon.said() for daemon in daemons))
                raise
            assert is_elsewhere(daemons) == [number % 2 == 0, number % 2 == 1]
        wait_writes(daemons[moves % 2], guest)
        rounds = guest.check(END, PATIENCE_S).strip()
        say(f"          {rounds} rounds of fio written and verified in {moves} moves")
        guest.kill()
        for daemon in daemons:
            daemon.stop()
