//! **vmcd-time**: VMCD's channels with credits of *device time* by weight, in
//! turns that keep a stream together.
//!
//! Source: ours, from what VMCD (Tan et al., section 3) leaves open;
//! algorithms.md, sections 4 and 8. The paper's credits are requests: they
//! favour large requests and long queues, and four requests a turn destroy
//! sequential locality.
//!
//! *Shares.* Each channel is charged the device time that its commands have had
//! ([`clock`]), over its weight; the channel with the least is next (start-time
//! fair queueing; Goyal, Vin, Cheng, SIGCOMM 1996). There is no lottery: the
//! order follows from what was used, so a flood gains nothing. A channel that
//! wakes may be behind the others by one turn at most, or it would have the
//! device for as long as it slept.
//!
//! *Turns*, on a device that rotates: the channel that is next keeps the device
//! until it has used `turn`, or has had no request for `hold`. A channel whose
//! requests come later than that on average is not waited for; one that jumps
//! about is, or weights would mean nothing to a VM with one request at a time.
//! The wait is charged like service, when others have to wait. In a turn the
//! order is CFQ's choose rule, synchronous and asynchronous alike; once a turn
//! the oldest request goes first if it has waited longer than CFQ's expiry.
//!
//! *No turns* on a device without rotation: it works on several channels at
//! once, each command goes to the channel that is next, what is on the device
//! counting at its expected cost, and nothing waits. Inside a channel the order
//! is that of arrival; what continues the command before goes with it.
//!
//! *Latency bound*: a channel with work that has had no service for `bound`,
//! counted from the later of its oldest request's arrival and its last service,
//! sends its oldest request at once, in another's turn. Counted from the
//! arrival alone, the queue of a flooder would always be late.

mod channel;
mod clock;
#[cfg(test)]
mod tests;

use super::Entry;
use super::merge::Run;
use crate::params::{Kind, ParamError, ParamSpec, Params};
use crate::queues::{Links, Pool, Slots};
use crate::request::{Completion, Request, RequestId, VmId};
use crate::scheduler::{Decision, DeviceView, HoldReason, Scheduler, VmSpec};
use crate::units::{Instant, Nanos};
use channel::{Channel, Virtual, weighed};
use clock::{Clock, Reading};
use std::collections::BTreeSet;

#[rustfmt::skip]
static PARAMS: &[ParamSpec] = &[
    ParamSpec { key: "turn", kind: Kind::Duration, default: "100ms",
        help: "device time that a channel may use in a turn, on a rotating device" },
    ParamSpec { key: "hold", kind: Kind::Duration, default: "2ms",
        help: "how long a turn waits for the channel's next request; at most 1s" },
    ParamSpec { key: "bound", kind: Kind::Duration, default: "500ms",
        help: "a channel without service for so long sends its oldest request" },
    ParamSpec { key: "read_expire", kind: Kind::Duration, default: "125ms",
        help: "once a turn, a read that has waited longer goes first" },
    ParamSpec { key: "write_expire", kind: Kind::Duration, default: "250ms",
        help: "the same for a write" },
];

pub(super) const ENTRY: Entry = Entry {
    name: "vmcd-time",
    summary: "fair shares of device time by weight, in turns that keep streams together",
    source: "ours, after the VMCD paper (algorithms.md, sections 4 and 8)",
    params: PARAMS,
    build: |params| Ok(Box::new(VmcdTime::new(params)?)),
};

/// How long a turn waits for a command that the device does not complete.
const STALL: Nanos = Nanos::from_secs(1);

/// A request on the device.
struct Flight {
    serial: u64,
    /// For the first request of a command: since when, and its expected cost.
    command: Option<(Reading, Nanos)>,
}

/// The running turn.
struct Turn {
    vm: usize,
    /// Device time used, and time that others have waited in vain.
    spent: Nanos,
    /// Others wait while the device is held for the channel.
    held: bool,
    /// The oldest request has been looked at.
    looked: bool,
}

struct VmcdTime {
    turn_length: Nanos,
    hold: Nanos,
    bound: Nanos,
    expire: [Nanos; 2],
    queued: Pool,
    links: Links,
    /// By VM.
    channels: Vec<Option<Channel>>,
    /// The channels with work by standing, except the one whose turn it is.
    waiting: BTreeSet<(Virtual, usize)>,
    turn: Option<Turn>,
    /// The highest standing at which a channel was chosen.
    reached: Virtual,
    flying: Slots<Flight>,
    clock: Clock,
    run: Run,
    /// No channel is late before this; `None` when none has work.
    late_from: Option<Instant>,
    attached: u64,
    turns: u64,
    holds: u64,
    holds_in_vain: u64,
    late: u64,
}

impl VmcdTime {
    fn new(params: &Params) -> Result<Self, ParamError> {
        Ok(VmcdTime {
            turn_length: params.duration("turn"),
            hold: params.duration_within("hold", Nanos::ZERO, STALL)?,
            bound: params.duration("bound"),
            expire: ["read_expire", "write_expire"].map(|key| params.duration(key)),
            queued: Pool::new(),
            links: Links::new(),
            channels: Vec::new(),
            waiting: BTreeSet::new(),
            turn: None,
            reached: 0,
            flying: Slots::new(),
            clock: Clock::new(),
            run: Run::default(),
            late_from: None,
            attached: 0,
            turns: 0,
            holds: 0,
            holds_in_vain: 0,
            late: 0,
        })
    }

    fn channel(&self, vm: usize) -> Option<&Channel> {
        self.channels.get(vm)?.as_ref()
    }

    fn has_turn(&self, vm: usize) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.vm == vm)
    }

    /// Change a channel, keeping its place among the waiting true.
    fn change<R>(&mut self, vm: usize, change: impl FnOnce(&mut Channel) -> R) -> Option<R> {
        let has_turn = self.has_turn(vm);
        let channel = self.channels.get_mut(vm)?.as_mut()?;
        let place = |c: &Channel| (!has_turn && !c.pending.is_empty()).then(|| (c.standing(), vm));
        let before = place(channel);
        let result = change(channel);
        let after = place(channel);
        if before != after {
            if let Some(place) = before {
                self.waiting.remove(&place);
            }
            self.waiting.extend(after);
        }
        Some(result)
    }

    /// The running turn ends.
    fn end_turn(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        if let Some(channel) = self.channel(turn.vm).filter(|c| !c.pending.is_empty()) {
            let place = (channel.standing(), turn.vm);
            self.waiting.insert(place);
        }
    }

    /// The time for which the device was held for `vm` until now is its own.
    fn end_hold(&mut self, now: Instant) {
        let Some(turn) = &mut self.turn else { return };
        if !std::mem::take(&mut turn.held) {
            return;
        }
        let vm = turn.vm;
        if let Some(since) = self.channel(vm).and_then(|c| c.idle_since) {
            let idle = now.since(since);
            if let Some(turn) = &mut self.turn {
                turn.spent = turn.spent + idle;
            }
            self.change(vm, |channel| channel.charge(idle));
        }
    }

    /// The channel that is next, whose turn begins when the device has turns.
    fn next_channel(&mut self, turns: bool) -> Option<usize> {
        let &(standing, vm) = self.waiting.first()?;
        self.reached = self.reached.max(standing);
        if turns {
            self.waiting.remove(&(standing, vm));
            self.turn = Some(Turn { vm, spent: Nanos::ZERO, held: false, looked: false });
            self.turns += 1;
            if let Some(channel) = &mut self.channels[vm] {
                channel.turns += 1;
            }
        }
        Some(vm)
    }

    /// May the turn go on? `Ok(true)`: with a request. `Ok(false)`: it is
    /// over. `Err`: it waits until then.
    fn turn_goes_on(&self, now: Instant, turn: &Turn) -> Result<bool, Instant> {
        let Some(channel) = self.channel(turn.vm) else { return Ok(false) };
        if turn.spent + channel.expected >= self.turn_length {
            return Ok(false);
        }
        if !channel.pending.is_empty() {
            return Ok(true);
        }
        let patient = channel.think.get().is_none_or(|think| think <= self.hold);
        let until = match channel.idle_since {
            Some(since) => since + self.hold,
            None if channel.in_flight > 0 => channel.last_service + STALL,
            None => return Ok(false),
        };
        if patient && now < until { Err(until) } else { Ok(false) }
    }

    /// Whose request goes next on a device with turns; or until when it waits.
    fn select(&mut self, now: Instant) -> Result<Option<usize>, Instant> {
        if let Some(turn) = &self.turn {
            match self.turn_goes_on(now, turn) {
                Ok(true) => return Ok(Some(turn.vm)),
                Err(until) => {
                    let first =
                        self.turn.as_mut().is_some_and(|t| !std::mem::replace(&mut t.held, true));
                    self.holds += first as u64;
                    return Err(until);
                }
                Ok(false) => {
                    self.holds_in_vain += turn.held as u64;
                    self.end_hold(now);
                    self.end_turn();
                }
            }
        }
        Ok(self.next_channel(true))
    }

    /// When the channel is late, if it has work.
    fn late_at(&self, channel: &Channel) -> Option<Instant> {
        let oldest = channel.pending.oldest(&self.queued)?;
        Some(oldest.arrived.max(channel.last_service) + self.bound)
    }

    /// The oldest request of the channel that has been late longest.
    fn take_late(&mut self, now: Instant) -> Option<(usize, RequestId)> {
        if self.late_from.is_none_or(|from| now < from) {
            return None;
        }
        let channels = self.channels.iter().enumerate();
        let mut late: Option<(Instant, usize)> = None;
        let mut after: Option<Instant> = None;
        for (vm, channel) in channels {
            let Some(at) = channel.as_ref().and_then(|c| self.late_at(c)) else { continue };
            let (first, second) = match late {
                Some(least) if least <= (at, vm) => (least, Some(at)),
                least => ((at, vm), least.map(|l| l.0)),
            };
            late = Some(first);
            after = after.into_iter().chain(second).min();
        }
        let (at, vm) = late?;
        if now < at {
            self.late_from = Some(at);
            return None;
        }
        // The one that is served now may be late again.
        self.late_from = Some(after.map_or(now + self.bound, |a| a.min(now + self.bound)));
        let id = self.channel(vm)?.pending.oldest(&self.queued)?.id;
        Some((vm, id))
    }

    /// The request that continues the last dispatch, if no input came since.
    fn continuation(&self) -> Option<(usize, RequestId)> {
        let vm = self.run.vm()?.index();
        let id = self.channel(vm)?.pending.following()?;
        let request = self.queued.get(id)?;
        self.run.continues(request).then_some((vm, id))
    }

    /// The request of the channel that is to go in its turn.
    fn pick(&mut self, now: Instant, vm: usize) -> Option<RequestId> {
        let looked =
            self.turn.as_mut().is_none_or(|turn| std::mem::replace(&mut turn.looked, true));
        let pending = &self.channel(vm)?.pending;
        if !looked {
            let urgent = pending.most_urgent(&self.queued, self.expire);
            if let Some((_, id)) = urgent.filter(|&(deadline, _)| deadline <= now) {
                return Some(id);
            }
        }
        pending.next()
    }

    fn dispatch(&mut self, now: Instant, vm: usize, id: RequestId) -> Decision {
        let request = self.queued.take(id);
        let leads = !self.run.extend(&request);
        let entered = leads.then(|| self.clock.enter(now));
        let mut links = std::mem::take(&mut self.links);
        let flight = self.change(vm, |channel| {
            channel.pending.take(&mut links, &request);
            channel.last_service = now;
            channel.in_flight += 1;
            channel.idle_since = None;
            let command = entered.map(|entered| {
                let cost = channel.cost.get().unwrap_or(Nanos::ZERO);
                channel.expected = channel.expected + cost;
                channel.commands += 1;
                (entered, cost)
            });
            Flight { serial: channel.serial, command }
        });
        self.links = links;
        self.flying.insert(id, flight.expect("a queued request has a channel"));
        Decision::Dispatch(id)
    }
}

impl Scheduler for VmcdTime {
    fn attach(&mut self, now: Instant, vm: VmId, spec: VmSpec) {
        if self.channels.len() <= vm.index() {
            self.channels.resize_with(vm.index() + 1, || None);
        }
        self.attached += 1;
        let weight = u64::from(spec.weight.get());
        let channel = Channel::new(now, weight, self.attached, self.reached);
        self.channels[vm.index()] = Some(channel);
    }

    fn detach(&mut self, _now: Instant, vm: VmId) -> Vec<Request> {
        let leaving = self.queued.take_vm(vm);
        if self.has_turn(vm.index()) {
            self.turn = None;
        } else if let Some(channel) = self.channel(vm.index()) {
            let place = (channel.standing(), vm.index());
            self.waiting.remove(&place);
        }
        if let Some(channel) = self.channels.get_mut(vm.index()) {
            *channel = None;
        }
        leaving
    }

    fn arrived(&mut self, now: Instant, request: Request) {
        self.run.end();
        let vm = request.vm.index();
        if self.has_turn(vm) {
            self.end_hold(now);
        }
        self.queued.insert(request);
        let behind = self.reached;
        let (turn, longest) = (self.turn_length, self.hold.get() * 2);
        let has_turn = self.has_turn(vm);
        let mut links = std::mem::take(&mut self.links);
        let alone = self.change(vm, |channel| {
            if let Some(since) = channel.idle_since.take() {
                channel.think.learn(Nanos::new(now.since(since).get().min(longest)));
            }
            if channel.is_idle() && !has_turn {
                let least = behind.saturating_sub(weighed(turn, channel.weight));
                channel.used = channel.used.max(least);
            }
            let alone = channel.pending.is_empty();
            channel.pending.insert(&mut links, &request);
            alone.then_some(now.max(channel.last_service))
        });
        self.links = links;
        let alone = alone.expect("a request of a VM that is not attached");
        if let Some(since) = alone {
            let late = since + self.bound;
            self.late_from = Some(self.late_from.map_or(late, |from| from.min(late)));
        }
    }

    fn completed(&mut self, now: Instant, completion: &Completion) {
        self.run.end();
        let request = &completion.request;
        let Some(flight) = self.flying.remove(request.id) else { return };
        let had = flight.command.map(|(entered, cost)| (self.clock.leave(now, entered), cost));
        let vm = request.vm.index();
        if self.channel(vm).is_none_or(|c| c.serial != flight.serial) {
            return; // Of a VM that has left.
        }
        self.change(vm, |channel| {
            channel.in_flight -= 1;
            channel.last_service = now;
            if let Some((had, cost)) = had {
                channel.commands -= 1;
                channel.expected = channel.expected.saturating_sub(cost);
                channel.cost.learn(had);
                channel.charge(had);
            }
            channel.idle_since = (channel.is_idle() && request.sync).then_some(now);
        });
        if let Some((had, _)) = had
            && let Some(turn) = self.turn.as_mut().filter(|turn| turn.vm == vm)
        {
            turn.spent = turn.spent + had;
        }
    }

    fn decide(&mut self, now: Instant, device: &DeviceView<'_>) -> Decision {
        if self.queued.is_empty() {
            return Decision::Idle;
        }
        if let Some((vm, id)) = self.continuation() {
            return self.dispatch(now, vm, id);
        }
        if let Some((vm, id)) = self.take_late(now) {
            self.late += 1;
            return self.dispatch(now, vm, id);
        }
        let turns = device.profile.rotational();
        let next = if turns {
            match self.select(now) {
                Ok(next) => next,
                Err(until) => {
                    let late = self.late_from.filter(|&late| late > now);
                    let until = late.map_or(until, |late| late.min(until));
                    return Decision::Hold { until, why: HoldReason::Turn };
                }
            }
        } else {
            self.end_turn();
            self.next_channel(false)
        };
        let vm = next.expect("a channel with work waits, or has the turn");
        let id = if turns {
            self.pick(now, vm)
        } else {
            self.channel(vm).and_then(|c| Some(c.pending.oldest(&self.queued)?.id))
        };
        self.dispatch(now, vm, id.expect("a channel that is next has work"))
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.channels.iter().flatten().filter_map(|channel| self.late_at(channel)).min()
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("turns", self.turns as f64);
        sink("holds", self.holds as f64);
        sink("holds_in_vain", self.holds_in_vain as f64);
        sink("late_dispatches", self.late as f64);
        sink("commands_in_flight", f64::from(self.clock.commands()));
    }

    fn vm_metrics(&self, sink: &mut dyn FnMut(&'static str, VmId, f64)) {
        for (vm, channel) in self.channels.iter().enumerate() {
            let Some(channel) = channel else { continue };
            let vm = VmId::new(vm as u16);
            sink("queued", vm, channel.pending.len() as f64);
            sink("device_time_ms", vm, channel.device_time.as_millis_f64());
            sink("turns", vm, channel.turns as f64);
        }
    }
}
