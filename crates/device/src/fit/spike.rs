//! The time of a cache hit, from the histogram of reads: "a prominent initial
//! spike" (the throttle paper, section 6.2, at 250 µs).
//!
//! The histogram is logarithmic, 16 bins to the octave. Averaged over half an octave, which joins
//! the hits of different sizes, the trough is the bin that is deepest below the higher bins on its
//! left and on its right. The spike is the highest bin on its left, without that averaging.

use super::Sample;
use seekway_core::request::Op;

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
pub fn find(samples: &[Sample], beyond: u64) -> Option<Spike> {
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
