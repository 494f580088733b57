"""A bar over requests, on a terminal and in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class bar:
    """A bar of tqdm, or nothing."""

    def __init__(self, wanted: bool | None) -> None:
        if wanted is None:
            wanted = sys.stderr.isatty() or "ipykernel" in sys.modules
        self.bar: Any = None
        if wanted:
            from tqdm.auto import tqdm

            self.bar = tqdm(unit=" requests", unit_scale=True)

    def __enter__(self) -> Callable[[int, int | None], None] | None:
        return self.tell if self.bar is not None else None

    def tell(self, done: int, total: int | None) -> None:
        self.bar.total = total
        self.bar.update(done - self.bar.n)

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()
