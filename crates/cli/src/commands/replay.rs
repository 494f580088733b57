//! `seekway replay`: does the policy decide the same again?

use crate::args::ReplayArgs;
use crate::{Verdict, output};
use anyhow::{Context, Result, bail};
use seekway_policy::journal::{Build, Replay, ReplayError};
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
            Err(e @ ReplayError::Differs { .. }) => {
                output::print(&format!("{shown}: {e}\n"))?;
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
    output::print(&format!("{shown}: {inputs} inputs, {outputs} outputs, all the same{cut}\n"))?;
    Ok(Verdict::Done)
}
