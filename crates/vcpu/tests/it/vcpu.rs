//! Duties of every policy for virtual CPUs towards its engine, on random sequences of signs,
//! windows, moves that take their time or fail, vCPUs that go off line, and times that no clock
//! would give: actions only for tasks that it was told of, within their owners' masks, never two
//! under way for one task; `next` comes to an end; wakes lie ahead; equal input gives equal
//! actions. When at last all vCPUs run, nobody does I/O and every action is done, then within four
//! seconds every task is released, and nothing is left to wake for but the beats.
//!
//! The sequences are seeded. `SEEKWAY_SEED=n cargo test -p seekway-vcpu --test it vcpu` tries
//! others; a failure prints the seed and the shrunken sequence.

use expect_test::expect_file;
use proptest::prelude::*;
use seekway_conformance::seeded;
use seekway_core::units::{Instant, Nanos};
use seekway_vcpu as vcpu;
use seekway_vcpu::{
    Action, Outcome, REGISTRY, Sign, TaskId, TaskLoad, VcpuId, VcpuPolicy, VcpuSet,
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
            "vmigrater:published=true",
            "vmigrater:except=park",
            "vmigrater:except=rest",
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

// One scene through every policy for virtual CPUs, as text in `tests/golden/vcpu`.
// `UPDATE_EXPECT=1 cargo test -p seekway-vcpu --test it vcpu_golden` rewrites them.
//
// The guest has four vCPUs. For a fifth of a second nobody else wants their processors;
// then each runs 11 ms of 22, vCPU 0 first and each next one 4 ms later, with gaps in which
// none runs. Task 1 reads an SSD and computes from 0.4 to 0.5 s, task 2 reads a disk
// (8 ms) and may only run on vCPU 2 and 3, task 3 computes and reads a little.

const END_US: u64 = 600_000;

const SHARED_FROM_US: u64 = 200_000;

fn at(us: u64) -> Instant {
    Instant::ZERO + Nanos::from_micros(us)
}

/// Does it run, and until when is that so?
fn runs(vcpu: u16, us: u64) -> (bool, u64) {
    if us < SHARED_FROM_US {
        return (true, SHARED_FROM_US);
    }
    let place = (us + 22_000 - u64::from(vcpu) * 4_000) % 22_000;
    if place < 11_000 { (true, us + 11_000 - place) } else { (false, us + 22_000 - place) }
}

struct Scene {
    policy: Box<dyn VcpuPolicy>,
    /// Where each task is.
    places: [u16; 3],
    beats: u64,
    text: String,
}

impl Scene {
    fn play(spec: &str) -> String {
        let mut policy = vcpu::build(spec).unwrap();
        policy.attach(at(0), &VcpuSet::first(4));
        let mut scene = Scene { policy, places: [0, 2, 1], beats: 0, text: String::new() };
        for us in (0..END_US).step_by(10) {
            scene.step(us);
        }
        scene.finish()
    }

    /// Plays the events of a time: beats that are due where they can come, a window, and the
    /// policy's actions.
    fn step(&mut self, us: u64) {
        let mut asked = us == 0;
        for vcpu in 0..4 {
            let due = self.policy.beat_at(VcpuId::new(vcpu));
            if runs(vcpu, us).0 && due.is_some_and(|due| due <= at(us)) {
                self.policy.heard(at(us), VcpuId::new(vcpu), Sign::Beat { due });
                self.beats += 1;
                asked = true;
            }
        }
        if us.is_multiple_of(5_000) && us > 0 && self.policy.windows().is_some() {
            let loads = self.loads(us);
            self.policy.window(at(us), &loads);
            asked = true;
        }
        asked |= self.policy.next_wake().is_some_and(|wake| wake <= at(us));
        while let Some(action) = self.policy.next(at(us)) {
            assert!(asked, "{action:?} at {us} us, when no engine would ask");
            self.act(us, action);
        }
    }

    fn loads(&self, us: u64) -> Vec<TaskLoad> {
        let load = |task: usize, waited: u64, ios: u32, each: u64, allowed: VcpuSet| {
            let vcpu = self.places[task];
            let ran = if runs(vcpu, us).0 { 5_000 - waited } else { 0 };
            TaskLoad {
                task: TaskId(task as u64 + 1),
                vcpu: VcpuId::new(vcpu),
                allowed,
                waited: Nanos::from_micros(waited),
                ran: Nanos::from_micros(ran),
                ios: if ran > 0 { ios } else { 0 },
                io_time: Nanos::from_micros(u64::from(ios) * each),
                last: None,
            }
        };
        let computes = (400_000..500_000).contains(&us);
        let disk = VcpuSet::from_iter([VcpuId::new(2), VcpuId::new(3)]);
        let slow = u32::from(us.is_multiple_of(10_000));
        let mut loads =
            vec![load(1, 4_900, slow, 8_000, disk), load(2, 500, 5, 100, VcpuSet::first(4))];
        if !computes {
            loads.insert(0, load(0, 4_000, 40, 100, VcpuSet::first(4)));
        }
        loads
    }

    fn act(&mut self, us: u64, action: Action) {
        let ms = us as f64 / 1e3;
        let task = action.task();
        let place = &mut self.places[task.0 as usize - 1];
        match action {
            Action::Move { to, within, by, .. } => {
                let from = std::mem::replace(place, to.index() as u16);
                let state = |vcpu: u16| if runs(vcpu, us).0 { "runs" } else { "away" };
                writeln!(
                    self.text,
                    "{ms:8.2}  task {} {from} ({}) -> {} ({}) of {within}, {by:?}",
                    task.0,
                    state(from),
                    to.index(),
                    state(to.index() as u16)
                )
                .unwrap();
            }
            Action::Release { .. } => {
                writeln!(self.text, "{ms:8.2}  task {} free", task.0).unwrap()
            }
        }
        self.policy.moved(at(us), task, Outcome::Done);
    }

    fn finish(mut self) -> String {
        let slice = self.policy.slice(Nanos::from_millis(11));
        let idles = self.policy.idles(at(END_US), VcpuId::new(2), Nanos::ZERO);
        for view in self.policy.vcpus(at(END_US)) {
            let slice = view.slice.map_or("-".into(), |slice| slice.to_string());
            writeln!(
                self.text,
                "# vCPU {}: {} slices, {slice}, away {:.1} ms",
                view.vcpu.index(),
                view.slices,
                view.away.as_millis_f64()
            )
            .unwrap();
        }
        let idles = idles.map_or("not".into(), |until| format!("for {}", until - at(END_US)));
        writeln!(
            self.text,
            "# {} beats; a slice of 11ms is {slice}; vCPU 2 idles {idles}",
            self.beats
        )
        .unwrap();
        self.text
    }
}

#[test]
fn every_policy_does_as_written() {
    for entry in REGISTRY.iter() {
        let mut text = format!("# {}: {}\n", entry.name, entry.summary);
        text += &Scene::play(entry.name);
        for key in ["literal", "published"] {
            if entry.params.iter().any(|p| p.key == key) {
                text += &format!("\n# {key}=true\n");
                text += &Scene::play(&format!("{}:{key}=true", entry.name));
            }
        }
        expect_file![format!("../golden/vcpu/{}.txt", entry.name)].assert_eq(&text);
    }
}
