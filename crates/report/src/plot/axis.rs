//! Axes. The page's script chooses their ticks by the room that there is.

use serde::Serialize;

use crate::number;

/// Larger values are not shown, so that no difference of two overflows.
const HUGE: f64 = 1e300;
/// Values are written in steps of less than this part of an axis.
const STEPS_DIGITS: i32 = 4;

/// Quantity, unit and scale of an axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Axis {
    label: String,
    unit: String,
    scale: Scale,
    range: Option<(f64, f64)>,
    from_zero: bool,
    tight: bool,
    pub(super) percent: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Scale {
    #[default]
    Linear,
    Log,
    Nines,
}

impl Axis {
    /// Equal steps, over the data's range.
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

    /// Widens the axis to span zero; for axes of equal steps only.
    pub fn from_zero(self) -> Axis {
        Axis { from_zero: true, ..self }
    }

    /// Sets the range; an empty or infinite one is ignored.
    pub fn range(self, low: f64, high: f64) -> Axis {
        let is_one = self.shows(low) && self.shows(high) && low < high;
        Axis { range: is_one.then_some((low, high)), ..self }
    }

    /// Tells whether a value is within this axis.
    pub(super) fn shows(&self, value: f64) -> bool {
        let has_place = match self.scale {
            Scale::Linear => value.abs() <= HUGE,
            Scale::Log => (1.0 / HUGE..=HUGE).contains(&value),
            Scale::Nines => (0.0..=1.0).contains(&value),
        };
        has_place && self.range.is_none_or(|(low, high)| (low..=high).contains(&value))
    }

    /// The values with as many digits as an eye can tell apart on an axis that spans them.
    pub(super) fn shortened(&self, values: &[f64]) -> Vec<f64> {
        let finite = || values.iter().copied().filter(|v| v.is_finite());
        let (low, high) = finite().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)));
        let exponent = if high > low { (high - low).log10().floor() as i32 } else { 0 };
        let short = |v: f64| match self.scale {
            Scale::Log => format!("{v:.*e}", STEPS_DIGITS as usize).parse().unwrap_or(v),
            Scale::Nines => format!("{v:.9}").parse().unwrap_or(v),
            Scale::Linear if high <= low => v,
            Scale::Linear => rounded(v, STEPS_DIGITS - exponent),
        };
        values.iter().map(|&v| if v.is_finite() { short(v) } else { v }).collect()
    }

    /// Title with its unit.
    pub(super) fn title(&self) -> String {
        if self.unit.is_empty() {
            self.label.clone()
        } else {
            format!("{} ({})", self.label, self.unit)
        }
    }

    /// A value with its unit.
    pub(super) fn shown(&self, value: f64) -> String {
        if self.percent {
            return format!("{} %", number::significant(value * 100.0, 4));
        }
        let number = number::significant(value, 4);
        if self.unit.is_empty() { number } else { format!("{number} {}", self.unit) }
    }
}

/// Rounds to this number of decimals; a negative number rounds to tens, hundreds, and so on.
fn rounded(value: f64, decimals: i32) -> f64 {
    if let Ok(decimals) = usize::try_from(decimals) {
        return format!("{value:.*}", decimals.min(300)).parse().unwrap_or(value);
    }
    let step = 10f64.powi(-decimals);
    (value / step).round() * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_what_an_eye_can_tell_apart() {
        let short = |axis: Axis, values: &[f64]| axis.shortened(values);
        let time = short(Axis::time("", ""), &[0.0, 12.345_678_9, 60.0]);
        assert_eq!(time, [0.0, 12.346, 60.0]);
        let places = short(Axis::linear("", ""), &[1_283_234_567.0, 1_383_234_567.0]);
        assert_eq!(places, [1_283_230_000.0, 1_383_230_000.0]);
        assert_eq!(short(Axis::linear("", ""), &[0.123_456_789]), [0.123_456_789]);
        assert_eq!(short(Axis::log("", ""), &[0.123_456_789, 98_765.432_1]), [0.123_46, 98_765.0]);
        assert_eq!(short(Axis::nines("x"), &[0.999_95, 1.0]), [0.999_95, 1.0]);
    }

    #[test]
    fn a_range_that_is_none_is_ignored() {
        let axis = Axis::linear("", "").range(f64::NAN, 3.0);
        assert!(axis.shows(7.0) && !axis.shows(f64::INFINITY));
        assert!(!Axis::linear("", "").range(1.0, 3.0).shows(7.0));
        assert_eq!(Axis::log("", "").range(-1.0, 3.0), Axis::log("", ""));
    }
}
