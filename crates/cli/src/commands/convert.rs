//! `seekway convert`: a trace in any format becomes a CSV.

use crate::args::ConvertArgs;
use crate::load::{self, Trace};
use crate::{Verdict, output};
use anyhow::{Result, bail};
use seekway_workload::traces::{TraceReader, WriteError, write_csv};
use std::io;

pub fn run(args: &ConvertArgs) -> Result<Verdict> {
    let (trace, out) = (args.trace.display(), args.out.display());
    if args.reading.split.is_some() {
        bail!("--split: a file has all volumes in its column volume; split when you replay it");
    }
    let ends_in = |end: &str| args.out.extension().is_some_and(|own| own == end);
    if ends_in("parquet") {
        bail!(
            "{out}: this writes CSV; the Python package writes Parquet: python3 -c \"import \
             seekway; seekway.write_trace(seekway.read_trace('{trace}'), '{out}')\""
        );
    }
    output::check_place(&args.out)?;
    if output::is_same(&args.trace, &args.out) {
        bail!("{out} is the trace itself: give the new file another name");
    }
    let options = load::trace_options(&args.reading)?;
    let mut traces = Trace::open_all(std::slice::from_ref(&args.trace), options.format)?;
    let count = traces.len();
    let Some(trace) = traces.pop().filter(|_| count == 1) else {
        bail!("{trace}: these are {count} traces: convert one at a time");
    };
    let mut reader = TraceReader::open(&trace.path, &options).map_err(|e| trace.error(e))?;
    let mut broken = None;
    let written =
        output::write_file(&args.out, |to| match write_csv(&mut reader, to, ends_in("gz")) {
            Ok(0) => Err(io::Error::other("the trace has no requests")),
            Ok(_) => Ok(()),
            Err(WriteError::Write(cause)) => Err(cause),
            Err(WriteError::Trace(error)) => {
                broken = Some(trace.error(error));
                Err(io::Error::other("the trace"))
            }
        });
    if let Some(error) = broken {
        return Err(error);
    }
    written?;
    load::tell(&trace, &reader.seen());
    eprintln!("{out}: {} requests", reader.stats().requests());
    Ok(Verdict::Done)
}
