//! Moving average and least squares.

use super::{Options, Sample, WINDOW, points};
use std::fmt;

/// A request as the line sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Point {
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
pub(super) struct Quality {
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
pub(super) fn of_points(points: &[Point], largest: u64) -> Line {
    least_squares(points, largest, points.iter().map(|p| p.service_ns as f64 / 1e6))
}

/// Least squares through the moving average.
pub(super) fn of_averages(points: &[Point], largest: u64) -> Line {
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
pub(super) fn quality(points: &[Point], line: Line, largest: u64) -> Quality {
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
