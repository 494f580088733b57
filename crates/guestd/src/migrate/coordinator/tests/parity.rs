//! The simulator and the agent act alike. A seeded machine is simulated, and its agent's news for
//! the policy is noted. The same signs, loads and ends of actions then go through the agent's own
//! lists, tasks and lock, with the test's clock: its policy has to get the same news at the same
//! times, and to ask for the same moves.
//!
//! One thing is not compared: a monitor that is awake shortly before the end of a window reads
//! the loads then ([`EARLY`]), which the simulator does not model.
//!
//! `SEEKWAY_SEED=n` tries one seed; a failure prints the seed.

use crate::migrate::coordinator::*;
use crate::migrate::records::tests::in_folder;
use crate::system::fake::Fake;
use crate::tagger::Selection as Chosen;
use seekway_core::units::Sectors;
use seekway_device::profile;
use seekway_policy::schedulers;
use seekway_sim::vcpu::{
    Ablation, Completes, Costs, Detector, GuestCpu, HostCpu, Load, Machine, MachineSpec, Start,
    TaskSpec, VmSpec,
};
use seekway_sim::{Layout, Limits, Placement, Setup, run};
use seekway_vcpu::{self as vcpu, Sign};
use seekway_workload::Source;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

const VCPUS: u16 = 4;
const READERS: usize = 3;
const RUN: Nanos = Nanos::from_secs(1);
const SEEDS: std::ops::Range<u64> = 1..4;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

fn now() -> Instant {
    Instant::from_nanos(NOW.get())
}

/// A call of the policy.
#[derive(Clone, PartialEq, Debug)]
enum Call {
    Heard(Instant, VcpuId, Sign),
    Window(Instant, Vec<TaskLoad>),
    Moved(TaskId, Outcome),
    /// When it was asked for an action, and its answer.
    Next(Instant, Option<Action>),
}

/// Notes each call of a policy.
struct Noting {
    policy: Box<dyn VcpuPolicy>,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Noting {
    fn note(&self, call: Call) {
        self.calls.lock().unwrap().push(call);
    }
}

impl VcpuPolicy for Noting {
    fn attach(&mut self, now: Instant, online: &VcpuSet) {
        self.policy.attach(now, online);
    }
    fn heard(&mut self, at: Instant, vcpu: VcpuId, sign: Sign) {
        self.note(Call::Heard(at, vcpu, sign));
        self.policy.heard(at, vcpu, sign);
    }
    fn window(&mut self, now: Instant, loads: &[TaskLoad]) {
        self.note(Call::Window(now, loads.to_vec()));
        self.policy.window(now, loads);
    }
    fn moved(&mut self, now: Instant, task: TaskId, outcome: Outcome) {
        self.note(Call::Moved(task, outcome));
        self.policy.moved(now, task, outcome);
    }
    fn next(&mut self, now: Instant) -> Option<Action> {
        let action = self.policy.next(now);
        self.note(Call::Next(now, action));
        action
    }
    fn next_wake(&self) -> Option<Instant> {
        self.policy.next_wake()
    }
    fn beat_at(&self, vcpu: VcpuId) -> Option<Instant> {
        self.policy.beat_at(vcpu)
    }
    fn windows(&self) -> Option<Nanos> {
        self.policy.windows()
    }
    fn vcpus(&self, now: Instant) -> Vec<VcpuView> {
        self.policy.vcpus(now)
    }
}

fn noting(policy: &str) -> (Box<dyn VcpuPolicy>, Arc<Mutex<Vec<Call>>>) {
    let calls: Arc<Mutex<Vec<Call>>> = Arc::default();
    let policy = vcpu::build(policy).unwrap();
    (Box::new(Noting { policy, calls: calls.clone() }), calls)
}

fn task(name: String, on: u16, load: Load) -> TaskSpec {
    TaskSpec { name, start: Start::On(on), allowed: Vec::new(), from: Nanos::ZERO, load }
}

/// Two VMs share as many processors as each has vCPUs. One has readers and an agent.
fn spec(detector: Detector) -> MachineSpec {
    let us = Nanos::from_micros;
    let reads = Load::Io {
        block: Sectors::new(8),
        sequential: false,
        cpu: us(10),
        depth: 1,
        burst: 0,
        between: Nanos::ZERO,
        computes: false,
    };
    let computes = |n| task(format!("compute{n}"), n, Load::Compute);
    let reader = |n| task(format!("reader{n}"), n as u16 % VCPUS, reads);
    let vm = |name: &str, readers: usize| VmSpec {
        name: name.into(),
        vcpus: VCPUS,
        cpu_weight: NonZeroU32::MIN,
        agent: readers > 0,
        disk: Sectors::from_bytes(1 << 30),
        tasks: (0..VCPUS).map(computes).chain((0..readers).map(reader)).collect(),
    };
    MachineSpec {
        pcpus: VCPUS,
        host: HostCpu {
            slice: Nanos::from_millis(11),
            jitter: Nanos::from_millis(2),
            cut_permille: 50,
            wakeup_preempts: false,
            context_switch: us(5),
        },
        guest: GuestCpu {
            slice: Nanos::from_millis(3),
            context_switch: us(2),
            completes: Completes::Submitter,
            balances: true,
            shared_cache: true,
        },
        detector,
        costs: Costs { call: us(5), cold: us(10), window: us(20), wake: us(5), turn: us(2) },
        ablation: Ablation::default(),
        vms: vec![vm("readers", READERS), vm("others", 0)],
    }
}

/// Calls of the simulator's agent to the policy.
fn simulated(policy: &str, detector: Detector, seed: u64) -> Vec<Call> {
    let spec = spec(detector);
    let notes: Arc<Mutex<Vec<Call>>> = Arc::default();
    let build = || -> Result<Box<dyn VcpuPolicy>, String> {
        let policy = vcpu::build(policy).map_err(|e| e.to_string())?;
        Ok(Box::new(Noting { policy, calls: notes.clone() }))
    };
    let mut machine = Machine::with(&spec, policy, &build, seed, Instant::ZERO).unwrap();
    let device = profile::load("samsung-970-pro").unwrap().build();
    let source: Box<dyn Source + '_> = Box::new(&mut machine);
    let layout = Layout::place(source.vms(), device.profile().capacity, &Placement::Spread);
    let setup = Setup::new(schedulers::build("noop").unwrap(), device, layout.unwrap());
    let limits = Limits { until: Some(Instant::ZERO + RUN), ..Limits::default() };
    run(vec![source], setup, limits, &mut |_, _| true).unwrap();
    drop(machine);
    Arc::into_inner(notes).unwrap().into_inner().unwrap()
}

/// Loads of the next window.
#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Vec<ThreadLoad>>>);

impl Loads for Scripted {
    fn window(&mut self, _now: Instant, loads: &mut Vec<ThreadLoad>) -> io::Result<()> {
        *loads = std::mem::take(&mut self.0.lock().unwrap());
        Ok(())
    }
}

/// The agent's path: tasks on a system in memory, and the policy behind its lock.
struct Replay {
    coordinator: Coordinator<Fake>,
    tasks: Arc<Tasks<Fake>>,
    loads: Scripted,
    calls: Arc<Mutex<Vec<Call>>>,
    /// Actions that the policy asked for and that have not ended.
    actions: BTreeMap<TaskId, Action>,
    _dir: tempfile::TempDir,
}

impl Replay {
    fn new(policy: &str) -> Replay {
        NOW.set(0);
        let dir = tempfile::tempdir().unwrap();
        let (_, records) = in_folder(dir.path());
        let (fake, online) = (Fake::default(), VcpuSet::first(VCPUS.into()));
        for tid in 0..i32::from(VCPUS) + READERS as i32 {
            fake.start(tid, -1, "task");
        }
        // The system in memory is of one thread, and so is this test.
        #[allow(clippy::arc_with_non_send_sync)]
        let tasks = Arc::new(Tasks::new(fake, records, online, Waker::new().unwrap()));
        let loads = Scripted::default();
        let selection = Selection::new(Fake::default(), Chosen::default(), -1);
        let watching: (Box<dyn Loads>, _) = (Box::new(loads.clone()), selection);
        let (policy, calls) = noting(policy);
        let coordinator =
            Coordinator::new(policy, None, watching, tasks.clone(), (online, now)).unwrap();
        Replay { coordinator, tasks, loads, calls, actions: BTreeMap::new(), _dir: dir }
    }

    /// One turn of the simulator's agent, which ends with the policy's last answer.
    fn turn(&mut self, calls: &[Call]) {
        let Some(Call::Next(at, _)) = calls.last() else { unreachable!("a turn ends so") };
        NOW.set(at.as_nanos());
        let is_first = self.calls.lock().unwrap().is_empty();
        for call in calls {
            match call {
                Call::Heard(at, vcpu, sign) => {
                    let seen = Seen { at: *at, vcpu: *vcpu, sign: *sign };
                    self.coordinator.tell(*vcpu, &mut vec![seen], true);
                }
                Call::Window(_, loads) => {
                    *self.loads.0.lock().unwrap() = loads.iter().map(thread_load).collect();
                    assert!(
                        self.coordinator.is_due(*at).0,
                        "the agent's window ends later than {at}"
                    );
                    assert!(self.coordinator.observe().unwrap());
                }
                Call::Moved(task, Outcome::Dropped) => {
                    self.actions.remove(task);
                    self.coordinator.ended_all(&mut vec![(*task, Outcome::Dropped)]);
                }
                Call::Moved(task, outcome) => {
                    let action = self.actions.remove(task).expect("it was asked for");
                    assert_eq!(self.tasks.carry_out(&action), *outcome, "{action:?}");
                    self.coordinator.ended(*task, *outcome);
                }
                Call::Next(..) => {}
            }
        }
        if is_first {
            // The simulator's agent has its first turn when it attaches.
            self.coordinator.left.store(true, SeqCst);
        }
        let mut actions = Vec::new();
        assert!(self.coordinator.turn(VcpuId::new(0), true, &mut actions));
        self.actions.extend(actions.into_iter().map(|action| (action.task(), action)));
    }
}

fn thread_load(load: &TaskLoad) -> ThreadLoad {
    let TaskLoad { task, vcpu, waited, ran, ios, io_time, last, .. } = *load;
    let tid = task.0 as i32;
    ThreadLoad { tid, pid: tid, vcpu, waited, ran, ios, io_time, last }
}

/// Both do the same; how many moves.
fn compare(policy: &str, detector: Detector, seed: u64) -> usize {
    let simulated = simulated(policy, detector, seed);
    let mut replay = Replay::new(policy);
    for turn in simulated.split_inclusive(|call| matches!(call, Call::Next(_, None))) {
        // The last turn of a run may be cut.
        if !matches!(turn.last(), Some(Call::Next(_, None))) {
            break;
        }
        let before = replay.calls.lock().unwrap().len();
        replay.turn(turn);
        let calls = replay.calls.lock().unwrap();
        assert_eq!(calls[before..], *turn, "seed {seed}, {policy}, {detector:?}");
    }
    let is_move = |call: &&Call| matches!(call, Call::Next(_, Some(Action::Move { .. })));
    replay.calls.lock().unwrap().iter().filter(is_move).count()
}

#[test]
fn the_agent_moves_as_the_simulator_does() {
    let us = Nanos::from_micros;
    let detectors =
        [Detector::Exact { delay: us(20), edge: us(1) }, Detector::Heartbeat { beat: us(10) }];
    let seed = std::env::var("SEEKWAY_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in seed.map_or(SEEDS, |seed: u64| seed..seed + 1) {
        println!("seed {seed}");
        for policy in ["vmigrater", "vmigrater:literal=true", "vsched"] {
            for detector in detectors {
                let moves = compare(policy, detector, seed);
                println!("  {policy}, {detector:?}: {moves} moves");
                assert!(moves > 20, "seed {seed}, {policy}: only {moves} moves");
            }
        }
    }
}
