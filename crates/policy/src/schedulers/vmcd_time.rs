//! **vmcd-time**: VMCD's channels with credits of *device time* by weight, in
//! turns that keep a stream together.
//!
//! Source: ours, from what VMCD (Tan et al., section 3) leaves open;
//! algorithms.md, sections 4 and 8. The paper's credits are requests: they
//! favour large requests and long queues, and four requests a turn destroy
//! sequential locality.
//!
//! *Shares.* Each channel is charged the device time that its commands have had
//! ([`device_time`]), over its weight; the channel with the least is next (start-time
//! fair queueing; Goyal, Vin, Cheng, SIGCOMM 1996). There is no lottery: the
//! order follows from what was used, so a flood gains nothing. A channel that
//! wakes may be behind the others by one turn at most, or not at all where there
//! are no turns: else it would have the device for as long as it slept.
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
//! counting at its expected cost, and nothing waits. Commands share the time by
//! their sizes ([`device_time`]). Inside a channel the order
//! is that of arrival; what continues the command before goes with it.
//!
//! *Latency bound*: a channel with work that has had no service for 500 ms,
//! counted from the later of its oldest request's arrival and its last service,
//! sends its oldest request at once, in another's turn. Counted from the
//! arrival alone, the queue of a flooder would always be late.

#[cfg(test)]
mod tests;

use super::vmcd::EXPIRE;
use crate::entry::Entry;
use crate::runs::Run;
use crate::schedulers::vmcd::Pending;
use seekway_core::device_time;
use seekway_core::device_time::{Clock, Reading};
use seekway_core::means::Mean;
use seekway_core::params::{DURATION_MAX, Kind, ParamError, ParamSpec, Params, param};
use seekway_core::queues::{Links, Pool, Slots};
use seekway_core::request::{Completion, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, Scheduler, VmSpec};
use seekway_core::units::{Instant, Nanos};
use std::collections::BTreeSet;

#[rustfmt::skip]
static PARAMS: &[ParamSpec] = &[
    param("turn", Kind::Duration, "150ms",
        "device time of a turn, on a rotating device; less when many have work; at least 1ms"),
    param("hold", Kind::Duration, "2ms",
        "how long a turn waits for the channel's next request; at most 1s"),
];

pub(super) const ENTRY: Entry = Entry {
    name: "vmcd-time",
    summary: "fair shares of device time by weight, in turns that keep streams together",
    source: "ours, after the VMCD paper (algorithms.md, sections 4 and 8)",
    params: PARAMS,
    holds: &[TURN],
    keeps: &[],
    starves: &[],
    build: |params| Ok(Box::new(VmcdTime::new(params)?)),
};

/// The least that 'turn' may be.
const TURN_MIN: Nanos = Nanos::from_millis(1);

/// A channel without service for this time sends its oldest request.
const BOUND: Nanos = Nanos::from_millis(500);

/// Turns are not shortened below this (CFQ's least slice).
const TURN_LEAST: Nanos = Nanos::from_millis(16);

/// Time that a turn waits for a command that the device does not complete.
const STALL: Nanos = Nanos::from_secs(1);

/// A channel keeps its turn of device time.
pub(super) const TURN: &str = "turn";

/// A request on the device.
struct Flight {
    serial: u64,
    /// The command, of its first request.
    command: Option<Command>,
}

/// A command on the device.
#[derive(Clone, Copy)]
struct Command {
    entered: Reading,
    size: u64,
    /// Expected cost.
    cost: Nanos,
}

struct Turn {
    vm: usize,
    length: Nanos,
    /// Others wait while the device is held for the channel.
    held: bool,
    /// The oldest request has been looked at.
    looked: bool,
}

#[derive(Default)]
struct VmcdTime {
    turn_length: Nanos,
    hold: Nanos,
    queued: Pool,
    links: Links,
    /// By number of the VM; `None` where there is none.
    channels: Vec<Option<Channel>>,
    /// The channels with work by standing, except the one whose turn it is.
    waiting: BTreeSet<Place>,
    /// The device serves one channel at a time.
    by_turns: bool,
    turn: Option<Turn>,
    /// The highest standing at which a channel was chosen.
    reached: Virtual,
    flying: Slots<Flight>,
    clock: Clock,
    run: Run,
    /// The first request of the run, while there is one.
    lead: Option<RequestId>,
    /// No channel with work has been without service since before this;
    /// `None` when none has work.
    unserved_since: Option<Instant>,
    attached: u64,
    turns: u64,
    holds: u64,
    holds_in_vain: u64,
    late: u64,
}

impl VmcdTime {
    fn new(params: &Params) -> Result<Self, ParamError> {
        Ok(VmcdTime {
            turn_length: params.duration_within("turn", TURN_MIN, DURATION_MAX)?,
            hold: params.duration_within("hold", Nanos::ZERO, STALL)?,
            by_turns: true,
            ..VmcdTime::default()
        })
    }

    fn channel(&self, vm: usize) -> Option<&Channel> {
        self.channels.get(vm)?.as_ref()
    }

    fn has_turn(&self, vm: usize) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.vm == vm)
    }

    /// Change a channel, keeping its place among the waiting true.
    fn change<R>(
        &mut self,
        vm: usize,
        change: impl FnOnce(&mut Channel, &mut Links) -> R,
    ) -> Option<R> {
        let (has_turn, by_turns) = (self.has_turn(vm), self.by_turns);
        let channel = self.channels.get_mut(vm)?.as_mut()?;
        let waits = |c: &Channel| {
            let waits = !has_turn && !c.pending.is_empty();
            waits.then(|| c.place(by_turns, vm))
        };
        let before = waits(channel);
        let result = change(channel, &mut self.links);
        let after = waits(channel);
        if before != after {
            if let Some(place) = before {
                self.waiting.remove(&place);
            }
            self.waiting.extend(after);
        }
        Some(result)
    }

    /// Serve one channel at a time from now on, or several.
    fn serve_by_turns(&mut self, by_turns: bool) {
        self.end_turn();
        self.by_turns = by_turns;
        let channels = self.channels.iter().enumerate();
        let work = channels.filter_map(|(vm, c)| Some((c.as_ref()?, vm)));
        let work = work.filter(|(channel, _)| !channel.pending.is_empty());
        self.waiting = work.map(|(channel, vm)| channel.place(by_turns, vm)).collect();
    }

    /// The channel that is next. Its turn begins, when the device has turns.
    fn next_channel(&mut self) -> Option<usize> {
        loop {
            // Its turn is shortened by the number of all that wait, itself included.
            let length = self.turn_length();
            let (reached, _, vm) = self.waiting.pop_first()?;
            let (vm, by_turns) = (usize::from(vm), self.by_turns);
            let channel = self.channels[vm].as_mut()?;
            self.turns += 1;
            channel.chosen = self.turns;
            if by_turns && channel.used >= channel.granted + weighed(length, channel.weight) {
                // It has had its turn already, by late requests and long commands.
                channel.grant(length);
                self.waiting.insert(channel.place(by_turns, vm));
                continue;
            }
            self.reached = self.reached.max(reached);
            if by_turns {
                channel.turns += 1;
                self.turn = Some(Turn { vm, length, held: false, looked: false });
            } else {
                self.waiting.insert(channel.place(by_turns, vm));
            }
            return Some(vm);
        }
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
            let urgent = pending.most_urgent(&self.queued, EXPIRE);
            if let Some((_, id)) = urgent.filter(|&(deadline, _)| deadline <= now) {
                return Some(id);
            }
        }
        pending.next()
    }

    fn dispatch(&mut self, now: Instant, vm: usize, id: RequestId) -> Decision {
        let request = self.queued.take(id);
        let leads = !self.run.extend(&request);
        let more = match (leads, self.by_turns) {
            (true, by_turns) => device_time::size(request.extent.len(), by_turns),
            (false, true) => 0,
            (false, false) => request.extent.len().get(),
        };
        let taken = self.change(vm, |channel, links| {
            channel.pending.take(links, &request);
            channel.last_service = now;
            channel.in_flight += 1;
            channel.idle_since = None;
            channel.commands += u32::from(leads);
            let cost = channel.cost.get().unwrap_or(Nanos::ZERO).scaled(more, 1);
            channel.expected += cost;
            (channel.serial, cost)
        });
        let (serial, cost) = taken.expect("a queued request has a channel");
        let mut command = None;
        if leads {
            self.lead = Some(id);
            command = Some(Command { entered: self.clock.enter(now, more), size: more, cost });
        } else if let Some(lead) = self.lead.and_then(|lead| self.flying.get_mut(lead))
            && let Some(lead) = &mut lead.command
        {
            self.clock.grow(more);
            lead.size += more;
            lead.cost += cost;
        }
        self.flying.insert(id, Flight { serial, command });
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
            let place = channel.place(self.by_turns, vm.index());
            self.waiting.remove(&place);
        }
        if let Some(channel) = self.channels.get_mut(vm.index()) {
            *channel = None;
        }
        leaving
    }

    fn withdraw(&mut self, _now: Instant, id: RequestId) {
        let request = self.queued.take(id);
        let vm = request.vm.index();
        self.change(vm, |channel, links| channel.pending.withdraw(links, &request));
    }

    fn arrived(&mut self, now: Instant, request: Request) {
        self.run.end();
        let vm = request.vm.index();
        if self.has_turn(vm) {
            self.end_hold(now);
        }
        self.queued.insert(request);
        let behind = self.reached;
        // Without turns nothing is kept together: a channel that wakes owes nobody
        // a turn, and one that was behind by a turn would keep the others waiting.
        let lag = if self.by_turns { self.turn_length } else { Nanos::ZERO };
        let longest = self.hold.get() * 2;
        let has_turn = self.has_turn(vm);
        let alone = self.change(vm, |channel, links| {
            if let Some(since) = channel.idle_since.take() {
                channel.think.learn(Nanos::new(now.since(since).get().min(longest)));
            }
            if channel.is_idle() && !has_turn {
                channel.wake(behind, lag);
            }
            let alone = channel.pending.is_empty();
            channel.pending.insert(links, &request);
            alone.then_some(now.max(channel.last_service))
        });
        let alone = alone.expect("a request of a VM that is not attached");
        if let Some(since) = alone {
            self.unserved_since = Some(self.unserved_since.map_or(since, |s| s.min(since)));
        }
    }

    fn completed(&mut self, now: Instant, completion: &Completion) {
        self.run.end();
        let request = &completion.request;
        let Some(flight) = self.flying.remove(request.id) else { return };
        let had = flight.command.map(|c| (self.clock.leave(now, c.entered, c.size), c));
        let vm = request.vm.index();
        if self.channel(vm).is_none_or(|c| c.serial != flight.serial) {
            return; // Of a VM that has left.
        }
        self.change(vm, |channel, _| {
            channel.in_flight -= 1;
            channel.last_service = now;
            if let Some((had, command)) = had {
                channel.commands -= 1;
                channel.expected = channel.expected.saturating_sub(command.cost);
                channel.cost.learn(had.scaled(1, command.size));
                channel.charge(had);
            }
            channel.idle_since = (channel.is_idle() && request.sync).then_some(now);
        });
    }

    fn decide(&mut self, now: Instant, device: &DeviceView<'_>) -> Decision {
        if self.queued.is_empty() {
            return Decision::Idle;
        }
        if self.by_turns != device.profile.rotational() {
            self.serve_by_turns(device.profile.rotational());
        }
        if let Some((vm, id)) = self.continuation() {
            return self.dispatch(now, vm, id);
        }
        if let Some((vm, id)) = self.late(now) {
            self.late += 1;
            return self.dispatch(now, vm, id);
        }
        let next = match self.by_turns {
            true => match self.select(now) {
                Ok(next) => next,
                Err(until) => {
                    let late = self.unserved_since.map(|since| since + self.bound());
                    let until = late.filter(|&l| l > now).map_or(until, |late| late.min(until));
                    return Decision::Hold { until, why: TURN };
                }
            },
            false => self.next_channel(),
        };
        let vm = next.expect("a channel with work waits, or has the turn");
        let id = if self.by_turns {
            self.pick(now, vm)
        } else {
            self.channel(vm).and_then(|c| Some(c.pending.oldest(&self.queued)?.id))
        };
        self.dispatch(now, vm, id.expect("a channel that is next has work"))
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

// The latency bound: which channel has been without service for too long.

impl VmcdTime {
    /// The bound; longer when the least turns of all VMs with work do not fit into it: otherwise
    /// only late requests would be served.
    fn bound(&self) -> Nanos {
        let turns = self.waiting.len() as u64 + 1;
        BOUND.max(TURN_LEAST.min(self.turn_length).scaled(3 * turns, 2))
    }

    /// Since when the channel, if it has work, has been without service.
    fn unserved(&self, channel: &Channel) -> Option<Instant> {
        let oldest = channel.pending.oldest(&self.queued)?;
        Some(oldest.arrived.max(channel.last_service))
    }

    /// The oldest request of the channel that has been late longest.
    fn late(&mut self, now: Instant) -> Option<(usize, RequestId)> {
        // The bound is never less than [`BOUND`], and takes longer to find out.
        if self.unserved_since.is_none_or(|since| now < since + BOUND) {
            return None;
        }
        let bound = self.bound();
        if self.unserved_since.is_none_or(|since| now < since + bound) {
            return None;
        }
        let channels = self.channels.iter().enumerate();
        let unserved = channels.filter_map(|(vm, c)| Some((self.unserved(c.as_ref()?)?, vm)));
        let longest = unserved.min();
        self.unserved_since = longest.map(|(since, _)| since);
        let (_, vm) = longest.filter(|&(since, _)| since + bound <= now)?;
        let id = self.channel(vm)?.pending.oldest(&self.queued)?.id;
        Some((vm, id))
    }
}

// Turns, on a device with a head: how long one is, when it waits for its channel, and when it
// ends.

impl VmcdTime {
    /// The running turn ends, and its channel waits if it has work.
    fn end_turn(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        let by_turns = self.by_turns;
        if let Some(channel) = self.channels[turn.vm].as_mut() {
            channel.grant(turn.length);
            if !channel.pending.is_empty() {
                self.waiting.insert(channel.place(by_turns, turn.vm));
            }
        }
    }

    /// The running turn has been used up: its channel has another one, if it
    /// is still the one that is next, with a request or without: one with a
    /// request at a time has none just then.
    fn renew_turn(&mut self) {
        let length = self.turn_length();
        let Some(turn) = &mut self.turn else { return };
        let Some(channel) = self.channels[turn.vm].as_mut() else { return };
        channel.grant(turn.length);
        let place = channel.place(true, turn.vm);
        if self.waiting.first().is_none_or(|first| place < *first) {
            (turn.length, turn.looked) = (length, false);
            channel.turns += 1;
            self.reached = self.reached.max(channel.granted);
        } else {
            self.turn = None;
            if !channel.pending.is_empty() {
                self.waiting.insert(place);
            }
        }
    }

    /// The time for which the device was held for the turn's channel until now
    /// is the channel's own.
    fn end_hold(&mut self, now: Instant) {
        let Some(turn) = &mut self.turn else { return };
        if std::mem::take(&mut turn.held)
            && let Some(channel) = &mut self.channels[turn.vm]
            && let Some(since) = channel.idle_since
        {
            // A turn may outlive its hold, with nothing queued and nobody to end it.
            channel.charge(now.since(since).min(self.hold));
        }
    }

    /// A turn that begins now: shortened, when many have work, so that a round
    /// of turns fits into the bound.
    fn turn_length(&self) -> Nanos {
        let fits = BOUND.scaled(1, self.waiting.len() as u64 + 1);
        self.turn_length.min(fits.max(TURN_LEAST))
    }

    /// Has the running turn's channel had all that the turn is worth?
    fn turn_is_used_up(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| {
            self.channel(turn.vm).is_some_and(|channel| {
                let used = channel.used + weighed(channel.expected, channel.weight);
                used >= channel.granted + weighed(turn.length, channel.weight)
            })
        })
    }

    /// Until when the running turn waits for its channel, which has nothing
    /// queued. `None`: not at all.
    fn waits_until(&self, channel: &Channel) -> Option<Instant> {
        if channel.think.get().is_some_and(|think| think > self.hold) {
            return None;
        }
        match channel.idle_since {
            Some(since) => Some(since + self.hold),
            None => (channel.in_flight > 0).then(|| channel.last_service + STALL),
        }
    }

    /// Chooses the channel that sends next on a device with turns, or the time until which to wait.
    fn select(&mut self, now: Instant) -> Result<Option<usize>, Instant> {
        if self.turn_is_used_up() {
            self.end_hold(now);
            self.renew_turn();
        }
        if let Some(turn) = &self.turn
            && let Some(channel) = self.channel(turn.vm)
        {
            let (vm, held) = (turn.vm, turn.held);
            if !channel.pending.is_empty() {
                return Ok(Some(vm));
            }
            if let Some(until) = self.waits_until(channel).filter(|&until| now < until) {
                self.holds += !held as u64;
                self.turn.as_mut().expect("there is a turn").held = true;
                return Err(until);
            }
            self.holds_in_vain += held as u64;
            self.end_hold(now);
            self.end_turn();
        }
        Ok(self.next_channel())
    }
}

// State of one VM in `vmcd-time`.

/// Device time over weight, with 24 binary digits behind the point.
pub type Virtual = u128;

/// Device time as it counts for a channel of that weight.
pub fn weighed(time: Nanos, weight: u64) -> Virtual {
    device_time::fraction(time, weight)
}

/// Order of service, the lowest first: device time, when it was chosen, and its VM; without equals.
pub type Place = (Virtual, u64, u16);

/// A VM's pending requests, and the device time that it has used.
#[derive(Default)]
pub struct Channel {
    pub weight: u64,
    pub pending: Pending,
    /// Tells a VM from the one that had its number before.
    pub serial: u64,
    /// Device time used, over the weight.
    pub used: Virtual,
    /// Time that its turns have entitled it to, over the weight; at most `used` outside of a turn.
    /// The next turn is shorter by the difference.
    pub granted: Virtual,
    /// The turn, or the dispatch, that it was last chosen for: of equals, the
    /// one that was chosen longest ago is next.
    pub chosen: u64,
    /// Commands and requests on the device.
    pub commands: u32,
    pub in_flight: u32,
    /// Expected time of the commands on the device.
    pub expected: Nanos,
    /// Mean device time of a command, for each unit of its size ([`device_time::size`]).
    pub cost: Mean,
    /// Mean time from a completion that left it without work to its next
    /// request; longer ones than twice the hold count as that.
    pub think: Mean,
    /// When the last of its requests was dispatched or done.
    pub last_service: Instant,
    /// When its last completion left it without work that somebody waited for.
    pub idle_since: Option<Instant>,
    /// For the metrics: all device time used, and the turns.
    pub device_time: Nanos,
    pub turns: u64,
}

impl Channel {
    pub fn new(now: Instant, weight: u64, serial: u64, used: Virtual) -> Self {
        Channel { weight, serial, used, granted: used, last_service: now, ..Channel::default() }
    }

    /// Where it stands among the others. When the device serves one channel at a time, by whole
    /// turns, so that equal channels take turns in a fixed order; when it serves several, with
    /// the commands on the device.
    pub fn place(&self, by_turns: bool, vm: usize) -> Place {
        let reached = match by_turns {
            true => self.granted,
            false => self.used + weighed(self.expected, self.weight),
        };
        (reached, self.chosen, vm as u16)
    }

    /// A turn is over. One that used up its length grants that, and as many
    /// whole lengths as it has overrun; one that ended early what it used.
    pub fn grant(&mut self, length: Nanos) {
        let length = weighed(length, self.weight).max(1);
        let over = self.used.saturating_sub(self.granted);
        let turns = if over < length { 0 } else { over / length };
        self.granted = if turns == 0 { self.used } else { self.granted + turns * length };
    }

    /// A channel that wakes is behind the others by `lag` at most.
    pub fn wake(&mut self, reached: Virtual, lag: Nanos) {
        let least = reached.saturating_sub(weighed(lag, self.weight));
        self.granted = self.granted.max(least);
        self.used = self.used.max(self.granted);
    }

    /// Nothing queued, nothing on the device.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.in_flight == 0
    }

    pub fn charge(&mut self, time: Nanos) {
        self.used += weighed(time, self.weight);
        self.device_time += time;
    }
}
