//! Interface for programs in other languages (crate `python`): takes a command's arguments as on
//! its command line, and returns its result as the JSON that it prints. So the figures are equal.

pub use crate::commands::outcome::{Described, Ran};
pub use crate::runs::{Caller, OwnPolicy};
pub use seekway_sim::scenario::tables::Values;
pub use seekway_workload::Recorded;

use crate::args::{Cli, Command, CompareArgs};
use crate::commands::{self, compare, outcome};
use crate::runs::{self, NOBODY, Running};
use crate::{Verdict, load, output};
use anyhow::{Result, anyhow, bail};
use clap::Parser;
use indicatif::ProgressBar;
use seekway_workload::traces::TraceReader;
use std::num::NonZeroUsize;

/// Sees how far a command is, and can end it. For several threads.
pub struct Watch {
    bar: ProgressBar,
    pub caller: Caller,
}

impl Watch {
    /// Over a command with policies of the caller's own.
    ///
    /// # Errors
    /// As [`Caller::new`].
    pub fn new(policies: Vec<OwnPolicy>) -> Result<Watch> {
        Ok(Watch { bar: ProgressBar::hidden(), caller: Caller::new(policies)? })
    }

    /// Requests that are done, and all there are if that is known.
    pub fn requests(&self) -> (u64, Option<u64>) {
        (self.bar.position(), self.bar.length())
    }
}

/// Result of a comparison.
pub struct Compared {
    /// As `compare --format json` prints it.
    pub json: String,
    /// As `compare --format csv` prints it.
    pub csv: String,
    /// Its columns under their headings, each of one type.
    pub columns: Vec<(String, Values)>,
    /// As `--report` writes it.
    pub html: String,
    /// Reasons to doubt the figures.
    pub warnings: Vec<String>,
}

/// `seekway compare ARGUMENTS…`; what says where and how results are printed has no effect.
///
/// # Errors
/// As the command's.
pub fn compare(arguments: &[String], watch: &Watch) -> Result<Compared> {
    let args = comparison(arguments)?;
    let made = compare::made(&args, &running(&args, watch))?;
    let mut html = Vec::new();
    compare::report(&made, compare::TITLE).write_html(&mut html)?;
    Ok(Compared {
        json: compare::json(&made)?,
        csv: compare::csv(&made)?,
        columns: compare::columns(&made),
        html: String::from_utf8(html)?,
        warnings: made.into_iter().flat_map(|made| made.warnings).collect(),
    })
}

/// Runs all that a scenario describes, `jobs` runs at a time.
///
/// # Errors
/// The scenario cannot be read, or a run cannot be made.
pub fn scenario(
    described: &Described<'_>,
    jobs: Option<NonZeroUsize>,
    watch: &Watch,
) -> Result<Ran> {
    let running =
        Running { jobs: runs::jobs(jobs), bar: Some(watch.bar.clone()), caller: &watch.caller };
    outcome::ran(described, &running)
}

/// All requests of one run of `seekway compare ARGUMENTS…` in the order of their completion, and
/// the names of the VMs' disks. `run` counts the runs of the JSON, from 0.
///
/// # Errors
/// As the command's, or there is no such run.
pub fn requests(
    arguments: &[String],
    run: usize,
    watch: &Watch,
) -> Result<(Vec<String>, Vec<Recorded>)> {
    let args = comparison(arguments)?;
    compare::requests(&args, &running(&args, watch), run)
}

fn running<'w>(args: &CompareArgs, watch: &'w Watch) -> Running<'w> {
    let jobs = runs::jobs(args.out.jobs);
    Running { jobs, bar: Some(watch.bar.clone()), caller: &watch.caller }
}

fn comparison(arguments: &[String]) -> Result<CompareArgs> {
    match parsed(["compare"].into_iter().chain(arguments.iter().map(String::as_str)))? {
        Command::Compare(args) => Ok(*args),
        _ => bail!("not a comparison"),
    }
}

/// Opens a trace; `arguments` say how it is read, as those of `convert` do.
///
/// # Errors
/// A wrong argument, or the trace cannot be opened.
pub fn trace(path: &str, arguments: &[String]) -> Result<TraceReader> {
    let line = ["convert"].into_iter().chain(arguments.iter().map(String::as_str));
    let Command::Convert(args) = parsed(line.chain(["--", path, "-"]))? else {
        bail!("not a trace");
    };
    if args.reading.split.is_some() {
        bail!("split: a trace has all volumes in its column volume; split when you replay it");
    }
    let options = load::trace_options(&args.reading)?;
    Ok(TraceReader::open(&args.trace, &options)?)
}

/// Any other command, such as `["list", "devices", "--format", "json"]`: what it prints to standard
/// output, and whether what it judged was accepted. What it warns of goes to standard error.
///
/// # Errors
/// As the command's.
pub fn run(arguments: &[String]) -> Result<(String, bool)> {
    NOBODY.resume();
    let command = parsed(arguments.iter().map(String::as_str))?;
    let (printed, verdict) = output::captured(|| commands::run(command));
    Ok((printed, verdict? == Verdict::Done))
}

/// Ends what [`run`] does in any thread, soon and with an error.
pub fn stop() {
    NOBODY.stop();
}

fn parsed<'a>(arguments: impl Iterator<Item = &'a str>) -> Result<Command> {
    let line = ["seekway"].into_iter().chain(arguments);
    Ok(Cli::try_parse_from(line).map_err(|e| anyhow!("{}", first_line(&e)))?.command)
}

/// First line of the error in a command line, without the usage.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    text.lines().next().unwrap_or_default().to_string()
}
