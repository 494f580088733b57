//! A disk of the configuration whose image could not be opened, and why.

use super::error::HostError;
use crate::config::DiskConfig;
use crate::log::say;
use crate::threads::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant, SystemTime};

/// Time without writes after which a late file is served: it may be a copy that is being made.
const QUIET: Duration = Duration::from_secs(5);
/// An attempt that has not ended by then hangs: those of the other disks need not wait for it. At
/// a start all have this time together, and each the other in any case.
pub(super) const HANG_TIME: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 5 });
pub(super) const HANG_TIME_LATER: Duration = Duration::from_millis(200);

/// A disk of the configuration that is not served.
#[derive(Clone, Debug)]
pub struct FailedDisk {
    /// Its configuration.
    pub config: DiskConfig,
    /// The error of the last attempt to serve it, as text.
    pub error: String,
    /// The disk is tried again without a command.
    pub is_retried: bool,
    /// Another program has its image, or the image hangs.
    pub(super) is_taken: bool,
    /// First observation of its file, and its time.
    pub(super) seen: Option<(Seen, Instant)>,
}

/// Properties of a file that change when somebody writes to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    bytes: u64,
    modified: SystemTime,
    /// By the clock, which need not be that of whoever has set the time.
    age: Option<Duration>,
}

impl Seen {
    /// Look at a file. `None` if there is none, or no regular one.
    pub(super) fn of(path: &Path) -> Option<Seen> {
        let about = std::fs::metadata(path).ok().filter(|about| about.is_file())?;
        let modified = about.modified().ok()?;
        Some(Seen { bytes: about.len(), modified, age: modified.elapsed().ok() })
    }

    fn is_as(&self, before: &Seen) -> bool {
        (self.bytes, self.modified) == (before.bytes, before.modified)
    }
}

impl FailedDisk {
    pub(super) fn new(config: DiskConfig, error: &HostError) -> FailedDisk {
        let (is_retried, is_taken) = match error {
            HostError::Image(_, e) => (e.may_pass(), e.is_taken()),
            // It was opened, or its configuration was refused before.
            _ => (true, false),
        };
        FailedDisk { config, error: error.to_string(), is_retried, is_taken, seen: None }
    }

    /// One whose image has not been opened, and nobody knows when it will be.
    pub(super) fn hanging(config: DiskConfig) -> FailedDisk {
        let (name, path) = (&config.name, config.path.display());
        let error = format!("disk {name}: {path}: does not answer: its file system may hang");
        FailedDisk { config, error, is_retried: true, is_taken: true, seen: None }
    }

    /// Tell the log of it.
    pub(super) fn say(&self) {
        let (name, error) = (&self.config.name, &self.error);
        say(&match self.is_retried {
            true => format!("{error}; NOT SERVED yet: the daemon tries it again by itself"),
            false => format!("{error}; NOT SERVED: mend it, then run: seekway ctl attach {name}"),
        });
    }

    /// Why it should not be served now, though it can be opened perhaps: `seen` is its file. A time
    /// that lies ahead, by whatever clock, says nothing; that nothing changes does.
    pub(super) fn is_being_written(&mut self, seen: Option<Seen>, now: Instant) -> Option<String> {
        let since = match (self.seen, seen) {
            (Some((before, since)), Some(seen)) if seen.is_as(&before) => since,
            _ => now,
        };
        self.seen = seen.map(|seen| (seen, since));
        let is_old = seen?.age.is_some_and(|age| age >= QUIET);
        (!self.is_taken && !is_old && now.duration_since(since) < QUIET).then(|| {
            let (path, quiet) = (self.config.path.display(), QUIET.as_secs());
            format!("{path}: somebody writes to it; it is served when nobody has for {quiet} s")
        })
    }
}

/// The disks of the configuration that are not served, and what the background does about them.
#[derive(Default)]
pub(super) struct FailedDisks(Mutex<State>);

#[derive(Default)]
struct State {
    /// By name.
    failed: BTreeMap<String, FailedDisk>,
    /// Names of those that the background has served since.
    recovered: BTreeSet<String>,
    /// The background ends with this.
    background: Option<Sender<()>>,
}

impl FailedDisks {
    /// By name.
    pub fn all(&self) -> Vec<FailedDisk> {
        lock(&self.0).failed.values().cloned().collect()
    }

    pub fn get(&self, name: &str) -> Option<FailedDisk> {
        lock(&self.0).failed.get(name).cloned()
    }

    pub fn add(&self, disk: FailedDisk) {
        lock(&self.0).failed.insert(disk.config.name.clone(), disk);
    }

    /// False when there is none of this name.
    pub fn remove(&self, name: &str) -> bool {
        lock(&self.0).failed.remove(name).is_some()
    }

    /// Calls `change`, which locks nothing, on one disk; `None` when it is served by now.
    pub fn change<T>(&self, name: &str, change: impl FnOnce(&mut FailedDisk) -> T) -> Option<T> {
        lock(&self.0).failed.get_mut(name).map(change)
    }

    /// Does the background try to serve this disk?
    pub fn is_retried(&self, name: &str) -> bool {
        self.get(name).is_some_and(|failed| failed.is_retried)
    }

    /// The background serves this one, if it can.
    pub fn recovers(&self, name: &str) {
        lock(&self.0).recovered.insert(name.into());
    }

    pub fn is_recovered(&self, name: &str) -> bool {
        lock(&self.0).recovered.contains(name)
    }

    pub fn background_ends_with(&self, ends: Sender<()>) {
        lock(&self.0).background = Some(ends);
    }

    pub fn end_background(&self) {
        lock(&self.0).background = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changes_is_waited_for_whatever_its_time() {
        let config = DiskConfig::new("late", "/late.img");
        let failed = FailedDisk::new(config, &HostError::Disk("late".into(), String::new()));
        let (second, now) = (Duration::from_secs(1), Instant::now());
        let seen = |bytes, age| Some(Seen { bytes, modified: SystemTime::UNIX_EPOCH, age });
        let waits = |failed: &mut FailedDisk, seen, at| {
            failed.is_being_written(seen, now + at * second).is_some()
        };
        // Long ago, not long ago, and in the future.
        assert!(!waits(&mut failed.clone(), seen(1, Some(QUIET)), 0));
        for age in [Some(second), None] {
            let mut failed = failed.clone();
            assert!(waits(&mut failed, seen(1, age), 0));
            assert!(waits(&mut failed, seen(2, age), 4), "it grows");
            assert!(waits(&mut failed, seen(2, age), 8));
            assert!(!waits(&mut failed, seen(2, age), 9), "{age:?}: nobody writes to it");
        }
        let mut taken = FailedDisk { is_taken: true, ..failed };
        assert!(!waits(&mut taken, seen(1, None), 0), "whoever had it has let go of it");
    }
}
