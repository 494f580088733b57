//! The cache's answers, case by case.

use super::*;
use crate::units::Nanos;

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
