//! The engine against a device and sources of the tests' own, simple enough
//! that every time can be worked out by hand.

use crate::common::{CAPACITY, Constant, Timed, ms};
use seekway_core::request::{Op, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView};
use seekway_core::units::{Instant, Nanos};
use seekway_policy::schedulers;
use seekway_sim::metrics::Burst;
use seekway_sim::{
    Host, HostCosts, Layout, Limits, OpResult, Placement, RunResult, Setup, SimError, run,
};
use seekway_stack::cache::Config as CacheConfig;
use seekway_stack::stack::limit::LimitsDraft;
use seekway_workload::Source;
use seekway_workload::generators::parse_vm;
use std::num::NonZeroU32;

fn simulate(source: Timed, depth: u32, limits: Limits) -> Result<RunResult, SimError> {
    simulate_with(Box::new(source), depth, limits, |_| ())
}

/// A run under noop, unless `change` of the setup says otherwise.
fn simulate_with(
    source: Box<dyn Source>,
    depth: u32,
    limits: Limits,
    change: impl FnOnce(&mut Setup),
) -> Result<RunResult, SimError> {
    let device = Box::new(Constant::new(depth));
    let layout = Layout::place(source.vms(), CAPACITY, &Placement::Spread).unwrap();
    let mut setup = Setup::new(schedulers::build("noop").unwrap(), device, layout);
    change(&mut setup);
    run(vec![source], setup, limits, &mut |_, _| true).map(|r| r.0)
}

/// A cache of `bytes` on a device of this depth, into which nothing is prefetched.
fn cache(bytes: u64, depth: u32) -> Option<Host> {
    let like = Box::new(Constant::new(depth));
    Host::new(CacheConfig::new(bytes), "none", HostCosts::default(), like).ok()
}

use Op::{Flush, Read, Write};

#[test]
fn times_can_be_worked_out_by_hand() {
    let plan = [(0, 0, Read, 0, 8), (1, 1, Write, 0, 16), (2, 0, Read, 8, 8), (40, 0, Flush, 0, 1)];
    let result = simulate(Timed::new(&plan), 1, Limits::default()).unwrap();
    // 0–5 a's read, 5–10 b's write, 10–15 a's second read; the flush takes no time.
    let [a, b] = &result.vms[..] else { panic!() };
    assert_eq!((a.requests, a.reads.requests, a.bytes, b.requests, b.bytes), (2, 2, 8192, 1, 8192));
    assert_eq!((a.device_time, b.device_time), (Nanos::from_millis(10), Nanos::from_millis(5)));
    assert_eq!((a.last, b.last, result.simulated), (ms(15), ms(10), Nanos::from_millis(40)));
    let close = |ns: u64, want_ms: f64| (ns as f64 / 1e6 / want_ms - 1.0).abs() < 0.01;
    assert!(close(result.response.max(), 13.0) && close(result.response.min(), 5.0));
    assert!(close(result.service.max(), 5.0));
    assert_eq!((result.barriers, result.finished), (1, true));
    assert_eq!(result.seeks_per_command.zero, 1, "only the first starts at the head");
}

#[test]
fn a_guest_with_a_bounded_queue_keeps_the_rest_and_lets_reads_go_first() {
    let plan =
        [(0, 0, Write, 0, 8), (0, 0, Write, 100, 8), (0, 0, Write, 200, 8), (1, 0, Read, 300, 8)];
    let later = [(30, 0, Read, 400, 8)];
    let source = Timed::write_back(&[&plan[..], &later].concat());
    let result = simulate_with(Box::new(source), 1, Limits::default(), |setup| {
        setup.guest_queue = NonZeroU32::new(1);
    });
    // 0–5 a write, 5–10 the read, 10–20 the other writes; 30–35 the second read.
    let result = result.unwrap();
    let close = |ns: u64, want_ms: f64| (ns as f64 / 1e6 / want_ms - 1.0).abs() < 0.01;
    assert!(close(result.waited_for(0).max(), 9.0));
    assert_eq!((result.vms[0].reads.worst_ns, result.worst_ns()), (9_000_000, 20_000_000));
    let queues = result.guest_queues.unwrap();
    let (sync, later) = (&queues.writes[0].sync, &queues.writes[0].later);
    assert_eq!((sync.requests, later.requests, later.backlog_bytes), (0, 3, 3 * 4096));
    assert!(close(later.response.min(), 5.0) && close(later.response.max(), 20.0));
    assert_eq!(later.longest, Nanos::from_millis(20));
    let wait = Nanos::from_millis;
    let bursts = [
        Burst {
            from: ms(0),
            until: ms(20),
            requests: 4,
            bytes: 4 * 4096,
            longest: wait(20),
            waiter: Some((0, Read, wait(9))),
        },
        Burst {
            from: ms(30),
            until: ms(35),
            requests: 1,
            bytes: 4096,
            longest: wait(5),
            waiter: Some((0, Read, wait(5))),
        },
    ];
    assert_eq!(queues.bursts, bursts);
}

#[test]
fn reads_and_writes_are_told_apart() {
    let early = [(0, 1, Flush, 0, 1), (0, 0, Read, 0, 8), (1, 0, Write, 100, 16)];
    let late = [(2, 0, Read, 200, 8), (3, 1, Write, 0, 8)];
    let until = Limits { until: Some(ms(18)), ..Limits::default() };
    let result = simulate(Timed::new(&[&early[..], &late[..]].concat()), 1, until).unwrap();
    // 0–5 a's read, 5–10 its write, 10–15 its second read; b's write would end at 20.
    let [a, b] = &result.vms[..] else { panic!() };
    let counts = |op: &OpResult| (op.requests, op.bytes, op.unfinished);
    assert_eq!((counts(&a.reads), counts(&a.writes)), ((2, 8192, 0), (1, 8192, 0)));
    assert_eq!((counts(&b.writes), b.writes.worst_ns), ((0, 0, 1), 15_000_000));
    assert!(b.reads.is_empty() && !b.writes.is_empty());
    let close = |ns: u64, want_ms: f64| (ns as f64 / 1e6 / want_ms - 1.0).abs() < 0.01;
    for (reads, writes) in [(&a.reads, &a.writes), (&result.reads, &result.writes)] {
        assert!(close(reads.response.min(), 5.0) && close(reads.response.max(), 13.0));
        assert!(close(writes.response.max(), 9.0));
    }
    assert_eq!((a.reads.worst_ns, a.writes.worst_ns), (13_000_000, 9_000_000));
    assert_eq!((counts(&result.writes), result.writes.worst_ns), ((1, 8192, 1), 15_000_000));
    assert_eq!((a.requests, a.bytes, a.response.len(), result.response.len()), (3, 16_384, 3, 3));
    assert_eq!((a.reads.iops(a.span), a.iops()), (2.0 / 0.015, 3.0 / 0.015));
    assert_eq!(a.writes.mib_s(a.span), 8192.0 / f64::from(1 << 20) / 0.015);
}

#[test]
fn coalesced_requests_count_each() {
    let plan = [(0, 0, Read, 0, 8), (1, 0, Read, 100, 8), (1, 0, Read, 108, 8)];
    let result = simulate(Timed::new(&plan), 1, Limits::default()).unwrap();
    assert_eq!((result.stats.commands, result.stats.requests, result.requests()), (2, 3, 3));
    assert_eq!(result.simulated, Nanos::from_millis(10));
    assert_eq!(result.seeks_per_command.total(), 2);
    assert_eq!((result.seeks_per_request.total(), result.seeks_per_request.zero), (3, 2));
    assert_eq!(result.service.len(), 2);
}

#[test]
fn depth_is_the_devices_own() {
    let plan: Vec<_> = (0..6).map(|n| (0, 0, Read, n * 100, 8)).collect();
    let result = simulate(Timed::new(&plan), 3, Limits::default()).unwrap();
    assert_eq!(result.simulated, Nanos::from_millis(10));
}

#[test]
fn limits_stop_a_run() {
    let plan: Vec<_> = (0..100).map(|n| (n, 0, Read, n * 100, 8)).collect();
    let until = Limits { until: Some(ms(52)), ..Limits::default() };
    let result = simulate(Timed::new(&plan), 1, until).unwrap();
    assert_eq!((result.requests(), result.finished), (10, false));
    assert_eq!(result.simulated, Nanos::from_millis(52));
    let requests = Limits { requests: Some(7), ..Limits::default() };
    assert_eq!(simulate(Timed::new(&plan), 1, requests).unwrap().requests(), 7);
}

/// A prefilled VM's missing blocks are in the host's cache, and no journal says so.
#[test]
fn a_journal_beside_a_warm_cache_is_an_error() {
    let text =
        "image=64MiB,ram=128MiB,warm=true,app=fio:rw=randread,bs=4KiB,size=48MiB,io_size=40KiB";
    let simulate = |journal: Option<String>| {
        let source = parse_vm(text).unwrap().source(1, 0).unwrap();
        simulate_with(source, 1, Limits::default(), |setup| {
            (setup.journal, setup.host) = (journal, cache(1 << 20, 1));
        })
    };
    assert!(simulate(None).unwrap().finished);
    let refused = simulate(Some("noop".into())).unwrap_err();
    assert!(matches!(refused, SimError::WarmJournal), "{refused}");
}

#[test]
fn bad_sources_are_errors_not_hangs() {
    let outside = simulate(Timed::new(&[(0, 1, Read, 9_999, 8)]), 1, Limits::default());
    assert!(outside.unwrap_err().to_string().starts_with("VM b: request 9999+8 lies past"));
    let mut source = Timed::new(&[(0, 0, Read, 0, 8)]);
    source.forever = true;
    let endless = simulate(source, 1, Limits::default()).unwrap_err();
    assert!(matches!(endless, SimError::RunAway { .. }), "{endless}");
}

/// A guest's response begins when it submits its request: a wait at its limit counts, with a host
/// cache and without.
#[test]
fn a_wait_at_a_limit_is_part_of_the_response() {
    // Two at once, and from then on one in 100 ms. The cache is of one block, and never hits.
    let plan = [Read, Write, Read, Write];
    let plan: Vec<_> = (0..).zip(plan).map(|(n, op)| (0, 0, op, n * 800, 8)).collect();
    for cached in [false, true] {
        let mut limit = LimitsDraft::default();
        assert!(limit.set("iops", "10").unwrap());
        let source = Box::new(Timed::new(&plan));
        let result = simulate_with(source, 8, Limits::default(), |setup| {
            setup.limits = vec![limit.finish().unwrap()];
            setup.host = if cached { cache(4096, 8) } else { None };
        });
        let result = result.unwrap();
        assert_eq!(result.host.is_some(), cached);
        let response = &result.vms[0].response;
        for (n, want_ms) in [(1.0, 5.0), (2.0, 5.0), (3.0, 105.0), (4.0, 205.0)] {
            let seen_ms = response.value_at_quantile(n / 4.0) as f64 / 1e6;
            assert!((seen_ms / want_ms - 1.0).abs() < 0.02, "{seen_ms} ms, cache: {cached}");
        }
        assert_eq!((result.vms[0].reads.requests, result.requests(), result.barriers), (2, 4, 0));
        assert_eq!(result.service.len(), 4);
        assert!(result.service.max() < 6_000_000, "the device had it for 5 ms");
    }
}

/// Serves the newest request first, so that the oldest starves.
struct Newest(Vec<Request>);

impl seekway_core::scheduler::Scheduler for Newest {
    fn detach(&mut self, _: Instant, vm: VmId) -> Vec<Request> {
        self.0.extract_if(.., |r| r.vm == vm).collect()
    }
    fn arrived(&mut self, _: Instant, request: Request) {
        self.0.push(request);
    }
    fn withdraw(&mut self, _: Instant, id: RequestId) {
        self.0.retain(|r| r.id != id);
    }
    fn decide(&mut self, _: Instant, _: &DeviceView<'_>) -> Decision {
        self.0.pop().map_or(Decision::Idle, |r| Decision::Dispatch(r.id))
    }
}

#[test]
fn a_starved_vm_does_not_look_well_served() {
    // b gets one request served and then waits behind a's flood until the end.
    let mut plan = vec![(0, 1, Read, 0, 8)];
    plan.extend((0..200).map(|n| (6 + n * 4, 0, Read, n * 40, 8)));
    plan.insert(2, (7, 1, Read, 500, 8));
    let until = Limits { until: Some(ms(500)), ..Limits::default() };
    let newest = |setup: &mut Setup| setup.scheduler = Box::new(Newest(Vec::new()));
    let result = simulate_with(Box::new(Timed::new(&plan)), 1, until, newest).unwrap();
    let b = &result.vms[1];
    assert_eq!((b.requests, b.unfinished), (1, 1));
    assert_eq!(b.span, Nanos::from_millis(500), "rates are over the whole run");
    assert_eq!(b.oldest, Nanos::from_millis(493));
    assert_eq!((b.worst_ns(), result.worst_ns()), (493_000_000, 493_000_000));
}
