//! `seekway convert`: a trace in any format becomes one in Parquet.

use crate::args::ConvertArgs;
use crate::load::{self, Trace};
use crate::{Verdict, output};
use anyhow::{Result, bail};
use seekway_workload::traces::TraceReader;
use seekway_workload::traces::columnar::{self, Batches};

pub fn run(args: &ConvertArgs) -> Result<Verdict> {
    if args.reading.split.is_some() {
        bail!("--split: a file has all volumes in its column volume; split when you replay it");
    }
    output::check_place(&args.out)?;
    if output::is_same(&args.trace, &args.out) {
        bail!("{} is the trace itself: give the new file another name", args.out.display());
    }
    let options = load::trace_options(&args.reading)?;
    let mut traces = Trace::open_all(std::slice::from_ref(&args.trace), options.format)?;
    let count = traces.len();
    let Some(trace) = traces.pop().filter(|_| count == 1) else {
        bail!("{}: these are {count} traces: convert one at a time", args.trace.display());
    };
    let reader = TraceReader::open(&trace.path, &options).map_err(|e| trace.error(e))?;
    let mut batches = Batches::new(reader);
    let mut broken = None;
    let each = std::iter::from_fn(|| match batches.next_batch() {
        Ok(batch) => batch.map(Ok),
        Err(error) => {
            let told = arrow_schema::ArrowError::ExternalError("the trace".into());
            broken = Some(trace.error(error));
            Some(Err(told))
        }
    });
    let mut rows = 0;
    let written = output::write_file(&args.out, |out| {
        rows = columnar::write(columnar::schema(), each, out)?;
        match rows {
            0 => Err(std::io::Error::other("the trace has no requests")),
            _ => Ok(()),
        }
    });
    if let Some(error) = broken {
        return Err(error);
    }
    written?;
    load::tell(&trace, &batches.reader().seen());
    eprintln!("{}: {rows} requests", args.out.display());
    Ok(Verdict::Done)
}
