//! Cost of a request through the dispatcher: it arrives, is dispatched as a
//! command of its own and completes, with 64 requests of three VMs outstanding
//! at random places (4 KiB each) and 1, 32 or 64 commands on the device.
//!
//! `cargo bench -p seekway-stack --bench dispatcher`; a word after `--`
//! selects. For instruction counts, which do not depend on the machine's load:
//! `valgrind --tool=callgrind target/release/deps/dispatcher-… --test noop/32`.

#![allow(missing_docs)] // criterion_group! makes a public function

#[path = "../../policy/benches/common/mod.rs"]
mod common;

use criterion::{Criterion, criterion_group, criterion_main};
use seekway_core::request::{Completion, Extent, Op, RequestId, VmId};
use seekway_core::scheduler::{DeviceProfile, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_policy::schedulers;
use seekway_stack::dispatcher::{Arrival, Config, Dispatcher, Output};
use std::collections::VecDeque;

const SERVICE: Nanos = Nanos::from_micros(100);
const CAPACITY: u64 = 1 << 31;
const OUTSTANDING: usize = 64;
/// Requests in an iteration, so that `--test`, which makes one, measures enough.
const REQUESTS: usize = 1_000;

/// A closed loop around one dispatcher.
struct Loop {
    disk: Dispatcher,
    now: Instant,
    flying: VecDeque<RequestId>,
    done: Vec<Completion>,
    random: u64,
}

impl Loop {
    fn new(policy: &str, depth: u32) -> Loop {
        let profile = DeviceProfile::unknown(Sectors::new(CAPACITY), false);
        let config = Config { depth, ..Config::default() };
        let mut disk = Dispatcher::new(schedulers::build(policy).unwrap(), profile, config);
        for vm in 0..3 {
            disk.attach(Instant::ZERO, VmId::new(vm), VmSpec::default());
        }
        let (now, flying, done) = (Instant::ZERO, VecDeque::new(), Vec::new());
        let mut this = Loop { disk, now, flying, done, random: 1 };
        for _ in 0..OUTSTANDING {
            this.arrive();
        }
        this
    }

    fn arrive(&mut self) {
        let random = common::random(&mut self.random);
        let vm = VmId::new((random >> 48) as u16 % 3);
        let lba = Lba::new(random % (CAPACITY / 8) * 8);
        let extent = Extent::new(lba, Sectors::new(8)).expect("in range");
        let (tag, op, sync) = (None, Op::Read, true);
        self.disk.arrive(self.now, Arrival { vm, tag, op, sync, extent });
    }

    fn serve(&mut self) {
        loop {
            match self.disk.poll(self.now) {
                Output::Dispatch(command) => self.flying.push_back(command.id),
                Output::WakeAt(at) if self.flying.is_empty() => self.now = at,
                _ => break,
            }
        }
        self.now = self.now + SERVICE;
        let command = self.flying.pop_front().expect("something is in flight");
        self.disk.complete(self.now, command, true, &mut self.done);
        for _ in self.done.drain(..).collect::<Vec<_>>() {
            self.arrive();
        }
    }
}

fn request(c: &mut Criterion) {
    for policy in ["noop", "deadline", "cfq", "vmcd-time"] {
        for depth in [1, 32, 64] {
            c.bench_function(&format!("{policy}/{depth}"), |b| {
                let mut this = Loop::new(policy, depth);
                b.iter(|| (0..REQUESTS).for_each(|_| this.serve()));
            });
        }
    }
}

criterion_group! {
    name = benches;
    config = common::config();
    targets = request
}
criterion_main!(benches);
