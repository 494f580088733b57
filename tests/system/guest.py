"""A small guest for the system tests: a kernel from Debian's packages, and busybox with a script.

The kernel and busybox are those of `crates/live` (see `packages.rs` there), in the same cache and
in the same folders: whichever test comes first downloads them, once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# In the order in which they depend on each other; crates/live copies these and one more.
MODULES = (
    "drivers/virtio/virtio_ring.ko",
    "drivers/virtio/virtio.ko",
    "drivers/virtio/virtio_pci_legacy_dev.ko",
    "drivers/virtio/virtio_pci_modern_dev.ko",
    "drivers/virtio/virtio_pci.ko",
    "drivers/char/virtio_console.ko",
    "drivers/block/virtio_blk.ko",
)
KERNEL = "linux-image-cloud-amd64"


def cache_dir() -> Path:
    """Where `crates/live` keeps what it downloads."""
    if given := os.environ.get("SEEKWAY_CACHE"):
        return Path(given) / "guest"
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user) / "seekway" / "guest"


@contextmanager
def locked(cache: Path) -> Iterator[None]:
    """Hold the lock of the cache, which `crates/live` takes too."""
    with (cache / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(*command: str | Path, cwd: Path) -> str:
    """Run a program of apt or dpkg, and return what it prints."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def download(work: Path, package: str) -> Path:
    """Download a package's file, with new lists of packages where the old ones do not do."""
    get = ("apt-get", "download", package)
    if subprocess.run(get, cwd=work, capture_output=True, check=False).returncode != 0:
        run("apt-get", "update", "--quiet", cwd=work)
        run(*get, cwd=work)
    return next(work.glob(f"{package}_*.deb"))


def unpack(work: Path, package: str) -> Path:
    """Download a package and unpack it, without installing it."""
    file = download(work, package)
    root = work / f"{package}.root"
    run("dpkg", "--extract", file, root, cwd=work)
    return root


def make_kernel(work: Path, made: Path) -> None:
    """Fill `made` with `vmlinuz` and `modules/*.ko`."""
    meta = download(work, KERNEL)
    depends = run("dpkg-deb", "--field", meta, "Depends", cwd=work).replace(",", " ").split()
    package = next(name for name in depends if name.startswith("linux-image-"))
    version = package.removeprefix("linux-image-")
    root = unpack(work, package)
    (made / "modules").mkdir()
    shutil.copy(root / "boot" / f"vmlinuz-{version}", made / "vmlinuz")
    trees = [root / lib / "modules" / version for lib in ("lib", "usr/lib")]
    tree = next(tree for tree in trees if tree.is_dir())
    for module in MODULES:
        plain = tree / "kernel" / module
        packed = plain.with_name(plain.name + ".xz")
        if packed.exists():
            run("xz", "--decompress", packed, cwd=work)
        if plain.exists():  # else it is a part of the kernel itself
            shutil.copy(plain, made / "modules")


def make_busybox(work: Path, made: Path) -> None:
    """Fill `made` with a busybox that needs no libraries."""
    root = unpack(work, "busybox-static")
    paths = [root / "bin/busybox", root / "usr/bin/busybox"]
    shutil.copy(next(path for path in paths if path.is_file()), made / "busybox")


def cached(cache: Path, name: str, make: Callable[[Path, Path], None]) -> Path:
    """The folder `name` of the cache; `make` fills it where it is missing."""
    done = cache / name
    if not done.is_dir():
        with tempfile.TemporaryDirectory(dir=cache) as work:
            made = Path(work) / "made"
            made.mkdir()
            make(Path(work), made)
            made.rename(done)
    return done


def make_guest(folder: Path, init: str) -> tuple[Path, Path]:
    """Make a guest whose only process is the shell script `init`: its kernel, its initramfs.

    The script finds busybox's commands in /bin, and the modules loaded; what it prints goes to
    the console.
    """
    cache = cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache):
        kernel = cached(cache, "kernel", make_kernel)
        busybox = cached(cache, "busybox", make_busybox) / "busybox"
    root = folder / "initramfs"
    for name in ("bin", "dev", "proc", "sys", "modules"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / "bin")
    names = [Path(module).name for module in MODULES]
    present = [name for name in names if (kernel / "modules" / name).exists()]
    for name in present:
        shutil.copy(kernel / "modules" / name, root / "modules")
    begin = [
        "#!/bin/busybox sh",
        "/bin/busybox --install -s /bin",
        "mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev",
        *(f"insmod /modules/{name}" for name in present),
    ]
    (root / "init").write_text("\n".join([*begin, init]))
    (root / "init").chmod(0o755)
    initramfs = folder / "initramfs.cpio"
    pack = f'find . | ./bin/busybox cpio -o -H newc 2>/dev/null >"{initramfs}"'
    subprocess.run(["sh", "-c", pack], cwd=root, check=True)
    shutil.copy(kernel / "vmlinuz", folder / "vmlinuz")
    return folder / "vmlinuz", initramfs
