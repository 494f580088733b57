//! The host cache in the engine: every time and every sector that reaches the
//! device can be worked out by hand.

use crate::common::{CAPACITY, Constant, DISK, Log, Planned, Timed};
use proptest::prelude::*;
use seekway_core::prefetcher::{Access, Prefetcher, Proposal};
use seekway_core::request::{Extent, Op, ProcessTag, VmId};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_policy::prefetchers::REGISTRY;
use seekway_policy::schedulers;
use seekway_sim::metrics::ProcessUsage;
use seekway_sim::{Host, HostCosts, Layout, Limits, Placement, RunResult, Setup, run};
use seekway_stack::cache::Config as CacheConfig;
use seekway_stack::stack::CacheSpec;
use seekway_workload::{Issue, Source, SourceError, VmDisk};
use std::collections::{BTreeSet, VecDeque};

use Op::{Discard, Read, Write};

/// Proposes the sectors behind every read, up to `len`; wakes at every whole `interval` with reads
/// in it.
#[derive(Default)]
struct Ahead {
    len: u64,
    /// Whether its fetches go as ordinary reads.
    as_demand: bool,
    interval: Option<Nanos>,
    wake: Option<Instant>,
    wanted: VecDeque<(VmId, Option<ProcessTag>, u64, u64)>,
}

impl Prefetcher for Ahead {
    fn attach(&mut self, _: Instant, _: VmId, capacity: Sectors) {
        assert_eq!(capacity.get(), DISK);
    }
    fn detach(&mut self, _: VmId) {}
    fn fetches_as_demand(&self) -> bool {
        self.as_demand
    }
    fn accessed(&mut self, now: Instant, access: &Access) {
        let start = access.extent.end().get();
        let end = (start + self.len).min(DISK);
        if start < end {
            self.wanted.push_back((access.vm, access.tag, start, end));
        }
        if let (None, Some(interval)) = (self.wake, self.interval) {
            self.wake = Some(now + interval);
        }
    }
    fn propose(&mut self, now: Instant, room: Sectors) -> Option<Proposal> {
        self.wake = self.wake.filter(|&at| at > now);
        let (vm, tag, start, end) = self.wanted.pop_front()?;
        let part = end.min(start + room.get());
        if part < end {
            self.wanted.push_front((vm, tag, part, end));
        }
        Some(Proposal { vm, tag, extent: sectors(start, part) })
    }
    fn next_wake(&self) -> Option<Instant> {
        self.wake
    }
}

fn sectors(start: u64, end: u64) -> Extent {
    Extent::new(Lba::new(start), Sectors::new(end - start)).unwrap()
}

/// Times that no other sum of them gives.
const COSTS: HostCosts = HostCosts {
    request: Nanos::from_micros(100),
    command: Nanos::from_micros(31),
    copy_bytes_per_s: 4_096_000_000, // 1 µs a block
    event: Nanos::from_micros(10),
    poll: Nanos::from_millis(1),
    poll_event: Nanos::from_micros(7),
};
const COPY: Nanos = Nanos::from_micros(1);

fn host(blocks: u64, prefetcher: impl Prefetcher + 'static) -> Option<Host> {
    let (config, prefetcher) = (CacheConfig::new(blocks * 4096), Box::new(prefetcher));
    let cache = CacheSpec { config, prefetcher, spec: "ahead".into() };
    Some(Host { cache, costs: COSTS, bandwidth: 0 })
}

fn ahead(len: u64) -> Ahead {
    Ahead { len, ..Ahead::default() }
}

/// Runs a plan; returns the run and the device's commands, without the offset of VM a.
fn simulate(plan: &[Planned], depth: u32, host: Option<Host>) -> (RunResult, Vec<(Op, Extent)>) {
    drive(Timed::new(plan), "noop", depth, host, Limits::default())
}

fn drive(
    source: impl Source + 'static,
    policy: &str,
    depth: u32,
    host: Option<Host>,
    limits: Limits,
) -> (RunResult, Vec<(Op, Extent)>) {
    let log = Log::default();
    let layout = Layout::place(source.vms(), CAPACITY, &Placement::Packed(Lba::ZERO));
    let setup = Setup {
        host,
        ..Setup::new(
            schedulers::build(policy).unwrap(),
            Box::new(Constant::solid(depth, log.clone())),
            layout.unwrap(),
        )
    };
    let (result, _) = run(vec![Box::new(source)], setup, limits, &mut |_, _| true).unwrap();
    let log = log.lock().unwrap().clone();
    (result, log)
}

fn at(ms: u64, more: &[Nanos]) -> Instant {
    more.iter().fold(Instant::ZERO + Nanos::from_millis(ms), |sum, &n| sum + n)
}

#[test]
fn fetches_as_demand_keep_their_turn_and_others_wait_for_all_demand() {
    // The second read comes while the device works on the first; that one's fetch is queued by then.
    let plan = [(0, 0, Read, 0, 8), (2, 0, Read, 1000, 8)];
    for (as_demand, wanted) in [(true, [0, 8, 1000]), (false, [0, 1000, 8])] {
        let (_, log) = simulate(&plan, 1, host(100, Ahead { as_demand, ..ahead(8) }));
        let order: Vec<u64> = log.iter().map(|(_, extent)| extent.start().get()).collect();
        assert_eq!(order[..3], wanted, "{as_demand}");
    }
}

#[test]
fn a_hit_costs_what_the_host_takes_and_hits_queue() {
    let miss = (0, 0, Read, 0, 8);
    let (result, log) = simulate(&[miss, (20, 0, Read, 0, 8)], 4, host(100, ahead(0)));
    let hit = [COSTS.event, COSTS.request, COPY];
    assert_eq!(result.vms[0].last, at(20, &hit));
    assert_eq!(log, [(Read, sectors(0, 8))]);
    let (result, _) =
        simulate(&[miss, (20, 0, Read, 0, 8), (20, 0, Read, 2, 3)], 4, host(100, ahead(0)));
    let short = COSTS.request + COSTS.event + COPY.scaled(3, 8);
    assert_eq!(result.vms[0].last, at(20, &hit) + short);
    let miss = COSTS.event + COSTS.request + COSTS.command + COPY;
    let busy = miss + COSTS.event + COSTS.request + COPY + short;
    let host = result.host.expect("a host cache");
    assert_eq!(host.busy, busy);
    assert_eq!((host.usage.reads, host.usage.cached, host.usage.missed), (3, 11, 8));
    assert_eq!(result.response.len(), 3, "hits are answers like any other");
}

#[test]
fn a_hit_waits_for_one_request_of_another_vm_that_has_many() {
    let mut plan = vec![(0, 0, Read, 0, 8), (0, 1, Read, 0, 8)];
    plan.extend([(20, 0, Read, 0, 8); 10]);
    plan.push((20, 1, Read, 0, 8));
    let (result, _) = simulate(&plan, 4, host(100, ahead(0)));
    let turn = COSTS.event + COSTS.request;
    let hit = [turn, COPY];
    // One turn before the look-up, one before the copy.
    assert_eq!(result.vms[1].last, at(20, &[hit.as_slice(), &[turn, turn]].concat()));
    // The others' times were said before it came.
    assert_eq!(result.vms[0].last, at(20, &hit.repeat(10)));
}

#[test]
fn a_fetch_pays_its_copy_and_a_large_read_both_ways() {
    let (result, _) = simulate(&[(0, 0, Read, 0, 8)], 4, host(100, ahead(0)));
    assert_eq!(result.vms[0].last, at(5, &[COPY]));
    // A cache of one block: the second block goes past it, without a copy.
    let (result, log) = simulate(&[(0, 0, Read, 0, 16)], 4, host(1, ahead(0)));
    assert_eq!((result.vms[0].last, log.len()), (at(5, &[COPY]), 1));
}

#[test]
fn a_prefetch_under_way_is_joined() {
    let plan = [(0, 0, Read, 0, 8), (1, 0, Read, 8, 8)];
    let (result, log) = simulate(&plan, 4, host(100, ahead(64)));
    assert_eq!(log, [(Read, sectors(0, 8)), (Read, sectors(8, 72)), (Read, sectors(72, 80))]);
    // Both end at 5 ms; the first one's copy is before the second one's.
    assert_eq!(result.vms[0].last, at(5, &[COPY, COPY]));
    let usage = result.host.expect("a host cache").usage;
    assert_eq!((usage.late, usage.missed, usage.promoted, usage.used), (8, 8, 0, 8));
    assert_eq!((result.stats.requests, result.stats.background), (1, 2));
}

#[test]
fn a_waiting_prefetch_is_promoted_for_who_wants_it() {
    let plan = [(0, 0, Read, 0, 8), (1, 0, Read, 8, 8)];
    let (result, log) = simulate(&plan, 1, host(100, ahead(64)));
    assert_eq!(log[..2], [(Read, sectors(0, 8)), (Read, sectors(8, 72))]);
    assert_eq!(result.vms[0].last, at(10, &[COPY]));
    let usage = result.host.expect("a host cache").usage;
    assert_eq!((usage.late, usage.promoted), (8, 1));
    // The second read's own prefetch goes when the device is free.
    assert_eq!((result.stats.requests, result.stats.background), (2, 1));
    assert_eq!(log[2..], [(Read, sectors(72, 80))]);
}

#[test]
fn waiting_prefetches_are_dropped_when_demand_crowds() {
    // The device takes one; a's prefetch waits when b brings more than that.
    let plan = [(0, 0, Read, 0, 8), (1, 1, Read, 0, 8), (1, 1, Read, 800, 8)];
    let (result, log) = simulate(&plan, 1, host(100, ahead(64)));
    let usage = result.vms[0].host.as_ref().expect("a host cache").usage;
    assert_eq!((usage.prefetched, usage.dropped, usage.cost()), (64, 64, 0.0));
    assert_eq!(result.stats.withdrawn, 1);
    let b = DISK.next_multiple_of(2048);
    let demand = [sectors(0, 8), sectors(b, b + 8), sectors(b + 800, b + 808)];
    assert_eq!(log[..3], demand.map(|extent| (Read, extent)));
    assert_eq!((result.requests(), result.finished), (3, true));
}

#[test]
fn what_was_written_is_read_from_the_device_again() {
    for change in [Write, Discard] {
        let plan = [
            (0, 0, Read, 0, 64),
            (20, 0, change, 8, 8),
            (22, 0, Read, 8, 8),
            (40, 0, Read, 0, 64),
            (60, 0, Read, 0, 64),
        ];
        let (_, log) = simulate(&plan, 1, host(100, ahead(0)));
        let reads: Vec<Extent> = log.iter().filter(|l| l.0 == Read).map(|l| l.1).collect();
        let mut want = vec![sectors(0, 64), sectors(8, 16)];
        if change == Write {
            // The read came while the write was under way, and so past the cache.
            want.push(sectors(8, 16));
        }
        assert_eq!(reads, want, "{change:?}");
    }
}

#[test]
fn a_run_ends_with_its_guests_whatever_is_prefetched() {
    let mut forever = ahead(512);
    forever.interval = Some(Nanos::from_millis(3));
    let (result, log) = simulate(&[(0, 0, Read, 0, 8)], 1, host(100, forever));
    assert!(result.finished);
    // The first poll is due at 3 ms and does not delay the copy at 5 ms.
    assert_eq!(result.simulated, at(5, &[COPY]).since(Instant::ZERO));
    assert_eq!(log.len(), 2, "the prefetch begins when the device is free, and is not waited for");
}

#[test]
fn polls_and_what_they_look_at_cost() {
    let plan: Vec<Planned> = (0..10).map(|n| (n * 10, 0, Read, n * 100, 8)).collect();
    let mut polled = ahead(0);
    polled.interval = Some(Nanos::from_millis(17));
    let (result, _) = simulate(&plan, 4, host(100, polled));
    let host = result.host.expect("a host cache");
    // Woken at 17, 37, 57 and 77 ms, after two reads each time; the run ends before 97 ms.
    assert_eq!(host.polls, 4);
    let polls = COSTS.poll.scaled(4, 1) + COSTS.poll_event.scaled(8, 1);
    let read = COSTS.event + COSTS.request + COSTS.command + COPY;
    let reads = read.scaled(10, 1);
    assert_eq!(host.busy, polls + reads);
}

#[test]
fn a_poll_costs_though_there_is_no_room_for_what_it_finds() {
    // A device that serves one request in five milliseconds and gets ten at once.
    let plan: Vec<Planned> = (0..10).map(|n| (0, 0, Read, n * 100, 8)).collect();
    let mut polled = ahead(0);
    polled.interval = Some(Nanos::from_millis(17));
    let (result, _) = simulate(&plan, 1, host(100, polled));
    // Crowded until 40 ms.
    assert!(result.host.expect("a host cache").polls >= 1);
}

#[test]
fn prefetches_cost_their_commands() {
    let (result, _) = simulate(&[(0, 0, Read, 0, 8), (20, 0, Read, 8, 8)], 4, host(100, ahead(8)));
    let host = result.host.expect("a host cache");
    let each = COSTS.event + COSTS.request + COPY;
    // A miss, the block behind it, and the block behind that.
    assert_eq!(host.busy, each.scaled(2, 1) + COSTS.command.scaled(3, 1));
}

#[test]
fn each_process_has_its_own_account() {
    let plan =
        [(0, 0, Read, 0, 8), (0, 0, Read, 800, 16), (20, 0, Read, 8, 8), (20, 1, Read, 0, 8)];
    let (result, _) =
        drive(Timed::tagged(&plan), "noop", 4, host(1_000, ahead(64)), Limits::default());
    let cache = |vm: usize| result.vms[vm].host.as_ref().expect("a host cache");
    let accounts = |vm: usize| {
        let of = |p: &ProcessUsage| (p.tag.map(|t| t.get()), p.usage.reads, p.usage.cached);
        cache(vm).processes.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(accounts(0), [(Some(8), 2, 8), (Some(9), 1, 0)]);
    assert_eq!(accounts(1), [(Some(9), 1, 0)]);
    assert_eq!(cache(0).usage.read, 32);
    // All that was fetched of a's disk is in the cache: a block, two, and 64 sectors behind each.
    assert_eq!(cache(0).resident_bytes, (8 + 16 + 64 + 64 + 8) * 512);
}

#[test]
fn what_is_done_while_a_run_settles_is_not_measured() {
    let plan: Vec<Planned> = (0..60).map(|n| (n * 2, n as u16 % 2, Read, n * 8, 8)).collect();
    let interval = Some(Nanos::from_millis(10));
    let part = |settle: Option<u64>, until: u64| {
        let limits = Limits {
            settle: settle.map(|ms| at(ms, &[])),
            until: Some(at(until, &[])),
            ..Limits::default()
        };
        let host = host(1_000, Ahead { interval, ..ahead(16) });
        drive(Timed::tagged(&plan), "noop", 4, host, limits).0
    };
    let (first, all, last) = (part(None, 41), part(None, 100), part(Some(41), 100));
    let counts = |r: &RunResult| {
        let host = r.host.as_ref().unwrap();
        let (usage, [a, b]) = (host.usage, [&r.vms[0], &r.vms[1]]);
        let own = |vm: &seekway_sim::metrics::VmResult| {
            let host = vm.host.as_ref().unwrap();
            let processes: u64 = host.processes.iter().map(|p| p.usage.read).sum();
            [vm.requests, vm.bytes, vm.device_time.get(), host.usage.read, processes]
        };
        let ours = [usage.reads, usage.used, usage.prefetched, host.polls, host.busy.get()];
        [own(a), own(b), ours, [r.simulated.get(), r.response.len(), r.service.len(), 0, 0]]
    };
    let (first, all, last) = (counts(&first), counts(&all), counts(&last));
    for (n, before) in first.iter().flatten().enumerate() {
        let at = (n / 5, n % 5);
        let (all, last) = (all[at.0][at.1], last[at.0][at.1]);
        assert_eq!(all - before, last, "figure {at:?}");
        assert!(at >= (3, 3) || (*before > 0 && last > 0), "figure {at:?} is nothing");
    }
    let short = part(Some(200), 100);
    assert_eq!(counts(&short), all, "a run that ends before is measured whole");
}

/// Formats the results of a run, without its histograms.
fn figures(result: &RunResult) -> String {
    let RunResult { simulated, stats, host, vms, .. } = result;
    let vms: Vec<_> = vms.iter().map(|v| (v.requests, v.last, v.device_time, &v.host)).collect();
    format!("{simulated:?} {stats:?} {host:?} {vms:?} {}", result.response.mean())
}

#[test]
fn without_prefetching_a_tiny_cache_changes_nothing_but_its_costs() {
    let plan: Vec<Planned> = (0..200).map(|n| (n * 3, 0, Read, n * 48 % 9_000, 16)).collect();
    let (bare, _) = simulate(&plan, 1, None);
    let tiny = CacheSpec::new(CacheConfig::new(4096), "none").unwrap();
    let tiny = Host { cache: tiny, ..host(1, ahead(0)).unwrap() };
    let (cached, _) = simulate(&plan, 1, Some(tiny));
    assert!(bare.host.is_none() && bare.vms[0].host.is_none());
    let costs = cached.host.as_ref().expect("a host cache").busy;
    let longer = cached.simulated.saturating_sub(bare.simulated);
    assert!(bare.simulated <= cached.simulated && longer <= costs, "{longer:?} of {costs:?}");
    let (bare, cached) = (bare.response.mean(), cached.response.mean());
    assert!((cached - bare).abs() <= costs.get() as f64 / 200.0 + 2_000.0, "{bare} {cached}");
}

/// Reads the same block as soon as it has it.
struct Again(Vec<VmDisk>, bool);

impl Source for Again {
    fn vms(&self) -> &[VmDisk] {
        &self.0
    }
    fn poll(&mut self, _: Instant, out: &mut Vec<Issue>) -> Result<(), SourceError> {
        if !std::mem::replace(&mut self.1, true) {
            let (start, len) = (Lba::ZERO, Sectors::new(8));
            out.push(Issue { token: 0, vm: 0, tag: None, op: Read, sync: true, start, len });
        }
        Ok(())
    }
    fn completed(&mut self, _: Instant, _: u64) {
        self.1 = false;
    }
    fn next_wake(&self) -> Option<Instant> {
        None
    }
    fn finished(&self) -> bool {
        false
    }
}

#[test]
fn hits_that_cost_nothing_do_not_stop_time() {
    let costs = HostCosts { copy_bytes_per_s: u64::MAX, request: Nanos::ZERO, ..COSTS };
    let costs = HostCosts { event: Nanos::ZERO, ..costs };
    let source = Again(vec![VmDisk { name: "a".into(), capacity: Sectors::new(DISK) }], false);
    let free = Host { costs, ..host(8, ahead(0)).unwrap() };
    let limits = Limits { requests: Some(1_001), ..Limits::default() };
    let (result, _) = drive(source, "noop", 1, Some(free), limits);
    assert_eq!(result.simulated, Nanos::from_millis(5) + Nanos::new(1_000));
}

/// A stream of VM a among other requests.
fn streams() -> impl Strategy<Value = Vec<Planned>> {
    (plans(), 8..65u64, 1..8u64, 10..90u64).prop_map(|(mut plan, len, pace, reads)| {
        plan.extend((0..reads).map(|n| (n * pace, 0, Read, 2_000 + n * len, len)));
        plan.sort_by_key(|p| p.0);
        plan
    })
}

/// A plan of 1 to 60 requests of both VMs.
fn plans() -> impl Strategy<Value = Vec<Planned>> {
    let op =
        prop_oneof![8 => Just(Read), 2 => Just(Write), 1 => Just(Discard), 1 => Just(Op::Flush)];
    let planned = (0..60u64, 0..2u16, op, 0..1_000u64, 1..100u64);
    prop::collection::vec(planned, 1..60).prop_map(|mut plan| {
        plan.sort_by_key(|p| p.0);
        plan
    })
}

/// Sectors that reads touch: of guests, or of the device.
fn touched(reads: impl Iterator<Item = Extent>) -> BTreeSet<u64> {
    reads.flat_map(|e| e.start().get()..e.end().get()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Each request completes once (the source says so), guests read what the device read, and
    /// equal runs give equal figures.
    #[test]
    fn every_read_is_answered_once_with_what_the_device_gave(
        plan in prop_oneof![plans(), streams()],
        depth in 1..5u32,
        blocks in prop_oneof![Just(1u64), 2..40u64, Just(2_000)],
        len in prop_oneof![Just(0u64), 1..600u64],
        interval in prop::option::of(1..20u64),
        registered in prop::option::of(0..REGISTRY.len()),
        policy in prop::sample::select(vec!["noop", "deadline", "cfq", "vmcd"]),
    ) {
        let made = || {
            let interval = interval.map(Nanos::from_millis);
            let mut host = host(blocks, Ahead { interval, ..ahead(len) });
            if let (Some(host), Some(entry)) = (&mut host, registered.map(|n| &REGISTRY[n])) {
                let config = CacheConfig::new(blocks * 4096);
                host.cache = CacheSpec::new(config, entry.name).unwrap();
            }
            drive(Timed::new(&plan), policy, depth, host, Limits::default())
        };
        let (result, log) = made();
        prop_assert!(result.finished);
        prop_assert_eq!(result.requests() + result.barriers, plan.len() as u64);
        // VM b's disk begins where the next MiB does.
        let base = |vm: u16| u64::from(vm) * DISK.next_multiple_of(2048);
        let wanted = plan.iter().filter(|p| p.2 == Read);
        let wanted = touched(wanted.map(|p| sectors(base(p.1) + p.3, base(p.1) + p.3 + p.4)));
        let reads = || log.iter().filter(|l| l.0 == Read).map(|l| l.1);
        let read = touched(reads());
        prop_assert!(wanted.is_subset(&read));
        let pure = plan.iter().all(|p| matches!(p.2, Read | Op::Flush));
        if pure && blocks == 2_000 {
            prop_assert_eq!(reads().map(|e| e.len().get()).sum::<u64>(), read.len() as u64);
        }
        prop_assert_eq!(figures(&result), figures(&made().0));
    }
}

/// Where demand never leaves a disk's arm alone, the streams' next blocks go along with the ones
/// they wait for: fewer ways for as much data. (Under noop, a VM that is served more often gets
/// more of the disk; no prefetcher can change that.)
#[test]
fn a_busy_head_reads_along() {
    let texts = [
        "name=streams,ram=256MiB,tags=true,app=fio:rw=read,bs=64KiB,size=1GiB,numjobs=8",
        "name=random,ram=256MiB,app=fio:rw=randread,bs=4KiB,size=2GiB,iodepth=8,direct=true",
    ];
    let run = |prefetch: &str| {
        let plans = texts.map(|text| seekway_workload::generators::parse_vm(text).unwrap());
        let sources: Vec<Box<dyn Source>> =
            (0..).zip(&plans).map(|(n, plan)| plan.source(1, n).unwrap()).collect();
        let profile = seekway_device::profile::load("seagate-1tb-7200").unwrap();
        let device = profile.build();
        let disks: Vec<VmDisk> = sources.iter().flat_map(|s| s.vms().to_vec()).collect();
        let place = Placement::Packed(Lba::ZERO);
        let layout = Layout::place(&disks, device.profile().capacity, &place).unwrap();
        let cache = CacheConfig::new(256 << 20);
        let host = Host::new(cache, prefetch, HostCosts::default(), profile.build()).unwrap();
        let setup = Setup {
            host: Some(host),
            ..Setup::new(schedulers::build("noop").unwrap(), device, layout)
        };
        let until = Some(Instant::ZERO + Nanos::from_secs(20));
        let limits = Limits { until, ..Limits::default() };
        seekway_sim::run(sources, setup, limits, &mut |_, _| true).unwrap().0
    };
    let (none, vio) = (run("none"), run("vio"));
    let bytes = |r: &RunResult, vm: usize| r.vms[vm].bytes as f64;
    let gain = |vm: usize| bytes(&vio, vm) / bytes(&none, vm);
    assert!(gain(0) > 1.5, "streams have {} times as much", gain(0));
    let usage = vio.host.as_ref().unwrap().usage;
    assert!(usage.cost() < 0.02, "{usage:?}");
}
