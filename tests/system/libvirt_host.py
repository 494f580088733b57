"""A libvirtd as on a host of its own, for the tests of libvirt.

Each has namespaces of its own (mounts, host name, processes, network), with its own /run,
/etc/libvirt, /var/lib/libvirt, /var/log/libvirt and /var/cache/libvirt. So two of them run side by
side, and beside one that the machine has. All that a host started ends with it, also when the test
is killed.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import uuid
from pathlib import Path

import pytest
from conftest import need, need_root, wait_for

# The first process of the host: it starts the daemons and collects what they leave.
# $1: the host's name and folder, $2: its UUID, $3…: pairs of a folder and where it appears.
INIT = """
set -eu
name=$1 folder=$2 uuid=$3
shift 3
mount -t tmpfs -o mode=755 tmpfs /run
for place in /etc/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt; do
  mkdir -p "$folder$place"
  mount --bind "$folder$place" "$place"
done
while [ $# -gt 0 ]; do
  mkdir -p "$2"
  mount --bind "$1" "$2"
  shift 2
done
# libvirt makes folders in these, and leaves some behind.
for place in /sys/fs/cgroup /dev/hugepages; do
  if mountpoint -q "$place"; then umount --recursive --lazy "$place"; fi
done
hostname "$name"
cat >/etc/libvirt/libvirtd.conf <<END
host_uuid = "$uuid"
log_filters = "1:qemu.qemu_vhost_user"
log_outputs = "1:file:$folder/libvirtd.log"
END
virtlogd &
libvirtd &
wait
"""

NAMESPACES = ["--mount", "--uts", "--pid", "--net"]
# The first process of the host ends with unshare, and unshare with the test.
UNSHARE = ["setpriv", "--pdeathsig", "KILL", "unshare", *NAMESPACES]
UNSHARE += ["--fork", "--mount-proc", "--kill-child"]


def need_hosts() -> None:
    """Skip a test where the machine cannot have such hosts."""
    need_root()
    need("libvirtd", "virtlogd", "virsh", "qemu-system-x86_64")
    try:
        pwd.getpwnam("libvirt-qemu")
    except KeyError:
        pytest.skip("no user libvirt-qemu (Debian's package libvirt-daemon-system)")
    made = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"the right to make namespaces: {made.stderr.strip()}")


class Host:
    """A running libvirtd, and its `virsh`."""

    def __init__(self, name: str, folder: Path, binds: dict[Path, str]) -> None:
        """Start it. `binds`: folders, and the paths at which the host has them."""
        self.folder = folder / name
        self.run = self.folder / "run"
        self.run.mkdir(parents=True)
        self.log = self.folder / "libvirtd.log"
        pairs = [str(part) for pair in {self.run: "/run/libvirt", **binds}.items() for part in pair]
        command = [*UNSHARE, "sh", "-c", INIT, "sh"]
        command += [name, str(self.folder), str(uuid.uuid4()), *pairs]
        self.output = self.folder / "output.log"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            wait_for(f"{name}: libvirtd answers", self.answers)
        except BaseException:
            self.end()
            raise

    def answers(self) -> bool:
        """Does libvirtd answer?"""
        assert self.process.poll() is None, self.output.read_text()
        return (self.run / "libvirt-sock").exists() and self.try_virsh("version").returncode == 0

    def init(self) -> str:
        """The process ID of the first process in the host's namespaces."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return children.read_text().split()[0]

    def command(self, *arguments: str) -> list[str]:
        """The command that runs `virsh` on the host, as its root would."""
        enter = ["nsenter", *NAMESPACES, "--target", self.init()]
        return [*enter, "virsh", "--quiet", "--connect", "qemu:///system", *arguments]

    def try_virsh(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `virsh`, and say how it ended."""
        command = self.command(*arguments)
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    def virsh(self, *arguments: str) -> str:
        """Run `virsh`, and return its output."""
        done = self.try_virsh(*arguments)
        assert done.returncode == 0, f"virsh {' '.join(arguments)}: {done.stderr}"
        return done.stdout.strip()

    def refuses(self, *arguments: str) -> str:
        """Run `virsh`, which has to fail, and return its error."""
        done = self.try_virsh(*arguments)
        assert done.returncode != 0, f"virsh {' '.join(arguments)}: {done.stdout}"
        return done.stderr.strip()

    def leftovers(self, domain: str) -> list[str]:
        """Processes and files that the host still has of a domain."""
        # Arguments in /proc as its processes see it, so only those of the host.
        proc = Path(f"/proc/{self.init()}/root/proc")
        found = []
        for process in proc.glob("[0-9]*/cmdline"):
            arguments = process.read_bytes().split(b"\0")
            if f"guest={domain},debug-threads=on".encode() in arguments:
                found.append(str(process))
        for place in ("etc/libvirt/qemu", "var/lib/libvirt/qemu", "run/qemu"):
            found += map(str, (self.folder / place).rglob(f"*{domain}*"))
        return found

    def end(self) -> None:
        """End the host and all that runs on it."""
        # With the first process of their namespace, the others end too.
        if self.process.poll() is None:
            os.kill(int(self.init()), signal.SIGKILL)
        self.process.wait()
