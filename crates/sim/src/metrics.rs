//! Measurements of a run, alike for every policy: response and service times in HdrHistograms, seek
//! distances, bandwidth over time and a sample of each VM's requests by offset.

use hdrhistogram::Histogram;
use seekway_core::prefetcher::Stream;
use seekway_core::request::{Completion, Op, ProcessTag, Request};
use seekway_core::units::{Instant, Lba, Nanos};
use seekway_stack::cache::Usage;
use seekway_stack::dispatcher::{HoldStats, Stats};
use seekway_workload::AppReport;

/// Times in nanoseconds with a resolution of a microsecond below two
/// milliseconds and 0.1 % above, up to a day (longer counts as a day). It takes the memory that its
/// longest time needs: 2 KiB when empty, 15 KiB with a second, at 1 %.
///
/// A bucket has a range of times. No mean and no quantile exceeds the longest time, which is known
/// exactly.
#[derive(Clone, PartialEq, Debug)]
pub struct Times {
    buckets: Histogram<u64>,
    longest_ns: u64,
}

const TIME_MIN_NS: u64 = 1_000;

const TIME_MAX_NS: u64 = 86_400_000_000_000;

impl Times {
    pub(crate) fn new(digits: u8) -> Times {
        let made = Histogram::new_with_bounds(TIME_MIN_NS, 2 * TIME_MIN_NS, digits);
        let mut buckets = made.expect("constant bounds");
        buckets.auto(true);
        Times { buckets, longest_ns: 0 }
    }

    /// The times of all of these.
    pub(crate) fn joined<'a>(digits: u8, parts: impl IntoIterator<Item = &'a Times>) -> Times {
        let mut all = Times::new(digits);
        parts.into_iter().for_each(|part| all.add(part));
        all
    }

    pub(crate) fn record(&mut self, ns: u64) {
        let ns = ns.min(TIME_MAX_NS);
        self.buckets.record(ns).expect("it grows up to a day");
        self.longest_ns = self.longest_ns.max(ns);
    }

    /// Adds all times of `part`.
    pub fn add(&mut self, part: &Times) {
        self.buckets.add(&part.buckets).expect("it grows as far as the part");
        self.longest_ns = self.longest_ns.max(part.longest_ns);
    }

    /// Number of times.
    pub fn len(&self) -> u64 {
        self.buckets.len()
    }

    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Arithmetic mean in nanoseconds; 0 without a time.
    pub fn mean(&self) -> f64 {
        self.buckets.mean().min(self.longest_ns as f64)
    }

    /// Standard deviation in nanoseconds.
    pub fn stdev(&self) -> f64 {
        self.buckets.stdev()
    }

    /// The shortest time, within the resolution.
    pub fn min(&self) -> u64 {
        self.buckets.min().min(self.longest_ns)
    }

    /// The longest time, exactly.
    pub fn max(&self) -> u64 {
        self.longest_ns
    }

    /// The time that this share of all does not exceed.
    pub fn value_at_quantile(&self, share: f64) -> u64 {
        self.bucket_end_at_quantile(share).min(self.longest_ns)
    }

    /// As [`Times::value_at_quantile`], but for the end of the bucket that it lies in.
    pub fn bucket_end_at_quantile(&self, share: f64) -> u64 {
        self.buckets.value_at_quantile(share)
    }

    /// Every bucket with times, from the shortest: the end of its range and their number.
    pub fn counts(&self) -> impl Iterator<Item = (u64, u64)> {
        self.buckets.iter_recorded().map(|b| (b.value_iterated_to(), b.count_at_value()))
    }
}

/// Distances between consecutive positions of the arm, by sign and magnitude.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeekDistances {
    /// Exactly where the head stood.
    pub zero: u64,
    /// Forward by `2^n` to `2^(n+1) - 1` sectors.
    pub forward: [u64; 64],
    /// Backward by `2^n` to `2^(n+1) - 1` sectors.
    pub backward: [u64; 64],
}

impl SeekDistances {
    fn new() -> Self {
        SeekDistances { zero: 0, forward: [0; 64], backward: [0; 64] }
    }

    fn record(&mut self, from: Lba, to: Lba) {
        let bin = |d: u64| d.ilog2() as usize;
        match to.get().cmp(&from.get()) {
            std::cmp::Ordering::Equal => self.zero += 1,
            std::cmp::Ordering::Greater => self.forward[bin(to.get() - from.get())] += 1,
            std::cmp::Ordering::Less => self.backward[bin(from.get() - to.get())] += 1,
        }
    }

    /// All that were counted.
    pub fn total(&self) -> u64 {
        self.zero + self.forward.iter().sum::<u64>() + self.backward.iter().sum::<u64>()
    }

    /// Share of distance zero, 0 to 1; 0 when nothing was counted.
    pub fn zero_share(&self) -> f64 {
        self.zero as f64 / self.total().max(1) as f64
    }
}

/// Bytes per span of time. The span starts at 10 ms and doubles whenever the
/// run outgrows [`Series::BINS_MAX`] bins, so that memory stays bounded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Series {
    /// Length of a bin.
    pub bin: Nanos,
    /// Bytes completed in each bin.
    pub bytes: Vec<u64>,
    /// Where the last bin ends: most completions fall into it, and a comparison
    /// is cheaper than a division.
    last_ends: Instant,
}

impl Series {
    /// Most bins kept: where there would be more, two become one.
    pub const BINS_MAX: usize = 2048;

    fn new() -> Self {
        Series { bin: Nanos::from_millis(10), bytes: Vec::new(), last_ends: Instant::ZERO }
    }

    /// Count bytes at `now`, which never runs backwards.
    fn record(&mut self, now: Instant, bytes: u64) {
        if now < self.last_ends
            && let Some(last) = self.bytes.last_mut()
        {
            *last += bytes;
            return;
        }
        let mut at = (now.as_nanos() / self.bin.get()) as usize;
        while at >= Self::BINS_MAX {
            self.bytes = self.bytes.chunks(2).map(|pair| pair.iter().sum()).collect();
            self.bin = self.bin + self.bin;
            at /= 2;
        }
        if at >= self.bytes.len() {
            self.bytes.resize(at + 1, 0);
        }
        self.bytes[at] += bytes;
        self.last_ends = Instant::from_nanos((at as u64 + 1) * self.bin.get());
    }
}

/// Where and when requests arrived: every n-th, n doubling when the sample
/// outgrows [`Scatter::POINTS_MAX`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scatter {
    /// (arrival, first sector on the device, was it a read).
    pub points: Vec<(Instant, Lba, bool)>,
    /// A power of two.
    stride: u64,
    seen: u64,
}

impl Scatter {
    /// Most points kept: at this number every second one is dropped.
    pub const POINTS_MAX: usize = 4096;

    fn new() -> Self {
        Scatter { points: Vec::new(), stride: 1, seen: 0 }
    }

    fn record(&mut self, now: Instant, lba: Lba, read: bool) {
        if self.seen & (self.stride - 1) == 0 {
            if self.points.len() == Self::POINTS_MAX {
                let mut n = 0;
                self.points.retain(|_| {
                    n += 1;
                    n % 2 == 1
                });
                self.stride *= 2;
            }
            if self.seen & (self.stride - 1) == 0 {
                self.points.push((now, lba, read));
            }
        }
        self.seen += 1;
    }
}

/// Reads or writes, of a VM or of a run.
#[derive(Clone, Debug)]
pub struct OpResult {
    /// Requests completed.
    pub requests: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Requests that the end of the run found waiting.
    pub unfinished: u64,
    /// The longest wait, of a request that is done or of one that the end of the run found waiting.
    pub worst_ns: u64,
    /// As [`VmResult::response`].
    pub response: Times,
}

impl OpResult {
    fn new() -> Self {
        OpResult { requests: 0, bytes: 0, unfinished: 0, worst_ns: 0, response: Times::new(2) }
    }
    /// The VMs' counts together, with the response times of the run.
    pub(crate) fn of_run<'a>(vms: impl Iterator<Item = &'a OpResult>, response: Times) -> Self {
        vms.fold(OpResult { response, ..OpResult::new() }, |all, vm| OpResult {
            requests: all.requests + vm.requests,
            bytes: all.bytes + vm.bytes,
            unfinished: all.unfinished + vm.unfinished,
            worst_ns: all.worst_ns.max(vm.worst_ns),
            ..all
        })
    }
    /// True if none was submitted.
    pub fn is_empty(&self) -> bool {
        self.requests + self.unfinished == 0
    }
    /// Requests a second over the span of its VM or run.
    pub fn iops(&self, span: Nanos) -> f64 {
        per_second(self.requests as f64, span)
    }
    /// MiB a second over the span of its VM or run.
    pub fn mib_s(&self, span: Nanos) -> f64 {
        per_second(self.bytes as f64 / f64::from(1 << 20), span)
    }
}

/// Results of one VM.
#[derive(Clone, Debug)]
pub struct VmResult {
    pub name: String,
    /// Data requests completed (flushes and discards apart).
    pub requests: u64,
    /// Bytes read and written.
    pub bytes: u64,
    pub reads: OpResult,
    pub writes: OpResult,
    /// Bytes that it asked for, completed or not.
    pub offered_bytes: u64,
    /// Device time spent on it.
    pub device_time: Nanos,
    /// When its last read or write arrived; zero if there was none.
    pub last_arrival: Instant,
    /// When its last read or write was done; zero if none was.
    pub last: Instant,
    /// Requests that the end of the run found waiting, flushes and discards too.
    pub unfinished: u64,
    /// Waiting time of the oldest of them.
    pub oldest: Nanos,
    /// When its last request was done, if its load ended before the run did.
    pub ended: Option<Instant>,
    /// Time over which its rates are taken: up to its last completion when all its requests were
    /// done, else the whole run.
    pub span: Nanos,
    /// From the guest's submission to its completion, with the wait at a limit.
    pub response: Times,
    /// Bytes read and written, by when their requests were done.
    pub bandwidth: Series,
    /// A sample of where its requests lie on the device, over time.
    pub scatter: Scatter,
    /// The policy's own figures of it.
    pub policy_metrics: Vec<(&'static str, f64)>,
    /// Its share of the host cache, if there was one.
    pub host: Option<VmHost>,
}

impl VmResult {
    /// Requests a second over its own span.
    pub fn iops(&self) -> f64 {
        per_second(self.requests as f64, self.span)
    }
    /// MiB a second over its own span.
    pub fn mib_s(&self) -> f64 {
        per_second(self.bytes as f64 / f64::from(1 << 20), self.span)
    }
    /// The longest wait in nanoseconds, of a request that is done or of one that
    /// the end of the run found waiting.
    pub fn worst_ns(&self) -> u64 {
        let done = self.reads.worst_ns.max(self.writes.worst_ns);
        done.max(self.oldest.get())
    }

    /// The part of a data request.
    fn op_mut(&mut self, op: Op) -> Option<&mut OpResult> {
        match op {
            Op::Read => Some(&mut self.reads),
            Op::Write => Some(&mut self.writes),
            _ => None,
        }
    }

    /// Sums that are not kept while the run lasts.
    fn add_up(&mut self) {
        let VmResult { reads, writes, .. } = self;
        self.requests = reads.requests + writes.requests;
        self.bytes = reads.bytes + writes.bytes;
        self.response = Times::joined(2, [&reads.response, &writes.response]);
    }
}

/// Everything that one run measured.
#[derive(Clone, Debug)]
pub struct RunResult {
    /// From when it was measured: the end of the time to settle, or 0 if it ended before.
    pub began: Instant,
    /// From the beginning of the measuring (time zero, unless the run had a time to
    /// settle) to the last event.
    pub simulated: Nanos,
    /// By VM, in the order of the sources.
    pub vms: Vec<VmResult>,
    /// Response of all data requests.
    pub response: Times,
    /// Reads of all VMs.
    pub reads: OpResult,
    /// Writes of all VMs.
    pub writes: OpResult,
    /// Device time of a command, from the later of its dispatch and the
    /// completion before it.
    pub service: Times,
    /// Times from the dispatch on: with more than one command outstanding they count queueing
    /// inside the device.
    pub service_from_dispatch: Times,
    /// Distances from the end of one command to the start of the next.
    pub seeks_per_command: SeekDistances,
    /// Distances with each guest request counted: a coalesced one follows its predecessor at
    /// distance zero.
    pub seeks_per_request: SeekDistances,
    /// Flushes, discards and write-zeroes.
    pub barriers: u64,
    /// Time withheld by cause.
    pub holds: HoldStats,
    pub stats: Stats,
    /// Applications of the sources, in order.
    pub apps: Vec<AppReport>,
    /// The policy's own figures.
    pub policy_metrics: Vec<(&'static str, f64)>,
    /// The device model's own figures.
    pub device_metrics: Vec<(&'static str, f64)>,
    /// The host cache and its prefetcher, where there were any.
    pub host: Option<HostResult>,
    /// Requests of the host's own file system, where the images are its files. The times, seeks and
    /// counts of the run include them.
    pub host_fs: Option<VmResult>,
    /// vCPUs and tasks, where the run had a machine of them.
    pub machine: Option<MachineResult>,
    /// Requests that waited in guests, where guests had queues.
    pub guest_queues: Option<GuestQueuesResult>,
    /// Most requests outstanding at once.
    pub outstanding_max: usize,
    /// Tells whether every source came to its end (else a limit stopped the run).
    pub finished: bool,
}

impl RunResult {
    /// Data requests completed, of all VMs (flushes and discards apart).
    pub fn requests(&self) -> u64 {
        self.vms.iter().map(|v| v.requests).sum()
    }
    /// Bytes read and written, of all VMs together.
    pub fn bytes(&self) -> u64 {
        self.vms.iter().map(|v| v.bytes).sum()
    }
    /// The longest wait in nanoseconds, see [`VmResult::worst_ns`].
    pub fn worst_ns(&self) -> u64 {
        self.vms.iter().chain(&self.host_fs).map(VmResult::worst_ns).max().unwrap_or(0)
    }
    /// Requests a second over the whole run.
    pub fn iops(&self) -> f64 {
        per_second(self.requests() as f64, self.simulated)
    }
    /// MiB a second over the whole run.
    pub fn mib_s(&self) -> f64 {
        per_second(self.bytes() as f64 / (1 << 20) as f64, self.simulated)
    }
}

/// `amount` over `span`; zero when no time passed.
pub fn per_second(amount: f64, span: Nanos) -> f64 {
    if span == Nanos::ZERO { 0.0 } else { amount / span.as_secs_f64() }
}

/// A time of a histogram in milliseconds.
pub fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// The measuring side of the engine.
pub(crate) struct Meter {
    pub(crate) vms: Vec<VmResult>,
    /// Response of reads.
    pub(crate) reads: Times,
    /// Response of writes.
    pub(crate) writes: Times,
    pub(crate) service: Times,
    /// With one command at a time it is the service, and is not measured twice.
    pub(crate) service_from_dispatch: Option<Times>,
    pub(crate) seeks_per_command: SeekDistances,
    pub(crate) seeks_per_request: SeekDistances,
    pub(crate) barriers: u64,
    /// When the measuring began.
    began: Instant,
}

impl Meter {
    /// Measures VMs of these names on a device of that queue depth.
    pub(crate) fn new(names: impl Iterator<Item = String>, depth: u32) -> Self {
        let vm = |name| VmResult {
            name,
            requests: 0,
            bytes: 0,
            reads: OpResult::new(),
            writes: OpResult::new(),
            offered_bytes: 0,
            device_time: Nanos::ZERO,
            last_arrival: Instant::ZERO,
            last: Instant::ZERO,
            unfinished: 0,
            oldest: Nanos::ZERO,
            ended: None,
            span: Nanos::ZERO,
            response: Times::new(2),
            bandwidth: Series::new(),
            scatter: Scatter::new(),
            policy_metrics: Vec::new(),
            host: None,
        };
        Meter {
            vms: names.map(vm).collect(),
            reads: Times::new(3),
            writes: Times::new(3),
            service: Times::new(3),
            service_from_dispatch: (depth > 1).then(|| Times::new(3)),
            seeks_per_command: SeekDistances::new(),
            seeks_per_request: SeekDistances::new(),
            barriers: 0,
            began: Instant::ZERO,
        }
    }

    /// Forget all and measure from `now` on.
    pub(crate) fn restart(&mut self, now: Instant) {
        let names = std::mem::take(&mut self.vms).into_iter().map(|vm| vm.name);
        let depth = 1 + u32::from(self.service_from_dispatch.is_some());
        *self = Meter { began: now, ..Meter::new(names, depth) };
    }

    pub(crate) fn arrived(&mut self, now: Instant, vm: usize, op: Op, start: Lba, bytes: u64) {
        if op.is_data() {
            let vm = &mut self.vms[vm];
            vm.offered_bytes += bytes;
            vm.last_arrival = now;
            vm.scatter.record(now, start, op == Op::Read);
        }
    }

    /// A command of `requests` guest requests goes to the device.
    pub(crate) fn dispatched(&mut self, head: Lba, command: &Request, requests: u64) {
        self.seeks_per_command.record(head, command.extent.start());
        self.seeks_per_request.record(head, command.extent.start());
        self.seeks_per_request.zero += requests - 1;
    }

    /// The run ends; `waiting` (VM, operation and arrival) has not been served.
    pub(crate) fn end(
        &mut self,
        now: Instant,
        waiting: impl Iterator<Item = (usize, Op, Instant)>,
    ) {
        for (vm, op, arrived) in waiting {
            let (vm, age) = (&mut self.vms[vm], now.since(arrived));
            vm.unfinished += 1;
            vm.oldest = vm.oldest.max(age);
            if let Some(of_op) = vm.op_mut(op) {
                of_op.unfinished += 1;
                of_op.worst_ns = of_op.worst_ns.max(age.get());
            }
        }
        for vm in &mut self.vms {
            vm.add_up();
            let end = if vm.unfinished > 0 { now } else { vm.last };
            vm.span = end.since(self.began);
        }
    }

    /// Marks those of `vms` that ended early: their load is over, and their last request was done
    /// before the last hundredth of the run. `run_end` is the planned end of the run.
    pub(crate) fn mark_ended(&mut self, vms: std::ops::Range<usize>, run_end: Instant) {
        let hundredth = run_end.since(self.began).scaled(1, 100);
        for vm in &mut self.vms[vms] {
            let early = vm.unfinished == 0 && run_end.since(vm.last) > hundredth;
            vm.ended = early.then_some(vm.last);
        }
    }

    /// The device is done with a request, of a guest or for the host cache; `leads` its command.
    pub(crate) fn served(&mut self, now: Instant, c: &Completion, leads: bool) {
        if !c.request.op.is_data() {
            return;
        }
        self.vms[c.request.vm.index()].device_time += c.service;
        if leads {
            self.service.record(c.service.get());
            if let Some(times) = &mut self.service_from_dispatch {
                times.record(now.since(c.dispatched).get());
            }
        }
    }

    /// Counts the completion of a request that its guest submitted at `arrived`.
    pub(crate) fn answered(
        &mut self,
        now: Instant,
        vm: usize,
        op: Op,
        arrived: Instant,
        bytes: u64,
    ) {
        let vm = &mut self.vms[vm];
        let Some(of_op) = vm.op_mut(op) else {
            self.barriers += 1;
            return;
        };
        let response = now.since(arrived).get();
        of_op.requests += 1;
        of_op.bytes += bytes;
        of_op.worst_ns = of_op.worst_ns.max(response);
        of_op.response.record(response);
        vm.last = now;
        vm.bandwidth.record(now, bytes);
        let of_all = if op == Op::Read { &mut self.reads } else { &mut self.writes };
        of_all.record(response);
    }
}

// Work of the host cache and its prefetcher in a run.

#[derive(Clone, PartialEq, Debug)]
pub struct HostResult {
    pub prefetch: String,
    /// Size of the cache.
    pub cache_bytes: u64,
    /// The device's highest read rate, bytes a second: measured before the run.
    pub bandwidth: u64,
    /// Sectors and counts, summed over the VMs.
    pub usage: Usage,
    /// Time for which the host's thread was busy.
    pub busy: Nanos,
    /// Times that the prefetcher was polled because it had asked to be.
    pub polls: u64,
    /// The prefetcher's own figures.
    pub metrics: Vec<(&'static str, f64)>,
}

impl HostResult {
    /// Subtracts the counts of `before`. The prefetcher's figures stay.
    pub(crate) fn forget(&mut self, before: &HostResult) {
        self.usage = self.usage.since(&before.usage);
        self.busy = self.busy.saturating_sub(before.busy);
        self.polls -= before.polls;
    }
}

#[derive(Clone, PartialEq, Default, Debug)]
pub struct VmHost {
    /// Sectors and counts of all its processes.
    pub usage: Usage,
    /// Of each process, by tag; those of the untagged ones first.
    pub processes: Vec<ProcessUsage>,
    /// Streams that the prefetcher followed when the run ended.
    pub streams: Vec<Stream>,
    /// Bytes in the cache when the run ended.
    pub resident_bytes: u64,
}

impl VmHost {
    /// Subtracts the counts of `before`. Streams and residents are the end's.
    pub(crate) fn forget(&mut self, before: &VmHost) {
        self.usage = self.usage.since(&before.usage);
        for process in &mut self.processes {
            let known = before.processes.iter().find(|b| b.tag == process.tag);
            process.usage = known.map_or(process.usage, |b| process.usage.since(&b.usage));
        }
    }
}

/// Of one process of a VM.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ProcessUsage {
    /// Its tag; `None` for all that is untagged.
    pub tag: Option<ProcessTag>,
    /// Its reads, and the sectors that were cached, missed or prefetched for it.
    pub usage: Usage,
}

// Results of vCPUs and tasks.

/// Of all VMs, from the beginning of the measuring.
#[derive(Clone, Debug)]
pub struct MachineResult {
    pub policy: String,
    pub pcpus: Vec<PcpuResult>,
    pub vms: Vec<VmCpu>,
    /// Events handled since the start, for how fast the simulator is.
    pub events: u64,
}

/// Results of one processor of the host; its activities add up to the time measured.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PcpuResult {
    /// Time for which vCPUs ran.
    pub ran: Nanos,
    /// Time for which it went from one to another.
    pub switching: Nanos,
    /// Time for which none wanted to run.
    pub idle: Nanos,
    /// Switches from one vCPU to another.
    pub switches: u64,
    /// Slices that vCPUs began on it, those cut short included.
    pub slices: u64,
}

#[derive(Clone, Debug)]
pub struct VmCpu {
    pub name: String,
    /// Its disks, as indices among those of all VMs of the machine.
    pub disks: std::ops::Range<usize>,
    /// Time for which its vCPUs ran, together.
    pub ran: Nanos,
    /// Time for which they wanted to run and had no processor, together (what Linux counts as
    /// steal).
    pub stolen: Nanos,
    pub vcpus: u16,
    /// Time for which at least one of them ran or had nothing to run: the bound, as a share of the
    /// time measured. A vCPU that halts is not away, because nobody took it.
    pub any_ran: Nanos,
    /// Time for which its first vCPU ran.
    pub first_ran: Nanos,
    pub tasks: Vec<TaskResult>,
    /// Moves made; a task that was already there does not count.
    pub moves: u64,
    /// Tasks that were given back their owners' masks: a system call each, and no move.
    pub releases: u64,
    /// Of these, those that had to wait for a vCPU that was away.
    pub blocked: u64,
    /// Least moves with which a clairvoyant could have kept a task on a running vCPU
    /// all the time that one was.
    pub moves_min: u64,
    /// CPU time of the agent: beats, windows, calls.
    pub agent: Nanos,
    /// CPU time of its kernel: switches of tasks, and the cost of cold caches after moves. `ran` is
    /// this, the agent's and the tasks' together.
    pub overhead: Nanos,
    /// The policy's own figures.
    pub metrics: Vec<(&'static str, f64)>,
}

impl VmCpu {
    /// The response times of all its tasks.
    pub fn waits(&self) -> Times {
        Times::joined(2, self.tasks.iter().map(|task| &task.response))
    }
}

#[derive(Clone, Debug)]
pub struct TaskResult {
    pub name: String,
    /// Does it do I/O?
    pub io: bool,
    /// Its CPU time, without the cost of moves.
    pub ran: Nanos,
    /// Blocks that it took; for a guest's task, its waits for I/O.
    pub ios: u64,
    /// Bytes of these blocks; zero for a guest's task.
    pub bytes: u64,
    /// From one block to the next, as the task sees it: with CPU time and absence.
    pub response: Times,
    /// Time in which it had something to run, or its I/O was done, and its vCPU was away.
    pub inactive: Nanos,
    /// Number of moves.
    pub moves: u64,
    /// When each quarter of a second began, and its blocks in it.
    pub series: Vec<(Instant, u64)>,
}

impl TaskResult {
    /// Of a task that has done nothing yet.
    pub(super) fn new(name: String) -> TaskResult {
        TaskResult {
            name,
            io: false,
            ran: Nanos::ZERO,
            ios: 0,
            bytes: 0,
            response: Times::new(2),
            inactive: Nanos::ZERO,
            moves: 0,
            series: Vec::new(),
        }
    }
}

// What waits in guests that have queues of bounded length.

/// Bursts that are kept: those with the longest waits of any request, and of one that somebody waited
/// for.
pub(crate) const BURSTS_MAX: usize = 5;

/// Writes of a VM that somebody waits for, or those that nobody waits for.
#[derive(Clone, Debug)]
pub struct Writes {
    pub requests: u64,
    pub bytes: u64,
    /// From when they came until they were done, with the wait in the guest.
    pub response: Times,
    /// The longest of these times.
    pub longest: Nanos,
    /// Largest number of bytes that had come and were not done.
    pub backlog_bytes: u64,
    /// Number of bytes that have come and are not done.
    pub(crate) waiting_bytes: u64,
}

/// Writes of a VM.
#[derive(Clone, Debug)]
pub struct VmWrites {
    /// Somebody waits for them.
    pub sync: Writes,
    /// Nobody waits for them: write-back of the guest's page cache.
    pub later: Writes,
}

/// A time in which requests of guests were always under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Burst {
    pub from: Instant,
    pub until: Instant,
    /// Largest number of reads and writes that had come and were not done.
    pub requests: u64,
    /// Largest number of their bytes.
    pub bytes: u64,
    /// Longest wait of any of them.
    pub longest: Nanos,
    /// The longest wait of one that somebody waited for: VM, operation and time.
    pub waiter: Option<(u16, Op, Nanos)>,
}

/// Measurements of a run in which guests had queues.
#[derive(Clone, Debug)]
pub struct GuestQueuesResult {
    /// By VM.
    pub writes: Vec<VmWrites>,
    /// Those with the longest wait of any request, then others with the longest wait of one that
    /// somebody waited for: at most ten.
    pub bursts: Vec<Burst>,
}

impl Writes {
    fn new() -> Writes {
        Writes {
            requests: 0,
            bytes: 0,
            response: Times::new(2),
            longest: Nanos::ZERO,
            backlog_bytes: 0,
            waiting_bytes: 0,
        }
    }
}

impl VmWrites {
    pub(crate) fn new() -> VmWrites {
        VmWrites { sync: Writes::new(), later: Writes::new() }
    }

    pub(crate) fn of(&mut self, sync: bool) -> &mut Writes {
        if sync { &mut self.sync } else { &mut self.later }
    }
}

impl RunResult {
    /// Response times of the VM's reads and writes that somebody waits for; of all its requests if
    /// it has none of these, or if guests had no queues.
    pub fn waited_for(&self, vm: usize) -> Times {
        let (of_vm, writes) = (&self.vms[vm], self.guest_queues.as_ref().map(|q| &q.writes[vm]));
        let sync = writes.map(|writes| &writes.sync.response);
        match sync.map(|sync| Times::joined(2, [&of_vm.reads.response, sync])) {
            Some(waited) if !waited.is_empty() => waited,
            _ => of_vm.response.clone(),
        }
    }

    /// Has the VM reads, or writes that somebody waits for?
    pub fn is_waited_for(&self, vm: usize) -> bool {
        let writes = self.guest_queues.as_ref().map(|queues| &queues.writes[vm]);
        !self.vms[vm].reads.response.is_empty()
            || writes.is_none_or(|writes| !writes.sync.response.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_and_scatter_stay_bounded_and_lose_nothing() {
        let (mut series, mut scatter) = (Series::new(), Scatter::new());
        for n in 0..100_000 {
            let now = Instant::ZERO + Nanos::from_millis(n);
            series.record(now, 3);
            scatter.record(now, Lba::new(n), true);
        }
        assert!(series.bytes.len() <= Series::BINS_MAX);
        assert_eq!(series.bytes.iter().sum::<u64>(), 300_000);
        assert!((2048..=4096).contains(&scatter.points.len()));
        let gaps: Vec<u64> =
            scatter.points.windows(2).map(|p| p[1].1.get() - p[0].1.get()).collect();
        assert!(gaps.iter().all(|&g| g == gaps[0]), "every n-th point is kept");
    }

    #[test]
    fn times_take_what_their_longest_needs_up_to_a_day() {
        let mut all = Times::new(2);
        assert_eq!(all.buckets.distinct_values(), 256);
        all.record(1_000_000_000);
        assert_eq!(all.buckets.distinct_values(), 15 * 128);
        all.record(u64::MAX);
        assert_eq!(all.max(), TIME_MAX_NS);
        let both = Times::joined(2, [&Times::new(2), &all, &all]);
        assert_eq!((both.len(), both.max(), both.mean()), (4, all.max(), all.mean()));
    }

    #[test]
    fn no_figure_of_times_exceeds_the_longest() {
        // Its bucket ends at 10.027 ms, and has its middle at 9.994 ms.
        let mut times = Times::new(2);
        (0..3).for_each(|_| times.record(9_961_500));
        assert!(times.buckets.mean() > 9_961_500.0 && times.buckets.max() > 9_961_500);
        assert_eq!((times.mean(), times.max()), (9_961_500.0, 9_961_500));
        assert_eq!([0.5, 1.0].map(|share| times.value_at_quantile(share)), [9_961_500; 2]);
        assert_eq!(times.counts().collect::<Vec<_>>(), [(10_027_007, 3)]);
        let mut all = Times::new(3);
        all.add(&times);
        assert_eq!((all.len(), all.max()), (3, 9_961_500));
    }

    #[test]
    fn distances_fall_into_their_bins() {
        let mut seeks = SeekDistances::new();
        for (from, to) in [(5, 5), (5, 6), (5, 13), (100, 0)] {
            seeks.record(Lba::new(from), Lba::new(to));
        }
        assert_eq!(
            (seeks.zero, seeks.forward[0], seeks.forward[3], seeks.backward[6]),
            (1, 1, 1, 1)
        );
        assert_eq!(seeks.zero_share(), 0.25);
    }
}
