//! Issuers: who sent a request, as anticipatory and CFQ see it. An issuer is a
//! VM, or a process inside one when the request carries a tag.
//!
//! Tags come from guests, so their number is bounded: a VM has at most
//! [`ISSUERS_PER_VM_MAX`] issuers. Beyond it the one that has been idle longest
//! is forgotten; when none is idle, the request counts as the VM's own.

use seekway_core::queues::{ExpiryQueue, Links};
use seekway_core::request::{ProcessTag, Request, RequestId, VmId};
use std::collections::BTreeMap;

/// Issuers that are remembered of one VM.
pub const ISSUERS_PER_VM_MAX: usize = 4096;

/// Names an issuer while it is remembered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct IssuerId(u32);

impl IssuerId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

struct Entry<T> {
    vm: VmId,
    tag: Option<ProcessTag>,
    /// Requests queued or in flight: what keeps it from being forgotten.
    busy: u32,
    /// Its VM has left; it goes when its last request completes.
    gone: bool,
    state: Option<T>,
}

/// A VM's issuers: itself, and its tagged processes.
#[derive(Default)]
struct Members {
    /// The entry of the VM itself as an issuer.
    own: Option<u32>,
    tagged: BTreeMap<ProcessTag, u32>,
    /// Idle issuers with a tag, the longest idle first. An issuer has the place that a request
    /// of its number would have.
    idle: ExpiryQueue,
}

/// A table of issuers, each with a policy's state `T`.
pub struct Issuers<T> {
    by_process: bool,
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    vms: Vec<Members>,
    /// Of all VMs' idle issuers.
    links: Links,
}

impl<T> Default for Issuers<T> {
    fn default() -> Self {
        Issuers::new(false)
    }
}

impl<T> Issuers<T> {
    pub fn new(by_process: bool) -> Self {
        let (entries, free, vms) = (Vec::new(), Vec::new(), Vec::new());
        Issuers { by_process, entries, free, vms, links: Links::new() }
    }

    /// A request arrives: its issuer, made with `make` when it is new. It
    /// stays until as many calls of [`Issuers::leave`]. The second value is the
    /// state of the issuer that was forgotten in its favour.
    #[inline]
    pub fn enter(&mut self, request: &Request, make: impl FnOnce() -> T) -> (IssuerId, Option<T>) {
        let vm = request.vm;
        if self.vms.len() <= vm.index() {
            self.vms.resize_with(vm.index() + 1, Members::default);
        }
        let mut tag = request.tag.filter(|_| self.by_process);
        let mut forgotten = None;
        let mut known = self.find(vm, tag);
        if known.is_none() && tag.is_some() {
            let members = &self.vms[vm.index()];
            if members.tagged.len() + 1 >= ISSUERS_PER_VM_MAX {
                match members.idle.head() {
                    None => {
                        tag = None;
                        known = self.find(vm, None);
                    }
                    Some(longest_idle) => forgotten = self.forget(longest_idle.slot() as u32),
                }
            }
        }
        let at = known.unwrap_or_else(|| self.add(vm, tag, make()));
        if self.entries[at as usize].busy == 0 && known.is_some() && tag.is_some() {
            self.vms[vm.index()].idle.remove(&mut self.links, RequestId::new(at));
        }
        self.entries[at as usize].busy += 1;
        (IssuerId(at), forgotten)
    }

    /// One request of the issuer is done or handed back. Its state when it is
    /// forgotten by that.
    pub fn leave(&mut self, id: IssuerId) -> Option<T> {
        let entry = &mut self.entries[id.index()];
        entry.busy -= 1;
        if entry.busy > 0 {
            return None;
        }
        if entry.gone {
            self.free.push(id.0);
            return entry.state.take();
        }
        if entry.tag.is_some() {
            self.vms[entry.vm.index()].idle.push(&mut self.links, RequestId::new(id.0));
        }
        None
    }

    /// The VM leaves: its issuers are forgotten, those with requests in flight
    /// when these complete. The states of those that go at once.
    pub fn detach(&mut self, vm: VmId) -> Vec<T> {
        let Some(members) = self.vms.get_mut(vm.index()) else { return Vec::new() };
        let Members { own, tagged, .. } = std::mem::take(members);
        let mut states = Vec::new();
        for at in own.into_iter().chain(tagged.into_values()) {
            let entry = &mut self.entries[at as usize];
            entry.gone = true;
            if entry.busy == 0 {
                states.extend(entry.state.take());
                self.free.push(at);
            }
        }
        states
    }

    /// The VM that an issuer is, or is part of.
    pub fn vm(&self, id: IssuerId) -> VmId {
        self.entries[id.index()].vm
    }
    /// State of an issuer. Panics when it has been forgotten.
    pub fn get(&self, id: IssuerId) -> &T {
        self.entries[id.index()].state.as_ref().expect("issuer has been forgotten")
    }
    pub fn get_mut(&mut self, id: IssuerId) -> &mut T {
        self.entries[id.index()].state.as_mut().expect("issuer has been forgotten")
    }

    fn find(&self, vm: VmId, tag: Option<ProcessTag>) -> Option<u32> {
        let members = &self.vms[vm.index()];
        match tag {
            None => members.own,
            Some(tag) => members.tagged.get(&tag).copied(),
        }
    }

    fn add(&mut self, vm: VmId, tag: Option<ProcessTag>, state: T) -> u32 {
        let entry = Entry { vm, tag, busy: 0, gone: false, state: Some(state) };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        let members = &mut self.vms[vm.index()];
        match tag {
            None => members.own = Some(at),
            Some(tag) => drop(members.tagged.insert(tag, at)),
        }
        at
    }

    /// Forget an idle issuer that has a tag.
    fn forget(&mut self, at: u32) -> Option<T> {
        let entry = &mut self.entries[at as usize];
        let members = &mut self.vms[entry.vm.index()];
        members.idle.remove(&mut self.links, RequestId::new(at));
        if let Some(tag) = entry.tag {
            members.tagged.remove(&tag);
        }
        self.free.push(at);
        entry.state.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_core::request::{Extent, Op, RequestId};
    use seekway_core::units::{Instant, Lba, Sectors};

    fn request(vm: u16, tag: u16) -> Request {
        Request {
            id: RequestId::new(0),
            vm: VmId::new(vm),
            tag: ProcessTag::new(tag),
            op: Op::Read,
            sync: true,
            extent: Extent::new(Lba::ZERO, Sectors::new(8)).unwrap(),
            arrived: Instant::ZERO,
        }
    }

    #[test]
    fn a_tag_names_an_issuer_only_within_its_vm() {
        let mut issuers: Issuers<u32> = Issuers::new(true);
        let mut enter = |vm, tag| issuers.enter(&request(vm, tag), || 0).0;
        let (a, b, c) = (enter(0, 0), enter(0, 7), enter(1, 7));
        assert!(a != b && b != c && a != c);
        assert_eq!((enter(0, 0), enter(0, 7)), (a, b));
        let mut by_vm: Issuers<u32> = Issuers::new(false);
        let first = by_vm.enter(&request(0, 7), || 0).0;
        assert_eq!(first, by_vm.enter(&request(0, 9), || 0).0);
    }

    #[test]
    fn the_longest_idle_is_forgotten_and_the_busy_are_kept() {
        let mut issuers: Issuers<u16> = Issuers::new(true);
        let busy = issuers.enter(&request(0, 1), || 1).0;
        let tags = 2..ISSUERS_PER_VM_MAX as u16;
        let ids: Vec<_> = tags.map(|t| issuers.enter(&request(0, t), || t).0).collect();
        // All are busy: a further tag counts as the VM itself.
        let (own, forgotten) = issuers.enter(&request(0, 60_000), || 0);
        assert_eq!((*issuers.get(own), forgotten), (0, None));
        for &id in ids.iter().rev() {
            assert_eq!(issuers.leave(id), None);
        }
        // The last of them was the first to become idle.
        let forgotten = issuers.enter(&request(0, 60_000), || 60_000).1;
        assert_eq!(forgotten, Some(ISSUERS_PER_VM_MAX as u16 - 1));
        assert_eq!(*issuers.get(busy), 1);
    }

    #[test]
    fn detach_waits_for_what_is_in_flight() {
        let mut issuers: Issuers<u16> = Issuers::new(true);
        let flying = issuers.enter(&request(0, 1), || 1).0;
        let idle = issuers.enter(&request(0, 2), || 2).0;
        issuers.leave(idle);
        assert_eq!(issuers.detach(VmId::new(0)), [2]);
        let again = issuers.enter(&request(0, 1), || 3).0;
        assert_eq!((*issuers.get(flying), *issuers.get(again)), (1, 3));
        assert_eq!(issuers.leave(flying), Some(1));
    }
}
