//! Where remapped requests come from in forms of `blkparse -f`, which cannot say it: from the
//! device where a request as long was queued last, if that device is no disk.

use crate::traces::once::{Kind, Traced};
use std::collections::{HashMap, HashSet};

/// CPUs and devices that are remembered at most.
const REMEMBERED_MAX: usize = 1 << 16;

#[derive(Default)]
pub(super) struct Remaps {
    /// Device and length of the last request on a CPU.
    last: HashMap<u32, (u32, u64)>,
    /// Devices whose requests are issued, or come from their partitions.
    disks: HashSet<u32>,
}

impl Remaps {
    /// The device that a remapped request comes from; its own if that is not another traced one.
    pub(super) fn source(&self, event: &Traced) -> u32 {
        let last = self.last.get(&event.cpu).copied();
        let source = last.filter(|(device, len)| *len == event.len && !self.disks.contains(device));
        source.map_or(event.device, |(device, _)| device)
    }

    /// All events have to pass, in order. A request is repeated once.
    pub(super) fn see(&mut self, event: &Traced, is_repeat: bool) {
        let is_disk = event.kind == Kind::Issue
            || (event.kind == Kind::Remap && event.from == u64::from(event.device));
        if is_disk && self.disks.len() < REMEMBERED_MAX {
            self.disks.insert(event.device);
        }
        if is_repeat {
            self.last.remove(&event.cpu);
        } else if event.kind == Kind::Queue {
            if self.last.len() >= REMEMBERED_MAX {
                self.last.clear();
            }
            self.last.insert(event.cpu, (event.device, event.len));
        }
    }
}
