//! Cost of a sign, of a window and of asking to a policy of a guest with 64 vCPUs and 64
//! I/O-bound tasks, whose vCPUs run 11 ms of 22.
//!
//! `cargo bench -p seekway-vcpu --bench vcpu`; a word after `--` selects by name.

#![allow(missing_docs)] // criterion_group! makes a public function

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::{self as vcpu, Outcome, Sign, TaskId, TaskLoad, VcpuId, VcpuPolicy, VcpuSet};
use std::hint::black_box;

const VCPUS: u16 = 64;
const TASKS: u64 = 64;
const SPECS: &[&str] = &["vanilla", "vsched", "vmigrater", "vmigrater:literal=true"];

struct Guest {
    policy: Box<dyn VcpuPolicy>,
    now: Instant,
    turn: u16,
    away: bool,
    loads: Vec<TaskLoad>,
}

/// Given back or taken away at that time?
fn sign(vcpu: u16, us: u64) -> Option<Sign> {
    match (us + 22_000 - u64::from(vcpu) * 343 % 22_000) % 22_000 {
        0 => Some(Sign::Resumed),
        11_000 => Some(Sign::Preempted),
        _ => None,
    }
}

impl Guest {
    fn new(spec: &str) -> Guest {
        let mut policy = vcpu::build(spec).expect("a registered name");
        policy.attach(Instant::ZERO, &VcpuSet::first(usize::from(VCPUS)));
        let load = |n: u64| TaskLoad {
            task: TaskId(n),
            vcpu: VcpuId::new(n as u16 % VCPUS),
            allowed: VcpuSet::first(usize::from(VCPUS)),
            waited: Nanos::from_micros(4_000),
            ran: Nanos::from_micros(500),
            ios: 40,
            io_time: Nanos::from_micros(4_000),
            last: None,
        };
        let mut guest = Guest {
            policy,
            now: Instant::ZERO,
            turn: 0,
            away: false,
            loads: (0..TASKS).map(load).collect(),
        };
        for us in 0..100_000 {
            guest.now = Instant::ZERO + Nanos::from_micros(us);
            for vcpu in 0..VCPUS {
                if let Some(sign) = sign(vcpu, us) {
                    guest.policy.heard(guest.now, VcpuId::new(vcpu), sign);
                }
            }
            if us % 5_000 == 0 {
                guest.window();
            }
            guest.ask();
        }
        guest
    }

    fn window(&mut self) {
        self.policy.window(self.now, &self.loads);
    }

    fn ask(&mut self) {
        while let Some(action) = self.policy.next(self.now) {
            self.policy.moved(self.now, action.task(), Outcome::Done);
        }
    }

    /// A beat that tells nothing new, and what an engine asks after it.
    fn beat(&mut self) {
        self.turn = (self.turn + 1) % VCPUS;
        self.now = self.now + Nanos::new(100);
        let vcpu = VcpuId::new(self.turn);
        self.policy.heard(self.now, vcpu, Sign::Beat { due: Some(self.now) });
        black_box((self.policy.next(self.now), self.policy.next_wake(), self.policy.beat_at(vcpu)));
    }

    /// An edge, after which all is decided anew.
    fn edge(&mut self) {
        self.turn = (self.turn + 1) % VCPUS;
        self.now = self.now + Nanos::from_micros(170);
        // All are taken away one after the other, then all given back: 11 ms each.
        self.away ^= self.turn == 0;
        let sign = if self.away { Sign::Preempted } else { Sign::Resumed };
        self.policy.heard(self.now, VcpuId::new(self.turn), sign);
        self.ask();
    }

    /// With an edge before it, or sharing would have ended before it is measured.
    fn window_and_ask(&mut self) {
        self.turn = (self.turn + 1) % VCPUS;
        self.away ^= self.turn == 0;
        let sign = if self.away { Sign::Preempted } else { Sign::Resumed };
        self.now = self.now + Nanos::from_micros(170);
        self.policy.heard(self.now, VcpuId::new(self.turn), sign);
        self.window();
        self.ask();
    }
}

fn bench(c: &mut Criterion) {
    for (name, step) in [
        ("beat", Guest::beat as fn(&mut Guest)),
        ("edge", Guest::edge),
        ("window", Guest::window_and_ask),
    ] {
        let mut group = c.benchmark_group(name);
        for spec in SPECS {
            let mut guest = Guest::new(spec);
            group
                .bench_function(BenchmarkId::from_parameter(spec), |b| b.iter(|| step(&mut guest)));
        }
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
