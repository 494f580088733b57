//! Finds the programs that belong together: `seekway`, `seekway-live` and
//! `seekway-guest`.

use anyhow::{Context, Result};
use std::path::PathBuf;

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
    let in_path = std::env::split_paths(&path).map(|folder| folder.join(name));
    let found = std::iter::once(this.with_file_name(name)).chain(in_path).find(|p| p.is_file());
    found.with_context(|| {
        format!(
            "no {name} beside {} and none in PATH: build it with \
             `cargo build --release --package {package}`",
            this.display()
        )
    })
}
