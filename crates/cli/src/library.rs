//! What programs in other languages call (crate `python`): a command's arguments as on its command
//! line, and its result as the JSON that it prints. So the figures are the same.

use crate::args::{Cli, Command};
use crate::commands::compare::{self, Running};
use crate::runs;
use anyhow::{Result, anyhow, bail};
use clap::Parser;
use indicatif::ProgressBar;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sees how far a command is, and can end it. For several threads.
pub struct Watch {
    bar: ProgressBar,
    stop: AtomicBool,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch { bar: ProgressBar::hidden(), stop: AtomicBool::new(false) }
    }
}

impl Watch {
    /// Requests that are done, and all there are if that is known.
    pub fn requests(&self) -> (u64, Option<u64>) {
        (self.bar.position(), self.bar.length())
    }

    /// The command ends soon, with an error.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What a comparison came to.
pub struct Compared {
    /// As `compare --format json` prints it.
    pub json: String,
    /// As `--report` writes it.
    pub html: String,
    /// What a reader has to know before trusting a figure.
    pub warnings: Vec<String>,
}

/// `seekway compare ARGUMENTS…`; what says where and how results are printed has no effect.
///
/// # Errors
/// As the command's.
pub fn compare(arguments: &[String], watch: &Watch) -> Result<Compared> {
    let line = ["seekway", "compare"].into_iter().chain(arguments.iter().map(String::as_str));
    let cli = Cli::try_parse_from(line).map_err(|e| anyhow!("{}", first_line(&e)))?;
    let Command::Compare(args) = cli.command else { bail!("not a comparison") };
    let running = Running {
        jobs: runs::jobs(args.out.jobs),
        bar: Some(watch.bar.clone()),
        stop: &watch.stop,
    };
    let made = compare::made(&args, &running)?;
    let json = serde_json::to_string(&made.compared)?;
    let mut html = Vec::new();
    compare::report(&made, "Seekway: one load, several policies").write_html(&mut html)?;
    Ok(Compared { json, html: String::from_utf8(html)?, warnings: made.warnings })
}

/// What is wrong with a command line, without how to call the program.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    text.lines().next().unwrap_or_default().to_string()
}
