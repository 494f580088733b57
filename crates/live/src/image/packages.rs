//! Where the parts of a guest come from: packages that are downloaded and
//! unpacked, and programs of the host with their libraries.

use super::MODULES;
use crate::error::{At, LiveError, Result};
use crate::process::run;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package that always names the newest kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";

/// A program of the host, to be run in a guest.
pub(super) struct Tool {
    /// The program, its libraries and the dynamic loader.
    pub files: Vec<ToolFile>,
}

/// A file of the host and its path in the guest, without the leading slash.
pub(super) struct ToolFile {
    pub host: PathBuf,
    pub guest: String,
}

/// The directory with `vmlinuz` and `modules/*.ko`.
pub(super) fn kernel(cache: &Path) -> Result<PathBuf> {
    made(cache, "kernel", |work| {
        let meta = download(work, KERNEL)?;
        let depends =
            run(Command::new("dpkg-deb").arg("--field").arg(&meta).arg("Depends"), "dpkg")?;
        let Some(package) = depends.split([' ', ',', '\n']).find(|d| d.starts_with("linux-image-"))
        else {
            let why = format!("depends on '{}', which names no kernel", depends.trim());
            return Err(LiveError::Package { package: KERNEL.into(), why });
        };
        let root = unpack(work, package)?;
        let made = work.join("made");
        fs::create_dir_all(made.join("modules")).at("create", &made)?;
        let version = package.trim_start_matches("linux-image-");
        let copy = |from: PathBuf, to: PathBuf| fs::copy(&from, to).at("copy", &from);
        copy(root.join(format!("boot/vmlinuz-{version}")), made.join("vmlinuz"))?;
        // Debian 13 has /lib inside /usr.
        let trees = ["lib/modules", "usr/lib/modules"].map(|t| root.join(t).join(version));
        let Some(tree) = trees.iter().find(|t| t.is_dir()) else {
            let why = format!("no modules for {version}");
            return Err(LiveError::Package { package: package.into(), why });
        };
        for module in MODULES {
            let name = module.rsplit('/').next().unwrap_or(module);
            copy(tree.join("kernel").join(module), made.join("modules").join(name))?;
        }
        Ok(made)
    })
}

/// A busybox that needs no libraries.
pub(super) fn busybox(cache: &Path) -> Result<PathBuf> {
    let dir = made(cache, "busybox", |work| {
        let root = unpack(work, "busybox-static")?;
        let paths = ["bin/busybox", "usr/bin/busybox"].map(|p| root.join(p));
        let Some(path) = paths.iter().find(|p| p.is_file()) else {
            let why = "has neither bin/busybox nor usr/bin/busybox".into();
            return Err(LiveError::Package { package: "busybox-static".into(), why });
        };
        let made = work.join("made");
        fs::create_dir(&made).at("create", &made)?;
        fs::copy(path, made.join("busybox")).at("copy", path)?;
        Ok(made)
    })?;
    Ok(dir.join("busybox"))
}

/// A program of the host, which `package` has, with what it is linked to.
pub(super) fn tool(program: &'static str, package: &'static str) -> Result<Tool> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|d| d.join(program)).find(|p| p.is_file());
    let host = found.ok_or(LiveError::Missing { program, package })?;
    let linked = run(Command::new("ldd").arg(&host), "libc-bin")?;
    let mut files = vec![ToolFile { guest: format!("usr/bin/{program}"), host }];
    for line in linked.lines().map(str::trim) {
        // "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)", or the loader's
        // "/lib64/ld-linux-x86-64.so.2 (0x…)"; the vDSO has no path.
        let target = line.split_once("=> ").map_or(line, |(_, target)| target);
        if target.starts_with("not found") {
            let why = format!("{program} needs a library that is not there: {line}");
            return Err(LiveError::Package { package: package.into(), why });
        }
        let library = target.split(" (").next().unwrap_or(target);
        if let Some(guest) = library.strip_prefix('/') {
            files.push(ToolFile { host: PathBuf::from(library), guest: guest.into() });
        }
    }
    Ok(Tool { files })
}

/// `cache/name`, made by `make` in a directory of its own when it is not there
/// yet. The caller holds the cache's lock.
fn made(cache: &Path, name: &str, make: impl FnOnce(&Path) -> Result<PathBuf>) -> Result<PathBuf> {
    let done = cache.join(name);
    if done.is_dir() {
        return Ok(done);
    }
    let work = tempfile::tempdir_in(cache).at("create a directory in", cache)?;
    let result = make(work.path())?;
    fs::rename(&result, &done).at("rename", &result)?;
    Ok(done)
}

/// Download a package into `work` and unpack it there.
fn unpack(work: &Path, package: &str) -> Result<PathBuf> {
    let file = download(work, package)?;
    let root = work.join(format!("{package}.root"));
    run(Command::new("dpkg").arg("--extract").arg(&file).arg(&root), "dpkg")?;
    Ok(root)
}

/// Download a package's file. The lists of packages are fetched when they are
/// missing or name a file that is no longer there.
fn download(work: &Path, package: &str) -> Result<PathBuf> {
    let get = || run(Command::new("apt-get").args(["download", package]).current_dir(work), "apt");
    if get().is_err() {
        // Without the right to (no root) the second download tells why.
        let _ = run(Command::new("apt-get").args(["update", "--quiet"]), "apt");
        get()?;
    }
    let prefix = format!("{package}_");
    for entry in fs::read_dir(work).at("list", work)? {
        let path = entry.at("list", work)?.path();
        let name = path.file_name().map(|n| n.to_string_lossy()).unwrap_or_default();
        if name.starts_with(&prefix) && name.ends_with(".deb") {
            return Ok(path);
        }
    }
    let why = "apt-get download succeeded and left no file".into();
    Err(LiveError::Package { package: package.into(), why })
}
