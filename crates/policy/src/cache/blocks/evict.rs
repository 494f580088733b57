//! Who makes room: which VM gives up a frame, and which of its blocks goes.

use super::frames::{Info, Place};
use super::ghosts::Ghost;
use super::index::{Slot, group};
use super::vms::Vm;
use super::{Blocks, GOING, Gone, NEXT, SMALL_PART, STEPS_MAX, USES_TO_MAIN};

impl Blocks {
    /// A frame in no queue that holds nothing.
    pub(super) fn room(
        &mut self,
        vm: usize,
        prefetched: bool,
        gone: &mut Vec<Gone>,
    ) -> Option<u32> {
        if prefetched && u64::from(self.vms[vm].unused) >= self.vms[vm].ahead_max() {
            return self.evict_stale(vm, gone);
        }
        if let Some(frame) = self.free_frame() {
            self.donor.1 = if self.donor.0.is_none() { 0 } else { self.donor.1 };
            return Some(frame);
        }
        let known = &self.vms[vm];
        if known.filling() >= known.share.max(1) {
            return None;
        }
        let is_owed = known.held < known.share;
        let donor = self.donor().filter(|&donor| donor != vm);
        donor
            .and_then(|donor| self.evict(donor, !prefetched || is_owed, gone))
            .or_else(|| self.evict(vm, !prefetched, gone))
    }

    fn free_frame(&mut self) -> Option<u32> {
        if let Some(frame) = self.free.oldest() {
            self.free.remove(&mut self.frames, frame, frame, 1);
            return Some(frame);
        }
        if (self.fresh as usize) < self.frames.len() {
            self.fresh += 1;
            return Some(self.fresh - 1);
        }
        None
    }

    /// The VM that is most above its share. Looked for anew after so many
    /// evictions that the search costs little beside them, or when it is within it.
    fn donor(&mut self) -> Option<usize> {
        match self.donor {
            // Nobody comes to have more by what is taken within one VM.
            (None, 1..) => return None,
            (Some(vm), left @ 1..) if self.vms[vm].excess() > 0 => {
                self.donor.1 = left - 1;
                return Some(vm);
            }
            _ => {}
        }
        let excesses = self.vms.iter().map(Vm::excess).enumerate();
        let (vm, excess) = excesses.max_by_key(|&(n, excess)| (excess, usize::MAX - n))?;
        let often = (self.frames.len() >> 10).min(64) as u32;
        self.donor = if excess > 0 { (Some(vm), often) } else { (None, 1) };
        self.donor.0
    }

    /// Let one block of a VM go: its frame is in no queue then. `None` when none
    /// may; one that waits ahead may only when `ahead_too`.
    fn evict(&mut self, vm: usize, ahead_too: bool, gone: &mut Vec<Gone>) -> Option<u32> {
        if let Some(frame) = self.evict_stale(vm, gone) {
            return Some(frame);
        }
        for step in 0.. {
            let known = &self.vms[vm];
            let (small, main) = (known.queue(Place::Small), known.queue(Place::Main));
            let read = u64::from(small.len) + u64::from(main.len);
            let is_small = u64::from(small.len) * SMALL_PART > read || main.len == 0;
            let Some(frame) = (if is_small { small.oldest() } else { main.oldest() }) else {
                break;
            };
            let Info { vm: owner, block, .. } = self.frames[frame as usize];
            let (home, slot) = self.slot(GOING, owner, block);
            self.warm_next(frame);
            let entry = self.index.entry_mut(slot);
            let uses = entry.uses();
            if uses >= if is_small { USES_TO_MAIN } else { 1 } && step < STEPS_MAX {
                entry.set_uses(if is_small { 0 } else { uses - 1 });
                self.move_to(frame, Place::Main);
                continue;
            }
            self.release_at(slot, frame, gone);
            if is_small {
                self.vms[vm].let_go += 1;
                let ghost = Ghost::new(self.ghosts, home.fingerprint(), self.vms[vm].let_go);
                *self.index.ghost(home, block) = ghost;
            }
            return Some(frame);
        }
        let oldest = self.vms[vm].queue(Place::Ahead).oldest().filter(|_| ahead_too)?;
        self.release(oldest, gone);
        Some(oldest)
    }

    /// The one behind this in its queue is likely to go next, most likely
    /// with a later request: until then its entry has come from memory.
    #[inline]
    fn warm_next(&mut self, frame: u32) {
        let newer = self.frames[frame as usize].newer;
        let Some(&Info { vm, block, .. }) = self.frames.get(newer as usize) else { return };
        let near = &self.near[GOING];
        if (near.vm, near.group) != (vm, group(block)) {
            let home = self.home(NEXT, vm, block);
            self.index.warm(home);
        }
    }

    /// Let the oldest block that waits ahead go, if its stream has moved on.
    #[inline]
    fn evict_stale(&mut self, vm: usize, gone: &mut Vec<Gone>) -> Option<u32> {
        let known = &self.vms[vm];
        let frame = known.queue(Place::Ahead).oldest()?;
        let now = (known.clock >> self.granule_bits) as u32;
        let age = u64::from(now.wrapping_sub(self.frames[frame as usize].stamp));
        if age <= known.held >> self.granule_bits {
            return None;
        }
        self.release(frame, gone);
        Some(frame)
    }

    /// The block in a frame goes, and the frame stands in no queue.
    pub(super) fn release(&mut self, frame: u32, gone: &mut Vec<Gone>) {
        let Info { vm, block, .. } = self.frames[frame as usize];
        let (_, slot) = self.slot(GOING, vm, block);
        self.release_at(slot, frame, gone);
    }

    #[inline(always)] // once for each block that is evicted
    fn release_at(&mut self, slot: Slot, frame: u32, gone: &mut Vec<Gone>) {
        let Info { vm, place, .. } = self.unname(slot, frame, gone);
        let vm = &mut self.vms[vm.index()];
        vm.queues[place as usize].remove(&mut self.frames, frame, frame, 1);
        vm.held -= 1;
    }

    /// Nobody finds the block in this frame any more.
    #[inline(always)]
    pub(super) fn unname(&mut self, slot: Slot, frame: u32, gone: &mut Vec<Gone>) -> Info {
        let info = self.frames[frame as usize];
        let Info { vm, block, account, prefetched, used, .. } = info;
        self.index.remove(slot);
        self.vms[vm.index()].unused -= u32::from(info.is_unused());
        gone.push(Gone { vm, block, account, prefetched, used });
        info
    }
}
