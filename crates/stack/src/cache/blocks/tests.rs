//! After each random step, what is counted is what is there.

use super::*;
use nodes::lowest;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::num::NonZeroU32;

const VMS: u16 = 3;

/// A read into frames that is under way: of which VM, from which block on.
type Fetch = (VmId, u64, Vec<Frame>);

/// A VM's nodes: each stands in the lists where it belongs, linked both ways, and in no other.
fn nodes_of(blocks: &Blocks, vm: usize) -> BTreeSet<u32> {
    let standing = Place::ALL.map(|place| {
        let list = blocks.vms[vm].lists[place as usize];
        let (mut older, mut n, mut count, mut here) = (NONE, list.oldest, 0, BTreeSet::new());
        while n != NONE {
            let node = &blocks.nodes[n];
            assert_eq!(node.link(place).older, older);
            assert!(here.insert(n), "a node is in a list twice");
            count += u64::from(node.blocks(place).count_ones());
            (older, n) = (n, node.link(place).newer);
        }
        assert_eq!(list.newest, older);
        assert!(matches!(place, Place::Ahead | Place::Coming) || list.blocks == count);
        here
    });
    let all: BTreeSet<u32> = standing.iter().flatten().copied().collect();
    for (place, here) in Place::ALL.into_iter().zip(&standing) {
        let belongs = |n: u32| blocks.nodes[n].blocks(place) != 0;
        assert!(all.iter().all(|&n| here.contains(&n) == belongs(n)), "{place:?}");
    }
    all
}

/// Frames of a list that begins with this one.
fn listed(blocks: &Blocks, first: u32) -> Vec<Frame> {
    let some = |frame| (frame != NONE).then_some(frame);
    let next = |&frame: &u32| some(blocks.links[frame as usize]);
    std::iter::successors(some(first), next).map(Frame).collect()
}

/// Each frame is in exactly one place, and all counts are sums.
fn check(blocks: &Blocks, fetches: &[Fetch]) {
    let mut frames: Vec<Frame> = (blocks.fresh..blocks.links.len() as u32).map(Frame).collect();
    frames.extend(listed(blocks, blocks.bare));
    assert_eq!(blocks.links.len() - frames.len(), blocks.backed as usize);
    frames.extend(listed(blocks, blocks.free));
    let (mut all_nodes, mut names) = (0, BTreeSet::new());
    for number in 0..blocks.vms.len() {
        let (mut filling, mut unused, mut present) = (BTreeSet::new(), 0, 0);
        for n in nodes_of(blocks, number) {
            let node = &blocks.nodes[n];
            assert_eq!(blocks.index.peek(&blocks.nodes, node.name), Some(n));
            assert_eq!(node.valid & node.filling, 0);
            assert_eq!(node.unused & !node.prefetched, 0);
            assert_eq!((node.prefetched | node.used_once() | node.main) & !node.present(), 0);
            assert_ne!(node.present(), 0, "a node without blocks");
            assert_eq!(node.name.vm().index(), number);
            assert!(names.insert(node.name.0), "two nodes of one name");
            let frame = |slot| node.frame(slot);
            frames.extend(slots(node.valid).map(frame));
            filling.extend(slots(node.filling).map(frame));
            unused += u64::from(node.unused.count_ones());
            present += u64::from(node.present().count_ones());
            all_nodes += 1;
        }
        let vm = &blocks.vms[number];
        let read_into = fetches.iter().filter(|fetch| fetch.0.index() == number);
        let read_into: BTreeSet<Frame> = read_into.flat_map(|fetch| fetch.2.clone()).collect();
        assert!(filling.is_subset(&read_into));
        let orphans = (read_into.len() - filling.len()) as u64;
        assert_eq!((vm.filling, vm.orphans), (read_into.len() as u64, orphans));
        assert_eq!((vm.held, vm.unused), (present + orphans, unused));
        frames.extend(read_into);
    }
    frames.sort();
    let expected: Vec<_> = (0..blocks.links.len() as u32).map(Frame).collect();
    assert_eq!(frames, expected, "each frame is in one place");
    assert_eq!(blocks.index.len(&blocks.nodes), all_nodes);
}

/// One event: what, which VM, which block, and a number to derive the rest from.
type Step = (u8, u16, u64, u32);

fn step(blocks: &mut Blocks, fetches: &mut Vec<Fetch>, (what, vm, block, more): Step) {
    let (vm, gone) = (VmId::new(vm % VMS), &mut Vec::new());
    let block = block % (3 * blocks.links.len() as u64 + 20);
    let end = block + u64::from(more % 40) + 1;
    match what % 16 {
        0..6 => {
            let (wanted, mut frames) = (blocks.absent(vm, block, end), Vec::new());
            if !wanted.is_empty() {
                let account = (more >> 8) as Account % 3;
                let (first, len) = (wanted.start, wanted.end - wanted.start);
                blocks.reserve(vm, wanted, account, more % 2 == 0, &mut frames, gone);
                assert!(frames.len() as u64 <= len);
                fetches.push((vm, first, frames));
            }
        }
        6..12 if !fetches.is_empty() => {
            let (vm, first, frames) = fetches.swap_remove(more as usize % fetches.len());
            blocks.filled(vm, first, &frames, !more.is_multiple_of(7), gone);
        }
        12 => _ = blocks.hit(vm, block, end, &mut Vec::new()),
        13 if more % 2 == 0 => blocks.leave(vm, block, end),
        13 => blocks.touch(vm, block, &mut Vec::new()),
        14 => blocks.forget(vm, block, if more % 8 == 0 { u64::MAX } else { end }, gone),
        15 if more % 8 == 0 => {
            blocks.detach(vm, gone);
            blocks.attach(vm, NonZeroU32::new(more % 3 + 1).unwrap());
        }
        15 if more % 8 < 3 => blocks.set_limit((more >> 8) % (blocks.links.len() as u32 + 2)),
        15 => trim(blocks, fetches, (more >> 8) as usize % 64, gone),
        _ => {}
    }
    let unused = gone.iter().filter(|gone| gone.unused.is_some());
    assert!(unused.clone().all(|gone| gone.prefetched && !gone.blocks.is_empty()));
}

/// Take back up to `most` frames. All of those above the limit, but those that are being
/// read into, go if there is room for them.
fn trim(blocks: &mut Blocks, fetches: &[Fetch], most: usize, gone: &mut Vec<Gone>) {
    let above = blocks.backed.saturating_sub(blocks.limit) as usize;
    let filling: usize = fetches.iter().map(|fetch| fetch.2.len()).sum();
    let (mut bare, before) = (Vec::new(), blocks.backed as usize);
    blocks.trim(most, &mut bare, gone);
    assert_eq!(bare.len(), most.min(above).min(before - filling));
    assert_eq!(blocks.backed as usize, before - bare.len());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn all_counts_are_sums(
        frames in 0..200u32,
        seed in any::<u64>(),
        steps in prop::collection::vec(any::<Step>(), 0..400),
    ) {
        let (mut blocks, mut fetches) = (Blocks::new(frames, seed), Vec::new());
        (0..VMS).for_each(|vm| blocks.attach(VmId::new(vm), NonZeroU32::MIN));
        for event in steps {
            let before = blocks.backed.max(blocks.limit);
            step(&mut blocks, &mut fetches, event);
            check(&blocks, &fetches);
            prop_assert!(blocks.backed <= before, "more is backed than may be");
        }
        for (vm, first, frames) in std::mem::take(&mut fetches) {
            blocks.filled(vm, first, &frames, true, &mut Vec::new());
        }
        (0..VMS).for_each(|vm| blocks.forget(VmId::new(vm), 0, u64::MAX, &mut Vec::new()));
        check(&blocks, &[]);
        prop_assert_eq!(listed(&blocks, blocks.free).len(), blocks.backed as usize);
        blocks.set_limit(0);
        trim(&mut blocks, &[], usize::MAX, &mut Vec::new());
        check(&blocks, &[]);
        prop_assert_eq!(blocks.backed, 0);
    }

    /// Against a counter for each block.
    #[test]
    fn uses_are_counted_by_blocks(events in prop::collection::vec((0..4u16, any::<Mask>()), 0..60)) {
        let mut blocks = Blocks::new(1, 1);
        let name = Name::of(VmId::new(0), 0).unwrap();
        let home = blocks.index.home(name);
        let n = blocks.nodes.add(name, home);
        let node = &mut blocks.nodes[n];
        let (mut uses, mut last, mut granule) = ([0u8; 16], [None; 16], 0);
        for (what, mask) in events {
            match what {
                0 => granule += 1,
                1 => {
                    node.less_uses(mask);
                    slots(mask).for_each(|slot| uses[slot] = uses[slot].saturating_sub(1));
                }
                _ => {
                    node.count(granule, mask);
                    for slot in slots(mask) {
                        if last[slot].replace(granule) != Some(granule) {
                            uses[slot] = (uses[slot] + 1).min(3);
                        }
                    }
                }
            }
            let with = |least| (0..16).filter(|&n| uses[n] >= least).map(|n| 1 << n).sum::<Mask>();
            prop_assert_eq!((node.used_once(), node.used_twice()), (with(1), with(2)));
        }
    }

    #[test]
    fn masks_are_cut_as_lists_are(bits in any::<Mask>(), most in 0..20usize) {
        let list: Vec<usize> = (0..16).filter(|n| bits >> n & 1 == 1).collect();
        prop_assert_eq!(slots(bits).collect::<Vec<_>>(), &list[..]);
        let first: Vec<_> = slots(lowest(bits, most)).collect();
        prop_assert_eq!(&first[..], &list[..most.min(list.len())]);
        let in_runs: Vec<_> = runs(bits).flat_map(|(from, to)| from as usize..to as usize).collect();
        prop_assert_eq!(in_runs, list);
        let apart = runs(bits).zip(runs(bits).skip(1)).all(|(a, b)| a.1 < b.0);
        prop_assert!(apart, "two runs touch");
    }
}

#[test]
fn no_block_that_waits_ahead_is_taken_with_its_node() {
    let (vm, mut blocks, mut gone) = (VmId::new(0), Blocks::new(16, 1), Vec::new());
    blocks.attach(vm, NonZeroU32::MIN);
    let mut frames = Vec::new();
    blocks.reserve(vm, 0..8, 0, true, &mut frames, &mut gone);
    blocks.filled(vm, 0, &frames, true, &mut gone);
    assert!(blocks.hit(vm, 2, 4, &mut Vec::new()));
    // Two of the eight are read, and eight frames are free: ten go before the rest.
    let mut more = Vec::new();
    blocks.reserve(vm, 16..26, 0, false, &mut more, &mut gone);
    let taken: Vec<_> = gone.iter().map(|gone| (gone.blocks.clone(), gone.unused)).collect();
    assert_eq!((more.len(), taken), (10, vec![(2..4, None)]));
    let node = blocks.find(vm, 0);
    assert_eq!(node, Some(blocks.vms[0].lists[Place::Ahead as usize].oldest));
    check(&blocks, &[(vm, 16, more)]);
}

#[test]
fn what_was_left_goes_first() {
    let (vm, mut blocks, mut gone) = (VmId::new(0), Blocks::new(64, 1), Vec::new());
    blocks.attach(vm, NonZeroU32::MIN);
    let mut reserve = |blocks: &mut Blocks, range: Range<u64>, prefetched: bool| {
        let (first, mut frames) = (range.start, Vec::new());
        blocks.reserve(vm, range, 0, prefetched, &mut frames, &mut gone);
        blocks.filled(vm, first, &frames, true, &mut gone);
        gone.drain(..).map(|gone| gone.blocks).collect::<Vec<_>>()
    };
    reserve(&mut blocks, 0..16, true);
    reserve(&mut blocks, 16..24, true);
    (32..72).step_by(8).for_each(|first| _ = reserve(&mut blocks, first..first + 8, false));
    // Of the second node half is read meanwhile; of the third nothing is there.
    assert!(blocks.hit(vm, 16, 20, &mut Vec::new()));
    blocks.leave(vm, 16, 40);
    assert_eq!(reserve(&mut blocks, 80..88, false), [20..24, 32..36]);
    blocks.leave(vm, 0, 16);
    assert!(blocks.hit(vm, 0, 4, &mut Vec::new()), "its reader came back for four");
    // The others of that node wait anew.
    assert_eq!(reserve(&mut blocks, 96..104, false), std::slice::from_ref(&(36..44)));
    check(&blocks, &[]);
}

#[test]
fn a_block_beyond_all_names_is_not_cached() {
    let (vm, mut blocks) = (VmId::new(0), Blocks::new(64, 1));
    blocks.attach(vm, NonZeroU32::MIN);
    // As a name it would be a block of VM 1.
    let (block, mut frames) = (1 << 48 | 5, Vec::new());
    blocks.reserve(vm, block..block + 1, 0, false, &mut frames, &mut Vec::new());
    assert_eq!((frames, blocks.lookup(vm, block)), (Vec::new(), Block::Absent));
}

#[test]
fn what_is_forgotten_takes_no_memory() {
    const FRAMES: u64 = 1 << 14;
    let mut blocks = Blocks::new(FRAMES as u32, 1);
    let (bytes, mut gone) = (blocks.bytes(), Vec::new());
    for vm in (0..4).map(VmId::new) {
        blocks.attach(vm, NonZeroU32::MIN);
    }
    // Each VM in turn has all frames, one block in a node, and forgets them: as far
    // from the order of reading as can be.
    for vm in (0..8).map(|round| VmId::new(round % 4)) {
        let mut read = |blocks: &mut Blocks, block: u64| {
            let mut frames = Vec::new();
            blocks.reserve(vm, block..block + 1, 0, false, &mut frames, &mut gone);
            blocks.filled(vm, block, &frames, true, &mut gone);
        };
        (0..FRAMES).for_each(|n| read(&mut blocks, n * 16));
        (0..FRAMES).rev().for_each(|n| blocks.forget(vm, n * 16, n * 16 + 1, &mut Vec::new()));
        // Read and forgotten again and again, with others there.
        (0..FRAMES / 2).for_each(|n| read(&mut blocks, n * 16));
        for n in FRAMES..3 * FRAMES {
            read(&mut blocks, n * 16);
            blocks.forget(vm, n * 16, n * 16 + 1, &mut Vec::new());
        }
        assert_eq!(blocks.resident(vm), FRAMES / 2);
        blocks.forget(vm, 0, u64::MAX, &mut Vec::new());
        assert_eq!((blocks.resident(vm), blocks.bytes()), (0, bytes));
    }
    check(&blocks, &[]);
}
