//! Control of k by the times of the real device.
//!
//! A command that took the real device A from dispatch and the model M (in the
//! model's own time, queueing in the model included) would have come in time
//! with any k of at least A/M: its *need*, which does not depend on k. Commands
//! are looked at in windows of 64. A window's need is the least that all but
//! three of its commands keep below. Single outliers (a pause of the real
//! device for a few commands) do not count.
//!
//! - **Up**: a window's need is above k, that is, four or more of 64 commands
//!   came late. k becomes a tenth more than the need, at most twice what it was.
//! - **Down**: for eight windows in a row, the need is below two thirds of k:
//!   completions queue up for their targets with slack to spare. k becomes a
//!   fifth more than the largest need of those windows, at least half of what
//!   it was, never below 1.
//!
//! Between two thirds of k and k nothing changes, and what either rule arrives
//! at lies in there; so a steady device gives a steady k. A change begins new
//! windows.

use super::Factor;
use seekway_core::units::Nanos;

/// Commands in a window.
const WINDOW: usize = 64;
/// Commands of a window whose need is not looked at.
const OUTLIERS: usize = 3;
/// Windows with slack before k is lowered.
const CALM_WINDOWS: u32 = 8;
/// The least modelled time that a need is reckoned from: below, it says more
/// of the clock than of the device.
const MODEL_LEAST: Nanos = Nanos::from_micros(1);

/// Times of a command, from dispatch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub real: Nanos,
    /// The model, in its own time.
    pub model: Nanos,
}

/// The state of the rule.
#[derive(Clone, Debug)]
pub(super) struct AutoScale {
    /// Needs of this window, in thousandths; those below 1 tell when k can be 1.
    needs: Vec<u64>,
    /// Windows in a row with slack.
    calm: u32,
    /// The largest need of those windows, in thousandths.
    calm_need: u64,
}

impl AutoScale {
    pub fn new() -> AutoScale {
        AutoScale { needs: Vec::with_capacity(WINDOW), calm: 0, calm_need: 0 }
    }

    /// One more command is done in both worlds. The new k and why, when it changes.
    pub fn observe(&mut self, k: Factor, sample: Sample) -> Option<(Factor, &'static str)> {
        self.needs.push(sample.need());
        if self.needs.len() < WINDOW {
            return None;
        }
        let (_, &mut need, _) = self.needs.select_nth_unstable(WINDOW - 1 - OUTLIERS);
        self.needs.clear();
        let now = k.thousandths();
        if need > now {
            self.calm = 0;
            let raised = tenths(need, 11).min(2 * now);
            return changed(k, raised, "late completions");
        }
        if tenths(need, 15) >= now {
            self.calm = 0;
            return None;
        }
        self.calm_need = if self.calm == 0 { need } else { self.calm_need.max(need) };
        self.calm += 1;
        if self.calm < CALM_WINDOWS {
            return None;
        }
        self.calm = 0;
        let lowered = tenths(self.calm_need, 12).max(now / 2);
        changed(k, lowered, "slack to spare")
    }
}

impl Sample {
    /// The k with which it would have come in time, in thousandths, rounded up.
    fn need(self) -> u64 {
        let model = u128::from(self.model.max(MODEL_LEAST).get());
        let need = (u128::from(self.real.get()) * 1000).div_ceil(model);
        u64::try_from(need).unwrap_or(u64::MAX)
    }
}

/// This number of tenths of a need, rounded up.
fn tenths(need: u64, tenths: u64) -> u64 {
    need.saturating_mul(tenths).div_ceil(10)
}

fn changed(k: Factor, thousandths: u64, why: &'static str) -> Option<(Factor, &'static str)> {
    let to = Factor::from_thousandths(thousandths);
    (to != k).then_some((to, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feed commands of which the real device takes these milliseconds, the
    /// model 10; k after each change.
    fn run(start: f64, real_ms: impl Iterator<Item = u64>) -> Vec<f64> {
        let (mut auto, mut k, mut changes) = (AutoScale::new(), Factor::nearest(start), Vec::new());
        for ms in real_ms {
            let sample = Sample { real: Nanos::from_millis(ms), model: Nanos::from_millis(10) };
            if let Some((to, why)) = auto.observe(k, sample) {
                assert_eq!(why == "late completions", to > k);
                k = to;
                changes.push(k.as_f64());
            }
        }
        changes
    }

    fn steady(ms: u64, windows: usize) -> impl Iterator<Item = u64> {
        std::iter::repeat_n(ms, WINDOW * windows)
    }

    #[test]
    fn late_completions_raise_step_by_step() {
        assert_eq!(run(1.0, steady(50, 10)), [2.0, 4.0, 5.5]);
        assert_eq!(run(1.0, steady(11, 10)), [1.21]);
        assert_eq!(run(1.0, steady(10, 10)), [0f64; 0], "just in time");
        assert_eq!(run(1.0, steady(100_000, 20)).last(), Some(&1000.0), "no further");
    }

    #[test]
    fn slack_lowers_after_a_while_and_never_below_one() {
        assert_eq!(run(8.0, steady(1, 7)), [0f64; 0], "not yet");
        assert_eq!(run(8.0, steady(1, 100)), [4.0, 2.0, 1.0]);
        assert_eq!(run(8.0, steady(40, 100)), [4.8]);
        assert_eq!(run(8.0, steady(60, 100)), [0f64; 0], "no slack to speak of");
        assert_eq!(run(1.0, steady(0, 100)), [0f64; 0]);
    }

    #[test]
    fn outliers_do_not_count() {
        let with = |outliers| {
            let window = (0..WINDOW).map(move |n| if n < outliers { 5000 } else { 5 });
            run(1.0, window.cycle().take(WINDOW * 10))
        };
        assert_eq!(with(OUTLIERS), [0f64; 0]);
        assert_eq!(with(OUTLIERS + 1)[0], 2.0);
    }

    proptest! {
        /// Whatever the device's times, as long as they stay what they are,
        /// k comes to rest.
        #[test]
        fn a_steady_device_gives_a_steady_k(
            start in 1.0f64..100.0,
            window in proptest::collection::vec(0u64..500, WINDOW),
        ) {
            let changes = run(start, window.into_iter().cycle().take(WINDOW * 400));
            prop_assert!(changes.len() <= 12, "{:?}", changes);
        }
    }
}
