//! `seekway device`: profiles and how good they are.

use crate::args::{DeviceCommand, Format, ListArgs, ProfileFormat, ValidateArgs};
use crate::{Verdict, load, output};
use anyhow::{Context, Result, bail};
use seekway_device::validate::{self, Pace};
use seekway_device::{profile, published};
use seekway_report::table::{Cell, Table};
use seekway_sim::scenario::read::text_of_file;
use serde::Serialize;
use std::path::Path;

/// Largest measured trace that is read, in bytes: it is held whole.
const TRACE_BYTES_MAX: u64 = 256 << 20;

pub fn run(command: &DeviceCommand) -> Result<Verdict> {
    match command {
        DeviceCommand::List(ListArgs { format }) => list(*format),
        DeviceCommand::Show { name, format } => show(name, *format),
        DeviceCommand::Validate(args) => validate(args),
    }
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct DeviceEntry {
    name: String,
    summary: String,
    capacity_sectors: u64,
    rotation_ms: Option<f64>,
    queue_depth: u32,
}

fn list(format: Format) -> Result<Verdict> {
    let mut listed = Vec::new();
    for name in profile::names() {
        let profile = profile::load(name)?;
        let device = profile.build();
        listed.push(DeviceEntry {
            name: name.to_string(),
            summary: profile.summary().to_string(),
            capacity_sectors: profile.capacity_sectors(),
            rotation_ms: device.profile().rotation.map(|r| r.as_millis_f64()),
            queue_depth: device.queue_depth(),
        });
    }
    let table = Table::of("", &listed)
        .text("profile", |l| &l.name)
        .number("size", "GiB", |l| l.capacity_sectors as f64 / f64::from(1 << 21))
        .number("revolution", "ms", |l| l.rotation_ms)
        .number("queue depth", "", |l| l.queue_depth)
        .text("what it is", |l| &l.summary)
        .done();
    output::print_as(format, &[table], &listed)?;
    Ok(Verdict::Done)
}

fn show(name: &str, format: ProfileFormat) -> Result<Verdict> {
    let text = profile::text(name).with_context(|| format!("device {name}"))?;
    match format {
        ProfileFormat::Toml => output::print(text)?,
        ProfileFormat::Json => {
            let profile: serde_json::Value =
                toml::from_str(text).with_context(|| format!("device {name}"))?;
            output::print(&(serde_json::to_string_pretty(&profile)? + "\n"))?;
        }
    }
    Ok(Verdict::Done)
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ValidationReport<'a> {
    profile: &'a str,
    trace: String,
    requests: usize,
    demerit_ms: f64,
    demerit_relative: f64,
    mean_measured_ms: f64,
    mean_model_ms: f64,
    quantiles: Vec<(f64, f64, f64)>,
}

fn validate(args: &ValidateArgs) -> Result<Verdict> {
    match &args.trace {
        Some(trace) => validate_trace(args, trace),
        None => validate_published(args),
    }
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

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct PublishedReport<'a> {
    profile: &'a str,
    error_max: f64,
    holds: bool,
    figures: Vec<PublishedFigure>,
}

fn validate_published(args: &ValidateArgs) -> Result<Verdict> {
    let profile = load::device(&args.profile)?;
    let Some(published) = profile.published() else {
        bail!(
            "{}: has no published figures ([ssd.published], [raid0.published]) to be held against: \
             give --trace FILE of a measured drive",
            args.profile
        );
    };
    let figures: Vec<PublishedFigure> =
        published::run(&published, |begin| profile.build_for(begin))
            .into_iter()
            .map(|figure| PublishedFigure {
                error: figure.error(),
                holds: figure.holds(),
                error_min: figure.error_min,
                error_max: figure.error_max,
                test: figure.test,
                unit: figure.unit,
                published: figure.published,
                model: figure.model,
            })
            .collect();
    let json = PublishedReport {
        profile: &args.profile,
        error_max: published::ERROR_MAX,
        holds: figures.iter().all(|f| f.holds),
        figures,
    };
    let allowed =
        |f: &PublishedFigure| format!("{:.0} to +{:.0}", 100.0 * f.error_min, 100.0 * f.error_max);
    let verdict = |f: &PublishedFigure| match (f.error, f.holds) {
        (None, _) => "not published",
        (Some(_), true) => "yes",
        (Some(_), false) => "no",
    };
    let table = Table::of("", &json.figures)
        .text("test", |f| &f.test)
        .number("published", "", |f| f.published)
        .number("model", "", |f| f.model)
        .text("unit", |f| f.unit)
        .number("error", "%", |f| f.error.map(|error| 100.0 * error))
        .text("allowed, %", allowed)
        .text("holds", verdict)
        .done();
    output::print_as(args.format, &[table], &json)?;
    Ok(if json.holds { Verdict::Done } else { Verdict::NotAccepted })
}

fn validate_trace(args: &ValidateArgs, trace: &Path) -> Result<Verdict> {
    let profile = load::device(&args.profile)?;
    let shown = trace.display().to_string();
    let text = text_of_file(trace, TRACE_BYTES_MAX)?;
    let records = validate::parse(&text).with_context(|| shown.clone())?;
    let mut device = profile.build();
    let found = validate::validate(device.as_mut(), &records, Pace::Closed)
        .with_context(|| shown.clone())?;
    let json = ValidationReport {
        profile: &args.profile,
        trace: shown,
        requests: found.requests,
        demerit_ms: found.demerit_ms,
        demerit_relative: found.demerit_relative,
        mean_measured_ms: found.mean_measured_ms,
        mean_model_ms: found.mean_model_ms,
        quantiles: found.quantiles,
    };
    match args.format {
        Format::Table => output::print(&text_of(&json))?,
        other => output::print_as(other, &[quantiles(&json)], &json)?,
    }
    match args.max_demerit.filter(|max| json.demerit_ms > *max) {
        Some(max) => {
            eprintln!("demerit figure {:.3} ms is above {max} ms", json.demerit_ms);
            Ok(Verdict::NotAccepted)
        }
        None => Ok(Verdict::Done),
    }
}

fn text_of(json: &ValidationReport<'_>) -> String {
    let ValidationReport { profile, trace, requests, .. } = json;
    let error = 100.0 * (json.mean_model_ms / json.mean_measured_ms - 1.0);
    format!(
        "{profile} against {trace}, {requests} requests\n\
         demerit figure  {:.3} ms ({:.1} % of the mean)\n\
         mean measured   {:.3} ms\n\
         mean of model   {:.3} ms ({error:+.1} %)\n\n{}",
        json.demerit_ms,
        json.demerit_relative * 100.0,
        json.mean_measured_ms,
        json.mean_model_ms,
        quantiles(json).to_text(output::table_options()),
    )
}

fn quantiles(json: &ValidationReport<'_>) -> Table {
    Table::of("", &json.quantiles)
        .number("quantile", "", |q| Cell::Share(q.0))
        .number("measured", "ms", |q| q.1)
        .number("model", "ms", |q| q.2)
        .done()
}
