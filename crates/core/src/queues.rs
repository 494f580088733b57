//! Queues that the schedulers share: requests by offset, requests by age, and tables indexed by a
//! request's slot. All are plain data without a clock.

mod keyed;
mod lba;
mod sorted;

pub use keyed::KeyedHeap;
pub use lba::{LbaQueue, Queued, choose};
pub use sorted::Sorted;

use crate::request::{Extent, Request, RequestId, VmId};

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
    /// An empty table, which grows with the highest slot that is occupied.
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
    /// Frees a slot and returns its entry.
    pub fn remove(&mut self, id: RequestId) -> Option<T> {
        let taken = self.entries.get_mut(id.slot())?.take();
        self.len -= taken.is_some() as usize;
        taken
    }
    /// The entry of this slot.
    pub fn get(&self, id: RequestId) -> Option<&T> {
        self.entries.get(id.slot())?.as_ref()
    }
    /// The entry of this slot, to change it.
    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut T> {
        self.entries.get_mut(id.slot())?.as_mut()
    }
    /// All entries, to change them, in slot order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().flatten()
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
    /// An empty pool, which counts arrivals from 0.
    pub fn new() -> Self {
        Self::default()
    }
    /// Requests in the queue.
    pub fn len(&self) -> usize {
        self.slots.len()
    }
    /// Whether the queue is empty.
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
    /// A queued request; `None` when it is not in the pool.
    pub fn get(&self, id: RequestId) -> Option<&Request> {
        self.slots.get(id).map(|(request, _)| request)
    }
    /// Only `rest` of a queued request is still to be sent. Panics when it is not queued.
    pub fn shorten(&mut self, id: RequestId, rest: Extent) {
        self.resize(id, rest);
    }
    /// Changes the extent of a queued request, and returns the request as it was. Panics when it is
    /// not queued.
    pub fn resize(&mut self, id: RequestId, extent: Extent) -> Request {
        match self.slots.get_mut(id) {
            Some((request, _)) => std::mem::replace(request, Request { extent, ..*request }),
            None => panic!("request slot {} is not queued", id.slot()),
        }
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

/// The end of a list.
const NIL: u32 = u32::MAX;

/// The links of all [`ExpiryQueue`]s of one scheduler: each request is in at most one of them, so
/// one table of links serves all.
#[derive(Debug, Default)]
pub struct Links {
    /// (previous, next) by slot.
    links: Vec<(u32, u32)>,
}

impl Links {
    /// A table without links, which grows with the highest slot that is queued.
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
    /// An empty queue, which takes no memory of its own.
    pub fn new() -> Self {
        Self::default()
    }
    /// Requests in the queue.
    pub fn len(&self) -> usize {
        self.len as usize
    }
    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The request that arrived first: the next to expire.
    pub fn head(&self) -> Option<RequestId> {
        (self.head != NIL).then(|| RequestId::new(self.head))
    }
    /// The request that arrived last.
    pub fn tail(&self) -> Option<RequestId> {
        (self.tail != NIL).then(|| RequestId::new(self.tail))
    }
    /// Appends a request, which must be in no other queue of these links.
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
    /// Takes a request out. It must be in this queue.
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
    /// The request after `id`, which must be in this queue.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_queue_keeps_order_through_removals() {
        let (mut links, mut q) = (Links::new(), ExpiryQueue::new());
        let ids: Vec<_> = [3, 0, 7, 2].map(RequestId::new).into();
        ids.iter().for_each(|&id| q.push(&mut links, id));
        q.remove(&mut links, ids[2]);
        q.remove(&mut links, ids[0]);
        assert_eq!(q.iter(&links).collect::<Vec<_>>(), vec![ids[1], ids[3]]);
        assert_eq!((q.head(), q.after(&links, ids[1])), (Some(ids[1]), Some(ids[3])));
        assert_eq!(q.tail(), Some(ids[3]));
        q.remove(&mut links, ids[3]);
        q.remove(&mut links, ids[1]);
        assert!(q.is_empty() && q.head().is_none());
    }
}
