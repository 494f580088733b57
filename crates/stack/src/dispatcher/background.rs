//! The background class: reads that nobody waits for yet (read-ahead into the
//! host's cache). No policy queues them, so they are below demand under every
//! policy alike: one goes only when the policy has nothing queued, when demand
//! keeps its share of the device's places, and, on a device with a head, when
//! it lies at the head or nobody has wanted the head for a while (as CFQ's
//! idle class waits for a grace period: Linux block/cfq-iosched.c 2.6.13+,
//! `CFQ_IDLE_GRACE`). What waits is taken back when demand wants the device
//! ([`Dispatcher::is_crowded`]) or the very blocks ([`Dispatcher::withdraw`]).
//!
//! A policy is asked how much of a VM's may go beside what is in the device
//! ([`Scheduler::background_most`](seekway_core::scheduler::Scheduler::background_most)), and told what has
//! gone, so that it may count in the VM's share.
//!
//! How much goes at once follows how late it comes, as in feedback-directed prefetching
//! (Srinath and others, HPCA 2007): little while readers find all of it done, since demand
//! waits behind it, and more when guests wait for it.

use super::commands::{fits, grow};
use super::slots::State;
use super::{Arrival, Dispatcher, Output};
use seekway_core::request::{Extent, Op, Request, RequestId, VmId};
use seekway_core::units::{Instant, Nanos, Sectors};
use std::collections::VecDeque;

/// Time for which nobody has wanted the head before it leaves its place for the background: a
/// synchronous reader's think time and a seek fit into it.
const GRACE: Nanos = Nanos::from_millis(10);
/// Amounts of prefetches are counted in these sectors, 128 KiB.
const UNIT: u64 = 256;
/// Units outstanding on a device without a head.
const OUTSTANDING_SOLID: u64 = 64;
/// As [`OUTSTANDING_SOLID`], on a device with one: background reads that fit between two demands.
const OUTSTANDING_ROTATIONAL: u64 = 8;

/// Units on a device without a head while nobody waits for one.
const FEW: u64 = 4;
/// After this number that nobody had to wait for, one fewer may go at once.
const IN_TIME: u64 = 64;

/// The queues of the background class, one for each VM, served by turns.
#[derive(Default)]
pub(super) struct Background {
    queues: Vec<VecDeque<RequestId>>,
    /// The VM whose turn is next.
    turn: usize,
    queued: usize,
    /// Sectors that are queued or on the device.
    outstanding: u64,
    /// Sectors on the device, and the commands that read them.
    in_flight: u64,
    commands: u64,
    /// Units that may be there beyond [`FEW`].
    more: u64,
    /// Sectors done since a guest last waited for some, or since `more` last changed.
    in_time: u64,
}

impl Background {
    fn push(&mut self, vm: VmId, id: RequestId, len: Sectors) {
        if self.queues.len() <= vm.index() {
            self.queues.resize_with(vm.index() + 1, VecDeque::new);
        }
        self.queues[vm.index()].push_back(id);
        self.queued += 1;
        self.outstanding += len.get();
    }

    /// Forget a queued one.
    pub(super) fn remove(&mut self, vm: VmId, id: RequestId, len: Sectors) {
        let queue = &mut self.queues[vm.index()];
        let at = queue.iter().position(|&q| q == id).expect("a background request is queued");
        queue.remove(at);
        self.queued -= 1;
        self.outstanding -= len.get();
    }

    /// Does nothing wait?
    pub(super) fn is_empty(&self) -> bool {
        self.queued == 0
    }

    /// The VM whose turn it is, of those with the least place.
    fn next_vm(&self, place: impl Fn(VmId) -> u128) -> Option<usize> {
        let count = self.queues.len();
        let vms = (0..count).map(|n| (self.turn + n) % count);
        vms.filter(|&vm| !self.queues[vm].is_empty()).min_by_key(|&vm| place(VmId::new(vm as u16)))
    }

    fn pop(&mut self, vm: usize) -> Option<RequestId> {
        let id = self.queues[vm].pop_front()?;
        self.queued -= 1;
        self.turn = vm + 1;
        Some(id)
    }

    /// A command of this length is done.
    pub(super) fn completed(&mut self, len: Sectors) {
        self.in_flight -= len.get();
        self.commands -= 1;
        self.outstanding -= len.get();
        self.in_time += len.get();
        if self.in_time >= IN_TIME * UNIT {
            (self.more, self.in_time) = (self.more.saturating_sub(1), 0);
        }
    }
}

impl Dispatcher {
    /// A read of the background class. It has no deadline, is coalesced with its
    /// like only, and may be taken back while it waits. Panics as
    /// [`Dispatcher::arrive`] does, and for anything but a read.
    pub fn arrive_background(&mut self, now: Instant, arrival: Arrival) -> RequestId {
        assert!(self.is_attached(arrival.vm), "read of {:?}, which is not attached", arrival.vm);
        assert!(arrival.op == Op::Read, "the background reads");
        let id = self.slots.allocate(now, arrival);
        let slot = &mut self.slots[id];
        (slot.state, slot.background) = (State::Background, true);
        self.background.push(arrival.vm, id, arrival.extent.len());
        id
    }

    /// Take a background read back that has not reached the device: its id is
    /// free again. False, and nothing happens, when it has.
    pub fn withdraw(&mut self, id: RequestId) -> bool {
        if !self.waits_in_background(id) {
            return false;
        }
        let Request { vm, extent, .. } = self.slots[id].request;
        self.background.remove(vm, id, extent.len());
        self.slots.release(id);
        self.stats.withdrawn += 1;
        true
    }

    /// Does this background read wait, so that [`Dispatcher::withdraw`] would take it?
    pub fn waits_in_background(&self, id: RequestId) -> bool {
        self.slots.get(id).is_some_and(|s| s.state == State::Background)
    }

    /// Number of background reads of 128 KiB that may still arrive now: none while demand is
    /// [crowded](Dispatcher::is_crowded).
    pub fn background_room(&self) -> usize {
        let most = match self.profile.rotational() {
            true => OUTSTANDING_ROTATIONAL,
            false => OUTSTANDING_SOLID.max(self.background_most()),
        };
        match self.is_crowded() {
            true => 0,
            false => most.saturating_sub(self.background.outstanding.div_ceil(UNIT)) as usize,
        }
    }

    /// Does more demand wait for the device than fits into it, so that background reads ought to be
    /// dropped rather than wait behind it?
    pub fn is_crowded(&self) -> bool {
        self.queued > self.config.depth as usize
    }

    /// A guest waits for a background read: they come too late, and one more may go at once.
    pub fn background_is_late(&mut self) {
        let more_max = self.background_most().saturating_sub(FEW);
        let background = &mut self.background;
        (background.more, background.in_time) = ((background.more + 1).min(more_max), 0);
    }

    /// Units on the device at once, at most: enough to use its bandwidth, and few enough that
    /// demand that comes meanwhile does not wait for long behind them.
    fn background_most(&self) -> u64 {
        u64::from(self.config.depth / 8).max(1)
    }

    /// Most of them that may be in flight now.
    fn background_in_flight_max(&self) -> u64 {
        let most = self.background_most();
        match self.profile.rotational() {
            true => most,
            false => most.min(FEW + self.background.more),
        }
    }

    /// The policy has nothing: a background command, when one may go.
    pub(super) fn poll_background(&mut self, now: Instant) -> Output {
        let place = |vm| self.scheduler.background_place(vm);
        let Some(vm) = self.background.next_vm(place) else { return Output::Idle };
        let room =
            (self.background_in_flight_max() * UNIT).saturating_sub(self.background.in_flight);
        if room == 0 || self.background.commands >= self.background_most() {
            return Output::Idle;
        }
        let first = self.background.queues[vm][0];
        let Request { vm: of, extent, .. } = self.slots[first].request;
        // A head that is in place reads on; elsewhere the bound stands.
        let room = if self.profile.rotational() { u64::MAX } else { room };
        let view = self.load.view(&self.config, &self.profile);
        let most = self.scheduler.background_most(now, of, extent.len(), &view);
        let goes = most > Sectors::ZERO;
        if self.profile.rotational() && !(goes && extent.start() == self.load.head) {
            if self.load.commands > 0 {
                return Output::Idle;
            }
            let free = self.last_demand + GRACE;
            if now < free {
                return Output::WakeAt(free);
            }
        }
        // Nobody else tells when an idle device may have some: it may have the first.
        match goes || self.load.commands == 0 {
            true => self.dispatch_background(now, vm, most.min(Sectors::new(room))),
            false => Output::Idle,
        }
    }

    /// Make a command of the VM's first background reads, as far as each
    /// continues the one before, and no longer than `most` but for the first.
    fn dispatch_background(&mut self, now: Instant, vm: usize, most: Sectors) -> Output {
        let first = self.background.pop(vm).expect("it was looked at");
        let mut command = self.slots[first].request;
        self.holds.end(now, Some(&command));
        self.slots[first].leads = true;
        self.slots[first].known = true;
        let (mut last, mut requests) = (first, 1);
        self.background_sent(now, first);
        while let Some(&id) = self.background.queues[vm].front()
            && let next = self.slots[id].request
            && fits(&command, &next, next.extent, self.config.coalesce.min(most))
        {
            self.background.pop(vm);
            grow(&mut command, next.extent);
            self.slots[last].next = Some(id);
            self.background_sent(now, id);
            (last, requests) = (id, requests + 1);
        }
        self.background.in_flight += command.extent.len().get();
        self.background.commands += 1;
        self.load.commands += 1;
        self.load.unseen += 1;
        self.stats.background_commands += 1;
        self.stats.background += requests;
        self.stats.background_bytes += command.extent.len().bytes();
        self.scheduler.background_sent(now, &command);
        Output::Dispatch(command)
    }

    /// A command that began with this request is done. `known`: when it was sent, if by the policy
    /// in charge.
    pub(super) fn background_ends(
        &mut self,
        now: Instant,
        first: Request,
        len: Sectors,
        known: Option<Instant>,
    ) {
        self.background.completed(len);
        let extent = Extent::new(first.extent.start(), len);
        if let (Some(sent), Some(extent)) = (known, extent) {
            self.scheduler.background_completed(now, &Request { extent, ..first }, sent);
        }
    }

    fn background_sent(&mut self, now: Instant, id: RequestId) {
        let slot = &mut self.slots[id];
        (slot.state, slot.dispatched, slot.next) = (State::InFlight, now, None);
        self.load.head = slot.request.extent.end();
    }

    /// Is this request of the background class? True until its id is free again.
    pub fn is_background(&self, id: RequestId) -> bool {
        self.slots.get(id).is_some_and(|s| s.state != State::Free && s.background)
    }
    /// Requests of demand that the policy holds.
    pub fn queued(&self) -> usize {
        self.queued
    }
}
