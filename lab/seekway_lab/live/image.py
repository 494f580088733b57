"""The guests' kernel and initramfs, made of Debian's packages.

Kernel and busybox are downloaded and unpacked, not installed. The tools (fio, sysbench) are the
host's, with the libraries that they are linked to. All lands in a cache outside of the source
tree: `$SEEKWAY_CACHE`, or `seekway` in the user's cache directory.

The initramfs is not compressed: 88 MB are unpacked under TCG in about the time that 2 MB are, and
gzip costs two seconds more.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from seekway_lab.live.process import LiveError, need, output

INIT = Path(__file__).with_name("init.sh")
#: In the order in which they depend on each other, below `kernel/`.
MODULES = (
    "drivers/virtio/virtio_ring.ko",
    "drivers/virtio/virtio.ko",
    "drivers/virtio/virtio_pci_legacy_dev.ko",
    "drivers/virtio/virtio_pci_modern_dev.ko",
    "drivers/virtio/virtio_pci.ko",
    "drivers/char/virtio_console.ko",
    "drivers/block/virtio_blk.ko",
    # Behind the disks' driver: it leaves a disk the scheduler that it has without these.
    "block/bfq.ko",
    "block/kyber-iosched.ko",
)
#: Programs of the host in every guest; packages have the same names.
TOOLS = ("fio", "sysbench")
#: The package that always names the newest kernel for virtual machines.
KERNEL = "linux-image-cloud-amd64"
#: Folders of kernels in the cache; suites that have those which are not for this machine's apt to
#: choose: Debian 12 as last released, without later security updates, and its backports.
KERNELS = {
    "current": ("kernel", None),
    "released": ("kernel-released", "bookworm"),
    "backport": ("kernel-backport", "bookworm-backports"),
}
#: Debian's keys, of its package debian-archive-keyring.
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
ARCHIVE = "http://deb.debian.org/debian"


@dataclass(frozen=True)
class Image:
    """Guests boot it."""

    #: A Linux kernel (bzImage).
    kernel: Path
    initramfs: Path


@cache
def prepare(kernel: str = "current") -> Image:
    """Makes the image with one of `KERNELS`, or finds the one made before.

    Downloads about 28 MB the first time. Others that do the same meanwhile wait.
    """
    with _locked(cache_folder()) as folder:
        of_kernel, busybox = _parts(folder, kernel)
        files = {"bin/busybox": busybox} | _modules(of_kernel)
        for tool in TOOLS:
            files |= linked(tool)
        made = hashlib.sha256(INIT.read_bytes())
        for path in [*files.values(), of_kernel / "vmlinuz"]:
            about = path.stat()
            made.update(f"{path} {about.st_size} {about.st_mtime_ns}\n".encode())
        initramfs = folder / f"initramfs-{made.hexdigest()[:16]}.cpio"
        if not initramfs.exists():
            partial = folder / "initramfs.partial"
            _write(partial, files)
            partial.rename(initramfs)
    return Image(of_kernel / "vmlinuz", initramfs)


def of_script(folder: Path, script: str) -> Image:
    """Makes a small guest in a folder, `vmlinuz` and `initramfs.cpio`, whose only process is this
    shell script. It finds busybox's commands; what it prints goes to the console.
    """
    with _locked(cache_folder()) as made:
        of_kernel, busybox = _parts(made, "current")
    text = folder / "script"
    text.write_text(script)
    files = {"bin/busybox": busybox, "script": text} | _modules(of_kernel)
    image = Image(folder / "vmlinuz", folder / "initramfs.cpio")
    _write(image.initramfs, files)
    shutil.copy(of_kernel / "vmlinuz", image.kernel)
    return image


def cache_folder() -> Path:
    """Where downloaded and made files are kept from one run to the next."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SEEKWAY_CACHE") or Path(user) / "seekway") / "guest"


@contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """The cache, locked against other processes."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _parts(folder: Path, kernel: str) -> tuple[Path, Path]:
    """The folder of a kernel with `vmlinuz` and `modules/*.ko`, and a busybox without libraries."""
    name, suite = KERNELS[kernel]
    # A folder that an older list of modules has made lacks some.
    modules = hashlib.sha256("\n".join(MODULES).encode()).hexdigest()[:8]
    of_kernel = _made(folder, f"{name}-{modules}", lambda work: _unpack_kernel(work, suite))
    return of_kernel, _made(folder, "busybox", _unpack_busybox) / "busybox"


def _made(folder: Path, name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the cache; a missing one is made in its own folder `made`."""
    done = folder / name
    if not done.is_dir():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            made = Path(work, "made")
            made.mkdir()
            make(Path(work))
            made.rename(done)
    return done


def _unpack_kernel(work: Path, suite: str | None) -> None:
    apt = _apt_of_suite(suite, work) if suite else []
    meta = _download(work, KERNEL, apt)
    depends = output("dpkg-deb", "--field", meta, "Depends", package="dpkg")
    names = depends.replace(",", " ").split()
    package = next((name for name in names if name.startswith("linux-image-")), None)
    if package is None:
        raise LiveError(f"package {KERNEL}: depends on '{depends.strip()}', which is no kernel")
    version = package.removeprefix("linux-image-")
    root = _unpack(work, package, apt)
    shutil.copy(root / "boot" / f"vmlinuz-{version}", work / "made/vmlinuz")
    # Debian 13 has /lib inside /usr.
    tree = _first(package, [root / lib / "modules" / version for lib in ("lib", "usr/lib")])
    (work / "made/modules").mkdir()
    built_in = (tree / "modules.builtin").read_text().splitlines()
    for module in MODULES:
        plain = tree / "kernel" / module
        if (packed := plain.with_name(f"{plain.name}.xz")).exists():
            output("xz", "--decompress", packed, package="xz-utils")
        if f"kernel/{module}" not in built_in:
            shutil.copy(_first(package, [plain]), work / "made/modules")


def _unpack_busybox(work: Path) -> None:
    root = _unpack(work, "busybox-static", [])
    paths = [root / "bin/busybox", root / "usr/bin/busybox"]
    shutil.copy(_first("busybox-static", paths), work / "made/busybox")


def _first(package: str, paths: list[Path]) -> Path:
    """The first of the paths that a package has."""
    found = next((path for path in paths if path.exists()), None)
    if found is None:
        raise LiveError(f"package {package}: has no {' or '.join(map(str, paths))}")
    return found


def _apt_of_suite(suite: str, work: Path) -> list[str]:
    """apt's options for one suite of Debian's and nothing else, with lists of its own: what the
    machine has set up is neither needed nor changed.
    """
    sources, lists = work / "sources.list", work / "lists"
    (lists / "partial").mkdir(parents=True)
    sources.write_text(f"deb [signed-by={KEYS}] {ARCHIVE} {suite} main\n")
    places = {"Etc::SourceList": sources, "Etc::SourceParts": "-", "State::Lists": lists}
    options = [f"-oDir::{key}={path}" for key, path in {**places, "Cache": work}.items()]
    return [*options, "-oAPT::Sandbox::User=root"]


def _unpack(work: Path, package: str, apt: list[str]) -> Path:
    """Downloads a package and unpacks it."""
    root = work / f"{package}.root"
    output("dpkg", "--extract", _download(work, package, apt), root, package="dpkg")
    return root


def _download(work: Path, package: str, apt: list[str]) -> Path:
    """Downloads a package's file, with new lists of packages where the old ones do not do."""
    get = ["apt-get", *apt, "download", package]
    try:
        output(*get, package="apt", folder=work)
    except LiveError:
        update = [need("apt-get", "apt"), *apt, "update", "--quiet"]
        # Without the right to (no root) the second download tells why.
        subprocess.run(update, cwd=work, capture_output=True, check=False)
        output(*get, package="apt", folder=work)
    return next(work.glob(f"{package}_*.deb"))


def _modules(of_kernel: Path) -> dict[str, Path]:
    """The modules of a kernel that are not a part of itself."""
    paths = [of_kernel / "modules" / Path(module).name for module in MODULES]
    return {f"lib/modules/{path.name}": path for path in paths if path.exists()}


def linked(program: str) -> dict[str, Path]:
    """A program of the host with its libraries and the dynamic loader, by their paths in a guest.

    Its package has the same name.
    """
    host = Path(need(program, program))
    files = {f"usr/bin/{program}": host}
    for line in output("ldd", host, package="libc-bin").splitlines():
        # "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)", or the loader's
        # "/lib64/ld-linux-x86-64.so.2 (0x…)"; the vDSO has no path.
        target = line.strip().partition("=> ")[2] or line.strip()
        if target.startswith("not found"):
            raise LiveError(f"{program} needs a library that is not there: {line.strip()}")
        library = target.partition(" (")[0]
        if library.startswith("/"):
            files[library[1:]] = Path(library)
    return files


def _write(to: Path, files: dict[str, Path]) -> None:
    """Writes an initramfs with init, these files, and the order of the modules."""
    order = [Path(path).stem for path in files if path.startswith("lib/modules/")]
    with tempfile.TemporaryDirectory(dir=to.parent) as work:
        root = Path(work)
        for folder in ("dev", "lib/modules"):
            (root / folder).mkdir(parents=True)
        (root / "lib/modules/order").write_text("".join(f"{name}\n" for name in order))
        shutil.copy(INIT, root / "init")
        (root / "init").chmod(0o755)
        for path, host in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).symlink_to(host.resolve())
        # A folder comes before what it holds.
        names = "".join(f"{path.relative_to(root)}\n" for path in sorted(root.rglob("*")))
        command: list[str | Path] = [files["bin/busybox"], "cpio", "-o", "-L", "-H", "newc"]
        with to.open("wb") as out:
            pipe = subprocess.PIPE
            subprocess.run(
                command, cwd=root, input=names.encode(), stdout=out, stderr=pipe, check=True
            )
            os.fsync(out.fileno())
