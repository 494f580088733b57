//! Time for which the device had room and was not given the work that was queued, by cause, and
//! whether it paid.

use seekway_core::request::Request;
use seekway_core::units::{Instant, Nanos};

/// Time withheld and what came of it. A *hold* begins when the policy holds
/// back queued work while the device is idle, and ends with the next dispatch.
/// It has *paid* when what is dispatched arrived during the hold and before
/// its time was over. A *wait for a completion* withholds work from a device
/// that is at work and has room; it is in `held` alone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HoldStats {
    /// Device time withheld by cause.
    pub held: Withheld,
    /// The part of it in which the device was idle: the time of the holds.
    pub idle: Nanos,
    /// Holds that have begun, paid or not.
    pub tried: u64,
    /// Holds that have ended and paid; at most `tried`.
    pub paid: u64,
}

/// Time withheld by cause: only causes that have occurred, sorted by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Withheld {
    causes: Vec<(&'static str, Cause)>,
}

/// Time that one cause has withheld.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cause {
    /// For how long in all.
    pub time: Nanos,
    /// Number of times that it began to.
    pub count: u64,
}

impl Withheld {
    /// The time of a cause; zero if it has not occurred.
    pub fn time(&self, cause: &str) -> Nanos {
        self.get(cause).time
    }
    /// Time that a cause has withheld; nothing if it has not occurred.
    pub fn get(&self, cause: &str) -> Cause {
        let found = self.causes.iter().find(|(name, _)| *name == cause);
        found.map_or(Cause::default(), |&(_, cause)| cause)
    }
    /// The causes that have occurred, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Cause)> + '_ {
        self.causes.iter().copied()
    }
    /// Count more of a cause.
    pub fn add(&mut self, cause: &'static str, more: Cause) {
        let at = match self.causes.binary_search_by_key(&cause, |&(name, _)| name) {
            Ok(at) => at,
            Err(at) => {
                self.causes.insert(at, (cause, Cause::default()));
                at
            }
        };
        let of = &mut self.causes[at].1;
        of.time += more.time;
        of.count += more.count;
    }
    /// Times withheld after `earlier`, an earlier state of this.
    pub fn since<'a>(
        &'a self,
        earlier: &'a Withheld,
    ) -> impl Iterator<Item = (&'static str, Cause)> + 'a {
        self.iter().map(|(name, now)| {
            let before = earlier.get(name);
            let time = now.time.saturating_sub(before.time);
            (name, Cause { time, count: now.count - before.count })
        })
    }
    fn begin(&mut self, cause: &'static str) {
        self.add(cause, Cause { time: Nanos::ZERO, count: 1 });
    }
    fn lasted(&mut self, cause: &'static str, time: Nanos) {
        self.add(cause, Cause { time, count: 0 });
    }
}

/// The hold in force, if any.
#[derive(Default)]
pub(super) struct Holds {
    pub(super) stats: HoldStats,
    current: Option<Current>,
}

struct Current {
    /// Up to when `stats.held` has been counted.
    counted: Instant,
    why: &'static str,
    /// When it began and when it ends, if the device is idle; `None` while
    /// a completion is waited for.
    hold: Option<(Instant, Instant)>,
}

impl Holds {
    /// The policy holds an idle device.
    pub(super) fn hold(&mut self, now: Instant, until: Instant, why: &'static str) {
        match &mut self.current {
            Some(Current { counted, why: before, hold: Some((_, end)) }) => {
                self.stats.held.lasted(before, now.since(*counted));
                self.stats.idle += now.since(*counted);
                (*counted, *end, *before) = (now, until, why);
            }
            _ => {
                self.end(now, None);
                self.stats.tried += 1;
                self.stats.held.begin(why);
                self.current = Some(Current { counted: now, why, hold: Some((now, until)) });
            }
        }
    }

    /// The policy waits for a completion.
    pub(super) fn wait(&mut self, now: Instant, why: &'static str) {
        match &mut self.current {
            Some(Current { counted, why: before, hold: None }) if *before == why => {
                self.stats.held.lasted(why, now.since(*counted));
                *counted = now;
            }
            _ => {
                self.end(now, None);
                self.stats.held.begin(why);
                self.current = Some(Current { counted: now, why, hold: None });
            }
        }
    }

    /// Ends the hold in force, if any, with this dispatch or with nothing.
    pub(super) fn end(&mut self, now: Instant, dispatched: Option<&Request>) {
        let Some(Current { counted, why, hold }) = self.current.take() else { return };
        self.stats.held.lasted(why, now.since(counted));
        let Some((began, until)) = hold else { return };
        self.stats.idle += now.since(counted);
        let paid = dispatched.is_some_and(|r| r.arrived > began && now <= until);
        self.stats.paid += paid as u64;
    }
}
