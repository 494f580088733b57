//! What every policy of the registry owes its caller, on random sequences of
//! events: each request is served once, holds are bounded and end, detach
//! hands back everything in order, equal input gives equal decisions.
//!
//! The sequences are seeded. `SEEKWAY_SEED=n cargo test --test conformance`
//! tries others; a failure prints the seed and the shrunken sequence.

mod common;
#[path = "common/seeded.rs"]
mod seeded;

use common::Engine;
use proptest::prelude::*;
use seekway_policy::dispatcher::Arrival;
use seekway_policy::request::{Extent, Op, ProcessTag, Request, VmId};
use seekway_policy::scheduler::{DeviceProfile, Group, Reserve, VmSpec};
use seekway_policy::schedulers;
use seekway_policy::units::{Lba, Nanos, Sectors};
use std::num::NonZeroU32;

const VMS: u16 = 8;

#[derive(Clone, Debug)]
enum Step {
    Arrive {
        vm: u16,
        tag: u16,
        write: bool,
        sync: bool,
        place: Place,
        len: u64,
    },
    /// One of the commands in flight completes.
    Complete(usize),
    Wait(u64),
    /// One of the queued requests is taken back.
    Withdraw(usize),
    Detach {
        vm: u16,
        refeed: bool,
    },
    Attach {
        vm: u16,
        weight: u32,
    },
}

#[derive(Clone, Debug)]
enum Place {
    /// After the VM's last request.
    Next,
    At(u64),
}

#[derive(Clone, Debug)]
struct Case {
    depth: usize,
    vms: u16,
    rotational: bool,
    steps: Vec<Step>,
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        3 => Just(Place::Next),
        3 => (0u64..16).prop_map(|n| Place::At(n * 4)),
        3 => (0u64..1 << 31).prop_map(Place::At),
        1 => (0u64..4096).prop_map(|n| Place::At(u64::MAX - 4096 + n)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let tag = prop_oneof![4 => Just(0u16), 4 => 8u16..12, 1 => any::<u16>()];
    let span = prop_oneof![
        4 => 0u64..1_000_000,
        3 => 0u64..20_000_000,
        1 => 0u64..2_000_000_000,
    ];
    let arrive = (0..VMS, tag, any::<bool>(), any::<bool>(), place(), 1u64..64);
    prop_oneof![
        12 => arrive.prop_map(|(vm, tag, write, sync, place, len)|
            Step::Arrive { vm, tag, write, sync, place, len }),
        10 => any::<usize>().prop_map(Step::Complete),
        6 => span.prop_map(Step::Wait),
        2 => any::<usize>().prop_map(Step::Withdraw),
        1 => (0..VMS, any::<bool>()).prop_map(|(vm, refeed)| Step::Detach { vm, refeed }),
        1 => (0..VMS, 1u32..10).prop_map(|(vm, weight)| Step::Attach { vm, weight }),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    let steps = prop::collection::vec(step(), 1..200);
    (prop_oneof![Just(1usize), Just(4)], 1..=VMS, any::<bool>(), steps)
        .prop_map(|(depth, vms, rotational, steps)| Case { depth, vms, rotational, steps })
}

fn vm_spec(vm: u16, weight: u32) -> VmSpec {
    let region = Extent::new(Lba::new(u64::from(vm) << 28), Sectors::new(1 << 28)).unwrap();
    let number = u16::from(weight.is_multiple_of(2));
    VmSpec {
        weight: NonZeroU32::new(weight).unwrap(),
        group: (vm % 3 == 1).then_some(Group { number, weight: NonZeroU32::MIN }),
        reserve: Reserve { iops: u64::from(weight % 3) * 100, bytes_per_s: 0 },
        latency: (vm % 4 == 1).then_some(Nanos::from_millis(5)),
        region: vec![region],
    }
}

/// Play a case; the log of decisions.
fn play(spec: &str, case: &Case) -> String {
    let profile = DeviceProfile::unknown(Sectors::new(1 << 31), case.rotational);
    let mut engine = Engine::new(schedulers::build(spec).unwrap(), profile, case.depth);
    let mut attached = [false; VMS as usize];
    let mut ends = [0u64; VMS as usize];
    for vm in 0..case.vms {
        engine.attach(VmId::new(vm), vm_spec(vm, 1));
        attached[usize::from(vm)] = true;
    }
    for step in &case.steps {
        match *step {
            Step::Arrive { vm, tag, write, sync, ref place, len } => {
                let vm = vm % case.vms;
                let end = &mut ends[usize::from(vm)];
                let start = match place {
                    Place::Next => *end,
                    Place::At(lba) => *lba,
                };
                let extent = Extent::new(Lba::new(start), Sectors::new(len));
                let Some(extent) = extent.filter(|_| attached[usize::from(vm)]) else { continue };
                *end = extent.end().get();
                let op = if write { Op::Write } else { Op::Read };
                let (vm, tag) = (VmId::new(vm), ProcessTag::new(tag));
                engine.arrive(Arrival { vm, tag, op, sync: sync || !write, extent });
            }
            Step::Complete(index) => {
                let n = engine.flying.len();
                if n > 0 {
                    engine.complete(index % n);
                }
            }
            Step::Wait(ns) => engine.wait(Nanos::new(ns)),
            Step::Withdraw(nth) => engine.withdraw(nth),
            Step::Detach { vm, refeed } => {
                if std::mem::take(&mut attached[usize::from(vm)]) {
                    let returned = engine.detach(VmId::new(vm));
                    if refeed {
                        engine.attach(VmId::new(vm), vm_spec(vm, 2));
                        attached[usize::from(vm)] = true;
                        for Request { vm, tag, op, sync, extent, .. } in returned {
                            engine.arrive(Arrival { vm, tag, op, sync, extent });
                        }
                    }
                }
            }
            Step::Attach { vm, weight } => {
                if vm < case.vms && !attached[usize::from(vm)] {
                    engine.attach(VmId::new(vm), vm_spec(vm, weight));
                    attached[usize::from(vm)] = true;
                }
            }
        }
        engine.pump();
    }
    engine.drain(Nanos::from_micros(500));
    engine.metrics();
    assert_eq!(engine.dispatched, engine.completed, "each request is served once");
    for vm in (0..VMS).filter(|&vm| attached[usize::from(vm)]) {
        assert!(engine.detach(VmId::new(vm)).is_empty());
    }
    engine.log
}

#[test]
fn every_policy_keeps_the_contract() {
    for spec in common::specs() {
        seeded::check(spec, 256, &case(), |case| {
            let first = play(spec, &case);
            prop_assert_eq!(first, play(spec, &case), "equal input, other decisions");
            Ok(())
        });
    }
}

/// The longest that a distant read and a distant background write may wait
/// while a VM keeps 32 sequential reads queued near the head and each command
/// takes a millisecond. Policies that promise nothing are not listed.
const BOUNDS_MS: &[(&str, u64, u64)] = &[
    ("noop", 40, 40),
    // Expiry, and the batches in between; writes pass after two batches of reads.
    ("deadline", 540, 60),
    // A sweep over the flooder's region: 4,096 requests.
    ("cscan", 4_100, 4_100),
    ("look", 4_100, 4_100),
    // A look at the FIFO each 125 ms; a batch of reads lasts 500 ms.
    ("anticipatory", 300, 700),
    // The read's queue thinks for two seconds, so it stands in a tree of its own, and waits
    // for the flooder's to end: that was given the target latency while alone, 300 ms, and
    // finishes a slice of 100 ms. The write's key stands back by 180 - 40 ms for each of the
    // two others; once it is the lowest it waits as long as the read. And a few commands.
    ("cfq", 410, 690),
    // A turn of 200 ms of the flooder, and one of the third VM.
    ("pregather", 402, 402),
    // The read's delay and a sweep over the flooder's region, of which only the next few reads
    // are predicted hits. The write's delay; three are queued by then, all at one place and so
    // in no order of age, and before each of them 64 hits and a read may go.
    ("cats", 4_300, 5_300),
    // The rest of a period, which is over after as many commands as were queued, and the next.
    ("vmcd", 72, 72),
    // The flooder's turn of 150 ms; the third VM's, one command and a hold.
    ("vmcd-time", 156, 156),
    // The reader is interactive: it preempts. The flooder, raised at first, has turns of 1,024
    // sectors, 128 commands; the write goes after one of them, and a wait of 20 ms.
    ("bfq", 2, 160),
    // The order of arrival before the two tags; then a write waits for a batch of 16 reads.
    ("kyber", 36, 52),
    // They have had less than the flooder.
    ("mclock", 4, 4),
    // The tags are the flooder's, and the queue behind them is in order of arrival.
    ("iocost", 36, 36),
];

#[test]
fn nobody_starves_beyond_what_the_policy_promises() {
    for &(spec, read_ms, write_ms) in BOUNDS_MS {
        let profile = DeviceProfile::unknown(Sectors::new(1 << 31), true);
        let mut engine = Engine::new(schedulers::build(spec).unwrap(), profile, 1);
        (0..3).for_each(|vm| engine.attach(VmId::new(vm), VmSpec::default()));
        let arrive = |engine: &mut Engine, vm, op, lba| {
            let extent = Extent::new(Lba::new(lba), Sectors::new(8)).unwrap();
            let sync = op == Op::Read;
            engine.arrive(Arrival { vm: VmId::new(vm), tag: None, op, sync, extent })
        };
        // The flooder reads a region of 4,096 requests round and round, a gap between them.
        let mut flood = (0u64..).map(|n| 1_000_000 + n % 4_096 * 16);
        for lba in flood.by_ref().take(32) {
            arrive(&mut engine, 0, Op::Read, lba);
        }
        let mut waited_ms = [0u64; 3];
        for round in 0..20_000 {
            if round % 2_000 == 100 {
                arrive(&mut engine, 1, Op::Read, 900_000_000);
                arrive(&mut engine, 2, Op::Write, 100);
            }
            engine.pump();
            while engine.flying.is_empty() {
                let until = engine.hold.expect("work is queued");
                engine.wait(until.since(engine.now));
            }
            engine.wait(Nanos::from_millis(1));
            for request in engine.complete(0).requests {
                let vm = request.vm.index();
                waited_ms[vm] =
                    waited_ms[vm].max(engine.now.since(request.arrived).get() / 1_000_000);
                if vm == 0 {
                    arrive(&mut engine, 0, Op::Read, flood.next().unwrap());
                }
            }
        }
        let [_, read, write] = waited_ms;
        assert!(read > 0 && read <= read_ms, "{spec}: a read waited {read} of {read_ms} ms");
        assert!(write > 0 && write <= write_ms, "{spec}: a write waited {write} of {write_ms} ms");
    }
}
