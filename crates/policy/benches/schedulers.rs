//! Cost of a scheduling step, for every policy of the registry: a request
//! completes, another arrives, and the policy decides, with 64 requests of
//! three VMs queued at random places (4 KiB each); the same with 100,000
//! requests of three VMs, with 64 of 64 VMs, and with 1,000 of 1,000; on a disk
//! with a head, and (`flash`) on a device without one.
//!
//! `cargo bench -p seekway-policy --bench schedulers`; a word after `--`
//! selects policies by name.

#![allow(missing_docs)] // criterion_group! makes a public function

mod common;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use seekway_core::request::{Completion, Extent, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_policy::schedulers::{self, REGISTRY};

const SERVICE: Nanos = Nanos::from_micros(100);
const CAPACITY: u64 = 1 << 31;

/// A closed loop around one policy.
struct Loop {
    policy: Box<dyn Scheduler>,
    profile: DeviceProfile,
    now: Instant,
    head: Lba,
    requests: Vec<Request>,
    random: u64,
    vms: u16,
}

impl Loop {
    fn new(name: &str, queued: u32, vms: u16, rotates: bool) -> Loop {
        let mut policy = schedulers::build(name).expect("a registered name");
        let profile = DeviceProfile::unknown(Sectors::new(CAPACITY), rotates);
        policy.takes_over(&profile);
        for vm in 0..vms {
            policy.attach(Instant::ZERO, VmId::new(vm), VmSpec::default());
        }
        let (requests, head) = (Vec::new(), Lba::ZERO);
        let now = Instant::ZERO;
        let mut this = Loop { policy, profile, now, head, requests, random: 1, vms };
        for slot in 0..queued {
            let request = this.request(RequestId::new(slot));
            this.requests.push(request);
            this.policy.arrived(this.now, request);
        }
        this
    }

    /// A new request in that slot. A third are writes that nobody waits for.
    fn request(&mut self, id: RequestId) -> Request {
        let random = common::random(&mut self.random);
        let vm = (random >> 48) as u16 % self.vms;
        let lba = Lba::new(random % (CAPACITY / 8) * 8);
        let extent = Extent::new(lba, Sectors::new(8)).expect("in range");
        let op = if vm % 3 == 2 { Op::Write } else { Op::Read };
        let (vm, sync) = (VmId::new(vm), op == Op::Read);
        Request { id, vm, tag: None, op, sync, extent, arrived: self.now }
    }

    /// Decide, complete what is dispatched, and let another arrive.
    fn step(&mut self) {
        let view = DeviceView::idle(self.head, &self.profile);
        match self.policy.decide(self.now, &view) {
            Decision::Dispatch(id) => {
                let (request, dispatched) = (self.requests[id.slot()], self.now);
                self.head = request.extent.end();
                self.now = self.now + SERVICE;
                let completion = Completion::alone(request, dispatched, SERVICE);
                self.policy.completed(self.now, &completion);
                let request = self.request(id);
                self.requests[id.slot()] = request;
                self.policy.arrived(self.now, request);
            }
            Decision::Hold { until, .. } => self.now = until,
            other => unreachable!("requests are queued: {other:?}"),
        }
    }
}

fn step(c: &mut Criterion) {
    for (group, queued, vms, rotates) in [
        ("step", 64, 3, true),
        ("step_deep", 100_000, 3, true),
        ("step_64_vms", 64, 64, true),
        ("step_1000_vms", 1_000, 1_000, true),
        ("flash", 64, 3, false),
        ("flash_1000_vms", 1_000, 1_000, false),
    ] {
        let mut group = c.benchmark_group(group);
        for entry in REGISTRY.iter() {
            group.bench_function(BenchmarkId::new(entry.name, queued), |b| {
                let mut this = Loop::new(entry.name, queued, vms, rotates);
                b.iter(|| this.step());
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = common::config();
    targets = step
}
criterion_main!(benches);
