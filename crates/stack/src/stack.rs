//! The host path of one device: all that happens to a guest's request between its front
//! end and the device, as a state machine without I/O. Both engines drive it: the daemon with
//! io_uring and memory, the simulator with a device model and what work costs.
//!
//! ```text
//!  front end ──submit──▶ ┌─────────── Stack ───────────┐ ──Issue──▶ device
//!                        │ admit → limit → cache →     │ ──Copy───▶ memory
//!  front end ◀──Done──── │ place → order → dispatch    │ ◀─io_done─
//!                        └─────────────────────────────┘ ──Wait───▶ timer
//! ```
//!
//! A request passes the stages downwards once and upwards once:
//!
//! - **admit** ([`admit`]): range, what may be outstanding, whether somebody waits;
//! - **limit** ([`limit`]): rate limits of a disk and of groups of disks; what is over its limit
//!   waits here, and no policy sees it;
//! - **cache** ([`crate::cache`]): reads are looked up, writes take blocks out, the prefetcher
//!   reads ahead;
//! - **place** ([`Map`]): a request is cut by where its disk lies on the device;
//! - **order**: long requests go in pieces; a bounded number of each VM's discards and write-zeroes
//!   is under way, the others wait;
//! - **dispatch** ([`crate::dispatcher`]): barriers, policy, depth, coalescing, background class.
//!
//! # The engine's part
//!
//! 1. [`Stack::attach`] a disk for each VM.
//! 2. [`Stack::submit`] what guests ask for, [`Stack::io_done`] what the device has done.
//! 3. After each batch of inputs, and when a time has come that it asked for,
//!    [`Stack::poll`] until the answer is [`Action::Wait`], and carry out what it says, in order:
//!    a copy before the next command. [`Stack::take`] gives what is to be done without the device
//!    being asked for more; it may be called at any time.
//!
//! The engine keeps what only it can have: guests' buffers by token, the cache's memory, retries.
//!
//! Time is an argument and never runs backwards. Broken contracts of an engine panic; what
//! comes from guests never does.

mod admit;
mod cached;
pub(crate) mod journal;
pub mod limit;
mod map;
mod order;

use crate::cache::{FetchId, Frame};
use crate::dispatcher;
use crate::dispatcher::{Arrival, CompletedCommand, Dispatcher, HoldStats, Output, Stats};
use admit::Load;
pub use admit::{Urgency, is_sync};
use cached::CacheStage;
pub use cached::frames_of;
use journal::Journal;
use limit::{Direction, DiskLimits, GroupName, Limiter, Limits};
pub use map::{FileExtent, Map};
use order::Calls;
use seekway_core::params::ParamError;
use seekway_core::prefetcher::Prefetcher;
use seekway_core::request::{Completion, Extent, Op, ProcessTag, Request, RequestId, VmId};
use seekway_core::scheduler::{DeviceProfile, Group, Reserve, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_policy::prefetchers;
use std::collections::VecDeque;
use std::num::NonZeroU32;

/// The longest read or write that goes to the device: 1 MiB. Whoever comes next waits for it on a
/// device that does one thing at a time; one with a head needs some 10 ms, a seek's time.
pub const PIECE_MAX: Sectors = Sectors::new(1 << 11);

/// Pieces that one request is cut into by where it lies. What is left of it is cut by length only:
/// places only guide policies.
const PIECES_MAX: u32 = 256;

/// Number of requests in the dispatcher from which on places do not count: it takes no more than
/// [`crate::dispatcher::OUTSTANDING_MAX`].
const CUT_BELOW: usize = crate::dispatcher::OUTSTANDING_MAX / 2;

/// Guests' requests that may be outstanding at the most, whatever [`Config`] says.
const OUTSTANDING_LIMIT: usize = 1 << 20;

// Types that go into the stack and come out of it.

/// Guests' requests that may be outstanding on one device, unless [`Config`] says otherwise.
pub const OUTSTANDING_DEFAULT: usize = 1 << 18;

/// The stack's settings for the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Depth, coalescing and hard limit.
    pub dispatch: dispatcher::Config,
    /// Guests' requests that may be outstanding; [`Refused::Full`] beyond it.
    pub outstanding_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config { dispatch: dispatcher::Config::default(), outstanding_max: OUTSTANDING_DEFAULT }
    }
}

/// A guest's request as its front end hands it in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Submit {
    /// Which VM; attached before.
    pub vm: VmId,
    /// Which process inside the guest, if known.
    pub tag: Option<ProcessTag>,
    /// Operation; flushes and discards come too.
    pub op: Op,
    /// Does somebody wait for it? See [`is_sync`].
    pub sync: bool,
    /// The sectors of the VM's disk. Says nothing for a flush.
    pub extent: Extent,
    /// The engine's own name for the request; it comes back with what is to be done for it.
    pub token: u64,
}

/// Why a request was not taken in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Lies outside the VM's disk.
    Range,
    /// Too many requests are outstanding.
    Full,
}

/// Why a part of a request failed: the engine's own code (an errno in the daemon).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoError(pub i32);

/// The error of what is not carried out because its disk leaves: ESHUTDOWN.
pub const ABANDONED: IoError = IoError(108);

/// The engine's next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send this command to the device. Its id names it in [`Stack::io_done`]; its
    /// extent on the device covers all of [`Stack::members`].
    Issue(Request),
    /// Copy cached data to the guest.
    Copy(Copy),
    /// A guest's request is done.
    Done(Done),
    /// A guest's read was looked up in the cache, and `commands` reads of the device follow
    /// from it. For engines that count what such work costs.
    LookedUp {
        /// The engine's name for the read: [`Submit::token`].
        token: u64,
        /// Reads into the cache and past it that it began.
        commands: u32,
    },
    /// A prefetch waits for the device. For engines that count what such work costs.
    Prefetching,
    /// Nothing more to do now: poll again at one of these times, or after the next input.
    Wait(Wake),
}

/// Copy `part` of a guest's disk from [frames](Stack::frames) of the cache to the guest.
/// The frames keep their data until the engine carries out the next [`Action::Issue`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copy {
    /// The engine's name for the guest's read: [`Submit::token`].
    pub token: u64,
    /// The sectors of the disk. The first lies in the first frame, as far behind its
    /// beginning as it lies behind a block's on the disk.
    pub part: Extent,
    /// Where the frames stand in the stack's list.
    frames: (u32, u32),
}

/// A guest's request is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// The engine's name for it.
    pub token: u64,
    /// The VM whose request it is.
    pub vm: VmId,
    /// The first error of its parts.
    pub result: Result<(), IoError>,
    /// Where its time went.
    pub stages: Stages,
}

/// Where a request's time went, from its arrival until it was done. A read that the cache answers
/// has spent none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stages {
    /// Held by rate limits.
    pub limited: Nanos,
    /// Then until the device got the first of it, or of the read into the cache that it waited
    /// for: the policy's queue, barriers, the device's depth.
    pub queued: Nanos,
    /// Then until it was done.
    pub device: Nanos,
}

/// When the stack wants to be polled if nothing happens before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wake {
    /// Requests are withheld until then, by a limit or by the policy.
    pub demand: Option<Instant>,
    /// The prefetcher wants to look at its streams then.
    pub prefetch: Option<Instant>,
}

impl Wake {
    /// The earlier of the two.
    pub fn earliest(self) -> Option<Instant> {
        self.demand.into_iter().chain(self.prefetch).min()
    }
}

/// A part of a command on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// The request that it belongs to, for [`Stack::io_done`].
    pub id: RequestId,
    /// The VM on whose disk it lies.
    pub vm: VmId,
    /// The operation, the same for all members of the command.
    pub op: Op,
    /// The request or fetch whose data it moves.
    pub target: Target,
    /// Where it lies on the VM's disk. Says nothing for a flush.
    pub part: Extent,
}

/// Where the data of a [`Member`] comes from or goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Buffers of a guest's request, which the engine knows.
    Guest {
        /// The engine's name for the guest's request.
        token: u64,
    },
    /// Frames of the cache ([`Stack::fetch`]).
    Cache(FetchId),
}

/// The cache of a stack as it is made.
pub struct CacheSpec {
    /// Bytes, unit and seed.
    pub config: crate::cache::Config,
    /// The prefetcher that fills the cache ahead of guests.
    pub prefetcher: Box<dyn Prefetcher>,
    /// Its specification, for journals and status.
    pub spec: String,
}

impl CacheSpec {
    /// A cache with the prefetcher of this specification ([`prefetchers::build`]).
    ///
    /// # Errors
    /// For a specification that is none.
    pub fn new(config: crate::cache::Config, spec: &str) -> Result<CacheSpec, ParamError> {
        Ok(CacheSpec { config, prefetcher: prefetchers::build(spec)?, spec: spec.into() })
    }
}

/// A disk that joins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskSpec {
    /// Share of the device relative to the others'.
    pub weight: std::num::NonZeroU32,
    /// Size of the disk.
    pub capacity: Sectors,
    /// Where it lies on the device.
    pub map: Map,
    /// Its reads go through the cache, if there is one.
    pub cached: bool,
}

/// The host path of one device.
pub struct Stack {
    config: Config,
    /// The longest read or write that goes to this device: less where its queue has few tags.
    piece_max: Sectors,
    disks: Vec<Option<Disk>>,
    /// Groups of disks by number; a group stays known.
    groups: Vec<NamedGroup>,
    calls: Calls,
    limiter: Limiter,
    cache: Option<CacheStage>,
    /// Long reads and writes of which a piece is done: the next may have to go.
    rests: VecDeque<u32>,
    dispatcher: Dispatcher,
    /// Actions for the engine, oldest first.
    actions: VecDeque<Action>,
    /// Frames of the copies among them.
    frames: Vec<Frame>,
    /// Completions of the last command.
    finished: Vec<Completion>,
    /// Reused from call to call.
    completions: Vec<Completion>,
    background: Vec<RequestId>,
    journal: Option<Journal>,
}

impl Stack {
    /// A stack over an idle device, without VMs.
    pub fn new(
        scheduler: Box<dyn Scheduler>,
        profile: DeviceProfile,
        config: Config,
        cache: Option<CacheSpec>,
    ) -> Stack {
        let outstanding_max = config.outstanding_max.min(OUTSTANDING_LIMIT);
        let piece_max =
            config.dispatch.tags.map_or(PIECE_MAX, |tags| tags.command_max().min(PIECE_MAX));
        let coalesce = config.dispatch.coalesce.min(piece_max);
        let dispatch = dispatcher::Config { coalesce, ..config.dispatch };
        let config = Config { dispatch, outstanding_max };
        Stack {
            config,
            piece_max,
            disks: Vec::new(),
            groups: Vec::new(),
            calls: Calls::default(),
            limiter: Limiter::new(),
            cache: cache.map(CacheStage::new),
            rests: VecDeque::new(),
            dispatcher: Dispatcher::new(scheduler, profile, config.dispatch),
            actions: VecDeque::new(),
            frames: Vec::new(),
            finished: Vec::new(),
            completions: Vec::new(),
            background: Vec::new(),
            journal: None,
        }
    }

    /// A guest's request. It ends by [`Action::Done`].
    ///
    /// # Errors
    /// Outside the disk, or too much is outstanding; nothing has happened then.
    ///
    /// # Panics
    /// When the VM is not attached.
    pub fn submit(&mut self, now: Instant, request: Submit) -> Result<(), Refused> {
        if !self.has_room() {
            return Err(Refused::Full);
        }
        let disk = self.disk(request.vm);
        if request.op != Op::Flush && request.extent.end().get() > disk.spec.capacity.get() {
            return Err(Refused::Range);
        }
        disk.outstanding += 1;
        self.record(|j| j.submit(now, &request));
        let call = self.calls.insert(now, request, None);
        let Submit { vm, op, extent, .. } = request;
        if self.limiter.is_limited(vm)
            && let Some(direction) = Direction::of(op)
            && !self.limiter.submit(now, vm, direction, extent.len().bytes(), call)
        {
            if let (Op::Read, Some(cache)) = (op, &mut self.cache) {
                cache.held(vm, extent.len());
            }
            return Ok(());
        }
        self.enter(now, call);
        Ok(())
    }

    /// Is less outstanding than may be? If not, requests are refused.
    pub fn has_room(&self) -> bool {
        let fetching = self.cache.as_ref().map_or(0, CacheStage::fetching);
        self.calls.len() - fetching < self.config.outstanding_max
    }

    /// A guest's call passes its limits: it goes to the cache, or towards the device.
    fn enter(&mut self, now: Instant, call: u32) {
        self.calls[call].entered = now;
        let Submit { vm, op, .. } = self.calls[call].request;
        match op {
            Op::Read if self.read_cached(now, call) => {}
            Op::Read | Op::Write | Op::Flush => {
                self.write_begins(now, call);
                self.arrive(now, call);
            }
            Op::Discard | Op::WriteZeroes => {
                self.calls[call].unsent = self.calls[call].request.extent.len();
                self.disk(vm).parked.push_back(call);
                self.unpark(now, vm);
            }
        }
    }

    /// A call reaches the dispatcher.
    fn arrive(&mut self, now: Instant, call: u32) {
        let request = self.calls[call].request;
        if request.op != Op::Flush {
            return self.arrive_data(now, call);
        }
        let Submit { vm, tag, op, sync, .. } = request;
        let nowhere = Extent::new(Lba::ZERO, Sectors::new(1)).expect("one sector");
        let id = self.dispatcher.arrive(now, Arrival { vm, tag, op, sync, extent: nowhere });
        self.calls.add_part(id, call, nowhere);
        self.disk(vm).load.requests += 1;
    }

    /// A part of a call's extent reaches the dispatcher, in the pieces in which it lies on
    /// the device.
    fn arrive_part(&mut self, now: Instant, call: u32, part: Extent) {
        self.cut(call, part, |stack, arrival| stack.dispatcher.arrive(now, arrival));
    }

    /// Cut a part of a call by where it lies, and let `arrive` name each piece a request.
    fn cut(
        &mut self,
        call: u32,
        part: Extent,
        mut arrive: impl FnMut(&mut Stack, Arrival) -> RequestId,
    ) {
        let Submit { vm, tag, op, sync, .. } = self.calls[call].request;
        let crowded = self.dispatcher.outstanding() >= CUT_BELOW;
        let may_cut = !crowded && self.disk(vm).load.may_cut();
        let most = if may_cut { PIECES_MAX } else { 1 };
        let longest = if op.is_data() { self.piece_max } else { part.len() };
        let (mut at, mut left, mut pieces) = (part.start(), part.len(), 0);
        while left > Sectors::ZERO {
            let disk = self.disk(vm);
            disk.load.requests += 1;
            let next = left.min(longest);
            let mut extent = disk.spec.map.piece(at, next);
            pieces += 1;
            if pieces >= most {
                extent = Extent::new(extent.start(), next).unwrap_or(extent);
            }
            let len = extent.len();
            let id = arrive(self, Arrival { vm, tag, op, sync, extent });
            let piece = Extent::new(at, len).expect("a piece is part of an extent");
            self.calls.add_part(id, call, piece);
            at = at + len;
            left = Sectors::new(left.get() - len.get());
        }
    }

    /// The device is done with a command, and with each of its members but the `failed` ones.
    /// The requests that it completed are in [`Stack::finished`].
    ///
    /// # Panics
    /// When `io` is not a command on the device.
    pub fn io_done(
        &mut self,
        now: Instant,
        io: RequestId,
        failed: &[(RequestId, IoError)],
    ) -> CompletedCommand {
        self.record(|j| j.io_done(now, io, failed));
        for &(id, error) in failed {
            self.calls.fail_part(id, error);
        }
        let mut completions = std::mem::take(&mut self.completions);
        let served = self.dispatcher.complete(now, io, failed.is_empty(), &mut completions);
        self.finished.clear();
        for completion in completions.drain(..) {
            self.part_done(now, completion);
        }
        self.completions = completions;
        // Not before all are accounted for: what arrives takes over their ids.
        self.send_rests(now);
        self.unpark(now, served.vm);
        self.end_fetches(now);
        served
    }

    fn part_done(&mut self, now: Instant, completion: Completion) {
        let id = completion.request.id;
        let index = self.calls.part(id).call;
        self.calls[index].was_dispatched(completion.dispatched);
        if let Some(fetch) = self.calls[index].fetch {
            self.fetch_left_device(fetch, id);
        }
        self.finished.push(completion);
        self.disk(completion.request.vm).load.requests -= 1;
        if self.calls.part_done(id) {
            self.call_done(now, index);
        } else if self.calls[index].unsent > Sectors::ZERO {
            self.rest(index);
        }
    }

    /// Nothing of a call is left to do.
    fn call_done(&mut self, now: Instant, index: u32) {
        let call = &self.calls[index];
        if let (Some(id), Some(cache)) = (call.fetch, &mut self.cache) {
            return cache.has_ended(id);
        }
        let Submit { vm, op, extent, .. } = call.request;
        if !self.goes_on(index) {
            self.write_ends(vm, op, extent);
            self.end_call(now, index);
        }
    }

    /// A guest's call ends, whether or not all of it was done.
    fn end_call(&mut self, now: Instant, index: u32) {
        let Submit { vm, token, .. } = self.calls[index].request;
        let (error, stages) = (self.calls[index].error, self.calls[index].stages(now));
        self.calls.remove(index);
        self.disk(vm).outstanding -= 1;
        self.act(Action::Done(Done { token, vm, result: error.map_or(Ok(()), Err), stages }));
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// Was every action taken?
    pub(crate) fn is_settled(&self) -> bool {
        self.actions.is_empty()
    }

    /// Takes the next action of those decided, without asking the device for more.
    pub fn take(&mut self) -> Option<Action> {
        let action = self.actions.pop_front()?;
        self.record(|j| j.action(&action));
        Some(action)
    }

    /// The next action. Ask until the answer is [`Action::Wait`].
    pub fn poll(&mut self, now: Instant) -> Action {
        self.record(|j| j.now(now));
        loop {
            while let Some(call) = self.limiter.next(now) {
                self.enter(now, call);
            }
            if let Some(action) = self.take() {
                return action;
            }
            let wake = match self.dispatcher.poll(now) {
                Output::Dispatch(command) => {
                    let issue = Action::Issue(command);
                    self.record(|j| j.action(&issue));
                    return issue;
                }
                Output::WakeAt(at) => Some(at),
                Output::Idle => None,
            };
            if !self.read_ahead(now) {
                let prefetch = self.next_prefetch().filter(|&at| at > now);
                let demand = Instant::earliest([wake, self.limiter.next_wake()]);
                let wait = Action::Wait(Wake { demand, prefetch });
                self.record(|j| j.action(&wait));
                return wait;
            }
        }
    }

    /// The frames of a copy that was the last answer of [`Stack::take`] or [`Stack::poll`].
    pub fn frames(&self, copy: &Copy) -> &[Frame] {
        let (first, count) = copy.frames;
        &self.frames[first as usize..(first + count) as usize]
    }

    /// The parts of a command on the device, ascending and adjacent there.
    pub fn members(&self, io: RequestId) -> impl Iterator<Item = Member> + '_ {
        self.dispatcher.members(io).map(|request| {
            let part = self.calls.part(request.id);
            let call = &self.calls[part.call];
            let target = match call.fetch {
                Some(id) => Target::Cache(id),
                None => Target::Guest { token: call.request.token },
            };
            let whole = self.dispatcher.request(request.id).extent;
            let skip = request.extent.start().distance(whole.start());
            let start = part.extent.start() + skip;
            let part = Extent::new(start, request.extent.len()).expect("a part of a part");
            Member { id: request.id, vm: request.vm, op: request.op, target, part }
        })
    }

    /// Completions of the last [`Stack::io_done`].
    pub fn finished(&self) -> &[Completion] {
        &self.finished
    }

    /// Is this a command on the device?
    pub fn is_in_flight(&self, io: RequestId) -> bool {
        self.dispatcher.is_in_flight(io)
    }

    /// The disk of a VM that is attached.
    fn disk(&mut self, vm: VmId) -> &mut Disk {
        let disk = self.disks.get_mut(vm.index()).and_then(Option::as_mut);
        disk.unwrap_or_else(|| panic!("{vm:?} is not attached"))
    }

    /// Guests' requests under way: VM and arrival.
    pub fn waiting(&self) -> impl Iterator<Item = (VmId, Instant)> + '_ {
        self.calls.guests().map(|call| (call.request.vm, call.arrived))
    }
    /// Requests in the dispatcher, of guests and of the cache.
    pub fn outstanding(&self) -> usize {
        self.dispatcher.outstanding()
    }
    /// Nothing is under way, not even a read into the cache.
    pub fn is_idle(&self) -> bool {
        self.calls.len() == 0
    }
    /// Commands on the device.
    pub fn in_flight(&self) -> u32 {
        self.dispatcher.in_flight()
    }
    /// The sector after the last one that was issued.
    pub fn head(&self) -> Lba {
        self.dispatcher.head()
    }
    /// The device's profile as policies see it.
    pub fn profile(&self) -> &DeviceProfile {
        self.dispatcher.profile()
    }
    /// Counts of the dispatcher.
    pub fn stats(&self) -> Stats {
        self.dispatcher.stats()
    }
    /// Time withheld by cause.
    pub fn holds(&self) -> &HoldStats {
        self.dispatcher.holds()
    }
    /// The policy's own metrics.
    pub fn policy_metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        self.dispatcher.policy_metrics(sink);
    }
    /// The policy's own metrics of each VM.
    pub fn vm_metrics(&self, sink: &mut dyn FnMut(&'static str, VmId, f64)) {
        self.dispatcher.vm_metrics(sink);
    }

    /// Start the journal of every input and output; `policy` is the scheduler's specification.
    pub fn start_journal(&mut self, policy: &str) {
        let cache = self.cache.as_ref().map(CacheStage::config);
        self.journal = Some(Journal::new(policy, self.profile(), &self.config, cache.as_ref()));
    }
    /// The journal's text since the last call, for the engine to write.
    pub fn take_journal(&mut self) -> String {
        self.journal.as_mut().map(Journal::take).unwrap_or_default()
    }
    /// End the journal; text that was not taken is dropped.
    pub fn stop_journal(&mut self) {
        self.journal = None;
    }
    fn record(&mut self, note: impl FnOnce(&mut Journal)) {
        if let Some(journal) = &mut self.journal {
            note(journal);
        }
    }
}

// Disks of VMs join, leave and change while the stack runs.

/// The disk of a VM.
struct Disk {
    pub spec: DiskSpec,
    /// The cache knows it: reads are looked up there, and writes told.
    pub cached: bool,
    pub load: Load,
    /// Guests' requests under way.
    pub outstanding: u32,
    /// Reads into the cache under way.
    pub fetches: u32,
    /// Discards and write-zeroes that the dispatcher has.
    pub barriers: u32,
    /// Those that wait for room there, by call.
    pub parked: VecDeque<u32>,
    /// Is it about to leave?
    pub leaving: bool,
    /// Its reservation and target, and its group by number.
    pub reserve: Reserve,
    pub latency: Option<Nanos>,
    pub group: Option<u16>,
}

/// A group of disks, as policies see it.
struct NamedGroup {
    name: GroupName,
    weight: Option<NonZeroU32>,
}

impl Disk {
    /// The VM as policies are told of it.
    fn vm_spec(&self, groups: &[NamedGroup]) -> VmSpec {
        let group = |number: u16| {
            let weight = groups[usize::from(number)].weight?;
            Some(Group { number, weight })
        };
        VmSpec {
            weight: self.spec.weight,
            group: self.group.and_then(group),
            reserve: self.reserve,
            latency: self.latency,
            region: self.spec.map.region(),
        }
    }
}

impl Stack {
    /// May a disk join under this number?
    pub fn can_attach(&self, vm: VmId) -> bool {
        self.dispatcher.can_attach(vm)
    }

    /// A VM's disk joins.
    ///
    /// # Panics
    /// When the number is taken or too large ([`Stack::can_attach`]).
    pub fn attach(&mut self, now: Instant, vm: VmId, spec: DiskSpec) {
        self.record(|j| j.attach(now, vm, &spec));
        if self.disks.len() <= vm.index() {
            self.disks.resize_with(vm.index() + 1, || None);
        }
        let cached = spec.cached && self.cache.is_some();
        let (weight, capacity) = (spec.weight, spec.capacity);
        let disk = Disk {
            spec,
            cached,
            load: Load::default(),
            outstanding: 0,
            fetches: 0,
            barriers: 0,
            parked: VecDeque::new(),
            leaving: false,
            reserve: Reserve::default(),
            latency: None,
            group: None,
        };
        self.dispatcher.attach(now, vm, disk.vm_spec(&self.groups));
        self.disks[vm.index()] = Some(disk);
        if cached {
            self.join_cache(now, vm, weight, capacity);
        }
    }

    /// A disk is about to leave: its limits are lifted, nothing is read ahead for it, and nothing
    /// of it stays in the cache. Discards and write-zeroes end, as [`ABANDONED`], with the piece that
    /// is under way. All else goes on, until [`Stack::is_busy`] is false.
    ///
    /// # Panics
    /// When it is not attached.
    pub fn leave(&mut self, now: Instant, vm: VmId) {
        self.record(|j| j.leave(now, vm));
        self.limiter.set_disk(now, vm, &Limits::default(), None);
        self.dispatcher.leave(vm);
        let disk = self.disk(vm);
        disk.leaving = true;
        if std::mem::take(&mut disk.cached) {
            self.end_prefetches(now, vm);
            if let Some(cache) = &mut self.cache {
                cache.contents.detach(now, vm);
            }
        }
        self.abandon_parked(now, vm);
    }

    /// Discards and write-zeroes of a disk that leaves begin no more, nor go on.
    fn abandon_parked(&mut self, now: Instant, vm: VmId) {
        while let Some(index) = self.disk(vm).parked.pop_front() {
            let call = &mut self.calls[index];
            call.error = Some(ABANDONED);
            let Submit { op, extent, .. } = call.request;
            // The cache has not heard of one that has not begun.
            if call.unsent < extent.len() {
                self.write_ends(vm, op, extent);
            }
            self.end_call(now, index);
        }
    }

    /// Has this disk requests or reads into the cache under way?
    pub fn is_busy(&self, vm: VmId) -> bool {
        let disk = self.disks.get(vm.index()).and_then(Option::as_ref);
        disk.is_some_and(|disk| disk.outstanding > 0 || disk.fetches > 0)
    }

    /// Is a disk attached under this number?
    pub fn is_attached(&self, vm: VmId) -> bool {
        self.disks.get(vm.index()).is_some_and(Option::is_some)
    }

    /// Are this disk's reads looked up in the cache?
    pub fn is_cached(&self, vm: VmId) -> bool {
        let disk = self.disks.get(vm.index()).and_then(Option::as_ref);
        disk.is_some_and(|disk| disk.cached)
    }

    /// The disk leaves.
    ///
    /// # Panics
    /// When it is not attached, or busy.
    pub fn detach(&mut self, now: Instant, vm: VmId) {
        assert!(!self.is_busy(vm), "{vm:?} is detached with requests under way");
        if self.is_cached(vm) {
            self.leave(now, vm);
        }
        self.record(|j| j.detach(now, vm));
        self.limiter.remove(now, vm, &mut Vec::new());
        self.dispatcher.detach(now, vm);
        self.disks[vm.index()] = None;
    }

    /// Another share from now on.
    ///
    /// # Panics
    /// When the disk is not attached.
    pub fn set_weight(&mut self, now: Instant, vm: VmId, weight: NonZeroU32) {
        self.record(|j| j.set_weight(now, vm, weight));
        let disk = self.disk(vm);
        disk.spec.weight = weight;
        let (cached, capacity) = (disk.cached, disk.spec.capacity);
        if cached {
            self.join_cache(now, vm, weight, capacity);
        }
        self.respec(now, vm);
    }

    /// Tell the policy of a disk anew.
    fn respec(&mut self, now: Instant, vm: VmId) {
        let disk = self.disks[vm.index()].as_ref().expect("an attached disk");
        let spec = disk.vm_spec(&self.groups);
        self.dispatcher.respec(now, vm, spec);
    }

    /// Rate limits of a disk, its own and those of a group, its reservation and its target of
    /// latency from now on. What waits goes on waiting, for the new ones. A weight among them
    /// says nothing: see [`Stack::set_weight`].
    ///
    /// # Panics
    /// When the disk is not attached.
    pub fn set_limits(&mut self, now: Instant, vm: VmId, limits: &DiskLimits) {
        assert!(self.is_attached(vm), "{vm:?} is not attached");
        self.record(|j| j.set_limits(now, vm, limits));
        self.limiter.set_disk(now, vm, &limits.limits, limits.group.as_ref());
        let group = limits.group.as_ref().map(|name| self.group_number(name));
        let Limits { reserve, latency, .. } = limits.limits;
        let disk = self.disk(vm);
        let before = (disk.reserve, disk.latency, disk.group);
        (disk.reserve, disk.latency, disk.group) = (reserve, latency, group);
        if before != (reserve, latency, group) {
            self.respec(now, vm);
        }
    }

    /// The number of a group, which is known from now on.
    fn group_number(&mut self, name: &GroupName) -> u16 {
        let known = self.groups.iter().position(|group| group.name == *name);
        let number = known.unwrap_or_else(|| {
            self.groups.push(NamedGroup { name: name.clone(), weight: None });
            self.groups.len() - 1
        });
        u16::try_from(number).expect("at most 65,536 groups")
    }

    /// Rate limits and the weight of a group of disks from now on.
    ///
    /// # Panics
    /// When there are more than 65,536 groups.
    pub fn set_group(&mut self, now: Instant, name: &GroupName, limits: &Limits) {
        self.record(|j| j.set_group(now, name, limits));
        self.limiter.set_group(now, name, limits);
        let number = self.group_number(name);
        let weight = &mut self.groups[usize::from(number)].weight;
        if std::mem::replace(weight, limits.weight) == limits.weight {
            return;
        }
        for vm in 0..self.disks.len() {
            if self.disks[vm].as_ref().is_some_and(|disk| disk.group == Some(number)) {
                self.respec(now, VmId::new(vm as u16));
            }
        }
    }

    /// Requests of a disk that wait for its limits, and for how long it has had some that did.
    pub fn limited(&self, now: Instant, vm: VmId) -> (usize, Nanos) {
        (self.limiter.waiting(vm), self.limiter.waited(now, vm))
    }

    /// Time until `at` in which reads or writes of a disk, or those of its cache, waited for their
    /// turn at the device, since it was attached; `at` is not before the last call that changed
    /// anything.
    pub fn queued_time(&self, at: Instant, vm: VmId) -> Nanos {
        self.dispatcher.queued_time(at, vm)
    }

    /// The disk has another size, and lies there now, or where it did. What was cached of it is
    /// forgotten: nobody knows what its image had in between.
    ///
    /// # Panics
    /// When the disk is not attached.
    pub fn resize(&mut self, now: Instant, vm: VmId, capacity: Sectors, map: Option<Map>) {
        if let Some(mut journal) = self.journal.take() {
            journal.resize(now, vm, capacity, map.as_ref().unwrap_or(self.map(vm)));
            self.journal = Some(journal);
        }
        let disk = self.disk(vm);
        let before = std::mem::replace(&mut disk.spec.capacity, capacity);
        let (cached, weight) = (disk.cached, disk.spec.weight);
        if cached {
            self.forget_cached(now, vm, before);
            self.join_cache(now, vm, weight, capacity);
        }
        if let Some(map) = map {
            self.replace_map(now, vm, map);
        }
    }

    /// The disk lies elsewhere than was known.
    ///
    /// # Panics
    /// When the disk is not attached.
    pub fn remap(&mut self, now: Instant, vm: VmId, map: Map) {
        self.record(|j| j.remap(now, vm, &map));
        self.replace_map(now, vm, map);
    }

    /// A policy forgets what it has learnt of a VM that is told to it anew: only when it moves.
    fn replace_map(&mut self, now: Instant, vm: VmId, map: Map) {
        let disk = self.disk(vm);
        let moved = map.region() != disk.spec.map.region();
        disk.spec.map = map;
        if moved {
            self.respec(now, vm);
        }
    }

    /// Where a disk lies.
    ///
    /// # Panics
    /// When it is not attached.
    pub fn map(&self, vm: VmId) -> &Map {
        let disk = self.disks.get(vm.index()).and_then(Option::as_ref);
        &disk.unwrap_or_else(|| panic!("{vm:?} is not attached")).spec.map
    }

    /// Another policy, or the same with other parameters; nothing queued is lost. `spec` is
    /// what the journal notes.
    pub fn switch(&mut self, now: Instant, spec: &str, scheduler: Box<dyn Scheduler>) {
        self.record(|j| j.switch(now, spec));
        self.dispatcher.switch(now, scheduler);
    }
}
