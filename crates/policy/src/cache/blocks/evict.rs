//! Who makes room: which VM gives up frames, and which of its blocks go.

use super::nodes::{NONE, Place, lowest};
use super::vms::Vm;
use super::{Blocks, Frame, Gone, SMALL_PART, STEPS_MAX};

impl Blocks {
    /// Frames for a VM to read into, `most` of them at most, are appended to `frames`.
    pub(super) fn room(
        &mut self,
        vm: usize,
        most: usize,
        prefetched: bool,
        frames: &mut Vec<Frame>,
        gone: &mut Vec<Gone>,
    ) {
        let end = frames.len() + most;
        while frames.len() < end {
            let (before, known) = (frames.len(), &self.vms[vm]);
            let mut wanted = end - before;
            let ahead = known.ahead_max().saturating_sub(known.unused);
            if prefetched && ahead == 0 {
                self.evict_stale(vm, wanted, frames, gone);
            } else {
                if prefetched {
                    wanted = wanted.min(ahead as usize);
                }
                if !self.free_frames(wanted, frames) {
                    self.evict_any(vm, wanted, prefetched, frames, gone);
                }
            }
            let more = (frames.len() - before) as u64;
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
        let before = frames.len();
        frames.extend(self.free.drain(self.free.len().saturating_sub(wanted)..));
        if frames.len() == before {
            let end = (self.fresh as usize).saturating_add(wanted).min(self.accounts.len()) as u32;
            frames.extend((self.fresh..end).map(Frame));
            self.fresh = end;
        }
        if frames.len() > before && self.donor.0.is_none() {
            self.donor.1 = 0;
        }
        frames.len() > before
    }

    /// Take frames of the VM that is most above its share, or of this one.
    fn evict_any(
        &mut self,
        vm: usize,
        wanted: usize,
        prefetched: bool,
        frames: &mut Vec<Frame>,
        gone: &mut Vec<Gone>,
    ) {
        let Vm { held, share, filling, .. } = self.vms[vm];
        let wanted = wanted.min(share.max(1).saturating_sub(filling) as usize);
        if wanted == 0 {
            return;
        }
        if let Some(donor) = self.donor().filter(|&donor| donor != vm) {
            let owed = share.saturating_sub(held);
            let most = self.vms[donor].excess().min(if owed > 0 { owed } else { u64::MAX });
            let ahead_too = !prefetched || owed > 0;
            if self.evict(donor, wanted.min(most as usize), ahead_too, frames, gone) {
                return;
            }
        }
        self.evict(vm, wanted, !prefetched, frames, gone);
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
        let often = (self.accounts.len() >> 10).min(64) as u32;
        self.donor = if excess > 0 { (Some(vm), often) } else { (None, 1) };
        self.donor.0
    }

    /// Let blocks of one of a VM's nodes go, `most` of them at most. False when none
    /// may; one that waits ahead may only when `ahead_too`.
    fn evict(
        &mut self,
        vm: usize,
        most: usize,
        ahead_too: bool,
        frames: &mut Vec<Frame>,
        gone: &mut Vec<Gone>,
    ) -> bool {
        if self.evict_stale(vm, most, frames, gone) {
            return true;
        }
        for step in 0.. {
            let known = &self.vms[vm];
            let (small, main) = (known.queue(Place::Small), known.queue(Place::Main));
            if small.read + main.read == 0 {
                break;
            }
            let is_small = small.read * SMALL_PART > small.read + main.read || main.read == 0;
            let n = if is_small { small.oldest } else { main.oldest };
            let node = &mut self.nodes[n];
            let stay = if is_small { node.used_twice() } else { node.used_once() };
            let goes = node.read() & if step < STEPS_MAX { !stay } else { !0 };
            if goes == 0 {
                if is_small {
                    node.clear_uses()
                } else {
                    node.less_uses()
                }
                self.move_to(n, Place::Main);
                continue;
            }
            let goes = lowest(goes, most);
            let (is_last, home) = (goes == node.read(), node.home());
            self.take(n, goes, frames, gone);
            if is_small {
                let known = &mut self.vms[vm];
                known.let_go += u64::from(goes.count_ones());
                if is_last {
                    self.index.remember(home, known.let_go);
                }
            }
            return true;
        }
        let oldest = self.vms[vm].queue(Place::Ahead).oldest;
        if !ahead_too || oldest == NONE {
            return false;
        }
        self.take(oldest, lowest(self.nodes[oldest].valid, most), frames, gone);
        true
    }

    /// Have the processor fetch from memory, while it does other work, what an
    /// eviction from this VM may need.
    #[inline]
    pub(super) fn warm(&self, vm: usize) {
        let n = self.vms[vm].queue(Place::Small).oldest;
        if n != NONE {
            self.index.warm(self.nodes[n].home());
            self.nodes.warm(n);
        }
    }

    /// Let blocks of the node go that waits ahead longest, if its stream has moved on.
    #[inline]
    fn evict_stale(
        &mut self,
        vm: usize,
        most: usize,
        frames: &mut Vec<Frame>,
        gone: &mut Vec<Gone>,
    ) -> bool {
        let known = &self.vms[vm];
        let oldest = known.queue(Place::Ahead).oldest;
        if oldest == NONE {
            return false;
        }
        let now = known.granule(self.granule_bits);
        let age = u64::from(self.nodes[oldest].age(now));
        if age <= known.held >> self.granule_bits {
            return false;
        }
        self.take(oldest, lowest(self.nodes[oldest].valid, most), frames, gone);
        true
    }
}
