//! Eviction: which VM gives up frames, and which of its blocks go.

use super::nodes::{Mask, NONE, Node, Place, lowest};
use super::vms::Vm;
use super::{Blocks, Frame, Gone, SMALL_PART, STEPS_MAX};

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
            let before = room.frames.len();
            if !self.free_frames(end - before, room.frames) {
                self.evict_any(vm, end - before, prefetched, room);
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

    /// Takes up to `wanted` frames that hold nothing. False when there are none.
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

    /// The VM that is most over its share. Looked for anew after enough evictions that the search
    /// costs little beside them, or when it is within it.
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
        let often = (self.links.len() >> 10).min(64) as u32;
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

    /// As [`Blocks::take_ahead`], of those that were read: of the oldest node in the small queue or
    /// in main. What of it was used moves on.
    fn evict_read(&mut self, vm: usize, most: usize, room: &mut Room<'_>) -> bool {
        let mut steps = 0;
        loop {
            let lists = &self.vms[vm].lists;
            let [small, main] = [Place::Small, Place::Main].map(|p| lists[p as usize].blocks);
            let is_main = small * SMALL_PART <= small + main && main > 0;
            let place = if is_main { Place::Main } else { Place::Small };
            let n = lists[place as usize].oldest;
            if n == NONE {
                return false;
            }
            let node = &self.nodes[n];
            let here = node.blocks(place);
            let stay = if is_main { node.used_once() } else { node.used_twice() };
            let goes = here & if steps < STEPS_MAX { !stay } else { !0 };
            if goes == 0 {
                self.go_on(vm, n, place, here);
                steps += 1;
                continue;
            }
            let (goes, home) = (lowest(goes, most), node.home());
            self.take(n, goes, room);
            if !is_main {
                let known = &mut self.vms[vm];
                known.let_go += u64::from(goes.count_ones());
                self.index.remember(home, goes, known.let_go);
            }
            return true;
        }
    }

    /// Blocks at the old end of a queue were used: they go to main, or to its new end.
    fn go_on(&mut self, vm: usize, n: u32, place: Place, blocks: Mask) {
        let node = &mut self.nodes[n];
        if place == Place::Main {
            node.less_uses(blocks);
            let list = &mut self.vms[vm].lists[place as usize];
            list.remove(&mut self.nodes, place, n);
            list.push(&mut self.nodes, place, n);
            return;
        }
        let was = node.was();
        node.clear_uses(blocks);
        node.main |= blocks;
        self.settle(n, was);
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
