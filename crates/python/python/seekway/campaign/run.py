"""A campaign on Dask: batches of cells go out, files of results come back."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster, as_completed
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker

from seekway._errors import SeekwayError
from seekway.campaign.results import Results, write_batch
from seekway.campaign.study import Cell, Study, program
from seekway.campaign.work import described, run_batch

#: Length of a batch: short beside a study, long beside Dask's cost of a task.
BATCH_S = 2.0
#: Cells of a batch at most.
BATCH_CELLS = 200
#: Rows that come within this time share a file.
FLUSH_S = 0.5
#: A cluster of our own is started again so often without a finished batch between.
RESTARTS_MAX = 5


class CampaignError(SeekwayError):
    """The campaign cannot go on; run again, it does where it was."""


class Campaign:
    """A study, and its results in a folder."""

    def __init__(self, study: Study | Mapping[str, Any], base: Path | None = None) -> None:
        """Of a study, or of a dictionary with the keys of a study's file."""
        self.study = study if isinstance(study, Study) else Study.from_dict(study, base)

    @classmethod
    def from_file(cls, path: str | Path) -> Campaign:
        """Of a file in TOML."""
        return cls(Study.from_file(path))

    def cells(self) -> list[Cell]:
        """All cells, those that share traces side by side."""
        return self.study.cells()

    def run(
        self,
        out: str | os.PathLike[str],
        *,
        workers: int | None = None,
        scheduler: str | None = None,
        progress: bool | None = None,
        patience_s: float = 30.0,
    ) -> Results:
        """Run all cells that are not in `out` yet.

        Args:
            out: the folder of results; it is made, or added to.
            workers: processes on this machine; by default as many as it has cores.
            scheduler: address of a Dask scheduler instead, ``tcp://host:8786``. Its workers need
                this package, and the traces under the same paths.
            progress: a bar; by default on a terminal.
            patience_s: how long the scheduler at an address may take to answer.

        Raises:
            CampaignError: workers or the scheduler die again and again, or cannot be reached.
        """
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        cells = self.cells()
        self._describe(folder, len(cells))
        done = Results(folder).keys
        left = [cell for cell in cells if cell.key not in done]
        with _bar(progress, len(cells), len(cells) - len(left)) as tell:
            _Run(folder, left, workers, scheduler, tell, patience_s).all()
        keys = {cell.key for cell in cells}
        results = Results(folder)
        missing = keys - results.keys
        if missing:
            raise CampaignError(f"{len(missing)} cells have no result; run again")
        return results

    def _describe(self, folder: Path, cells: int) -> None:
        """Write a description of the folder, for people."""
        about = {"name": self.study.name, "cells": cells, "program": program()}
        beside = folder / f".study.json.{os.getpid()}"
        beside.write_text(json.dumps(about, indent=1) + "\n")
        os.rename(beside, folder / "study.json")


@contextmanager
def cluster(
    workers: int | None = None, scheduler: str | None = None, patience_s: float = 30.0
) -> Iterator[Client]:
    """Workers on this machine, or those of a scheduler; without any, as many as cores."""
    if scheduler:
        with Client(scheduler, timeout=patience_s) as client:
            yield client
        return
    local = LocalCluster(
        n_workers=workers or os.cpu_count() or 1,
        threads_per_worker=1,
        dashboard_address="127.0.0.1:0",
        silence_logs=50,
    )
    try:
        with Client(local) as client:
            if sys.stderr.isatty():
                print(f"Dask's dashboard: {client.dashboard_link}", file=sys.stderr)
            yield client
    finally:
        # All that was asked for is done, and its processes end with this one: a host that is too
        # busy to end them in time is no error.
        with suppress(asyncio.TimeoutError):
            local.close(timeout=10)


def run_cells(folder: Path, cells: Sequence[Cell], client: Client) -> list[Mapping[str, Any]]:
    """Run these cells and write their rows, which come back too.

    Raises:
        CampaignError: the cluster is lost.
    """
    run = _Run(folder, cells, None, None, _untold, 30.0, keep=True)
    try:
        run.through(client)
    except (CommClosedError, OSError, TimeoutError, _Lost) as error:
        raise CampaignError(f"{error}: the cluster is lost; run again") from error
    return run.came


def _untold(cells: int, failed: int) -> None:
    """No bar."""


class _Run:
    """Cells under way. Finished cells are written here, by this process alone."""

    def __init__(
        self,
        folder: Path,
        cells: Sequence[Cell],
        workers: int | None,
        scheduler: str | None,
        tell: Any,
        patience_s: float,
        keep: bool = False,
    ) -> None:
        self.folder = folder
        self.left = deque(cells)
        self.workers = workers
        self.scheduler = scheduler
        self.tell = tell
        self.patience_s = patience_s
        self.keep = keep
        self.cell_s = 0.0
        self.written: set[str] = set()
        self.pending: list[Mapping[str, Any]] = []
        self.came: list[Mapping[str, Any]] = []
        self.flushed_s = time.monotonic()

    def all(self) -> None:
        """Until no cell is left."""
        fruitless = 0
        while self.left:
            before = len(self.left)
            try:
                with cluster(self.workers, self.scheduler, self.patience_s) as client:
                    self.through(client)
            except (CommClosedError, OSError, TimeoutError, _Lost) as error:
                # Cells that were not written are still in `left`.
                fruitless = fruitless + 1 if len(self.left) == before else 0
                if self.scheduler or fruitless >= RESTARTS_MAX:
                    raise CampaignError(
                        f"{error or type(error).__name__}: {len(self.left)} cells are left; run "
                        "again to go on where this was"
                    ) from error

    def through(self, client: Client) -> None:
        """Keep every worker busy with two batches; write each that comes back."""
        threads = sum(client.nthreads().values()) or 1
        under_way: dict[Any, list[Cell]] = {}
        finished = as_completed()

        def send(cells: list[Cell]) -> None:
            # Impure: a batch that failed once is run once more, not remembered.
            future = client.submit(run_batch, cells, pure=False, retries=0)
            under_way[future] = cells
            finished.add(future)

        waiting = deque(self.left)
        if not waiting:
            return
        try:
            while waiting and len(under_way) < 2 * threads:
                send(self._batch(waiting))
            for future in finished:
                cells = under_way.pop(future)
                if future.status == "finished":
                    self._take(future.result())
                elif future.status == "cancelled":
                    raise _Lost("the scheduler is lost")
                else:
                    self._failed(cells, future.exception(), send)
                future.release()
                if waiting:
                    send(self._batch(waiting))
                if not under_way:
                    return
        finally:
            self._flush()
            self.left = deque(cell for cell in self.left if cell.key not in self.written)

    def _batch(self, waiting: deque[Cell]) -> list[Cell]:
        """The next cells: as many as take `BATCH_S`, by those that are done."""
        count = 1 if not self.cell_s else max(1, min(BATCH_CELLS, int(BATCH_S / self.cell_s)))
        return [waiting.popleft() for _ in range(min(count, len(waiting)))]

    def _take(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.pending += rows
        if time.monotonic() - self.flushed_s >= FLUSH_S:
            self._flush()
        took = sum(row["wall_s"] for row in rows) / len(rows)
        self.cell_s = took if not self.cell_s else 0.7 * self.cell_s + 0.3 * took
        self.tell(len(rows), sum(row.get("error") is not None for row in rows))

    def _flush(self) -> None:
        """Write the finished cells, which only now count; unwritten ones run again."""
        rows, self.pending = self.pending, []
        self.flushed_s = time.monotonic()
        if not rows:
            return
        try:
            write_batch(self.folder, rows)
        except OSError as error:
            raise CampaignError(
                f"{self.folder}: {error}; make room or choose another folder, and run again"
            ) from error
        self.written.update(row["cell"] for row in rows)
        if self.keep:
            self.came += rows

    def _failed(self, cells: list[Cell], error: BaseException | None, send: Any) -> None:
        """A batch took its worker with it three times, or a bug: find the cell that did."""
        if isinstance(error, KilledWorker) and len(cells) > 1:
            for cell in cells:
                send([cell])
            return
        if not isinstance(error, KilledWorker) and not isinstance(error, Exception):
            raise _Lost(str(error))
        text = f"{type(error).__name__}: {error}"
        rows = [described(cell) | {"error": text, "wall_s": 0.0} for cell in cells]
        self._take(rows)


class _Lost(Exception):
    """The cluster is gone."""


@contextmanager
def _bar(wanted: bool | None, total: int, done: int) -> Iterator[Any]:
    if wanted is None:
        wanted = sys.stderr.isatty()
    if not wanted:
        yield _untold
        return
    from tqdm.auto import tqdm

    failures = 0
    began = time.monotonic()
    with tqdm(total=total, initial=done, unit=" cells") as bar:

        def tell(cells: int, failed: int) -> None:
            nonlocal failures
            failures += failed
            bar.update(cells)
            if failures:
                bar.set_postfix(failed=failures)

        yield tell
    print(f"{time.monotonic() - began:.1f} s", file=sys.stderr)
