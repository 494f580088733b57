//! The event loop: time jumps from event to event, and all events of one instant are handled in a
//! fixed order before the dispatcher is polled.

mod guest_queue;
mod host;
mod path;

use crate::host_fs::FileBacked;
use crate::layout::Layout;
use crate::metrics::{HostResult, Meter, OpResult, RunResult, Times, VmHost};
use guest_queue::GuestQueues;
use host::{Guest, HostSide};
pub use host::{Host, HostCosts};
pub use path::HostPath;
use path::PathThread;
use seekway_core::request::{Extent, Op, RequestId, VmId};
use seekway_core::scheduler::Scheduler;
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_device::DeviceModel;
use seekway_device::closed_loop::ClosedLoop;
use seekway_stack::dispatcher::Config;
use seekway_stack::stack::limit::{DiskLimits, GroupName, Limits as GroupLimits};
use seekway_stack::stack::{self, Action, DiskSpec, IoError, Member, Stack, Submit};
use seekway_workload::{AppReport, Issue, Source, SourceError};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU32;

/// The code of a failed I/O, Linux's.
const EIO: i32 = 5;

/// Rounds at one instant beyond which a source is taken to run away.
const ROUNDS_MAX: u32 = 1_000_000;

/// Callback at intervals, with the simulated time and the completed requests. Returns false to stop
/// the run.
pub type Progress<'a> = &'a mut dyn FnMut(Instant, u64) -> bool;

/// Completions between two calls of [`Progress`].
const PROGRESS_EVERY: u64 = 8192;

/// Run the sources against policy and device until they end or a limit is met.
/// The journal, if [`Setup::journal`] asked for one, comes back as text.
pub fn run(
    sources: Vec<Box<dyn Source + '_>>,
    setup: Setup,
    limits: Limits,
    progress: Progress<'_>,
) -> Result<(RunResult, String), SimError> {
    let has_journal = setup.journal.is_some();
    let mut engine = Engine::new(sources, setup);
    warm_cache(&mut engine.stack, &engine.sources, &engine.vm_base, has_journal)?;
    let finished = engine.run(limits, progress)?;
    Ok(engine.result(finished, limits.until))
}

fn guest(guests: &mut [Option<Guest>], token: u64) -> &mut Guest {
    guests[token as usize].as_mut().expect("a guest's request under way")
}

/// The sources and the layout as the engine has them: behind the host's file system, if the VMs'
/// images are files of one. Its own requests then go to one more disk, the last.
fn on_host_fs<'a>(
    sources: Vec<Box<dyn Source + 'a>>,
    layout: Layout,
    capacity: Sectors,
) -> (Vec<Box<dyn Source + 'a>>, Layout) {
    let Some(fs) = layout.host_fs() else { return (sources, layout) };
    let images: Vec<Lba> = (0..layout.len()).map(|vm| layout.region(vm).start()).collect();
    let behind = FileBacked::new(sources, fs, capacity, &images);
    (vec![Box::new(behind)], layout.with_host(capacity))
}

/// Fills a host's cache with the blocks that prefilled guests lack.
fn warm_cache(
    stack: &mut Stack,
    sources: &[Box<dyn Source + '_>],
    vm_base: &[u16],
    has_journal: bool,
) -> Result<(), SimError> {
    if !stack.has_cache() {
        return Ok(());
    }
    let mut wanted = Vec::new();
    for (source, first) in sources.iter().zip(vm_base) {
        let of_vm = |n: usize| (VmId::new(first + n as u16), source.lacks(n));
        wanted.extend((0..source.vms().len()).map(of_vm));
    }
    if wanted.iter().all(|(_, parts)| parts.is_empty()) {
        return Ok(());
    }
    if has_journal {
        return Err(SimError::WarmJournal);
    }
    stack.warm_cache(Instant::ZERO, &wanted);
    Ok(())
}

/// A run under way.
struct Engine<'a> {
    sources: Vec<Box<dyn Source + 'a>>,
    /// First VM number of each source.
    vm_base: Vec<u16>,
    stack: Stack,
    layout: Layout,
    /// Guests' requests under way, by the token that the stack knows.
    guests: Vec<Option<Guest>>,
    free: Vec<u32>,
    host: Option<HostSide>,
    guest_queues: Option<GuestQueues>,
    path: Option<PathThread>,
    device: Box<dyn DeviceModel>,
    meter: Meter,
    now: Instant,
    /// Flushes, discards and write-zeroes that were issued and are done at once.
    barriers: Vec<RequestId>,
    /// When each source wants to be polled; entries of `wakes` that differ are stale.
    wake_of: Vec<Option<Instant>>,
    wakes: BinaryHeap<Reverse<(Instant, u32)>>,
    /// When the stack wants to be polled for demand.
    stack_wake: Option<Instant>,
    /// Sources to poll at this instant, by number, and whether each is listed.
    dirty: Vec<u32>,
    is_dirty: Vec<bool>,
    outstanding: usize,
    outstanding_max: usize,
    completed: u64,
    issues: Vec<Issue>,
    /// Counts at the begin of the measuring, if that was not at time zero.
    settled: Option<CountsAtStart>,
}

impl<'a> Engine<'a> {
    fn new(sources: Vec<Box<dyn Source + 'a>>, setup: Setup) -> Self {
        let Setup { scheduler, device, config, layout, weights, limits, groups, journal, .. } =
            setup;
        let (host, queue, path) = (setup.host, setup.guest_queue, setup.path);
        let (sources, layout) = on_host_fs(sources, layout, device.profile().capacity);
        let config = stack::Config {
            dispatch: Config { depth: device.queue_depth(), ..config },
            outstanding_max: OUTSTANDING_MAX + 1,
        };
        let (cache, host) = match host {
            Some(Host { cache, costs, bandwidth }) => {
                (Some(cache), Some(HostSide::new(costs, bandwidth, layout.len())))
            }
            None => (None, None),
        };
        let mut stack = Stack::new(scheduler, device.profile(), config, cache);
        if let Some(policy) = journal {
            stack.start_journal(&policy);
        }
        if let Some(host) = &host {
            stack.set_bandwidth(Instant::ZERO, host.bandwidth());
        }
        let mut vm_base = Vec::new();
        let mut names = Vec::new();
        for source in &sources {
            vm_base.push(names.len() as u16);
            names.extend(source.vms().iter().map(|d| d.name.clone()));
        }
        assert_eq!(names.len(), layout.len(), "every VM has its region");
        for vm in 0..names.len() {
            let weight = weights.get(vm).copied().unwrap_or(NonZeroU32::MIN);
            let (capacity, map) = (layout.capacity(vm), layout.device_map(vm).clone());
            let spec = DiskSpec { weight, capacity, map, cached: true };
            stack.attach(Instant::ZERO, VmId::new(vm as u16), spec);
        }
        for (name, limits) in &groups {
            stack.set_group(Instant::ZERO, name, limits);
        }
        for (vm, limits) in limits.iter().enumerate().filter(|(_, limits)| !limits.is_none()) {
            stack.set_limits(Instant::ZERO, VmId::new(vm as u16), limits);
        }
        let count = sources.len();
        Engine {
            sources,
            vm_base,
            stack,
            layout,
            guests: Vec::new(),
            free: Vec::new(),
            host,
            guest_queues: queue.map(|depth| GuestQueues::new(depth, names.len())),
            path: path.map(PathThread::new),
            device,
            meter: Meter::new(names.into_iter(), config.dispatch.depth),
            now: Instant::ZERO,
            barriers: Vec::new(),
            wake_of: vec![None; count],
            wakes: BinaryHeap::new(),
            stack_wake: None,
            dirty: (0..count as u32).collect(),
            is_dirty: vec![true; count],
            outstanding: 0,
            outstanding_max: 0,
            completed: 0,
            issues: Vec::new(),
            settled: None,
        }
    }

    /// True when the sources came to their end.
    fn run(&mut self, limits: Limits, progress: Progress<'_>) -> Result<bool, SimError> {
        let mut report_at = PROGRESS_EVERY;
        loop {
            self.settle()?;
            if limits.requests.is_some_and(|n| self.completed >= n) {
                return Ok(false);
            }
            if self.completed >= report_at {
                report_at = self.completed + PROGRESS_EVERY;
                if !progress(self.now, self.completed) {
                    return Ok(false);
                }
            }
            if self.host.is_some() && self.outstanding == 0 && self.is_finished() {
                return Ok(true);
            }
            let Some(next) = self.next_event() else { return Ok(self.is_finished()) };
            if let Some(until) = limits.until.filter(|&u| next > u) {
                self.now = until;
                return Ok(false);
            }
            if let Some(at) = limits.settle.filter(|&at| next > at && self.settled.is_none()) {
                self.begin_measuring(at);
            }
            debug_assert!(next >= self.now, "time ran backwards");
            self.now = next;
            self.collect_due();
        }
    }

    /// Have the sources come to their end? Prefetches may still be under way.
    fn is_finished(&self) -> bool {
        self.sources.iter().all(|s| s.finished())
    }

    /// The next instant at which anything happens. A prefetcher's poll alone is
    /// nothing: without sources, answers or a device it would be all there is.
    fn next_event(&mut self) -> Option<Instant> {
        while let Some(&Reverse((at, source))) = self.wakes.peek() {
            if self.wake_of[source as usize] == Some(at) {
                break;
            }
            self.wakes.pop();
        }
        let source = self.wakes.peek().map(|Reverse((at, _))| *at);
        let answer = self.host.as_ref().and_then(HostSide::next_answer);
        let path = self.path.as_ref().and_then(PathThread::next_event);
        let events = [self.device.next_completion(), source, self.stack_wake, answer, path];
        let next = Instant::earliest(events)?;
        // A prefetcher that is overdue waits for room in the background, which some event will make.
        let poll = self.stack.next_prefetch().filter(|&at| at > self.now);
        Some(poll.map_or(next, |poll| poll.min(next)))
    }

    /// Takes the events that are due: completions of the device, wakes of sources.
    fn collect_due(&mut self) {
        while let Some(id) = self.device.pop_completed(self.now) {
            self.complete(id);
        }
        while let Some(guest) = self.host.as_mut().and_then(|host| host.pop_answer(self.now)) {
            self.answer(&guest);
        }
        while let Some(&Reverse((at, source))) = self.wakes.peek() {
            if at > self.now {
                break;
            }
            self.wakes.pop();
            if self.wake_of[source as usize] == Some(at) {
                self.wake_of[source as usize] = None;
                self.mark(source);
            }
        }
        self.stack_wake = self.stack_wake.filter(|&at| at > self.now);
    }

    fn mark(&mut self, source: u32) {
        if !std::mem::replace(&mut self.is_dirty[source as usize], true) {
            self.dirty.push(source);
        }
    }

    /// The device is done with a command.
    fn complete(&mut self, id: RequestId) {
        let failed = self.failed(id);
        self.stack.io_done(self.now, id, &failed);
        for (n, completion) in self.stack.finished().iter().enumerate() {
            self.meter.served(self.now, completion, n == 0);
        }
        self.act_all();
    }

    /// The members of a command that touch sectors which the device cannot read or write.
    fn failed(&self, id: RequestId) -> Vec<(RequestId, IoError)> {
        let bad = self.device.bad_sectors();
        if bad.is_empty() {
            return Vec::new();
        }
        let touches = |m: &Member| {
            let place = self.layout.map(m.vm.index(), m.part.start(), m.part.len());
            m.op != Op::Flush && place.is_some_and(|p| bad.iter().any(|b| b.overlaps(p)))
        };
        let failed = self.stack.members(id).filter(touches);
        failed.map(|m| (m.id, IoError(EIO))).collect()
    }

    /// Carries out the stack's decisions, without asking it for more commands.
    fn act_all(&mut self) {
        while let Some(action) = self.stack.take() {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        let now = self.now;
        match (action, &mut self.host) {
            (Action::LookedUp { token, commands }, Some(host)) => {
                let guest = guest(&mut self.guests, token);
                let next_prefetch = self.stack.next_prefetch();
                guest.ready = Some(host.looked_up(guest.vm, now, commands, next_prefetch));
            }
            (Action::Copy(copy), Some(host)) => {
                let guest = guest(&mut self.guests, copy.token);
                guest.ready = Some(host.copied(guest.vm, now, copy.part.len()));
            }
            (Action::Prefetching, Some(host)) => host.prefetching(now),
            (Action::Done(done), host) => {
                let guest = self.guests[done.token as usize].take();
                let guest = guest.expect("a guest's request under way");
                self.free.push(done.token as u32);
                match (guest.ready, host) {
                    (Some(ready), Some(host)) => host.answer_at(ready.max(now), guest),
                    _ => self.answer(&guest),
                }
            }
            (Action::Issue(command), _) => unreachable!("{command:?} outside of a poll"),
            (Action::Wait(_), _) => {}
            (action, None) => unreachable!("{action:?} without a host cache"),
        }
    }

    /// Ends a source's request. Its response counts from its submission, with the wait at a limit.
    fn answer(&mut self, guest: &Guest) {
        let Guest { vm, op, arrived, bytes, .. } = *guest;
        self.meter.answered(self.now, usize::from(vm), op, arrived, bytes);
        if let Some(queues) = &mut self.guest_queues {
            queues.answered(self.now, guest);
        }
        if let Some(path) = &mut self.path {
            path.answered(op);
        }
        self.outstanding -= 1;
        self.completed += 1;
        self.sources[guest.source as usize].completed(self.now, guest.token);
        self.mark(guest.source);
    }

    /// Poll sources and stack until nothing more happens at this instant.
    fn settle(&mut self) -> Result<(), SimError> {
        for _ in 0..ROUNDS_MAX {
            while let Some(request) = self.guest_queues.as_mut().and_then(GuestQueues::next) {
                self.enter_host(request);
            }
            self.dirty.sort_unstable();
            let dirty = std::mem::take(&mut self.dirty);
            for &source in &dirty {
                self.is_dirty[source as usize] = false;
                self.poll_source(source)?;
            }
            debug_assert!(self.dirty.is_empty());
            self.dirty = dirty;
            self.dirty.clear();
            self.pass_path();
            self.poll_stack();
            // The models keep no volatile data: nothing to flush or forget.
            let barriers = std::mem::take(&mut self.barriers);
            for &barrier in &barriers {
                self.complete(barrier);
            }
            if self.dirty.is_empty() && barriers.is_empty() {
                return Ok(());
            }
        }
        Err(SimError::RunAway { at: self.now })
    }

    fn poll_source(&mut self, index: u32) -> Result<(), SimError> {
        let n = index as usize;
        let mut issues = std::mem::take(&mut self.issues);
        let polled = self.sources[n].poll(self.now, &mut issues);
        for issue in &issues {
            self.issue(index, issue)?;
        }
        issues.clear();
        self.issues = issues;
        polled?;
        let wake = self.sources[n].next_wake().map(|at| at.max(self.now));
        if wake != self.wake_of[n] {
            self.wake_of[n] = wake;
            self.wakes.extend(wake.map(|at| Reverse((at, index))));
        }
        Ok(())
    }

    fn issue(&mut self, source: u32, issue: &Issue) -> Result<(), SimError> {
        let vm = usize::from(self.vm_base[source as usize]) + usize::from(issue.vm);
        let (extent, place) = self.extent(vm, issue)?;
        let Issue { tag, op, sync, token, .. } = *issue;
        self.meter.arrived(self.now, vm, op, place.start(), extent.len().bytes());
        let guest = Guest {
            source,
            token,
            vm: vm as u16,
            op,
            sync,
            arrived: self.now,
            bytes: extent.len().bytes(),
            ready: None,
        };
        let token = self.free.pop().unwrap_or(self.guests.len() as u32);
        if token as usize == self.guests.len() {
            self.guests.push(None);
        }
        self.guests[token as usize] = Some(guest);
        let vm = VmId::new(vm as u16);
        let request = Submit { vm, tag, op, sync, extent, token: token.into() };
        let leaves = match &mut self.guest_queues {
            Some(queues) => queues.arrived(self.now, request),
            None => Some(request),
        };
        if let Some(request) = leaves {
            self.enter_host(request);
        }
        self.outstanding += 1;
        self.outstanding_max = self.outstanding_max.max(self.outstanding);
        if self.outstanding >= OUTSTANDING_MAX {
            return Err(SimError::Overloaded { at: self.now });
        }
        Ok(())
    }

    /// A request of a guest reaches the host.
    fn enter_host(&mut self, request: Submit) {
        match &mut self.path {
            Some(path) => path.arrive(request),
            None => self.submit(request),
        }
    }

    /// Requests go from the host's thread to the stack.
    fn pass_path(&mut self) {
        while let Some(request) = self.path.as_mut().and_then(|path| path.next(self.now)) {
            self.submit(request);
        }
    }

    /// A request of a guest reaches the stack.
    fn submit(&mut self, request: Submit) {
        let taken = self.stack.submit(self.now, request);
        taken.expect("the extent lies on the VM's disk, and what is outstanding is bounded");
        self.act_all();
    }

    /// The issue's extent of its VM's disk, and its offset on the device; a flush has none of its
    /// own.
    fn extent(&self, vm: usize, issue: &Issue) -> Result<(Extent, Extent), SimError> {
        let (start, len) = match issue.op {
            Op::Flush => (Lba::ZERO, Sectors::new(1)),
            _ => (issue.start, issue.len),
        };
        let place = self.layout.map(vm, start, len);
        place.and_then(|place| Some((Extent::new(start, len)?, place))).ok_or_else(|| {
            SimError::OutOfRange {
                vm: self.meter.vms[vm].name.clone(),
                start: start.get(),
                len: len.get(),
                capacity: self.layout.capacity(vm).get(),
            }
        })
    }

    fn poll_stack(&mut self) {
        loop {
            if let Some(host) = &mut self.host {
                host.charge_poll(self.now, self.stack.next_prefetch());
            }
            let head = self.stack.head();
            match self.stack.poll(self.now) {
                Action::Issue(command) if command.op.is_data() => {
                    let requests = self.stack.members(command.id).count() as u64;
                    self.meter.dispatched(head, &command, requests);
                    self.device.submit(self.now, &command);
                }
                Action::Issue(barrier) => self.barriers.push(barrier.id),
                Action::Wait(wake) => return self.stack_wake = wake.demand,
                action => self.act(action),
            }
        }
    }
}

/// The share of the device's time in which it worked, 0 to 1.
pub fn utilisation(result: &RunResult) -> f64 {
    let busy: Nanos = result.vms.iter().fold(Nanos::ZERO, |sum, v| sum + v.device_time);
    busy.get() as f64 / result.simulated.get().max(1) as f64
}

// Measurements of a run from the begin of the measuring on, and their results at its end.

/// Counts that only grow, at some time: they are taken from those of the end.
struct CountsAtStart {
    at: Instant,
    apps: Vec<AppReport>,
    host: Option<(HostResult, Vec<VmHost>)>,
}

impl Engine<'_> {
    /// Forgets the measurements up to `at`.
    fn begin_measuring(&mut self, at: Instant) {
        self.meter.restart(at);
        let host = self.host_result();
        self.settled = Some(CountsAtStart { at, apps: self.apps(), host });
    }

    /// The applications of all sources, with the VMs' numbers in the run.
    fn apps(&self) -> Vec<AppReport> {
        let sources = self.sources.iter().zip(&self.vm_base);
        let numbered = sources.flat_map(|(source, &base)| {
            source.apps().into_iter().map(move |app| AppReport { vm: app.vm + base, ..app })
        });
        numbered.collect()
    }

    /// Results of the host's cache until now, and each VM's share.
    fn host_result(&self) -> Option<(HostResult, Vec<VmHost>)> {
        Some(self.host.as_ref()?.result(&self.stack, self.layout.len()))
    }

    /// Marks the VMs whose load ended before the run did. A run whose sources have all ended lasts
    /// until `until`, or until its last request was done.
    fn mark_ended(&mut self, finished: bool, until: Option<Instant>) {
        let last = self.meter.vms.iter().map(|vm| vm.last).max().unwrap_or(self.now);
        let run_end = if finished { until.unwrap_or(last) } else { self.now };
        for (source, &base) in self.sources.iter().zip(&self.vm_base) {
            if source.finished() {
                let first = usize::from(base);
                self.meter.mark_ended(first..first + source.vms().len(), run_end);
            }
        }
    }

    fn result(mut self, finished: bool, until: Option<Instant>) -> (RunResult, String) {
        let answered = self.host.iter().flat_map(HostSide::answered);
        let waiting = self.guests.iter().flatten().chain(answered);
        let waiting = waiting.map(|g| (usize::from(g.vm), g.op, g.arrived));
        self.meter.end(self.now, waiting);
        self.mark_ended(finished, until);
        let (mut policy_metrics, mut device_metrics) = (Vec::new(), Vec::new());
        self.stack.policy_metrics(&mut |name, value| policy_metrics.push((name, value)));
        let vms = &mut self.meter.vms;
        self.stack.vm_metrics(&mut |name, vm, value| {
            vms[vm.index()].policy_metrics.push((name, value));
        });
        self.device.metrics(&mut |name, value| device_metrics.push((name, value)));
        let (mut apps, mut host) = (self.apps(), self.host_result());
        if let Some(settled) = &self.settled {
            for (app, before) in apps.iter_mut().zip(&settled.apps) {
                app.bytes -= before.bytes;
            }
            if let (Some((host, vms)), Some((host_before, vms_before))) = (&mut host, &settled.host)
            {
                host.forget(host_before);
                vms.iter_mut().zip(vms_before).for_each(|(vm, before)| vm.forget(before));
            }
        }
        let host = host.map(|(host, vms)| {
            for (vm, host) in self.meter.vms.iter_mut().zip(vms) {
                vm.host = Some(host);
            }
            host
        });
        let began = self.settled.map_or(Instant::ZERO, |settled| settled.at);
        let journal = self.stack.take_journal();
        let mut meter = self.meter;
        let host_fs = self.layout.host_fs().and_then(|_| meter.vms.pop());
        let reads = OpResult::of_run(meter.vms.iter().map(|vm| &vm.reads), meter.reads);
        let writes = OpResult::of_run(meter.vms.iter().map(|vm| &vm.writes), meter.writes);
        let result = RunResult {
            began,
            simulated: self.now.since(began),
            vms: meter.vms,
            response: Times::joined(3, [&reads.response, &writes.response]),
            reads,
            writes,
            service_from_dispatch: meter
                .service_from_dispatch
                .unwrap_or_else(|| meter.service.clone()),
            service: meter.service,
            seeks_per_command: meter.seeks_per_command,
            seeks_per_request: meter.seeks_per_request,
            barriers: meter.barriers,
            holds: self.stack.holds().clone(),
            stats: self.stack.stats(),
            apps,
            policy_metrics,
            device_metrics,
            host,
            host_fs,
            machine: None,
            guest_queues: self.guest_queues.map(GuestQueues::result),
            outstanding_max: self.outstanding_max,
            finished,
        };
        (result, journal)
    }
}

// A run's ingredients, its end, and its errors.

/// Ingredients of a run besides its sources.
pub struct Setup {
    pub scheduler: Box<dyn Scheduler>,
    pub device: Box<dyn DeviceModel>,
    /// Coalescing and the hard limit; the depth is the device's own.
    pub config: Config,
    /// Where the VMs lie.
    pub layout: Layout,
    /// Weights by VM; those missing are 1.
    pub weights: Vec<NonZeroU32>,
    /// Rate limits by VM; those missing have none.
    pub limits: Vec<DiskLimits>,
    /// Rate limits of groups of VMs.
    pub groups: Vec<(GroupName, GroupLimits)>,
    /// The policy's specification, to keep a journal of the run.
    pub journal: Option<String>,
    /// A cache in the host.
    pub host: Option<Host>,
    /// Requests that a VM has outside of its guest at once; all at once if none.
    pub guest_queue: Option<NonZeroU32>,
    /// A thread of the host that all requests pass.
    pub path: Option<HostPath>,
}

impl Setup {
    /// VMs of weight 1 without limits, no journal and no cache in the host.
    pub fn new(
        scheduler: Box<dyn Scheduler>,
        device: Box<dyn DeviceModel>,
        layout: Layout,
    ) -> Setup {
        Setup {
            scheduler,
            device,
            config: Config::default(),
            layout,
            weights: Vec::new(),
            limits: Vec::new(),
            groups: Vec::new(),
            journal: None,
            host: None,
            guest_queue: None,
            path: None,
        }
    }
}

/// From when a run is measured, and when it stops before its sources end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Simulated time before which nothing is measured: requests, bytes, times, seeks,
    /// applications' bytes, the host cache's counts. A run that ends before is measured whole. The
    /// dispatcher's, the policy's and the device's own figures are always those of the whole run.
    pub settle: Option<Instant>,
    /// At this simulated time.
    pub until: Option<Instant>,
    /// After this many completed requests.
    pub requests: Option<u64>,
}

/// Requests outstanding beyond which a run is given up: the device cannot
/// keep up with an open-loop trace, and every figure would only say so.
pub const OUTSTANDING_MAX: usize = 500_000;

/// Why a run ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A request lies outside its VM's disk.
    #[error(
        "VM {vm}: request {start}+{len} lies past the end of its disk ({capacity} sectors); \
         is the capacity given too small?"
    )]
    OutOfRange {
        vm: String,
        /// First sector of the request, on its VM's disk.
        start: u64,
        /// Length of the request, in sectors.
        len: u64,
        /// Size of the VM's disk.
        capacity: u64,
    },
    /// The device cannot keep up.
    #[error(
        "{OUTSTANDING_MAX} requests are outstanding at {at}: the device cannot keep up with this \
         load; slow it down (--time-scale), replay it closed-loop (--outstanding), or choose a \
         faster device"
    )]
    Overloaded { at: Instant },
    /// A replay of the journal would begin with an empty cache.
    #[error(
        "a journal does not hold what a host's cache begins with beside warm VMs: leave out \
         the journal, the cache, or warm=true"
    )]
    WarmJournal,
    /// A source keeps issuing without time passing: flushes, discards and write-zeroes are done
    /// at once.
    #[error(
        "a load issues without end at {at}: flushes, discards and write-zeroes take no time in \
         the simulator; give it reads or writes, or a think time"
    )]
    RunAway { at: Instant },
}

// A device's highest read rate, the paper's BW_T (algorithms.md, section 6): measured when the
// device is opened, before the run.

/// Length of a command: 1 MiB.
const COMMAND: Sectors = Sectors::new(2048);
/// Commands in all: 1 GiB, or the whole device where it is smaller.
const COMMANDS: u64 = 1024;

/// Bytes a second of sequential reads at the device's own queue depth, from its
/// first sector on. The device has to be new: the run needs another of its kind.
pub fn measure_bandwidth(mut device: Box<dyn DeviceModel>) -> u64 {
    let capacity = device.profile().capacity.get();
    let length = COMMAND.get().min(capacity);
    let commands = COMMANDS.min(capacity / length);
    let mut end = Instant::ZERO;
    let next = |sent| {
        let extent = Extent::new(Lba::new(sent * length), Sectors::new(length))?;
        (sent < commands).then_some((Op::Read, extent))
    };
    let depth = device.queue_depth();
    ClosedLoop { depth, think: Nanos::ZERO }.run(&mut *device, next, |at| end = at);
    let bytes = u128::from(commands * Sectors::new(length).bytes());
    (bytes * 1_000_000_000 / u128::from(end.as_nanos().max(1))) as u64
}

#[cfg(test)]
mod bandwidth_tests {
    use super::measure_bandwidth;
    use seekway_device::profile;

    #[test]
    fn drives_read_what_is_published_of_them() {
        let rate =
            |name: &str| measure_bandwidth(profile::load(name).expect("a profile").build()) as f64;
        for name in ["intel-320", "intel-x25m-g2", "samsung-970-pro"] {
            let published = profile::load(name).ok().and_then(|p| p.published());
            let published = published.and_then(|p| p.sequential_read_mb_s).expect("a figure");
            let error = rate(name) / 1e6 / published - 1.0;
            assert!(error.abs() < 0.15, "{name}: {:.0} of {published} MB/s", rate(name) / 1e6);
        }
        let array = rate("raid0-8x-x25m-g2") / rate("intel-x25m-g2");
        assert!((7.0..=8.1).contains(&array), "eight drives read {array:.2} times as much as one");
    }
}
