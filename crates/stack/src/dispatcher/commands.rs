//! From requests to commands: the policy's answers, and coalescing.

use super::vms::State;
use super::{Config, Dispatcher, Output, Tags};
use seekway_core::request::{Completion, Extent, Op, Request, RequestId};
use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, HOLD_MAX, Stripe};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};

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
        let (vm, merged) = (slot.request.vm, slot.leader.is_some());
        if !merged && (slot.split || len < slot.request.extent.len()) {
            return self.cut(now, id, len, known);
        }
        (slot.state, slot.known) = (State::Waiting, known);
        self.count_leaving(now, vm);
        self.by_age.remove(&mut self.links, id);
        self.unindex(id);
        if !merged {
            return id;
        }
        let whole = self.whole(id).len();
        assert!(len >= whole, "policy dispatches a part of {id:?}, which is merged");
        self.merged_leave(id, known)
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
        let mut last = self.send_merged(now, first, &mut command);
        if command.op == Op::Flush {
            self.join_flushes(now, first);
        }
        while command.op.is_data()
            && self.continues(&command, most)
            && let Answer::Send(next) = self.ask(now)
        {
            let request = self.slots[next.id].request;
            if !fits(&command, &request, self.whole(next.id), most.min(next.most)) {
                self.staged = Some(next);
                break;
            }
            most = most.min(next.most);
            grow(&mut command, request.extent);
            self.slots[last].next = Some(next.id);
            self.sent(now, next.id);
            self.joined(first, next.id);
            last = self.send_merged(now, next.id, &mut command);
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
    pub(super) fn sent(&mut self, now: Instant, id: RequestId) {
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

// Requests that go in parts, where the policy wants a device command to be
// short. A part has a slot and an id of its own, by which the engine knows its
// command. The request keeps its slot, with its whole extent, until all of it
// is done; while a rest is queued, that is what the policy has of it.

/// A request of which a part has left the policy.
pub(super) struct Split {
    /// The extent that has not left the policy. `None`: nothing, or nothing that will ever be sent.
    left: Option<Extent>,
    /// Parts on the device, or staged.
    out: u32,
    /// Those that the policy in charge has dispatched.
    known: u32,
    /// When the first part was sent.
    dispatched: Option<Instant>,
    /// Sum over the parts.
    service: Nanos,
    /// All parts that are done went well, and none was dropped.
    ok: bool,
}

impl Split {
    fn new(whole: Extent) -> Self {
        let (left, service) = (Some(whole), Nanos::ZERO);
        Split { left, out: 0, known: 0, dispatched: None, service, ok: true }
    }
}

impl Dispatcher {
    /// The extent of a request that has not left the policy; all of it when nothing has.
    pub(super) fn left(&self, id: RequestId) -> Extent {
        let slot = &self.slots[id];
        let split = if slot.split { self.splits.get(id) } else { None };
        split.and_then(|split| split.left).unwrap_or_else(|| self.whole(id))
    }

    /// The first `len` sectors of what is left of a queued request leave the
    /// policy: the part.
    #[cold]
    pub(super) fn cut(
        &mut self,
        now: Instant,
        id: RequestId,
        len: Sectors,
        known: bool,
    ) -> RequestId {
        self.unindex(id);
        let slot = &mut self.slots[id];
        if !std::mem::replace(&mut slot.split, true) {
            self.splits.insert(id, Split::new(slot.request.extent));
        }
        let split = self.splits.get_mut(id).expect("a split request is in the table");
        let left = split.left.expect("something is left of a queued request");
        let (part, rest) = left.split(len);
        split.left = rest;
        split.out += 1;
        split.known += u32::from(known);
        match rest {
            Some(rest) => self.adjacency.insert(slot.request.vm, id, rest.start()),
            None => {
                slot.state = State::Parted;
                self.by_age.remove(&mut self.links, id);
            }
        }
        if rest.is_none() {
            self.count_leaving(now, self.slots[id].request.vm);
        }
        let part = self.slots.allocate_part(id, part);
        self.slots[part].known = known;
        part
    }

    /// A part of this request is sent: is it the first?
    #[cold]
    pub(super) fn first_part_sent(&mut self, now: Instant, whole: RequestId) -> bool {
        let split = self.splits.get_mut(whole).expect("a part is of a split request");
        split.dispatched.replace(split.dispatched.unwrap_or(now)).is_none()
    }

    /// A part will have no further part in it: tell the policy if it knows it,
    /// and free the slot.
    pub(super) fn part_ends(&mut self, now: Instant, part: RequestId, end: Completion) {
        let whole = end.request.id;
        let split = self.splits.get_mut(whole).expect("a part is of a split request");
        split.out -= 1;
        split.service += end.service;
        split.ok &= end.ok;
        if self.slots[part].known {
            split.known -= 1;
            let last = split.known == 0 && self.slots[whole].state != State::Queued;
            self.scheduler.completed(now, &Completion { last, ..end });
        }
        self.slots.release(part);
    }

    /// A part is done: the completion of its request, if that is done by it.
    #[cold]
    pub(super) fn finish_part(
        &mut self,
        now: Instant,
        part: RequestId,
        end: Completion,
    ) -> Option<Completion> {
        let whole = end.request.id;
        self.part_ends(now, part, end);
        let split = self.splits.get(whole)?;
        if split.out > 0 || self.slots[whole].state != State::Parted {
            return None;
        }
        let split = self.splits.remove(whole)?;
        let request = self.slots[whole].request;
        let dispatched = split.dispatched.unwrap_or(end.dispatched);
        self.slots.release(whole);
        Some(Completion { request, dispatched, service: split.service, ok: split.ok, ..end })
    }

    /// The VM of a split request leaves, and the rest with it. True when parts
    /// are on the device: then the request fails when they are done. Otherwise
    /// it is no longer split.
    pub(super) fn drop_rest(&mut self, id: RequestId) -> bool {
        let Some(split) = self.splits.get_mut(id) else { return false };
        if split.out == 0 {
            self.splits.remove(id);
            return false;
        }
        split.ok &= split.left.take().is_none();
        self.slots[id].state = State::Parted;
        true
    }

    /// Another policy takes over: it knows none of the parts that are out.
    pub(super) fn forget_parts(&mut self) {
        for split in self.splits.values_mut() {
            split.known = 0;
        }
    }
}

// Bounds of what the device holds at once, beside the number of commands. The next command waits
// for all of it, so it is bounded in bytes, also while one VM is alone. And a device's own queue
// has a number of tags: an engine that sends more than there are sleeps in the kernel.

/// Most that one drive holds before it takes nothing more: 16 MiB. A drive of 7 GB/s has 2 ms of
/// work then, and one of 250 MB/s has 67 ms.
const DRIVE_MAX: Sectors = Sectors::new(16 << 11);

/// The longest command where tags do not bound it: 1 MiB.
const COMMAND_MAX: Sectors = Sectors::new(1 << 11);

/// Sectors and tags on the device, and their bounds.
pub(super) struct Room {
    sectors: u64,
    sectors_max: u64,
    tags: u64,
    tags_max: u64,
    /// Sectors that one tag is for.
    of_tag: u64,
}

impl Room {
    pub(super) fn new(tags: Option<Tags>, stripe: Option<Stripe>) -> Room {
        let drives = stripe.map_or(1, Stripe::members);
        let of_tag = tags.map_or(u64::MAX, |tags| tags.sectors.get().max(1));
        // The last command may take several at once.
        let most = |tags: Tags| {
            let longest = tags.command_max().min(COMMAND_MAX).get().div_ceil(of_tag);
            (tags.ours() + 1).saturating_sub(longest).max(1)
        };
        Room {
            sectors: 0,
            sectors_max: DRIVE_MAX.get() * u64::from(drives),
            tags: 0,
            tags_max: tags.map_or(u64::MAX, most),
            of_tag,
        }
    }

    /// No more may go now.
    pub(super) fn is_full(&self) -> bool {
        self.sectors >= self.sectors_max || self.tags >= self.tags_max
    }

    /// A command goes to the device.
    pub(super) fn enter(&mut self, op: Op, len: Sectors) {
        let (sectors, tags) = self.needs(op, len);
        (self.sectors, self.tags) = (self.sectors + sectors, self.tags + tags);
    }

    /// The device is done with it.
    pub(super) fn leave(&mut self, op: Op, len: Sectors) {
        let (sectors, tags) = self.needs(op, len);
        (self.sectors, self.tags) = (self.sectors - sectors, self.tags - tags);
    }

    /// Room that a command takes. A flush, discard or write-zeroes moves no data here; the kernel's
    /// own threads wait for it.
    fn needs(&self, op: Op, len: Sectors) -> (u64, u64) {
        let len = len.get();
        match op.is_data() {
            false => (0, 1),
            true if len <= self.of_tag => (len, 1),
            true => (len, len.div_ceil(self.of_tag)),
        }
    }
}

#[cfg(test)]
mod room_tests {
    use super::*;

    /// Number of commands of this length that go before the room is full, and the tags that they
    /// take.
    fn fill(room: &mut Room, op: Op, kib: u64) -> (u32, u64) {
        let (len, mut commands) = (Sectors::new(kib * 2), 0);
        while !room.is_full() && commands < 1000 {
            room.enter(op, len);
            commands += 1;
        }
        let tags = room.tags;
        (0..commands).for_each(|_| room.leave(op, len));
        assert_eq!((room.sectors, room.tags), (0, 0));
        (commands, tags)
    }

    #[test]
    fn bytes_are_bounded_for_each_drive() {
        let mut one = Room::new(None, None);
        assert_eq!(fill(&mut one, Op::Read, 1024).0, 16);
        assert_eq!(fill(&mut one, Op::Write, 4).0, 1000, "short ones by their number alone");
        let stripe = Stripe::new(4, Sectors::new(128));
        assert_eq!(fill(&mut Room::new(None, stripe), Op::Read, 1024).0, 64);
    }

    #[test]
    fn three_quarters_of_the_tags_are_never_exceeded() {
        let most =
            [(64, 128, 6), (64, 1280, 16), (32, 512, 12), (2, 128, 1), (4, 64, 1), (1, 4, 1)];
        for (count, kib, commands_max) in most {
            let tags = Tags { count, sectors: Sectors::new(kib * 2) };
            let mut room = Room::new(Some(tags), None);
            let longest = tags.command_max().min(COMMAND_MAX);
            let (commands, taken) = fill(&mut room, Op::Read, longest.bytes() >> 10);
            assert_eq!(commands, commands_max, "{count} tags of {kib} KiB");
            assert!(taken <= (u64::from(count) * 3 / 4).max(1), "{taken} of {count}");
            let (_, taken) = fill(&mut room, Op::Read, 4);
            assert!(taken <= (u64::from(count) * 3 / 4).max(1), "{taken} of {count}");
        }
    }
}
