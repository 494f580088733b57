//! When which mask stood on a task: a child has the mask that its parent had when it was
//! started, and that is how one that was set here is told from one that somebody chose.

use super::BootTime;
use seekway_policy::vcpu::VcpuSet;
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

/// As far back as a child is looked at late.
const GIVEN_MAX: usize = 32;

/// The masks that were set on a task, the latest last.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Given(VecDeque<(BootTime, VcpuSet)>);

impl Given {
    /// This is about to be set.
    pub fn push(&mut self, now: BootTime, mask: VcpuSet) {
        if self.0.len() == GIVEN_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, mask));
    }

    /// May this mask have stood there at some time from `from` to `to`? A mask stands
    /// from when it is about to be set until the one after the next is: how long a call
    /// took is not known.
    pub fn stood(&self, mask: &VcpuSet, from: BootTime, to: BootTime) -> bool {
        let until = |n: usize| self.0.get(n + 2).map(|(at, _)| *at);
        self.0.iter().enumerate().any(|(n, (at, given))| {
            given == mask && *at <= to && until(n).is_none_or(|end| end >= from)
        })
    }

    /// Was nothing ever set?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The latest `n` of them, to be written down.
    pub fn latest(&self, n: usize) -> Given {
        Given(self.0.iter().skip(self.0.len().saturating_sub(n)).copied().collect())
    }
}

/// `TIME@LIST`, one after the other.
impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.iter().map(|(at, mask)| format!("{}@{mask}", at.0));
        f.write_str(&text.collect::<Vec<_>>().join(" "))
    }
}

/// As it is written.
///
/// # Errors
/// Says what was expected.
impl FromStr for Given {
    type Err = String;

    fn from_str(text: &str) -> Result<Given, String> {
        let read = |part: &str| {
            let (at, mask) = part.split_once('@')?;
            Some((BootTime(at.parse().ok()?), mask.parse().ok()?))
        };
        let parts = text.split_ascii_whitespace().map(|part| {
            read(part).ok_or_else(|| "expected TIME@CPUS for each mask that was set".to_string())
        });
        parts.collect::<Result<_, _>>().map(Given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> VcpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn a_mask_stands_from_before_it_is_set_until_the_one_after_the_next() {
        let mut given = Given::default();
        for (at, mask) in [(10, "1"), (20, "2"), (30, "1-2"), (40, "3")] {
            given.push(BootTime(at), set(mask));
        }
        let stood = |mask: &str, from, to| given.stood(&set(mask), BootTime(from), BootTime(to));
        assert!(!stood("1", 0, 9));
        assert!(stood("1", 0, 10) && stood("1", 30, 30) && !stood("1", 31, 40));
        assert!(stood("2", 15, 25) && !stood("2", 0, 19) && !stood("2", 41, 50));
        assert!(stood("3", 1000, 1001), "the last one stands still");
        assert!(!stood("0", 0, 1000), "never set");
    }

    #[test]
    fn it_is_read_as_it_is_written_and_bounded() {
        let mut given = Given::default();
        (0..100).for_each(|n| given.push(BootTime(n), set("0-2,5")));
        assert_eq!(given.0.len(), GIVEN_MAX);
        assert_eq!(given.to_string().parse(), Ok(given.clone()));
        assert_eq!(given.latest(2).to_string(), "98@0-2,5 99@0-2,5");
        assert_eq!("".parse(), Ok(Given::default()));
        for bad in ["1", "x@1", "1@x", "1@1 2"] {
            assert!(bad.parse::<Given>().is_err(), "{bad}");
        }
    }
}
