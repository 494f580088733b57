//! `seekway calibrate`: the linear device that fits a disk or a measured trace, or the flash model
//! that fits a drive.

mod flash;
mod measure;

use crate::args::{CalibrateArgs, Kind};
use crate::{Verdict, load, output};
use anyhow::{Context, Result, anyhow, bail};
use seekway_core::request::Op;
use seekway_device::fit::{self, Fit, Form, Options, Sample};
use seekway_device::validate::{self, TraceError};
use seekway_report::html::{Block, Report, Section};
use seekway_report::plot::{Axis, Figure, Lines, Panels, PointSample, Scatter, Series};
use seekway_report::table::{Cell, Table};
use seekway_workload::traces::{Format, TraceOptions, TraceReader};
use serde::Serialize;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Fewer fitted requests than this are said to be few.
const FEW: usize = 1_000;
/// Most characters in a profile's name.
const NAME_CHARS_MAX: usize = 64;

/// Measured requests, of a disk or from somebody else.
struct MeasuredRequests {
    /// In a phrase, as in "fitted to …".
    source: String,
    samples: Vec<Sample>,
    /// Size of the device in sectors, where it is known.
    capacity: Option<u64>,
    /// Time of a read of what has just been read, in ms, where that is a hit.
    hit_ms: Option<f64>,
    /// Remarks for the user, a sentence each.
    notes: Vec<String>,
}

/// `calibrate --format json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
enum Calibrated {
    Line(LineReport),
    /// With `--flash`.
    Flash(flash::FlashReport),
}

/// These keys, in this order.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LineReport {
    requests: usize,
    fitted: usize,
    intercept_ms: f64,
    full_stroke_ms: f64,
    residual_ms: f64,
    demerit_ms: f64,
    hit_ms: Option<f64>,
    /// Mean of the reads near the head; null if there are too few.
    near_ms: Option<f64>,
    /// Mean of the writes, if the drive's write cache answers them.
    write_ms: Option<f64>,
    mean_measured_ms: f64,
    /// Mean of the same requests on the fitted device.
    mean_model_ms: f64,
}

pub fn run(args: &CalibrateArgs) -> Result<Verdict> {
    let shown = shown(&args.what);
    let options = options(args)?;
    // Wrong arguments are told before minutes of reading.
    let plan = measure::Plan::new(&args.measuring)?;
    let name = name(args)?;
    for (flag, path) in [("--profile", &args.profile), ("--report", &args.report)] {
        let Some(path) = path else { continue };
        output::check_place(path)?;
        if output::is_same(path, &args.what) {
            bail!("{flag} {}: that is what is to be measured", path.display());
        }
    }
    if args.flash.flash {
        return flash::run(args, &name);
    }
    let is_trace = match args.kind {
        Kind::Auto => is_trace(&args.what)?,
        kind => kind == Kind::Trace,
    };
    let measured = if is_trace { read(&args.what)? } else { measure::measure(&args.what, &plan)? };
    let options = Options { capacity: measured.capacity, hit_ms: measured.hit_ms, ..options };
    let found = fit::fit(&measured.samples, options).with_context(|| shown.clone())?;
    let warnings = judged(&found, &measured, &options);
    if let Some(path) = &args.profile {
        let text = found.profile_toml(&name, &measured.source);
        output::write_file(path, |out| out.write_all(text.as_bytes()))?;
    }
    let table = table(&found, &measured);
    output::write_report(args.report.as_deref(), || {
        report(&found, &measured, &options, table.clone(), &warnings)
    })?;
    let json = Calibrated::Line(LineReport {
        requests: found.requests,
        fitted: found.fitted,
        intercept_ms: found.line.intercept_ms,
        full_stroke_ms: found.line.stroke_ms,
        residual_ms: found.residual_ms,
        demerit_ms: found.demerit_ms(),
        hit_ms: found.hit_ms,
        near_ms: found.near_ms.map(|(ms, _)| ms),
        write_ms: found.write_ms,
        mean_measured_ms: found.validation.mean_measured_ms,
        mean_model_ms: found.validation.mean_model_ms,
    });
    output::print_as(args.format, &[table], &json)?;
    measured.notes.iter().for_each(|note| eprintln!("note: {note}"));
    warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    say_profile(args);
    Ok(Verdict::Done)
}

/// Says how the profile is used, if there is one.
fn say_profile(args: &CalibrateArgs) {
    if let Some(path) = &args.profile {
        eprintln!("profile: {0}; try `seekway compare --device {0} …`", usable(path));
    }
}

fn shown(what: &Path) -> String {
    if what.as_os_str() == "-" { "stdin".into() } else { what.display().to_string() }
}

/// A path as `--device` takes it for a file, whatever its name.
fn usable(path: &Path) -> String {
    let text = path.display().to_string();
    if text.contains('/') || text.ends_with(".toml") { text } else { format!("./{text}") }
}

fn options(args: &CalibrateArgs) -> Result<Options> {
    Ok(Options {
        form: if args.fitting.averaged { Form::Averaged } else { Form::Points },
        one_line: args.fitting.one_line,
        beyond: load::size("--beyond", &args.fitting.beyond)?.get(),
        rotation_ms: args.rpm.map(|rpm| 60_000.0 / f64::from(rpm)),
        ..Options::default()
    })
}

/// The profile's name: as given, or from the file's.
fn name(args: &CalibrateArgs) -> Result<String> {
    let from_file = |path: &Path| path.file_stem().map(|s| s.to_string_lossy().into_owned());
    let name = args
        .name
        .clone()
        .or_else(|| args.profile.as_deref().and_then(from_file))
        .unwrap_or_else(|| "calibrated".into());
    let plain = |c: char| !c.is_control();
    if name.is_empty() || name.chars().count() > NAME_CHARS_MAX || !name.chars().all(plain) {
        bail!("--name: expected 1 to {NAME_CHARS_MAX} printable characters");
    }
    Ok(name)
}

/// Remarks on a fit.
fn judged(found: &Fit, measured: &MeasuredRequests, options: &Options) -> Vec<String> {
    let mut notes = Vec::new();
    if found.fitted < FEW {
        notes.push(format!(
            "{} requests are few for a line: the full stroke is uncertain by ±{:.2} ms",
            found.fitted,
            2.0 * found.stroke_error_ms
        ));
    }
    if found.is_flat() {
        notes.push(format!(
            "the distance explains {:.1} % of the service times: this is no disk with one arm (an \
             SSD, an array, a cache, a hypervisor's disk). The profile has the mean for all \
             distances; on such a device order gains next to nothing, and `noop` costs least",
            100.0 * found.explained.max(0.0)
        ));
    }
    let medians = fit::medians_ms(&measured.samples, options.beyond);
    if let (Some(mean_ms), (Some(reads_ms), Some(writes_ms))) = (found.write_ms, medians) {
        notes.push(format!(
            "writes took {writes_ms:.2} ms where reads took {reads_ms:.2} ms (medians): a write \
             cache answers them. The line is that of the reads; the profile gives each write \
             {mean_ms:.2} ms, and nothing for writing it out later"
        ));
    }
    notes
}

/// The figures, with the name of each beside it.
fn table(found: &Fit, measured: &MeasuredRequests) -> Table {
    let mut rows: Vec<(String, Cell, &str)> = Vec::new();
    let mut row = |name: &str, value: Cell, unit| rows.push((name.into(), value, unit));
    let ms = |value: f64| Cell::Text(format!("{value:.3}"));
    row("requests", Cell::Count(found.requests as u64), "");
    row("fitted", Cell::Count(found.fitted as u64), "");
    row("D, largest LBA", Cell::Count(found.largest), "sectors");
    row("intercept, R/2", ms(found.line.intercept_ms), "ms");
    row("full stroke, S", ms(found.line.stroke_ms), "ms");
    row("standard error of S", ms(found.stroke_error_ms), "ms");
    let other = |form: Form, line: fit::Line| (form != found.form).then(|| line.to_string());
    if let Some(line) = other(Form::Averaged, found.line_averaged) {
        row("by the moving average", Cell::Text(line), "ms");
    }
    row("residual, RMS", ms(found.residual_ms), "ms");
    row("variance explained", Cell::Share(found.explained), "");
    row("demerit figure", ms(found.demerit_ms()), "ms");
    row("demerit / mean service", Cell::Share(found.validation.demerit_relative), "");
    row("mean measured", ms(found.validation.mean_measured_ms), "ms");
    row("mean of the model", ms(found.validation.mean_model_ms), "ms");
    row("cache hit", found.hit_ms.map_or(Cell::Absent, ms), "ms");
    if let Some((near_ms, sectors)) = found.near_ms {
        row(&format!("reads within {sectors} sectors"), ms(near_ms), "ms");
    }
    if let Some(write_ms) = found.write_ms {
        row("cached write", ms(write_ms), "ms");
    }
    if let Some(spike) = found.spike {
        row("reads below the trough", Cell::Share(spike.share), "");
        row("trough", ms(spike.trough_ms), "ms");
    }
    Table::of(format!("Linear fit of {}", measured.source), &rows)
        .text("figure", |row| &row.0)
        .number("value", "", |row| row.1.clone())
        .text("unit", |row| row.2)
        .done()
}

// The HTML report of a calibration.

/// Points of a cloud, of the curve and of the line.
const POINTS_MAX: usize = 20_000;
const CURVE_POINTS: usize = 600;
const LINE_POINTS: u64 = 1_200;
/// Quantile at which the service axis ends: a few requests take ten times as long.
const SHOWN: f64 = 0.99;

fn report(
    found: &Fit,
    measured: &MeasuredRequests,
    options: &Options,
    table: Table,
    warnings: &[String],
) -> Report {
    let (distances, cloud) = distances(found, measured, options);
    let said = measured.notes.iter().cloned().map(Block::Text);
    let in_numbers = [Block::Table(table)].into_iter().chain(said).collect();
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
    let figures = [
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
    let warnings = warnings.iter().cloned().map(Block::Warning);
    let fit = warnings.chain(figures).collect();
    let sections = vec![Section::new("Fit", fit), Section::new("In numbers", in_numbers)];
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
    let bins = fit::histogram(&measured.samples);
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

// Measured traces, told from disks by their content.

/// Largest measured trace that is read, in bytes: it is held whole.
const BYTES_MAX: u64 = 256 << 20;
/// First bytes that tell text from an image.
const HEAD_BYTES: u64 = 4096;

/// Is it a trace rather than a disk or a file to measure? The standard input
/// and pipes are, block devices are not, and a file is when it begins as text.
fn is_trace(what: &Path) -> Result<bool> {
    if what.as_os_str() == "-" {
        return Ok(true);
    }
    let about = || what.display().to_string();
    let kind = std::fs::metadata(what).with_context(about)?;
    if kind.file_type().is_fifo() {
        return Ok(true);
    }
    if !kind.is_file() {
        // The code that opens it as a disk refuses anything else.
        return Ok(false);
    }
    let mut head = Vec::new();
    File::open(what).and_then(|f| f.take(HEAD_BYTES).read_to_end(&mut head)).with_context(about)?;
    if head.is_empty() {
        bail!("{}: empty: neither a measured trace nor a file on a disk to measure", about());
    }
    if is_text(&head) {
        return Ok(true);
    }
    // A trace in another format, or compressed, is seldom meant as a file to read at random.
    if let Ok(reader) = TraceReader::open(what, &TraceOptions::default()) {
        bail!(
            "{}: {}; if it is the disk below this file that you want measured, say --as disk",
            about(),
            refusal(reader.format())
        );
    }
    Ok(false)
}

/// Printable ASCII with line ends.
fn is_text(head: &[u8]) -> bool {
    head.iter().all(|&b| (b' '..=b'~').contains(&b) || matches!(b, b'\n' | b'\r' | b'\t'))
}

/// Reads a measured trace.
fn read(what: &Path) -> Result<MeasuredRequests> {
    let name = shown(what);
    let input: Box<dyn Read> = if what.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(File::open(what).with_context(|| name.clone())?)
    };
    let mut bytes = Vec::new();
    input.take(BYTES_MAX + 1).read_to_end(&mut bytes).with_context(|| name.clone())?;
    if bytes.len() as u64 > BYTES_MAX {
        bail!("{name}: a measured trace has at most {BYTES_MAX} bytes");
    }
    let text = std::str::from_utf8(&bytes).map_err(|e| {
        anyhow!("{name}: not text from byte {} on; a compressed trace has to be unpacked first: `zcat FILE | seekway calibrate -`", e.valid_up_to())
    })?;
    let records = validate::parse(text).map_err(|error| match (&error, other_format(text)) {
        (TraceError::Line { line: 1, .. }, Some(format)) => anyhow!("{name}: {}", refusal(format)),
        _ => anyhow!(error).context(name.clone()),
    })?;
    Ok(MeasuredRequests {
        source: format!("the measured trace {name}"),
        samples: fit::samples(&records),
        capacity: None,
        hit_ms: None,
        notes: Vec::new(),
    })
}

/// Which other format the text is in, if any.
fn other_format(text: &str) -> Option<Format> {
    let head: Vec<u8> = text.bytes().take(1 << 16).collect();
    let read = Box::new(std::io::Cursor::new(head));
    let reader = TraceReader::from_read("", read, &TraceOptions::default()).ok()?;
    Some(reader.format()).filter(|&f| f != Format::Disksim)
}

/// Why a trace of another format calibrates nothing.
fn refusal(format: Format) -> String {
    let why = match format {
        Format::Disksim => {
            return "a compressed trace has to be unpacked first: `zcat FILE | seekway calibrate -`"
                .into();
        }
        Format::Msr | Format::Systor | Format::Blkreplay => {
            "its times are responses under load: they hold the queue before the disk too, of which \
             nobody knows how long it was"
        }
        Format::Blktrace => {
            "its times from issue to completion are of requests that share the disk with others"
        }
        _ => "it says when requests came and not how long the disk took",
    };
    format!(
        "a trace in the format {} ({}), and {why}; to calibrate takes requests that were served \
         one at a time: `R|W Hit|Miss lbn sectors service_us gap_us`",
        format.name(),
        format.about()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_made_of_what_is_printed() {
        use seekway_testing::schema;
        schema::<Calibrated>("calibrate", "seekway calibrate --format json");
    }
}
