//! `predict --against published`: a drive's model against the figures that were published of it.

use crate::args::PredictArgs;
use crate::{Verdict, output};
use anyhow::{Context, Result, bail};
use seekway_device::published::{self, ERROR_MAX, Figure};
use seekway_report::html::{Block, Section};
use seekway_report::table::Table;
use seekway_sim::scenario::profile_of;
use serde::Serialize;

/// `predict --against published --format json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PublishedReport<'a> {
    profile: &'a str,
    error_max: f64,
    holds: bool,
    figures: Vec<PublishedFigure>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct PublishedFigure {
    test: String,
    unit: &'static str,
    published: Option<f64>,
    model: f64,
    error: Option<f64>,
    error_min: f64,
    error_max: f64,
    holds: bool,
}

impl PublishedFigure {
    fn new(figure: Figure) -> PublishedFigure {
        PublishedFigure {
            error: figure.error(),
            holds: figure.holds(),
            error_min: figure.error_min,
            error_max: figure.error_max,
            test: figure.test,
            unit: figure.unit,
            published: figure.published,
            model: figure.model,
        }
    }
}

/// Runs the published tests on the model `on`. Not accepted if a figure is missed.
pub fn run(args: &PredictArgs, on: &str) -> Result<Verdict> {
    let profile = profile_of(on).context("--on")?;
    let Some(of) = profile.published() else {
        bail!(
            "--on {on}: its profile has no published figures ([ssd.published], \
             [raid0.published]): give --against TRACE of a measured drive"
        );
    };
    let figures = published::run(&of, |begin| profile.build_for(begin));
    let figures: Vec<PublishedFigure> = figures.into_iter().map(PublishedFigure::new).collect();
    let holds = figures.iter().all(|figure| figure.holds);
    let report = PublishedReport { profile: on, error_max: ERROR_MAX, holds, figures };
    let table = table(&report);
    output::write_report(args.out.report.as_deref(), || {
        let said = format!("{on} {} what was published.", if holds { "meets" } else { "misses" });
        let result = Section::new("Result", vec![Block::Table(table.clone())]);
        output::report("Seekway: prediction", said, [("Disk", on.to_string())], vec![result])
    })?;
    output::print_as(args.out.format, &[table], &report)?;
    Ok(if holds { Verdict::Done } else { Verdict::NotAccepted })
}

fn table(report: &PublishedReport<'_>) -> Table {
    let allowed =
        |f: &PublishedFigure| format!("{:.0} to +{:.0}", 100.0 * f.error_min, 100.0 * f.error_max);
    let verdict = |f: &PublishedFigure| match (f.error, f.holds) {
        (None, _) => "not published",
        (Some(_), true) => "yes",
        (Some(_), false) => "no",
    };
    Table::of("", &report.figures)
        .text("test", |f| &f.test)
        .number("published", "", |f| f.published)
        .number("model", "", |f| f.model)
        .text("unit", |f| f.unit)
        .number("error", "%", |f| f.error.map(|error| 100.0 * error))
        .text("allowed, %", allowed)
        .text("holds", verdict)
        .done()
}
