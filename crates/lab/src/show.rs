//! What all live experiments show alike: the page's frame, verdicts, and bars of real guests
//! beside the simulator's.

use crate::args::LabArgs;
use anyhow::Result;
use seekway_cli::{Verdict, output, progress};
use seekway_report::html::{Block, Section};
use seekway_report::plot::{Axis, Bar, BarSeries, Bars};
use seekway_report::table::{Cell, Table, Tone};
use serde::Serialize;

/// What differs between the experiments' pages.
pub struct Page {
    pub title: String,
    pub subtitle: String,
    pub sections: Vec<Section>,
}

impl Page {
    /// A page without a sentence below its title.
    pub fn new(title: impl Into<String>, sections: Vec<Section>) -> Page {
        Page { title: title.into(), subtitle: String::new(), sections }
    }
}

/// Does `work` under a spinner, which says what is being done.
pub fn with_steps<T, E>(
    name: &str,
    work: impl FnOnce(&mut dyn FnMut(&str)) -> Result<T, E>,
) -> Result<T, E> {
    let bar = progress::steps(name);
    let made = work(&mut |step| bar.set_message(step.to_string()));
    bar.finish_and_clear();
    made
}

/// A measurement is void when more of its commands are late: the device was not the one named.
pub const LATE_MAX: f64 = 0.01;
/// Or when the host had no processor left.
pub const HOST_FULL: f64 = 0.95;

/// Why a measurement is void, if this share of its commands, 0 to 1, came too late.
pub fn too_late(share: f64) -> Option<String> {
    let percent = 100.0 * share;
    (share > LATE_MAX).then(|| format!("{percent:.1} % of the commands later than the device"))
}

/// Why a measurement is void, if too much of the processors' time was used: this share, 0 to 1.
pub fn host_full(busy: f64) -> Option<String> {
    (busy > HOST_FULL).then(|| format!("host CPU {:.0} % busy", 100.0 * busy))
}

/// Writes the page, if one is wanted, and prints the tables or `json`. `NotAccepted` if a row of
/// these verdicts misses what is asked.
pub fn finish<T: Serialize>(
    args: &LabArgs,
    page: Page,
    tables: &[Table],
    json: &T,
    verdicts: impl IntoIterator<Item = &'static str>,
) -> Result<Verdict> {
    let Page { title, subtitle, sections } = page;
    let quick = args.quick.then_some("A quick run: not a result.");
    let said = [Some(&*subtitle).filter(|s| !s.is_empty()), quick];
    let subtitle = said.into_iter().flatten().collect::<Vec<_>>().join(" ");
    let report = || output::report(title, subtitle, [], sections);
    output::write_report(args.report.as_deref(), report)?;
    output::print_as(args.format, tables, json)?;
    let missed = verdicts.into_iter().any(|verdict| verdict == "missed");
    Ok(if missed { Verdict::NotAccepted } else { Verdict::Done })
}

/// A verdict in its colour.
pub fn badge(verdict: &str) -> Cell {
    let tone = match verdict {
        "met" => Tone::Good,
        "missed" => Tone::Bad,
        _ => Tone::Plain,
    };
    Cell::badge(verdict, tone)
}

/// A bar for each group; `reference`: the simulator's, drawn lighter.
pub fn series<V: Into<Bar>>(
    name: impl Into<String>,
    values: impl IntoIterator<Item = V>,
    reference: bool,
) -> BarSeries {
    let bars = values.into_iter().map(|value| Some(value.into())).collect();
    BarSeries { name: name.into(), bars, reference }
}

/// A figure of bars.
pub fn bars(axis: Axis, groups: Vec<String>, series: Vec<BarSeries>, caption: &str) -> Block {
    let bars = Bars { axis, groups, series };
    Block::figure(bars.render(), caption)
}
