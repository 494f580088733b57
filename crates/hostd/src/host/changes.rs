//! Disks that are being attached, detached or resized. Each such change claims the disk's name and
//! runs on a thread of its own, because its device or its file system may hang. Whoever asked for
//! it waits for a bounded time, and no other command waits at all.
//!
//! When that time is over, the answer says what becomes of the change: an attach is undone as soon
//! as the device goes on, a detach and a resize are finished then. Until then the status lists it.

use super::Host;
use super::change::{CHANGE_PATIENCE, Change, Reason};
use super::devices::Device;
use super::error::HostError;
use crate::log::say;
use crate::threads::{STACK_BYTES, lock, spawn};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Interval at which a waiting change asks whether the device still answers.
const LOOK_AFTER: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });
/// Longest wait for a device's sign of life.
const LIFE_PATIENCE: Duration = Duration::from_secs(2);
/// Longest wait for an attempt of the background to serve a disk, and the interval at which to
/// look.
const ATTEMPT_PATIENCE: Duration = Duration::from_secs(2);
const ATTEMPT_PAUSE: Duration = Duration::from_millis(20);

/// State that is locked during a change; never while a device is waited for, which may hang.
#[derive(Default)]
pub(super) struct Changes {
    over: bool,
    /// Disks that are being attached, detached or resized, by name.
    claimed: BTreeMap<String, Pending>,
    /// Number of the last one.
    last_claim: u64,
}

impl Changes {
    /// Nothing can be changed from now on.
    pub fn end(&mut self) {
        self.over = true;
    }

    pub fn is_over(&self) -> bool {
        self.over
    }

    /// A disk that is attached is about to be found by its name: whoever asked for the attach
    /// cannot give up from now on.
    ///
    /// # Errors
    /// It has given up: the disk must not be served.
    pub fn begin_publishing(&mut self, disk: &str) -> Result<(), HostError> {
        match self.claimed.get_mut(disk) {
            Some(pending) if pending.is_given_up => Err(HostError::GivenUp(disk.into())),
            Some(pending) => {
                pending.is_published = true;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// A change that has not ended.
#[derive(Clone)]
pub struct Pending {
    pub disk: String,
    pub change: Change,
    pub since: Instant,
    /// Where the disk lies, once that is known.
    pub device: Option<Arc<Device>>,
    /// Whoever asked for it has been told that it is not done.
    is_given_up: bool,
    /// Tells it from later changes of the same disk.
    number: u64,
    /// The disk can be found by its name: too late to give up an attach.
    is_published: bool,
}

/// The right to attach, detach or resize the disk of a name, until it is dropped.
pub(super) struct Claim {
    host: Arc<Host>,
    name: String,
    /// Tells it from later claims of the same name.
    number: u64,
}

impl Claim {
    pub(super) fn disk(&self) -> &str {
        &self.name
    }

    pub(super) fn host(&self) -> &Host {
        &self.host
    }

    /// End it: whose it was, and of which disk.
    pub(super) fn release(self) -> (Arc<Host>, String) {
        (self.host.clone(), self.name.clone())
    }

    /// Note on which device the disk lies.
    pub(super) fn lies_on(&self, device: &Arc<Device>) {
        if let Some(pending) = lock(&self.host.changes).claimed.get_mut(&self.name) {
            pending.device = Some(device.clone());
        }
    }

    /// End it. True when whoever asked for the change has given up.
    fn end(&self) -> bool {
        let mut changes = lock(&self.host.changes);
        let is_own = changes.claimed.get(&self.name).is_some_and(|p| p.number == self.number);
        let ended = if is_own { changes.claimed.remove(&self.name) } else { None };
        ended.is_some_and(|pending| pending.is_given_up)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.end();
    }
}

impl Host {
    /// Claim the disk of a name.
    ///
    /// # Errors
    /// The daemon ends, or another has claimed it.
    pub(super) fn claim(&self, disk: &str, change: Change) -> Result<Claim, HostError> {
        let host = self.me.upgrade().ok_or(HostError::Ending)?;
        let mut changes = self.turn()?;
        if changes.claimed.contains_key(disk) {
            return Err(HostError::Claimed(disk.into()));
        }
        changes.last_claim += 1;
        let number = changes.last_claim;
        let pending = Pending {
            disk: disk.into(),
            change,
            since: Instant::now(),
            device: None,
            number,
            is_given_up: false,
            is_published: false,
        };
        changes.claimed.insert(disk.into(), pending);
        drop(changes);
        Ok(Claim { host, name: disk.into(), number })
    }

    /// The changes that have not ended, by name of the disk.
    pub fn pending(&self) -> Vec<Pending> {
        lock(&self.changes).claimed.values().cloned().collect()
    }

    /// Carry out a change of a disk on a thread of its own, and wait for it.
    ///
    /// # Errors
    /// What the change says, or [`HostError::Pending`] when it has not ended in time.
    pub(super) fn change<T: Send + 'static>(
        &self,
        disk: &str,
        change: Change,
        work: impl FnOnce(&Host, &Claim) -> Result<T, HostError> + Send + 'static,
    ) -> Result<T, HostError> {
        let claim = self.claim_between_attempts(disk, change)?;
        self.carry_out(claim, change, work)
    }

    /// Claim a disk that the background may be trying to serve just now.
    fn claim_between_attempts(&self, disk: &str, change: Change) -> Result<Claim, HostError> {
        let until = Instant::now() + ATTEMPT_PATIENCE;
        loop {
            match self.claim(disk, change) {
                Err(HostError::Claimed(_))
                    if self.failed.is_retried(disk) && Instant::now() < until =>
                {
                    std::thread::sleep(ATTEMPT_PAUSE);
                }
                claim => return claim,
            }
        }
    }

    /// As [`Host::change`], for the owner of the claim.
    ///
    /// # Errors
    /// As [`Host::change`].
    pub(super) fn carry_out<T: Send + 'static>(
        &self,
        claim: Claim,
        change: Change,
        work: impl FnOnce(&Host, &Claim) -> Result<T, HostError> + Send + 'static,
    ) -> Result<T, HostError> {
        let (number, disk) = (claim.number, &claim.name.clone());
        let (done, result) = sync_channel(1);
        // It is confined as the thread that starts it, which carries out commands too.
        let thread = spawn(&format!("disk-{disk}"), STACK_BYTES, move || {
            let outcome = work(&claim.host, &claim);
            match claim.end() {
                true => say(&told_late(&claim.name, change, outcome.as_ref().err())),
                false => _ = done.send(outcome),
            }
        });
        thread.map_err(|e| HostError::System("thread", e))?;
        self.wait_for_change(disk, number, &result)
    }

    fn wait_for_change<T>(
        &self,
        disk: &str,
        number: u64,
        result: &Receiver<Result<T, HostError>>,
    ) -> Result<T, HostError> {
        let began = Instant::now();
        loop {
            match result.recv_timeout(LOOK_AFTER) {
                Ok(outcome) => return outcome,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(HostError::Disk(
                        disk.into(),
                        "the daemon failed; see its log".into(),
                    ));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let device = lock(&self.changes).claimed.get(disk).and_then(|p| p.device.clone());
            let is_silent = device.as_ref().is_some_and(|device| !device.answers(LIFE_PATIENCE));
            if !is_silent && began.elapsed() < CHANGE_PATIENCE {
                continue;
            }
            let reason = match device {
                Some(device) if is_silent => Reason::Silent(device.name.clone()),
                Some(device) => Reason::Busy(device.name.clone()),
                None => Reason::Image,
            };
            if let Some(change) = self.give_up(disk, number) {
                return Err(HostError::Pending { disk: disk.into(), change, reason });
            }
        }
    }

    /// Wait no more for a change. `None` when it has ended meanwhile, or is about to.
    fn give_up(&self, disk: &str, number: u64) -> Option<Change> {
        let mut changes = lock(&self.changes);
        let pending = changes.claimed.get_mut(disk)?;
        if pending.number != number || pending.is_published {
            return None;
        }
        pending.is_given_up = true;
        Some(pending.change)
    }
}

/// Line about the outcome of a change that was given up.
fn told_late(disk: &str, change: Change, error: Option<&HostError>) -> String {
    match (change, error) {
        (_, Some(HostError::GivenUp(_))) => format!("disk {disk}: its attach has been undone"),
        (_, Some(e)) => format!("{}, which was given up: {e}", change.name()),
        (Change::Attach, None) => format!("disk {disk}: is attached after all"),
        (Change::Detach, None) => format!("disk {disk}: is detached now"),
        (Change::Resize, None) => format!("disk {disk}: has its new size now"),
        (Change::Freeze, None) => format!("disk {disk}: is frozen now, until its time is over"),
    }
}

#[cfg(test)]
mod tests;
