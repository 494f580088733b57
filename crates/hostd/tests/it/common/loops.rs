//! Loop devices and mounts, for those who may have them (root).

use super::mounted::{Loop, Mount, run};
use std::path::{Path, PathBuf};

/// The output of a program; `None`, with a message, where it is not installed
/// or fails.
pub fn output(program: &str, args: &[&str]) -> Option<String> {
    run(program, args).inspect_err(|e| eprintln!("{e}")).ok()
}

/// A loop device over a file; `None`, with a message, where there is none to be had.
pub fn loop_device(path: &Path, sector_bytes: u32) -> Option<Loop> {
    let sector = sector_bytes.to_string();
    let device = Loop::new(path, &["--sector-size", &sector]).inspect_err(|e| eprintln!("{e}"));
    if device.is_err() {
        seekway_testing::skip("a free loop device and the right to use it");
    }
    device.ok()
}

/// A mount; `None`, with a message, for those who may not.
pub fn mount(args: &[&str], at: PathBuf) -> Option<Mount> {
    let mounted = Mount::new(args, at).inspect_err(|e| eprintln!("{e}"));
    if mounted.is_err() {
        seekway_testing::skip(format!("the right to mount {args:?} (root)"));
    }
    mounted.ok()
}
