//! Cost of a request in vNavigator and in pregather, by the number of zones.
//!
//! Targets: observe 0.2–0.36 µs; a whole step of the scheduler (arrive, decide, complete; three
//! VMs, 64 requests queued) at most 500 ns, at 10^6 zones within 1.5 times of 10^3; no single
//! request above 20 µs.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types)] // a bench measures time and prints
#![allow(missing_docs)] // criterion's macros

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use seekway_core::request::{Completion, Extent, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_policy::schedulers;
use seekway_policy::vnavigator::{ModelParams, VNavigator};
use std::hint::black_box;

const ZONE: u64 = 2000;
const VMS: u64 = 3;
const QUEUED: usize = 64;

/// Every zone below `zones` in an order without pattern, again and again
/// (an additive walk by an odd step coprime to the count).
struct Zones {
    zones: u64,
    step: u64,
    at: u64,
}

impl Zones {
    fn new(zones: u64) -> Self {
        let gcd = |mut a: u64, mut b: u64| {
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        let near = (zones as f64 * 0.618_034) as u64;
        let step = (near..).find(|&s| gcd(s, zones) == 1).unwrap_or(1);
        Zones { zones, step, at: 0 }
    }
    fn next(&mut self) -> u64 {
        self.at = (self.at + self.step) % self.zones;
        self.at
    }
}

/// A model that goes round its zones in eight windows: none fades away.
struct Walk {
    model: VNavigator,
    zones: Zones,
    clock: u64,
    tick: u64,
}

impl Walk {
    fn new(zones: u64) -> Self {
        let params = ModelParams { zones: 1 << 20, ..ModelParams::default() };
        let tick = (8 * params.window.get()).div_ceil(zones);
        Walk { model: VNavigator::new(params), zones: Zones::new(zones), clock: 0, tick }
    }
    fn step(&mut self) {
        self.clock += self.tick;
        let extent = Extent::new(Lba::new(self.zones.next() * ZONE), Sectors::new(128));
        let (clock, now) = (Nanos::new(self.clock), Instant::from_nanos(self.clock));
        self.model.observe(clock, now, extent.expect("not empty"));
    }
}

/// The scheduler with 64 requests queued: each step serves one and replaces it.
struct Disk {
    scheduler: Box<dyn Scheduler>,
    profile: DeviceProfile,
    queued: Vec<Option<Request>>,
    zones: Zones,
    now: u64,
    tick: u64,
    served: u64,
}

impl Disk {
    fn new(zones: u64) -> Self {
        let mut scheduler = schedulers::build("pregather:zones=1048576").expect("registered");
        let seek = vec![
            (Sectors::new(1), Nanos::from_micros(800)),
            (Sectors::new(2_000_000_000), Nanos::from_millis(16)),
        ];
        let rotation = Some(Nanos::from_micros(8_333));
        let profile =
            DeviceProfile { capacity: Sectors::new(1 << 31), rotation, seek, stripe: None };
        for vm in 0..VMS {
            let len = Sectors::new(zones / VMS * ZONE);
            let region = Extent::new(Lba::new(vm * zones / VMS * ZONE), len).into_iter().collect();
            let spec = VmSpec { region, ..VmSpec::default() };
            scheduler.attach(Instant::ZERO, VmId::new(vm as u16), spec);
        }
        let tick = (8 * 20_000_000_u64).div_ceil(zones);
        let mut disk = Disk {
            scheduler,
            profile,
            queued: vec![None; QUEUED],
            zones: Zones::new(zones),
            now: 0,
            tick,
            served: 0,
        };
        (0..QUEUED).for_each(|slot| disk.arrive(slot));
        disk
    }
    fn arrive(&mut self, slot: usize) {
        let zone = self.zones.next();
        let vm = VmId::new((zone * VMS / self.zones.zones) as u16);
        let extent = Extent::new(Lba::new(zone * ZONE), Sectors::new(128)).expect("not empty");
        let id = RequestId::new(slot as u32);
        let arrived = Instant::from_nanos(self.now);
        let request = Request { id, vm, tag: None, op: Op::Read, sync: true, extent, arrived };
        self.queued[slot] = Some(request);
        self.scheduler.arrived(arrived, request);
    }
    fn step(&mut self) {
        let head = Lba::ZERO;
        let view = DeviceView::idle(head, &self.profile);
        loop {
            self.now += self.tick;
            match self.scheduler.decide(Instant::from_nanos(self.now), &view) {
                Decision::Dispatch(id) => {
                    let request = self.queued[id.slot()].take().expect("queued");
                    let dispatched = Instant::from_nanos(self.now);
                    self.now += self.tick;
                    let service = Nanos::new(self.tick);
                    let completion = Completion::alone(request, dispatched, service);
                    self.scheduler.completed(Instant::from_nanos(self.now), &completion);
                    self.served += 1;
                    return self.arrive(id.slot());
                }
                Decision::Hold { until, .. } => self.now = until.as_nanos(),
                other => unreachable!("64 requests are queued: {other:?}"),
            }
        }
    }
}

fn observe(c: &mut Criterion) {
    let mut group = c.benchmark_group("observe");
    for zones in [1_000, 100_000, 1_000_000] {
        let mut walk = Walk::new(zones);
        (0..zones * 2).for_each(|_| walk.step());
        group.bench_function(BenchmarkId::from_parameter(zones), |b| {
            b.iter(|| black_box(&mut walk).step());
        });
    }
}

fn step(c: &mut Criterion) {
    let mut group = c.benchmark_group("pregather-step");
    for zones in [1_000, 100_000, 1_000_000] {
        let mut disk = Disk::new(zones);
        (0..zones * 2).for_each(|_| disk.step());
        group.bench_function(BenchmarkId::from_parameter(zones), |b| {
            b.iter(|| black_box(&mut disk).step());
        });
    }
}

/// The slowest single calls, the operating system's interruptions included:
/// read the higher quantiles as the bound, the maximum as an upper limit.
fn worst(_: &mut Criterion) {
    for (name, zones, jump) in [
        ("growing", 1_000_000, 0),
        ("steady", 1_000_000, 2_000_000),
        ("after a jump", 1_000_000, 1),
    ] {
        let mut walk = Walk::new(zones);
        (0..if jump == 0 { 0 } else { zones }).for_each(|_| walk.step());
        if jump == 1 {
            walk.clock += 5_000 * 20_000_000;
        }
        let mut times: Vec<u64> = (0..zones)
            .map(|_| {
                let start = std::time::Instant::now();
                walk.step();
                start.elapsed().as_nanos() as u64
            })
            .collect();
        times.sort_unstable();
        let at = |q: f64| times[((times.len() - 1) as f64 * q) as usize];
        println!(
            "observe, 10^6 zones, {name}: median {} ns, 99.9 % {} ns, 99.999 % {} ns, worst {} ns, {} bytes",
            at(0.5),
            at(0.999),
            at(0.999_99),
            at(1.0),
            walk.model.state_bytes()
        );
    }
}

criterion_group!(benches, worst, observe, step);
criterion_main!(benches);
