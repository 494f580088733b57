//! Completions and man pages, from the same definitions as `--help`.

use crate::Verdict;
use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::{complete, output};
use anyhow::{Context, Result};

/// `seekway completions`: prints a completion script for the shell.
pub fn completions(args: &CompletionsArgs) -> Result<Verdict> {
    let mut script = Vec::new();
    complete::write_script(&args.shell.to_string(), &mut script)?;
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Verdict::Done)
}

/// `seekway man`: writes the man pages to a folder, which is made if needed.
pub fn man(args: &ManArgs) -> Result<Verdict> {
    let dir = args.dir.display().to_string();
    std::fs::create_dir_all(&args.dir).with_context(|| dir.clone())?;
    seekway_man::write_pages(Cli::described(), &args.dir).with_context(|| dir)?;
    Ok(Verdict::Done)
}
