//! What all live experiments show alike: the page's frame, pairs of columns,
//! and bars of real guests beside the simulator's.

use crate::args::LabArgs;
use anyhow::Result;
use seekway_cli::output;
use seekway_report::html::{Block, Report, Section};
use seekway_report::plot::{Axis, Bar, BarSeries, Bars};
use seekway_report::table::{Column, Table};
use serde::Serialize;

/// What differs between the experiments' pages.
pub struct Page {
    pub title: String,
    pub subtitle: String,
    pub sections: Vec<Section>,
}

/// Writes the page, if one is wanted, and prints the tables or `json`.
pub fn finish<T: Serialize>(args: &LabArgs, page: Page, tables: &[Table], json: &T) -> Result<()> {
    let Page { title, subtitle, sections } = page;
    let quick = args.quick.then_some("A quick run: not a result.");
    let said = [Some(&*subtitle).filter(|s| !s.is_empty()), quick];
    let report = Report {
        title,
        subtitle: said.into_iter().flatten().collect::<Vec<_>>().join(" "),
        meta: vec![
            ("Command".into(), output::command_line()),
            ("Version".into(), env!("CARGO_PKG_VERSION").into()),
        ],
        sections,
    };
    if let Some(path) = &args.report {
        output::write_file(path, |out| report.write_html(out))?;
        eprintln!("report: {}", path.display());
    }
    output::print_as(args.format, tables, json)
}

/// Two columns for each figure: real guests, and the simulator.
pub fn both(figures: &[(&str, &str)]) -> impl Iterator<Item = Column> {
    figures.iter().flat_map(|(name, unit)| {
        [Column::number(format!("{name}, real"), *unit), Column::number("simulator", *unit)]
    })
}

/// A bar for each group; `reference`: the simulator's, drawn lighter.
pub fn series(name: String, values: impl IntoIterator<Item = f64>, reference: bool) -> BarSeries {
    let bar = |value| Some(Bar { value, range: None });
    BarSeries { name, bars: values.into_iter().map(bar).collect(), reference }
}

/// A figure of bars.
pub fn bars(axis: Axis, groups: Vec<String>, series: Vec<BarSeries>, caption: &str) -> Block {
    let bars = Bars { title: String::new(), axis, groups, series };
    Block::Figure { svg: bars.render(), caption: caption.into() }
}
