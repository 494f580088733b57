//! Queues that the schedulers share: requests by place, requests by age, and
//! tables indexed by a request's slot. All are plain data without a clock.

use crate::request::{Request, RequestId, VmId};
use crate::units::{Lba, Sectors};

/// A table indexed by request slot. Slots are dense (see [`RequestId`]), so
/// this is a vector, and looking up costs one bounds check.
#[derive(Debug)]
pub struct Slots<T> {
    entries: Vec<Option<T>>,
    len: usize,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Slots<T> {
    /// An empty table.
    pub fn new() -> Self {
        Slots { entries: Vec::new(), len: 0 }
    }
    /// Number of occupied slots.
    pub fn len(&self) -> usize {
        self.len
    }
    /// No slot is occupied.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Occupy a slot. Panics when it is taken: ids are unique while outstanding.
    pub fn insert(&mut self, id: RequestId, value: T) {
        let slot = id.slot();
        if slot >= self.entries.len() {
            self.entries.resize_with(slot + 1, || None);
        }
        assert!(self.entries[slot].is_none(), "request slot {slot} is taken twice");
        self.entries[slot] = Some(value);
        self.len += 1;
    }
    /// Free a slot and hand back what it held.
    pub fn remove(&mut self, id: RequestId) -> Option<T> {
        let taken = self.entries.get_mut(id.slot())?.take();
        self.len -= taken.is_some() as usize;
        taken
    }
    /// What a slot holds.
    pub fn get(&self, id: RequestId) -> Option<&T> {
        self.entries.get(id.slot())?.as_ref()
    }
    /// What a slot holds, to change it.
    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut T> {
        self.entries.get_mut(id.slot())?.as_mut()
    }
    /// All occupied slots in slot order.
    pub fn iter(&self) -> impl Iterator<Item = (RequestId, &T)> {
        let numbered = self.entries.iter().enumerate();
        numbered.filter_map(|(slot, e)| Some((RequestId::new(slot as u32), e.as_ref()?)))
    }
}

/// The requests that a scheduler has queued, with the order of their arrival,
/// which `Scheduler::detach` owes its caller.
#[derive(Debug, Default)]
pub struct Pool {
    /// The request and its arrival's number.
    slots: Slots<(Request, u64)>,
    arrivals: u64,
}

impl Pool {
    /// An empty pool.
    pub fn new() -> Self {
        Self::default()
    }
    /// Number of requests.
    pub fn len(&self) -> usize {
        self.slots.len()
    }
    /// No request is queued.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
    /// Add a request. Panics when its slot is taken.
    pub fn insert(&mut self, request: Request) {
        self.slots.insert(request.id, (request, self.arrivals));
        self.arrivals += 1;
    }
    /// Take a request out. Panics when it is not queued: ids come from the
    /// scheduler's own queues.
    pub fn take(&mut self, id: RequestId) -> Request {
        match self.slots.remove(id) {
            Some((request, _)) => request,
            None => panic!("request slot {} is not queued", id.slot()),
        }
    }
    /// A queued request.
    pub fn get(&self, id: RequestId) -> Option<&Request> {
        self.slots.get(id).map(|(request, _)| request)
    }
    /// Take out all of one VM's requests, in order of arrival.
    pub fn take_vm(&mut self, vm: VmId) -> Vec<Request> {
        let of_vm = self.slots.iter().filter(|(_, (request, _))| request.vm == vm);
        let mut leaving: Vec<(Request, u64)> = of_vm.map(|(_, entry)| *entry).collect();
        leaving.sort_unstable_by_key(|&(_, arrival)| arrival);
        let requests: Vec<Request> = leaving.into_iter().map(|(request, _)| request).collect();
        for request in &requests {
            self.slots.remove(request.id);
        }
        requests
    }
}

/// Requests sorted by their first sector; equal sectors by slot.
///
/// Keys stand in sorted chunks, found by a sorted table of separators: one
/// cache line or two for the few dozen requests that a disk usually has queued,
/// where a tree would chase pointers, and still two short searches and two
/// short moves for a million.
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

/// Most keys in a chunk; a fuller one is split in half.
const CHUNK_MAX: usize = 256;

/// Sector and slot in one number, which compares faster than a pair.
fn key(lba: Lba, slot: usize) -> u128 {
    u128::from(lba.get()) << 32 | slot as u128
}

fn unpack(key: u128) -> (Lba, RequestId) {
    (Lba::new((key >> 32) as u64), RequestId::new(key as u32))
}

impl LbaQueue {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }
    /// Number of requests.
    pub fn len(&self) -> usize {
        self.len
    }
    /// No request is queued.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The chunk in which `key` stands or would stand.
    fn chunk_of(&self, key: u128) -> usize {
        match self.separators.len() {
            0 | 1 => 0,
            _ => self.separators.partition_point(|&s| s <= key) - 1,
        }
    }
    /// The place of the first key at or above `key`: a chunk, and a place in it
    /// that may be its end.
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

    /// Add a request.
    pub fn insert(&mut self, request: &Request) {
        let key = key(request.extent.start(), request.id.slot());
        if self.chunks.is_empty() {
            self.chunks.push(Vec::new());
            self.separators.push(0);
        }
        let (at, place) = self.lower_bound(key);
        let chunk = &mut self.chunks[at];
        chunk.insert(place, key);
        self.len += 1;
        if chunk.len() > CHUNK_MAX {
            let upper = chunk.split_off(CHUNK_MAX / 2);
            self.separators.insert(at + 1, upper[0]);
            self.chunks.insert(at + 1, upper);
        }
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
        if self.chunks[at].is_empty() && self.chunks.len() > 1 {
            self.chunks.remove(at);
            self.separators.remove(at);
            self.separators[0] = 0;
        }
        Some(next)
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
    /// The lowest request.
    pub fn first(&self) -> Option<(Lba, RequestId)> {
        Some(unpack(*self.chunks.first()?.first()?))
    }
    /// The highest request.
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
    /// All requests, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Lba, RequestId)> + '_ {
        self.chunks.iter().flatten().map(|&key| unpack(key))
    }
    /// Remove everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The end of a list.
const NIL: u32 = u32::MAX;

/// The links of all [`ExpiryQueue`]s of one scheduler: each request stands in
/// at most one of them, so one table of links serves all.
#[derive(Debug, Default)]
pub struct Links {
    /// (previous, next) by slot.
    links: Vec<(u32, u32)>,
}

impl Links {
    /// No links.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Requests in order of arrival, with removal from the middle in constant
/// time. Where every request gets the same expiry span, order of arrival is
/// order of expiry, so the head is the next to expire; a scheduler with
/// several spans keeps one queue for each.
#[derive(Debug, Clone, Copy)]
pub struct ExpiryQueue {
    head: u32,
    tail: u32,
    len: u32,
}

impl Default for ExpiryQueue {
    fn default() -> Self {
        ExpiryQueue { head: NIL, tail: NIL, len: 0 }
    }
}

impl ExpiryQueue {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }
    /// Number of requests.
    pub fn len(&self) -> usize {
        self.len as usize
    }
    /// No request is queued.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The oldest request.
    pub fn head(&self) -> Option<RequestId> {
        (self.head != NIL).then(|| RequestId::new(self.head))
    }
    /// Append a request.
    pub fn push(&mut self, links: &mut Links, id: RequestId) {
        let slot = id.slot();
        if slot >= links.links.len() {
            links.links.resize(slot + 1, (NIL, NIL));
        }
        links.links[slot] = (self.tail, NIL);
        match self.tail {
            NIL => self.head = slot as u32,
            tail => links.links[tail as usize].1 = slot as u32,
        }
        self.tail = slot as u32;
        self.len += 1;
    }
    /// Take a request out. It must stand in this queue.
    pub fn remove(&mut self, links: &mut Links, id: RequestId) {
        let (previous, next) = links.links[id.slot()];
        match previous {
            NIL => {
                assert_eq!(self.head as usize, id.slot(), "request is not in this queue");
                self.head = next;
            }
            p => links.links[p as usize].1 = next,
        }
        match next {
            NIL => {
                assert_eq!(self.tail as usize, id.slot(), "request is not in this queue");
                self.tail = previous;
            }
            n => links.links[n as usize].0 = previous,
        }
        self.len -= 1;
    }
    /// The request after `id`, which must stand in this queue.
    pub fn after(&self, links: &Links, id: RequestId) -> Option<RequestId> {
        let next = links.links[id.slot()].1;
        (next != NIL).then(|| RequestId::new(next))
    }
    /// All requests, oldest first.
    pub fn iter<'a>(&self, links: &'a Links) -> impl Iterator<Item = RequestId> + use<'a> {
        let mut at = self.head;
        std::iter::from_fn(move || {
            let id = (at != NIL).then(|| RequestId::new(at))?;
            at = links.links[id.slot()].1;
            Some(id)
        })
    }
}

/// The choose rule that anticipatory and CFQ share (`cfq_choose_req`,
/// `as_choose_req`): of the next request forward and the next backward from
/// `head`, the one that costs less. Backward up to `back_seek_max` costs
/// `penalty` times its length; further back, and only then, counts as wrapped:
/// a request ahead beats it, and between two wrapped the lower sector wins,
/// since the head has to sweep back anyway.
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
    fn expiry_queue_keeps_order_through_removals() {
        let (mut links, mut q) = (Links::new(), ExpiryQueue::new());
        let ids: Vec<_> = [3, 0, 7, 2].map(RequestId::new).into();
        ids.iter().for_each(|&id| q.push(&mut links, id));
        q.remove(&mut links, ids[2]);
        q.remove(&mut links, ids[0]);
        assert_eq!(q.iter(&links).collect::<Vec<_>>(), vec![ids[1], ids[3]]);
        assert_eq!((q.head(), q.after(&links, ids[1])), (Some(ids[1]), Some(ids[3])));
        q.remove(&mut links, ids[3]);
        q.remove(&mut links, ids[1]);
        assert!(q.is_empty() && q.head().is_none());
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
            assert_eq!(
                (queue.first(), queue.last()),
                (tree.first().copied(), tree.last().copied())
            );
            assert_eq!(queue.len(), tree.len());
        }
        assert!(queue.iter().eq(tree.iter().copied()));
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
