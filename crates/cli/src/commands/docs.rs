//! Completions and man pages, from the same definitions as `--help`.

use crate::Verdict;
use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::output;
use anyhow::{Context, Result};
use clap::CommandFactory;

/// `seekway completions`.
pub fn completions(args: &CompletionsArgs) -> Result<Verdict> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "seekway", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Verdict::Done)
}

/// `seekway man`.
pub fn man(args: &ManArgs) -> Result<Verdict> {
    let dir = args.dir.display().to_string();
    std::fs::create_dir_all(&args.dir).with_context(|| dir.clone())?;
    seekway_man::write_pages(Cli::command(), &args.dir).with_context(|| dir)?;
    Ok(Verdict::Done)
}
