//! The masks that the agent set on a task, with their times. A child has its parent's mask of the
//! time of its start: the history tells an inherited mask from one that somebody chose.

use super::BootTime;
use seekway_vcpu::VcpuSet;
use std::fmt;
use std::str::FromStr;

/// The most masks of one task; those that ended first are forgotten first.
const MASKS_MAX: usize = 32;
/// Shortest time that queries can tell apart: the same mask twice within it is one entry.
pub const LEAST_ASKED_NS: u64 = 100_000_000;

/// One mask: from when it was about to be set until it was known to be replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stand {
    mask: VcpuSet,
    from: BootTime,
    /// `None`: the mask is still set.
    until: Option<BootTime>,
}

/// The masks that were set on a task.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MaskHistory(Vec<Stand>);

impl MaskHistory {
    /// This is about to be set.
    pub fn begin(&mut self, now: BootTime, mask: VcpuSet) {
        let recent = |stand: &Stand| {
            stand.until.is_none_or(|until| now.0.saturating_sub(until.0) < LEAST_ASKED_NS)
        };
        match self.0.iter_mut().find(|stand| stand.mask == mask && recent(stand)) {
            Some(stand) => stand.until = None,
            None => {
                if self.0.len() == MASKS_MAX {
                    self.forget_one();
                }
                self.0.push(Stand { mask, from: now, until: None });
            }
        }
    }

    /// Ends a change: `standing` is the mask now, and all others have ended.
    pub fn settle(&mut self, now: BootTime, standing: &VcpuSet) {
        let others = self.0.iter_mut().filter(|stand| stand.mask != *standing);
        others.for_each(|stand| stand.until = stand.until.or(Some(now)));
    }

    /// May this mask have stood there at some time from `from` to `to`?
    pub fn stood(&self, mask: &VcpuSet, from: BootTime, to: BootTime) -> bool {
        self.during(from, to).any(|stand| stand.mask == *mask)
    }

    /// Masks that a child which was started between `from` and `to` and has ended may have had, and
    /// handed on.
    pub fn handed_on(&self, from: BootTime, to: BootTime) -> MaskHistory {
        let stands = self.during(from, to);
        MaskHistory(stands.map(|stand| Stand { from, until: None, ..*stand }).collect())
    }

    /// Was nothing ever set?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets masks that ended before `time`.
    pub fn forget_before(&mut self, time: BootTime) {
        self.0.retain(|stand| stand.until.is_none_or(|until| until >= time));
    }

    /// At most `n` of them, without those that ended first: to be written down.
    pub fn latest(&self, n: usize) -> MaskHistory {
        let mut latest = self.clone();
        while latest.0.len() > n {
            latest.forget_one();
        }
        latest
    }

    fn during(&self, from: BootTime, to: BootTime) -> impl Iterator<Item = &Stand> {
        let stood =
            move |stand: &&Stand| stand.from <= to && stand.until.is_none_or(|until| until >= from);
        self.0.iter().filter(stood)
    }

    fn forget_one(&mut self) {
        let ended = |stand: &Stand| stand.until.unwrap_or(BootTime(u64::MAX));
        let first = (0..self.0.len()).min_by_key(|&n| ended(&self.0[n]));
        first.map(|n| self.0.remove(n));
    }
}

/// `FROM-UNTIL@LIST`, one after the other; no `UNTIL` for a mask that is still set.
impl fmt::Display for MaskHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.iter().map(|Stand { mask, from, until }| {
            let until = until.map_or(String::new(), |until| until.0.to_string());
            format!("{}-{until}@{mask}", from.0)
        });
        f.write_str(&text.collect::<Vec<_>>().join(" "))
    }
}

/// As it is written.
///
/// # Errors
/// Says what is expected.
impl FromStr for MaskHistory {
    type Err = String;

    fn from_str(text: &str) -> Result<MaskHistory, String> {
        let read = |part: &str| {
            let (times, mask) = part.split_once('@')?;
            let (from, until) = times.split_once('-')?;
            let time = |text: &str| text.parse().ok().map(BootTime);
            let until = if until.is_empty() { None } else { Some(time(until)?) };
            Some(Stand { mask: mask.parse().ok()?, from: time(from)?, until })
        };
        let parts = text.split_ascii_whitespace().map(|part| {
            read(part).ok_or_else(|| "expected FROM-UNTIL@CPUS for each mask".to_string())
        });
        parts.collect::<Result<_, _>>().map(MaskHistory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> VcpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn a_mask_stands_from_before_it_is_set_until_another_was_set() {
        let mut history = MaskHistory::default();
        for (n, mask) in [(10, "1"), (20, "2"), (30, "3")] {
            history.begin(BootTime(n), set(mask));
            history.settle(BootTime(n + 5), &set(mask));
        }
        let stood = |history: &MaskHistory, mask: &str, from, to| {
            history.stood(&set(mask), BootTime(from), BootTime(to))
        };
        assert!(!stood(&history, "1", 0, 9));
        assert!(stood(&history, "1", 0, 10) && stood(&history, "1", 25, 30));
        assert!(!stood(&history, "1", 26, 40), "the next one had been set by then");
        assert!(stood(&history, "3", 1000, 1001), "the last one stands still");
        assert!(!stood(&history, "0", 0, 1000), "never set");
        // It was given back.
        history.settle(BootTime(50), &set("0-3"));
        assert!(stood(&history, "3", 50, 60) && !stood(&history, "3", 51, 60));
        assert_eq!(history.handed_on(BootTime(28), BootTime(45)).to_string(), "28-@2 28-@3");
    }

    #[test]
    fn a_mask_that_comes_and_goes_is_one_entry_unless_long_between() {
        let mut history = MaskHistory::default();
        for n in 0..1000 {
            let mask = set(["1", "2"][n as usize % 2]);
            history.begin(BootTime(n), mask);
            history.settle(BootTime(n), &mask);
        }
        assert_eq!(history.to_string(), "0-999@1 1-@2");
        history.begin(BootTime(999 + LEAST_ASKED_NS), set("1"));
        assert_eq!(history.0.len(), 3);
        history.forget_before(BootTime(1000));
        assert_eq!(history.0.len(), 2);
    }

    #[test]
    fn it_is_read_as_it_is_written_and_bounded() {
        let mut history = MaskHistory::default();
        for n in 0..100 {
            let mask = set(&n.to_string());
            history.begin(BootTime(n), mask);
            history.settle(BootTime(n), &mask);
        }
        assert_eq!(history.0.len(), MASKS_MAX);
        assert_eq!(history.to_string().parse(), Ok(history.clone()));
        assert_eq!(history.latest(2).to_string(), "98-99@98 99-@99");
        assert_eq!("".parse(), Ok(MaskHistory::default()));
        for bad in ["1", "1@1", "x-@1", "1-x@1", "1-@x", "1-@1 2"] {
            assert!(bad.parse::<MaskHistory>().is_err(), "{bad}");
        }
    }
}
