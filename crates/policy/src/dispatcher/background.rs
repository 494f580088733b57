//! The background class: reads that nobody waits for yet (read-ahead into the
//! host's cache). No policy sees them, so they are below demand under every
//! policy alike: one goes only when the policy has nothing queued, when demand
//! keeps its share of the device's places, and, on a device with a head, when
//! it lies at the head or nobody has wanted the head for a while (as CFQ's
//! idle class waits for a grace period: Linux block/cfq-iosched.c 2.6.13+,
//! `CFQ_IDLE_GRACE`). What waits is taken back when demand wants the device
//! ([`Dispatcher::is_crowded`]) or the very blocks ([`Dispatcher::withdraw`]).
//!
//! How many go at once follows how late they come, as in feedback-directed prefetching
//! (Srinath and others, HPCA 2007): few while readers find all of them done, since demand
//! waits behind each, and more when guests wait for them.

use super::commands::{fits, grow};
use super::slots::State;
use super::{Arrival, Dispatcher, Output};
use crate::request::{Op, RequestId, VmId};
use crate::units::{Instant, Lba, Nanos};
use std::collections::VecDeque;

/// How long nobody may have wanted the head before it leaves its place for the
/// background: a synchronous reader's think time and a seek fit into it.
const GRACE: Nanos = Nanos::from_millis(10);
/// Background requests outstanding on a device without a head.
const OUTSTANDING_SOLID: usize = 64;
/// The same on a device with one: what fits between two demands.
const OUTSTANDING_ROTATIONAL: usize = 8;

/// So many may be on a device without a head while nobody waits for one: 512 KiB of prefetches.
const FEW: usize = 4;
/// After so many that nobody had to wait for, one fewer may go at once.
const IN_TIME: usize = 64;

/// The queues of the background class, one for each VM, served by turns.
#[derive(Default)]
pub(super) struct Background {
    queues: Vec<VecDeque<RequestId>>,
    /// The VM whose turn is next.
    turn: usize,
    queued: usize,
    /// Requests on the device.
    in_flight: usize,
    /// So many more than [`FEW`] may be there.
    more: usize,
    /// Requests done since a guest last waited for one, or since `more` last changed.
    in_time: usize,
}

impl Background {
    fn push(&mut self, vm: VmId, id: RequestId) {
        if self.queues.len() <= vm.index() {
            self.queues.resize_with(vm.index() + 1, VecDeque::new);
        }
        self.queues[vm.index()].push_back(id);
        self.queued += 1;
    }

    /// Forget a queued one.
    pub(super) fn remove(&mut self, vm: VmId, id: RequestId) {
        let queue = &mut self.queues[vm.index()];
        let at = queue.iter().position(|&q| q == id).expect("a background request is queued");
        queue.remove(at);
        self.queued -= 1;
    }

    /// The VM whose turn it is.
    fn next_vm(&self) -> Option<usize> {
        if self.queued == 0 {
            return None;
        }
        let count = self.queues.len();
        (0..count).map(|n| (self.turn + n) % count).find(|&vm| !self.queues[vm].is_empty())
    }

    fn pop(&mut self, vm: usize) -> Option<RequestId> {
        let id = self.queues[vm].pop_front()?;
        self.queued -= 1;
        self.turn = vm + 1;
        Some(id)
    }

    /// A command of `requests` requests is done.
    pub(super) fn completed(&mut self, requests: usize) {
        self.in_flight -= requests;
        self.in_time += requests;
        if self.in_time >= IN_TIME {
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
        self.background.push(arrival.vm, id);
        id
    }

    /// Take a background read back that has not reached the device: its id is
    /// free again. False, and nothing happens, when it has.
    pub fn withdraw(&mut self, id: RequestId) -> bool {
        if !self.waits_in_background(id) {
            return false;
        }
        let vm = self.slots[id].request.vm;
        self.background.remove(vm, id);
        self.slots.release(id);
        self.stats.withdrawn += 1;
        true
    }

    /// Does this background read wait, so that [`Dispatcher::withdraw`] would take it?
    pub fn waits_in_background(&self, id: RequestId) -> bool {
        self.slots.get(id).is_some_and(|s| s.state == State::Background)
    }

    /// How many more background reads may arrive now: none while demand is
    /// [crowded](Dispatcher::is_crowded).
    pub fn background_room(&self) -> usize {
        let most = match self.profile.rotational() {
            true => OUTSTANDING_ROTATIONAL,
            false => OUTSTANDING_SOLID.max(self.background_most()),
        };
        match self.is_crowded() {
            true => 0,
            false => most.saturating_sub(self.background.queued + self.background.in_flight),
        }
    }

    /// Does so much demand wait for the device that background reads ought to
    /// be dropped rather than wait behind it?
    pub fn is_crowded(&self) -> bool {
        self.queued > self.config.depth as usize
    }

    /// A guest waits for a background read: they come too late, and one more may go at once.
    pub fn background_is_late(&mut self) {
        let more_max = self.background_most().saturating_sub(FEW);
        let background = &mut self.background;
        (background.more, background.in_time) = ((background.more + 1).min(more_max), 0);
    }

    /// Background requests on the device at once, at most: enough of a prefetch's length to
    /// use its bandwidth, and few enough that demand that comes meanwhile does not
    /// wait for long behind them.
    fn background_most(&self) -> usize {
        (self.config.depth as usize / 8).max(1)
    }

    /// How many of them may be there now.
    fn background_in_flight_max(&self) -> usize {
        let most = self.background_most();
        match self.profile.rotational() {
            true => most,
            false => most.min(FEW + self.background.more),
        }
    }

    /// The policy has nothing: a background command, when one may go.
    pub(super) fn poll_background(&mut self, now: Instant) -> Output {
        let Some(vm) = self.background.next_vm() else { return Output::Idle };
        if self.background.in_flight >= self.background_in_flight_max() {
            return Output::Idle;
        }
        let first = self.background.queues[vm][0];
        if self.profile.rotational() && !self.is_at(first, self.load.head) {
            if self.load.commands > 0 {
                return Output::Idle;
            }
            let free = self.last_demand + GRACE;
            if now < free {
                return Output::WakeAt(free);
            }
        }
        self.dispatch_background(now, vm)
    }

    fn is_at(&self, id: RequestId, place: Lba) -> bool {
        self.slots[id].request.extent.start() == place
    }

    /// Make a command of the VM's first background reads, as far as each
    /// continues the one before.
    fn dispatch_background(&mut self, now: Instant, vm: usize) -> Output {
        let first = self.background.pop(vm).expect("it was looked at");
        let mut command = self.slots[first].request;
        self.holds.end(now, Some(&command));
        self.slots[first].leads = true;
        let (mut last, mut requests) = (first, 1);
        self.background_sent(now, first);
        // A head that is in place reads on; elsewhere the bound stands.
        let most = match self.profile.rotational() {
            true => usize::MAX,
            false => self.background_in_flight_max() - self.background.in_flight,
        };
        while requests < most
            && let Some(&id) = self.background.queues[vm].front()
            && let next = self.slots[id].request
            && fits(&command, &next, next.extent, self.config.coalesce)
        {
            self.background.pop(vm);
            grow(&mut command, next.extent);
            self.slots[last].next = Some(id);
            self.background_sent(now, id);
            (last, requests) = (id, requests + 1);
        }
        self.background.in_flight += requests;
        self.load.commands += 1;
        self.load.unseen += 1;
        self.stats.background_commands += 1;
        self.stats.background += requests as u64;
        Output::Dispatch(command)
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
