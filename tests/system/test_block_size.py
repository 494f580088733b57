"""Block sizes as NBD clients see them (a guest's kernel: `vm/test_guests.py`), and loop devices."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import need, need_root


def sizes(daemon: Any, name: str) -> tuple[int, str]:
    """The least block size that `nbdinfo` sees, and qemu-io's answer to 512 bytes."""
    uri = f"nbd+unix:///{name}?socket={daemon.socket(f'{name}.nbd')}"
    info = subprocess.run(["nbdinfo", "--json", uri], check=True, capture_output=True, text=True)
    code = (
        f"import nbd; h = nbd.NBD(); h.set_strict_mode(0); h.connect_uri({uri!r})\n"
        "h.pwrite(bytes(4096), 4096); h.pread(4096, 8192)\n"
        "try: h.pwrite(bytes(512), 512); print('written')\n"
        "except nbd.Error as e: print(e.errno)"
    )
    said = subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    return json.loads(info.stdout)["exports"][0]["block_size_minimum"], said.stdout.strip()


def need_libnbd() -> None:
    need("nbdinfo")
    if subprocess.run(["/usr/bin/python3", "-c", "import nbd"], capture_output=True).returncode:
        pytest.skip("no python3-libnbd here")


@pytest.fixture
def loop() -> Iterator[Any]:
    """A function that makes a loop device with blocks of this size over an image."""
    need_root()
    need("losetup")
    devices: list[str] = []

    def make(path: Path, sector_bytes: int) -> str:
        command = ["losetup", "--find", "--show", "--sector-size", str(sector_bytes), str(path)]
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode != 0:
            pytest.skip(f"no loop device to be had: {made.stderr}")
        devices.append(made.stdout.strip())
        return devices[-1]

    yield make
    for device in devices:
        subprocess.run(["losetup", "--detach", device], check=True)


def test_a_client_sees_the_block_size_that_was_asked_for(serve: Any, image: Any) -> None:
    need_libnbd()
    web, db = image("web"), image("db")
    daemon = serve("--disk", f"web={web},block_size=4096", "--disk", f"db={db}", "--cache", "off")
    # Less than the least is written all the same.
    assert sizes(daemon, "web") == (4096, "written")
    assert sizes(daemon, "db") == (512, "written")
    assert [daemon.disk(name)["block_bytes"] for name in ("web", "db")] == [4096, 512]
    # The same by `ctl attach`.
    daemon.ctl("detach", "db")
    daemon.ctl("attach", f"db={db},block_size=4096")
    assert sizes(daemon, "db") == (4096, "written")


def test_an_image_that_does_not_suit_is_refused_with_what_to_do(serve: Any, image: Any) -> None:
    web = image("web")
    odd = image("odd", "16M")
    subprocess.run(["truncate", "--size", "+512", str(odd)], check=True)
    daemon = serve("--disk", f"web={web}", "--cache", "off")
    for disk, said in (
        (f"odd={odd},block_size=4096", "truncate -s %4096"),
        (f"odd={odd},block_size=1024", "expected 512 or 4096"),
    ):
        with pytest.raises(subprocess.CalledProcessError) as error:
            daemon.ctl("attach", disk)
        assert said in error.value.stderr, error.value.stderr


def test_a_device_with_large_blocks_serves_small_ones_too(
    serve: Any, image: Any, loop: Any
) -> None:
    need_libnbd()
    device = loop(image("disk"), 4096)
    daemon = serve("--disk", f"web={device}", "--cache", "off")
    assert sizes(daemon, "web") == (4096, "written")
    assert daemon.disk("web")["direct"]
    assert "writes come that do not begin and end" in "".join(daemon.disk("web")["warnings"])
    daemon.ctl("detach", "web")
    daemon.ctl("attach", f"web={device},block_size=512")
    assert sizes(daemon, "web") == (512, "written")
    assert "guests see blocks of 512 bytes" in "".join(daemon.disk("web")["warnings"])
    daemon.ctl("detach", "web")
    daemon.ctl("attach", f"web={device},block_size=4096")
    daemon.end()
