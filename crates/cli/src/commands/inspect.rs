//! `seekway inspect`: what is in a trace, by one pass over it in bounded memory.

mod events;
mod found;
mod page;
mod tables;
mod zones;

pub use found::Inspected;
#[cfg(test)]
pub use zones::Snapshot;

use crate::args::InspectArgs;
use crate::load::{self, Trace};
use crate::{Verdict, output};
use anyhow::Result;
use found::InspectedTrace;
use seekway_workload::trace_stats::TraceFigures;
use seekway_workload::traces::scan_each;

/// Volumes that are listed each by itself, unless --split says another number.
const VOLUMES_LISTED: usize = 12;

pub fn run(args: &InspectArgs) -> Result<Verdict> {
    if args.zones.zones {
        return zones::run(args);
    }
    let options = load::trace_options(&args.reading)?;
    let listed = args.reading.split.unwrap_or(VOLUMES_LISTED);
    let mut traces = Vec::new();
    for trace in Trace::open_all(&args.traces, options.format)? {
        let mut figures = TraceFigures::default();
        let scan = scan_each(&trace.path, &options, |record| figures.add(record));
        let scan = scan.map_err(|e| trace.error(e))?;
        load::tell(&trace, &scan);
        let depth = match events::tells(scan.format) {
            true => events::depth(&trace.path, &options).map_err(|e| trace.error(e))?,
            false => std::mem::take(&mut figures.depth),
        };
        traces.push(InspectedTrace::new(&trace, &scan, &figures, &depth, listed));
    }
    let inspected = Inspected { traces };
    output::write_report(args.report.as_deref(), || page::report(&inspected))?;
    output::print_as(args.out.format, &tables::all(&inspected), &inspected)?;
    Ok(Verdict::Done)
}
