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

mod line;
mod model;
mod probe;
pub mod spike;
mod toml;

pub use line::{Line, averaged};
pub use model::{ModelError, ReadAhead, of_model, read_ahead};
pub use probe::{Places, probe};
pub(crate) use toml::quoted;

use crate::profile::{Profile, ProfileError};
use crate::validate::{self, Pace, Record, TraceError, Validation};
use line::Point;
use seekway_core::request::{Extent, Op};
use spike::Spike;
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
        toml::profile(self, name, source)
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
    let by_points = line::of_points(&points, largest);
    let line_averaged = line::of_averages(&points, largest);
    let line = match options.form {
        Form::Points => by_points,
        Form::Averaged => line_averaged,
    };
    let quality = line::quality(&points, line, largest);
    let spike = spike::find(samples, options.beyond);
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

#[cfg(test)]
mod tests;
