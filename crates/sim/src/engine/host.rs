//! The host's side of a run: the costs of the stack's cache and prefetcher on the host, and the
//! delay of guests' answers by them.

use crate::metrics::{HostResult, ProcessUsage, VmHost};
use seekway_core::params::ParamError;
use seekway_core::request::{Op, VmId};
use seekway_core::units::{Instant, Nanos, Sectors};
use seekway_device::DeviceModel;
use seekway_stack::cache::Config;
use seekway_stack::stack::{CacheSpec, Stack};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Costs of cache and prefetcher on the host, on one thread, as the daemon has one for each device.
/// Work there queues; the device's own reads do not wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostCosts {
    /// A guest's read, wherever its data comes from: look-up, answer, notification.
    pub request: Nanos,
    /// A command to the device, demand's or a prefetch's: submission and completion.
    pub command: Nanos,
    /// Copy of data from the cache to guests, bytes a second.
    pub copy_bytes_per_s: u64,
    /// Cost of telling cache and prefetcher of a read.
    pub event: Nanos,
    /// A poll of a prefetcher that asked to be woken (its interval).
    pub poll: Nanos,
    /// Cost for each read after the last poll.
    pub poll_event: Nanos,
}

impl Default for HostCosts {
    /// Assumed, not measured: 5 µs for a request through a vring without its
    /// wake-ups, 3 µs for io_uring's share of an I/O, 8 GB/s for a copy between two places in memory by one core,
    /// 0.3 µs as the bound that the cache's bookkeeping has to keep at a million
    /// blocks, and 50 µs for a timer's wake-up and a pass over the streams.
    fn default() -> Self {
        HostCosts {
            request: Nanos::from_micros(5),
            command: Nanos::from_micros(3),
            copy_bytes_per_s: 8_000_000_000,
            event: Nanos::new(300),
            poll: Nanos::from_micros(50),
            poll_event: Nanos::new(300),
        }
    }
}

impl HostCosts {
    fn copy(&self, len: Sectors) -> Nanos {
        Nanos::new(len.bytes()).scaled(1_000_000_000, self.copy_bytes_per_s.max(1))
    }
}

/// A host cache for a run.
pub struct Host {
    /// Its size and its prefetcher (see `seekway_policy::prefetchers`).
    pub cache: CacheSpec,
    pub costs: HostCosts,
    /// The device's highest read rate that the cache is told, bytes a second.
    pub bandwidth: u64,
}

impl Host {
    /// A cache with the prefetcher `prefetch`. Its bandwidth is measured on `like`, a new
    /// device like the one of the run.
    ///
    /// # Errors
    /// For a prefetcher's specification that is none.
    pub fn new(
        cache: Config,
        prefetch: &str,
        costs: HostCosts,
        like: Box<dyn DeviceModel>,
    ) -> Result<Host, ParamError> {
        let cache = CacheSpec::new(cache, prefetch)?;
        Ok(Host { cache, costs, bandwidth: super::measure_bandwidth(like) })
    }
}

/// A guest's request under way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Guest {
    pub(super) source: u32,
    pub(super) token: u64,
    pub(super) vm: u16,
    pub(super) op: Op,
    /// Does somebody wait for it?
    pub(super) sync: bool,
    pub(super) arrived: Instant,
    pub(super) bytes: u64,
    /// Time when the host's work is done; `None` for a request past the cache.
    pub(super) ready: Option<Instant>,
}

/// The one thread of the host. VMs with work there take turns of one request each, as in the daemon.
/// Work gets its time when it comes: what comes later delays only what comes after that.
#[derive(Default)]
struct Thread {
    /// By VM; the last one is the host's own.
    lanes: Vec<Lane>,
    busy: Nanos,
}

/// The work of one VM on the thread.
#[derive(Clone, Copy, Default)]
struct Lane {
    /// When all of it is done.
    free: Instant,
    /// Costs of the last two pieces of work. A request has a look-up and a copy: the longer one is
    /// its turn.
    pieces: [Nanos; 2],
}

impl Lane {
    fn turn(&self) -> Nanos {
        self.pieces[0].max(self.pieces[1])
    }
}

impl Thread {
    fn new(vms: usize) -> Thread {
        Thread { lanes: vec![Lane::default(); vms + 1], busy: Nanos::ZERO }
    }

    /// Work of a lane that comes at `now`: when it is done. It waits for the lane's own, and for a
    /// turn of each other lane.
    fn work(&mut self, lane: usize, now: Instant, piece: Nanos) -> Instant {
        self.busy += piece;
        let Lane { free, pieces } = self.lanes[lane];
        let start = free.max(now);
        let mut end = start + piece;
        for other in self.lanes.iter_mut().filter(|other| other.free > start) {
            end = end + (other.free - start).min(other.turn());
            if free <= now {
                other.free = other.free + piece;
            }
        }
        self.lanes[lane] = Lane { free: end, pieces: [pieces[1], piece] };
        end
    }

    /// Work of the host's own.
    fn work_of_host(&mut self, now: Instant, piece: Nanos) {
        self.work(self.lanes.len() - 1, now, piece);
    }
}

/// Costs of cache and prefetcher in a run.
#[derive(Default)]
pub(super) struct HostSide {
    costs: HostCosts,
    bandwidth: u64,
    thread: Thread,
    /// Reads that are done, by the time at which the guest has them.
    answers: BinaryHeap<Reverse<(Instant, u64, Guest)>>,
    /// Number of answers: those of one instant keep their order.
    count: u64,
    /// Reads since the prefetcher was last polled, and the time that it had
    /// asked for then.
    events: u64,
    /// When it wants to be polled next.
    named: Option<Instant>,
    polled_for: Option<Instant>,
    polls: u64,
}

impl HostSide {
    pub(super) fn new(costs: HostCosts, bandwidth: u64, vms: usize) -> Self {
        HostSide { costs, bandwidth, thread: Thread::new(vms), ..HostSide::default() }
    }

    /// The device's highest read rate, bytes a second.
    pub(super) fn bandwidth(&self) -> u64 {
        self.bandwidth
    }

    /// A read was looked up, and `commands` reads of the device follow: when the host has done
    /// its part. `next_prefetch` is when the prefetcher wants to be polled since.
    pub(super) fn looked_up(
        &mut self,
        vm: u16,
        now: Instant,
        commands: u32,
        next_prefetch: Option<Instant>,
    ) -> Instant {
        // A poll looks at the reads after its time was set.
        self.events += 1;
        if next_prefetch != self.named {
            (self.named, self.events) = (next_prefetch, 1);
        }
        let HostCosts { event, request, command, .. } = self.costs;
        let cost = event + request + command.scaled(commands.into(), 1);
        // A guest that only hits must not stop time, even at zero cost.
        self.thread.work(vm.into(), now, cost.max(Nanos::new(1)))
    }

    /// Data is copied to a guest: when that is done.
    pub(super) fn copied(&mut self, vm: u16, now: Instant, len: Sectors) -> Instant {
        self.thread.work(vm.into(), now, self.costs.copy(len))
    }

    /// A prefetch goes to the device.
    pub(super) fn prefetching(&mut self, now: Instant) {
        self.thread.work_of_host(now, self.costs.command);
    }

    /// The guest has its answer then.
    pub(super) fn answer_at(&mut self, at: Instant, guest: Guest) {
        self.answers.push(Reverse((at, self.count, guest)));
        self.count += 1;
    }

    /// A read that its guest has by now.
    pub(super) fn pop_answer(&mut self, now: Instant) -> Option<Guest> {
        let &Reverse((at, _, guest)) = self.answers.peek()?;
        if at > now {
            return None;
        }
        self.answers.pop();
        Some(guest)
    }

    /// Reads that are done, and which their guests have not yet.
    pub(super) fn answered(&self) -> impl Iterator<Item = &Guest> {
        self.answers.iter().map(|Reverse((_, _, guest))| guest)
    }

    /// When the next read is answered.
    pub(super) fn next_answer(&self) -> Option<Instant> {
        self.answers.peek().map(|Reverse((at, ..))| *at)
    }

    /// Charges the prefetcher's poll when its time has come. A poll looks at the reads even without
    /// room for its proposals.
    pub(super) fn charge_poll(&mut self, now: Instant, next_prefetch: Option<Instant>) {
        let wake = next_prefetch.filter(|&at| at <= now);
        if wake.is_some() && wake != self.polled_for {
            let events = self.costs.poll_event.scaled(self.events, 1);
            self.thread.work_of_host(now, self.costs.poll + events);
            self.polls += 1;
            self.events = 0;
            self.polled_for = wake;
        }
    }

    /// Results until now, and each of `vms` VMs' share.
    pub(super) fn result(&self, stack: &Stack, vms: usize) -> (HostResult, Vec<VmHost>) {
        let mut result = HostResult {
            prefetch: stack.prefetcher().to_string(),
            cache_bytes: stack.cache_bytes(),
            bandwidth: self.bandwidth,
            usage: Default::default(),
            busy: self.thread.busy,
            polls: self.polls,
            metrics: Vec::new(),
        };
        let vm = |n: usize| {
            let resident_bytes = stack.resident_bytes(VmId::new(n as u16));
            VmHost { resident_bytes, ..VmHost::default() }
        };
        let mut vms: Vec<VmHost> = (0..vms).map(vm).collect();
        stack.cache_usage(&mut |vm, tag, usage| {
            result.usage += usage;
            vms[vm.index()].usage += usage;
            vms[vm.index()].processes.push(ProcessUsage { tag, usage: *usage });
        });
        stack.streams(&mut |s| vms[s.vm.index()].streams.push(*s));
        stack.prefetcher_metrics(&mut |name, value| result.metrics.push((name, value)));
        (result, vms)
    }
}
