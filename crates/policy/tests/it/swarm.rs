//! Random inputs against every policy through the real dispatcher, while
//! policies are switched, VMs come and go, weights change, guests tag their
//! requests and overlap them, and the hard limit forces requests past the
//! policy. Each request completes or is handed back exactly once, and the
//! journal replays. `PROPTEST_CASES=20000` looks longer.

use crate::conformance;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use seekway_core::params::{Kind, ParamSpec};
use seekway_core::request::{Extent, Op, ProcessTag, RequestId, VmId};
use seekway_core::scheduler::{DeviceProfile, Group, Reserve, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_policy::schedulers::{self, REGISTRY};
use seekway_stack::dispatcher::{Arrival, Config, Dispatcher, Output};
use std::collections::BTreeSet;
use std::num::NonZeroU32;

/// One event: what, which VM, and a number to derive the rest from.
type Step = (u8, u8, u32);

#[derive(Clone, Debug)]
struct Case {
    depth: u32,
    coalesce: u64,
    merge: bool,
    hard_us: u64,
    rotational: bool,
    /// The policy that begins, and the only one unless `switches`.
    policy: usize,
    switches: bool,
    steps: Vec<Step>,
}

fn case() -> impl Strategy<Value = Case> {
    let hard = prop::sample::select(vec![0, 1_000, 10_000, 400_000, 30_000_000]);
    let coalesce = prop::sample::select(vec![0, 24, 1_024]);
    let steps = prop::collection::vec(any::<Step>(), 0..400);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (1u32..5, coalesce, hard, flags, any::<usize>(), steps).prop_map(
        |(depth, coalesce, hard_us, (merge, rotational, switches), policy, steps)| Case {
            depth,
            coalesce,
            merge,
            hard_us,
            rotational,
            policy,
            switches,
            steps,
        },
    )
}

/// A dispatcher under test and what it owes.
struct Swarm {
    disk: Dispatcher,
    now: Instant,
    /// Arrived, and neither completed nor handed back.
    open: BTreeSet<RequestId>,
    flying: Vec<RequestId>,
    /// Where each VM's last request ended.
    ends: [u64; 3],
}

impl Swarm {
    fn new(case: &Case, policy: &str) -> Swarm {
        let config = Config {
            depth: case.depth,
            coalesce: Sectors::new(case.coalesce),
            merge: case.merge,
            hard_limit: Nanos::from_micros(case.hard_us),
            ..Config::default()
        };
        let profile = DeviceProfile::unknown(Sectors::new(1 << 20), case.rotational);
        let disk = Dispatcher::new(schedulers::build(policy).unwrap(), profile, config);
        let (now, open) = (Instant::ZERO, BTreeSet::new());
        Swarm { disk, now, open, flying: Vec::new(), ends: [0; 3] }
    }

    fn step(&mut self, (what, vm, value): Step, policies: &[&str]) -> Result<(), TestCaseError> {
        // Mostly short spans, one in sixteen up to 0.4 s.
        let short = value % 4_000;
        let us = if value & 0xf000 == 0 { short * 100 } else { short };
        self.now = self.now + Nanos::from_micros(u64::from(us));
        let (now, id) = (self.now, VmId::new(u16::from(vm % 3)));
        let spec = VmSpec {
            weight: NonZeroU32::new(value % 9 + 1).unwrap(),
            region: Vec::from_iter(extent(u64::from(vm % 3) * 1_000, 1_000).filter(|_| vm > 99)),
            group: (value & 16 != 0)
                .then_some(Group { number: value as u16 % 2, weight: NonZeroU32::MIN }),
            reserve: Reserve { iops: u64::from(value % 3) * 100, bytes_per_s: 0 },
            latency: (value & 32 != 0).then_some(Nanos::from_millis(2)),
        };
        match what % 32 {
            0..=2 if self.disk.can_attach(id) => self.disk.attach(now, id, spec),
            3 if self.disk.is_attached(id) => {
                for r in self.disk.detach(now, id) {
                    prop_assert!(self.open.remove(&r.id), "handed back twice");
                }
            }
            4 if !policies.is_empty() => {
                let name = policies[value as usize % policies.len()];
                self.disk.switch(now, schedulers::build(name).unwrap());
            }
            5 if self.disk.is_attached(id) => self.disk.respec(now, id, spec),
            6..=13 => self.complete(value as usize, value % 7 != 0)?,
            14..=15 => self.withdraw(value as usize),
            16..=19 if self.disk.is_attached(id) => self.arrive_background(id, value),
            20.. if self.disk.is_attached(id) => self.arrive(id, value),
            _ => {}
        }
        self.poll();
        Ok(())
    }

    fn arrive(&mut self, vm: VmId, value: u32) {
        use Op::*;
        let op = [Read, Read, Read, Read, Write, Write, Write, Flush, Discard, WriteZeroes];
        let op = op[value as usize / 5 % 97 % op.len()];
        let (n, len) = (u64::from(value), 1 + u64::from(value >> 8) % 40);
        let start = match value % 8 {
            0..=2 => self.ends[vm.index()],
            3..=5 => n / 8 % 200,
            6 => n / 8 % (1 << 20),
            _ => u64::MAX - 64 + n % 24,
        };
        let Some(extent) = extent(start, len) else { return };
        self.ends[vm.index()] = extent.end().get();
        let tag = ProcessTag::new([0, 0, 8, 9, value as u16][value as usize / 3 % 5]);
        let sync = value & 0x400 == 0;
        self.open.insert(self.disk.arrive(self.now, Arrival { vm, tag, op, sync, extent }));
    }

    fn arrive_background(&mut self, vm: VmId, value: u32) {
        let start =
            if value.is_multiple_of(2) { self.ends[vm.index()] } else { u64::from(value) / 8 };
        let Some(extent) = extent(start, 1 + u64::from(value >> 8) % 40) else { return };
        let arrival = Arrival { vm, tag: None, op: Op::Read, sync: true, extent };
        self.open.insert(self.disk.arrive_background(self.now, arrival));
    }

    /// Take one back that may be anything: only a waiting background read goes.
    fn withdraw(&mut self, which: usize) {
        let Some(&id) = self.open.iter().nth(which % self.open.len().max(1)) else { return };
        let background = self.disk.is_background(id);
        if self.disk.withdraw(id) {
            assert!(background && self.open.remove(&id), "{id:?} was demand");
        }
    }

    fn complete(&mut self, which: usize, ok: bool) -> Result<(), TestCaseError> {
        if self.flying.is_empty() {
            return Ok(());
        }
        let id = self.flying.swap_remove(which % self.flying.len());
        let mut done = Vec::new();
        self.disk.complete(self.now, id, ok, &mut done);
        for c in done {
            prop_assert!(self.open.remove(&c.request.id), "completed twice");
        }
        Ok(())
    }

    /// Poll until the device is full or nothing goes; when to poll again.
    fn poll(&mut self) -> Option<Instant> {
        loop {
            match self.disk.poll(self.now) {
                Output::Dispatch(command) => self.flying.push(command.id),
                Output::WakeAt(t) => return Some(t),
                Output::Idle => return None,
            }
        }
    }

    fn drain(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..100_000 {
            let wake = self.poll();
            if !self.flying.is_empty() {
                self.now = self.now + Nanos::from_millis(3);
                self.complete(0, true)?;
            } else if let Some(t) = wake {
                self.now = t;
            } else {
                break;
            }
        }
        prop_assert!(self.open.is_empty(), "{} requests lost", self.open.len());
        prop_assert_eq!(self.disk.outstanding(), 0);
        Ok(())
    }
}

fn extent(start: u64, len: u64) -> Option<Extent> {
    Extent::new(Lba::new(start), Sectors::new(len))
}

/// Play a case with one of the policies, or all of them in turns.
fn run(case: &Case, policies: &[&str]) -> Result<(), TestCaseError> {
    let mut swarm = Swarm::new(case, policies[case.policy % policies.len()]);
    for &step in &case.steps {
        swarm.step(step, if case.switches { policies } else { &[] })?;
    }
    swarm.drain()?;
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn nothing_is_lost(case in case()) {
        run(&case, &conformance::specs().collect::<Vec<_>>())?;
    }
}

/// The ends of what a parameter takes, and values beyond reason.
fn extremes(param: &ParamSpec) -> Vec<String> {
    let texts = |words: &[&str]| words.iter().map(|w| w.to_string()).collect();
    match param.kind {
        Kind::DurationOr(word) => texts(&[word, "0", "1ns", "7ms", "11s"]),
        Kind::NumberOr(low, high, word) => texts(&[word, &low.to_string(), &high.to_string()]),
        Kind::Duration => texts(&["0", "1ns", "9s", "11s", "1h", "1000h", "5000000h"]),
        Kind::Size => texts(&["0", "1s", "18446744073709551104"]),
        Kind::Bytes(most) => vec!["0".into(), "1".into(), most.to_string()],
        Kind::Count(low, high) => vec![low.to_string(), high.to_string()],
        Kind::Number(low, high) => vec![low.to_string(), high.to_string()],
        Kind::Flag => texts(&["true", "false"]),
        Kind::Choice(words) => texts(words),
    }
}

/// A parameter's value is refused, or works.
#[test]
fn extreme_parameters_are_refused_or_work() {
    let mut runner = TestRunner::deterministic();
    let cases: Vec<Case> = (0..40)
        .map(|n| {
            let case = case().new_tree(&mut runner).unwrap().current();
            Case { rotational: n % 8 > 0, switches: false, hard_us: 60_000_000, ..case }
        })
        .collect();
    for entry in REGISTRY.iter() {
        for param in entry.params {
            for value in extremes(param) {
                let spec = format!("{}:{}={value}", entry.name, param.key);
                if schedulers::build(&spec).is_err() {
                    continue;
                }
                for case in &cases {
                    let run = || run(case, &[&spec]);
                    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
                        Ok(result) => result.unwrap_or_else(|e| panic!("{spec}: {e}")),
                        Err(_) => panic!("{spec} panicked"),
                    }
                }
            }
        }
    }
}
