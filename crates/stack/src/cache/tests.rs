//! The cache's answers, case by case.

use super::*;
use seekway_core::units::Nanos;

fn extent(start: u64, len: u64) -> Extent {
    Extent::new(Lba::new(start), Sectors::new(len)).unwrap()
}

const VM: VmId = VmId::new(0);
const T0: Instant = Instant::ZERO;

fn cache(blocks: u64) -> HostCache {
    let mut cache = HostCache::new(Config::new(blocks * BLOCK_BYTES), "none").unwrap();
    cache.attach(T0, VM, NonZeroU32::MIN, Sectors::new(1003));
    cache
}

fn read(cache: &mut HostCache, start: u64, len: u64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    cache.read(T0 + Nanos::new(1), VM, None, extent(start, len), 7, &mut pieces);
    pieces
}

#[test]
fn what_was_read_is_found_again() {
    let mut cache = cache(16);
    let pieces = read(&mut cache, 9, 10);
    let [Piece::Fetch(id, part)] = pieces[..] else { panic!("{pieces:?}") };
    assert_eq!((part, cache.fetch(id).extent), (extent(9, 10), extent(8, 16)));
    // Meanwhile another reader waits for the same, and reads what follows itself.
    let pieces = read(&mut cache, 16, 16);
    let [Piece::Wait(first, a), Piece::Fetch(second, b)] = pieces[..] else { panic!("{pieces:?}") };
    assert_eq!((first, a, b), (id, extent(16, 8), extent(24, 8)));
    assert_eq!(cache.fetch(id).waiters.len(), 2);
    cache.fetched(T0, id, true);
    cache.fetched(T0, second, true);
    assert_eq!(read(&mut cache, 8, 24), [Piece::Cached(extent(8, 24))]);
    assert_eq!(cache.frames(VM, extent(9, 10)).count(), 2);
}

#[test]
fn what_is_written_is_not_cached() {
    let mut cache = cache(16);
    let [Piece::Fetch(id, _)] = read(&mut cache, 0, 16)[..] else { panic!() };
    cache.write(T0, VM, extent(3, 1));
    // Its read began before the write: nobody may join it, or find it later.
    assert!(matches!(read(&mut cache, 0, 16)[..], [Piece::Direct(_), Piece::Wait(..)]));
    cache.fetched(T0, id, true);
    cache.written(VM, extent(3, 1));
    assert!(matches!(read(&mut cache, 0, 16)[..], [Piece::Fetch(..), Piece::Cached(_)]));
}

#[test]
fn the_disks_end_is_not_passed() {
    let mut cache = cache(16);
    let [Piece::Fetch(id, _)] = read(&mut cache, 1002, 1)[..] else { panic!() };
    assert_eq!(cache.fetch(id).extent, extent(1000, 3));
    cache.fetched(T0, id, true);
    // The disk grows: what the block had past the old end is not known.
    cache.attach(T0, VM, NonZeroU32::MIN, Sectors::new(2000));
    assert!(matches!(read(&mut cache, 1000, 3)[..], [Piece::Fetch(..)]));
}

/// Proposes what it was given, and then its last one for ever.
struct Proposes(Vec<Proposal>, bool);

impl Prefetcher for Proposes {
    fn propose(&mut self, _now: Instant, _room: Sectors) -> Option<Proposal> {
        match self.0.len() {
            1 if self.1 => self.0.first().copied(),
            0 => None,
            _ => Some(self.0.remove(0)),
        }
    }
}

fn proposing(blocks: u64, capacity: u64, extents: &[Extent], forever: bool) -> HostCache {
    let proposals = extents.iter().map(|&extent| Proposal { vm: VM, tag: None, extent });
    let prefetcher = Box::new(Proposes(proposals.collect(), forever));
    let mut cache = HostCache::with(Config::new(blocks * BLOCK_BYTES), prefetcher);
    cache.attach(T0, VM, NonZeroU32::MIN, Sectors::new(capacity));
    cache
}

fn usage(cache: &HostCache) -> Usage {
    let mut sum = Usage::default();
    cache.usage(&mut |_, _, usage| sum += usage);
    sum
}

#[test]
fn a_prefetch_that_was_under_way_counts_for_no_later_vm() {
    let mut cache = proposing(64, 1000, &[extent(0, 64), extent(64, 64)], false);
    let (first, second) = (cache.propose(T0, 2).unwrap(), cache.propose(T0, 1).unwrap());
    cache.detach(T0, VM);
    cache.attach(T0, VM, NonZeroU32::MIN, Sectors::new(1000));
    cache.dropped(T0, first);
    cache.promoted(second);
    cache.fetched(T0, second, true);
    assert_eq!(usage(&cache), Usage::default());
    assert_eq!((cache.resident_bytes(VM), cache.fetching()), (0, 0));
}

#[test]
fn what_was_prefetched_has_one_fate() {
    let mut cache = proposing(64, 1000, &[extent(0, 64), extent(64, 64)], false);
    let (first, second) = (cache.propose(T0, 2).unwrap(), cache.propose(T0, 1).unwrap());
    // Some of the first is written over while it waits: that is wasted, and stays
    // so when the rest is dropped, for these are counters.
    cache.write(T0, VM, extent(0, 8));
    assert_eq!(usage(&cache).wasted, 8);
    cache.dropped(T0, first);
    cache.fetched(T0, second, true);
    assert!(matches!(read(&mut cache, 64, 24)[..], [Piece::Cached(_)]));
    cache.write(T0, VM, extent(64, 64));
    let Usage { prefetched, used, wasted, dropped, .. } = usage(&cache);
    assert_eq!((prefetched, used, wasted, dropped), (128, 24, 48, 56));
}

#[test]
fn writes_outlive_a_vm_that_returns() {
    let mut cache = cache(16);
    cache.write(T0, VM, extent(0, 8));
    cache.detach(T0, VM);
    cache.attach(T0, VM, NonZeroU32::MIN, Sectors::new(1003));
    assert!(matches!(read(&mut cache, 0, 8)[..], [Piece::Direct(_)]));
    cache.written(VM, extent(0, 8));
    assert!(matches!(read(&mut cache, 0, 8)[..], [Piece::Fetch(..)]));
}

#[test]
fn the_last_block_counts_by_its_sectors() {
    let mut cache = proposing(64, 1003, &[extent(992, 11), extent(0, 8)], false);
    let id = cache.propose(T0, 1).unwrap();
    cache.fetched(T0, id, true);
    assert_eq!(read(&mut cache, 1000, 3), [Piece::Cached(extent(1000, 3))]);
    assert_eq!((usage(&cache).prefetched, usage(&cache).used), (11, 3));
    // Another weight is no reason to forget it; a larger disk is.
    cache.attach(T0, VM, NonZeroU32::new(2).unwrap(), Sectors::new(1003));
    assert_eq!(cache.resident_bytes(VM), 2 * BLOCK_BYTES);
    cache.attach(T0, VM, NonZeroU32::MIN, Sectors::new(1004));
    assert_eq!(cache.resident_bytes(VM), BLOCK_BYTES);
    cache.write(T0, VM, extent(0, 1004));
    assert_eq!((usage(&cache).used, usage(&cache).wasted), (3, 8));
}

#[test]
fn no_cache_is_too_small() {
    let mut none = proposing(0, 1000, &[extent(0, 64)], false);
    assert_eq!(read(&mut none, 3, 90), [Piece::Direct(extent(3, 90))]);
    assert_eq!((none.propose(T0, 1), none.capacity_bytes()), (None, 0));
    // A prefetch unit of 32 blocks, and one frame.
    let mut one = proposing(1, 1000, &[extent(0, 256), extent(8, 8)], false);
    let id = one.propose(T0, 1).unwrap();
    assert_eq!((one.fetch(id).extent, one.propose(T0, 1)), (extent(0, 8), None));
    assert!(matches!(read(&mut one, 0, 16)[..], [Piece::Wait(..), Piece::Direct(_)]));
    one.fetched(T0, id, true);
    assert!(matches!(read(&mut one, 0, 16)[..], [Piece::Direct(_), Piece::Fetch(..)]));
}

#[test]
fn a_proposal_that_is_cached_is_bounded() {
    // The first is cached, then comes for ever; the disk is a petabyte.
    const CAPACITY: u64 = 1 << 41;
    let huge = extent(0, CAPACITY);
    let mut cache = proposing(1 << 15, CAPACITY, &[huge], true);
    let pieces = read(&mut cache, 0, 100_000);
    let [Piece::Fetch(id, _)] = pieces[..] else { panic!("{pieces:?}") };
    cache.fetched(T0, id, true);
    let before = T0 + Nanos::new(5);
    assert_eq!(cache.propose(before, 64), None);
    // It has not looked at all: it wants to be asked again.
    assert_eq!(cache.next_wake(), Some(before + Nanos::new(1)));
    assert_eq!((cache.propose(before, 0), cache.next_wake()), (None, None));
    // With room for more than is cached it gets there,
    // for which it has to look up 12,500 blocks, and does not do so at once.
    let asked = (0..100).map(|_| cache.propose(before, 1000));
    let (times, id) = asked.enumerate().find_map(|(n, id)| Some((n, id?))).unwrap();
    assert!(times >= 3, "after {times} calls");
    assert_eq!(cache.fetch(id).extent, extent(100_000, 256));
    assert_eq!(cache.next_wake(), None);
}

#[test]
fn the_rest_of_a_proposal_comes_next() {
    let mut cache = proposing(256, 1003, &[extent(600, 1 << 40), extent(0, 8)], false);
    let next = |cache: &mut HostCache| cache.propose(T0, 2).map(|id| cache.fetch(id).extent);
    assert_eq!(next(&mut cache), Some(extent(600, 256)));
    assert_eq!(next(&mut cache), Some(extent(856, 147)));
    assert_eq!(next(&mut cache), Some(extent(0, 8)));
    assert_eq!(next(&mut cache), None);
}

#[test]
fn a_proposal_survives_a_room_that_shrinks() {
    let mut cache = proposing(256, 4096, &[extent(0, 1024)], false);
    let starts: Vec<u64> = [4, 1, 1, 1, 1]
        .iter()
        .filter_map(|&room| Some(cache.propose(T0, room)?).map(|id| cache.fetch(id).extent))
        .map(|extent| extent.start().get())
        .collect();
    assert_eq!(starts, [0, 256, 512, 768]);
}

#[test]
fn the_last_sector_that_can_be_named_is_read() {
    let mut cache = HostCache::new(Config::new(1 << 20), "none").unwrap();
    cache.attach(T0, VM, NonZeroU32::MIN, Sectors::new(u64::MAX));
    let last = u64::MAX / BLOCK_SECTORS * BLOCK_SECTORS - 1;
    assert!(!read(&mut cache, last, 1).is_empty());
}

#[test]
fn a_read_of_a_gigabyte_is_cut_in_time_that_grows_with_it() {
    const SECTORS: u64 = 1 << 21;
    let mut cache = HostCache::new(Config::new(1 << 30), "none").unwrap();
    cache.attach(T0, VM, NonZeroU32::MIN, Sectors::new(SECTORS));
    // Every other block is cached: half of the pieces are fetches of their own.
    for block in (0..SECTORS / BLOCK_SECTORS).step_by(2) {
        let [Piece::Fetch(id, _)] = read(&mut cache, block * BLOCK_SECTORS, 8)[..] else {
            panic!()
        };
        cache.fetched(T0, id, true);
    }
    let pieces = read(&mut cache, 0, SECTORS);
    assert_eq!(pieces.len() as u64, SECTORS / BLOCK_SECTORS);
    for piece in pieces {
        if let Piece::Fetch(id, _) = piece {
            cache.fetched(T0, id, true);
        }
    }
    assert_eq!(read(&mut cache, 0, SECTORS), [Piece::Cached(extent(0, SECTORS))]);
}
