"""qcow2 images: `qemu-nbd` and `nbdfuse` show what is in one as a raw file, and `seekway serve`
serves that file (docs/images.md). The command is the one of
`share/examples/seekway-qcow2@.service`. After kills, `qemu-img check` and a model judge the image.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE_S, ROOT, need, need_root, wait_for
from nbd_writer import BLOCK, block_of, plan

MIB = 1 << 20
SIZE = 64 * MIB
UNIT = ROOT / "share/examples/seekway-qcow2@.service"
WRITER = Path(__file__).with_name("nbd_writer.py")
# Debian's Python has the bindings of libnbd, an environment of another one has not.
PYTHON = "/usr/bin/python3"


def run(*command: str | Path, **more: Any) -> str:
    """Run a program that has to succeed, and return its output."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **more)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def need_chain() -> None:
    """Skip where the chain cannot be: it mounts FUSE."""
    need_root()
    need("nbdfuse", "qemu-nbd", "qemu-img", "umount")
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no FUSE here (/dev/fuse)")
    if subprocess.run([PYTHON, "-c", "import nbd"], capture_output=True).returncode != 0:
        pytest.skip("no python3-libnbd here")


class Chain:
    """A qcow2 image that is shown as a raw file."""

    def __init__(self, folder: Path, name: str) -> None:
        self.image = folder / f"{name}.qcow2"
        self.raw = folder / f"{name}.raw"
        self.process: subprocess.Popen[bytes] | None = None
        self.qemu_nbd = 0

    def command(self) -> list[str]:
        """The command of the example, with paths of the test."""
        text = UNIT.read_text().replace("\\\n", " ")
        line = next(x for x in text.splitlines() if x.startswith("ExecStart="))
        line = line.replace("%i", self.image.stem)
        line = line.replace("/var/lib/seekway", str(self.image.parent))
        return shlex.split(line.removeprefix("ExecStart="))

    def start(self) -> None:
        """Return when the raw file is there."""
        self.raw.touch()
        self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL)
        process = self.process

        def is_up() -> bool:
            assert process.poll() is None, "nbdfuse has ended"
            return os.path.ismount(self.raw)

        wait_for("the raw file", is_up)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        (self.qemu_nbd,) = map(int, children.split())

    def kill(self, program: str) -> None:
        """Kill one of the two programs."""
        assert self.process is not None
        os.kill(self.process.pid if program == "nbdfuse" else self.qemu_nbd, signal.SIGKILL)

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End nbdfuse, whereupon qemu-nbd ends; a mount that is left is taken away."""
        if self.process is None:
            return
        self.process.send_signal(how)
        self.process.wait(PATIENCE_S)
        self.process = None
        with open("/proc/self/mounts") as mounts:
            mounted = any(line.split()[1] == str(self.raw) for line in mounts)
        if mounted:
            run("umount", "--lazy", self.raw)
        wait_for("the end of qemu-nbd", lambda: not is_running(self.qemu_nbd))


def is_running(pid: int) -> bool:
    """Is it there, and not only waiting for its parent to look?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Any]:
    """A function that makes a chain: `chain("web", "-o", "extended_l2=on")`."""
    need_chain()
    chains: list[Chain] = []

    def make(name: str, *options: str) -> Chain:
        chains.append(Chain(tmp_path, name))
        create = ["qemu-img", "create", "-q", "-f", "qcow2", *options]
        run(*create, chains[-1].image, str(SIZE))
        return chains[-1]

    yield make
    for made in chains:
        made.end(signal.SIGKILL)


def check(image: Path, leaks: bool) -> None:
    """`qemu-img check`: no corruption ever; clusters may leak only where something was killed."""
    command = ["qemu-img", "check", "--output=json", str(image)]
    done = subprocess.run(command, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found.get("corruptions", 0) == 0 and found["check-errors"] == 0, found
    assert leaks or found.get("leaks", 0) == 0, found
    # 3: leaked clusters, nothing else.
    assert done.returncode in ((0, 3) if leaks else (0,)), done


def content(image: Path) -> bytes:
    """The image's contents as a guest reads them."""
    raw = image.with_suffix(".content")
    run("qemu-img", "convert", "-O", "raw", image, raw)
    data = raw.read_bytes()
    raw.unlink()
    return data


def uri(daemon: Any, name: str = "web") -> str:
    """Where NBD clients find the disk."""
    return f"nbd+unix:///{name}?socket={daemon.socket(f'{name}.nbd')}"


def client(daemon: Any, code: str) -> str:
    """Run Python code with a connection `h` of libnbd."""
    start = f"import nbd; h = nbd.NBD(); h.connect_uri({uri(daemon)!r})\n"
    return run(PYTHON, "-c", start + code)


def base_image(folder: Path) -> Path:
    """A backing file in qcow2, with compressed clusters, half of it data."""
    raw, base = folder / "base.raw", folder / "base.qcow2"
    raw.write_bytes(b"base" * (SIZE // 8) + bytes(SIZE // 2))
    run("qemu-img", "convert", "-c", "-O", "qcow2", raw, base)
    return base


@pytest.mark.parametrize("kind", ["plain", "backing", "subclusters", "lazy"])
def test_what_a_client_writes_is_in_the_qcow2(
    chain: Any, serve: Any, tmp_path: Path, kind: str
) -> None:
    options = {
        "plain": [],
        "backing": ["-b", str(base_image(tmp_path)), "-F", "qcow2"],
        "subclusters": ["-o", "extended_l2=on,cluster_size=128k"],
        "lazy": ["-o", "lazy_refcounts=on"],
    }[kind]
    web = chain("web", *options)
    model = bytearray(content(web.image))
    assert any(model) == (kind == "backing")
    web.start()
    daemon = serve("--disk", f"web={web.raw},on={web.image}", "--cache", "off")
    disk = daemon.disk("web")
    assert (disk["capacity_bytes"], disk["direct"]) == (SIZE, True)
    rng = random.Random(19)
    code = ""
    for n in range(200):
        at = rng.randrange(SIZE // 512 - 512) * 512
        size = 512 * rng.randrange(1, 512)
        value = rng.randrange(8) and n + 1
        if value == 0:
            code += f"h.zero({size}, {at})\n"
        else:
            code += f"h.pwrite(bytes([{value}]) * {size}, {at})\n"
        model[at : at + size] = bytes([value]) * size
    # Discarded blocks may read as anything, and read as zeroes.
    code += f"h.flush(); h.trim({MIB}, {8 * MIB}); h.flush(); h.shutdown()"
    model[8 * MIB : 9 * MIB] = bytes(MIB)
    client(daemon, code)
    assert daemon.end() == 0
    web.end()
    check(web.image, leaks=False)
    found = content(web.image)
    wrong = [at for at in range(0, SIZE, 512) if found[at : at + 512] != model[at : at + 512]]
    assert not wrong[:5], "there the image holds something else"
    # The discarded space is given back.
    mapped = json.loads(run("qemu-img", "map", "--output=json", web.image))
    inside = [m for m in mapped if m["start"] <= 8 * MIB + 512 < m["start"] + m["length"]]
    assert inside and not inside[0]["data"], inside


class Model:
    """Possible contents of each block while `nbd_writer.py` writes and is cut off."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.blocks = [0] * (SIZE // BLOCK)
        self.next = 1

    def write_until(self, daemon: Any, generations: int, kill: Any) -> None:
        """Write, call `kill` after `generations` flushed ones, and learn what was flushed."""
        arguments = [uri(daemon), str(self.seed), str(len(self.blocks)), str(self.next)]
        command = [PYTHON, str(WRITER), *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            lines: list[str] = []
            for line in writer.stdout:
                lines.append(line)
                if len(lines) == generations:
                    kill()
        assert lines[-1].startswith("failed"), lines[-1]
        flushed = [line for line in lines if line.startswith("flushed")]
        assert len(flushed) >= generations, lines
        for _ in flushed:
            for at, length in plan(self.seed, len(self.blocks), self.next):
                self.blocks[at : at + length] = [self.next] * length
            self.next += 1

    def judge(self, data: bytes) -> None:
        """Check that each block has its last flushed contents, or later ones in flight."""
        in_flight = {
            block
            for at, length in plan(self.seed, len(self.blocks), self.next)
            for block in range(at, at + length)
        }
        for block, generation in enumerate(self.blocks):
            found = data[block * BLOCK : (block + 1) * BLOCK]
            before = block_of(block, generation) if generation else bytes(BLOCK)
            if block in in_flight and found == block_of(block, self.next):
                self.blocks[block] = self.next
            else:
                is_there = found == before
                assert is_there, f"block {block}: generation {generation} is not there"
        self.next += 1


@pytest.mark.parametrize("program", ["qemu-nbd", "nbdfuse"])
@pytest.mark.parametrize("options", [[], ["-o", "extended_l2=on,cluster_size=128k"]])
def test_a_chain_that_is_killed_loses_nothing_that_was_flushed(
    chain: Any, serve: Any, options: list[str], program: str
) -> None:
    web = chain("web", *options)
    web.start()
    daemon = serve("--disk", f"web={web.raw},on={web.image}", "--cache", "off")
    model = Model(seed=7)
    for generations in (1, 5, 12):
        model.write_until(daemon, generations, lambda: web.kill(program))
        web.end(signal.SIGKILL)
        # The daemon goes on, and gets the disk back when the raw file is there again.
        daemon.ctl("detach", "web")
        check(web.image, leaks=True)
        model.judge(content(web.image))
        web.start()
        daemon.ctl("attach", f"web={web.raw},on={web.image}")
    assert daemon.end() == 0
    web.end()
    check(web.image, leaks=True)
    # Leaked clusters can be freed.
    run("qemu-img", "check", "-q", "-r", "leaks", web.image)
    check(web.image, leaks=False)


def test_a_daemon_that_is_killed_loses_nothing_that_was_flushed(chain: Any, serve: Any) -> None:
    web = chain("web")
    web.start()
    model = Model(seed=8)
    for generations in (1, 8, 15):
        daemon = serve("--disk", f"web={web.raw},on={web.image}", "--cache", "off")
        model.write_until(daemon, generations, daemon.process.kill)
        daemon.end()
        model.judge(web.raw.read_bytes())
    web.end()
    check(web.image, leaks=False)
    assert web.image.stat().st_size < 2 * SIZE


def test_disks_of_one_device_share_it(chain: Any, serve: Any, image: Any) -> None:
    chains = [chain("web"), chain("db")]
    for one in chains:
        one.start()
    disks = [f"{one.image.stem}={one.raw},on={one.image}" for one in chains]
    given = [word for disk in (*disks, f"raw={image('raw')}") for word in ("--disk", disk)]
    devices = serve(*given, "--cache", "off").status()["devices"]
    assert [sorted(disk["name"] for disk in d["disks"]) for d in devices] == [["db", "raw", "web"]]


def test_who_serves_a_qcow2_as_it_is_is_told_of_the_chain(serve: Any, tmp_path: Path) -> None:
    need("qemu-img")
    # A name that says what it is is refused. Another one may be a disk that begins like that.
    path = tmp_path / "web.img"
    run("qemu-img", "create", "-q", "-f", "qcow2", path, "16M")
    run("truncate", "--size", "%512", path)
    daemon = serve("--disk", f"web={path}", "--cache", "off")
    warnings = [w for w in daemon.disk("web")["warnings"] if "docs/images.md" in w]
    assert len(warnings) == 1 and "qcow2" in warnings[0], warnings
    # A guest sees the header, not the disk: the size is the file's.
    assert daemon.disk("web")["capacity_bytes"] == path.stat().st_size
