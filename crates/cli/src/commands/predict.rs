//! `seekway predict`.

use crate::Verdict;
use crate::args::PredictArgs;
use anyhow::{Result, bail};

/// Run the command.
pub fn run(_args: &PredictArgs) -> Result<Verdict> {
    bail!("not built yet")
}
