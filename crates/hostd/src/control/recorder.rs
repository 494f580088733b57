//! What the web page shows has a history: a thread that takes a report each second.
//!
//! With `--web` the history begins with the daemon. Without it, it begins when somebody first asks
//! for the page by the control socket, and ends when nobody has asked for a while: a daemon whose
//! page nobody looks at takes no reports.

use super::history::{History, Sample};
use super::report::{self, HostReport};
use crate::daemon::Host;
use crate::sandbox::{self, Kind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// From one report to the next.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a history that nobody asks for is kept on.
const UNSEEN: Duration = Duration::from_secs(600);
/// How long whoever asks first waits for the first report.
const FIRST: Duration = Duration::from_secs(10);
/// Stack of the thread.
const STACK_BYTES: usize = 256 << 10;

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
    /// What the next report is compared with: the last one, and of devices that did not answer
    /// then what they said before.
    base: Option<Arc<HostReport>>,
    looked: Instant,
    /// There is a thread.
    runs: bool,
    /// It ends when nobody looks.
    by_need: bool,
    over: bool,
}

impl State {
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
        let state = State {
            history: History::default(),
            report: None,
            base: None,
            looked: Instant::now(),
            runs: false,
            by_need: true,
            over: false,
        };
        let shared = Shared { state: Mutex::new(state), changed: Condvar::new() };
        Recorder { shared: Arc::new(shared) }
    }

    /// Begin now, and go on whether or not somebody looks.
    ///
    /// # Errors
    /// When there are no threads left.
    pub fn begin(&self, host: &Arc<Host>) -> std::io::Result<()> {
        let mut state = self.shared.lock();
        state.by_need = false;
        self.run(&mut state, host)
    }

    fn run(&self, state: &mut State, host: &Arc<Host>) -> std::io::Result<()> {
        if state.runs || state.over {
            return Ok(());
        }
        let (shared, host) = (self.shared.clone(), Arc::downgrade(host));
        let thread = Builder::new().name("history".into()).stack_size(STACK_BYTES);
        thread.spawn(move || {
            sandbox::enter(Kind::Helper);
            shared.record_each_second(&host);
        })?;
        state.runs = true;
        Ok(())
    }

    /// What `read` makes of the last report and the history. Nothing is recorded meanwhile.
    ///
    /// # Errors
    /// A sentence when there is no report.
    pub(super) fn look<T>(
        &self,
        host: &Arc<Host>,
        read: impl FnOnce(&HostReport, &History) -> T,
    ) -> Result<T, String> {
        let until = Instant::now() + FIRST;
        let mut state = self.shared.lock();
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
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_each_second(&self, host: &Weak<Host>) {
        let mut due = Instant::now();
        loop {
            let Some(report) = host.upgrade().map(|host| report::report(&host)) else { return };
            let mut state = self.lock();
            state.record(report);
            self.changed.notify_all();
            // A device that does not answer makes a report late: no two in a hurry then.
            due = (due + PERIOD).max(Instant::now());
            loop {
                let left = due.saturating_duration_since(Instant::now());
                if state.over || left.is_zero() {
                    break;
                }
                let waited = self.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
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
