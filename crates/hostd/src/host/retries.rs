//! Disks of the configuration whose images cannot be opened: another program has them, they are not
//! there yet, their devices fail. What may pass is tried again in the background, with growing
//! pauses, by a thread of its own, until all such disks are served or detached. Each attempt has a
//! thread too: one whose file system hangs keeps its own disk only, and goes on when that does.

use super::attach::Attached;
use super::changes::Claim;
use super::error::{Change, HostError};
use super::failed::{FailedDisk, HANG_TIME, Seen};
use super::memory::MemorySource;
use super::{Host, shown, start};
use crate::log::say;
use crate::sandbox::{self, Access, Kind};
use crate::threads::{STACK_BYTES, spawn};
use std::fs::File;
use std::path::Path;
use std::sync::Weak;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, channel, sync_channel};
use std::time::{Duration, Instant};

/// Pause before the first attempt.
const PAUSE: Duration = Duration::from_millis(250);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Interval at which to look whether the daemon is to end meanwhile.
const LOOK_AFTER: Duration = Duration::from_millis(50);

impl Host {
    /// Disks of the configuration that are not served, by name.
    pub fn failed(&self) -> Vec<FailedDisk> {
        self.failed.all()
    }

    /// Try again to serve a disk of the configuration, as it was configured; its image may be
    /// handed over. One that the background has served meanwhile is as good.
    ///
    /// # Errors
    /// As [`Host::attach`]; and when the disk is not one that failed.
    pub fn retry(&self, name: &str, handed: Option<File>) -> Result<Attached, HostError> {
        let Some(failed) = self.failed.get(name) else {
            let is_recovered = self.failed.is_recovered(name);
            let served = is_recovered.then(|| self.attached(name).ok()).flatten();
            return served.ok_or_else(|| HostError::NotFailed(shown(name)));
        };
        let attached = self.attach_handed(&failed.config, handed);
        match attached {
            Err(_) if self.disk(name).is_ok() => self.attached(name),
            // That this thread is confined says nothing of the image.
            Err(e @ HostError::Outside(..)) => Err(e),
            Err(e) => {
                self.note_failure(name, &e);
                Err(e)
            }
            attached => attached,
        }
    }

    /// Where a disk that is served can be reached.
    fn attached(&self, name: &str) -> Result<Attached, HostError> {
        let disk = self.disk(name)?;
        let sockets = self.addresses(Some(&disk)).into_iter().map(|(_, address)| address).collect();
        let capacity_bytes = disk.limits().capacity_bytes;
        Ok(Attached { capacity_bytes, sockets, warnings: disk.warnings.all() })
    }

    /// An attempt to serve a disk has failed. What is to be said of it, if that is news.
    pub(super) fn note_failure(&self, name: &str, error: &HostError) -> Option<FailedDisk> {
        let note = |failed: &mut FailedDisk| {
            let now = FailedDisk::new(failed.config.clone(), error);
            // Once it is given up, only an operator tries it again.
            let is_retried = now.is_retried && failed.is_retried;
            let now = FailedDisk { is_retried, seen: failed.seen, ..now };
            let before = std::mem::replace(failed, now);
            (before.error != failed.error).then(|| failed.clone())
        };
        self.failed.change(name, note).flatten()
    }

    /// Start the thread, if there is a disk to be tried again.
    ///
    /// # Errors
    /// When there are no threads left.
    pub(super) fn begin_retries(&self) -> Result<(), HostError> {
        if !self.failed().iter().any(|failed| failed.is_retried) {
            return Ok(());
        }
        let (ends, ended) = channel();
        self.failed.background_ends_with(ends);
        let host = Weak::clone(&self.me);
        let spawned = spawn("retries", STACK_BYTES, move || try_again(&host, &ended));
        spawned.map(drop).map_err(|e| HostError::System("thread", e))
    }

    /// Try to serve each disk that may be served by now. False when none is left.
    fn try_all(&self) -> bool {
        for failed in self.failed() {
            if failed.is_retried {
                self.try_one(&failed.config.name);
            }
        }
        self.failed().iter().any(|failed| failed.is_retried)
    }

    fn try_one(&self, name: &str) {
        // Whoever has claimed it does something about it.
        let Ok(claim) = self.claim(name, Change::Attach) else { return };
        let Some(FailedDisk { config, .. }) = self.failed.get(name) else { return };
        self.failed.recovers(name);
        let hangs = Some(Instant::now() + HANG_TIME);
        let tried = self.attempt(claim, hangs, move |host, claim| {
            let seen = Seen::of(&config.path);
            let is_written = |disk: &mut FailedDisk| disk.is_being_written(seen, Instant::now());
            if let Some(error) = host.failed.change(&config.name, is_written).flatten() {
                return Err(HostError::Disk(config.name.clone(), error));
            }
            host.attach_claimed(claim, &config, None, Instant::now())
        });
        match tried {
            Ok(Some(attached)) => self.tried(name, attached.map(drop)),
            Ok(None) => self.note_hanging(name),
            Err(e) => self.tried(name, Err(e)),
        }
    }

    /// Try to serve a disk on a thread of its own, which tells of the outcome itself when that comes
    /// after `hangs`, or while the daemon is told to end: `None`.
    ///
    /// # Errors
    /// When there are no threads left.
    pub(super) fn attempt(
        &self,
        claim: Claim,
        hangs: Option<Instant>,
        work: impl FnOnce(&Host, &Claim) -> Result<Attached, HostError> + Send + 'static,
    ) -> Result<Option<Result<Attached, HostError>>, HostError> {
        let name = format!("disk-{}", claim.disk());
        // No room: either the outcome is taken, or whoever has waited is told so.
        let (done, outcome) = sync_channel(0);
        let thread = spawn(&name, STACK_BYTES, move || {
            let attached = work(claim.host(), &claim);
            let (host, disk) = claim.release();
            if let Err(SendError(late)) = done.send(attached) {
                host.tried(&disk, late.map(drop));
            }
        });
        let thread = thread.map_err(|e| HostError::System("thread", e))?;
        loop {
            match outcome.recv_timeout(LOOK_AFTER) {
                Ok(attached) => {
                    let _ = thread.join(); // it has ended, or has panicked
                    return Ok(Some(attached));
                }
                Err(RecvTimeoutError::Timeout) if hangs.is_none_or(|at| Instant::now() < at) => {
                    if self.listeners.is_told_to_end() {
                        return Ok(None);
                    }
                }
                // It hangs, or it has panicked, of which the log has told.
                Err(_) => return Ok(None),
            }
        }
    }

    /// Takes the outcome of an attempt of the background.
    fn tried(&self, name: &str, attached: Result<(), HostError>) {
        match attached {
            Ok(()) => say(&format!("disk {name}: is served now")),
            Err(HostError::Ending) => {}
            // Not this thread is confined to what was there when it began.
            Err(HostError::Outside(disk, e)) => self.note_change(name, &HostError::Image(disk, e)),
            Err(e) => self.note_change(name, &e),
        }
    }

    /// Note that an attempt of the background has failed, and say so if that is news.
    fn note_change(&self, name: &str, error: &HostError) {
        if let Some(changed) = self.note_failure(name, error) {
            changed.say();
        }
    }

    /// Note that the file system of an image hangs, unless the disk is served by now.
    fn note_hanging(&self, name: &str) {
        self.failed.change(name, |failed| {
            *failed = FailedDisk::hanging(failed.config.clone());
            failed.say();
        });
    }
}

/// The thread's work: it ends when no disk is left to be tried, or with the daemon.
fn try_again(host: &Weak<Host>, ended: &Receiver<()>) {
    let mut pause = PAUSE;
    if let Some(host) = host.upgrade() {
        // No peer reaches this thread, which opens what the configuration names: anywhere, since a
        // link, or a mount, may come late, too.
        let mut places = start::places(&host.config, None, &MemorySource::here());
        places.allow(Path::new("/"), Access::Images);
        sandbox::leave_network();
        sandbox::enter_with(Kind::Control, &places);
    }
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let Some(host) = host.upgrade() else { return };
        if !host.try_all() {
            return;
        }
        pause = (2 * pause).min(PAUSE_MAX);
    }
}
