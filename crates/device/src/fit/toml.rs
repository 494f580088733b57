//! A fit as the text of a profile.

use super::{Fit, Form};
use std::fmt::Write as _;

/// What the cache is taken to be, where nothing was measured of it: the paper's
/// Cheetah 15K.4 (algorithms.md, sections 3.1 and 5).
const HIT_MS: f64 = 0.25;
const SEGMENTS: u32 = 64;
const SEGMENT_SECTORS: u64 = 221;
const PREFETCH_SECTORS: u64 = 64;

/// The profile's text.
pub(super) fn profile(fit: &Fit, name: &str, source: &str) -> String {
    let Fit { requests, fitted, largest, capacity, residual_ms, explained, .. } = fit;
    let source: String = source.chars().filter(|c| !c.is_control()).collect();
    let intercept_ms = fit.line.intercept_ms;
    // At the distance D it is the same time as the line's.
    let stroke_ms = (fit.line.stroke_ms * (*capacity as f64 / *largest as f64)).max(0.0);
    // To whole ns, so that twice as much is no more than twice as much there either.
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
        text += "# The distance explains next to nothing: this is no disk with one arm, and no\n\
                 # policy that shortens seeks gains anything on it.\n";
    }
    let (hit_ms, hit_source) = hit(fit);
    let (rotation_ms, rotation_source) = rotation(fit, base_ms);
    let assumed = "not measured: the Cheetah 15K.4 of algorithms.md, section 3.1";
    let limited = |raw: f64| {
        if raw < 0.0 {
            format!("; the fit says {raw:.4}, less than nothing")
        } else {
            String::new()
        }
    };
    let _ = write!(
        text,
        "\nname = {}\nsummary = {}\n\n\
         [linear]\n\
         capacity_sectors = {capacity} # the device's size where known, else the largest end of a request\n\
         base_ms = {base_ms:.6} # R/2: {through}{}\n\
         stroke_ms = {stroke_ms:.6} # S for capacity_sectors, standard error {:.3}{}\n\
         rotation_ms = {rotation_ms:.6} # {rotation_source}\n\
         hit_ms = {hit_ms:.6} # {hit_source}\n\
         queue_depth = 1 # one server: requests were measured one at a time\n\
         segments = {SEGMENTS} # {assumed}\n\
         segment_sectors = {SEGMENT_SECTORS} # {assumed}\n\
         prefetch_sectors = {PREFETCH_SECTORS} # {assumed}\n\
         replacement = \"fifo\" # {assumed}\n\
         on_hit = \"consume\" # {assumed}\n",
        quoted(name),
        quoted(&summary),
        limited(intercept_ms),
        fit.stroke_error_ms,
        limited(fit.line.stroke_ms),
    );
    text
}

fn hit(fit: &Fit) -> (f64, String) {
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
            (HIT_MS, "not measured, no spike: that of algorithms.md, section 5".to_owned())
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
fn quoted(text: &str) -> String {
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
