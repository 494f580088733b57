//! The service manager's watchdog (`WatchdogSec=`, sd_watchdog_enabled(3)): it hears from us as long
//! as every reactor turns. One that stands still keeps its device's guests waiting for ever; the
//! service manager then starts the daemon again, which takes up what was in flight.

use super::systemd::{NotifyState, notify};
use crate::reactor::Handle;
use std::time::{Duration, Instant};

/// So often in the time after which the service manager loses patience.
const LOOKS: u32 = 4;

pub(super) struct Watchdog {
    pause: Duration,
    next: Instant,
    progress: Progress,
}

impl Watchdog {
    /// `None` when the service manager does not ask for it.
    pub fn start() -> Option<Watchdog> {
        let pause = sd_notify::watchdog_enabled()? / LOOKS;
        Some(Watchdog { pause, next: Instant::now(), progress: Progress::default() })
    }

    /// Look at the reactors when it is time to: after how many milliseconds to come again.
    pub fn look(&mut self, reactors: impl Iterator<Item = Handle>) -> i32 {
        let now = Instant::now();
        if now >= self.next {
            self.next = now + self.pause;
            if self.progress.look(reactors) {
                let _ = notify(&[NotifyState::Watchdog]); // it is said again soon
            }
        }
        // Rounded up: not before it is time.
        let left = self.next.saturating_duration_since(now).as_millis() + 1;
        i32::try_from(left).unwrap_or(i32::MAX)
    }
}

/// The reactors, and how many turns each had made when they were last looked at.
#[derive(Default)]
struct Progress(Vec<(Handle, u64)>);

impl Progress {
    /// Has every reactor turned since the last look? Asks each to turn until the next one.
    fn look(&mut self, reactors: impl Iterator<Item = Handle>) -> bool {
        let all = self.0.iter().all(|(handle, turns)| handle.turns() != *turns);
        let asked = reactors.map(|handle| {
            // Before it is asked: what it does then counts.
            let turns = handle.turns();
            handle.nudge();
            (handle, turns)
        });
        self.0 = asked.collect();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_reactor_that_stands_still_is_enough() {
        let (one, _mailbox) = Handle::new().unwrap();
        let (two, _mailbox) = Handle::new().unwrap();
        let mut progress = Progress::default();
        let mut look = || progress.look([one.clone(), two.clone()].into_iter());
        assert!(look(), "nothing was asked for before");
        one.turned();
        two.turned();
        assert!(look());
        one.turned();
        assert!(!look());
        one.turned();
        assert!(!look(), "it stands still since");
        one.turned();
        two.turned();
        assert!(look());
    }
}
