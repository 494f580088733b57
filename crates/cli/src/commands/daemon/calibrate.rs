//! `seekway calibrate`: the linear device that fits a disk or a measured trace, or the flash model
//! that fits a drive.

mod flash;
mod measure;
mod page;
mod trace;

use crate::args::{CalibrateArgs, Kind};
use crate::{Verdict, load, output};
use anyhow::{Context, Result, bail};
use seekway_device::fit::{self, Fit, Form, Options, Sample};
use seekway_report::table::{Cell, Table};
use serde::Serialize;
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
        Kind::Auto => trace::is_trace(&args.what)?,
        kind => kind == Kind::Trace,
    };
    let measured =
        if is_trace { trace::read(&args.what)? } else { measure::measure(&args.what, &plan)? };
    let options = Options { capacity: measured.capacity, hit_ms: measured.hit_ms, ..options };
    let found = fit::fit(&measured.samples, options).with_context(|| shown.clone())?;
    let warnings = judged(&found, &measured, &options);
    if let Some(path) = &args.profile {
        let text = found.profile_toml(&name, &measured.source);
        output::write_file(path, |out| out.write_all(text.as_bytes()))?;
    }
    let table = table(&found, &measured);
    output::write_report(args.report.as_deref(), || {
        page::report(&found, &measured, &options, table.clone(), &warnings)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_made_of_what_is_printed() {
        use seekway_testing::schema;
        schema::<Calibrated>("calibrate", "seekway calibrate --format json");
    }
}
