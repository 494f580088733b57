//! Finds the programs that belong together: `seekway`, `seekway-lab` and
//! `seekway-guest`.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// The file of this process's program, with symbolic links resolved.
///
/// # Errors
/// The system does not tell.
pub fn this() -> Result<PathBuf> {
    std::env::current_exe().context("the path of this program")
}

/// The program `name`: beside this program, else in a folder of PATH.
///
/// # Errors
/// There is none. The error names `package`, whose build makes it.
pub fn find(name: &str, package: &str) -> Result<PathBuf> {
    let this = this()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    match search(name, &this, std::env::split_paths(&path)) {
        Some(found) => Ok(found),
        None => bail!(
            "no {name} beside {} and none in PATH: build it with \
             `cargo build --release --package {package}`",
            this.display()
        ),
    }
}

fn search(name: &str, this: &Path, path: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let beside = this.with_file_name(name);
    std::iter::once(beside).chain(path.map(|folder| folder.join(name))).find(|p| p.is_file())
}
