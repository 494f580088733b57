"""Domains of libvirt on our disks, by `virsh` only: docs/libvirt.md says what is shown here.

The domain is the one of share/examples/domain.xml. Guests are emulated (TCG).
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, wait_for
from libvirt_host import Host, need_hosts
from seekway_lab.live.image import of_script

EXAMPLE = ROOT / "share/examples/domain.xml"
DESCRIPTOR = ROOT / "share/qemu/vhost-user/50-seekway.json"
# A guest boots in 8 s, and in minutes where others use the processors.
BOOT_S = 240

# What libvirt logs for each descriptor that it reads, with the filter of libvirt_host.py.
DESCRIPTION = "vhost-user description path"

# In each round the guest writes a sector to each of its disks, reads, and tells what it has.
GUEST = r"""
until [ -b /dev/vda ]; do usleep 10000; done
round=0
while true; do
  round=$((round + 1))
  disks=
  for disk in /sys/block/vd*; do
    name=${disk##*/}
    echo "round $round" >/record
    if ! { dd if=/record of=/dev/$name bs=512 seek=8 conv=sync,fsync,notrunc &&
      dd if=/dev/$name of=/dev/null bs=4k count=16 iflag=direct; } 2>/dev/null; then
      echo "error $name."
      continue
    fi
    disks="$disks $name:$(ls $disk/mq | wc -l)"
  done
  echo "round $round$disks."
  usleep 100000
done
"""


class Guest:
    """The guest's output."""

    def __init__(self, console: Path) -> None:
        self.console = console

    def text(self) -> str:
        """All of it."""
        return self.console.read_text(errors="replace") if self.console.exists() else ""

    def rounds(self) -> list[tuple[int, str]]:
        """The rounds that it has done: number, and its disks with their queues."""
        return [(int(n), disks) for n, disks in re.findall(r"round (\d+) ([^.\n]*)\.", self.text())]

    def last(self) -> int:
        """The number of its last round."""
        rounds = self.rounds()
        return rounds[-1][0] if rounds else 0

    def goes_on(self, disks: str, patience_s: float = 120) -> None:
        """Wait until it has done two more rounds with these disks: one may have been under way."""
        after = self.last() + 1
        wait_for(
            f"the guest does I/O on {disks}",
            lambda: any(n > after and has == disks for n, has in self.rounds()),
            patience_s,
        )

    def has_run_through(self) -> None:
        """Check that the guest never began again, and saw no error of vda."""
        numbers = [n for n, _ in self.rounds()]
        assert numbers == sorted(set(numbers))
        assert "error vda" not in self.text()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Any]:
    """A function that starts a host with libvirtd; the hosts end with the test."""
    need_hosts()
    started: list[Host] = []

    def start(name: str, binds: dict[Path, str]) -> Host:
        started.append(Host(name, tmp_path, binds))
        return started[-1]

    yield start
    for host in started:
        host.end()


def domain_xml() -> str:
    """The example, with what this machine forces: no KVM, little memory, a guest of our own."""
    domain = ET.parse(EXAMPLE).getroot()

    def the(path: str) -> ET.Element:
        found = domain.find(path)
        assert found is not None, f"{EXAMPLE} has no {path}"
        return found

    domain.set("type", "qemu")
    the("memory").text = "128"
    the("memory").set("unit", "MiB")
    the("vcpu").text = "2"
    the("devices/disk/driver").set("queues", "2")
    the("cpu").set("mode", "maximum")
    system = the("os")
    system.remove(the("os/boot"))
    ET.SubElement(system, "kernel").text = "/run/guest/vmlinuz"
    ET.SubElement(system, "initrd").text = "/run/guest/initramfs.cpio"
    ET.SubElement(system, "cmdline").text = "console=ttyS0 quiet panic=-1 no_timer_check"
    the("devices").remove(the("devices/interface"))
    ET.SubElement(the("devices/console"), "log", file="/run/guest/console.log", append="on")
    return ET.tostring(domain, encoding="unicode")


def disk_xml(socket: str, target: str) -> str:
    """The example's disk, at another socket."""
    disk = ET.parse(EXAMPLE).getroot().find("devices/disk")
    assert disk is not None
    changes = {"driver": ("queues", "2"), "source": ("path", socket), "target": ("dev", target)}
    for name, (key, value) in changes.items():
        element = disk.find(name)
        assert element is not None
        element.set(key, value)
    return ET.tostring(disk, encoding="unicode")


def test_a_domain_from_start_to_end(hosts: Any, serve: Any, image: Any, tmp_path: Path) -> None:
    files = tmp_path / "guest"
    files.mkdir()
    access = ("--socket-group", "libvirt-qemu", "--nbd", "off")
    disk = image("web")
    daemon = serve(*access, "--disk", f"web={disk}")
    next_daemon = serve(*access, "--disk", f"web={disk},incoming")
    shared = tmp_path / "shared"
    shared.mkdir()
    shutil.chown(shared, "libvirt-qemu")
    binds = {
        daemon.folder: "/run/seekway",
        next_daemon.folder: "/run/seekway-new",
        files: "/run/guest",
        shared: "/run/migration",
    }
    other = hosts("second", binds)
    host = hosts("first", {**binds, other.run: "/run/second"})
    of_script(files, GUEST)
    guest = Guest(files / "console.log")

    starts(host, daemon, guest, files)
    hot_plugs(host, daemon, guest, image("data"), files)
    outlives_the_daemon(daemon, guest)
    is_saved_and_restored(host, guest)
    migrates(host, other, next_daemon, guest, files)
    ends(host, other, next_daemon)


def starts(host: Host, daemon: Any, guest: Guest, files: Path) -> None:
    """The guest has a queue for each vCPU, and its I/O is in our figures."""
    (files / "web.xml").write_text(domain_xml())
    host.virsh("define", "--validate", "/run/guest/web.xml")
    waits_for_the_daemon(host, daemon)
    guest.goes_on("vda:2", BOOT_S)
    disk = daemon.disk("web")
    assert disk["ports"] == 2
    assert disk["ops"]["write"]["requests"] >= 1 and disk["ops"]["flush"]["requests"] >= 1
    assert b"round " in Path(disk["path"]).read_bytes()[4096:4608]
    # The name of the disk is that of the socket; libvirt has no figures of its own.
    assert "/run/seekway/web.vhost" in host.virsh("domblklist", "web")
    for command in ("domblkstat", "domblkinfo", "blkdeviotune"):
        assert "not supported for vhostuser disk" in host.refuses(command, "web", "vda")


def waits_for_the_daemon(host: Host, daemon: Any) -> None:
    """A domain that is started first starts when the daemon does."""
    assert daemon.end() == 0
    log = host.folder / "var/log/libvirt/qemu/web.log"
    reason = "Failed to connect to '/run/seekway/web.vhost': No such file or directory"
    with subprocess.Popen(host.command("start", "web")) as starting:
        try:
            wait_for("QEMU asks for the disk", lambda: log.exists() and reason in log.read_text())
            assert host.virsh("domstate", "web") == "paused"
            daemon.start()
            assert starting.wait(BOOT_S) == 0
        finally:
            starting.kill()


def hot_plugs(host: Host, daemon: Any, guest: Guest, image: Path, files: Path) -> None:
    """A second disk comes and goes."""
    daemon.ctl("attach", f"data={image},socket_group=libvirt-qemu,nbd=off")
    (files / "data.xml").write_text(disk_xml("/run/seekway/data.vhost", "vdb"))
    host.virsh("attach-device", "web", "/run/guest/data.xml", "--live")
    guest.goes_on("vda:2 vdb:2")
    assert daemon.disk("data")["ops"]["write"]["requests"] >= 1
    host.virsh("detach-device", "web", "/run/guest/data.xml", "--live")
    guest.goes_on("vda:2")
    daemon.ctl("detach", "data")


def outlives_the_daemon(daemon: Any, guest: Guest) -> None:
    """The daemon is killed and started again: the guest waits, and goes on."""
    daemon.end(signal.SIGKILL)
    daemon.start()
    guest.goes_on("vda:2")
    guest.has_run_through()


def is_saved_and_restored(host: Host, guest: Guest) -> None:
    """The guest goes on where it was, not from its boot."""
    host.virsh("save", "web", "/run/migration/web.save")
    host.virsh("restore", "/run/migration/web.save")
    guest.goes_on("vda:2")
    guest.has_run_through()


def migrates(host: Host, other: Host, next_daemon: Any, guest: Guest, files: Path) -> None:
    """The guest moves to another libvirtd, another QEMU and another daemon while it runs."""
    same = host.refuses("migrate", "--live", "web", "qemu:///system")
    assert "Attempt to migrate guest to the same host" in same
    moved = host.virsh("dumpxml", "--migratable", "web")
    assert "/run/seekway/web.vhost" in moved
    moved = moved.replace("/run/seekway/web.vhost", "/run/seekway-new/web.vhost")
    (files / "moved.xml").write_text(moved)
    host.virsh(
        *("migrate", "--live", "--persistent", "--undefinesource", "web"),
        "qemu+unix:///system?socket=/run/second/libvirt-sock",
        *("--migrateuri", "unix:///run/migration/web.socket", "--xml", "/run/guest/moved.xml"),
    )
    assert host.virsh("list", "--all", "--name") == ""
    assert other.virsh("list", "--name") == "web"
    guest.goes_on("vda:2")
    assert next_daemon.disk("web")["ops"]["write"]["requests"] >= 1
    guest.has_run_through()


def ends(host: Host, other: Host, next_daemon: Any) -> None:
    """A domain that was destroyed and undefined leaves nothing behind."""
    other.virsh("destroy", "web")
    wait_for("the VMM has gone", lambda: next_daemon.disk("web")["ports"] == 0)
    other.virsh("undefine", "web")
    assert other.virsh("list", "--all", "--name") == ""
    assert host.leftovers("web") == [] and other.leftovers("web") == []
    for log in (host.log, other.log):
        assert DESCRIPTION not in log.read_text(), "a disk needs no descriptor"


def test_libvirt_reads_the_descriptor(hosts: Any, tmp_path: Path) -> None:
    """libvirt reads every descriptor when a domain needs one, and a bad one would fail it.

    A disk names its socket itself and needs none; a shared folder (virtiofs) does.
    """
    descriptors = tmp_path / "vhost-user"
    descriptors.mkdir()
    shutil.copy(DESCRIPTOR, descriptors)
    (descriptors / "60-virtiofsd.json").write_text(
        '{"description": "none", "type": "fs", "binary": "/nowhere/virtiofsd"}'
    )
    host = hosts("first", {descriptors: "/usr/share/qemu/vhost-user", tmp_path: "/run/guest"})
    domain = ET.fromstring(domain_xml())
    devices = domain.find("devices")
    assert devices is not None
    devices.append(ET.fromstring(SHARED_FOLDER))
    (tmp_path / "web.xml").write_text(ET.tostring(domain, encoding="unicode"))
    (tmp_path / "vmlinuz").touch()
    (tmp_path / "initramfs.cpio").touch()
    host.virsh("define", "/run/guest/web.xml")
    # It takes the other descriptor, whose program does not exist: ours is of another type.
    assert "/nowhere/virtiofsd" in host.refuses("start", "web")
    log = host.log.read_text()
    path = f"/usr/share/qemu/vhost-user/{DESCRIPTOR.name}"
    assert f"{DESCRIPTION} '{path}' type : block" in log
    assert f"{DESCRIPTION} '{path}' binary : /usr/libexec/vhost-user-blk" in log
    (descriptors / DESCRIPTOR.name).write_text("{")
    assert "unable to parse json file" in host.refuses("start", "web")


SHARED_FOLDER = """
<filesystem type="mount" accessmode="passthrough">
  <driver type="virtiofs"/>
  <source dir="/run/guest"/>
  <target dir="folder"/>
</filesystem>
"""


def test_the_descriptor_and_its_program_follow_qemus_schema(seekway: str, tmp_path: Path) -> None:
    """docs/interop/vhost-user.json of QEMU: VhostUserBackend, VHostUserBackendCapabilities."""
    descriptor = json.loads(DESCRIPTOR.read_text())
    assert set(descriptor) - {"tags"} == {"description", "type", "binary"}
    assert descriptor["type"] == "block"
    assert isinstance(descriptor["description"], str)
    assert re.match(r"\d\d-", DESCRIPTOR.name), "descriptors are sorted by name"
    program = tmp_path / Path(descriptor["binary"]).name
    program.symlink_to(seekway)
    asked = subprocess.run(
        [program, "--print-capabilities"], capture_output=True, text=True, check=True
    )
    capabilities = json.loads(asked.stdout)
    assert set(capabilities) == {"type", "features"}
    assert capabilities["type"] == descriptor["type"]
    assert set(capabilities["features"]) <= {"read-only", "blk-file"}
