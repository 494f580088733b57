//! `seekway calibrate`.

use crate::Verdict;
use crate::args::CalibrateArgs;
use anyhow::{Result, bail};

/// Run the command.
pub fn run(_args: &CalibrateArgs) -> Result<Verdict> {
    bail!("not built yet")
}
