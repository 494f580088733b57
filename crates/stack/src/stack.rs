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
//! - **admit** ([`is_sync`], [`load`]): range, what may be outstanding, whether somebody waits;
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
mod calls;
mod disks;
mod fetches;
pub(crate) mod journal;
pub mod limit;
mod load;
mod map;
mod order;
mod types;

pub use admit::{Urgency, is_sync};
pub use cached::frames_of;
pub use map::{FileExtent, Map};
pub use types::{
    ABANDONED, Action, CacheSpec, Config, Copy, DiskSpec, Done, IoError, Member,
    OUTSTANDING_DEFAULT, Refused, Stages, Submit, Target, Wake,
};

use crate::cache::Frame;
use crate::dispatcher::{self, Arrival, CompletedCommand, Dispatcher, HoldStats, Output, Stats};
use cached::CacheStage;
use calls::Calls;
use disks::{Disk, NamedGroup};
use journal::Journal;
use limit::{Direction, Limiter};
use seekway_core::request::{Completion, Extent, Op, RequestId, VmId};
use seekway_core::scheduler::{DeviceProfile, Scheduler};
use seekway_core::units::{Instant, Lba, Sectors};
use std::collections::VecDeque;

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
                let demand = wake.into_iter().chain(self.limiter.next_wake()).min();
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
