//! A disk is frozen for a while: what is under way ends, and what its guests ask for from then on
//! waits in their rings and sockets. Somebody takes a snapshot of its image meanwhile.

use super::core::Core;
use super::disks::{DiskState, Freeze};
use crate::port::DiskId;
use seekway_core::units::{Instant, Nanos};
use std::sync::mpsc::SyncSender;

impl Core {
    /// Takes no requests of a disk for `time`, and answers when none is under way. The reply's
    /// sender is dropped when the disk takes requests again.
    pub(super) fn freeze(
        &mut self,
        id: DiskId,
        time: Nanos,
        reply: SyncSender<Result<(), String>>,
    ) {
        let until = self.now + time;
        let refused = match self.disks.get_mut(id) {
            Some(DiskState { frozen: Some(_), .. }) => "is frozen already",
            Some(disk) if disk.detaching.is_none() => {
                disk.frozen = Some(Freeze { until, reply, is_told: false });
                self.frozen += 1;
                return;
            }
            _ => "is being detached",
        };
        let _ = reply.send(Err(refused.into()));
    }

    /// Take requests of a frozen disk again; an error if it is not frozen.
    pub(super) fn thaw(&mut self, id: DiskId) -> Result<(), String> {
        let frozen = self.disks.get_mut(id).and_then(|disk| disk.frozen.take());
        let frozen = frozen.ok_or("is not frozen: nobody froze it, or its time was over")?;
        if !frozen.is_told {
            let _ = frozen.reply.send(Err("was thawed before it was frozen".into()));
        }
        self.frozen -= 1;
        self.ports.turns.resume();
        self.news = true;
        Ok(())
    }

    /// Tell who waits that nothing is under way any more, and thaw what has been frozen for long
    /// enough. When to look again.
    pub(super) fn look_at_frozen(&mut self) -> Option<Instant> {
        if self.frozen == 0 {
            return None;
        }
        let mut over = Vec::new();
        let disks = self.disks.0.iter_mut().enumerate();
        for (number, disk) in disks.filter_map(|(n, disk)| Some((n, disk.as_mut()?))) {
            let Some(freeze) = &mut disk.frozen else { continue };
            if disk.outstanding == 0 && !freeze.is_told {
                freeze.is_told = true;
                let _ = freeze.reply.send(Ok(()));
            }
            if self.now >= freeze.until {
                over.push(DiskId(number as u16));
                if !freeze.is_told {
                    freeze.is_told = true;
                    let left = disk.outstanding;
                    let _ = freeze.reply.send(Err(format!("{left} requests did not end in time")));
                }
            }
        }
        over.into_iter().for_each(|id| _ = self.thaw(id));
        self.disks.0.iter().flatten().filter_map(|disk| Some(disk.frozen.as_ref()?.until)).min()
    }
}
