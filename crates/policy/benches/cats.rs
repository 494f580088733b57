//! Cost of a decision of cats: with a new plan, by the number of reads pending, and while a plan
//! stands; and of a read in all, while another arrives for each that completes.
//!
//! Targets: with a new plan 40 µs at 128 pending and 160 µs at 256; 1 µs for each decision while a
//! plan stands, and for each read with 400 pending.

#![allow(missing_docs)] // criterion_group! makes a public function

mod common;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use seekway_core::request::{Completion, Extent, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, Scheduler};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_policy::schedulers;

const CAPACITY: u64 = 1 << 31;

/// cats with `pending` random reads, as many above the head as below it, and
/// `decided` of them already sent.
fn pending(pending: u32, decided: u32) -> (Box<dyn Scheduler>, Lba) {
    let mut policy = schedulers::build("cats:busdriver=0").expect("a registered name");
    let (mut random, mut places) = (1u64, Vec::new());
    for slot in 0..pending {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let lba =
            Lba::new((random >> 33) % (CAPACITY / 16) * 8 + u64::from(slot % 2) * CAPACITY / 2);
        places.push(lba);
        let extent = Extent::new(lba, Sectors::new(8)).expect("in range");
        let (id, vm) = (RequestId::new(slot), VmId::new(0));
        let arrived = Instant::ZERO;
        let read = Request { id, vm, tag: None, op: Op::Read, sync: true, extent, arrived };
        policy.arrived(Instant::ZERO, read);
    }
    let mut head = Lba::new(CAPACITY / 2);
    for _ in 0..decided {
        let id = decide(&mut policy, head);
        head = places[id.slot()] + Sectors::new(8);
    }
    (policy, head)
}

fn decide(policy: &mut Box<dyn Scheduler>, head: Lba) -> RequestId {
    decide_at(policy, Instant::ZERO, head)
}

fn decide_at(policy: &mut Box<dyn Scheduler>, now: Instant, head: Lba) -> RequestId {
    let profile = DeviceProfile::unknown(Sectors::new(CAPACITY), false);
    let view =
        DeviceView { in_flight: 1, commands: 1, depth: 2, ..DeviceView::idle(head, &profile) };
    match policy.decide(now, &view) {
        Decision::Dispatch(id) => id,
        other => panic!("expected a dispatch: {other:?}"),
    }
}

/// Random reads, one for each that completes: each takes `service`.
struct Closed {
    policy: Box<dyn Scheduler>,
    reads: Vec<Request>,
    random: u64,
    now: Instant,
    head: Lba,
    service: Nanos,
}

impl Closed {
    fn new(pending: u32, service: Nanos) -> Closed {
        let policy = schedulers::build("cats").expect("a registered name");
        let (now, head, reads) = (Instant::ZERO, Lba::ZERO, Vec::new());
        let mut this = Closed { policy, reads, random: 1, now, head, service };
        for slot in 0..pending {
            let read = this.read(RequestId::new(slot));
            this.reads.push(read);
            this.policy.arrived(this.now, read);
        }
        this
    }

    fn read(&mut self, id: RequestId) -> Request {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let lba = Lba::new((self.random >> 33) % (CAPACITY / 8) * 8);
        let extent = Extent::new(lba, Sectors::new(8)).expect("in range");
        let (vm, arrived) = (VmId::new(0), self.now);
        Request { id, vm, tag: None, op: Op::Read, sync: true, extent, arrived }
    }

    fn step(&mut self) {
        let id = decide_at(&mut self.policy, self.now, self.head);
        let (read, dispatched) = (self.reads[id.slot()], self.now);
        self.head = read.extent.end();
        self.now = self.now + self.service;
        let completion = Completion::alone(read, dispatched, self.service);
        self.policy.completed(self.now, &completion);
        let read = self.read(id);
        self.reads[id.slot()] = read;
        self.policy.arrived(self.now, read);
    }
}

/// Decisions in a row while the plan stands.
const STANDS: u64 = 14;

fn cats(c: &mut Criterion) {
    let mut group = c.benchmark_group("cats_new_plan");
    for n in [16, 64, 128, 256, 10_000] {
        group.bench_function(BenchmarkId::from_parameter(n), |b| {
            let run = |(policy, head): &mut (Box<dyn Scheduler>, Lba)| decide(policy, *head);
            b.iter_batched_ref(|| pending(n, 0), run, BatchSize::LargeInput);
        });
    }
    group.finish();
    let mut group = c.benchmark_group("cats_plan_stands");
    group.throughput(Throughput::Elements(STANDS));
    // Not longer: there the tables that grow with the highest slot would decide.
    for n in [16, 64, 128, 256] {
        // Which reads go is known from a run ahead: the head follows them.
        let heads: Vec<Lba> = (1..=STANDS).map(|sent| pending(n, sent as u32).1).collect();
        group.bench_function(BenchmarkId::from_parameter(n), |b| {
            let run = |(policy, _): &mut (Box<dyn Scheduler>, Lba)| {
                heads.iter().map(|&head| decide(policy, head).slot()).sum::<usize>()
            };
            b.iter_batched_ref(|| pending(n, 1), run, BatchSize::LargeInput);
        });
    }
    group.finish();
    let mut group = c.benchmark_group("cats_closed");
    for (n, service_us) in [(64, 100), (400, 100), (400, 1_000)] {
        group.bench_function(BenchmarkId::new(n.to_string(), format!("{service_us}us")), |b| {
            let mut this = Closed::new(n, Nanos::from_micros(service_us));
            b.iter(|| this.step());
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = common::config();
    targets = cats
}
criterion_main!(benches);
