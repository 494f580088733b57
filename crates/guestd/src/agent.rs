//! `seekway-guest tag`: the loop around the tagger.

use crate::args::{Format, TagArgs};
use crate::connector::Connector;
use crate::events::Event;
use crate::pace::Pace;
use crate::restore::{Outcome, restore};
use crate::signals::Signals;
use crate::state::{State, StateError, StateFile, share_a_file, write_whole};
use crate::system::{Linux, System};
use crate::tagger::{Change, Selection, Tagger};
use crate::{kernel, procfs, say};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Why `tag` does not start on an old kernel.
const NO_HINTS: &str = "this kernel takes no hints in I/O priorities, and tags are hints: run \
                        Linux 6.5 or later, or Debian 12's 6.1.192-1 or later";

/// Said by both agents.
pub const EVENTS_BROKE_OFF: &str = "the kernel's process events broke off: polling goes on";

/// Why the agent ended other than by a signal.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// About the state's file.
    #[error(transparent)]
    State(#[from] StateError),
    /// A call to the system.
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    /// A usage error.
    #[error("{0}")]
    Usage(String),
}

impl AgentError {
    /// The program's exit status: 2 for a failure that stays until somebody acts, 1 for one that
    /// may pass.
    pub fn exit_status(&self) -> u8 {
        match self {
            AgentError::Usage(_)
            | AgentError::State(StateError::Locked { .. } | StateError::Broken { .. }) => 2,
            AgentError::State(StateError::Io { .. }) | AgentError::Io { .. } => 1,
        }
    }
}

/// Makes an I/O error, with what was tried.
pub fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> AgentError {
    let what = what.into();
    move |source| AgentError::Io { what, source }
}

/// Says events on standard output, and warnings on standard error.
#[derive(Clone, Copy, Debug)]
pub struct Voice {
    /// Say every event; otherwise warnings only.
    pub verbose: bool,
    pub format: Format,
}

impl Voice {
    /// Prints the event, if this format shows it.
    pub fn say(self, event: &Event) {
        let line = match self.format {
            Format::Text => event.to_string(),
            Format::Json => serde_json::to_string(event).expect("strings and numbers"),
        };
        if event.is_warning() {
            say::warn(&line);
        } else if self.verbose {
            say::say(&mut io::stdout(), &line);
        }
    }

    /// Something that the user has to know.
    pub fn warn(self, message: impl Into<String>) {
        self.say(&Event::Warning { message: message.into() });
    }
}

/// Puts back an earlier agent's changes, if there are some. The caller holds the state's lock.
/// Changes that cannot be put back stay in the file.
///
/// # Errors
/// The state cannot be read, written or removed, or processes cannot be listed.
pub fn put_back(
    system: &impl System,
    file: &StateFile,
    voice: Voice,
) -> Result<Option<Outcome>, AgentError> {
    // Threads of another boot are not these.
    let Some(state) = file.load()?.filter(|state: &State| state.boot == procfs::boot_id()) else {
        file.remove()?;
        return Ok(None);
    };
    let outcome = restore(system, &state).map_err(failed("list /proc"))?;
    voice.say(&outcome.event);
    if outcome.unfinished {
        voice.warn(
            "threads that have tags start others faster than these can be found: run \
             `seekway-guest restore` when that is over",
        );
    }
    file.keep(outcome.left.as_ref())?;
    Ok(Some(outcome))
}

/// Refuses a status file at a path that the state needs.
///
/// # Errors
/// [`AgentError::Usage`].
pub fn check_place(status: &Path, state: &Path) -> Result<(), AgentError> {
    if !share_a_file(status, state) {
        return Ok(());
    }
    Err(AgentError::Usage(format!(
        "--status {} is where the state or its lock is: choose another file",
        status.display()
    )))
}

/// Run until a signal comes; then put all priorities back.
///
/// # Errors
/// Anything that keeps it from starting, or from writing down a change before it is made.
/// Priorities are put back before it returns.
pub fn tag(args: &TagArgs) -> Result<(), AgentError> {
    let voice = Voice { verbose: args.verbose, format: args.format };
    args.status.iter().try_for_each(|status| check_place(status, &args.state.path()))?;
    let signals = Signals::new().map_err(failed("handle signals"))?;
    let file = StateFile::lock(&args.state.path())?;
    let left = put_back(&Linux, &file, voice)?.and_then(|outcome| outcome.left);
    if !kernel::takes_hints().map_err(failed("ioprio_set(2)"))? {
        return Err(AgentError::Usage(NO_HINTS.into()));
    }
    let connector = if args.no_connector { None } else { Connector::open().ok() };
    let left = left.iter().flat_map(State::records).copied().collect();
    let mut agent = Agent {
        tagger: Tagger::new(
            Selection::new(&args.chosen.comms, &args.chosen.pids),
            connector.is_some(),
        ),
        state: State { left, ..State::new(procfs::boot_id()) },
        file,
        connector,
        status: args.status.clone(),
        status_failed: false,
        voice,
    };
    agent.introduce();
    let result = agent.run(args, &signals);
    if result.is_ok() && args.once && !signals.ending() {
        return Ok(());
    }
    let ended = put_back(&Linux, &agent.file, voice);
    if let Some(path) = &agent.status {
        let _ = std::fs::remove_file(path);
    }
    result.and(ended.map(drop))
}

struct Agent {
    tagger: Tagger,
    state: State,
    file: StateFile,
    connector: Option<Connector>,
    status: Option<PathBuf>,
    /// The last time it could not be written.
    status_failed: bool,
    voice: Voice,
}

impl Agent {
    /// Reports the findings of the start.
    fn introduce(&self) {
        let status = self.tagger.status();
        let connector = self.connector.is_some();
        self.voice.say(&Event::Started { encoding: status.encoding, tags: status.tags, connector });
        if !kernel::is_root() {
            self.voice.warn("not root: only processes of the same user can be tagged");
        }
    }

    fn run(&mut self, args: &TagArgs, signals: &Signals) -> Result<(), AgentError> {
        let began = Instant::now();
        let mut pace = Pace::new(args.interval.into(), began);
        self.scan(&Linux)?;
        pace.scanned(began, Instant::now());
        loop {
            let now = Instant::now();
            let hearing = self.connector.as_ref().filter(|_| pace.may_hear(now));
            let fd = hearing.map(Connector::fd);
            signals.wait(pace.wait(now), fd).map_err(failed("poll"))?;
            if signals.ending() {
                return Ok(());
            }
            if pace.may_hear(Instant::now()) {
                self.hear(&Linux, &mut pace)?;
            }
            let began = Instant::now();
            if pace.scan_is_due(began) {
                self.scan(&Linux)?;
                if args.once {
                    return Ok(());
                }
                pace.scanned(began, Instant::now());
            }
        }
    }

    /// Processes that the kernel tells of.
    fn hear(&mut self, system: &impl System, pace: &mut Pace) -> Result<(), AgentError> {
        let Some(connector) = &self.connector else { return Ok(()) };
        let began = Instant::now();
        let Ok(news) = connector.news() else {
            self.voice.warn(EVENTS_BROKE_OFF);
            self.connector = None;
            pace.lost();
            return Ok(());
        };
        if news.lost {
            pace.lost();
        }
        let pids = news.processes();
        if pids.is_empty() {
            // Messages that name no new process cost time too.
            pace.heard(began, Instant::now());
            return Ok(());
        }
        let changes = self.tagger.look_at(system, &pids, began);
        self.change(system, &changes)?;
        pace.heard(began, Instant::now());
        Ok(())
    }

    fn scan(&mut self, system: &impl System) -> Result<(), AgentError> {
        let changes = self.tagger.scan(system, Instant::now());
        let changes = changes.map_err(failed("list /proc"))?;
        self.change(system, &changes)
    }

    /// First written down, then done, then said.
    fn change(&mut self, system: &impl System, changes: &[Change]) -> Result<(), AgentError> {
        if self.tagger.write_down(changes, &mut self.state) {
            self.file.save(&self.state)?;
        }
        self.tagger.apply(system, changes, Instant::now());
        let events = self.tagger.take_events();
        events.iter().for_each(|event| self.voice.say(event));
        if !events.is_empty() || self.status_failed {
            self.write_status();
        }
        Ok(())
    }

    /// Writes the status file. Tagging goes on without it: a failure is said once, and tried again.
    fn write_status(&mut self) {
        let Some(path) = &self.status else { return };
        let json = serde_json::to_vec_pretty(&self.tagger.status()).expect("plain data");
        let written = write_whole(path, &json);
        let failed_before = std::mem::replace(&mut self.status_failed, written.is_err());
        if let (Err(e), false) = (written, failed_before) {
            self.voice.warn(format!("write {}: {e}; tagging goes on without it", path.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Record;
    use crate::system::fake::Fake;
    use seekway_core::ioprio;
    use seekway_core::request::ProcessTag;

    #[test]
    fn what_cannot_be_put_back_stays_written_down() {
        let dir = tempfile::tempdir().unwrap();
        let file = StateFile::lock(&dir.path().join("state")).unwrap();
        let voice = Voice { verbose: false, format: Format::Text };
        let fake = Fake::default();
        (10..13).for_each(|pid| fake.start(pid, 1, "x"));
        let tagged = ioprio::priority(ProcessTag::new(9).unwrap()).unwrap();
        let record = |pid| {
            let start = fake.stat(pid).unwrap().start;
            Record { pid, tid: pid, start, original: 0, set: tagged }
        };
        // The third has inherited its tag, and is not written down.
        let state = State {
            given: vec![tagged],
            threads: vec![record(10), record(11)],
            ..State::new(procfs::boot_id())
        };
        (10..13).for_each(|pid| fake.set(pid, tagged));
        (11..13).for_each(|pid| fake.forbid(pid));
        file.save(&state).unwrap();
        put_back(&fake, &file, voice).unwrap();
        let left: State = file.load().unwrap().unwrap();
        assert_eq!(left.records().copied().collect::<Vec<_>>(), [11, 12].map(record));
        assert_eq!(fake.priority(10).unwrap(), 0);
        // The next one can.
        (11..13).for_each(|pid| fake.allow(pid));
        put_back(&fake, &file, voice).unwrap();
        assert_eq!([11, 12].map(|pid| fake.priority(pid).unwrap()), [0; 2]);
        assert_eq!(file.load::<State>().unwrap(), None);
    }
}
