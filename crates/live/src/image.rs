//! The guests' kernel and initramfs, made from Debian's packages.
//!
//! The kernel (`linux-image-cloud-amd64`) and busybox are downloaded and
//! unpacked, not installed. The tools (fio, sysbench) are the host's, with the
//! libraries that they are linked to. All lands in a cache outside of the
//! source tree: `$SEEKWAY_CACHE`, or `seekway` in the user's cache directory.
//!
//! The initramfs is not compressed: 88 MB are unpacked under TCG in about the
//! time that 2 MB are, and gzip costs two seconds more (docs/live.md).

mod cpio;
mod packages;

use crate::error::{At, LiveError, Result};
use cpio::Cpio;
pub use packages::Kernel;
use packages::Tool;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const INIT: &str = include_str!("image/init.sh");

/// In the order in which they depend on each other, below `kernel/`.
const MODULES: &[&str] = &[
    "drivers/virtio/virtio_ring.ko",
    "drivers/virtio/virtio.ko",
    "drivers/virtio/virtio_pci_legacy_dev.ko",
    "drivers/virtio/virtio_pci_modern_dev.ko",
    "drivers/virtio/virtio_pci.ko",
    "drivers/char/virtio_console.ko",
    "drivers/block/virtio_blk.ko",
];

/// What guests boot: a kernel and an initramfs with tools.
#[derive(Clone, Debug)]
pub struct GuestImage {
    /// A Linux kernel (bzImage).
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
}

impl GuestImage {
    /// The image with this machine's current kernel.
    ///
    /// # Errors
    /// Those of [`GuestImage::prepare_with`].
    pub fn prepare() -> Result<GuestImage> {
        Self::prepare_with(Kernel::Current)
    }

    /// Make the image, or find the one made before. Downloads about 28 MB the
    /// first time. Safe beside others that do the same: they wait.
    ///
    /// # Errors
    /// Debian's archive cannot be reached, or a program is missing.
    pub fn prepare_with(kernel: Kernel) -> Result<GuestImage> {
        let cache = cache_dir()?.join("guest");
        fs::create_dir_all(&cache).at("create", &cache)?;
        let _lock = Lock::take(&cache.join("lock"))?;
        let kernel = packages::kernel(&cache, kernel)?;
        let busybox = packages::busybox(&cache)?;
        let tools = [packages::tool("fio", "fio")?, packages::tool("sysbench", "sysbench")?];
        let name = format!("initramfs-{:016x}.cpio", fingerprint(&kernel, &busybox, &tools)?);
        let initramfs = cache.join(name);
        if !initramfs.exists() {
            let partial = cache.join("initramfs.partial");
            write_initramfs(&partial, &kernel, &busybox, &tools)?;
            fs::rename(&partial, &initramfs).at("rename", &partial)?;
        }
        Ok(GuestImage { kernel: kernel.join("vmlinuz"), initramfs })
    }
}

/// Where downloaded and made files are kept from one run to the next.
fn cache_dir() -> Result<PathBuf> {
    let from = |variable: &str| std::env::var_os(variable).filter(|v| !v.is_empty());
    if let Some(dir) = from("SEEKWAY_CACHE") {
        return Ok(PathBuf::from(dir));
    }
    if let Some(dir) = from("XDG_CACHE_HOME") {
        return Ok(Path::new(&dir).join("seekway"));
    }
    match from("HOME") {
        Some(home) => Ok(Path::new(&home).join(".cache/seekway")),
        None => Err(LiveError::Measured(
            "neither SEEKWAY_CACHE nor HOME is set: nowhere to keep the guests' kernel".into(),
        )),
    }
}

/// An exclusive lock on a file, for as long as this lives.
struct Lock {
    _file: File,
}

impl Lock {
    fn take(path: &Path) -> Result<Lock> {
        let file = File::options().create(true).append(true).open(path).at("open", path)?;
        // SAFETY: flock takes no pointers, and the descriptor is open.
        while unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error).at("lock", path);
            }
        }
        Ok(Lock { _file: file })
    }
}

/// Tells initramfs apart by what goes into them: sizes and times of the files.
fn fingerprint(kernel: &Path, busybox: &Path, tools: &[Tool]) -> Result<u64> {
    let mut hash = DefaultHasher::new();
    (INIT, MODULES).hash(&mut hash);
    let kernel = kernel.join("vmlinuz");
    let files = tools.iter().flat_map(|t| &t.files).map(|f| f.host.as_path());
    for path in files.chain([kernel.as_path(), busybox]) {
        let about = fs::metadata(path).at("look at", path)?;
        let modified = about.modified().at("look at", path)?;
        (path, about.len(), modified).hash(&mut hash);
    }
    Ok(hash.finish())
}

fn write_initramfs(to: &Path, kernel: &Path, busybox: &Path, tools: &[Tool]) -> Result<()> {
    let read = |path: &Path| fs::read(path).at("read", path);
    let mut order = String::new();
    let mut files = vec![
        ("init".to_string(), INIT.as_bytes().to_vec()),
        ("bin/busybox".to_string(), read(busybox)?),
    ];
    for module in MODULES {
        let name = module.rsplit('/').next().unwrap_or(module);
        let file = kernel.join("modules").join(name);
        if !file.exists() {
            continue; // a part of this kernel itself
        }
        files.push((format!("lib/modules/{name}"), read(&file)?));
        order.push_str(name.trim_end_matches(".ko"));
        order.push('\n');
    }
    files.push(("lib/modules/order".into(), order.into_bytes()));
    let mut guest_paths: Vec<&str> = Vec::new();
    for file in tools.iter().flat_map(|t| &t.files) {
        // Tools share libraries.
        if !guest_paths.contains(&file.guest.as_str()) {
            guest_paths.push(&file.guest);
            files.push((file.guest.clone(), read(&file.host)?));
        }
    }
    let write = || -> io::Result<()> {
        let mut archive = Cpio::new(BufWriter::new(File::create(to)?));
        archive.directory("dev")?;
        for (path, content) in &files {
            archive.file(path, content)?;
        }
        let mut out = archive.finish()?;
        out.flush()?;
        out.get_ref().sync_all()
    };
    write().at("write", to)
}
