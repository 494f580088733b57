//! Histogram of the disk arm's moves: forwards, backwards, and none.

use serde::Serialize;

use super::{Figure, first};
use crate::number;

/// Bins per factor of ten; the page's script knows it.
const PER_DECADE: usize = 2;
/// Bins on each side of zero that hold every i64.
const BINS: usize = 2 * 19;
/// Least number of columns on each side, so that figures of different runs look alike.
const SHOWN_MIN: usize = 8;
const PANELS_MAX: usize = 16;

/// Counts of signed distances in logarithmic bins, two for each factor of ten on each side, and
/// one for zero. Fill it while running; it takes the same room for any number of distances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeekBins {
    zero: u64,
    back: [u64; BINS],
    ahead: [u64; BINS],
}

impl Default for SeekBins {
    fn default() -> SeekBins {
        SeekBins { zero: 0, back: [0; BINS], ahead: [0; BINS] }
    }
}

impl SeekBins {
    /// Counts a distance `n` times.
    pub fn record_n(&mut self, distance: i64, n: u64) {
        let slot = match bin(distance) {
            None => &mut self.zero,
            Some(bin) if distance < 0 => &mut self.back[bin],
            Some(bin) => &mut self.ahead[bin],
        };
        *slot = slot.saturating_add(n);
    }

    /// Number of counted values.
    pub fn total(&self) -> u64 {
        self.back.iter().chain(&self.ahead).fold(self.zero, |sum, n| sum.saturating_add(*n))
    }

    fn furthest(&self) -> usize {
        (0..BINS).rev().find(|&i| self.back[i].max(self.ahead[i]) > 0).map_or(0, |i| i + 1)
    }
}

/// Bin k holds distances from 10^(k/2) on; exact, because it compares squares.
fn bin(distance: i64) -> Option<usize> {
    let square = u128::from(distance.unsigned_abs()).pow(PER_DECADE as u32);
    square.checked_ilog10().map(|bin| bin as usize)
}

/// One panel for each policy, one below the other, with a common scale.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Quantity that is counted, such as "Seek distance".
    pub label: String,
    /// Its unit, such as "sectors".
    pub unit: String,
    /// Name and counts of each panel.
    pub series: Vec<(String, SeekBins)>,
}

/// For the script.
#[derive(Serialize)]
struct Drawn<'a> {
    kind: &'static str,
    label: &'a str,
    unit: &'a str,
    panels: Vec<Panel>,
}

#[derive(Serialize)]
struct Panel {
    heading: String,
    zero: u64,
    /// From the shortest distance on, as many as are shown.
    back: Vec<u64>,
    ahead: Vec<u64>,
}

impl Histogram {
    /// A panel for each series of which something was counted.
    pub fn render(&self) -> Figure {
        let none = self.series.iter().filter(|s| s.1.total() == 0);
        let mut notes: Vec<String> =
            none.map(|(name, _)| format!("{name}: nothing was counted.")).collect();
        let shown: Vec<&(String, SeekBins)> =
            self.series.iter().filter(|s| s.1.total() > 0).collect();
        if shown.is_empty() {
            return Figure::empty(&notes);
        }
        let shown = first(&shown, PANELS_MAX, &mut notes);
        let per_side = shown.iter().map(|s| s.1.furthest()).max().unwrap_or(0);
        let per_side = per_side.max(SHOWN_MIN).next_multiple_of(PER_DECADE);
        let panel = |(name, bins): &&(String, SeekBins)| Panel {
            heading: heading(name, bins),
            zero: bins.zero,
            back: bins.back[..per_side].to_vec(),
            ahead: bins.ahead[..per_side].to_vec(),
        };
        let panels = shown.iter().map(panel).collect();
        let (label, unit) = (self.label.as_str(), self.unit.as_str());
        Figure::drawn(&Drawn { kind: "seeks", label, unit, panels }, &notes)
    }
}

fn heading(name: &str, bins: &SeekBins) -> String {
    let zero = number::fixed(bins.zero as f64 / bins.total() as f64 * 100.0, 1);
    let facts = format!("{zero} % at zero, {} in all", number::count(bins.total()));
    if name.is_empty() { facts } else { format!("{name}: {facts}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The least whole distance in a bin.
    fn bin_start(bin: usize) -> u64 {
        let square = 10_u128.pow(bin as u32);
        let root = square.isqrt();
        (root + u128::from(root * root < square)) as u64
    }

    #[test]
    fn bins_are_exact_at_their_edges() {
        assert_eq!(bin(0), None);
        let check = |distance: i64, want| assert_eq!(bin(distance), Some(want), "{distance}");
        check(1, 0);
        check(-3, 0);
        check(4, 1);
        check(9, 1);
        check(10, 2);
        check(31, 2);
        check(32, 3);
        check(999_999, 11);
        check(1_000_000, 12);
        check(i64::MAX, 37);
        check(i64::MIN, 37);
        for k in 1..37 {
            assert_eq!(bin(bin_start(k) as i64), Some(k));
            assert_eq!(bin(bin_start(k) as i64 - 1), Some(k - 1));
        }
    }
}
