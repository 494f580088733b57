//! A fit as the text of a profile.

use super::{Fit, Form};
use std::fmt::Write as _;

/// Cache of a fitted profile, because nothing is measured of it: that of the paper's Cheetah 15K.4
/// (algorithms.md, sections 3.1 and 5).
const HIT_MS: f64 = 0.25;
const SEGMENTS: u32 = 64;
const SEGMENT_SECTORS: u64 = 221;
const PREFETCH_SECTORS: u64 = 64;

pub(super) fn profile(fit: &Fit, name: &str, source: &str) -> String {
    let Fit { requests, fitted, largest, capacity, residual_ms, explained, .. } = fit;
    let source: String = source.chars().filter(|c| !c.is_control()).collect();
    // On a flat device the line's slope is noise, which a device larger than the measured range
    // would extend without bound.
    let (intercept_ms, slope_ms) = match fit.is_flat() {
        true => (fit.mean_ms, 0.0),
        false => (fit.line.intercept_ms, fit.line.stroke_ms),
    };
    // At the distance D it is the same time as the line's.
    let stroke_ms = slope_ms * (*capacity as f64 / *largest as f64);
    // To whole ns, so that twice this value is no more than twice there either.
    let base_ms = (intercept_ms.max(0.0) * 1e6).round() / 1e6;
    let through = match fit.form {
        Form::Points => "least squares",
        Form::Averaged => "least squares through the moving average of 1001",
    };
    let summary =
        format!("A linear device fitted to {source}: {base_ms:.3} + {stroke_ms:.3} (d/D) ms");
    let mut text = format!(
        "# Fitted to {source}.\n\
         # {fitted} of {requests} requests, {through}; D = {largest} sectors.\n\
         # The line explains {:.1} % of the variance; {residual_ms:.3} ms RMS are left.\n",
        100.0 * explained
    );
    if fit.is_flat() {
        let _ = write!(
            text,
            "# The distance explains next to nothing: this is no disk with one arm, and no\n\
             # policy that shortens seeks gains anything on it. Instead of the line, which would\n\
             # be {} (d/D) ms, the mean stands for all distances.\n",
            fit.line
        );
    }
    let (hit_ms, hit_source) = hit(fit, base_ms);
    let (rotation_ms, rotation_source) = rotation(fit, base_ms);
    let mut steps = String::new();
    if let Some((ms, sectors)) = fit.near_ms {
        let _ = write!(
            steps,
            "near_sectors = {sectors} # the distance up to which the line is not fitted\n\
             near_ms = {ms:.6} # mean of the reads there that are no cache hits\n"
        );
    }
    if let Some(ms) = fit.write_ms {
        let what = "mean of the writes, which the drive's write cache answers";
        let _ = writeln!(steps, "write_ms = {ms:.6} # {what}");
    }
    let assumed = "not measured: the Cheetah 15K.4 of algorithms.md, section 3.1";
    let base_source = match (fit.is_flat(), intercept_ms < 0.0) {
        (true, _) => "mean service of the fitted requests".to_owned(),
        (false, true) => format!("R/2: {through} say {intercept_ms:.4}, less than nothing"),
        (false, false) => format!("R/2: {through}"),
    };
    let _ = write!(
        text,
        "\nname = {}\nsummary = {}\n\n\
         [linear]\n\
         capacity_sectors = {capacity} # the device's size where known, else the largest end of a request\n\
         base_ms = {base_ms:.6} # {base_source}\n\
         stroke_ms = {stroke_ms:.6} # S for capacity_sectors, standard error {:.3}\n\
         rotation_ms = {rotation_ms:.6} # {rotation_source}\n\
         hit_ms = {hit_ms:.6} # {hit_source}\n\
         {steps}\
         queue_depth = 1 # one server: requests were measured one at a time\n\
         segments = {SEGMENTS} # {assumed}\n\
         segment_sectors = {SEGMENT_SECTORS} # {assumed}\n\
         prefetch_sectors = {PREFETCH_SECTORS} # {assumed}\n\
         replacement = \"fifo\" # {assumed}\n\
         on_hit = \"consume\" # {assumed}\n",
        quoted(name),
        quoted(&summary),
        fit.stroke_error_ms,
    );
    text
}

fn hit(fit: &Fit, base_ms: f64) -> (f64, String) {
    match (fit.hit_ms, fit.spike) {
        (Some(ms), Some(s)) if s.ms == ms => {
            let share = 100.0 * s.share;
            (
                ms,
                format!(
                    "spike of the histogram; {share:.1} % of the reads are below its trough at \
                     {:.3} ms, spread {:.3} ms",
                    s.trough_ms, s.spread_ms
                ),
            )
        }
        (Some(ms), _) => (ms, "sectors read again at once".to_owned()),
        (None, _) => {
            // No more than a miss: an SSD's is shorter.
            let ms = HIT_MS.min(base_ms);
            (ms, "not measured, no spike: that of algorithms.md, section 5, or base_ms".to_owned())
        }
    }
}

fn rotation(fit: &Fit, base_ms: f64) -> (f64, &'static str) {
    match fit.rotation_ms {
        Some(ms) if ms <= 2.0 * base_ms => (ms, "as given; only told to policies"),
        Some(_) => (2.0 * base_ms, "twice base_ms, the most that can be: more was given"),
        None if fit.is_flat() => (0.0, "nothing turns that a distance would show"),
        None => (
            2.0 * base_ms,
            "not measured: R by the formula, overheads in it; only told to policies",
        ),
    }
}

/// A basic string of TOML.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => _ = write!(out, "\\u{:04X}", c as u32),
            c => out.push(c),
        }
    }
    out + "\""
}
