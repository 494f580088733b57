//! The linear device that fits a measured one (algorithms.md, section 5:
//! "calibration"; the throttle paper's section 5): X = R/2 + S·(d/D).
//!
//! From requests that were served one at a time:
//!
//! 1. d is the distance from the predecessor's end to the start, either way;
//!    only requests more than [`Options::beyond`] sectors away are fitted, so
//!    that neither the drive's cache nor its track layout is in the line.
//! 2. D is the largest start of all requests.
//! 3. The intercept R/2 and the full stroke S are the least squares through
//!    service time over d/D.
//! 4. The paper averages first: sorted by distance, each service time gives way
//!    to the mean of the (up to) 1001 around it. With its 100,000 reads that
//!    leaves the line where it is. With 5,000 a window is a fifth of all, and
//!    the windows that the ends cut short flatten the slope by 7 %, so
//!    [`Form::Points`] is the default and [`Form::Averaged`] the paper's own;
//!    [`averaged`] draws the curve either way.
//! 5. The spike below the trough that separates cache hits from the rest of the
//!    histogram of reads is the hit time ([`spike`]).
//! 6. How good it is: RMS of the points about the line, R², and the demerit
//!    figure between the measured services and those of the fitted device.

#[cfg(test)]
mod tests;

use crate::closed_loop::serve;
use crate::profile::{Profile, ProfileError};
use crate::validate::{Pace, Record, TraceError, Validation};
use crate::{DeviceModel, validate};
use seekway_core::mix::Draws;
use seekway_core::request::{Extent, Op};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use std::fmt;
use std::fmt::Write as _;
use thiserror::Error;

/// Fewest requests that a line is put through.
pub const FITTED_MIN: usize = 10;

/// Points in a window of the moving average.
pub const WINDOW: usize = 1001;

/// Share of the variance that the distance must explain, or it explains nothing.
const EXPLAINED_MIN: f64 = 0.02;

/// One request as it was served, alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Read or write.
    pub op: Op,
    pub extent: Extent,
    /// From submission to completion.
    pub service_ns: u64,
    /// The sector after the predecessor's last; `None` for the first request.
    pub from: Option<u64>,
}

impl Sample {
    /// Sectors from the predecessor's end to the start, either way.
    pub fn distance(&self) -> Option<u64> {
        self.from.map(|from| from.abs_diff(self.extent.start().get()))
    }
}

/// The records of a measured trace, each with its predecessor's end.
pub fn samples(records: &[Record]) -> Vec<Sample> {
    let mut from = None;
    let mut sample = |r: &Record| Sample {
        op: r.op,
        extent: r.extent,
        service_ns: r.service_ns,
        from: from.replace(r.extent.end().get()),
    };
    records.iter().map(&mut sample).collect()
}

/// Points of the least squares.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Form {
    #[default]
    Points,
    /// The moving average over [`WINDOW`] points, as the paper has it.
    Averaged,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Options {
    /// Points of the line.
    pub form: Form,
    /// One line for all requests, as the paper has it: without the steps of [`Fit::write_ms`] and
    /// [`Fit::near_ms`].
    pub one_line: bool,
    /// Requests at this distance or less are not fitted; 1000 in issue 4.
    pub beyond: u64,
    /// Size of the device in sectors, if known; by default the largest end.
    pub capacity: Option<u64>,
    /// Time of a cache hit that was measured otherwise (by reading twice), in ms.
    pub hit_ms: Option<f64>,
    /// A revolution in ms, if known. Only policies are told.
    pub rotation_ms: Option<f64>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            form: Form::Points,
            one_line: false,
            beyond: 1000,
            capacity: None,
            hit_ms: None,
            rotation_ms: None,
        }
    }
}

/// Why there is no fit.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum FitError {
    /// Too few requests far enough from their predecessor.
    #[error(
        "{found} of {requests} requests begin more than {beyond} sectors from their predecessor's \
         end; a line needs {FITTED_MIN}: measure random requests"
    )]
    TooFew {
        /// Number of those that are far enough.
        found: usize,
        requests: usize,
        /// The distance that was asked for, in sectors: [`Options::beyond`].
        beyond: u64,
    },
    /// All distances are the same.
    #[error(
        "all {found} requests are {distance} sectors from their predecessor's end: no line goes through one distance"
    )]
    OneDistance { found: usize, distance: u64 },
    /// The line is none that a profile can hold.
    #[error("no device fits: {0}")]
    Profile(#[from] ProfileError),
    /// A request is outside of the fitted device.
    #[error("{0}")]
    Replay(#[from] TraceError),
}

/// The fitted device and how well it fits.
#[derive(Clone, PartialEq, Debug)]
pub struct Fit {
    /// All requests that were measured, fitted or not.
    pub requests: usize,
    /// Number of points that the line goes through.
    pub fitted: usize,
    /// D: the largest start of all requests, in sectors.
    pub largest: u64,
    /// Size of the device in sectors.
    pub capacity: u64,
    /// The line, by the form that was asked for.
    pub line: Line,
    /// Points of the line.
    pub form: Form,
    /// The line by the paper's form, whichever was asked for.
    pub line_averaged: Line,
    /// Mean service of the fitted requests.
    pub mean_ms: f64,
    /// RMS of the fitted requests about the line.
    pub residual_ms: f64,
    /// Share of the services' variance that the line explains, 0 to 1 (below 0
    /// where [`Form::Averaged`] makes it worse than their mean).
    pub explained: f64,
    /// Standard error of the full stroke, by the points.
    pub stroke_error_ms: f64,
    /// The cache hits in the histogram of reads.
    pub spike: Option<Spike>,
    /// [`Options::hit_ms`], else the spike's time.
    pub hit_ms: Option<f64>,
    /// Mean of the writes, if the drive's write cache answers them: their median is less than half
    /// of the reads'. Then the line goes through reads only.
    pub write_ms: Option<f64>,
    /// Mean of the reads within [`Options::beyond`] of their predecessor that are no cache hits, if
    /// there are [`FITTED_MIN`]; and [`Options::beyond`], in sectors.
    pub near_ms: Option<(f64, u64)>,
    /// A revolution in ms, from [`Options::rotation_ms`].
    pub rotation_ms: Option<f64>,
    /// The measured services against those of the same requests on the fitted device.
    pub validation: Validation,
}

impl Fit {
    /// Does the distance explain nothing, as on an SSD? Then the stroke is
    /// noise, or a share of the time that does not matter, and the profile has
    /// the mean service for all distances instead of the line.
    pub fn is_flat(&self) -> bool {
        self.line.stroke_ms < 3.0 * self.stroke_error_ms || self.explained < EXPLAINED_MIN
    }

    /// Service time that the line adds from the first to the last sector of the device, in ms.
    pub fn device_stroke_ms(&self) -> f64 {
        self.line.stroke_ms * self.capacity as f64 / self.largest as f64
    }

    /// RMS horizontal distance of measured and fitted services, in ms.
    pub fn demerit_ms(&self) -> f64 {
        self.validation.demerit_ms
    }

    /// The text of a profile with a `[linear]` device, each figure with its source beside it.
    /// `source` describes the measurement in a phrase.
    pub fn profile_toml(&self, name: &str, source: &str) -> String {
        profile(self, name, source)
    }
}

/// Fits the linear device to requests in the order in which they were served.
/// Of equal distances the earlier request comes first in the moving average.
///
/// # Errors
/// [`FitError`].
pub fn fit(samples: &[Sample], options: Options) -> Result<Fit, FitError> {
    let points = points(samples, options);
    let (requests, found) = (samples.len(), points.len());
    if found < FITTED_MIN {
        return Err(FitError::TooFew { found, requests, beyond: options.beyond });
    }
    let distance = points[0].distance;
    if points[found - 1].distance == distance {
        return Err(FitError::OneDistance { found, distance });
    }
    let starts = samples.iter().map(|s| s.extent.start().get());
    let ends = samples.iter().map(|s| s.extent.end().get());
    let largest = starts.max().unwrap_or(1).max(1);
    let end = ends.max().unwrap_or(1);
    let by_points = of_points(&points, largest);
    let line_averaged = of_averages(&points, largest);
    let line = match options.form {
        Form::Points => by_points,
        Form::Averaged => line_averaged,
    };
    let quality = quality(&points, line, largest);
    let spike = find_spike(samples, options.beyond);
    let mut fit = Fit {
        requests,
        fitted: found,
        largest,
        capacity: options.capacity.unwrap_or(end).max(end),
        line,
        form: options.form,
        line_averaged,
        mean_ms: quality.mean_ms,
        residual_ms: quality.residual_ms,
        explained: quality.explained,
        stroke_error_ms: quality.stroke_error_ms,
        hit_ms: options.hit_ms.or(spike.map(|s| s.ms)),
        spike,
        write_ms: cached_write_ms(samples, options),
        near_ms: near_ms(samples, options, spike).map(|ms| (ms, options.beyond)),
        rotation_ms: options.rotation_ms,
        // Until the profile, which all the rest makes, has been replayed.
        validation: validate::compare(&[1], &[1])?,
    };
    fit.validation = replayed(&fit, samples)?;
    Ok(fit)
}

/// The measured services against those of the device that the profile builds.
fn replayed(fit: &Fit, samples: &[Sample]) -> Result<Validation, FitError> {
    let mut device = Profile::parse(&fit.profile_toml("fitted", "a fit"))?.build();
    let record = |s: &Sample| Record {
        op: s.op,
        extent: s.extent,
        service_ns: s.service_ns,
        // A linear device does nothing between commands.
        gap_ns: 0,
    };
    let records: Vec<Record> = samples.iter().map(record).collect();
    let model = validate::replay(device.as_mut(), &records, Pace::Closed)?;
    let measured: Vec<u64> = records.iter().map(|r| r.service_ns).collect();
    Ok(validate::compare(&measured, &model)?)
}

/// The requests that are fitted, by distance.
fn points(samples: &[Sample], options: Options) -> Vec<Point> {
    let reads_only = cached_write_ms(samples, options).is_some();
    let fitted = samples.iter().filter(|s| !reads_only || s.op == Op::Read);
    let point = |s: &Sample| Some(Point { distance: s.distance()?, service_ns: s.service_ns });
    let mut points: Vec<Point> =
        fitted.filter_map(point).filter(|p| p.distance > options.beyond).collect();
    points.sort_by_key(|p| p.distance);
    points
}

/// [`Fit::write_ms`].
fn cached_write_ms(samples: &[Sample], options: Options) -> Option<f64> {
    let (reads_ms, writes_ms) = medians_ms(samples, options.beyond);
    if options.one_line || writes_ms? >= reads_ms? / 2.0 {
        return None;
    }
    mean_ms(samples.iter().filter(|s| s.op != Op::Read))
}

/// [`Fit::near_ms`], without the distance.
fn near_ms(samples: &[Sample], options: Options, spike: Option<Spike>) -> Option<f64> {
    let trough_ms = spike.map_or(0.0, |s| s.trough_ms);
    let is_near = |s: &Sample| s.distance().is_some_and(|d| d <= options.beyond);
    let is_miss = |s: &Sample| s.op == Op::Read && s.service_ns as f64 / 1e6 > trough_ms;
    let near = samples.iter().filter(|s| !options.one_line && is_near(s) && is_miss(s));
    mean_ms(near)
}

/// Mean service in ms; none for fewer than [`FITTED_MIN`].
fn mean_ms<'a>(samples: impl Iterator<Item = &'a Sample> + Clone) -> Option<f64> {
    let count = samples.clone().count();
    let sum_ns: f64 = samples.map(|s| s.service_ns as f64).sum();
    (count >= FITTED_MIN).then(|| sum_ns / 1e6 / count as f64)
}

/// Median services in ms of the reads and the writes more than `beyond` sectors away.
pub fn medians_ms(samples: &[Sample], beyond: u64) -> (Option<f64>, Option<f64>) {
    let median = |op: Op| {
        let far = |s: &&Sample| s.op == op && s.distance().is_some_and(|d| d > beyond);
        let mut services: Vec<u64> = samples.iter().filter(far).map(|s| s.service_ns).collect();
        services.sort_unstable();
        services.get(services.len() / 2).map(|&ns| ns as f64 / 1e6)
    };
    (median(Op::Read), median(Op::Write))
}

// Moving average and least squares.

/// A request as the line sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Point {
    pub distance: u64,
    pub service_ns: u64,
}

/// Service time over distance: `intercept_ms + stroke_ms · (d/D)`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Line {
    /// R/2 of the formula.
    pub intercept_ms: f64,
    /// S of the formula: the time that the distance D adds.
    pub stroke_ms: f64,
}

impl fmt::Display for Line {
    /// As in `4.250 + 5.250`, in ms.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.stroke_ms < 0.0 { '-' } else { '+' };
        write!(f, "{:.3} {sign} {:.3}", self.intercept_ms, self.stroke_ms.abs())
    }
}

impl Line {
    /// The time for `share` = d/D.
    pub fn at_ms(&self, share: f64) -> f64 {
        self.intercept_ms + self.stroke_ms * share
    }
}

/// Spread of the points about a line.
struct Quality {
    pub residual_ms: f64,
    pub explained: f64,
    pub stroke_error_ms: f64,
    pub mean_ms: f64,
}

/// The fitted requests' distances in sectors, ascending, each with the mean
/// service in ms of the (up to) 1001 requests centered on it. At the ends the
/// windows are cut short on the side where nothing is.
pub fn averaged(samples: &[Sample], options: Options) -> Vec<(u64, f64)> {
    let points = points(samples, options);
    let means = means_ms(&points);
    points.iter().map(|p| p.distance).zip(means).collect()
}

/// Least squares through the points themselves.
fn of_points(points: &[Point], largest: u64) -> Line {
    least_squares(points, largest, points.iter().map(|p| p.service_ns as f64 / 1e6))
}

/// Least squares through the moving average.
fn of_averages(points: &[Point], largest: u64) -> Line {
    least_squares(points, largest, means_ms(points).into_iter())
}

fn means_ms(points: &[Point]) -> Vec<f64> {
    let n = points.len();
    let sums: Vec<u128> = std::iter::once(0)
        .chain(points.iter().scan(0_u128, |sum, p| {
            *sum += u128::from(p.service_ns);
            Some(*sum)
        }))
        .collect();
    let mean = |i: usize| {
        let (from, to) = (i.saturating_sub(WINDOW / 2), (i + WINDOW / 2 + 1).min(n));
        (sums[to] - sums[from]) as f64 / (to - from) as f64 / 1e6
    };
    (0..n).map(mean).collect()
}

/// About the means, which keeps the digits. At least two distances differ.
fn least_squares(
    points: &[Point],
    largest: u64,
    services_ms: impl Iterator<Item = f64> + Clone,
) -> Line {
    let n = points.len() as f64;
    let share = |p: &Point| p.distance as f64 / largest as f64;
    let mean_x = points.iter().map(share).sum::<f64>() / n;
    let mean_y = services_ms.clone().sum::<f64>() / n;
    let (mut xx, mut xy) = (0.0, 0.0);
    for (p, y) in points.iter().zip(services_ms) {
        let x = share(p) - mean_x;
        xx += x * x;
        xy += x * (y - mean_y);
    }
    let stroke_ms = xy / xx;
    Line { intercept_ms: mean_y - stroke_ms * mean_x, stroke_ms }
}

/// Measures the spread of `points`, at least three, about `line`.
fn quality(points: &[Point], line: Line, largest: u64) -> Quality {
    let n = points.len() as f64;
    let share = |p: &Point| p.distance as f64 / largest as f64;
    let ms = |p: &Point| p.service_ns as f64 / 1e6;
    let mean_x = points.iter().map(share).sum::<f64>() / n;
    let mean_y = points.iter().map(ms).sum::<f64>() / n;
    let (mut about_line, mut about_mean, mut xx) = (0.0, 0.0, 0.0);
    for p in points {
        about_line += (ms(p) - line.at_ms(share(p))).powi(2);
        about_mean += (ms(p) - mean_y).powi(2);
        xx += (share(p) - mean_x).powi(2);
    }
    Quality {
        residual_ms: (about_line / n).sqrt(),
        // All services the same: nothing is left to be explained.
        explained: if about_mean > 0.0 { 1.0 - about_line / about_mean } else { 0.0 },
        mean_ms: mean_y,
        stroke_error_ms: (about_line / (n - 2.0) / xx).sqrt(),
    }
}

// Random single reads of a model, as calibration makes them on a real disk.

/// Offsets for random reads: numbers from 0 to below `count`, all equally likely, without an end.
/// A seed gives the same offsets each time (`SplitMix64`).
#[derive(Clone, Debug)]
pub struct Places {
    draws: Draws,
    count: u64,
}

impl Places {
    /// Offsets below `count`, which is at least 1.
    pub fn new(seed: u64, count: u64) -> Places {
        Places { draws: Draws::new(seed), count: count.max(1) }
    }
}

impl Iterator for Places {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        Some(self.draws.below(self.count))
    }
}

/// Reads `reads` times `sectors` sectors at random multiples of `sectors` over
/// the whole device, each when the one before is done, from time 0 of a device
/// at rest. Empty where the device is smaller than one read or `sectors` is 0.
///
/// Not for a device that another engine is using: completions are taken.
pub fn probe(device: &mut dyn DeviceModel, reads: usize, sectors: u64, seed: u64) -> Vec<Sample> {
    let capacity = device.profile().capacity.get();
    let blocks = capacity.checked_div(sectors).unwrap_or(0);
    if blocks == 0 {
        return Vec::new();
    }
    let (mut now, mut from) = (Instant::ZERO, None);
    let read = |block: u64| {
        let extent = Extent::new(Lba::new(block * sectors), Sectors::new(sectors))?;
        let done = serve(device, now, Op::Read, extent);
        let service_ns = done.since(now).get();
        now = done;
        Some(Sample { op: Op::Read, extent, service_ns, from: from.replace(extent.end().get()) })
    };
    Places::new(seed, blocks).take(reads).filter_map(read).collect()
}

// A fit as the text of a profile.

/// Cache of a fitted profile, because nothing is measured of it: that of the paper's Cheetah 15K.4
/// (algorithms.md, sections 3.1 and 5).
const HIT_MS: f64 = 0.25;

const SEGMENTS: u32 = 64;

const SEGMENT_SECTORS: u64 = 221;

const PREFETCH_SECTORS: u64 = 64;

fn profile(fit: &Fit, name: &str, source: &str) -> String {
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

// The time of a cache hit, from the histogram of reads: "a prominent initial
// spike" (the throttle paper, section 6.2, at 250 µs).
//
// The histogram is logarithmic, 16 bins to the octave. Averaged over half an octave, which joins
// the hits of different sizes, the trough is the bin that is deepest below the higher bins on its
// left and on its right. The spike is the highest bin on its left, without that averaging.

/// Bins to the octave; one is 4.4 % wide.
const BINS: usize = 16;
/// From 1 ns up to 2^52 ns, which is 52 days.
const OCTAVES: usize = 52;
/// Bins on each side in the average that joins hits of different sizes.
const BROAD: usize = BINS / 4;
/// Least share of all reads in a spike, so that a thin tail is none.
const SHARE_MIN: f64 = 0.005;
const COUNT_MIN: u64 = 10;
/// Least height of both hills, in heights of the trough.
const PROMINENCE: f64 = 2.0;

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spike {
    /// Median of the reads in the spike and the bins beside it.
    pub ms: f64,
    /// Standard deviation of all reads below the trough.
    pub spread_ms: f64,
    pub trough_ms: f64,
    /// Share of the reads below the trough, 0 to 1.
    pub share: f64,
}

/// Finds the hits among reads (among all requests where none is a read).
/// `None` where no trough is below the median of the reads that are further
/// than `beyond` from their predecessor.
pub fn find_spike(samples: &[Sample], beyond: u64) -> Option<Spike> {
    let mut far: Vec<u64> = counted(samples)
        .filter(|s| s.distance().is_some_and(|d| d > beyond))
        .map(|s| s.service_ns)
        .collect();
    far.sort_unstable();
    let median = *far.get(far.len() / 2)?;
    let mut services: Vec<u64> = counted(samples).map(|s| s.service_ns).collect();
    services.sort_unstable();
    let bins = bins(counted(samples));

    let trough = trough(&bins, bin(median))?;
    let hits = &services[..services.partition_point(|&ns| bin(ns) < trough)];
    let share = hits.len() as f64 / services.len() as f64;
    if (hits.len() as u64) < COUNT_MIN || share < SHARE_MIN {
        return None;
    }
    let below = &bins[..trough];
    let mode = (0..trough).max_by_key(|&b| (window(below, b, 1), std::cmp::Reverse(b)))?;
    let spike: Vec<u64> = hits.iter().copied().filter(|&ns| bin(ns).abs_diff(mode) <= 1).collect();
    let ms = |ns: u64| ns as f64 / 1e6;
    let mean = hits.iter().map(|&ns| ms(ns)).sum::<f64>() / hits.len() as f64;
    let variance = hits.iter().map(|&ns| (ms(ns) - mean).powi(2)).sum::<f64>() / hits.len() as f64;
    Some(Spike {
        ms: ms(spike[spike.len() / 2]),
        spread_ms: variance.sqrt(),
        trough_ms: 2_f64.powf(trough as f64 / BINS as f64) / 1e6,
        share,
    })
}

/// The histogram of the reads (of all requests where none is a read): the
/// middle of each bin in ms and the requests in it, from the first bin that
/// holds any to the last.
pub fn histogram(samples: &[Sample]) -> Vec<(f64, u64)> {
    let bins = bins(counted(samples));
    let first = bins.iter().position(|&n| n > 0).unwrap_or(0);
    let last = bins.iter().rposition(|&n| n > 0).unwrap_or(0);
    let middle_ms = |b: usize| 2_f64.powf((b as f64 + 0.5) / BINS as f64) / 1e6;
    (first..=last).map(|b| (middle_ms(b), bins[b])).collect()
}

/// The requests that can be hits.
fn counted(samples: &[Sample]) -> impl Iterator<Item = &Sample> {
    let any_read = samples.iter().any(|s| s.op == Op::Read);
    samples.iter().filter(move |s| !any_read || s.op == Op::Read)
}

fn bins<'a>(samples: impl Iterator<Item = &'a Sample>) -> Vec<u64> {
    let mut bins = vec![0; OCTAVES * BINS];
    samples.for_each(|s| bins[bin(s.service_ns)] += 1);
    bins
}

fn bin(ns: u64) -> usize {
    let place = (ns.max(1) as f64).log2() * BINS as f64;
    (place as usize).min(OCTAVES * BINS - 1)
}

/// Requests in the bins from `at - side` to `at + side`.
fn window(bins: &[u64], at: usize, side: usize) -> u64 {
    bins[at.saturating_sub(side)..(at + side + 1).min(bins.len())].iter().sum()
}

/// The deepest valley whose bottom is below bin `median`.
fn trough(bins: &[u64], median: usize) -> Option<usize> {
    let broad: Vec<u64> = (0..bins.len()).map(|b| window(bins, b, BROAD)).collect();
    let mut right = vec![0; bins.len() + 1];
    for b in (0..bins.len()).rev() {
        right[b] = right[b + 1].max(broad[b]);
    }
    let mut left = 0;
    let mut best: Option<(u64, usize)> = None;
    for (b, &height) in broad.iter().enumerate().take(median) {
        left = left.max(height);
        let hills = left.min(right[b]);
        let prominent = hills as f64 >= PROMINENCE * height as f64 + PROMINENCE;
        let depth = hills - height;
        if prominent && best.is_none_or(|(deepest, _)| depth > deepest) {
            best = Some((depth, b));
        }
    }
    best.map(|(_, b)| b)
}

// Measures a model as a host measures a drive: the line by random reads, the time of a cache hit,
// and the read-ahead.

/// Sectors of a page, which each read reads.
const READ_SECTORS: u64 = 8;
/// Longest read-ahead that is looked for: 1 MiB.
const AHEAD_PAGES_MAX: u64 = 256;
/// Idle for a drive: several turns and seeks.
const IDLE: Nanos = Nanos::from_millis(50);

/// Why a model cannot be measured.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum ModelError {
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Fit(#[from] FitError),
    #[error("no page at sector {start}: the device is too small to be measured")]
    Small { start: u64 },
}

/// Fits `profile` by `reads` random reads of a page without its cache, as the throttle's paper does.
/// The hit time is that of a page read again.
///
/// # Errors
/// There is no such profile, its device is too small, or no line fits.
pub fn of_model(profile: &str, form: Form, reads: usize, seed: u64) -> Result<Fit, ModelError> {
    let separator = if profile.contains(':') { ',' } else { ':' };
    let mut without_cache = build(&format!("{profile}{separator}segments=0"))?;
    let samples = probe(without_cache.as_mut(), reads, READ_SECTORS, seed);
    let mut reader = Reader::new(profile)?;
    let told = reader.device.profile();
    let options = Options {
        form,
        capacity: Some(told.capacity.get()),
        hit_ms: reader.hit_ms()?,
        rotation_ms: told.rotation.map(|r| r.as_millis_f64()),
        ..Options::default()
    };
    Ok(fit(&samples, options)?)
}

fn build(profile: &str) -> Result<Box<dyn DeviceModel>, ProfileError> {
    crate::profile::load(profile).map(|p| p.build())
}

/// Read-ahead of a drive, measured by service times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadAhead {
    /// Sectors behind a read that are in the cache although another read follows at once.
    pub sectors: u64,
    /// Reads further after a hit although another read follows at once.
    pub after_hits: bool,
    /// Reads further after a hit while the drive is idle.
    pub when_idle: bool,
}

/// Measures the read-ahead of `profile`: reads a page, then one far away, then one behind the first.
///
/// # Errors
/// There is no such profile, or its device is too small.
pub fn read_ahead(profile: &str) -> Result<ReadAhead, ModelError> {
    let mut reader = Reader::new(profile)?;
    let Some(hit_ms) = reader.hit_ms()? else {
        return Ok(ReadAhead { sectors: 0, after_hits: false, when_idle: false });
    };
    // Far from the time of a hit, and of anything that moves the arm.
    let limit_ms = 2.0 * hit_ms;
    let mut pages = 0;
    while pages < AHEAD_PAGES_MAX {
        let start = reader.fresh();
        reader.read(start)?;
        reader.read_far()?;
        if reader.read(start + (pages + 1) * READ_SECTORS)? > limit_ms {
            break;
        }
        pages += 1;
    }
    let mut beyond = |pause| {
        let start = reader.fresh();
        for page in [0, pages] {
            reader.read(start + page * READ_SECTORS)?;
            reader.now = reader.now + pause;
            reader.read_far()?;
            reader.now = reader.now + pause;
        }
        Ok::<bool, ModelError>(reader.read(start + (pages + 1) * READ_SECTORS)? <= limit_ms)
    };
    Ok(ReadAhead {
        sectors: pages * READ_SECTORS,
        after_hits: pages > 0 && beyond(Nanos::ZERO)?,
        when_idle: beyond(IDLE)?,
    })
}

/// Reads pages of an otherwise idle device, one at a time.
struct Reader {
    device: Box<dyn DeviceModel>,
    now: Instant,
    /// Offsets given out, in both halves of the device together.
    used: u64,
}

impl Reader {
    fn new(profile: &str) -> Result<Reader, ModelError> {
        Ok(Reader { device: build(profile)?, now: Instant::ZERO, used: 0 })
    }

    /// An offset in the second half of the device that was not read before.
    fn fresh(&mut self) -> u64 {
        self.used += 1;
        self.device.profile().capacity.get() / 2 + 10_000 * self.used
    }

    /// Reads a page in the first half where nothing was read.
    fn read_far(&mut self) -> Result<f64, ModelError> {
        self.used += 1;
        self.read(10_000 * self.used)
    }

    /// Time of the read of a page that was just read; `None` where that is not much less than a
    /// read elsewhere: there is no cache.
    fn hit_ms(&mut self) -> Result<Option<f64>, ModelError> {
        let far_ms = self.read_far()?;
        let start = self.fresh();
        self.read(start)?;
        let again_ms = self.read(start)?;
        Ok(Some(again_ms).filter(|ms| 2.0 * ms < far_ms))
    }

    /// Reads the page at `start`; its time in ms.
    fn read(&mut self, start: u64) -> Result<f64, ModelError> {
        let outside = || ModelError::Small { start };
        let extent = Extent::new(Lba::new(start), Sectors::new(READ_SECTORS));
        let extent = extent.filter(|e| e.end().get() <= self.device.profile().capacity.get());
        let done = serve(&mut *self.device, self.now, Op::Read, extent.ok_or_else(outside)?);
        let began = std::mem::replace(&mut self.now, done);
        Ok(done.since(began).as_millis_f64())
    }
}

#[cfg(test)]
mod model_tests {
    use super::*;

    const LINEAR: &str = "linear-15k4";

    #[test]
    fn the_linear_device_is_recovered() {
        for form in [Form::Points, Form::Averaged] {
            let fit = of_model(LINEAR, form, 100_000, 3).unwrap();
            let near = |found: f64, own: f64| (found / own - 1.0).abs() < 0.01;
            assert!(near(fit.line.intercept_ms, 4.25), "{form:?}: {:?}", fit.line);
            assert!(near(fit.device_stroke_ms(), 5.25), "{form:?}: {:?}", fit.line);
            assert_eq!(fit.hit_ms, Some(0.25));
        }
    }

    #[test]
    fn what_a_drive_reads_ahead_is_found() {
        let check = |profile: &str, sectors, after_hits, when_idle| {
            let found = read_ahead(profile);
            assert_eq!(found, Ok(ReadAhead { sectors, after_hits, when_idle }), "{profile}");
        };
        check(LINEAR, 64, true, true);
        check("linear-15k4:on_hit=keep,prefetch_sectors=32", 32, false, false);
        check("linear-15k4:on_hit=keep,idle_ahead=true", 64, false, true);
        check("linear-15k4:segments=0", 0, false, false);
        check("cheetah-15k4:read_ahead_min=64", 64, false, true);
        check("cheetah-15k4", 0, false, true);
    }
}
