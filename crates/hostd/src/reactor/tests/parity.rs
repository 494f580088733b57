//! The daemon's figures are the simulator's: one seeded load through the simulator and through
//! the real reactor, with the image in memory and the completions and the clock given by a
//! model, writes the same journal, byte for byte.
//!
//! The reactor's part is real but for the ring: ports, jobs, commands and their I/Os, the
//! throttle around the device's model, faults and retries. Front ends are the load's own.

mod load;

use crate::images::fault::Fault;
use crate::images::{Image, OpenOptions};
use crate::port::{DiskId, Errno, Job, Port, PortContext, PortId};
use crate::reactor::core::Core;
use crate::reactor::io::{Io, Kind};
use crate::reactor::message::{Disk, Handle};
use crate::reactor::ring::{Backend, Cqe, Source as Whose};
use crate::reactor::{CacheSetup, Poll, Reactor, Setup, Tuning};
use crate::throttle::Throttle;
use io_uring::squeue;
use load::Load;
use seekway_core::ioprio;
use seekway_core::request::{Extent, Op, Request, RequestId};
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_device::{DeviceModel, profile};
use seekway_policy::schedulers;
use seekway_sim::{Host, HostCosts, Layout, Limits, Placement};
use seekway_stack::cache;
use seekway_stack::dispatcher::Config;
use seekway_stack::stack::Action;
use seekway_stack::stack::limit::{DiskLimits, GroupName, Limits as GroupLimits};
use seekway_workload::{Issue, Source, VmDisk};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::num::NonZeroU32;
use std::os::fd::RawFd;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};

const DISK_SECTORS: u64 = 1 << 16;
const HARD_LIMIT: Nanos = Nanos::from_millis(400);
/// Sectors of the second VM's disk that cannot be read or written.
const BAD: (u64, u64) = (0, 20_000);

/// Events in the reactor, beside its journal.
pub(in crate::reactor) enum Event {
    /// An action of the stack, and the port's token of the job that it is for.
    Acted(Action, u64),
    /// A command is done.
    Completed,
}

impl Core {
    pub(in crate::reactor) fn log_action(&mut self, action: Action) {
        let token = match action {
            Action::LookedUp { token, .. } => token,
            Action::Copy(copy) => copy.token,
            Action::Done(done) => done.token,
            _ => return,
        };
        let token = self.jobs[token as u32].job.token;
        self.log.push(Event::Acted(action, token));
    }
}

/// The clock, and the I/Os that are done and not yet reaped.
#[derive(Default)]
struct World {
    now: Instant,
    done: Vec<Cqe>,
}

/// A ring on which every I/O is done at once: the time is the modelled device's.
struct Model(Arc<Mutex<World>>);

impl Model {
    fn world(&self) -> std::sync::MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for Model {
    fn now(&mut self) -> Instant {
        self.world().now
    }
    fn register_file(&mut self, _: u16, _: Option<RawFd>) -> std::io::Result<()> {
        Ok(())
    }
    unsafe fn start(&mut self, index: u32, io: &mut Io, short: Option<u32>) {
        let result = match io.kind {
            Kind::Read | Kind::Write { .. } => short.unwrap_or(io.len as u32) as i32,
            _ => 0,
        };
        let cqe = Cqe { source: Whose::Io(index), result, more: false };
        self.world().done.push(cqe);
    }
    unsafe fn push(&mut self, _: Whose, _: squeue::Entry) {}
    fn completions(&mut self, out: &mut Vec<Cqe>) {
        out.append(&mut self.world().done);
    }
    fn peek(&mut self) -> bool {
        !self.world().done.is_empty()
    }
    fn submit_and_wait(&mut self, _: Option<u64>) {}
}

/// A front end that hears of its jobs by the log.
struct Silent(DiskId);

impl Port for Silent {
    fn disk(&self) -> DiskId {
        self.0
    }
    fn open(&mut self, _: PortId, _: &mut dyn PortContext) {}
    fn done(&mut self, _: u64, _: Result<(), Errno>, _: &mut dyn PortContext) {}
}

/// A device with bad sectors.
struct Bad(Box<dyn DeviceModel>, Vec<Extent>);

impl DeviceModel for Bad {
    fn profile(&self) -> DeviceProfile {
        self.0.profile()
    }
    fn queue_depth(&self) -> u32 {
        self.0.queue_depth()
    }
    fn submit(&mut self, now: Instant, command: &Request) {
        self.0.submit(now, command);
    }
    fn next_completion(&self) -> Option<Instant> {
        self.0.next_completion()
    }
    fn pop_completed(&mut self, now: Instant) -> Option<RequestId> {
        self.0.pop_completed(now)
    }
    fn bad_sectors(&self) -> &[Extent] {
        &self.1
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    policy: &'static str,
    device: &'static str,
    prefetcher: Option<&'static str>,
    faults: bool,
    limits: bool,
    seed: u64,
}

const CACHE_BYTES: u64 = 4 << 20;
const WEIGHTS: [u32; 3] = [1, 2, 4];

fn loads(case: &Case) -> Vec<Load> {
    // Images keep a failed durable write in mind, which no model does.
    let is_durable = |vm| !(case.faults && vm == 1);
    (0..WEIGHTS.len() as u64).map(|vm| Load::new(vm, case.seed, is_durable(vm))).collect()
}

/// One VM with limits of its own, two in a group.
fn limits(case: &Case) -> Vec<DiskLimits> {
    let texts = ["iops=300,iops_burst=2000", "bandwidth=8MiB,group=tenant", "group=tenant"];
    let limits = texts.iter().map(|text| DiskLimits::parse(text).unwrap());
    limits.filter(|_| case.limits).collect()
}

fn group() -> (GroupName, GroupLimits) {
    (GroupName::new("tenant").unwrap(), GroupLimits::parse("write_iops=150").unwrap())
}

/// No work costs anything in the simulator: its guests are answered as soon as can be.
const FREE: HostCosts = HostCosts {
    request: Nanos::ZERO,
    command: Nanos::ZERO,
    copy_bytes_per_s: u64::MAX,
    event: Nanos::ZERO,
    poll: Nanos::ZERO,
    poll_event: Nanos::ZERO,
};

/// Journal of the simulator, and the bandwidth of the device's reads.
fn simulated(case: &Case) -> (String, u64) {
    let loads = loads(case);
    let disks: Vec<VmDisk> = loads.iter().map(|load| load.disk[0].clone()).collect();
    let model = || profile::load(case.device).expect("a profile").build();
    let capacity = model().profile().capacity;
    let layout = Layout::place(&disks, capacity, &Placement::Packed(Lba::ZERO)).unwrap();
    let bad = Extent::new(layout.region(1).start() + Sectors::new(BAD.0), Sectors::new(BAD.1));
    let bad = bad.filter(|_| case.faults);
    let host = case.prefetcher.map(|prefetcher| {
        Host::new(cache::Config::new(CACHE_BYTES), prefetcher, FREE, model()).unwrap()
    });
    let bandwidth = host.as_ref().map_or(0, |host| host.bandwidth);
    let setup = seekway_sim::Setup {
        scheduler: schedulers::build(case.policy).unwrap(),
        device: Box::new(Bad(model(), bad.into_iter().collect())),
        config: Config { hard_limit: HARD_LIMIT, ..Config::default() },
        layout,
        weights: WEIGHTS.iter().map(|&w| NonZeroU32::new(w).unwrap()).collect(),
        limits: limits(case),
        groups: Vec::from_iter(case.limits.then(group)),
        journal: Some(case.policy.into()),
        guest_queue: None,
        path: None,
        host,
    };
    let sources = loads.into_iter().map(|load| Box::new(load) as Box<dyn Source>).collect();
    let (_, journal) =
        seekway_sim::run(sources, setup, Limits::default(), &mut |_, _| true).unwrap();
    (journal, bandwidth)
}

/// A request of a load under way in the reactor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Call {
    load: usize,
    token: u64,
    /// When the host has done its part, for what went through the cache.
    ready: Option<Instant>,
}

/// The loads around a reactor, in the simulator's order of things at one instant.
struct Rig {
    reactor: Reactor,
    world: Arc<Mutex<World>>,
    loads: Vec<Load>,
    ports: Vec<PortId>,
    now: Instant,
    calls: Vec<Call>,
    /// The guests' memory, until the end.
    buffers: Vec<Vec<u8>>,
    answers: BinaryHeap<Reverse<(Instant, u64, Call)>>,
    answered: u64,
    /// The host's one thread is busy up to then.
    free: Instant,
    dirty: Vec<usize>,
    cached: bool,
    journal: String,
}

impl Rig {
    fn new(case: &Case, bandwidth: u64, dir: &std::path::Path) -> Rig {
        let (handle, mailbox) = Handle::new().unwrap();
        let world = Arc::new(Mutex::new(World::default()));
        let setup = Setup {
            policy: case.policy.into(),
            tuning: Tuning { hard_limit: HARD_LIMIT, poll: Poll::OFF, ..Tuning::default() },
            cache: case.prefetcher.map(|prefetcher| CacheSetup {
                bytes: CACHE_BYTES,
                room_bytes: CACHE_BYTES,
                prefetcher: prefetcher.into(),
                lock: false,
                bandwidth_bytes_per_s: Some(bandwidth),
                seed: Some(0),
            }),
            throttle: Some(Throttle::parse(&format!("{}:k=1", case.device)).unwrap()),
            profile: DeviceProfile::unknown(Sectors::new(1), false),
            journal: Some(File::create(dir.join("journal")).unwrap()),
            ..super::setup("parity")
        };
        let ring = Box::new(Model(Arc::clone(&world)));
        let mut reactor = Reactor::new(setup, mailbox, handle, ring).unwrap();
        let loads = loads(case);
        let mut ports = Vec::new();
        for (n, load) in loads.iter().enumerate() {
            let path = dir.join(&load.disk[0].name);
            File::create(&path).and_then(|f| f.set_len(DISK_SECTORS * 512)).unwrap();
            let image = Image::open(&path, &OpenOptions::writing());
            let mut disk = Disk::new(&load.disk[0].name, image.unwrap());
            disk.weight = NonZeroU32::new(WEIGHTS[n]).unwrap();
            if case.faults && n == 1 {
                let (from, len) = (BAD.0 * 512, BAD.1 * 512);
                disk.fault = Some(Fault::parse(&format!("eio:from={from},len={len}")).unwrap());
            }
            let id = reactor.core.attach_disk(disk).unwrap();
            let (reply, port) = sync_channel(1);
            reactor.open_port(Box::new(Silent(id)), &reply);
            ports.push(port.recv().unwrap());
        }
        if case.limits {
            let (name, of_group) = group();
            reactor.core.set_group(&name, &of_group);
            for (n, of_disk) in limits(case).iter().enumerate() {
                reactor.core.set_limits(DiskId(n as u16), of_disk).unwrap();
            }
        }
        Rig {
            reactor,
            world,
            dirty: (0..loads.len()).collect(),
            loads,
            ports,
            now: Instant::ZERO,
            calls: Vec::new(),
            buffers: Vec::new(),
            answers: BinaryHeap::new(),
            answered: 0,
            free: Instant::ZERO,
            cached: case.prefetcher.is_some(),
            journal: String::new(),
        }
    }

    /// Play the loads to their end: the journal.
    fn run(mut self) -> String {
        loop {
            let wake = self.settle();
            self.journal += &self.reactor.core.stack.take_journal();
            let finished = self.loads.iter().all(Source::finished) && self.answers.is_empty();
            if self.cached && finished {
                return self.journal;
            }
            let loads = self.loads.iter().filter_map(Source::next_wake).min();
            let answer = self.answers.peek().map(|Reverse((at, ..))| *at);
            let next = [wake, loads, answer].into_iter().flatten().min();
            let Some(next) = next else { return self.journal };
            let prefetch = self.reactor.core.stack.next_prefetch().filter(|&at| at > self.now);
            self.now = prefetch.map_or(next, |at| at.min(next));
            self.world.lock().unwrap().now = self.now;
            self.reactor.begin_turn();
            self.hear();
            while let Some(&Reverse((at, _, call))) = self.answers.peek()
                && at <= self.now
            {
                self.answers.pop();
                self.answer(call);
            }
            let woken = |load: &Load| load.next_wake().is_some_and(|at| at <= self.now);
            let woken = self.loads.iter().enumerate().filter(|(_, load)| woken(load));
            self.dirty.extend(woken.map(|(n, _)| n));
        }
    }

    /// Loads and reactor, until nothing more happens at this instant. When to go on.
    fn settle(&mut self) -> Option<Instant> {
        loop {
            self.poll_loads();
            let wake = self.reactor.core.pump();
            self.hear();
            // All I/Os are done at once; the throttle keeps commands for the model's time.
            let mut completed = false;
            while self.reactor.core.ring.peek() || self.reactor.core.has_unsent() {
                self.reactor.reap();
                self.reactor.deliver();
                completed |= self.hear();
            }
            if self.dirty.is_empty() && !completed {
                return wake.demand;
            }
        }
    }

    fn poll_loads(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.sort_unstable();
        dirty.dedup();
        for load in dirty {
            let mut issues = Vec::new();
            self.loads[load].poll(self.now, &mut issues).unwrap();
            for issue in issues {
                self.submit(load, &issue);
            }
        }
    }

    fn submit(&mut self, load: usize, issue: &Issue) {
        let token = self.calls.len() as u64;
        self.calls.push(Call { load, token: issue.token, ready: None });
        let flush = issue.op == Op::Flush;
        let (offset, len) = (issue.start.get() * 512, issue.len.bytes());
        let job = Job {
            disk: DiskId(load as u16),
            port: self.ports[load],
            token,
            op: issue.op,
            offset: if flush { 0 } else { offset },
            len: if flush { 0 } else { len },
            priority: issue.tag.map_or(0, |tag| ioprio::priority(tag).unwrap().into()),
            fua: issue.sync && issue.op == Op::Write,
            unmap: false,
        };
        // Nobody looks at the data; the buffer is there for the copies out of the cache.
        let mut data = vec![0u8; if issue.op.is_data() { len as usize } else { 0 }];
        let iovec = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
        self.buffers.push(data);
        let buffers = if issue.op.is_data() { &[iovec][..] } else { &[] };
        self.reactor.core.submit(&job, buffers).unwrap();
        self.reactor.core.settle();
        self.hear();
    }

    /// Takes the reactor's events, in the simulator's costs. True when a command was completed.
    fn hear(&mut self) -> bool {
        let mut completed = false;
        for event in std::mem::take(&mut self.reactor.core.log) {
            match event {
                Event::Completed => completed = true,
                Event::Acted(Action::Done(_), token) => match self.calls[token as usize] {
                    call @ Call { ready: Some(ready), .. } => {
                        self.answers.push(Reverse((ready.max(self.now), self.answered, call)));
                        self.answered += 1;
                    }
                    call => self.answer(call),
                },
                Event::Acted(Action::LookedUp { .. }, token) => {
                    self.free = self.free.max(self.now) + Nanos::new(1);
                    self.calls[token as usize].ready = Some(self.free);
                }
                Event::Acted(_, token) => {
                    self.free = self.free.max(self.now);
                    self.calls[token as usize].ready = Some(self.free);
                }
            }
        }
        completed
    }

    fn answer(&mut self, call: Call) {
        self.loads[call.load].completed(self.now, call.token);
        self.dirty.push(call.load);
    }
}

/// The two journals are the same.
fn compare(case: Case) {
    let (simulated, bandwidth) = simulated(&case);
    let dir = tempfile::tempdir().unwrap();
    let live = Rig::new(&case, bandwidth, dir.path()).run();
    // The daemon's bound and the simulator's are their own; neither is met here.
    let (header, rest) = simulated.split_once('\n').unwrap();
    let header = header.replace("outstanding=500001", "outstanding=262144");
    let simulated = format!("{header}\n{rest}");
    for (n, (left, right)) in simulated.lines().zip(live.lines()).enumerate() {
        if left != right {
            let from = n.saturating_sub(12);
            let context = |text: &str| {
                text.lines().skip(from).take(16).map(|l| format!("    {l}\n")).collect::<String>()
            };
            panic!(
                "{case:?}: line {} differs\n  simulator:\n{}  reactor:\n{}",
                n + 1,
                context(&simulated),
                context(&live)
            );
        }
    }
    assert_eq!(simulated.lines().count(), live.lines().count(), "{case:?}");
    let submitted = live.matches(" submit ").count();
    assert_eq!((submitted, live.matches(" done ").count()), (480, 480), "{case:?}");
    let failed = live.lines().filter(|l| l.contains(" done ") && !l.ends_with("ok")).count();
    assert_eq!(case.faults, failed > 0, "{case:?}: {failed} requests failed");
}

#[test]
fn the_reactor_and_the_simulator_write_the_same_journal() {
    let prefetchers = [None, Some("none"), Some("linux"), Some("flashy"), Some("vio")];
    for (n, entry) in schedulers::REGISTRY.iter().enumerate() {
        for (m, prefetcher) in prefetchers.into_iter().enumerate() {
            for variant in 0..4 {
                let (faults, limits) = (variant % 2 == 1, variant >= 2);
                let device = ["seagate-1tb-7200", "intel-320", "linear-15k4"][(n + m) % 3];
                let seed = (n * 32 + m * 4 + variant) as u64;
                compare(Case { policy: entry.name, device, prefetcher, faults, limits, seed });
            }
        }
    }
}
