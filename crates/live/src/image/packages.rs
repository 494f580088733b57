//! Where the parts of a guest come from: packages that are downloaded and
//! unpacked, and programs of the host with their libraries. `tests/system/guest.py`
//! makes the same folders `kernel` and `busybox` in the same cache.

use super::MODULES;
use crate::error::{At, LiveError, Result};
use crate::process::run;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package that always names the newest kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";
/// Debian's keys, of its package debian-archive-keyring.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Where Debian's packages are.
const ARCHIVE: &str = "http://deb.debian.org/debian";

/// Which of Debian's kernels guests boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kernel {
    /// What this machine's apt takes for the newest.
    #[default]
    Current,
    /// Debian 12 as last released, without later security updates.
    Released,
    /// The newer one of Debian 12's backports.
    Backport,
}

impl Kernel {
    /// Its place in the cache, and the suite that has it where that is not for
    /// this machine's apt to say.
    fn source(self) -> (&'static str, Option<&'static str>) {
        match self {
            Kernel::Current => ("kernel", None),
            Kernel::Released => ("kernel-released", Some("bookworm")),
            Kernel::Backport => ("kernel-backport", Some("bookworm-backports")),
        }
    }
}

/// Where packages are downloaded from: apt's options.
struct Apt(Vec<String>);

impl Apt {
    /// As this machine is set up.
    fn of_machine() -> Apt {
        Apt(Vec::new())
    }

    /// One suite of Debian's and nothing else, with lists of its own below
    /// `work`: what the machine has set up is neither needed nor changed.
    fn of_suite(suite: &str, work: &Path) -> Result<Apt> {
        let (sources, lists) = (work.join("sources.list"), work.join("lists"));
        fs::create_dir_all(lists.join("partial")).at("create", &lists)?;
        let line = format!("deb [signed-by={KEYS}] {ARCHIVE} {suite} main\n");
        fs::write(&sources, line).at("write", &sources)?;
        Ok(Apt(vec![
            format!("-oDir::Etc::SourceList={}", sources.display()),
            "-oDir::Etc::SourceParts=-".into(),
            format!("-oDir::State::Lists={}", lists.display()),
            format!("-oDir::Cache={}", work.display()),
            "-oAPT::Sandbox::User=root".into(),
        ]))
    }

    fn run(&self, args: &[&str], work: &Path) -> Result<String> {
        run(Command::new("apt-get").args(&self.0).args(args).current_dir(work), "apt")
    }
}

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
pub(super) fn kernel(cache: &Path, which: Kernel) -> Result<PathBuf> {
    let (name, suite) = which.source();
    made(cache, name, |work| {
        let apt = suite.map_or_else(|| Ok(Apt::of_machine()), |s| Apt::of_suite(s, work))?;
        let meta = download(work, &apt, KERNEL)?;
        let depends =
            run(Command::new("dpkg-deb").arg("--field").arg(&meta).arg("Depends"), "dpkg")?;
        let Some(package) = depends.split([' ', ',', '\n']).find(|d| d.starts_with("linux-image-"))
        else {
            let why = format!("depends on '{}', which names no kernel", depends.trim());
            return Err(LiveError::Package { package: KERNEL.into(), why });
        };
        let root = unpack(work, &apt, package)?;
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
            copy_module(tree, module, &made.join("modules"))?;
        }
        Ok(made)
    })
}

/// A module, unless it is a part of the kernel itself.
fn copy_module(tree: &Path, module: &str, to: &Path) -> Result<()> {
    let from = tree.join("kernel").join(module);
    let to = to.join(from.file_name().expect("a module has a name"));
    if from.is_file() {
        return fs::copy(&from, &to).at("copy", &from).map(drop);
    }
    // Later kernels' are compressed.
    let compressed = with_suffix(&from, ".xz");
    if compressed.is_file() {
        let to = with_suffix(&to, ".xz");
        fs::copy(&compressed, &to).at("copy", &compressed)?;
        return run(Command::new("xz").arg("--decompress").arg(&to), "xz-utils").map(drop);
    }
    let list = tree.join("modules.builtin");
    let built_in = fs::read_to_string(&list).at("read", &list)?;
    if built_in.lines().any(|line| line.strip_prefix("kernel/") == Some(module)) {
        return Ok(());
    }
    Err(LiveError::Package { package: tree.display().to_string(), why: format!("no {module}") })
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// A busybox that needs no libraries.
pub(super) fn busybox(cache: &Path) -> Result<PathBuf> {
    let dir = made(cache, "busybox", |work| {
        let root = unpack(work, &Apt::of_machine(), "busybox-static")?;
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
fn unpack(work: &Path, apt: &Apt, package: &str) -> Result<PathBuf> {
    let file = download(work, apt, package)?;
    let root = work.join(format!("{package}.root"));
    run(Command::new("dpkg").arg("--extract").arg(&file).arg(&root), "dpkg")?;
    Ok(root)
}

/// Download a package's file. The lists of packages are fetched when they are
/// missing or name a file that is no longer there.
fn download(work: &Path, apt: &Apt, package: &str) -> Result<PathBuf> {
    let get = || apt.run(&["download", package], work);
    if get().is_err() {
        // Without the right to (no root) the second download tells why.
        let _ = apt.run(&["update", "--quiet"], work);
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
