//! Commands that the Python package has: `seekway campaign` becomes `seekway-campaign`.

use crate::Verdict;
use crate::args::InPythonArgs;
use anyhow::{Result, anyhow};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Becomes the program of that command.
///
/// # Errors
/// It is not in PATH.
pub fn become_command(name: &str, args: &InPythonArgs) -> Result<Verdict> {
    let program = format!("seekway-{name}");
    let error = Command::new(&program).args(&args.arguments).exec();
    Err(match error.kind() {
        ErrorKind::NotFound => anyhow!(
            "{name}: no {program} in PATH; it comes with the Python package: \
             pip install './crates/python[campaign]'"
        ),
        _ => anyhow!("{program}: {error}"),
    })
}
