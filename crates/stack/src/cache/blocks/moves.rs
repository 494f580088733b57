//! Where a node stands in its VM's lists, and how blocks leave it.

use super::evict::Room;
use super::nodes::{Mask, NODE_BLOCKS, Node, Place, Was, mask, runs, slots};
use super::{Account, Blocks, Frame, Gone};
use std::ops::Range;

impl Blocks {
    /// Runs of unused blocks of a node that have one account.
    pub(super) fn each_account(
        &self,
        n: u32,
        blocks: Mask,
        mut f: impl FnMut(Range<u64>, Account),
    ) {
        let first = self.nodes[n].name.first_block();
        let mut last: Option<(Range<u64>, Account)> = None;
        for slot in slots(blocks) {
            let account = self.accounts[self.nodes[n].frame(slot).0 as usize];
            let block = first + slot as u64;
            match &mut last {
                Some((run, same)) if run.end == block && *same == account => run.end += 1,
                last => {
                    if let Some((run, account)) = last.replace((block..block + 1, account)) {
                        f(run, account);
                    }
                }
            }
        }
        if let Some((run, account)) = last {
            f(run, account);
        }
    }

    /// A node's blocks have changed from what it [was](Node::was): it goes
    /// to the lists where it belongs now. One that has nothing is no more.
    pub(super) fn settle(&mut self, n: u32, was: Was) {
        let node = &mut self.nodes[n];
        let vm = &mut self.vms[node.name.vm().index()];
        if node.blocks(Place::Ahead) != 0 && was.blocks[Place::Ahead as usize] == 0 {
            // Here it tells since when it waits.
            node.mark(vm.granule(self.granule_bits), 0);
        }
        let is = node.was();
        let stays = |place: Place| {
            let both = was.blocks[place as usize] != 0 && is.blocks[place as usize] != 0;
            both && (place != Place::Ahead || is.stamp == was.stamp)
        };
        let moves = || Place::ALL.into_iter().filter(|&place| !stays(place));
        for place in moves().filter(|&place| was.blocks[place as usize] != 0) {
            vm.lists[place as usize].remove(&mut self.nodes, place, n);
        }
        for place in moves().filter(|&place| is.blocks[place as usize] != 0) {
            vm.lists[place as usize].push(&mut self.nodes, place, n);
        }
        for place in [Place::Small, Place::Main] {
            let count = |was: &Was| u64::from(was.blocks[place as usize].count_ones());
            let blocks = &mut vm.lists[place as usize].blocks;
            *blocks = *blocks + count(&is) - count(&was);
        }
        if self.nodes[n].present() == 0 {
            self.index.remove(&mut self.nodes, n);
            self.nodes.remove(n);
        }
    }

    /// Blocks of a node go, and make room.
    pub(super) fn take(&mut self, n: u32, blocks: Mask, room: &mut Room<'_>) {
        room.frames.extend(slots(blocks).map(|slot| self.nodes[n].frame(slot)));
        self.vms[self.nodes[n].name.vm().index()].held -= u64::from(blocks.count_ones());
        self.unname(n, blocks, room.gone);
    }

    /// Nobody finds these blocks of a node any more.
    pub(super) fn unname(&mut self, n: u32, blocks: Mask, gone: &mut Vec<Gone>) {
        let node = &self.nodes[n];
        let (vm, first, was) = (node.name.vm(), node.name.first_block(), node.was());
        let (unused, prefetched) = (node.unused & blocks, node.prefetched & blocks);
        let (demanded, used) = (blocks & !prefetched, prefetched & !unused);
        for (blocks, prefetched) in [(demanded, false), (used, true)] {
            gone.extend(runs(blocks).map(|(from, to)| {
                let blocks = first + from..first + to;
                Gone { vm, blocks, prefetched, unused: None }
            }));
        }
        self.each_account(n, unused, |blocks, account| {
            gone.push(Gone { vm, blocks, prefetched: true, unused: Some(account) });
        });
        let known = &mut self.vms[vm.index()];
        known.unused -= u64::from(unused.count_ones());
        self.nodes[n].clear(blocks);
        self.settle(n, was);
    }

    /// Forget those of a node's blocks that are in a range.
    pub(super) fn forget_from_to(&mut self, n: u32, first: u64, end: u64, gone: &mut Vec<Gone>) {
        let here = self.nodes[n].name.first_block();
        let (from, to) = (first.max(here), end.min(here + NODE_BLOCKS));
        if from < to {
            self.forget_in(n, mask(from, to - from), gone);
        }
    }

    /// Forget blocks of a node.
    pub(super) fn forget_in(&mut self, n: u32, blocks: Mask, gone: &mut Vec<Gone>) {
        let Node { valid, filling, name, .. } = self.nodes[n];
        if valid & blocks != 0 {
            self.release(n, valid & blocks, gone);
        }
        if filling & blocks != 0 {
            self.unname(n, filling & blocks, gone);
            self.vms[name.vm().index()].orphans += u64::from((filling & blocks).count_ones());
        }
    }

    /// Blocks of a node go, and their frames hold nothing.
    pub(super) fn release(&mut self, n: u32, blocks: Mask, gone: &mut Vec<Gone>) {
        let mut going = std::mem::take(&mut self.going);
        self.take(n, blocks, &mut Room { frames: &mut going, gone });
        going.drain(..).for_each(|frame| self.set_free(frame));
        self.going = going;
    }

    pub(super) fn set_free(&mut self, frame: Frame) {
        self.links[frame.0 as usize] = std::mem::replace(&mut self.free, frame.0);
    }
}
