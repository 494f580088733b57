//! `seekway replay`: does the policy decide the same again?

use crate::args::{Format, ReplayArgs};
use crate::{Verdict, output};
use anyhow::{Context, Result, bail};
use seekway_report::table::Table;
use seekway_stack::journal::{Build, Replay, ReplayError, ReplaySummary};
use serde::Serialize;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};

/// Longest line of a journal, in bytes: a region of many extents may be long.
const LINE_BYTES_MAX: u64 = 1 << 20;

pub fn run(args: &ReplayArgs) -> Result<Verdict> {
    let shown = args.journal.display().to_string();
    let input: Box<dyn Read> = match shown.as_str() {
        "-" => Box::new(std::io::stdin()),
        path => Box::new(File::open(path).with_context(|| shown.clone())?),
    };
    let mut input = BufReader::new(input);
    let mut replay = Replay::new(Build::default());
    let mut line = Vec::new();
    // The last line of a journal whose disk was full, or whose daemon was killed.
    let mut is_cut = false;
    loop {
        line.clear();
        let read = input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        if read.with_context(|| shown.clone())? == 0 {
            break;
        }
        if !line.ends_with(b"\n") && (line.len() as u64) < LINE_BYTES_MAX {
            is_cut = true;
            break;
        }
        let Ok(text) = std::str::from_utf8(&line) else {
            bail!("{shown}: not a journal (not text)");
        };
        match replay.feed(text.trim_end_matches(['\n', '\r'])) {
            Ok(()) => {}
            Err(ref e @ ReplayError::Differs { line, ref journal, replay: ref made }) => {
                let text = format!("{shown}: {e}\n");
                let (journal, made) = (journal.clone(), made.clone());
                let difference = Some(Difference { line, journal, replay: made });
                report(args, &text, &ReplayReport::new(args, &replay, false, difference))?;
                return Ok(Verdict::NotAccepted);
            }
            Err(e) => bail!("{shown}: {e}"),
        }
    }
    let done = replay.replayed();
    if done.inputs + done.outputs == 0 {
        bail!("{shown}: an empty journal");
    }
    let (inputs, outputs) = (done.inputs, done.outputs);
    let cut = if is_cut { "; the last line is cut off" } else { "" };
    let text = format!("{shown}: {inputs} inputs, {outputs} outputs, all the same{cut}\n");
    report(args, &text, &ReplayReport::new(args, &replay, is_cut, None))?;
    Ok(Verdict::Done)
}

/// `replay --format json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ReplayReport {
    journal: String,
    /// The policy decided the same, as far as the journal goes.
    same: bool,
    /// Inputs that were replayed.
    inputs: u64,
    /// Decisions that came out the same.
    outputs: u64,
    /// The last line is cut off.
    cut_off: bool,
    /// The first decision that differs; null if none does.
    difference: Option<Difference>,
}

/// A decision that differs.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Difference {
    /// Line of the journal, counted from 1.
    line: usize,
    /// Line of the journal.
    journal: String,
    /// Decision of the policy in the replay.
    replay: String,
}

impl ReplayReport {
    fn new(
        args: &ReplayArgs,
        replay: &Replay<'_>,
        cut_off: bool,
        difference: Option<Difference>,
    ) -> ReplayReport {
        let ReplaySummary { inputs, outputs } = replay.replayed();
        let journal = args.journal.display().to_string();
        ReplayReport { journal, same: difference.is_none(), inputs, outputs, cut_off, difference }
    }
}

fn report(args: &ReplayArgs, text: &str, json: &ReplayReport) -> Result<()> {
    if args.out.format == Format::Table {
        return output::print(text);
    }
    let same = if json.same { "yes" } else { "no" };
    let difference = json.difference.as_ref();
    let table = Table::of("", [json])
        .text("journal", |json| &json.journal)
        .text("same", |_| same)
        .text("inputs", |json| json.inputs)
        .text("outputs", |json| json.outputs)
        .text("line", |_| difference.map(|d| d.line))
        .text("in the journal", |_| difference.map(|d| &d.journal))
        .text("now", |_| difference.map(|d| &d.replay))
        .done();
    output::print_as(args.out.format, &[table], json)
}
