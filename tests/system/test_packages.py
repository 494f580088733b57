"""The packages: what they install, that an upgrade is not noticed by guests, and that nothing is
left of them. They are installed in a container with a real systemd (container.py). They contain
the programs that `cargo test` has built: nothing is compiled here but the tools, once."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bios_guest import Guest, boot_image
from conftest import ROOT, need, need_root, wait_for
from container import CGROUPS, Container

# A version that the sources do not have, and the next one.
OLD, NEW = "7.0.0", "7.1.0"
CONFIG = """
listen = "/run/seekway"
bandwidth = "1GiB"
[[disk]]
name = "web"
path = "/var/lib/seekway/web.img"
"""
# What dpkg and systemd note down about their own work.
NOTES = (
    "var/lib/dpkg/",
    "var/log/",
    "var/cache/",
    "var/lib/systemd/",
    "var/lib/rpm/",
    "etc/group-",
    "etc/gshadow-",
    "etc/passwd-",
    "etc/shadow-",
    "etc/subgid-",
    "etc/subuid-",
    "etc/.pwd.lock",
    "etc/machine-id",
)
# Their contents are compared instead.
USERS = ("etc/group", "etc/gshadow", "etc/passwd", "etc/shadow", "etc/subgid", "etc/subuid")


def make(kind: str, package: str, program: str, version: str, folder: Path) -> Path:
    """Make a package of a built program."""
    run = subprocess.run(
        [str(ROOT / "scripts/packages"), kind, package, program, str(folder)],
        env={**os.environ, "VERSION": version, "FAST": "1"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return Path(run.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def programs(seekway: str) -> dict[str, str]:
    """The built programs by their packages."""
    guest = str(Path(seekway).with_name("seekway-guest"))
    if not Path(guest).exists():
        command = ["cargo", "build", "-q", "-p", "seekway-guestd"]
        subprocess.run(command, cwd=ROOT, check=True)
    return {"seekway": seekway, "seekway-guest": guest}


@pytest.fixture(scope="module")
def debs(programs: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`seekway` in two versions, and `seekway-guest`."""
    need("dpkg-deb", "dpkg-shlibdeps", "strip")
    folder = tmp_path_factory.mktemp("debs")
    new = make("deb", "seekway", programs["seekway"], NEW, folder)
    # The old version is the same package with another number.
    tree, old = folder / "tree", folder / f"seekway_{OLD}.deb"
    subprocess.run(["dpkg-deb", "--raw-extract", new, tree], check=True)
    control = tree / "DEBIAN/control"
    control.write_text(control.read_text().replace(f"Version: {NEW}-1", f"Version: {OLD}-1"))
    subprocess.run(["dpkg-deb", "--build", "-Zgzip", "-z1", tree, old], check=True)
    guest = make("deb", "seekway-guest", programs["seekway-guest"], NEW, folder)
    return {"old": old, "new": new, "guest": guest}


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    """A container that ends with the test."""
    need_root()
    need("nsenter", "unshare", "setpriv", "systemctl")
    if not any((CGROUPS / name).exists() for name in ("cgroup.procs", "systemd")):
        pytest.skip(f"no control groups in {CGROUPS}")
    folder = tmp_path / "container"
    folder.mkdir()
    found = Container(folder, tmp_path / "container.log")
    try:
        yield found
    finally:
        found.end()


@pytest.fixture(scope="module")
def rpm(programs: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`seekway` for RPM."""
    need("strip", "rpm")
    return make("rpm", "seekway", programs["seekway"], NEW, tmp_path_factory.mktemp("rpms"))


def test_lintian_finds_nothing(debs: dict[str, Path]) -> None:
    need("lintian")
    packages = [str(debs["new"]), str(debs["guest"])]
    done = subprocess.run(
        ["lintian", "--allow-root", "--fail-on", "error,warning", *packages],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def left(container: Container, before: dict[str, str]) -> list[str]:
    """Differences from before, but for the notes of package managers."""
    after = container.changed()
    paths = {path for path, what in after.items() if before.get(path) != what}
    # A folder of this computer in which something was changed stays among the changes.
    folders = {path for path in paths if after[path].startswith("d") and Path("/", path).is_dir()}
    # What this computer has and the container has no longer is not left: a device of 0:0 says so.
    gone = {path for path in paths if after[path].startswith("c") and Path("/", path).exists()}
    rest = paths - folders - gone
    return sorted(p for p in rest if not p.startswith(NOTES) and p not in USERS)


def users(container: Container) -> dict[str, str]:
    """Contents of the files of users and groups."""
    files = {path: container.path(f"/{path}") for path in USERS}
    return {path: file.read_text() for path, file in files.items() if file.exists()}


def configure(container: Container) -> None:
    """Configure as an operator does: an image, and the configuration that names it."""
    uid = container.run("id", "--user", "seekway").strip()
    image = container.path("/var/lib/seekway/web.img")
    container.run("install", "-d", "--owner=seekway", "--mode=700", "/var/lib/seekway")
    boot_image(image)
    os.chown(image, int(uid), -1)
    container.path("/etc/seekway").mkdir()
    container.path("/etc/seekway/serve.toml").write_text(CONFIG)


def install(container: Container, package: Path) -> str:
    """Install or upgrade by dpkg."""
    inside = container.path(f"/tmp/{package.name}")
    shutil.copy(package, inside)
    return container.run("dpkg", "--install", f"/tmp/{package.name}")


def test_installed_upgraded_under_load_and_removed(
    container: Container, debs: dict[str, Path], tmp_path: Path
) -> None:
    need("qemu-system-x86_64", "qemu-img", "as", "ld")
    before, users_before = container.changed(), users(container)
    install(container, debs["old"])
    # Without a configuration it is enabled, and does not start.
    assert container.run("systemctl", "is-enabled", "seekway").strip() == "enabled"
    assert container.property("seekway", "ActiveState") == "inactive"
    container.run("systemctl", "start", "seekway")
    assert container.property("seekway", "ConditionResult") == "no"
    assert container.property("seekway", "ActiveState") == "inactive"
    container.run("systemd-analyze", "verify", "/usr/lib/systemd/system/seekway.service")
    back_end = container.run("/usr/libexec/vhost-user-blk", "--print-capabilities")
    assert "read-only" in back_end

    configure(container)
    container.run("systemctl", "start", "seekway")
    first = container.property("seekway", "MainPID")
    assert container.run("stat", "--format=%U", f"/proc/{first}").strip() == "seekway"
    assert OLD not in container.run("seekway", "ctl", "status")

    guest = Guest(container, "/run/seekway/web.vhost")
    nbd = "driver=nbd,server.type=unix,server.path=/run/seekway/web.nbd,export=web"
    bench = ["qemu-img", "bench", "-c", "1000000", "-d", "4", "-s", "4096", "-t", "none"]
    client = container.start(*bench, "--image-opts", f"{nbd},reconnect-delay=60")
    wait_for("the guest does I/O", lambda: guest.rounds() > 100)

    install(container, debs["new"])
    second = container.property("seekway", "MainPID")
    assert second not in ("0", first)
    assert container.property("seekway", "ActiveState") == "active"
    done = guest.rounds()
    wait_for("the guest goes on", lambda: guest.rounds() > done + 100)
    assert guest.failures() == 0
    # The NBD client goes on too: a client that has had an error ends.
    assert client.poll() is None, client.communicate()[0]
    client.kill()
    client.wait()
    guest.end()

    container.run("dpkg", "--remove", "seekway")
    assert container.property("seekway", "MainPID") == "0"
    assert container.path("/etc/seekway/serve.toml").exists()
    # Images stay, and their owner with them, until the operator removes both as the message says.
    message = container.run("dpkg", "--purge", "seekway")
    assert "rm -r /var/lib/seekway && userdel seekway" in message
    assert [p for p in left(container, before) if p.startswith(("etc", "usr"))] == []
    container.run("bash", "-c", "rm -r /var/lib/seekway && userdel seekway")
    assert left(container, before) == []
    assert users(container) == users_before

    # Without images nothing is left by itself.
    install(container, debs["new"])
    container.run("dpkg", "--purge", "seekway")
    assert left(container, before) == []
    assert users(container) == users_before


def test_rpm_installs_starts_and_is_removed(
    container: Container, rpm: Path, debs: dict[str, Path]
) -> None:
    # Debian's rpm knows no package of this computer, so it is not asked for dependencies.
    by_hand = ["rpm", "--force-debian", "--dbpath", "/tmp/rpm"]
    shutil.copy(rpm, container.path("/tmp/seekway.rpm"))
    before = container.changed()
    container.run(*by_hand, "--install", "--nodeps", "/tmp/seekway.rpm")
    listed = container.run(*by_hand, "--query", "--list", "seekway").split()
    assert [path for path in listed if not container.path(path).exists()] == []
    configure(container)
    container.run("systemctl", "start", "seekway")
    assert container.property("seekway", "ActiveState") == "active"
    container.run(*by_hand, "--erase", "--nodeps", "seekway")
    assert container.property("seekway", "ActiveState") == "inactive"
    # Debian has no folder for licences, so RPM's part of it stays.
    remains = {path for path in left(container, before) if path.startswith("usr/")}
    assert remains <= {"usr/share/licenses"}

    # Both kinds of package have the same files, but for licences, changelogs and zsh.
    inside = subprocess.run(
        ["dpkg-deb", "--contents", debs["new"]], check=True, capture_output=True, text=True
    ).stdout
    in_deb = {row.split()[-1][1:] for row in inside.splitlines() if row[0] == "-"}
    own = ("/usr/share/doc", "/usr/share/licenses", "/usr/share/lintian", "/usr/share/zsh")
    in_rpm = {path for path in listed if path != "/usr/share/qemu/vhost-user"}
    assert {p for p in in_deb if not p.startswith(own)} == {
        p for p in in_rpm if not p.startswith(own)
    }
