"""A scheduling policy in Python: a subclass of `Policy` competes in `seekway.compare`.

The rules are those of the policies in Rust (`crates/core/src/scheduler.rs`), and the same
assertions hold: a decision that breaks them raises. Times are simulated nanoseconds since the
run began; no clock may be read, and the same input has to give the same decisions.

    class ShortestFirst(seekway.Policy):
        def decide(self, now_ns, device):
            return min(self.queued.values(), key=lambda r: (r.sectors, r.id))

    seekway.compare(vms=[…], policies=["noop", ShortestFirst])
"""

from __future__ import annotations

from typing import TypeAlias

from seekway._native import Completion, Device, Hold, Part, Request, Wait

__all__ = ["Completion", "Decision", "Device", "Hold", "Part", "Policy", "Request", "Wait"]

Decision: TypeAlias = Request | Part | Hold | Wait


class Policy:
    """A policy for one device; one is made for each run, without arguments.

    Attributes:
        queued: the requests that wait, by id, in the order of arrival. Seekway keeps it: what is
            dispatched or taken back is gone from it.
    """

    queued: dict[int, Request]

    def attached(self, now_ns: int, vm: int, weight: int, region: list[tuple[int, int]]) -> None:
        """A VM joins: number from 0, weight from 1, extents as (first sector, sectors)."""

    def detached(self, now_ns: int, vm: int) -> None:
        """A VM has left, and its requests with it."""

    def arrived(self, now_ns: int, request: Request) -> None:
        """A read or write has joined `queued`."""

    def withdrawn(self, now_ns: int, request: Request) -> None:
        """A request was taken from `queued`: its VM leaves, or it waited past the hard limit."""

    def completed(self, now_ns: int, completion: Completion) -> None:
        """A request that this policy dispatched is done, or a part of one."""

    def decide(self, now_ns: int, device: Device) -> Decision:
        """Choose the next step. Called while requests are queued and a command has room.

        Returns:
            A `Request` of `queued` to send it; `Part` to send its first sectors; `Hold` to send
            nothing until a time, at most 10 s from now; `Wait` to send nothing until a command
            completes, while one is in flight.
        """
        raise NotImplementedError
