//! Merging at arrival, as Linux's block layer does before its elevator sees a request
//! (`__make_request`, `elv_merge`): a new request joins one that is queued and that it continues
//! (back merge) or that continues it (front merge), and the two become one for the policy. If the
//! queued request now meets its neighbour, they are joined too (`attempt_back_merge`,
//! `attempt_front_merge`).
//!
//! Only whole requests of the same VM, operation, process and sync flag are merged, up to
//! [`Config::coalesce`](super::Config::coalesce), and none with one that its VM sent before a
//! flush. The policy has the oldest of them, grown; the device gets all as one command, and each
//! ends as a request of its own.

use super::vms::State;
use super::{Adjacency, Dispatcher};
use seekway_core::queues::Slots;
use seekway_core::request::{Completion, Extent, Request, RequestId, VmId};
use seekway_core::units::Instant;
use std::collections::VecDeque;

/// Requests that are merged: the policy knows them by the id of one, the leader.
struct Group {
    /// Covers all of them.
    extent: Extent,
    /// Ascending and adjacent.
    members: VecDeque<RequestId>,
}

/// Merged requests, and what finds the next ones.
#[derive(Default)]
pub(super) struct Merges {
    /// Queued requests by the sector after their last one.
    ends: Adjacency,
    /// By the leader, from the first merge until the device is done.
    groups: Slots<Group>,
    /// By VM number: the order of arrival of its last flush.
    flushed: Vec<u64>,
}

impl Merges {
    /// A flush of this VM arrives, as number `serial` of all requests.
    pub fn flush(&mut self, vm: VmId, serial: u64) {
        if self.flushed.len() <= vm.index() {
            self.flushed.resize(vm.index() + 1, 0);
        }
        self.flushed[vm.index()] = serial;
    }

    /// The requests that are merged under this leader.
    fn extent(&self, leader: RequestId) -> Extent {
        self.groups.get(leader).expect("a leader has a group").extent
    }
}

impl Dispatcher {
    /// A request reaches the policy: by itself, or merged with one that it holds.
    pub(super) fn admit(&mut self, now: Instant, id: RequestId) {
        if !self.config.merge || !self.merge(now, id) {
            self.enqueue(now, id);
        }
    }

    /// The extent that the policy has, or had, of a request: of all that are merged with it.
    pub(super) fn whole(&self, id: RequestId) -> Extent {
        let slot = &self.slots[id];
        slot.leader.map_or(slot.request.extent, |leader| self.merges.extent(leader))
    }

    /// A whole request can be found by both of its ends.
    #[inline]
    pub(super) fn index(&mut self, id: RequestId, extent: Extent) {
        let vm = self.slots[id].request.vm;
        self.adjacency.insert(vm, id, extent.start());
        if self.config.merge && !self.slots[id].split {
            self.merges.ends.insert(vm, id, extent.end());
        }
    }

    /// The request can be found by neither end any more.
    #[inline]
    pub(super) fn unindex(&mut self, id: RequestId) {
        self.adjacency.remove(id);
        if self.config.merge && !self.slots[id].split {
            self.merges.ends.remove(id);
        }
    }

    /// Merges a request that arrives with a queued one, if one fits.
    fn merge(&mut self, now: Instant, id: RequestId) -> bool {
        let Request { vm, extent, .. } = self.slots[id].request;
        if self.slots[id].split {
            return false;
        }
        let joins = |&host: &RequestId| self.joins(host, id);
        let back = self.merges.ends.at(vm, extent.start()).find(joins);
        let front = || self.adjacency.at(vm, extent.end()).find(joins);
        let Some(host) = back.or_else(front) else { return false };
        if !self.scheduler.merged(now, host, union(self.whole(host), extent)) {
            return false;
        }
        self.unindex(host);
        self.group(host, id);
        let grown = self.whole(host);
        self.index(host, grown);
        let joins = |&other: &RequestId| self.joins(other, host);
        let neighbour = match back {
            Some(_) => self.adjacency.at(vm, grown.end()).find(joins),
            None => self.merges.ends.at(vm, grown.start()).find(joins),
        };
        if let Some(neighbour) = neighbour {
            self.join(now, host, neighbour);
        }
        true
    }

    /// May the queued request `host` be merged with `other`, to which it is adjacent?
    fn joins(&self, host: RequestId, other: RequestId) -> bool {
        let (slot, new) = (&self.slots[host], &self.slots[other]);
        let (a, b) = (&slot.request, &new.request);
        let flushed = self.merges.flushed.get(a.vm.index()).copied().unwrap_or(0);
        slot.state == State::Queued
            && !slot.split
            && slot.serial.min(new.serial) > flushed
            && (a.op, a.sync, a.tag) == (b.op, b.sync, b.tag)
            && self.whole(host).len() + self.whole(other).len() <= self.config.coalesce
    }

    /// Joins two queued requests that are adjacent: the policy keeps the older one.
    fn join(&mut self, now: Instant, a: RequestId, b: RequestId) {
        let a_first = self.slots[a].serial < self.slots[b].serial;
        let (older, younger) = if a_first { (a, b) } else { (b, a) };
        self.scheduler.withdraw(now, younger);
        self.by_age.remove(&mut self.links, younger);
        self.unindex(younger);
        self.unindex(older);
        self.group(older, younger);
        let grown = self.whole(older);
        self.index(older, grown);
        let took = self.scheduler.merged(now, older, grown);
        assert!(took, "policy takes merged requests, and not {older:?}");
        self.count_leaving(now, self.slots[older].request.vm);
    }

    /// `other`, and all that are merged with it, become members of the group of `leader`.
    fn group(&mut self, leader: RequestId, other: RequestId) {
        let alone = |extent, id| Group { extent, members: VecDeque::from([id]) };
        let mut joining = match self.merges.groups.remove(other) {
            Some(group) => group,
            None => alone(self.slots[other].request.extent, other),
        };
        for &member in &joining.members {
            let slot = &mut self.slots[member];
            (slot.state, slot.leader) = (State::Merged, Some(leader));
        }
        if self.merges.groups.get(leader).is_none() {
            let extent = self.slots[leader].request.extent;
            self.merges.groups.insert(leader, alone(extent, leader));
            self.slots[leader].leader = Some(leader);
        }
        let group = self.merges.groups.get_mut(leader).expect("it is there now");
        let follows = joining.extent.start() == group.extent.end();
        group.extent = union(group.extent, joining.extent);
        if !follows {
            std::mem::swap(&mut group.members, &mut joining.members);
        }
        group.members.append(&mut joining.members);
    }

    /// A queued request leaves the policy with all that are merged with it. Returns the first of them.
    pub(super) fn merged_leave(&mut self, leader: RequestId, known: bool) -> RequestId {
        let group = self.merges.groups.get(leader).expect("a leader has a group");
        for &member in &group.members {
            let slot = &mut self.slots[member];
            (slot.state, slot.known) = (State::Waiting, known);
        }
        group.members[0]
    }

    /// Sends the other members of a group with its first one. Returns the last.
    #[inline]
    pub(super) fn send_merged(
        &mut self,
        now: Instant,
        first: RequestId,
        command: &mut Request,
    ) -> RequestId {
        let Some(leader) = self.slots[first].leader else { return first };
        self.send_others(now, leader, first, command)
    }

    fn send_others(
        &mut self,
        now: Instant,
        leader: RequestId,
        first: RequestId,
        command: &mut Request,
    ) -> RequestId {
        let count = self.merges.groups.get(leader).map_or(0, |group| group.members.len());
        let mut last = first;
        for at in 1..count {
            let next = self.merges.groups.get(leader).expect("counted").members[at];
            super::grow(command, self.slots[next].request.extent);
            self.slots[last].next = Some(next);
            self.sent(now, next);
            last = next;
        }
        last
    }

    /// The device is done with a request that is merged: the policy hears of all of them at once.
    pub(super) fn merged_end(&mut self, now: Instant, leader: RequestId, end: &Completion) {
        let Some(group) = self.merges.groups.remove(leader) else { return };
        let Request { id, .. } = self.slots[leader].request;
        if self.slots[leader].known {
            let request = Request { id, extent: group.extent, ..self.slots[leader].request };
            self.scheduler.completed(now, &Completion { request, ..*end });
        }
    }

    /// A request that the policy handed back, and all that are merged with it, by themselves.
    pub(super) fn part_merged(&mut self, id: RequestId) -> Vec<RequestId> {
        let Some(group) = self.merges.groups.remove(id) else { return vec![id] };
        for &member in &group.members {
            let slot = &mut self.slots[member];
            (slot.state, slot.leader) = (State::Waiting, None);
        }
        group.members.into()
    }
}

/// Two adjacent extents as one.
fn union(a: Extent, b: Extent) -> Extent {
    Extent::new(a.start().min(b.start()), a.len() + b.len()).expect("adjacent extents")
}
