//! The elevators' queue: the requests of all VMs, sorted by disk offset.

use super::{LbaQueue, Pool};
use crate::request::{Request, RequestId, VmId};

/// A [`Pool`] and the offsets of its requests, always the same set.
#[derive(Debug, Default)]
pub struct Sorted {
    pool: Pool,
    places: LbaQueue,
}

impl Sorted {
    /// The requests by offset.
    pub fn places(&self) -> &LbaQueue {
        &self.places
    }
    /// Add a request. Panics when its slot is taken.
    pub fn insert(&mut self, request: Request) {
        self.places.insert(&request);
        self.pool.insert(request);
    }
    /// Take a request out. Panics when it is not queued.
    pub fn take(&mut self, id: RequestId) -> Request {
        let request = self.pool.take(id);
        self.places.remove(&request);
        request
    }
    /// Take out all of one VM's requests, in order of arrival.
    pub fn take_vm(&mut self, vm: VmId) -> Vec<Request> {
        let leaving = self.pool.take_vm(vm);
        for request in &leaving {
            self.places.remove(request);
        }
        leaving
    }
}
