"""Policies in Python compete with the built-in ones, under the same rules."""

from __future__ import annotations

import pytest
import seekway
from seekway import Device, Hold, Part, Policy, Request, Wait

VMS = ["name=a,app=sysbench:mode=RR,app=sysbench:mode=RR", "name=b,app=sysbench:mode=SR"]


class First(Policy):
    """noop again."""

    def decide(self, now_ns: int, device: Device) -> Request:
        return next(iter(self.queued.values()))


class Nearest(Policy):
    """sstf again: the nearest, of equally near ones that which came first."""

    def decide(self, now_ns: int, device: Device) -> Request:
        return min(self.queued.values(), key=lambda r: abs(r.start_sector - device.head_sector))


def same(a: dict, b: dict) -> None:
    for key in ("requests", "iops", "mib_s", "response_ms", "service_ms", "commands"):
        assert a[key] == b[key], key


def test_noop_in_python_is_noop() -> None:
    made = seekway.compare(vms=VMS, policies=["noop", First], until="5s")
    same(*made.runs)
    assert [run["policy"] for run in made.runs] == ["noop", "First"]


def test_sstf_in_python_is_sstf() -> None:
    same(*seekway.compare(vms=VMS, policies=["sstf", Nearest], until="5s").runs)


def test_the_same_seed_gives_the_same_run() -> None:
    runs = [seekway.compare(vms=VMS, policies=Nearest, until="3s").runs[0] for _ in range(2)]
    runs[0].pop("wall_s"), runs[1].pop("wall_s")
    assert runs[0] == runs[1]


def test_all_that_a_policy_is_told() -> None:
    told: dict[str, int] = dict.fromkeys(("attached", "arrived", "completed"), 0)

    class Told(First):
        def attached(self, now_ns, vm, weight, region):
            assert (now_ns, weight) == (0, vm + 1) and region[0][1] > 0
            told["attached"] += 1

        def arrived(self, now_ns, request):
            assert self.queued[request.id] is request and request.arrived_ns == now_ns
            told["arrived"] += 1

        def completed(self, now_ns, completion):
            assert completion.last and completion.dispatched_ns < now_ns
            assert completion.service_ns <= now_ns
            told["completed"] += 1

    run = seekway.compare(vms=VMS, policies=Told, until="2s", weights=[1, 2]).runs[0]
    assert told["attached"] == 2
    assert told["completed"] == run["requests"] <= told["arrived"]


def test_holds_waits_and_parts() -> None:
    class Slow(First):
        """Holds for 1 ms, sends all in parts of 8 sectors, waits while anything is in flight."""

        held = False

        def decide(self, now_ns, device):
            if device.commands:
                return Wait(why="busy")
            if not self.held:
                self.held = True
                return Hold(now_ns + 1_000_000, "rest")
            self.held = False
            return Part(super().decide(now_ns, device), 8)

    slow, first = seekway.compare(vms=VMS, policies=[Slow, First], until="3s").runs
    assert slow["held_ms"]["rest"] > 100
    assert slow["commands"] > slow["requests"]
    assert slow["iops"] < first["iops"]


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (lambda now, queued: None, TypeError, "expected a Request of self.queued"),
        (lambda now, queued: 5, TypeError, "expected a Request"),
        (lambda now, queued: Hold(now), ValueError, "at least 1 ns and at most 10000000000"),
        (lambda now, queued: Hold(now + 10**11), ValueError, "holds until"),
        (lambda now, queued: Hold(now + 1, "x" * 41), ValueError, "cause"),
        (lambda now, queued: Wait(), ValueError, "no command in flight"),
        (lambda now, queued: Part(queued[0], 0), ValueError, "0 sectors"),
        (lambda now, queued: 1 // 0, ZeroDivisionError, "division"),
    ],
)
def test_a_decision_that_breaks_the_rules_raises(answer, error, says: str) -> None:
    class Wrong(Policy):
        def decide(self, now_ns, device):
            return answer(now_ns, list(self.queued.values()))

    with pytest.raises(error, match=says):
        seekway.compare(vms=VMS, policies=[Wrong], until="100h")


def test_a_request_is_sent_once() -> None:
    class Twice(Policy):
        sent = None

        def decide(self, now_ns, device):
            self.sent = self.sent or next(iter(self.queued.values()))
            return self.sent

    with pytest.raises(ValueError, match="is not queued"):
        seekway.compare(vms=VMS, policies=[Twice], until="100h")


def test_what_cannot_be_a_policy() -> None:
    with pytest.raises(seekway.SeekwayError, match="each run makes its own"):
        seekway.compare(vms=VMS, policies=[First()])

    class noop(First):
        pass

    with pytest.raises(seekway.SeekwayError, match="there is one of this name"):
        seekway.compare(vms=VMS, policies=[noop])
