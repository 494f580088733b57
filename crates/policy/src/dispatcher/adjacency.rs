//! Which queued request starts at a given sector? Asked after every dispatch,
//! to know whether the policy has to be asked for a continuation.

use crate::queues::{ExpiryQueue, Links};
use crate::request::RequestId;
use crate::units::Lba;

/// A hash table from first sector to queued requests, chained through
/// [`Links`]. No order shows: it answers yes or no.
pub(super) struct Adjacency {
    /// Always a power of two.
    buckets: Vec<ExpiryQueue>,
    links: Links,
    /// First sector by slot, to compare and to grow without the requests.
    starts: Vec<Lba>,
    len: usize,
}

impl Adjacency {
    pub(super) fn new() -> Self {
        Adjacency {
            buckets: vec![ExpiryQueue::new(); 64],
            links: Links::new(),
            starts: Vec::new(),
            len: 0,
        }
    }

    fn bucket(&self, lba: Lba) -> usize {
        // Fibonacci hashing: sectors come in strides of powers of two.
        let hash = lba.get().wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (hash >> 32) as usize & (self.buckets.len() - 1)
    }

    #[inline]
    pub(super) fn insert(&mut self, id: RequestId, start: Lba) {
        if self.len >= self.buckets.len() {
            self.grow();
        }
        let slot = id.slot();
        if slot >= self.starts.len() {
            self.starts.resize(slot + 1, Lba::ZERO);
        }
        self.starts[slot] = start;
        let bucket = self.bucket(start);
        self.buckets[bucket].push(&mut self.links, id);
        self.len += 1;
    }

    /// Take out a request that was inserted.
    #[inline]
    pub(super) fn remove(&mut self, id: RequestId) {
        let bucket = self.bucket(self.starts[id.slot()]);
        self.buckets[bucket].remove(&mut self.links, id);
        self.len -= 1;
    }

    /// The queued requests that start at `lba`.
    pub(super) fn at(&self, lba: Lba) -> impl Iterator<Item = RequestId> + '_ {
        let chain = self.buckets[self.bucket(lba)].iter(&self.links);
        chain.filter(move |id| self.starts[id.slot()] == lba)
    }

    fn grow(&mut self) {
        let queued: Vec<RequestId> =
            self.buckets.iter().flat_map(|b| b.iter(&self.links).collect::<Vec<_>>()).collect();
        self.buckets = vec![ExpiryQueue::new(); self.buckets.len() * 2];
        for id in queued {
            let bucket = self.bucket(self.starts[id.slot()]);
            self.buckets[bucket].push(&mut self.links, id);
        }
    }
}
