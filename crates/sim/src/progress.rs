//! Progress: a VM's rate over that on its private disk, which is as many times slower as there are
//! VMs.

/// A VM has as much as it asks for from this part of it on.
const RATE_REACHED: f64 = 0.98;

/// Has a VM as much as it asks for?
pub fn reaches(got: f64, asked: f64) -> bool {
    got >= RATE_REACHED * asked
}

/// Computes a VM's progress from its rate and that on its private disk; at least 1 if it has as
/// much as it asks for. `None`: on its private disk it moves nothing.
pub fn progress(got: f64, private: f64, reached: bool) -> Option<f64> {
    let progress = (private > 0.0).then(|| got / private)?;
    Some(if reached { progress.max(1.0) } else { progress })
}

/// The geometric mean; `None` of nothing.
pub fn geometric_mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let logs: Vec<f64> = values.into_iter().map(f64::ln).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_what_it_asks_for_has_at_least_its_private_disk() {
        assert!(reaches(1.96, 2.0) && !reaches(1.95, 2.0));
        assert_eq!(progress(3.0, 2.0, false), Some(1.5));
        assert_eq!(progress(1.0, 2.0, false), Some(0.5));
        assert_eq!(progress(1.96, 2.0, true), Some(1.0));
        assert_eq!(progress(4.0, 2.0, true), Some(2.0));
        assert_eq!(progress(4.0, 0.0, true), None);
    }

    #[test]
    fn a_half_and_a_double_are_one() {
        assert_eq!(geometric_mean([0.5, 2.0]), Some(1.0));
        assert_eq!(geometric_mean([]), None);
        assert_eq!(geometric_mean([0.0, 2.0]), Some(0.0));
    }
}
