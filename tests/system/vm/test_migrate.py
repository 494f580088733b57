"""`seekway-guest migrate` in real guests whose vCPUs are taken away: one at a time runs on each of
two processors, for 11 ms. Whose a task's affinity is, whatever happens to the task, its owner and
the agent; and that nothing is left of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from seekway_lab.live import turns, vcpus

from .stage import KERNELS, MIB, PATIENCE_S, Programs, Stage, once_more, say, step, until

DISK_BYTES = 256 * MIB
VCPUS = 4
#: Moves of a task after which it has been everywhere.
MANY = 10
#: What its owner allows the reader (not all), also as taskset(1) shows it; what it allows later.
OWN, OWN_MASK = "0-2", "7"
OTHER, OTHER_MASK = "1-3", "e"

#: Processes that a task starts while it is moved, and the pages that it reads before each.
HEIRS, PAGES, PAGE_BYTES = 200, 100, 4096

#: Functions for the guest's shell.
LIBRARY = r"""
mask() { taskset -p $1 | sed 's/.*: //'; }
reader() { # NAME CPUS MORE
	name=$1 cpus=$2; shift 2
	(exec taskset -c $cpus fio --name=$name --filename=/dev/vda --direct=1 --ioengine=psync \
		--rw=randread --bs=4k --thread --time_based --runtime=3600 "$@" \
		>/tmp/$name.said 2>&1) &
	echo $! >/tmp/$name
	n=0; until thread $name >/dev/null; do
		n=$((n+1)); [ $n -lt 600 ] || { cat /tmp/$name.said; return 1; }; sleep 0.1; done
}
# The thread that has read from the disk. fio also has a helper thread, which reads nothing.
thread() {
	for t in /proc/$(cat /tmp/$1)/task/*; do
		[ ${t##*/} = $(cat /tmp/$1) ] || grep -q '^read_bytes: 0$' $t/io ||
			{ echo ${t##*/}; return; }
	done
	return 1
}
# Without BPF: programs that come change the kernel's code, and QEMU 7.2 may run a part of it as
# it was on vCPUs that stand still meanwhile (test_bpf.py and test_ticks.py try BPF). Without a
# budget and without rest: under TCG the agent would be over the one and would take the other, for
# it takes absences of its vCPU for CPU time of its own.
migrate() {
	rm -f /tmp/agent.log
	(exec seekway-guest migrate --match fio --no-bpf \
		--policy vmigrater:budget=1,except=rest "$@" >/tmp/agent.log 2>&1) & echo $! >/tmp/agent
	n=0; until seekway-guest status >/dev/null 2>&1; do
		n=$((n+1)); [ $n -lt 600 ] || { cat /tmp/agent.log; return 1; }; sleep 0.1; done
}
# Until this process is no more.
gone() {
	n=0; while kill -0 $1 2>/dev/null; do
		n=$((n+1)); [ $n -lt 600 ] || { cat /tmp/agent.log; return 1; }; sleep 0.1; done
}
# A killed agent holds its lock until the kernel has taken down its BPF programs.
restore() {
	n=0; until seekway-guest restore >/tmp/restored 2>&1; do
		n=$((n+1)); [ $n -lt 600 ] || { cat /tmp/restored; return 1; }; sleep 0.1; done
}
end_migrate() { kill $(cat /tmp/agent) && gone $(cat /tmp/agent); }
# Where a thread's I/O stands: in the guest, on its way, or nowhere.
stands() {
	for n in 1 2; do
		cat /proc/*/task/$1/stat /proc/*/task/$1/io /sys/block/vda/inflight
		grep -e CPU0 -e virtio /proc/interrupts
		sleep 1
	done
	dmesg | tail -n 5
}
# The masks of all threads that are no kernel's and none of this shell's.
masks() {
	for p in $(pidof fio sha256sum sleep); do
		for t in /proc/$p/task/*; do echo ${t##*/} $(mask ${t##*/}); done; done | sort -n
}
"""


class Seen(NamedTuple):
    """Report of the agent on a thread: its own process; how often it has moved the thread; where
    the thread's owner lets it run."""

    agent: int
    moves: int
    allowed: str


class Moved(Stage):
    """A guest with a compute task on each vCPU. Its disk begins with a shell's script."""

    def __init__(self, programs: Programs, kernel: str, folder: Path) -> None:
        image = folder / "migrate.img"
        image.write_bytes(script())
        os.truncate(image, DISK_BYTES)
        device = "intel-x25m-g2:k=1,read_us=5000"
        super().__init__(programs, kernel, folder, image, device, VCPUS)

    def prepare(self) -> list[list[int]]:
        """Start the compute tasks. The vCPUs' threads, in a queue for each of two processors."""
        compute = "nice -n 19 taskset -c $n sha256sum /dev/zero >/dev/null 2>&1 &"
        library = f"cat >/tmp/lib <<'END'\n{LIBRARY}END\n"
        self.guest.check(f"{library}for n in 0 1 2 3; do {compute} done", PATIENCE_S)
        processors = sorted(os.sched_getaffinity(0))[:2]
        queues: list[list[int]] = [[] for _ in processors]
        for n, tid in enumerate(vcpus.threads(self.guest.pid)):
            place = n % len(queues)
            os.sched_setaffinity(tid, [processors[place]])
            queues[place].append(tid)
        return queues

    def run(self, command: str) -> str:
        """Run a command that may use the library."""
        return super().run(f". /tmp/lib; {command}")

    def seen_after(self, command: str, tid: str) -> Seen:
        """Report of the agent on a thread after this command; nothing without an agent."""
        status = f"{command} >/dev/null; seekway-guest status --format json"
        text = self.guest.run(status, PATIENCE_S).text
        try:
            said = json.loads(text)
        except ValueError:
            said = {}
        tasks = [task for task in said.get("tasks", []) if task["tid"] == int(tid)]
        task = tasks[0] if tasks else {}
        return Seen(said.get("pid", 0), task.get("moves", 0), task.get("allowed", ""))

    def until(
        self, tid: str, what: str, holds: Callable[[Seen], bool], repeating: str = ":"
    ) -> Seen:
        """Wait until the agent says this of a thread, with a command before each look."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds(seen := self.seen_after(repeating, tid)):
            if time.monotonic() > deadline:
                log = self.run(f"seekway-guest status; cat /tmp/agent.log; stands {tid}")
                status = self.daemon.status()
                raise AssertionError(f"thread {tid} was to be {what}: {seen}\n{log}\n{status}")
        return seen

    def expect_mask(self, tid: str, mask: str) -> None:
        """A thread has this mask."""
        assert self.run(f"mask {tid}").strip() == mask, f"thread {tid}"


@pytest.mark.usefixtures("may_hold")
@pytest.mark.parametrize("kernel", KERNELS)
def test_tasks_are_moved_and_left_as_they_were(programs: Programs, kernel: str) -> None:
    def test(folder: Path) -> None:
        with Moved(programs, kernel, folder) as stage:
            queues = stage.prepare()
            reader = stage.run(f"reader own {OWN} && thread own").strip()
            before = stage.run("masks")
            with turns.Turns(queues, turns.Slices(11_000, 300, 1)):
                with step("its owner's mask is respected"):
                    own_mask(stage, reader)
                with step("another mask is adopted"):
                    adopted(stage, reader)
                # Both kernels take the same system calls for this: one of them is enough.
                if kernel == "current":
                    with step("who is killed is put back"):
                        killed(stage, reader)
                with step("what a moved task starts is as its owner wants"):
                    forks(stage)
                with step("a moved task keeps its tag"):
                    tagged(stage, reader)
            assert stage.run("masks") == before
            stage.run("ls /run/seekway-guest* | grep -v lock$ && exit 1; true")
            finish(stage, reader)

    once_more(test)


def is_moved(seen: Seen) -> bool:
    """The thread has been on every vCPU."""
    return seen.moves >= MANY


def own_mask(stage: Moved, reader: str) -> None:
    """Wherever it is moved, it is where it may be; and it is free at the end."""
    stage.run("migrate")
    stage.until(reader, "moved", is_moved)
    watch = f"n=0; while [ $n -lt 50 ]; do n=$((n+1)); mask {reader}; done | sort -u"
    masks = [int(mask, 16) for mask in stage.run(watch).split()]
    allowed = int(OWN_MASK, 16)
    says = f"allowed {OWN_MASK}, was on {masks}"
    assert masks and all(mask & ~allowed == 0 for mask in masks), says
    stage.run("end_migrate")
    stage.expect_mask(reader, OWN_MASK)


def adopted(stage: Moved, reader: str) -> None:
    """A mask that its owner sets while it is moved stays. Linux cannot change a mask on
    condition that nobody else has changed it: an agent that has just looked, and whose vCPU is then
    taken away, overwrites what the owner sets meanwhile. So the owner repeats it."""
    stage.run("migrate")
    for mask in (OTHER, OWN, OTHER):
        before = stage.seen_after(":", reader).moves

        def moved_on(seen: Seen, mask: str = mask, before: int = before) -> bool:
            return seen.allowed == mask and seen.moves > before + 3

        taskset = f"taskset -cp {mask} {reader}"
        stage.until(reader, f"moved within {mask}", moved_on, repeating=taskset)
    stage.run("end_migrate")
    stage.expect_mask(reader, OTHER_MASK)
    stage.run(f"taskset -cp {OWN} {reader}")


def killed(stage: Moved, reader: str) -> None:
    """By the next start, and by `restore`."""
    stage.run("migrate")
    first = stage.until(reader, "moved", is_moved)
    stage.run("killall -9 seekway-guest; gone $(cat /tmp/agent)")
    stage.run("migrate")
    again = "moved by the next agent"
    stage.until(reader, again, lambda seen: seen.agent != first.agent and is_moved(seen))
    stage.run("killall -9 seekway-guest; restore")
    stage.expect_mask(reader, OWN_MASK)


def forks(stage: Moved) -> None:
    """A shell reads its script from the disk, page by page, and starts processes on the way. While
    the agent is stopped one is born where the shell is confined; when the agent goes on, it is put
    where its owner wants it."""
    stage.run("migrate --match sh")
    shell = stage.run(
        "echo 0 >/sys/block/vda/queue/read_ahead_kb; : >/tmp/heirs; "
        f"(exec taskset -c {OWN} sh </dev/vda >/tmp/forks 2>&1) & echo $!"
    ).strip()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        stage.until(shell, "moved", lambda seen: seen.moves >= 1)
        confined = f"[ $(mask {shell}) != {OWN_MASK} ] && echo yes; true"
        if "yes" in stage.run(f"kill -STOP $(cat /tmp/agent); {confined}"):
            break
        stage.run("kill -CONT $(cat /tmp/agent)")
        assert time.monotonic() < deadline, f"shell {shell} is never confined"
    more = until("[ $(wc -l </tmp/heirs) -gt $had ]", "cat /tmp/forks")
    heir = stage.run(f"had=$(wc -l </tmp/heirs); {more}; tail -n 1 /tmp/heirs").strip()
    stage.run(f"[ $(mask {heir}) != {OWN_MASK} ]")
    free = until(f"[ $(mask {heir}) = {OWN_MASK} ]", "seekway-guest status")
    stage.run(f"kill -CONT $(cat /tmp/agent); {free}")
    stage.run("end_migrate; kill $(cat /tmp/heirs); true")
    stage.expect_mask(shell, OWN_MASK)
    stage.run(f"kill -9 {shell}; for p in $(pidof sleep); do kill $p; done; true")


def script() -> bytes:
    """The shell's script: pages of nothing, and now and then a command."""
    command = b"sleep 3600 & echo $! >>/tmp/heirs\n"
    pages = [b"" if n % PAGES else command for n in range(1, HEIRS * PAGES + 1)]
    text = b"".join(page.ljust(PAGE_BYTES - 1, b"#") + b"\n" for page in pages)
    return text + b"exit\n"


def tagged(stage: Moved, reader: str) -> None:
    """Beside `tag`."""
    has_tag = until(r'grep -q "\"pid\": $(cat /tmp/own)," /tmp/tags', "cat /tmp/tag.log")
    stage.run(
        "(exec seekway-guest tag --interval 20ms --status /tmp/tags >/tmp/tag.log 2>&1) & "
        f"echo $! >/tmp/tagger; {has_tag}"
    )
    stage.daemon.set_policy("noop:")
    stage.run("migrate")
    stage.until(reader, "moved", is_moved)
    stage.daemon.set_policy("noop")
    stage.run("end_migrate; kill $(cat /tmp/tagger); gone $(cat /tmp/tagger)")


def finish(stage: Moved, reader: str) -> None:
    """From one change of policy to the other all requests had one tag."""
    tags, requests, within = set(), 0, False
    for entry in stage.finish():
        if entry.what == "switch":
            within = not within
        elif entry.what == "submit" and within:
            tags.add(entry.tag)
            requests += 1
    says = f"thread {reader}: {requests} requests with tags {tags}"
    say(f"          {says}")
    assert len(tags) == 1 and 0 not in tags and requests > 100, says
