//! The web page's history: a thread that takes a report each second.
//!
//! With `--web` the history begins with the daemon. Without it, it begins when somebody first asks
//! for the page by the control socket, and ends when nobody has asked for a while: a daemon whose
//! page nobody looks at takes no reports.

use super::history::{History, Sample};
use super::report::{self, HostReport};
use crate::host::Host;
use crate::sandbox::{self, Kind};
use crate::threads::{STACK_BYTES, lock, spawn, whole};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

/// From one report to the next.
const PERIOD: Duration = Duration::from_secs(1);
/// Time for which a history is kept after the last request for it.
const UNSEEN: Duration = Duration::from_secs(600);
/// Longest wait of the first request for the first report.
const FIRST: Duration = Duration::from_secs(10);

/// The last report and the history before it.
pub struct Recorder {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// There is a report, or it is over.
    changed: Condvar,
}

struct State {
    history: History,
    report: Option<Arc<HostReport>>,
    /// Base of the next comparison: the last report, in which a device that did not answer keeps
    /// its earlier figures.
    base: Option<Arc<HostReport>>,
    looked: Instant,
    /// There is a thread.
    runs: bool,
    /// The thread ends when nobody looks.
    by_need: bool,
    over: bool,
}

impl State {
    fn empty() -> State {
        State {
            history: History::default(),
            report: None,
            base: None,
            looked: Instant::now(),
            runs: false,
            by_need: true,
            over: false,
        }
    }

    fn record(&mut self, now: HostReport) {
        let now = Arc::new(now);
        let mut base = now.clone();
        if let Some(before) = &self.base {
            self.history.push(Sample::between(before, &now));
            let unheard = before.devices.iter().filter(|d| now.silent.contains(&d.name));
            let unheard: Vec<_> = unheard.cloned().collect();
            if !unheard.is_empty() {
                Arc::make_mut(&mut base).devices.extend(unheard);
            }
        }
        self.base = Some(base);
        self.report = Some(now);
    }
}

impl Recorder {
    /// One that begins with its first [`look`](Recorder::look).
    pub fn by_need() -> Recorder {
        let shared = Shared { state: Mutex::new(State::empty()), changed: Condvar::new() };
        Recorder { shared: Arc::new(shared) }
    }

    /// Begin now, and go on whether or not somebody looks.
    ///
    /// # Errors
    /// When there are no threads left.
    pub fn begin(&self, host: &Arc<Host>) -> std::io::Result<()> {
        let mut state = lock(&self.shared.state);
        state.by_need = false;
        self.run(&mut state, host)
    }

    fn run(&self, state: &mut State, host: &Arc<Host>) -> std::io::Result<()> {
        if state.runs || state.over {
            return Ok(());
        }
        let (shared, host) = (self.shared.clone(), Arc::downgrade(host));
        spawn("history", STACK_BYTES, move || {
            sandbox::enter(Kind::Helper);
            shared.record_each_second(&host);
        })?;
        state.runs = true;
        Ok(())
    }

    /// Calls `read` with the last report and the history. Nothing is recorded meanwhile.
    ///
    /// # Errors
    /// A sentence when there is no report.
    pub(super) fn look<T>(
        &self,
        host: &Arc<Host>,
        read: impl FnOnce(&HostReport, &History) -> T,
    ) -> Result<T, String> {
        let until = Instant::now() + FIRST;
        let mut state = lock(&self.shared.state);
        state.looked = Instant::now();
        self.run(&mut state, host).map_err(|e| format!("no thread for the history: {e}"))?;
        loop {
            if let Some(report) = &state.report {
                return Ok(read(report, &state.history));
            }
            let left = until.saturating_duration_since(Instant::now());
            if state.over || left.is_zero() {
                return Err("there is no report yet".into());
            }
            state = whole(self.shared.changed.wait_timeout(state, left)).0;
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        lock(&self.shared.state).over = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn record_each_second(&self, host: &Weak<Host>) {
        let mut due = Instant::now();
        loop {
            let Some(report) = host.upgrade().map(|host| report::report(&host)) else { return };
            let mut state = lock(&self.state);
            state.record(report);
            self.changed.notify_all();
            // A device that does not answer makes a report late: no two in a hurry then.
            due = (due + PERIOD).max(Instant::now());
            loop {
                let left = due.saturating_duration_since(Instant::now());
                if state.over || left.is_zero() {
                    break;
                }
                state = whole(self.changed.wait_timeout(state, left)).0;
            }
            let is_unseen = state.by_need && state.looked.elapsed() > UNSEEN;
            if state.over || is_unseen {
                state.runs = false;
                (state.report, state.base) = (None, None);
                state.history = History::default();
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A report at this uptime; with a device that has done this number of commands, or is silent.
    fn report(uptime_s: f64, commands: Option<u64>) -> HostReport {
        let device = commands.map(|commands| {
            json!({
                "name": "sda", "time_s": uptime_s, "policy": "noop", "depth": 1, "in_flight": 0,
                "outstanding": 0, "requests": 0, "commands": commands, "forced": 0, "held_ms": {},
                "waits_tried": 0, "waits_paid": 0,
                "served": { "commands": 0, "service_ms": 0.0, "service_from_dispatch_ms": 0.0 },
                "fairness": { "interval_s": 10.0, "busy_disks": 0 },
                "policy_metrics": {}, "disks": [],
            })
        });
        let silent: &[&str] = if device.is_some() { &[] } else { &["sda"] };
        let devices: Vec<_> = device.into_iter().collect();
        let report = json!({
            "version": "1", "process": 1, "uptime_s": uptime_s, "sockets": [],
            "devices": devices, "silent": silent,
        });
        serde_json::from_value(report).unwrap()
    }

    #[test]
    fn a_device_that_was_silent_is_compared_with_what_it_said_last() {
        let mut state = State::empty();
        for (second, commands) in [(1.0, Some(100)), (2.0, None), (4.0, None), (5.0, Some(103))] {
            state.record(report(second, commands));
        }
        let commands: Vec<Option<u64>> =
            state.history.recent.iter().map(|s| s.devices.first().map(|d| d.commands)).collect();
        assert_eq!(commands, [None, None, Some(3)], "not 103, which is all since its start");
        assert!(state.report.unwrap().silent.is_empty());
    }
}
