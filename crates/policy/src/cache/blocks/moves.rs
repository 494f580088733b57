//! Where a node stands in its VM's queues, and how its blocks leave it.

use super::nodes::{Mask, Place, runs, slots};
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

    /// Which of a node's blocks are read has changed from what it was `before`: the
    /// node goes where it belongs now, to the new end. One that has nothing is
    /// no more.
    pub(super) fn settle(&mut self, n: u32, before: Mask) {
        let node = &self.nodes[n];
        let (read, place) = (node.read(), node.place);
        let vm = &mut self.vms[node.name.vm().index()];
        let queue = &mut vm.queues[place as usize];
        queue.read = queue.read + u64::from(read.count_ones()) - u64::from(before.count_ones());
        let to = match place {
            _ if node.present() == 0 => {
                queue.remove(&mut self.nodes, n);
                self.index.remove(&mut self.nodes, n);
                self.nodes.remove(n);
                return;
            }
            _ if node.valid == 0 => Place::Coming,
            _ if read == 0 => Place::Ahead,
            Place::Main => Place::Main,
            Place::Small => Place::Small,
            _ if node.again => Place::Main,
            _ => Place::Small,
        };
        let is_refreshed = read & !before != 0 && to == Place::Small && queue.newest != n;
        if to != place || is_refreshed {
            self.move_to(n, to);
        }
    }

    /// From the queue in which it stands to the new end of another, or the same.
    pub(super) fn move_to(&mut self, n: u32, to: Place) {
        let node = &mut self.nodes[n];
        let vm = &mut self.vms[node.name.vm().index()];
        let from = std::mem::replace(&mut node.place, to);
        if to == Place::Ahead {
            // Here it tells since when it waits.
            node.mark(vm.granule(self.granule_bits), 0);
        }
        vm.queues[from as usize].remove(&mut self.nodes, n);
        vm.queues[to as usize].push(&mut self.nodes, n);
    }

    /// Blocks of a node go, and their frames are appended to `frames`.
    pub(super) fn take(
        &mut self,
        n: u32,
        blocks: Mask,
        frames: &mut Vec<Frame>,
        gone: &mut Vec<Gone>,
    ) {
        frames.extend(slots(blocks).map(|slot| self.nodes.frame(n, slot)));
        self.vms[self.nodes[n].name.vm().index()].held -= u64::from(blocks.count_ones());
        self.unname(n, blocks, gone);
    }

    /// Nobody finds these blocks of a node any more.
    pub(super) fn unname(&mut self, n: u32, blocks: Mask, gone: &mut Vec<Gone>) {
        let node = &self.nodes[n];
        let (vm, first, before) = (node.name.vm(), node.name.first_block(), node.read());
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
        self.vms[vm.index()].unused -= u64::from(unused.count_ones());
        self.nodes.take(n, blocks);
        self.settle(n, before);
    }
}
