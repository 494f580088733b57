"""Scenes that a seed draws, and that nobody has chosen.

docs/arena.md says what is drawn, and how often. The same seed and number give the same scene for
ever: figures in documents are of such scenes.
"""

from __future__ import annotations

from dataclasses import dataclass

from seekway_lab.arena.scenes import File, Scene, Table, scene_on, time_ns
from seekway_lab.rng import Rng

# All images of a scene together have at most this much: they fit on every device.
IMAGES_GIB = 90
IMAGE_GIB_MAX = 20
# Everyday scenes are drawn from a seed that has this mixed in: the others stay as they were.
EVERYDAY = 0x6576_6572_7964_6179
# All requests that a VM of an everyday scene has outstanding, together.
OUTSTANDING_KIB = 256 << 10
# From here on a request is long: the scene is measured for longer.
LONG_KIB = 4 << 10


@dataclass(frozen=True)
class Group:
    """VMs with the same weight and load."""

    count: int
    weight: int
    size_kib: int
    depth: int
    reads_percent: int
    sequential: bool

    @classmethod
    def drawn(cls, rng: Rng, weighted: bool) -> Group:
        """A group of the scenes that are not everyday ones."""
        count = 1 << rng.below(4)
        weight = 1 << rng.below(3) if weighted else 1
        size_kib, depth = 4 << rng.below(9), 1 << rng.below(8)
        kind = rng.below(4)
        reads = 100 if kind < 2 else 0 if kind == 2 else 10 * (1 + rng.below(9))
        return cls(count, weight, size_kib, depth, reads, rng.percent(25))

    @classmethod
    def everyday(cls, rng: Rng) -> Group:
        """Up to four VMs with requests of 64 KiB to 64 MiB."""
        size_kib = 64 << rng.below(11)
        deepest = min(OUTSTANDING_KIB // size_kib, 64)
        count, depth = 1 << rng.below(3), 1 << rng.below(deepest.bit_length())
        reads = 10 * rng.below(10) if rng.below(4) == 0 else 100
        return cls(count, 1, size_kib, depth, reads, rng.percent(50))

    def about(self, weighted: bool) -> str:
        """The group in words."""
        order = "in order" if self.sequential else "at random"
        what = {100: "reads", 0: "writes"}.get(
            self.reads_percent, f"accesses, {self.reads_percent} % reads,"
        )
        vms = f"{self.count} VM{'' if self.count == 1 else 's'}"
        weight = f" of weight {self.weight}" if weighted else ""
        return f"{vms}{weight} with {self.size_kib} KiB {what} {order} at depth {self.depth}"

    def vms(self, image_gib: int) -> Table:
        """The group as a scene has it."""
        more = {"read": self.reads_percent, "sequential": self.sequential}
        vm = uniform(image_gib, self.size_kib, self.depth, "60us", more)
        return {"count": self.count, "weight": self.weight, **vm}


def uniform(
    image_gib: int, size_kib: int, depth: int, think: str, more: Table | None = None
) -> Table:
    """A VM of a scene: clients without a guest."""
    load = {"app": "uniform", "size": f"{size_kib}KiB", "outstanding": depth, **(more or {})}
    return {"guest": {"image": f"{image_gib}GiB"}, "load": [{**load, "think": think}]}


def scene(seed: int, number: int, devices: list[Table], shrink: int) -> Scene:
    """Scene `number` of a seed."""
    rng = Rng.child(seed, number)
    device = devices[rng.below(len(devices))]
    weighted = rng.percent(25)
    quiet_kib = 4 << rng.below(3) if not weighted and rng.percent(50) else 0
    groups = [Group.drawn(rng, weighted) for _ in range(1 + rng.below(3))]
    if sum(group.count for group in groups) == 1 and not quiet_kib:
        groups[0] = Group(**{**vars(groups[0]), "count": 2})
    image_gib = image(groups, quiet=bool(quiet_kib))
    about = [f"a quiet VM ({quiet_kib} KiB)"] if quiet_kib else []
    drawn = {
        "name": f"drawn-{number:02}",
        "about": "; ".join([*about, *(group.about(weighted) for group in groups)]),
        "on": [device["name"]],
        "vms": [group.vms(image_gib) for group in groups],
        # Where weights say whose requests wait, latency is not judged.
        "latency": not weighted,
    }
    if quiet_kib:
        drawn["quiet"] = uniform(image_gib, quiet_kib, 1, "60us")
    return scene_on(device, drawn, shrink)


def image(groups: list[Group], quiet: bool) -> int:
    """Size of each VM's image in GiB."""
    return min(IMAGES_GIB // (sum(group.count for group in groups) + quiet), IMAGE_GIB_MAX)


def everyday(seed: int, number: int, devices: list[Table], shrink: int) -> Scene:
    """Everyday scene `number` of a seed: a quiet VM that comes late, or pauses."""
    rng = Rng.child(seed ^ EVERYDAY, number)
    device = devices[rng.below(len(devices))]
    groups = [Group.everyday(rng) for _ in range(1 + rng.below(2))]
    late_ms = 250 * (1 + rng.below(8)) if rng.percent(50) else 0
    pause_ms = [50, 100, 200, 500, 1_000, 2_000][rng.below(6)] if rng.percent(50) else 0
    prefetch = rng.percent(50)
    size_kib = 4 << rng.below(3)
    # Some reads of the VM that pauses, and of the one that asks for much.
    long_ms = 4_000 if any(group.size_kib >= LONG_KIB for group in groups) else 0
    at_least_ms = {"settle": late_ms, "measure": max(6 * pause_ms, long_ms)}
    times = {
        key: f"{max(time_ns(device[key]) // 1_000_000, least)}ms"
        for key, least in at_least_ms.items()
    }
    about = f"a quiet VM ({size_kib} KiB)"
    about += f" that comes after {late_ms} ms" if late_ms else ""
    about += f" and pauses for {pause_ms} ms" if pause_ms else ""
    about += ", cache and prefetcher on" if prefetch else ""
    image_gib = image(groups, quiet=True)
    drawn = {
        "name": f"drawn-everyday-{number:02}",
        "about": "; ".join([about, *(group.about(False) for group in groups)]),
        "on": [device["name"]],
        "quiet": uniform(image_gib, size_kib, 1, f"{pause_ms}ms" if pause_ms else "60us"),
        "vms": [group.vms(image_gib) for group in groups],
        # Windows of a VM that pauses, and of long requests, say nothing.
        "steady": False,
        "group": "drawn",
        "prefetch": prefetch,
        **({"late": f"{late_ms}ms"} if late_ms else {}),
        **times,
    }
    return scene_on(device, drawn, shrink)


def drawn_scenes(file: File, seed: int, count: int, shrink: int, is_everyday: bool) -> list[Scene]:
    """`count` scenes on the devices of the file: the first ones are the same for every count."""
    draw = everyday if is_everyday else scene
    return [draw(seed, number, file.devices, shrink) for number in range(1, count + 1)]
