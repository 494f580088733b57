//! `seekway experiment`.

use crate::Verdict;
use crate::args::ExperimentCommand;
use anyhow::Result;

/// Run the command.
pub fn run(_command: &ExperimentCommand) -> Result<Verdict> {
    anyhow::bail!("not yet")
}
