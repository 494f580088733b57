//! Duties of every policy for virtual CPUs towards its engine, on random sequences of signs,
//! windows, moves that take their time or fail, vCPUs that go off line, and times that no clock
//! would give: actions only for tasks that it was told of, within their owners' masks, never two
//! under way for one task; `next` comes to an end; wakes lie ahead; equal input gives equal
//! actions. When at last all vCPUs run, nobody does I/O and every action is done, then within four
//! seconds every task is released, and nothing is left to wake for but the beats.
//!
//! The sequences are seeded. `SEEKWAY_SEED=n cargo test -p seekway-vcpu --test it vcpu` tries
//! others; a failure prints the seed and the shrunken sequence.

use proptest::prelude::*;
use seekway_conformance::seeded;
use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::{
    self as vcpu, Action, Outcome, REGISTRY, Sign, TaskId, TaskLoad, VcpuId, VcpuPolicy, VcpuSet,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

const VCPUS: u16 = 6;
const TASKS: u64 = 8;
/// Actions in a row that no engine has to expect.
const ACTIONS_MAX: usize = 1000;

#[derive(Clone, Debug)]
enum Step {
    /// Nanoseconds that pass without a sign.
    Wait(u64),
    /// Up to the time at which the policy asked to be asked.
    Wake,
    /// A beat that the policy asked for, late by this time.
    Beat {
        vcpu: u16,
        late: u64,
    },
    /// A beat of any other time, from a rest or not; signs that contradict each other.
    Wild {
        vcpu: u16,
        back: u64,
        due: Option<i64>,
    },
    Edge {
        vcpu: u16,
        sign: u8,
    },
    Window(Vec<Load>),
    /// The oldest action comes to its end, or the newest.
    Moved {
        oldest: bool,
        outcome: Outcome,
    },
    /// These are on line from now on.
    Attach(u16),
    Idle(u16),
}

#[derive(Clone, Debug)]
struct Load {
    task: u64,
    vcpu: u16,
    allowed: u16,
    waited: u64,
    ran: u64,
    ios: u32,
}

fn step() -> impl Strategy<Value = Step> {
    let span = || {
        prop_oneof![
            10 => 0u64..2_000_000,
            6 => 0u64..20_000_000,
            2 => 0u64..5_000_000_000,
            1 => any::<u64>().prop_map(|n| n >> 8),
        ]
    };
    let late = prop_oneof![
        6 => 0u64..100_000,
        4 => 100_000u64..1_000_000,
        6 => 1_000_000u64..50_000_000,
        1 => any::<u64>().prop_map(|n| n >> 8),
    ];
    let load = (0..TASKS, 0..VCPUS + 2, 0u16..1 << VCPUS, span(), span(), 0u32..1000).prop_map(
        |(task, vcpu, allowed, waited, ran, ios)| Load { task, vcpu, allowed, waited, ran, ios },
    );
    let outcome = prop_oneof![
        8 => Just(Outcome::Done),
        1 => Just(Outcome::Refused),
        1 => Just(Outcome::Dropped),
    ];
    prop_oneof![
        4 => span().prop_map(Step::Wait),
        6 => Just(Step::Wake),
        20 => (0..VCPUS, late).prop_map(|(vcpu, late)| Step::Beat { vcpu, late }),
        2 => (0..VCPUS + 2, span(), proptest::option::of(any::<i64>()))
            .prop_map(|(vcpu, back, due)| Step::Wild { vcpu, back, due }),
        6 => (0..VCPUS + 2, 0u8..3).prop_map(|(vcpu, sign)| Step::Edge { vcpu, sign }),
        8 => proptest::collection::vec(load, 0..6).prop_map(Step::Window),
        6 => (any::<bool>(), outcome)
            .prop_map(|(oldest, outcome)| Step::Moved { oldest, outcome }),
        1 => (0u16..1 << VCPUS).prop_map(Step::Attach),
        1 => (0..VCPUS).prop_map(Step::Idle),
    ]
}

/// A policy with its engine's knowledge.
struct Engine {
    policy: Box<dyn VcpuPolicy>,
    now: Instant,
    online: VcpuSet,
    /// Tasks that the policy was told of, and their owners' masks.
    told: BTreeMap<TaskId, VcpuSet>,
    under_way: Vec<TaskId>,
    moved: BTreeSet<TaskId>,
    /// Asked to be let go last, and before that moved.
    released: BTreeSet<TaskId>,
    /// Really elsewhere by the policy's doing.
    placed: BTreeSet<TaskId>,
    log: String,
}

fn set(bits: u16) -> VcpuSet {
    (0..VCPUS).filter(|n| bits >> n & 1 == 1).map(VcpuId::new).collect()
}

impl Engine {
    fn new(spec: &str) -> Engine {
        let mut policy = vcpu::build(spec).unwrap();
        let online = VcpuSet::first(usize::from(VCPUS));
        policy.attach(Instant::ZERO, &online);
        Engine {
            policy,
            now: Instant::ZERO,
            online,
            told: BTreeMap::new(),
            under_way: Vec::new(),
            moved: BTreeSet::new(),
            released: BTreeSet::new(),
            placed: BTreeSet::new(),
            log: String::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Wait(span) => self.now = self.now + Nanos::new(*span),
            Step::Wake => self.now = self.policy.next_wake().unwrap_or(self.now).max(self.now),
            Step::Beat { vcpu, late } => {
                let vcpu = VcpuId::new(*vcpu);
                let due = self.policy.beat_at(vcpu).filter(|_| self.online.contains(vcpu));
                let Some(due) = due else { return };
                self.now = self.now.max(due + Nanos::new(*late));
                self.policy.heard(self.now, vcpu, Sign::Beat { due: Some(due) });
            }
            Step::Wild { vcpu, back, due } => {
                let at = Instant::from_nanos(self.now.as_nanos().saturating_sub(*back));
                let due =
                    due.map(|due| Instant::from_nanos(at.as_nanos().saturating_add_signed(due)));
                self.policy.heard(at, VcpuId::new(*vcpu), Sign::Beat { due });
            }
            Step::Edge { vcpu, sign } => {
                let sign = [Sign::Preempted, Sign::Resumed, Sign::Idle][usize::from(*sign)];
                self.policy.heard(self.now, VcpuId::new(*vcpu), sign);
            }
            Step::Window(loads) => self.window(loads),
            Step::Moved { oldest, outcome } => {
                if self.under_way.is_empty() {
                    return;
                }
                let at = if *oldest { 0 } else { self.under_way.len() - 1 };
                let task = self.under_way.remove(at);
                self.place(task, *outcome);
                if *outcome == Outcome::Dropped {
                    self.moved.extend(self.released.remove(&task).then_some(task));
                }
                self.policy.moved(self.now, task, *outcome);
            }
            Step::Attach(bits) => {
                self.online = set(*bits);
                self.policy.attach(self.now, &self.online);
            }
            Step::Idle(vcpu) => {
                let until = self.policy.idles(self.now, VcpuId::new(*vcpu), Nanos::ZERO);
                assert!(until.is_none_or(|until| until > self.now), "to idle until {until:?}");
            }
        }
        self.ask();
    }

    fn window(&mut self, loads: &[Load]) {
        let by_task: BTreeMap<u64, &Load> = loads.iter().map(|load| (load.task, load)).collect();
        let loads: Vec<TaskLoad> = by_task
            .values()
            .map(|load| TaskLoad {
                task: TaskId(load.task),
                vcpu: VcpuId::new(load.vcpu),
                allowed: set(load.allowed),
                waited: Nanos::new(load.waited),
                ran: Nanos::new(load.ran),
                ios: load.ios,
                io_time: Nanos::new(load.waited),
                last: None,
            })
            .collect();
        self.told.extend(loads.iter().map(|load| (load.task, load.allowed)));
        self.policy.window(self.now, &loads);
    }

    /// Records the end of an action. A task that cannot be released has ended.
    fn place(&mut self, task: TaskId, outcome: Outcome) {
        match (self.released.contains(&task), outcome) {
            (true, Outcome::Done | Outcome::Refused) => _ = self.placed.remove(&task),
            (false, Outcome::Done) => _ = self.placed.insert(task),
            _ => {}
        }
    }

    /// Ask until there is nothing more.
    fn ask(&mut self) {
        for n in 0.. {
            assert!(n < ACTIONS_MAX, "`next` comes to no end");
            let Some(action) = self.policy.next(self.now) else { break };
            self.check(&action);
            writeln!(self.log, "{} {action:?}", self.now).unwrap();
        }
        let wake = self.policy.next_wake();
        assert!(wake.is_none_or(|wake| wake > self.now), "wake at {wake:?}, now {}", self.now);
        let beats: Vec<_> = (0..VCPUS + 2).map(|n| self.policy.beat_at(VcpuId::new(n))).collect();
        writeln!(self.log, "{wake:?} {beats:?} {:?}", self.policy.windows()).unwrap();
        for view in self.policy.vcpus(self.now) {
            assert!(self.online.contains(view.vcpu), "{view:?} is off line");
        }
    }

    fn check(&mut self, action: &Action) {
        let task = action.task();
        assert!(!self.under_way.contains(&task), "{action:?}: one is under way");
        self.under_way.push(task);
        match action {
            Action::Move { to, within, .. } => {
                let allowed = self.told.get(&task).unwrap_or_else(|| panic!("{action:?}: unknown"));
                assert!(within.contains(*to), "{action:?}");
                assert!(within.is_subset(allowed), "{action:?}: allowed is {allowed}");
                assert!(within.is_subset(&self.online), "{action:?}: on line is {}", self.online);
                self.moved.insert(task);
                self.released.remove(&task);
            }
            Action::Release { .. } => {
                assert!(self.moved.remove(&task), "{action:?}: it was not moved");
                self.released.insert(task);
            }
        }
    }
}

/// For how long a quiet guest is watched.
const QUIET: Nanos = Nanos::from_secs(4);

impl Engine {
    /// Beats in time, windows in which nobody does I/O, and all actions done at once.
    fn quiet(&mut self) {
        self.online = VcpuSet::first(usize::from(VCPUS));
        self.policy.attach(self.now, &self.online);
        for vcpu in self.online.iter() {
            self.policy.heard(self.now, vcpu, Sign::Beat { due: None });
        }
        let (end, mut window) = (self.now + QUIET, self.now);
        loop {
            self.ask();
            while let Some(task) = self.under_way.pop() {
                self.place(task, Outcome::Done);
                self.policy.moved(self.now, task, Outcome::Done);
                self.ask();
            }
            let beats = self.online.iter().filter_map(|vcpu| self.policy.beat_at(vcpu)).min();
            let windows = self.policy.windows().map(|length| window + length);
            let next = [beats, windows, self.policy.next_wake()].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            for vcpu in self.online.iter() {
                let due = self.policy.beat_at(vcpu).filter(|due| *due <= self.now);
                if due.is_some() {
                    self.policy.heard(self.now, vcpu, Sign::Beat { due });
                }
            }
            if windows.is_some_and(|at| at <= self.now) {
                window = self.now;
                self.policy.window(self.now, &[]);
            }
        }
        assert!(self.placed.is_empty(), "never let go: {:?}", self.placed);
        let wake = self.policy.next_wake();
        assert!(wake.is_none(), "asks to be woken at {wake:?}, now {}", self.now);
    }
}

fn play(spec: &str, steps: &[Step]) -> String {
    let mut engine = Engine::new(spec);
    steps.iter().for_each(|step| engine.step(step));
    let log = std::mem::take(&mut engine.log);
    // Thousands of beats: for some. Far in the future there is no room for them.
    if steps.len().is_multiple_of(64) && engine.now.as_nanos() < u64::MAX / 4 {
        engine.quiet();
    }
    log
}

/// Every policy with its defaults, and the variants.
fn specs() -> Vec<String> {
    let mut specs: Vec<String> = REGISTRY.iter().map(|entry| entry.name.to_string()).collect();
    specs.extend(
        [
            "vmigrater:literal=true",
            "vmigrater:literal=true,except=beats",
            "vmigrater:except=beats,threshold=0.01",
            "vmigrater:except=fresh",
            "vmigrater:except=keep",
            "vmigrater:except=park",
            "vmigrater:period=10ms,window=1s",
            "xballoon:period=1ms,c=0",
            "xballoon:published=true",
        ]
        .map(String::from),
    );
    specs
}

#[test]
fn every_policy_keeps_the_contract() {
    for spec in specs() {
        let steps = prop::collection::vec(step(), 1..400);
        let moves = std::cell::Cell::new(0);
        seeded::check(&spec, 256, &steps, |steps| {
            let first = play(&spec, &steps);
            moves.set(moves.get() + first.matches("Move {").count());
            prop_assert_eq!(first, play(&spec, &steps), "equal input, other actions");
            Ok(())
        });
        let moves_tasks = spec.starts_with("vmigrater") || spec.starts_with("vsched");
        assert_eq!(moves.get() > 20, moves_tasks, "{spec}: {} moves", moves.get());
    }
}
