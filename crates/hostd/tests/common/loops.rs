//! Loop devices, for those who may have them (root).

use std::path::Path;
use std::process::Command;

/// The output of a program; `None`, with a message, where it is not installed
/// or fails.
pub fn output(program: &str, args: &[&str]) -> Option<String> {
    match Command::new(program).args(args).output() {
        Ok(o) if o.status.success() => Some(String::from_utf8_lossy(&o.stdout).into_owned()),
        Ok(o) => {
            eprintln!("{program} {args:?}: {}", String::from_utf8_lossy(&o.stderr).trim());
            None
        }
        Err(e) => {
            eprintln!("{program}: {e}");
            None
        }
    }
}

/// A loop device over a file, let go of when dropped.
pub struct Loop(pub String);

impl Loop {
    /// `None`, with a message, where there is none to be had.
    pub fn new(path: &Path, sector_bytes: u32) -> Option<Loop> {
        let sector = sector_bytes.to_string();
        let args = ["--find", "--show", "--sector-size", &sector, path.to_str()?];
        let device = output("losetup", &args);
        if device.is_none() {
            seekway_testing::skip("a free loop device and the right to use it");
        }
        Some(Loop(device?.trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let gone = output("losetup", &["--detach", &self.0]).is_some();
        assert!(gone || std::thread::panicking(), "{} stays", self.0);
    }
}
