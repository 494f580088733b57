"""Kills workers, scheduler and client of a campaign in its middle, and compares the results.

    python kill_campaign.py traces.toml --kills 10 --seed 1 --workers 2

The campaign runs once undisturbed and once with kills at random moments. Each kill hits a worker,
the scheduler, or the campaign itself; what was killed is started again. Exit status 0: both have
the same results to the bit, no cell is lost, and none is there twice.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from seekway.campaign import Campaign, Results

PORT = 18786


def dask(*arguments: str) -> subprocess.Popen[bytes]:
    """A program of Dask in a process group of its own."""
    line = [sys.executable, "-m", "distributed.cli." + arguments[0], *arguments[1:]]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(line, stdout=quiet, stderr=quiet, start_new_session=True)


class Cluster:
    """A scheduler and workers that can be killed one by one."""

    def __init__(self, workers: int) -> None:
        """Start all."""
        self.scheduler = self.new_scheduler()
        self.workers = [self.new_worker() for _ in range(workers)]

    def new_scheduler(self) -> subprocess.Popen[bytes]:
        """A scheduler at the port."""
        options = ["--port", str(PORT), "--host", "127.0.0.1", "--no-dashboard"]
        return dask("dask_scheduler", *options)

    def new_worker(self) -> subprocess.Popen[bytes]:
        """A worker that waits for the scheduler, however long it takes."""
        options = ["--nthreads", "1", "--no-dashboard", "--death-timeout", "600"]
        return dask("dask_worker", f"tcp://127.0.0.1:{PORT}", *options)

    def kill(self, what: str, chance: random.Random) -> None:
        """SIGKILL, and another in its place."""
        if what == "worker":
            number = chance.randrange(len(self.workers))
            end(self.workers[number])
            self.workers[number] = self.new_worker()
        else:
            end(self.scheduler)
            self.scheduler = self.new_scheduler()

    def heal(self) -> None:
        """Start workers anew that ended: they do when they lose their scheduler."""
        for number, worker in enumerate(self.workers):
            if worker.poll() is not None:
                self.workers[number] = self.new_worker()

    def close(self) -> None:
        """End all."""
        for process in [*self.workers, self.scheduler]:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for a process and its children, if it has not ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def done(out: Path) -> int:
    """Cells in the folder, by the names of its files."""
    return sum(int(file.stem.split("-")[1]) for file in out.glob("*.parquet"))


def start(study: Path, out: Path) -> subprocess.Popen[bytes]:
    """The campaign in a process of its own."""
    line = [sys.executable, "-m", "seekway", "campaign", "run", str(study), "--out", str(out)]
    line += ["--scheduler", f"tcp://127.0.0.1:{PORT}", "--quiet"]
    return subprocess.Popen(line, stderr=subprocess.PIPE, start_new_session=True)


def disturbed(study: Path, out: Path, cells: int, kills: int, seed: int, workers: int) -> list[str]:
    """Run with kills, each at a random share of the cells; return the kills."""
    chance = random.Random(seed)
    moments = sorted(chance.sample(range(1, cells), kills))
    victims = [chance.choice(["worker", "worker", "scheduler", "campaign"]) for _ in range(kills)]
    victims[:3] = ["worker", "scheduler", "campaign"]
    cluster = Cluster(workers)
    killed = []
    running = start(study, out)
    try:
        while running.poll() is None or running.returncode != 0 or len(killed) < kills:
            if running.poll() is not None:
                if running.returncode == 0:
                    break
                running = start(study, out)
            cluster.heal()
            if len(killed) < kills and done(out) >= moments[len(killed)]:
                victim = victims[len(killed)]
                if victim == "campaign":
                    end(running)
                else:
                    cluster.kill(victim, chance)
                killed.append(f"{victim} at {done(out)} cells")
                print(killed[-1], flush=True)
            time.sleep(0.1)
    finally:
        if running.poll() is None:
            end(running)
        cluster.close()
    return killed


def main() -> int:
    """Make both runs, and compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--undisturbed", type=Path, metavar="DIR", help="keep these results here")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        campaign = Campaign.from_file(args.study)
        cells = len(campaign.cells())
        undisturbed = args.undisturbed or base / "undisturbed"
        known = done(undisturbed)
        began = time.monotonic()
        quiet = campaign.run(undisturbed, workers=args.workers)
        wall_s = time.monotonic() - began
        own_s = sum(quiet.to_arrow()["wall_s"].to_pylist())
        overhead = wall_s * args.workers / own_s - 1
        print(
            f"undisturbed: {len(quiet)} of {cells} cells, {len(quiet.errors)} failed, "
            + f"{own_s / cells:.3f} s a cell"
            + ("" if known else f", {wall_s:.1f} s on {args.workers} workers: {overhead:.1%} more"),
            flush=True,
        )
        (base / "killed").mkdir()
        killed = disturbed(args.study, base / "killed", cells, args.kills, args.seed, args.workers)
        found = Results(base / "killed")
        same = (
            found.to_arrow().drop_columns("wall_s").equals(quiet.to_arrow().drop_columns("wall_s"))
        )
        print(f"{len(killed)} kills, seed {args.seed}")
        print(
            f"{len(found)} of {cells} cells, {found.doubled} twice, "
            f"{'the same results to the bit' if same else 'OTHER RESULTS'}"
        )
        return 0 if same and len(found) == cells and not found.doubled else 1


if __name__ == "__main__":
    sys.exit(main())
