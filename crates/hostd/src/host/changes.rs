//! Disks that are being attached, detached or resized. Each such change claims the disk's name and
//! runs on a thread of its own, because its device or its file system may hang. Whoever asked for
//! it waits for a bounded time, and no other command waits at all.
//!
//! When that time is over, the answer says what becomes of the change: an attach is undone as soon
//! as the device goes on, a detach and a resize are finished then. Until then the status lists it.

use super::Host;
use super::devices::Device;
use super::error::{CHANGE_PATIENCE, Change, HostError, Reason};
use super::handover::Used;
use super::served::ServedDisk;
use crate::images::User;
use crate::log::say;
use crate::reactor::{self, Message};
use crate::threads::{SMALL_STACK_BYTES, STACK_BYTES, lock, spawn};
use seekway_core::units::Nanos;
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
    /// [`HostError::GivenUp`] when the caller has given up: the disk must not be served.
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
    /// The client has been told that it is not done.
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
    /// The error of the change, or [`HostError::Pending`] when it has not ended in time.
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

// Disks take no requests for a while, so that somebody can take a snapshot of their images.

/// The longest time for which a disk may be frozen: a guest waits meanwhile.
pub const FREEZE_MAX: Duration = CHANGE_PATIENCE;

impl Host {
    /// Take no requests of a disk for `time` at most, unless it is [thawed](Host::thaw) before.
    /// When this returns, all that guests were told is done is in the image, as far as the page
    /// cache has not kept it: who wants that on the device too syncs the image.
    ///
    /// # Errors
    /// An unknown name, a time that is zero or above [`FREEZE_MAX`], a disk that is frozen, one whose
    /// image another daemon has, or one whose requests do not end in that time: it is not frozen
    /// then.
    pub fn freeze(&self, name: &str, time: Duration) -> Result<(), HostError> {
        let disk = name.to_string();
        let wrong = move |text: String| HostError::Disk(disk.clone(), text);
        if time.is_zero() || time > FREEZE_MAX {
            let most = FREEZE_MAX.as_secs();
            return Err(wrong(format!("cannot be frozen for {time:?}: up to {most} s")));
        }
        let (disk, time) = (name.to_string(), Nanos::new(time.as_nanos() as u64));
        self.change(name, Change::Freeze, move |host, claim| {
            let disk = host.disk(&disk)?;
            claim.lies_on(&disk.device);
            disk.device.must_answer(&disk.config.name)?;
            // A guest that migrates meanwhile goes on elsewhere when the disk thaws, not before.
            let used = Used::begin(&disk, User::Snapshot).map_err(&wrong)?;
            let request = |reply| Message::Freeze(disk.id, time, reply);
            let answers = disk.device.handle().request(request);
            let answer = reactor::wait(&answers);
            let answer = answer.ok_or_else(|| HostError::ReactorDied(disk.device.name.clone()))?;
            answer.map_err(wrong)?;
            let name = format!("frozen-{}", disk.config.name);
            let thread = spawn(&name, SMALL_STACK_BYTES, move || {
                let _ = reactor::wait(&answers); // none comes; it is thawed
                drop(used);
            });
            thread.map(drop).map_err(|e| {
                let _ = disk.device.handle().ask(|reply| Message::Thaw(disk.id, reply));
                HostError::System("thread", e)
            })
        })
    }

    /// Take requests again.
    ///
    /// # Errors
    /// An unknown name, or a disk that is not frozen: its time was over, and what was done meanwhile
    /// is not a snapshot.
    pub fn thaw(&self, name: &str) -> Result<(), HostError> {
        let disk = self.disk(name)?;
        disk.ask(|reply| Message::Thaw(disk.id, reply))
    }
}

// Disks get another size while they are served.

impl Host {
    /// Give a disk another size: that of its image as it is now, or `size_bytes`,
    /// to which a regular file is made first. A smaller disk loses what lies beyond, also where
    /// the image has shrunk by itself, and has to be asked for by `shrink`.
    ///
    /// # Errors
    /// An unknown name, a size that cannot be, what the file system says, or a device that does not
    /// answer: nothing has changed then, unless the error is [`HostError::Pending`].
    pub fn resize(
        &self,
        name: &str,
        size_bytes: Option<u64>,
        shrink: bool,
    ) -> Result<u64, HostError> {
        let disk = name.to_string();
        self.change(name, Change::Resize, move |host, claim| {
            host.resize_claimed(claim, &disk, size_bytes, shrink)
        })
    }

    /// As [`Host::resize`], for the owner of the claim.
    fn resize_claimed(
        &self,
        claim: &Claim,
        name: &str,
        size_bytes: Option<u64>,
        shrink: bool,
    ) -> Result<u64, HostError> {
        let disk = self.disk(name)?;
        claim.lies_on(&disk.device);
        disk.device.must_answer(name)?;
        let wrong = |text| HostError::Disk(name.into(), text);
        let grown_from = match size_bytes {
            Some(size) => make_size(&disk, size, shrink).map_err(wrong)?,
            None => None,
        };
        let answer = disk.device.ask(|reply| Message::Resize(disk.id, shrink, reply))?;
        let capacity_bytes = answer.map_err(|text| match grown_from {
            Some(before_bytes) => wrong(shrink_back(&disk, before_bytes, text)),
            None => wrong(text),
        })?;
        lock(&disk.limits).capacity_bytes = capacity_bytes;
        disk.config_changed.notify();
        Ok(capacity_bytes)
    }
}

/// Make the image of a disk so large. What it had, in bytes, if it has grown.
fn make_size(disk: &ServedDisk, size_bytes: u64, shrink: bool) -> Result<Option<u64>, String> {
    let limits = disk.limits();
    let unit = u64::from(limits.align_bytes.max(limits.logical_block_bytes)).max(512);
    if disk.is_block {
        return Err("a block device cannot be resized from here; resize it and give no size".into());
    }
    if limits.read_only {
        return Err("is read-only and cannot be resized".into());
    }
    if size_bytes == 0 || !size_bytes.is_multiple_of(unit) {
        return Err(format!("{size_bytes} bytes: expected a multiple of {unit}, not 0"));
    }
    if size_bytes < limits.capacity_bytes && !shrink {
        return Err(format!(
            "has {} bytes: {size_bytes} would lose what lies beyond; say --shrink \
             (\"shrink\": true) if that is wanted",
            limits.capacity_bytes
        ));
    }
    let failed = |e| format!("{}: {e}", disk.config.path.display());
    let file = lock(&disk.file);
    let Some(file) = &*file else { return Err("is being detached".into()) };
    // It is handed over by whoever has the file locked.
    if disk.is_elsewhere() {
        return Err("cannot be resized here: another daemon has its image".into());
    }
    let before_bytes = file.metadata().map_err(failed)?.len();
    file.set_len(size_bytes).map_err(failed)?;
    Ok((before_bytes < size_bytes).then_some(before_bytes))
}

/// The reactor refused the new size, as `text` says: the file gets back the one
/// that it had, or the disk would have the refused one when it is served again.
/// No guest has seen what is cut off.
fn shrink_back(disk: &ServedDisk, before_bytes: u64, text: String) -> String {
    let file = lock(&disk.file);
    // What another daemon has by now stays as it is.
    match file.as_ref().filter(|_| !disk.is_elsewhere()).map(|file| file.set_len(before_bytes)) {
        Some(Err(e)) => {
            format!("{text}; {} stays larger all the same: {e}", disk.config.path.display())
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests;
