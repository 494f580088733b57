//! The table of blocks against a naive one, which learns from it only what
//! it lets go.

use proptest::prelude::*;
use seekway_core::request::VmId;
use seekway_stack::cache::{Account, Block, Blocks, FirstUse, Frame, Gone};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

#[derive(Clone, Copy, PartialEq, Debug)]
struct Known {
    frame: Frame,
    account: Account,
    prefetched: bool,
    used: bool,
    filling: bool,
}

/// The cache's contents as a map.
#[derive(Default)]
struct Naive {
    blocks: BTreeMap<(u16, u64), Known>,
    /// Being read into for blocks that were forgotten.
    orphans: Vec<(VmId, u64, Frame)>,
}

impl Naive {
    fn bury(&mut self, gone: &mut Vec<Gone>) {
        for Gone { vm, blocks, prefetched, unused } in gone.drain(..) {
            assert!(!blocks.is_empty());
            for block in blocks {
                let known = self.blocks.remove(&(vm.index() as u16, block));
                let known = known.expect("what goes was there");
                assert_eq!(prefetched, known.prefetched);
                assert_eq!(unused, (!known.used).then_some(known.account));
                if known.filling {
                    self.orphans.push((vm, block, known.frame));
                }
            }
        }
    }

    fn frames(&self) -> Vec<Frame> {
        let valid = self.blocks.values().map(|known| known.frame);
        let mut frames: Vec<_> = valid.chain(self.orphans.iter().map(|orphan| orphan.2)).collect();
        frames.sort();
        frames
    }
}

const VMS: u16 = 3;
/// Far apart, in one lane if a guest could choose them, and neighbours.
const SPREAD: [u64; 3] = [1, 16, 1 << 30];

/// One event: what, which VM, which block, and a number to derive the rest from.
type Step = (u8, u16, u64, u32);

struct Run {
    table: Blocks,
    naive: Naive,
    spread: u64,
    gone: Vec<Gone>,
}

impl Run {
    fn step(&mut self, (what, vm, block, more): Step, frames: u32) {
        let (n, vm) = (vm % VMS, VmId::new(vm % VMS));
        let block = block % (2 * u64::from(frames) + 8) * self.spread;
        let known = self.naive.blocks.get(&(n, block)).copied();
        let prefetched = more % 2 == 0;
        match (what % 16, known) {
            (0..8, None) => {
                let account = more as Account;
                let wanted = block..block + u64::from(more >> 8) % 16 + 1;
                let wanted = self.table.absent(vm, wanted.start, wanted.end);
                assert_eq!(self.naive.blocks.range((n, block)..(n, wanted.end)).count(), 0);
                let (first, mut frames) = (wanted.start, Vec::new());
                self.table.reserve(vm, wanted, account, prefetched, &mut frames, &mut self.gone);
                self.naive.bury(&mut self.gone);
                for (block, frame) in (first..).zip(frames) {
                    let used = !prefetched;
                    let known = Known { frame, account, prefetched, used, filling: true };
                    self.naive.blocks.insert((n, block), known);
                }
            }
            (0..8, Some(known)) => {
                let first = (!known.used).then_some(known.account);
                let first = first.map(|account| FirstUse { blocks: block..block + 1, account });
                let mut first_uses = Vec::new();
                self.table.touch(vm, block, &mut first_uses);
                assert_eq!(first_uses, Vec::from_iter(first));
                self.naive.blocks.get_mut(&(n, block)).unwrap().used = true;
            }
            (8..13, _) => self.fill(more),
            (13, _) => {
                let end = block.saturating_add(u64::from(more % 40) * self.spread);
                self.table.forget(vm, block, end, &mut self.gone);
                self.naive.bury(&mut self.gone);
                assert_eq!(self.naive.blocks.range((n, block)..(n, end)).count(), 0);
            }
            (14, _) if more % 8 == 0 => {
                self.table.forget(vm, block, u64::MAX, &mut self.gone);
                self.naive.bury(&mut self.gone);
                assert_eq!(self.naive.blocks.range((n, block)..(n + 1, 0)).count(), 0);
            }
            (15, _) if more % 8 == 0 => {
                self.table.detach(vm, &mut self.gone);
                self.naive.bury(&mut self.gone);
                assert_eq!(self.table.resident(vm), 0);
                self.table.attach(vm, NonZeroU32::new(more % 3 + 1).unwrap());
            }
            _ => {}
        }
    }

    /// A read that `more` chooses ends; one in five fails.
    fn fill(&mut self, more: u32) {
        let ok = !more.is_multiple_of(5);
        let filling = self.naive.blocks.iter().filter(|(_, known)| known.filling);
        let filling: Vec<_> = filling.map(|(&key, known)| (key, known.frame)).collect();
        let count = filling.len() + self.naive.orphans.len();
        if count == 0 {
            return;
        }
        match filling.get(more as usize % count) {
            Some(&(key, frame)) => {
                self.naive.blocks.get_mut(&key).unwrap().filling = false;
                let vm = VmId::new(key.0);
                self.table.filled(vm, key.1, &[frame], ok, &mut self.gone);
                self.naive.bury(&mut self.gone);
                assert_eq!(self.naive.blocks.contains_key(&key), ok);
            }
            None => {
                let orphan = self.naive.orphans.swap_remove(more as usize % count - filling.len());
                self.table.filled(orphan.0, orphan.1, &[orphan.2], ok, &mut self.gone);
                assert!(self.gone.is_empty());
            }
        }
    }

    fn check(&self, frames: u32) {
        let used = self.naive.frames();
        assert!(used.len() <= frames as usize, "{} of {frames} frames", used.len());
        assert!(used.windows(2).all(|pair| pair[0] != pair[1]), "a frame holds two blocks");
        assert!(used.last().is_none_or(|last| last.0 < frames));
        for vm in 0..VMS {
            let blocks = self.naive.blocks.range((vm, 0)..(vm + 1, 0));
            assert_eq!(self.table.resident(VmId::new(vm)), blocks.count() as u64);
            for n in 0..2 * u64::from(frames) + 8 {
                let block = n * self.spread;
                let expected = match self.naive.blocks.get(&(vm, block)) {
                    None => Block::Absent,
                    Some(known) if known.filling => Block::Filling(known.frame),
                    Some(known) => Block::Valid(known.frame),
                };
                assert_eq!(self.table.lookup(VmId::new(vm), block), expected);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_table_is_that_of_the_naive_one(
        frames in 0..70u32,
        seed in any::<u64>(),
        spread in prop::sample::select(&SPREAD[..]),
        steps in prop::collection::vec(any::<Step>(), 0..600),
    ) {
        let table = Blocks::new(frames, seed);
        let mut run = Run { table, naive: Naive::default(), spread, gone: Vec::new() };
        for vm in 0..VMS {
            run.table.attach(VmId::new(vm), NonZeroU32::MIN);
        }
        for (n, step) in steps.into_iter().enumerate() {
            run.step(step, frames);
            if n % 16 == 0 {
                run.check(frames);
            }
        }
        run.check(frames);
    }
}

#[test]
fn neighbours_get_neighbouring_frames() {
    let vm = VmId::new(0);
    let mut table = Blocks::new(64, 1);
    table.attach(vm, NonZeroU32::MIN);
    let mut gone = Vec::new();
    let mut read = |first: u64| -> Vec<u32> {
        let mut frames = Vec::new();
        table.reserve(vm, first..first + 8, 0, false, &mut frames, &mut gone);
        table.reserve(vm, first + 8..first + 16, 0, false, &mut frames, &mut gone);
        table.filled(vm, first, &frames, true, &mut gone);
        frames.iter().map(|frame| frame.0).collect()
    };
    for first in [0, 1008, 16, 3008, 4000, 5008] {
        let frames = read(first);
        assert!(frames.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{frames:?}");
    }
}
