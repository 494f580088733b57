//! The pending queue of a channel: one VM's requests by place and by age.
//! `vmcd-time` uses it too.

use crate::schedulers::merge::{BACK_SEEK_MAX, BACK_SEEK_PENALTY};
use seekway_core::queues::{ExpiryQueue, LbaQueue, Links, Pool, choose};
use seekway_core::request::{Op, Request, RequestId};
use seekway_core::units::{Instant, Lba, Nanos};

/// A longer way is a seek to CFQ (`CFQQ_SEEK_THR`), in sectors.
const SEEK_MIN: u64 = 800;

/// Index of a request's deadline: reads and writes have one each.
pub fn kind(request: &Request) -> usize {
    (request.op != Op::Read) as usize
}

/// One VM's queued requests.
#[derive(Default)]
pub struct Pending {
    sorted: LbaQueue,
    /// Reads and writes, each by age.
    fifos: [ExpiryQueue; 2],
    /// Where its last dispatched request ended.
    position: Lba,
}

impl Pending {
    pub fn len(&self) -> usize {
        self.sorted.len()
    }
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    pub fn insert(&mut self, links: &mut Links, request: &Request) {
        self.sorted.insert(request);
        self.fifos[kind(request)].push(links, request.id);
    }

    /// Take out a request that leaves unserved.
    pub fn withdraw(&mut self, links: &mut Links, request: &Request) {
        self.sorted.remove(request);
        self.fifos[kind(request)].remove(links, request.id);
    }

    /// Take out a request that is dispatched.
    pub fn take(&mut self, links: &mut Links, request: &Request) {
        self.withdraw(links, request);
        self.position = request.extent.end();
    }

    /// The next in the channel's own order: CFQ's choose rule from where its
    /// last request ended, wherever others have moved the head since.
    pub fn next(&self) -> Option<RequestId> {
        choose(&self.sorted, self.position, BACK_SEEK_MAX, BACK_SEEK_PENALTY).map(|(_, id)| id)
    }

    /// Is this request near the last one, so that CFQ would not call it a seek?
    pub fn is_near(&self, request: &Request) -> bool {
        request.extent.start().get().abs_diff(self.position.get()) <= SEEK_MIN
    }

    /// The request that begins where the last one ended.
    pub fn following(&self) -> Option<RequestId> {
        let (lba, id) = self.sorted.at_or_after(self.position)?;
        (lba == self.position).then_some(id)
    }

    /// The request whose deadline comes first, with that deadline; reads and writes expire `expire`
    /// after their arrival.
    pub fn most_urgent(&self, pool: &Pool, expire: [Nanos; 2]) -> Option<(Instant, RequestId)> {
        let first = |kind: usize| {
            let oldest = pool.get(self.fifos[kind].head()?)?;
            Some((oldest.arrived + expire[kind], oldest.id))
        };
        match (first(0), first(1)) {
            (Some(read), Some(write)) => Some(if write.0 < read.0 { write } else { read }),
            (read, write) => read.or(write),
        }
    }

    /// The request that has waited longest.
    pub fn oldest<'a>(&self, pool: &'a Pool) -> Option<&'a Request> {
        let (_, id) = self.most_urgent(pool, [Nanos::ZERO; 2])?;
        pool.get(id)
    }
}
