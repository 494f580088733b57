//! Disks take no requests for a while, so that somebody can take a snapshot of their images.

use super::Host;
use super::change::{CHANGE_PATIENCE, Change};
use super::error::HostError;
use super::handover::Used;
use crate::images::User;
use crate::reactor::{self, Message};
use crate::threads::{SMALL_STACK_BYTES, spawn};
use seekway_core::units::Nanos;
use std::time::Duration;

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
