//! Completions and man pages, from the same definitions as `--help`.

use crate::Verdict;
use crate::args::Cli;
use crate::{complete, output};
use anyhow::{Context, Error, Result};
use seekway_man::GenerateArgs;

/// `seekway generate`: prints a completion script, or writes the man pages to a folder.
pub fn run(args: &GenerateArgs) -> Result<Verdict> {
    let Some(dir) = args.man_folder().map_err(Error::msg)? else {
        let mut script = Vec::new();
        complete::write_script(&args.what, &mut script)?;
        output::print(&String::from_utf8_lossy(&script))?;
        return Ok(Verdict::Done);
    };
    let shown = || dir.display().to_string();
    std::fs::create_dir_all(dir).with_context(shown)?;
    seekway_man::write_pages(Cli::described(), dir).with_context(shown)?;
    Ok(Verdict::Done)
}
