//! The service manager's watchdog (`WatchdogSec=`, sd_watchdog_enabled(3)): it hears from us as long
//! as every reactor turns. One that stands still keeps its device's guests waiting for ever; the
//! service manager then starts the daemon again, which takes up what was in flight.

pub use sd_notify::{NotifyState, notify};

use crate::host::{Inherited, Listener, SocketError, inherit};
use crate::reactor::Handle;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Number of looks in the time after which the service manager loses patience.
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

// Sockets that a service manager opened for the daemon (sd_listen_fds(3)). The crate `sd-notify` sends
// the daemon's messages to it (sd_notify(3)).

/// Sockets that the service manager opened, by their names (`web.vhost`,
/// `control.sock`, …). Call it once, before anything else has been opened.
///
/// # Errors
/// [`SocketError`]: the variables are broken, or name a descriptor that is no socket that
/// listens.
pub fn activated() -> Result<BTreeMap<String, Listener>, SocketError> {
    let mut found = BTreeMap::new();
    // None are for this process when they were meant for the one that started it. Names are not
    // looked at then: there would be more of them than descriptors, which is an error.
    if sd_notify::listen_fds().map_err(SocketError::Activation)?.len() == 0 {
        return Ok(found);
    }
    for (fd, name) in sd_notify::listen_fds_with_names().map_err(SocketError::Activation)? {
        match inherit(fd)? {
            Inherited::Listener(listener) => {
                if found.insert(name, listener).is_some() {
                    return Err(SocketError::Descriptor(fd, "has the name of another one"));
                }
            }
            Inherited::Connected(_) => {
                return Err(SocketError::Descriptor(fd, "does not listen (Accept=no is needed)"));
            }
        }
    }
    Ok(found)
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
