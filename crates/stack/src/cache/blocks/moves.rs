//! Where a node and its blocks stand in its VM's queues, and how blocks leave it.

use super::evict::Room;
use super::nodes::{Mask, NODE_BLOCKS, Node, Place, mask, runs, slots};
use super::runs::{Fifo, Run};
use super::vms::Vm;
use super::{Account, Blocks, Frame, Gone, TIDY_STEPS};
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
            let account = self.accounts[self.nodes.frame(n, slot).0 as usize];
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

    /// A node's blocks have changed from what it [was](super::nodes::Node::was): it goes
    /// to the list where it belongs now. One that has nothing is no more.
    pub(super) fn settle(&mut self, n: u32, (from, stamp): (Place, u16)) {
        let node = &mut self.nodes[n];
        let vm = &mut self.vms[node.name.vm().index()];
        let to = node.place();
        if to == Place::Ahead && from != to {
            // Here it tells since when it waits.
            node.mark(vm.granule(self.granule_bits), 0);
        }
        let (is_gone, is_same) = (node.present() == 0, node.was().1 == stamp);
        if from == to && !is_gone && (to != Place::Ahead || is_same) {
            return;
        }
        if let Some(list) = vm.lists.get_mut(from as usize) {
            list.remove(&mut self.nodes, n);
        }
        if is_gone {
            self.index.remove(&mut self.nodes, n);
            self.nodes.remove(n);
        } else if let Some(list) = vm.lists.get_mut(to as usize) {
            list.push(&mut self.nodes, n);
        }
    }

    /// Blocks of a node are valid and were read, now for the first time: they enter
    /// the small queue, or main.
    pub(super) fn enter(&mut self, n: u32, blocks: Mask) {
        if blocks == 0 {
            return;
        }
        let main = blocks & self.nodes[n].main;
        self.push(n, main, true);
        self.push(n, blocks & !main, false);
        self.tidy(self.nodes[n].name.vm().index(), 1);
    }

    /// Blocks of a node come to stand at the new end of a queue.
    pub(super) fn push(&mut self, n: u32, blocks: Mask, is_main: bool) {
        let node = &self.nodes[n];
        let queue = self.vms[node.name.vm().index()].queue(is_main);
        if blocks != 0 {
            queue.push(&mut self.runs, Run { node: n, blocks, print: node.print() });
            queue.read += u64::from(blocks.count_ones());
        }
    }

    /// What is still there of a run in a VM's queue.
    #[inline]
    pub(super) fn live(&self, vm: usize, run: Run, is_main: bool) -> Mask {
        let node = &self.nodes[run.node];
        if node.print() != run.print || node.name.vm().index() != vm {
            return 0;
        }
        run.blocks & node.read() & if is_main { node.main } else { !node.main }
    }

    /// So many blocks entered a VM's queues, or were forgotten. Where these have many
    /// runs of which nothing is there, a few of the oldest are taken out. Those
    /// of which something is go to the new end.
    pub(super) fn tidy(&mut self, vm: usize, blocks: u32) {
        for _ in 0..TIDY_STEPS * blocks {
            let Vm { small, main, held, .. } = &self.vms[vm];
            if small.len + main.len <= Fifo::most(*held) {
                return;
            }
            // More runs than blocks: some have none.
            let is_main = small.len + main.read < main.len + small.read;
            self.turn(vm, is_main);
        }
    }

    /// The oldest run of a queue goes to its new end with what is there of it.
    pub(super) fn turn(&mut self, vm: usize, is_main: bool) {
        let Some(run) = self.vms[vm].queue(is_main).oldest(&self.runs) else { return };
        let live = self.live(vm, run, is_main);
        let queue = self.vms[vm].queue(is_main);
        queue.take(&mut self.runs, run.blocks);
        if live != 0 {
            queue.push(&mut self.runs, Run { blocks: live, ..run });
        }
    }

    /// Blocks of a node go, and make room.
    pub(super) fn take(&mut self, n: u32, blocks: Mask, room: &mut Room<'_>) {
        room.frames.extend(slots(blocks).map(|slot| self.nodes.frame(n, slot)));
        self.vms[self.nodes[n].name.vm().index()].held -= u64::from(blocks.count_ones());
        self.unname(n, blocks, room.gone);
    }

    /// Nobody finds these blocks of a node any more.
    pub(super) fn unname(&mut self, n: u32, blocks: Mask, gone: &mut Vec<Gone>) {
        let node = &self.nodes[n];
        let (vm, first, was) = (node.name.vm(), node.name.first_block(), node.was());
        let (read, main) = (node.read() & blocks, node.main);
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
        known.main.read -= u64::from((read & main).count_ones());
        known.small.read -= u64::from((read & !main).count_ones());
        self.nodes.take(n, blocks);
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
