//! The HTML report of a calibration.

use super::MeasuredRequests;
use crate::output;
use seekway_core::request::Op;
use seekway_device::fit::{self, Fit, Form, Options, spike};
use seekway_report::html::{Block, Report, Section};
use seekway_report::plot::{Axis, Figure, Lines, Panels, PointSample, Scatter, Series};
use seekway_report::table::Table;

/// Points of a cloud, of the curve and of the line.
const POINTS_MAX: usize = 20_000;
const CURVE_POINTS: usize = 600;
const LINE_POINTS: u64 = 1_200;
/// Quantile at which the service axis ends: a few requests take ten times as long.
const SHOWN: f64 = 0.99;

pub fn report(
    found: &Fit,
    measured: &MeasuredRequests,
    options: &Options,
    table: Table,
    warnings: &[String],
) -> Report {
    let (distances, cloud) = distances(found, measured, options);
    let mut blocks = vec![Block::Table(table)];
    let said = measured.notes.iter().cloned().map(Block::Text);
    blocks.extend(said.chain(warnings.iter().cloned().map(Block::Warning)));
    let through = match found.form {
        Form::Points => "the requests",
        Form::Averaged => "the moving average",
    };
    let averaged = match found.form {
        Form::Points => format!(
            " Through the moving average, as in the paper, it would be {}.",
            found.line_averaged
        ),
        Form::Averaged => String::new(),
    };
    let hits = match found.spike {
        Some(s) => format!(
            "Service of reads. Hits are {:.1} % of them, below the trough at {:.3} ms; their spike \
             is at {:.3} ms.",
            100.0 * s.share,
            s.trough_ms,
            s.ms
        ),
        None => "Service of reads. There is no trough that would tell hits from the rest.".into(),
    };
    let figures = vec![
        Block::figure(
            distances,
            format!(
                "Service over the distance from the predecessor's end{cloud}; the moving average \
                 over 1001 requests; and the least squares through {through}, {} (d/D) ms with \
                 D = {} sectors.{averaged}",
                found.line, found.largest
            ),
        ),
        Block::figure(histogram(found, measured), hits),
        Block::figure(
            distributions(found),
            format!(
                "Quantiles of the measured services and of the same requests on the fitted \
                 device; their RMS distance, the demerit figure, is {:.3} ms.",
                found.demerit_ms()
            ),
        ),
    ];
    let subtitle = match found.is_flat() {
        true => format!("The distance explains nothing of {}.", measured.source),
        false => format!("{} (d/D) ms fits {}.", found.line, measured.source),
    };
    let sections = vec![Section::new("Result", blocks), Section::new("Fit", figures)];
    output::report("Seekway: calibration", subtitle, [], sections)
}

/// The cloud with curve and line, and what the caption says of the cloud.
fn distances(found: &Fit, measured: &MeasuredRequests, options: &Options) -> (Figure, String) {
    let mut cloud = PointSample::new(POINTS_MAX);
    let fitted = |s: &&fit::Sample| {
        s.distance().is_some_and(|d| d > options.beyond)
            && (found.write_ms.is_none() || s.op == Op::Read)
    };
    let mut services: Vec<u64> = Vec::new();
    for s in measured.samples.iter().filter(fitted) {
        cloud.push(millions(s.distance().unwrap_or(0)), s.service_ns as f64 / 1e6);
        services.push(s.service_ns);
    }
    services.sort_unstable();
    let top = services[((services.len() - 1) as f64 * SHOWN) as usize] as f64 / 1e6;
    let below = |points: Vec<(f64, f64)>| points.into_iter().filter(|p| p.1 <= top).collect();
    let curve = fit::averaged(&measured.samples, *options);
    let step = curve.len().div_ceil(CURVE_POINTS);
    let curve = curve.iter().step_by(step).map(|&(d, ms)| (millions(d), ms)).collect();
    let farthest = measured.samples.iter().filter_map(fit::Sample::distance).max().unwrap_or(0);
    let on_line = |n: u64| {
        let d = farthest as f64 * n as f64 / LINE_POINTS as f64;
        (d / 1e6, found.line.at_ms(d / found.largest as f64))
    };
    let scatter = Scatter {
        x: Axis::linear("distance", "million sectors").from_zero(),
        y: Axis::linear("service", "ms").from_zero(),
        series: vec![
            Series::new("requests", below(cloud.points())).as_reference(),
            Series::new("moving average", curve),
            Series::new("least squares", (0..=LINE_POINTS).map(on_line).collect()),
        ],
        panels: Panels::Together,
    };
    let of = match cloud.one_in() {
        1 => String::new(),
        n => format!(" (one request in {n})"),
    };
    (scatter.render(), format!("{of}, up to the 99th percentile"))
}

fn millions(sectors: u64) -> f64 {
    sectors as f64 / 1e6
}

fn histogram(found: &Fit, measured: &MeasuredRequests) -> Figure {
    let bins = spike::histogram(&measured.samples);
    let top = bins.iter().map(|&(_, n)| n).max().unwrap_or(0) as f64;
    let bins = bins.into_iter().map(|(ms, n)| (ms, n as f64)).collect();
    let mut series = vec![Series::new("reads", bins)];
    let upright =
        |name: &str, ms: f64| Series::new(name, vec![(ms, 0.0), (ms, top)]).as_reference();
    if let Some(s) = found.spike {
        series.extend([upright("spike", s.ms), upright("trough", s.trough_ms)]);
    }
    let (x, y) = (Axis::log("service", "ms"), Axis::linear("requests", "").from_zero());
    Lines { x, y, series }.render()
}

fn distributions(found: &Fit) -> Figure {
    let quantiles = &found.validation.quantiles;
    let of = |pick: fn(&(f64, f64, f64)) -> f64| {
        quantiles.iter().map(|q| (pick(q), q.0)).collect::<Vec<_>>()
    };
    Lines {
        x: Axis::linear("service", "ms").from_zero(),
        y: Axis::share("requests up to this"),
        series: vec![
            Series::new("measured", of(|q| q.1)),
            Series::new("fitted device", of(|q| q.2)),
        ],
    }
    .render()
}
