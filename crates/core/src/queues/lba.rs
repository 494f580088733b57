//! Requests by offset, and the choose rule over them.

use crate::request::{Extent, Request, RequestId};
use crate::units::{Lba, Sectors};

/// Requests sorted by their first sector; equal sectors by slot.
///
/// Keys are in sorted chunks, found by a sorted table of separators: one cache line or two for the
/// few dozen requests that a disk usually has queued, where a tree would chase pointers, and still
/// two short searches and two short moves for a million. A chunk that has become sparse joins a
/// neighbour, so that the memory follows the number of keys.
#[derive(Debug, Default)]
pub struct LbaQueue {
    /// Ascending, none empty unless it is the only one.
    chunks: Vec<Vec<u128>>,
    /// For each chunk a key that is at most its first one and above all of the
    /// chunk before; zero for the first.
    separators: Vec<u128>,
    len: usize,
}

/// A request in an [`LbaQueue`]: its first sector and its id.
pub type Queued = (Lba, RequestId);

/// Most keys in a chunk; a full one is split in half.
const CHUNK_MAX: usize = 256;
/// A chunk with fewer keys joins a neighbour if both fit in half a chunk: far
/// from splitting again, so each joining is paid for by as many removals.
const CHUNK_SPARSE: usize = CHUNK_MAX / 4;

/// Sector and slot in one number, which compares faster than a pair.
fn key(lba: Lba, slot: usize) -> u128 {
    u128::from(lba.get()) << 32 | slot as u128
}

fn unpack(key: u128) -> (Lba, RequestId) {
    (Lba::new((key >> 32) as u64), RequestId::new(key as u32))
}

impl LbaQueue {
    /// An empty queue, which takes no memory before its first request.
    pub fn new() -> Self {
        Self::default()
    }
    /// Requests in the queue.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The chunk that has or would have `key`.
    fn chunk_of(&self, key: u128) -> usize {
        match self.separators.len() {
            0 | 1 => 0,
            _ => self.separators.partition_point(|&s| s <= key) - 1,
        }
    }
    /// The position of the first key at or above `key`: a chunk, and an index in it that may be its
    /// end.
    fn lower_bound(&self, key: u128) -> (usize, usize) {
        let at = self.chunk_of(key);
        let place = self.chunks.get(at).map_or(0, |c| c.partition_point(|&k| k < key));
        (at, place)
    }
    fn at(&self, (at, place): (usize, usize)) -> Option<(Lba, RequestId)> {
        let found = match self.chunks.get(at)?.get(place) {
            Some(key) => key,
            None => self.chunks.get(at + 1)?.first()?,
        };
        Some(unpack(*found))
    }
    fn just_before(&self, (at, place): (usize, usize)) -> Option<(Lba, RequestId)> {
        let found = match place.checked_sub(1) {
            Some(place) => self.chunks.get(at)?.get(place)?,
            None => self.chunks.get(at.checked_sub(1)?)?.last()?,
        };
        Some(unpack(*found))
    }

    /// Add a request under its first sector; others may begin there too.
    pub fn insert(&mut self, request: &Request) {
        let key = key(request.extent.start(), request.id.slot());
        if self.chunks.is_empty() {
            self.chunks.push(Vec::new());
            self.separators.push(0);
        }
        let (mut at, mut place) = self.lower_bound(key);
        if self.chunks[at].len() == CHUNK_MAX {
            let upper = self.chunks[at].split_off(CHUNK_MAX / 2);
            self.separators.insert(at + 1, upper[0]);
            self.chunks.insert(at + 1, upper);
            (at, place) = self.lower_bound(key);
        }
        self.chunks[at].insert(place, key);
        self.len += 1;
    }
    /// Take a request out; was it there?
    pub fn remove(&mut self, request: &Request) -> bool {
        self.take(request).is_some()
    }
    /// Take a request out, and say which one follows it. `None` when it was not there.
    pub fn take(&mut self, request: &Request) -> Option<Option<(Lba, RequestId)>> {
        let key = key(request.extent.start(), request.id.slot());
        let (at, place) = self.lower_bound(key);
        let chunk = self.chunks.get_mut(at)?;
        if chunk.get(place) != Some(&key) {
            return None;
        }
        chunk.remove(place);
        self.len -= 1;
        let next = self.at((at, place));
        if self.chunks[at].len() < CHUNK_SPARSE && self.chunks.len() > 1 {
            self.join(at);
        }
        Some(next)
    }

    /// A queued request has another extent now; `before` is the request as it was.
    pub fn resize(&mut self, before: &Request, extent: Extent) {
        if before.extent.start() != extent.start() {
            self.remove(before);
            self.insert(&Request { extent, ..*before });
        }
    }

    /// Join a sparse chunk with the one after or before, if they fit.
    fn join(&mut self, at: usize) {
        if self.chunks[at].is_empty() {
            self.chunks.remove(at);
            self.separators.remove(at);
            self.separators[0] = 0;
            return;
        }
        let fits = |low: &usize| {
            let (low, high) = (self.chunks.get(*low), self.chunks.get(*low + 1));
            low.zip(high).is_some_and(|(low, high)| low.len() + high.len() <= CHUNK_MAX / 2)
        };
        let Some(low) = Some(at).filter(fits).or(at.checked_sub(1).filter(fits)) else { return };
        let high = self.chunks.remove(low + 1);
        self.separators.remove(low + 1);
        self.chunks[low].extend_from_slice(&high);
    }

    /// The highest request that starts before `lba`, and the lowest that
    /// starts at or after it.
    pub fn around(&self, lba: Lba) -> (Option<Queued>, Option<Queued>) {
        let place = self.lower_bound(key(lba, 0));
        (self.just_before(place), self.at(place))
    }
    /// The lowest request that starts at or after `lba`.
    pub fn at_or_after(&self, lba: Lba) -> Option<(Lba, RequestId)> {
        self.at(self.lower_bound(key(lba, 0)))
    }
    /// The highest request that starts before `lba`.
    pub fn before(&self, lba: Lba) -> Option<(Lba, RequestId)> {
        self.just_before(self.lower_bound(key(lba, 0)))
    }
    /// The request with the lowest first sector, and that sector.
    pub fn first(&self) -> Option<(Lba, RequestId)> {
        Some(unpack(*self.chunks.first()?.first()?))
    }
    /// The request with the highest first sector, and that sector.
    pub fn last(&self) -> Option<(Lba, RequestId)> {
        Some(unpack(*self.chunks.last()?.last()?))
    }
    /// The request whose start lies nearest to `lba`; forward wins a tie.
    pub fn nearest(&self, lba: Lba) -> Option<(Lba, RequestId)> {
        match self.around(lba) {
            (Some(b), Some(f)) if b.0.distance(lba) < f.0.distance(lba) => Some(b),
            (b, f) => f.or(b),
        }
    }
    /// The requests that start at or after `lba`, ascending.
    pub fn ascending(&self, lba: Lba) -> impl Iterator<Item = Queued> + '_ {
        let (at, place) = self.lower_bound(key(lba, 0));
        let first = self.chunks.get(at).map_or(&[][..], |chunk| &chunk[place..]);
        let later = self.chunks.iter().skip(at + 1).flatten();
        first.iter().chain(later).map(|&key| unpack(key))
    }
    /// The requests that start before `lba`, descending.
    pub fn descending(&self, lba: Lba) -> impl Iterator<Item = Queued> + '_ {
        let (at, place) = self.lower_bound(key(lba, 0));
        let first = self.chunks.get(at).map_or(&[][..], |chunk| &chunk[..place]);
        let earlier = self.chunks[..at].iter().rev().flat_map(|chunk| chunk.iter().rev());
        first.iter().rev().chain(earlier).map(|&key| unpack(key))
    }
    /// All requests in ascending order of their first sectors.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Lba, RequestId)> + '_ {
        self.chunks.iter().flatten().map(|&key| unpack(key))
    }
    /// Remove all requests and give their memory back.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The choose rule that anticipatory and CFQ share (`cfq_choose_req`, `as_choose_req`): of the next
/// request forward and the next backward from `head`, the one that costs less. Backward up to
/// `back_seek_max` costs `penalty` times its length. Further back counts as wrapped: a request
/// ahead beats it, and between two wrapped ones the lower sector wins, because the arm has to sweep
/// back anyway.
pub fn choose(
    queue: &LbaQueue,
    head: Lba,
    back_seek_max: Sectors,
    penalty: u64,
) -> Option<(Lba, RequestId)> {
    let (backward, forward) = queue.around(head);
    match (forward, backward) {
        (Some(f), Some(b)) => {
            let back = b.0.distance(head);
            let near = back <= back_seek_max
                && back.get().saturating_mul(penalty) < f.0.distance(head).get();
            Some(if near { b } else { f })
        }
        (None, Some(b)) => {
            let within = b.0.distance(head) <= back_seek_max;
            Some(if within { b } else { queue.first()? })
        }
        (f, None) => f,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Extent, Op, VmId};
    use crate::units::Instant;

    fn request(slot: u32, lba: u64) -> Request {
        Request {
            id: RequestId::new(slot),
            vm: VmId::new(0),
            tag: None,
            op: Op::Read,
            sync: true,
            extent: Extent::new(Lba::new(lba), Sectors::new(8)).unwrap(),
            arrived: Instant::ZERO,
        }
    }

    fn queue(lbas: &[u64]) -> LbaQueue {
        let mut q = LbaQueue::new();
        for (slot, &lba) in lbas.iter().enumerate() {
            q.insert(&request(slot as u32, lba));
        }
        q
    }

    #[test]
    fn lba_queue_agrees_with_a_tree() {
        let (mut queue, mut tree) = (LbaQueue::new(), std::collections::BTreeSet::new());
        let mut random = 1u64;
        for step in 0..20_000u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Grow to thousands, shrink to nothing, and grow again; sectors collide.
            let (slot, lba) = ((random >> 40) as u32 % 8_000, (random >> 33) % 3_000);
            let present: Option<(Lba, RequestId)> =
                tree.iter().find(|e: &&(Lba, RequestId)| e.1 == RequestId::new(slot)).copied();
            let growing = step % 10_000 < 6_000;
            match present {
                None if growing => {
                    queue.insert(&request(slot, lba));
                    tree.insert((Lba::new(lba), RequestId::new(slot)));
                }
                Some(entry) if !growing || slot % 4 == 0 => {
                    tree.remove(&entry);
                    let next = tree.range(entry..).next().copied();
                    assert_eq!(queue.take(&request(slot, entry.0.get())), Some(next));
                }
                _ => assert!(!queue.remove(&request(slot, 5_000))),
            }
            let from = (Lba::new(lba), RequestId::new(0));
            let expected =
                (tree.range(..from).next_back().copied(), tree.range(from..).next().copied());
            assert_eq!(queue.around(from.0), expected);
            if step % 100 == 0 {
                assert!(queue.ascending(from.0).eq(tree.range(from..).copied()));
                assert!(queue.descending(from.0).eq(tree.range(..from).rev().copied()));
            }
            assert_eq!(
                (queue.first(), queue.last()),
                (tree.first().copied(), tree.last().copied())
            );
            assert_eq!(queue.len(), tree.len());
        }
        assert!(queue.iter().eq(tree.iter().copied()));
    }

    #[test]
    fn chunks_follow_the_number_of_keys() {
        let mut queue = LbaQueue::new();
        let sparse = |q: &LbaQueue| q.chunks.len() > q.len / (CHUNK_MAX / 4) + 2;
        // Fill, thin out to one in 300, and fill another range, again and again.
        for round in 0..20u32 {
            let all = round * 20_000..(round + 1) * 20_000;
            for slot in all.clone() {
                queue.insert(&request(slot, u64::from(slot)));
            }
            for slot in all.filter(|slot| slot % 300 > 0) {
                assert!(queue.remove(&request(slot, u64::from(slot))));
                assert!(!sparse(&queue), "{} chunks for {} keys", queue.chunks.len(), queue.len);
            }
        }
        assert_eq!(queue.len(), 400_000 / 300 + 1);
        assert!(queue.chunks.iter().all(|c| c.capacity() <= CHUNK_MAX && !c.is_empty()));
        assert!(queue.iter().is_sorted());
    }

    #[test]
    fn choose_follows_the_rule_of_cfq() {
        let far = Sectors::new(100);
        let pick =
            |lbas: &[u64], head| choose(&queue(lbas), Lba::new(head), far, 2).unwrap().0.get();
        assert_eq!(pick(&[90, 130], 100), 90, "10 back costs 20, less than 30 ahead");
        assert_eq!(pick(&[90, 115], 100), 115, "15 ahead beats 10 back at double cost");
        assert_eq!(pick(&[90, 120], 100), 120, "a tie goes forward");
        assert_eq!(pick(&[10, 5_000], 1_000), 5_000, "wrapped loses against ahead");
        assert_eq!(pick(&[10, 500], 1_000), 10, "both wrapped: the lower sector");
        assert_eq!(pick(&[10, 950], 1_000), 950, "not wrapped beats wrapped");
    }

    #[test]
    fn nearest_looks_both_ways() {
        let q = queue(&[10, 50, 100]);
        let at = |lba| q.nearest(Lba::new(lba)).unwrap().0.get();
        assert_eq!((at(0), at(29), at(30), at(76), at(500)), (10, 10, 50, 100, 100));
    }
}
