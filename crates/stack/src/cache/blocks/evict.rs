//! Who makes room: which VM gives up frames, and which of its blocks go.

use super::nodes::{NONE, Node, Place, lowest};
use super::vms::Vm;
use super::{Blocks, EMPTY_MAX, Frame, Gone, SMALL_PART, STEPS_MAX};
use std::hint::black_box;

/// Room that is made: frames are appended, and the blocks that had to go for them.
pub(super) struct Room<'a> {
    pub frames: &'a mut Vec<Frame>,
    pub gone: &'a mut Vec<Gone>,
}

impl Blocks {
    /// Frames for a VM to read into, `most` of them at most.
    pub(super) fn room(&mut self, vm: usize, most: usize, prefetched: bool, room: &mut Room<'_>) {
        let end = room.frames.len() + most;
        while room.frames.len() < end {
            let (before, known) = (room.frames.len(), &self.vms[vm]);
            let mut wanted = end - before;
            let ahead = known.ahead_max().saturating_sub(known.unused);
            if prefetched && ahead == 0 {
                self.evict_stale(vm, wanted, room);
            } else {
                if prefetched {
                    wanted = wanted.min(ahead as usize);
                }
                if !self.free_frames(wanted, room.frames) {
                    self.evict_any(vm, wanted, prefetched, room);
                }
            }
            let more = (room.frames.len() - before) as u64;
            if more == 0 {
                return;
            }
            let known = &mut self.vms[vm];
            (known.held, known.filling) = (known.held + more, known.filling + more);
            known.unused += if prefetched { more } else { 0 };
        }
    }

    /// Up to so many frames that hold nothing. False when there are none.
    fn free_frames(&mut self, wanted: usize, frames: &mut Vec<Frame>) -> bool {
        let found = self.pop_free(wanted, frames) || self.back_more(wanted, frames);
        if found && self.donor.0.is_none() {
            self.donor.1 = 0;
        }
        found
    }

    /// Take frames of the VM that is most above its part, or of this one.
    fn evict_any(&mut self, vm: usize, wanted: usize, prefetched: bool, room: &mut Room<'_>) {
        let known = &self.vms[vm];
        let most = known.share.max(known.own()).max(1).saturating_sub(known.filling);
        let wanted = wanted.min(most as usize);
        if wanted == 0 {
            return;
        }
        let owed = known.own().max(1).saturating_sub(known.held);
        // One frame everybody gets, though there be fewer than VMs.
        let has_none = known.held == 0;
        let donor = self.donor().or_else(|| has_none.then(|| self.largest()).flatten());
        if owed > 0
            && let Some(donor) = donor.filter(|&donor| donor != vm)
        {
            let most = self.vms[donor].excess().min(owed).max(1);
            if self.evict(donor, wanted.min(most as usize), true, room) {
                return;
            }
        }
        self.evict(vm, wanted, !prefetched, room);
    }

    /// The VM that has most.
    fn largest(&self) -> Option<usize> {
        (0..self.vms.len()).max_by_key(|&vm| self.vms[vm].held)
    }

    /// The VM that is most above its part. Looked for anew after so many
    /// evictions that the search costs little beside them, or when it is within it.
    pub(super) fn donor(&mut self) -> Option<usize> {
        match self.donor {
            // Nobody comes to have more by what is taken within one VM.
            (None, 1..) => return None,
            (Some(vm), left @ 1..) if self.vms[vm].excess() > 0 => {
                self.donor.1 = left - 1;
                return Some(vm);
            }
            _ => {}
        }
        let order = |(n, vm): &(usize, &Vm)| (vm.excess(), usize::MAX - n);
        let (vm, known) = self.vms.iter().enumerate().max_by_key(order)?;
        let excess = known.excess();
        let often = (self.accounts.len() >> 10).min(64) as u32;
        self.donor = if excess > 0 { (Some(vm), often) } else { (None, 1) };
        self.donor.0
    }

    /// Let blocks of one of a VM's nodes go, `most` of them at most. False when none
    /// may; one that waits ahead may only when `ahead_too`.
    pub(super) fn evict(
        &mut self,
        vm: usize,
        most: usize,
        ahead_too: bool,
        room: &mut Room<'_>,
    ) -> bool {
        if self.evict_stale(vm, most, room) || self.evict_read(vm, most, room) {
            return true;
        }
        let oldest = self.vms[vm].lists[Place::Ahead as usize].oldest;
        if !ahead_too || oldest == NONE {
            return false;
        }
        self.take_ahead(oldest, most, room)
    }

    /// Let blocks of this node go that nobody has read, `most` of them, the lowest first.
    fn take_ahead(&mut self, node: u32, most: usize, room: &mut Room<'_>) -> bool {
        let Node { valid, unused, .. } = self.nodes[node];
        self.take(node, lowest(valid & unused, most), room);
        true
    }

    /// The same of those that were read: of the oldest run in the small queue or in
    /// main. What of it was used moves on.
    fn evict_read(&mut self, vm: usize, most: usize, room: &mut Room<'_>) -> bool {
        let (mut steps, mut empty) = (0, 0);
        while empty < EMPTY_MAX {
            let known = &mut self.vms[vm];
            let (small, main) = (known.small.read, known.main.read);
            if small + main == 0 {
                return false;
            }
            let is_main = small * SMALL_PART <= small + main && main > 0;
            let queue = known.queue(is_main);
            let Some(run) = queue.oldest(&self.runs) else { return false };
            let live = self.live(vm, run, is_main);
            let node = &mut self.nodes[run.node];
            let stay = if is_main { node.used_once() } else { node.used_twice() };
            let goes = live & if steps < STEPS_MAX { !stay } else { !0 };
            let queue = self.vms[vm].queue(is_main);
            if goes == 0 {
                queue.take(&mut self.runs, run.blocks);
                queue.read -= u64::from(live.count_ones());
                if is_main {
                    node.less_uses(live)
                } else {
                    node.clear_uses(live);
                    node.main |= live;
                }
                self.push(run.node, live, true);
                (steps, empty) = if live == 0 { (steps, empty + 1) } else { (steps + 1, empty) };
                continue;
            }
            let (goes, home) = (lowest(goes, most), node.home());
            queue.take(&mut self.runs, goes | run.blocks & !live);
            self.take(run.node, goes, room);
            if !is_main {
                let known = &mut self.vms[vm];
                known.let_go += u64::from(goes.count_ones());
                self.index.remember(home, goes, known.let_go);
            }
            return true;
        }
        false
    }

    /// Have the processor fetch from memory, while it does other work, what an
    /// eviction from this VM may need.
    #[inline]
    pub(super) fn warm(&self, vm: usize) {
        let small = &self.vms[vm].small;
        if let Some(run) = small.oldest(&self.runs) {
            self.index.warm(self.nodes[run.node].home());
            self.nodes.warm(run.node);
        }
        if let Some(run) = small.behind(&self.runs, 1) {
            black_box(self.nodes[run.node].valid);
        }
    }

    /// Let blocks of the node go that waits ahead longest, if its stream has moved on.
    #[inline]
    fn evict_stale(&mut self, vm: usize, most: usize, room: &mut Room<'_>) -> bool {
        let known = &self.vms[vm];
        let oldest = known.lists[Place::Ahead as usize].oldest;
        if oldest == NONE {
            return false;
        }
        let now = known.granule(self.granule_bits);
        let age = u64::from(self.nodes[oldest].age(now));
        if age <= known.held >> self.granule_bits {
            return false;
        }
        self.take_ahead(oldest, most, room)
    }
}
