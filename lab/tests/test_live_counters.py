"""Counters of the daemon and of guests between two looks."""

import itertools

import pytest

from seekway_lab.live import counters, inside
from seekway_lab.live.counters import Cpu, Status
from seekway_lab.live.inside import Seen
from seekway_lab.records import LabError


def test_processors_are_busy_when_they_do_not_idle():
    first, last = (
        Cpu.of("cpu  100 0 100 800 0 0 0 0 9 9"),
        Cpu.of("cpu  250 0 250 900 100 0 0 0 0 0"),
    )
    assert first.busy_until(last) == 0.6
    assert first.busy_until(first) == 0


def test_a_median_lies_in_the_middle():
    assert counters.spread([3.0, 1.0, 2.0]) == {"median": 2.0, "least": 1.0, "largest": 3.0}
    assert counters.spread([4.0, 1.0, 2.0, 3.0]) == {"median": 2.5, "least": 1.0, "largest": 4.0}
    assert counters.spread([]) is None


def emulated(commands: int, late: int, mean_ms: float, added_ms: float) -> Status:
    about = {"commands": commands, "late": late, "service_mean_ms": mean_ms}
    about |= {"late_by_ms": added_ms / 4, "overslept_ms": added_ms * 3 / 4}
    return {"devices": [{"disks": [], "emulated": about}]}


def test_an_emulated_device_is_counted_over_the_window():
    before, after = emulated(100, 1, 2.0, 4.0), emulated(300, 3, 4.0, 44.0)
    assert counters.emulated_between(before, after) == {
        "commands": 200,
        "late": 2,
        "service_ms": 5.0,
        "added_ms": 0.2,
    }
    assert counters.emulated_between(before, before) is None
    none: Status = {"devices": [{"disks": []}]}
    assert counters.emulated_between(none, none) is None


def cached(tags: dict[int | None, int], **counts: int) -> Status:
    usage = {**dict.fromkeys(counters.USAGE, 0), **counts}
    processes = [{"reads": n} | ({} if tag is None else {"tag": tag}) for tag, n in tags.items()]
    disk = {"name": "a", "cache": {**usage, "processes": processes}}
    return {"devices": [{"disks": [{"name": "b"}, disk]}]}


def test_what_is_prefetched_and_not_used_costs():
    before = cached({}, read_bytes=1000, prefetched_bytes=500, used_bytes=500)
    more = {"prefetched_bytes": 1000, "used_bytes": 750, "dropped_bytes": 50}
    used = counters.usage_between(before, cached({}, read_bytes=1500, **more))
    assert (used["read_bytes"], used["accuracy"], used["cost"]) == (500, 0.5, 200 / 700)
    idle = counters.usage_between(before, before)
    assert (idle["accuracy"], idle["cost"]) == (0, 0)
    with pytest.raises(LabError, match="no disk has a cache"):
        counters.usage_between(emulated(1, 0, 1, 0), emulated(1, 0, 1, 0))


def test_tags_count_that_have_read():
    before = cached({None: 5, 1: 7, 2: 3})
    assert counters.tags_between(before, cached({None: 9, 1: 7, 2: 4, 8: 1})) == 2


class Busy:
    """A daemon whose disks have one request more at each look."""

    def __init__(self) -> None:
        self.looks = 0

    def status(self) -> Status:
        self.looks += 1
        ops = {"read": {"requests": self.looks}, "write": {"requests": 0}}
        return {"devices": [{"disks": [{"name": name, "ops": ops} for name in ("a", "b")]}]}


def test_applications_are_waited_for():
    daemon = Busy()
    counters.until_at_work(daemon, ["a", "b"], daemon.status(), 3)
    assert daemon.looks == 4
    with pytest.raises(LabError, match="no disk c"):
        counters.until_at_work(daemon, ["c"], daemon.status(), 1)


def test_a_guest_counts_tasks_and_processes():
    stat = "7 (seekway guest) S" + " 1" * 10 + " 30 12 0 0"
    said = f"100.10 3.00\nrchar: 1048576\nwchar: 5\nrchar: 2097152\n{stat}\n100.12 3.01\n"
    seen = Seen.of(said)
    assert (round(seen.seconds, 3), round(seen.look_s, 3)) == (100.11, 0.02)
    assert (seen.mib, seen.cpu) == (3, [("seekway guest", 0.42)])
    with pytest.raises(ValueError, match="unpack"):
        Seen.of("100.10 3.00\n")


@pytest.mark.parametrize(
    ("times", "found"), [([0.5, 0.02, 0.01], (0.02, 2)), ([0.5, 0.3, 0.4], (0.3, 4))]
)
def test_the_first_short_look_is_taken_and_otherwise_the_shortest(
    times: list[float], found: tuple[float, int]
):
    looks = itertools.cycle(times)
    made: list[Seen] = []

    def look() -> Seen:
        made.append(Seen(0, next(looks)))
        return made[-1]

    assert (inside.shortest(look).look_s, len(made)) == found


def test_fio_may_say_something_before_its_figures():
    assert inside.fio_json('{"jobs": []}') == {"jobs": []}
    assert inside.fio_json('fio: a note {1}\n{\n"jobs": [1]}') == {"jobs": [1]}
    with pytest.raises(ValueError, match="Expecting"):
        inside.fio_json("fio: failed\n")
