//! A figure over several measurements.

use seekway_report::plot::Bar;
use serde::Serialize;

#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub largest: f64,
}

impl Spread {
    /// `None` of no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let (&least, &largest) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            (values[middle - 1] + values[middle]) / 2.0
        };
        Some(Spread { median, least, largest })
    }
}

impl From<Spread> for Bar {
    fn from(spread: Spread) -> Bar {
        Bar { value: spread.median, range: Some((spread.least, spread.largest)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_lies_in_the_middle() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]).expect("three").median, 2.0);
        let even = Spread::of([4.0, 1.0, 2.0, 3.0]).expect("four");
        assert_eq!((even.median, even.least, even.largest), (2.5, 1.0, 4.0));
        assert_eq!(Spread::of([]), None);
    }
}
