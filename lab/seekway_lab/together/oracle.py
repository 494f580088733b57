"""The oracle: a scheduler that knows each VM's use of the disk's time.

Each VM runs alone on the whole disk, with everything on and its share of the cache. So it is known
how much of the disk's time it uses at most, and what it moves in that; with a part of this time it
makes the same part of that progress. The time is divided so that the geometric mean of progress
over the VMs without a rate is the highest at which no VM has less than on its private disk; a VM
with a rate has just that. Logarithms are concave, so each VM has the same time, but for those that
need more and those that cannot use as much (the conditions of Karush, Kuhn and Tucker).

This is no strict bound. A sweep over several VMs' requests makes ways shorter than they are for
one, and VMs may have more of the cache than an equal share. Alone a VM has all processors: where
these are short, the oracle promises too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Steps by which a level is found: its error is 2^-40 of the disk's time.
STEPS = 40


@dataclass(frozen=True)
class Use:
    """Rate of a VM by its part of the disk's time."""

    #: The part of the disk's time that it uses alone.
    most: float
    #: Its progress with that.
    progress: float
    #: It has no use for more progress than 1.
    is_paced: bool = False

    @property
    def least(self) -> float:
        """The part of the time with which its progress is 1."""
        return self.most / max(self.progress, 1.0)

    def at(self, level: float) -> float:
        """The part that it has when others without a need have `level`."""
        return self.least if self.is_paced else min(max(level, self.least), self.most)

    def progress_with(self, part: float) -> float:
        """Its progress with a part of the time."""
        return self.progress * part / self.most if self.most > 0 else self.progress


def divided(uses: Sequence[Use]) -> list[float] | None:
    """The progress of each VM without a rate when the whole time is divided; None if the time is
    not enough for everybody's private disk.
    """

    def needed(level: float) -> float:
        return sum(use.at(level) for use in uses)

    if needed(0.0) > 1.0:
        return None
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if needed(middle) <= 1.0 else (low, middle)
    return [use.progress_with(use.at(low)) for use in uses if not use.is_paced]
