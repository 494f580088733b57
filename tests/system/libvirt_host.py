"""A libvirtd as on a host of its own, for the tests of libvirt.

Each has its own namespaces of mounts, host name and processes, and its own folders below /run,
/etc/libvirt, /var/lib/libvirt, /var/log/libvirt and /var/cache/libvirt. So two of them run side by
side and beside one that the machine has, and all that a host started ends with it, also when the
test is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from pathlib import Path

from conftest import wait_for

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
# Without systemd libvirt would make groups of its own here, and leave their parent.
if mountpoint -q /sys/fs/cgroup; then umount --recursive --lazy /sys/fs/cgroup; fi
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


class Host:
    """A running libvirtd, and its `virsh`."""

    def __init__(self, name: str, folder: Path, binds: dict[Path, str]) -> None:
        """Start it. `binds`: folders, and the paths at which the host has them."""
        self.folder = folder / name
        run = self.folder / "run"
        run.mkdir(parents=True)
        self.socket = run / "libvirt-sock"
        self.log = self.folder / "libvirtd.log"
        pairs = [str(part) for pair in {run: "/run/libvirt", **binds}.items() for part in pair]
        namespaces = ["--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
        command = ["unshare", *namespaces, "sh", "-c", INIT, "sh"]
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
        return self.socket.exists() and self.try_virsh("version").returncode == 0

    def init(self) -> str:
        """The process ID of the first process in the host's namespaces."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return children.read_text().split()[0]

    def try_virsh(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `virsh` on the host as root would, and say how it ended."""
        enter = ["nsenter", "--mount", "--uts", "--pid", "--target", self.init()]
        command = [*enter, "virsh", "--quiet", "--connect", "qemu:///system", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def virsh(self, *arguments: str) -> str:
        """Run `virsh`, and return what it prints."""
        done = self.try_virsh(*arguments)
        assert done.returncode == 0, f"virsh {' '.join(arguments)}: {done.stderr}"
        return done.stdout.strip()

    def refuses(self, *arguments: str) -> str:
        """Run `virsh`, which has to fail, and return its error."""
        done = self.try_virsh(*arguments)
        assert done.returncode != 0, f"virsh {' '.join(arguments)}: {done.stdout}"
        return done.stderr.strip()

    def leftovers(self) -> list[str]:
        """Processes of QEMU, and files of domains, that libvirt still has."""
        enter = ["nsenter", "--mount", "--pid", "--target", self.init()]
        ps = subprocess.run(
            [*enter, "ps", "-e", "-o", "comm="], capture_output=True, text=True, check=True
        )
        found = [name for name in ps.stdout.split() if name.startswith("qemu-system")]
        for place in ("etc/libvirt/qemu", "var/lib/libvirt/qemu", "run/qemu"):
            for path in (self.folder / place).rglob("*web*"):
                found.append(str(path))
        return found

    def end(self) -> None:
        """End the host and all that runs on it."""
        # With the first process of their namespace, the others end too.
        if self.process.poll() is None:
            os.kill(int(self.init()), signal.SIGKILL)
        self.process.wait()
