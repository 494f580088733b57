//! Axes: from values to a place between 0 and 1, and the ticks that a person would choose.

use crate::number;
use crate::svg::text_width;

/// Larger values are drawn here, so that no difference of two overflows.
const HUGE: f64 = 1e300;
/// The smallest tail that a `nines` axis can show: 99.9999999 %.
const NINES_MAX: f64 = 9.0;

/// What an axis shows and how.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    label: String,
    unit: String,
    scale: Scale,
    range: Option<(f64, f64)>,
    from_zero: bool,
    tight: bool,
    pub(super) percent: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Scale {
    #[default]
    Linear,
    Log,
    Nines,
}

impl Axis {
    /// Equal steps, over what the data span.
    pub fn linear(label: impl Into<String>, unit: impl Into<String>) -> Axis {
        Axis { label: label.into(), unit: unit.into(), ..Axis::default() }
    }

    /// Equal factors; values that are not positive are left out and counted.
    pub fn log(label: impl Into<String>, unit: impl Into<String>) -> Axis {
        Axis { scale: Scale::Log, ..Axis::linear(label, unit) }
    }

    /// Parts of one, from 0 to 100 %.
    pub fn share(label: impl Into<String>) -> Axis {
        Axis { percent: true, range: Some((0.0, 1.0)), ..Axis::linear(label, "") }
    }

    /// Parts of one for a cumulative distribution whose tail matters: 90 %, 99 %, 99.9 % …
    /// equally spaced.
    pub fn nines(label: impl Into<String>) -> Axis {
        Axis { scale: Scale::Nines, percent: true, ..Axis::linear(label, "") }
    }

    /// Equal steps, ending where the data end: for time.
    pub fn time(label: impl Into<String>, unit: impl Into<String>) -> Axis {
        Axis { tight: true, ..Axis::linear(label, unit) }
    }

    /// The same axis, which spans zero too; for axes of equal steps only.
    pub fn from_zero(self) -> Axis {
        Axis { from_zero: true, ..self }
    }

    /// Shown as given, whatever the data are; a range that is empty or not finite is ignored.
    pub fn range(self, low: f64, high: f64) -> Axis {
        Axis { range: Some((low, high)), ..self }
    }

    /// Whether a value has a place on this kind of axis.
    pub(super) fn shows(&self, value: f64) -> bool {
        match self.scale {
            Scale::Linear => value.is_finite(),
            Scale::Log => value.is_finite() && value > 0.0,
            Scale::Nines => (0.0..=1.0).contains(&value),
        }
    }

    /// The axis for these data, `length` pixels long, or `None` if there is nothing to show.
    pub(super) fn fit(
        &self,
        data: impl Iterator<Item = f64>,
        length: f64,
        along: Along,
    ) -> Option<FittedAxis> {
        let (mut low, mut high) = self.bounds(data)?;
        let exponent = self.exponent(low, high);
        let mut ticks = Vec::new();
        // Fewer ticks until their labels fit.
        for wanted in (1..=along.ticks_max(length)).rev() {
            let (from, to) = self.rounded(low, high, wanted);
            ticks = self.ticks(from, to, wanted, exponent);
            let widest = ticks.iter().map(|tick| text_width(&tick.label)).fold(0.0, f64::max);
            let gap = length / (ticks.len().max(2) - 1) as f64;
            if along == Along::Y || widest + 14.0 <= gap || wanted == 1 {
                (low, high) = (from, to);
                break;
            }
        }
        Some(FittedAxis {
            scale: self.scale,
            low: self.scale.place(low),
            high: self.scale.place(high),
            ticks,
            title: self.title(exponent),
        })
    }

    fn bounds(&self, data: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
        if self.scale == Scale::Nines {
            // A distribution's last value, 1, has no end of nines: the one before it decides.
            let shares: Vec<f64> = data.filter(|v| self.shows(*v)).collect();
            let high = shares.iter().copied().filter(|v| *v < 1.0).reduce(f64::max);
            return if shares.is_empty() { None } else { Some((0.0, high.unwrap_or(0.9))) };
        }
        let given = self.range.filter(|(a, b)| self.shows(*a) && self.shows(*b) && a < b);
        let (mut low, mut high) = match given {
            Some(range) => range,
            None => {
                data.filter(|v| self.shows(*v)).fold(None, |range: Option<(f64, f64)>, v| {
                    let (low, high) = range.unwrap_or((v, v));
                    Some((low.min(v), high.max(v)))
                })?
            }
        };
        low = low.clamp(-HUGE, HUGE);
        high = high.clamp(-HUGE, HUGE);
        if self.scale == Scale::Log {
            (low, high) = (low.max(1.0 / HUGE), high.max(1.0 / HUGE));
        } else if self.from_zero {
            (low, high) = (low.min(0.0), high.max(0.0));
        }
        // A single value gets room around it; so do values that floats can hardly tell apart.
        if (high - low).abs() <= 1e-12 * high.abs().max(low.abs()) {
            let room = if high == 0.0 { 1.0 } else { high.abs() * 0.05 };
            (low, high) = match self.scale {
                Scale::Linear => (low - room, high + room),
                _ => (low / 2.0, high * 2.0),
            };
        }
        Some((low, high))
    }

    /// Tick labels are divided by ten to this power, which then stands in the title.
    fn exponent(&self, low: f64, high: f64) -> i32 {
        let size = low.abs().max(high.abs());
        if self.scale != Scale::Linear || self.percent || size == 0.0 {
            return 0;
        }
        let exponent = (size.log10().floor() as i32).div_euclid(3) * 3;
        // A window that is narrow beside its offset keeps all its digits instead.
        let narrow = (high - low) / size < 1e-4;
        if (1e-2..1e5).contains(&size) || narrow { 0 } else { exponent }
    }

    fn rounded(&self, low: f64, high: f64, wanted: usize) -> (f64, f64) {
        match self.scale {
            Scale::Nines => {
                let tail = nines(high).min(NINES_MAX).ceil().clamp(1.0, NINES_MAX);
                (0.0, 1.0 - 10f64.powf(-tail))
            }
            _ if self.range.is_some() => (low, high),
            _ if self.tight => {
                // Unless the next tick is so near that it would be missed.
                let step = nice_step(low, high, wanted);
                let (below, above) = ((low / step).floor() * step, (high / step).ceil() * step);
                let near = (high - low) * 0.02;
                (
                    if low - below < near { below } else { low },
                    if above - high < near { above } else { high },
                )
            }
            Scale::Linear => {
                let step = nice_step(low, high, wanted);
                ((low / step + 1e-9).floor() * step, (high / step - 1e-9).ceil() * step)
            }
            Scale::Log => (nice_below(low), nice_above(high)),
        }
    }

    fn ticks(&self, low: f64, high: f64, wanted: usize, exponent: i32) -> Vec<Tick> {
        match self.scale {
            Scale::Linear => linear_ticks(low, high, wanted, exponent, self.percent),
            Scale::Log => log_ticks(low, high, wanted),
            Scale::Nines => {
                let last = nines(high).round() as usize;
                let every = last.div_ceil(wanted.max(1)).max(1);
                let tail = (1..=last).step_by(every).map(|n| 1.0 - 10f64.powi(-(n as i32)));
                let share = |v: f64| {
                    format!(
                        "{} %",
                        number::fixed(v * 100.0, (nines(v).round() - 2.0).max(0.0) as usize)
                    )
                };
                [0.0]
                    .into_iter()
                    .chain(tail)
                    .map(|v| Tick { at: nines(v), label: share(v) })
                    .collect()
            }
        }
    }

    fn title(&self, exponent: i32) -> String {
        let power = if exponent == 0 { String::new() } else { power_of_ten(exponent) };
        let unit = match (power.as_str(), self.unit.as_str()) {
            ("", unit) => unit.to_owned(),
            (power, "") => format!("× {power}"),
            (power, unit) => format!("{power} {unit}"),
        };
        if unit.is_empty() { self.label.clone() } else { format!("{} ({unit})", self.label) }
    }

    /// A value in a tooltip, with its unit.
    pub(super) fn shown(&self, value: f64) -> String {
        if self.percent {
            return format!("{} %", number::significant(value * 100.0, 4));
        }
        let number = number::significant(value, 4);
        if self.unit.is_empty() { number } else { format!("{number} {}", self.unit) }
    }
}

/// Which way an axis runs, for the room its labels need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Along {
    X,
    Y,
}

impl Along {
    fn ticks_max(self, length: f64) -> usize {
        let each = match self {
            Along::X => 60.0,
            Along::Y if length < 160.0 => 20.0,
            Along::Y => 28.0,
        };
        ((length / each) as usize).clamp(2, 12)
    }
}

/// An axis with its range and ticks.
#[derive(Clone, Debug, Default)]
pub(super) struct FittedAxis {
    scale: Scale,
    low: f64,
    high: f64,
    pub ticks: Vec<Tick>,
    pub title: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    /// In the scale's own measure; see [`FittedAxis::tick_place`].
    at: f64,
    pub label: String,
}

impl FittedAxis {
    /// An axis without ticks, for a direction in which the figure places things itself.
    pub fn frame() -> FittedAxis {
        FittedAxis { high: 1.0, ..FittedAxis::default() }
    }

    /// Where a value stands: 0 at the axis's start, 1 at its end, beyond them clamped.
    pub fn place(&self, value: f64) -> f64 {
        self.part(self.scale.place(value.clamp(-HUGE, HUGE)))
    }

    /// Whether a value lies between the ends.
    pub fn contains(&self, value: f64) -> bool {
        let at = self.scale.place(value);
        let slack = (self.high - self.low) * 1e-9;
        at >= self.low - slack && (at <= self.high + slack || self.scale == Scale::Nines)
    }

    pub fn tick_place(&self, tick: &Tick) -> f64 {
        self.part(tick.at)
    }

    fn part(&self, at: f64) -> f64 {
        let part = (at - self.low) / (self.high - self.low);
        if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) }
    }
}

impl Scale {
    fn place(self, value: f64) -> f64 {
        match self {
            Scale::Linear => value,
            Scale::Log => value.max(1.0 / HUGE).log10(),
            Scale::Nines => nines(value),
        }
    }
}

/// 0.99 → 2. The last value of a distribution, 1, has infinitely many.
fn nines(share: f64) -> f64 {
    -(1.0 - share).max(0.0).log10()
}

/// 1, 2 or 5 times a power of ten, such that about `wanted` steps cover the range.
fn nice_step(low: f64, high: f64, wanted: usize) -> f64 {
    let raw = (high - low) / wanted as f64;
    let power = 10f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|f| f * power >= raw * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

fn linear_ticks(low: f64, high: f64, wanted: usize, exponent: i32, percent: bool) -> Vec<Tick> {
    let step = nice_step(low, high, wanted);
    let unit = if percent { 0.01 } else { 10f64.powi(exponent) };
    let decimals = (-(step / unit).log10() - 1e-9).ceil().clamp(0.0, 9.0) as usize;
    let first = (low / step - 1e-9).ceil();
    let count = ((high - first * step) / step + 1e-9).floor().clamp(0.0, 50.0) as usize;
    let label = |v: f64| {
        number::fixed(v / unit, decimals).replace('-', "−") + if percent { " %" } else { "" }
    };
    (0..=count)
        .map(|i| (first + i as f64) * step)
        .map(|value| Tick { at: value, label: label(value) })
        .collect()
}

/// Decades; fewer if there are too many, with 2 and 5 between them if there are too few.
fn log_ticks(low: f64, high: f64, wanted: usize) -> Vec<Tick> {
    let (from, to) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let decades = (to - from).max(1) as usize;
    let factors: &[f64] = match decades * 3 <= wanted + 3 {
        true => &[1.0, 2.0, 5.0],
        false => &[1.0],
    };
    let every = decades.div_ceil(wanted).max(1);
    let mut ticks = Vec::new();
    for decade in (from..=to).filter(|d| d.rem_euclid(every as i32) == 0) {
        for factor in factors {
            let value = factor * 10f64.powi(decade);
            if value >= low * (1.0 - 1e-9) && value <= high * (1.0 + 1e-9) {
                ticks.push(Tick { at: value.log10(), label: log_label(*factor, decade) });
            }
        }
    }
    ticks
}

fn log_label(factor: f64, decade: i32) -> String {
    match decade {
        -3..=4 => number::significant(factor * 10f64.powi(decade), 1),
        _ if factor == 1.0 => power_of_ten(decade),
        _ => format!("{factor}·{}", power_of_ten(decade)),
    }
}

/// A power of ten with its exponent raised, as `10⁹`.
pub(super) fn power_of_ten(exponent: i32) -> String {
    let digits = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    let sign = if exponent < 0 { "⁻" } else { "" };
    let power: String = exponent
        .unsigned_abs()
        .to_string()
        .bytes()
        .map(|b| digits[usize::from(b - b'0')])
        .collect();
    format!("10{sign}{power}")
}

fn nice_below(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let fits = |f: &f64| f * power <= value * (1.0 + 1e-9);
    [5.0, 2.0, 1.0].into_iter().find(fits).unwrap_or(1.0) * power
}

fn nice_above(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let fits = |f: &f64| f * power >= value * (1.0 - 1e-9);
    [1.0, 2.0, 5.0, 10.0].into_iter().find(fits).unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: Axis, data: &[f64], length: f64) -> (Vec<String>, String) {
        let fitted = axis.fit(data.iter().copied(), length, Along::X).expect("data");
        (fitted.ticks.into_iter().map(|t| t.label).collect(), fitted.title)
    }

    #[test]
    fn ticks_are_what_a_person_would_choose() {
        let (ticks, title) = labels(Axis::linear("LBA", "sectors"), &[1.2832e9, 1.384e9], 400.0);
        assert_eq!(ticks, ["1.28", "1.30", "1.32", "1.34", "1.36", "1.38", "1.40"]);
        assert_eq!(title, "LBA (10⁹ sectors)");
        let (ticks, title) = labels(Axis::log("Response time", "ms"), &[0.13, 340.0], 300.0);
        assert_eq!(ticks, ["0.1", "1", "10", "100"]);
        assert_eq!(title, "Response time (ms)");
        let (ticks, _) = labels(Axis::nines("Requests"), &[0.2, 0.9995, 1.0], 600.0);
        assert_eq!(ticks[..5], ["0 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
        let (ticks, _) = labels(Axis::share("Seeks"), &[], 400.0);
        assert_eq!(ticks, ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]);
    }

    #[test]
    fn every_range_has_ticks_within_it() {
        let extremes = [0.0, 1.0, -1.0, 1e-300, 5e-324, 1e308, -1e308, 1e15, 1e15 + 1.0, 0.1];
        for a in extremes {
            for b in extremes {
                for axis in
                    [Axis::linear("", ""), Axis::log("", ""), Axis::time("", "").from_zero()]
                {
                    let Some(fitted) = axis.fit([a, b].into_iter(), 500.0, Along::X) else {
                        continue;
                    };
                    assert!(fitted.ticks.len() <= 51, "{a} {b}: {fitted:?}");
                    for value in [a, b, f64::MAX] {
                        assert!((0.0..=1.0).contains(&fitted.place(value)), "{a} {b} {fitted:?}");
                    }
                }
            }
        }
    }
}
