"""`seekway-guest tag` in real guests: which process each request came from, as the daemon's journal
has it. Processes that each work in a range of their own on the disk; every request in a range has
to carry its process's tag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from .journal import Entry
from .stage import MIB, Programs, Stage, once_more, say, sparse, step, until

DISK_BYTES = 320 * MIB
#: Each job has a range to itself; it works in the first quarter of it, so that read-ahead beyond
#: its end stays inside.
RANGE_BYTES = 32 * MIB
WORK_BYTES = RANGE_BYTES // 4

#: Runs in place of the command that it is given, once it is told to go on: by then it has its tag.
JOB = '#!/bin/sh\necho $$ >/tmp/job.$1; shift; kill -STOP $$; exec "$@"\n'

Command = Callable[[int], str]


def dd(more: str) -> Command:
    """A command for a range, by its first block of 64 KiB."""
    return lambda at: f"dd bs=64k count={WORK_BYTES >> 16} {more}{at}"


#: How jobs move their bytes.
JOBS: dict[str, Command] = {
    "direct": dd("if=/dev/vda iflag=direct of=/dev/null skip="),
    # The guest's page cache and its read-ahead.
    "buffered": dd("if=/dev/vda of=/dev/null skip="),
    "written": dd("if=/dev/zero of=/dev/vda conv=notrunc,fsync seek="),
    "threads": lambda at: (
        f"fio --name=job --filename=/dev/vda --rw=read --bs=16k --offset={at << 16} "
        f"--size={WORK_BYTES} --minimal --thread --numjobs=3"
    ),
    # A child has its parent's tag until it is given one of its own.
    "child": lambda at: f"sh -c '{dd('if=/dev/vda of=/dev/null skip=')(at)}; true'",
}

#: What CFQ is to tell apart, and what not. It waits longer for a reader than an emulated guest on a
#: busy computer needs.
CFQ = ("cfq:issuer=process,slice_idle=40ms", "cfq:issuer=vm,slice_idle=40ms")
#: Where its two readers are.
CFQ_RANGES = (8, 9)

#: Reads a second of each thread: emulated guests that read as fast as they can leave the agent and
#: the shell next to no processor time.
READS_PER_S = 20


class Tagged(Stage):
    """A guest whose agent tags processes."""

    def wait(self, condition: str) -> None:
        """Until `condition`, a shell command, is true."""
        self.run(until(condition, "cat /tmp/agent.log", 200))

    def tag(self, arguments: str = "") -> None:
        """Start the agent and wait until it has begun."""
        self.run(
            "rm -f /tmp/agent.log; (exec seekway-guest tag --interval 20ms --verbose "
            f"--status /tmp/status {arguments} >/tmp/agent.log 2>&1) & echo $! >/tmp/agent"
        )
        self.wait("grep -q ' tags as ' /tmp/agent.log")

    def jobs(self, jobs: dict[str, str]) -> list[int]:
        """Run jobs side by side, from when all have their tags; the tags."""
        self.run("rm -f /tmp/job.*")
        for name, command in jobs.items():
            self.run(f"job {name} {command} >/tmp/said.{name} 2>&1 &")
        tags = []
        for name in jobs:
            of_job = rf'"\"pid\": $(cat /tmp/job.{name})," /tmp/status'
            self.wait(f"[ -s /tmp/job.{name} ] && grep -q {of_job}")
            # The process's number, its name, its tag.
            tags.append(int(self.run(f"grep -A2 {of_job} | tr -dc '0-9,' | cut -d, -f3")))
        self.run("kill -CONT $(cat /tmp/job.*)")
        alive = "for p in $(cat /tmp/job.*); do kill -0 $p && exit 0; done; exit 1"
        self.wait(f"! ({alive}) 2>/dev/null")
        return tags

    def untag(self) -> str:
        """End it as systemd would; what it said."""
        self.run("kill $(cat /tmp/agent)")
        self.wait("grep -q 'priorities put back' /tmp/agent.log")
        self.wait("! kill -0 $(cat /tmp/agent) 2>/dev/null")
        return self.run("cat /tmp/agent.log")

    def expect_reader(self, scheduling: str) -> None:
        """All threads of the reader have an I/O priority of this class."""
        each = "for t in /proc/$(cat /tmp/reader)/task/*; do ionice -p ${t##*/}; done"
        found = self.run(each).splitlines()
        assert len(found) >= 3 and all(line.startswith(scheduling) for line in found), found


@pytest.mark.parametrize("kernel", ["current", "released", "backport"])
def test_tags_name_processes(programs: Programs, kernel: str) -> None:
    """Tests that do not depend on the kernel run on one. The released one takes no hints."""

    def test(folder: Path) -> None:
        # CFQ waits for a process on a disk only.
        device = "seagate-1tb-7200:k=1" if kernel == "current" else "samsung-970-pro:k=1"
        image = sparse(folder / "tags.img", DISK_BYTES)
        with Tagged(programs, kernel, folder, image, device) as stage:
            stage.run(f"cat >/usr/bin/job <<'END'\n{JOB}END\nchmod +x /usr/bin/job")
            if kernel == "released":
                return is_refused(stage)
            if kernel == "current":
                with step("priorities are put back"):
                    priorities_are_put_back(stage)
                run_under_cfq(stage)
            journal = each_request_names_its_process(stage)
            if kernel == "current":
                check_cfq(journal)

    once_more(test)


def is_refused(stage: Tagged) -> None:
    """A kernel that takes no hints: the agent says which kernel is needed, and changes nothing."""
    said = stage.run("seekway-guest tag --match job 2>&1; echo exit status $?")
    expected = ["takes no hints in I/O priorities", "Linux 6.5 or later", "exit status 2"]
    assert all(words in said for words in expected), said
    stage.run("[ ! -e /run/seekway-guest.state ]")
    say(f"          {stage.run('uname -r').strip()}: {said.splitlines()[0]}")


def priorities_are_put_back(stage: Tagged) -> None:
    """A reader with three threads is tagged, and is as it was before after each way in which the
    agent can end; who has a priority of his own keeps it."""
    reader = (
        f"--filename=/dev/vda --direct=1 --thread --rw=randread --rate_iops={READS_PER_S} "
        f"--offset={7 * RANGE_BYTES} --size={WORK_BYTES} --time_based --runtime=3600 "
        ">/dev/null 2>&1) & echo $!"
    )
    stage.run(
        f"(exec fio --name=long --numjobs=3 {reader} >/tmp/reader; "
        f"(exec ionice -c 2 -n 1 fio --name=own {reader} >/tmp/own"
    )
    tagged = "grep -q 'tag [0-9]*: .* (fio), [3-9] threads' /tmp/agent.log"

    # Each start after a SIGKILL restores first, and then tags anew.
    for start in ("first", "second"):
        stage.tag()
        stage.wait(tagged)
        stage.expect_reader("best-effort")
        restored = stage.run("grep -c 'priorities put back' /tmp/agent.log; true").strip()
        assert (restored == "0") == (start == "first"), f"{start}: {restored}"
        stage.run("killall -9 seekway-guest")
        stage.wait("! kill -0 $(cat /tmp/agent) 2>/dev/null")
    stage.expect_reader("best-effort")
    said = stage.run("seekway-guest restore; seekway-guest restore")
    assert "put back: " in said and "nothing to put back" in said, said
    stage.expect_reader("none")

    stage.tag()
    stage.wait(tagged)
    stage.expect_reader("best-effort")
    said = stage.untag()
    stage.expect_reader("none")
    assert "has best-effort, prio 1, left alone" in said
    own = stage.run("ionice -p $(cat /tmp/own)")
    assert "best-effort: prio 1" in own
    stage.run("killall fio; while pidof fio >/dev/null; do sleep 0.1; done")
    stage.run("[ ! -e /run/seekway-guest.state ]")


def run_under_cfq(stage: Tagged) -> None:
    """Two processes read in sequence, one request at a time each."""
    stage.tag("--match job")
    for policy in CFQ:
        stage.daemon.set_policy(policy)
        read = "dd if=/dev/vda of=/dev/null iflag=direct bs=16k count=256 skip="
        stage.jobs({f"of{n}": f"{read}{n * RANGE_BYTES >> 14}" for n in CFQ_RANGES})
    stage.daemon.set_policy("noop")
    stage.untag()


def range_of(entry: Entry) -> int:
    """The range that a request begins in."""
    return entry.sector * 512 // RANGE_BYTES


def check_cfq(journal: Iterable[Entry]) -> None:
    """With tags, CFQ serves one process for a slice, and then the other; without, whichever's
    request is there."""
    changes: Counter[str] = Counter()
    policy, last = "", -1
    for entry in journal:
        if entry.what == "switch":
            policy, last = entry.policy, -1
        elif entry.what == "issue" and entry.op == "R" and range_of(entry) in CFQ_RANGES:
            changed = last not in (-1, range_of(entry))
            last = range_of(entry)
            for issuer in ("process", "vm"):
                changes[issuer] += changed and f"issuer={issuer}" in policy
    process, vm = changes["process"], changes["vm"]
    says = f"CFQ changed between two processes {process} times, {vm} by VM"
    say(f"          {says}")
    assert 0 < process * 4 < vm, says


def each_request_names_its_process(stage: Tagged) -> Sequence[Entry]:
    """Every request of every job carries that job's tag, and no other job's."""
    release = stage.run("uname -r").strip()
    # From 5 s after the first dirty page on, the kernel's flusher would write a part of what is
    # still dirty, and its requests are nobody's.
    stage.run("echo 360000 >/proc/sys/vm/dirty_writeback_centisecs")
    with step(f"{release}: each request names its process"):
        stage.tag("--match job")
        commands = {
            name: command(n * (RANGE_BYTES >> 16))
            for n, (name, command) in enumerate(JOBS.items(), 1)
        }
        tags = stage.jobs(commands)
        said = stage.untag() + stage.run("tail -n 3 /tmp/said.* | cut -c -80")
        journal = stage.finish()
    seen = Counter((range_of(e), e.tag) for e in journal if e.what == "submit" and e.op in "RW")
    assert len(set(tags)) == len(JOBS), f"tags are shared: {tags}\n{said}"
    for n, (name, tag) in enumerate(zip(JOBS, tags, strict=True), 1):
        found = {t: requests for (where, t), requests in seen.items() if where == n}
        if name == "child":
            right = not any(t == 0 or (t != tag and t in tags) for t in found)
        else:
            right = set(found) == {tag}
        says = f"{name} has tag {tag}, its requests {found} of {dict(seen)}\n{said}"
        assert right and sum(found.values()) >= 16, says
    tagged = next((line for line in said.splitlines() if " tags as " in line), "")
    of_jobs = ", ".join(f"{name} {tag}" for name, tag in zip(JOBS, tags, strict=True))
    say(f"          {sum(seen.values())} requests, {tagged}, {of_jobs}")
    return journal
