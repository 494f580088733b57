//! From requests to commands: the policy's answers, and coalescing.

use super::slots::State;
use super::{Config, Dispatcher, Output};
use seekway_core::request::{Extent, Op, Request, RequestId};
use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, HOLD_MAX};
use seekway_core::units::{Instant, Lba, Sectors};

/// A request, or a part of one, that has left the policy.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    pub id: RequestId,
    /// The longest command that it may become part of.
    pub most: Sectors,
}

/// The policy's answer.
pub(super) enum Answer {
    Send(Unit),
    Hold { until: Instant, why: &'static str },
    Wait { until: Option<Instant>, why: &'static str },
    Idle,
}

/// Load of the device.
#[derive(Default)]
pub(super) struct Load {
    /// The sector after the last one dispatched.
    pub head: Lba,
    /// Requests and parts of requests, without the background's.
    pub requests: u32,
    pub commands: u32,
    /// Commands of which the policy in charge has dispatched nothing.
    pub unseen: u32,
}

impl Load {
    /// The device as policies see it.
    pub fn view<'a>(&self, config: &Config, profile: &'a DeviceProfile) -> DeviceView<'a> {
        let Load { head, requests: in_flight, commands, unseen } = *self;
        DeviceView { head, in_flight, depth: config.depth, commands, unseen, profile }
    }
}

impl Dispatcher {
    /// Ask the policy, and hold it to the contract.
    pub(super) fn ask(&mut self, now: Instant) -> Answer {
        if self.queued == 0 {
            return Answer::Idle;
        }
        let view = self.load.view(&self.config, &self.profile);
        match self.scheduler.decide(now, &view) {
            Decision::Dispatch(id) => {
                let id = self.leaves_policy(now, id, Sectors::new(u64::MAX), true);
                Answer::Send(Unit { id, most: self.config.coalesce })
            }
            Decision::DispatchPart { id, len } => {
                assert!(len > Sectors::ZERO, "policy dispatches nothing of {id:?}");
                let id = self.leaves_policy(now, id, len, true);
                Answer::Send(Unit { id, most: self.config.coalesce.min(len) })
            }
            Decision::Hold { until, why } => {
                let bounded = now < until && until.since(now) <= HOLD_MAX;
                assert!(bounded, "policy holds until {until} at {now}");
                Answer::Hold { until, why }
            }
            Decision::Wait { until, why } => {
                let legal = self.load.commands > 0;
                assert!(legal, "policy waits for a completion with nothing in flight");
                let bounded = until.is_none_or(|until| now < until && until.since(now) <= HOLD_MAX);
                assert!(bounded, "policy waits until {until:?} at {now}");
                Answer::Wait { until, why }
            }
            Decision::Idle => panic!("policy idles with {} queued", self.queued),
        }
    }

    /// The first sectors of a queued request leave the policy, or all of it:
    /// what goes, by its own id. `known`: by the policy's decision.
    #[inline]
    pub(super) fn leaves_policy(
        &mut self,
        now: Instant,
        id: RequestId,
        len: Sectors,
        known: bool,
    ) -> RequestId {
        let slot = &mut self.slots[id];
        let State::Queued = slot.state else {
            panic!("policy dispatched {id:?}, which is {:?}", slot.state)
        };
        if slot.split || len < slot.request.extent.len() {
            return self.cut(now, id, len, known);
        }
        (slot.state, slot.known) = (State::Waiting, known);
        let vm = slot.request.vm;
        self.count_leaving(now, vm);
        self.by_age.remove(&mut self.links, id);
        self.adjacency.remove(id);
        id
    }

    /// Take the oldest request from the policy, because it has waited too long.
    #[cold]
    pub(super) fn force(&mut self, now: Instant, id: RequestId) -> Unit {
        self.scheduler.withdraw(now, id);
        self.stats.forced += 1;
        let id = self.leaves_policy(now, id, Sectors::new(u64::MAX), false);
        Unit { id, most: self.config.coalesce }
    }

    /// Make a command of `first` and what continues it.
    pub(super) fn dispatch(&mut self, now: Instant, first: Unit) -> Output {
        self.since_forced = self.since_forced.saturating_add(1);
        let Unit { id: first, mut most } = first;
        let slot = &mut self.slots[first];
        let mut command = Request { id: first, ..slot.request };
        (slot.leads, slot.seen) = (true, slot.known);
        self.load.commands += 1;
        self.load.unseen += u32::from(!slot.known);
        match command.op.is_data() {
            true => self.barriers_in_row = 0,
            false => self.barriers_in_row = self.barriers_in_row.saturating_add(1),
        }
        self.holds.end(now, Some(&command));
        self.sent(now, first);
        let mut last = first;
        if command.op == Op::Flush {
            self.join_flushes(now, first);
        }
        while command.op.is_data()
            && self.continues(&command, most)
            && let Answer::Send(next) = self.ask(now)
        {
            let request = self.slots[next.id].request;
            if !fits(&command, &request, request.extent, most.min(next.most)) {
                self.staged = Some(next);
                break;
            }
            most = most.min(next.most);
            grow(&mut command, request.extent);
            self.slots[last].next = Some(next.id);
            self.sent(now, next.id);
            self.joined(first, next.id);
            last = next.id;
        }
        self.stats.commands += 1;
        Output::Dispatch(command)
    }

    /// All flushes that go with the first one become members of its command.
    fn join_flushes(&mut self, now: Instant, first: RequestId) {
        let mut last = first;
        for at in 1..self.barriers.together().len() {
            let next = self.barriers.together()[at];
            self.slots[last].next = Some(next);
            self.sent(now, next);
            last = next;
        }
    }

    /// A request has joined a command: does the policy now know the command?
    fn joined(&mut self, first: RequestId, next: RequestId) {
        if self.slots[next].known && !self.slots[first].seen {
            self.slots[first].seen = true;
            self.load.unseen -= 1;
        }
    }

    /// Is some queued request a continuation of the command?
    fn continues(&self, command: &Request, most: Sectors) -> bool {
        most > command.extent.len()
            && self
                .adjacency
                .at(command.vm, command.extent.end())
                .any(|id| fits(command, &self.slots[id].request, self.left(id), most))
    }

    #[inline]
    fn sent(&mut self, now: Instant, id: RequestId) {
        let slot = &mut self.slots[id];
        slot.state = State::InFlight;
        slot.dispatched = now;
        slot.next = None;
        if slot.request.op.is_data() {
            self.load.head = slot.request.extent.end();
        }
        self.load.requests += 1;
        let (part, whole) = (slot.part, slot.request.id);
        self.stats.requests += u64::from(!part || self.first_part_sent(now, whole));
    }
}

/// May `extent` of the request `next` be part of the command? Never across VMs:
/// one VM's failure is not another's.
pub(super) fn fits(command: &Request, next: &Request, extent: Extent, most: Sectors) -> bool {
    next.op == command.op
        && next.vm == command.vm
        && extent.start() == command.extent.end()
        && command.extent.len() + extent.len() <= most
}

/// The command covers `next`, which fits, too.
pub(super) fn grow(command: &mut Request, next: Extent) {
    let len = command.extent.len() + next.len();
    command.extent = Extent::new(command.extent.start(), len).expect("adjacent extents");
}
