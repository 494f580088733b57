//! How far the disk's head had to move, forwards and backwards, and how often not at all.

use std::fmt::Write as _;

use super::scale::{Along, Axis, FittedAxis, power_of_ten};
use super::sheet::{RIGHT, Sheet, WIDTH, left_margin};
use crate::number;
use crate::svg::{Px, Svg, text_width};

/// Bins per factor of ten.
const PER_DECADE: usize = 2;
/// Bins on each side of zero that hold every i64.
const BINS: usize = 2 * 19;
/// Shown on each side at least, so that figures of different runs look alike.
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

    /// How many were counted.
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

/// The least whole distance in a bin.
fn bin_start(bin: usize) -> u64 {
    let square = 10_u128.pow(bin as u32);
    let root = square.isqrt();
    (root + u128::from(root * root < square)) as u64
}

/// One panel for each policy, one below the other, with a common scale.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// What is counted, such as "Seek distance".
    pub label: String,
    /// Its unit, such as "sectors".
    pub unit: String,
    /// Name and counts of each panel.
    pub series: Vec<(String, SeekBins)>,
}

/// Where the bins stand: zero in the middle, as wide as three.
struct Slots {
    per_side: usize,
    width: f64,
    left: f64,
}

impl Slots {
    const ZERO: f64 = 3.0;

    fn new(per_side: usize, left: f64) -> Slots {
        let width = (WIDTH - left - RIGHT) / (2.0 * per_side as f64 + Slots::ZERO);
        Slots { per_side, width, left }
    }

    /// The near edge of a bin on the side of `sign`.
    fn edge(&self, sign: f64, bin: usize) -> f64 {
        let middle = self.left + self.width * (self.per_side as f64 + Slots::ZERO / 2.0);
        middle + sign * self.width * (Slots::ZERO / 2.0 + bin as f64)
    }
}

impl Histogram {
    /// Draws a panel for each series of which something was counted.
    pub fn render(&self) -> Svg {
        let mut sheet = Sheet::new();
        let shown: Vec<&(String, SeekBins)> =
            self.series.iter().filter(|s| s.1.total() > 0).collect();
        for (name, _) in self.series.iter().filter(|s| s.1.total() == 0) {
            sheet.note(format!("{name}: nothing was counted."));
        }
        let shown = sheet.first(&shown, PANELS_MAX);
        let per_side = shown.iter().map(|s| s.1.furthest()).max().unwrap_or(0);
        let per_side = per_side.max(SHOWN_MIN).next_multiple_of(PER_DECADE);
        let shares = shown.iter().flat_map(|(_, bins)| {
            let total = bins.total() as f64;
            bins.back.iter().chain(&bins.ahead).chain([&bins.zero]).map(move |n| *n as f64 / total)
        });
        let height = if shown.len() > 2 { 84.0 } else { 140.0 };
        let highest = shares.fold(0.0, f64::max);
        let y_axis = Axis::share("Share").range(0.0, (highest * 1.02).min(1.0));
        let fitted =
            (highest > 0.0).then(|| y_axis.fit(std::iter::empty(), height, Along::Y)).flatten();
        let Some(y) = fitted else { return sheet.empty(0) };
        let x = FittedAxis::frame(); // Bins are placed by `Slots`.
        let slots = Slots::new(per_side, left_margin(&[&y]));
        let top = sheet.top;
        for (name, bins) in shown {
            self.draw(&mut sheet, name, bins, &slots, (&x, &y), height);
        }
        sheet.y_title(top, sheet.top, "Share");
        self.draw_feet(&mut sheet, &slots);
        sheet.finish()
    }

    fn draw(
        &self,
        sheet: &mut Sheet,
        name: &str,
        bins: &SeekBins,
        slots: &Slots,
        axes: (&FittedAxis, &FittedAxis),
        height: f64,
    ) {
        let total = bins.total();
        let zero = bins.zero as f64 / total as f64;
        let facts = format!(
            "{} % at zero, {} in all",
            number::fixed(zero * 100.0, 1),
            number::count(total)
        );
        let heading = if name.is_empty() { facts } else { format!("{name}: {facts}") };
        let area = sheet.panel(&heading, slots.left, height, axes.0, axes.1, false);
        let mut bar = |class: &str, left: f64, width: f64, n: u64, what: &str| {
            if n == 0 {
                return;
            }
            let share = n as f64 / total as f64;
            // A bin that holds anything must be seen.
            let top = area.y(share).min(area.top + height - 1.0);
            let tip = format!(
                "{what}: {} % ({})",
                number::significant(share * 100.0, 3),
                number::count(n)
            );
            let size = ((width - 1.0).max(1.0), area.top + height - top);
            sheet.rect(class, (left + 0.5, top), size, &tip);
        };
        for bin in 0..slots.per_side {
            let (from, to) = (number::count(bin_start(bin)), number::count(bin_start(bin + 1) - 1));
            let what = |way: &str| match from == to {
                true => format!("{from} {} {way}", self.unit),
                false => format!("{from} to {to} {} {way}", self.unit),
            };
            bar("f0", slots.edge(-1.0, bin + 1), slots.width, bins.back[bin], &what("back"));
            bar("f0", slots.edge(1.0, bin), slots.width, bins.ahead[bin], &what("ahead"));
        }
        let middle = slots.width * (Slots::ZERO - 1.0);
        bar("f3", slots.edge(-1.0, 0) + slots.width / 2.0, middle, bins.zero, "zero");
    }

    /// Ticks at whole powers of ten, as many as have room, and the title.
    fn draw_feet(&self, sheet: &mut Sheet, slots: &Slots) {
        let decades = slots.per_side / PER_DECADE;
        let room = text_width("−10¹⁰") + 8.0;
        let every = (room / (slots.width * PER_DECADE as f64)).ceil().max(1.0) as usize;
        let y = sheet.top - 10.0;
        let mut marks = String::new();
        for decade in (0..=decades).step_by(every) {
            let label = if decade == 0 { "1".to_owned() } else { power_of_ten(decade as i32) };
            for (sign, minus) in [(-1.0, "−"), (1.0, "")] {
                let x = slots.edge(sign, decade * PER_DECADE);
                let _ = write!(marks, "M{} {}v4", Px(x), Px(y));
                sheet.text("s m", x, y + 17.0, &format!("{minus}{label}"));
            }
        }
        let middle = f64::midpoint(slots.edge(-1.0, 0), slots.edge(1.0, 0));
        if slots.width * Slots::ZERO > 45.0 {
            sheet.text("hd m", middle, y + 17.0, "0");
        }
        sheet.path("ax", &marks);
        sheet.top += 12.0;
        let unit = if self.unit.is_empty() { String::new() } else { format!(" ({})", self.unit) };
        sheet.text("s", slots.left, sheet.top + 13.0, "← back");
        sheet.text("s e", WIDTH - RIGHT, sheet.top + 13.0, "ahead →");
        sheet.x_title(slots.left, &format!("{}{unit}", self.label));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
