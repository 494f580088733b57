//! The contract of every policy with its caller, on random sequences of events: each
//! request is served once, holds are bounded and end, detach hands back
//! everything in order, equal input gives equal decisions.

use crate::engine::Engine;
use crate::{Policy, seeded};
use proptest::prelude::*;
use seekway_core::request::{Extent, Op, ProcessTag, Request, VmId};
use seekway_core::scheduler::{DeviceProfile, Group, Reserve, VmSpec};
use seekway_core::units::{Lba, Nanos, Sectors};
use seekway_stack::dispatcher::Arrival;
use std::num::NonZeroU32;

/// Tests the contract on 256 sequences. `SEEKWAY_SEED=n` in the environment tries others.
///
/// # Panics
/// With the rule that was broken, the seed, and the shrunken sequence.
pub fn keeps_contract(policy: &Policy) {
    seeded::check(&policy.to_string(), 256, &case(), |case| {
        let first = play(policy, &case);
        prop_assert_eq!(first, play(policy, &case), "equal input, other decisions");
        Ok(())
    });
}

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
fn play(policy: &Policy, case: &Case) -> String {
    let profile = DeviceProfile::unknown(Sectors::new(1 << 31), case.rotational);
    let mut engine = Engine::new(policy, profile, case.depth);
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
