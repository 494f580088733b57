//! Random machines, each step of which has to be consistent; and machines that cannot be.

use super::Nomad;
use super::support::*;
use crate::vcpu::state::{Asker, On, State, VcpuRunState, Work, WorkKind};
use crate::vcpu::*;
use seekway_core::units::{Instant, Nanos, Sectors};
use seekway_vcpu::agent::WORKERS_MAX;
use seekway_vcpu::{VcpuPolicy, build};
use seekway_workload::Source;
use seekway_workload::rng::Rng;
use std::collections::BTreeSet;
use std::num::NonZeroU32;

fn any_load(rng: &mut Rng) -> Load {
    match rng.below(4) {
        0 => Load::Compute,
        1 => {
            Load::Partly { burst: us(50 + rng.below(9_000)), permille: 1 + rng.below(1000) as u16 }
        }
        _ => Load::Io {
            block: Sectors::new(1 + rng.below(64)),
            sequential: rng.percent(50),
            cpu: us(rng.below(300)),
            depth: 1 + rng.below(4) as u16,
            burst: rng.below(3) as u32 * 7,
            between: us(rng.below(4_000)),
            computes: rng.percent(50),
        },
    }
}

fn any_task(rng: &mut Rng, n: usize, vcpus: u16) -> TaskSpec {
    let allowed: Vec<u16> = match rng.percent(50) {
        true => Vec::new(),
        false => (0..vcpus).filter(|_| rng.percent(50)).collect(),
    };
    let from = us(rng.below(30_000));
    let task = TaskSpec::new(format!("task{n}"), Start::Any, any_load(rng));
    TaskSpec { allowed, from, ..task }
}

fn any_spec(rng: &mut Rng) -> MachineSpec {
    let vms = (0..1 + rng.below(4)).map(|n| {
        let vcpus = 1 + rng.below(5) as u16;
        let tasks = (0..rng.below(7) as usize).map(|n| any_task(rng, n, vcpus)).collect();
        VmSpec {
            name: format!("vm{n}"),
            vcpus,
            cpu_weight: NonZeroU32::new(1 + rng.below(100) as u32).unwrap(),
            agent: rng.percent(80),
            disk: Sectors::from_bytes(1 << 30),
            tasks,
        }
    });
    let vms = vms.collect();
    let mut spec = spec(1 + rng.below(4) as u16, vms);
    spec.host.slice = us(500 + rng.below(11_000));
    spec.host.jitter = spec.host.slice.scaled(rng.below(60), 100);
    spec.host.cut_permille = rng.below(3) as u16 * 100;
    spec.host.wakeup_preempts = rng.percent(50);
    spec.host.context_switch = us(rng.below(3) * 4);
    spec.guest.context_switch = us(rng.below(3));
    spec.guest.balances = rng.percent(50);
    spec.guest.shared_cache = rng.percent(50);
    spec.guest.completes =
        [Completes::Submitter, Completes::Fixed, Completes::Any][rng.below(3) as usize];
    if rng.percent(50) {
        spec.detector = Detector::Heartbeat { beat: us(rng.below(20)) };
    }
    spec.ablation = Ablation {
        free_stopper: rng.percent(25),
        free_completions: rng.percent(25),
        foresight: rng.percent(25).then(|| us(700)),
        free_moves: rng.percent(25),
    };
    spec
}

/// Asserts the invariants between two events.
fn check(machine: &Machine) {
    for (n, pcpu) in machine.pcpus.iter().enumerate() {
        let of = |state| {
            let here = machine.vcpus.iter().enumerate().filter(|(_, v)| v.pcpu == n);
            here.filter(|(_, v)| v.state == state).map(|(v, _)| v).collect::<BTreeSet<usize>>()
        };
        let mut waiting: BTreeSet<usize> = pcpu.waiting.iter().copied().collect();
        assert_eq!(waiting.len(), pcpu.waiting.len(), "nobody waits twice");
        let running = match pcpu.on {
            On::Running(v) => BTreeSet::from([v]),
            On::Switching(v) => {
                waiting.insert(v);
                BTreeSet::new()
            }
            On::Idle => {
                assert!(waiting.is_empty(), "pCPU {n} idles while vCPUs wait");
                BTreeSet::new()
            }
            On::Choosing => BTreeSet::new(),
        };
        assert_eq!(of(VcpuRunState::Running), running);
        assert_eq!(of(VcpuRunState::Waiting), waiting);
    }
    for (n, vcpu) in machine.vcpus.iter().enumerate() {
        let dozes = vcpu.dozes && vcpu.queue.iter().all(|&t| !machine.tasks[t].is_io());
        let idle = vcpu.current.is_none() && (vcpu.queue.is_empty() || dozes);
        assert!(
            vcpu.state != VcpuRunState::Halted || idle && vcpu.work.is_empty(),
            "vCPU {n} sleeps"
        );
        assert!(vcpu.workers <= WORKERS_MAX, "vCPU {n} has too many workers");
        assert!(
            vcpu.wake_list.is_empty() || vcpu.state == VcpuRunState::Waiting,
            "vCPU {n} was told"
        );
        for (t, state) in vcpu.queue.iter().map(|t| (*t, State::Queued)) {
            assert_eq!((machine.tasks[t].state, machine.tasks[t].vcpu), (state, n));
        }
    }
    for (t, task) in machine.tasks.iter().enumerate() {
        let vcpu = &machine.vcpus[task.vcpu];
        assert_eq!(task.state == State::Current, vcpu.current == Some(t));
        assert_eq!(task.state == State::Queued, vcpu.queue.contains(&t));
        assert!(task.within.and(&task.allowed) == task.within && !task.within.is_empty());
        if task.state == State::Current && vcpu.state == VcpuRunState::Running {
            let stops = matches!(vcpu.work.front(), Some(Work { what: WorkKind::Stop { .. }, .. }));
            assert!(task.within.contains(vcpu.id) || stops, "task {t} runs outside its mask");
        }
        let asked = machine
            .ios
            .iter()
            .flatten()
            .filter(|io| matches!(io.by, Asker::Task(by) if by == t))
            .count();
        assert_eq!(usize::from(task.io.outstanding), asked + task.io.done.len());
    }
}

/// Runs a machine against a disk of random latency, and checks each step. The figures as text.
fn step_through(spec: &MachineSpec, policy: &str, seed: u64, until: Nanos) -> String {
    let agent = || -> Result<Box<dyn VcpuPolicy>, String> {
        match policy {
            "nomad" => Ok(Box::<Nomad>::default()),
            name => build(name).map_err(|e| e.to_string()),
        }
    };
    let mut machine = Machine::with(spec, policy, &agent, seed, Instant::ZERO).unwrap();
    let mut rng = Rng::new(seed);
    let mut disk: BTreeSet<(Instant, u64)> = BTreeSet::new();
    let mut now = Instant::ZERO;
    loop {
        let mut issued = Vec::new();
        (&mut machine).poll(now, &mut issued).unwrap();
        check(&machine);
        for issue in issued {
            let end = issue.start.get() + issue.len.get();
            assert!(end <= spec.vms[usize::from(issue.vm)].disk.get(), "past the disk's end");
            disk.insert((now + us(20 + rng.below(3_000)), issue.token));
        }
        let done = disk.first().map(|(at, _)| *at);
        let next = next_wake(&mut machine).into_iter().chain(done).min();
        now = match next {
            Some(next) if next <= at(until) => next,
            _ => break,
        };
        while let Some(&(_, token)) = disk.first().filter(|(at, _)| *at <= now) {
            disk.pop_first();
            (&mut machine).completed(now, token);
        }
    }
    let result = machine.result(at(until));
    adds_up(&result, until);
    format!("{result:?}")
}

fn next_wake(machine: &mut Machine) -> Option<Instant> {
    Source::next_wake(&machine)
}

fn adds_up(result: &MachineResult, until: Nanos) {
    for pcpu in &result.pcpus {
        assert_eq!(pcpu.ran + pcpu.switching + pcpu.idle, until);
    }
    for vm in &result.vms {
        let tasks = vm.tasks.iter().fold(Nanos::ZERO, |sum, task| sum + task.ran);
        assert_eq!(vm.ran, tasks + vm.agent + vm.overhead, "{}", vm.name);
        assert!(vm.any_ran <= until && vm.first_ran <= vm.any_ran);
        for task in &vm.tasks {
            assert!(task.inactive <= until, "{}: {}", task.name, task.inactive);
            assert_eq!(task.series.iter().map(|(_, ios)| ios).sum::<u64>(), task.ios);
            assert_eq!(task.response.len(), task.ios);
        }
        assert!(vm.blocked <= vm.moves);
    }
}

#[test]
fn random_machines_are_consistent_at_every_step() {
    let policies = [
        "vanilla",
        "nomad",
        "vmigrater",
        "vmigrater:literal=true",
        "vslicer",
        "xballoon",
        "vsched",
    ];
    for seed in 0..140 {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let spec = any_spec(&mut rng);
        step_through(&spec, policies[seed as usize % policies.len()], seed, ms(120));
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for (seed, policy) in [(7, "vmigrater"), (8, "nomad"), (11, "xballoon")] {
        let spec = any_spec(&mut Rng::new(seed));
        let [a, b] = [(), ()].map(|()| step_through(&spec, policy, seed, ms(150)));
        assert_eq!(a, b, "seed {seed}");
    }
    let of = |seed| step_through(&reading(2, 4), "vmigrater", seed, ms(300));
    assert_ne!(of(1), of(2), "phases are random");
}

#[test]
fn machines_that_cannot_be_are_errors() {
    let good = || spec(2, vec![vm("a", 2, vec![task("io", 0, reads())])]);
    let load = |load: Load| {
        let mut spec = good();
        spec.vms[0].tasks[2].load = load;
        spec
    };
    let with = |change: fn(&mut MachineSpec)| {
        let mut spec = good();
        change(&mut spec);
        spec
    };
    let bad = [
        ("no processor", with(|s| s.pcpus = 0)),
        ("no VM", with(|s| s.vms.clear())),
        ("VM a: 0 vCPUs", with(|s| s.vms[0].vcpus = 0)),
        ("VM a: 2000 vCPUs", with(|s| s.vms[0].vcpus = 2000)),
        ("task io: vCPU 7", with(|s| s.vms[0].tasks[2].start = Start::On(7))),
        ("task io: vCPU 9", with(|s| s.vms[0].tasks[2].allowed = vec![0, 9])),
        ("not allowed", with(|s| s.vms[0].tasks[2].allowed = vec![1])),
        ("the host's slice is 0ms", with(|s| s.host.slice = Nanos::ZERO)),
        ("jitter", with(|s| s.host.jitter = s.host.slice)),
        ("1001 of 1000", with(|s| s.host.cut_permille = 1001)),
        ("the guests' slice", with(|s| s.guest.slice = Nanos::from_secs(1 << 40))),
        ("costs", with(|s| s.costs.cold = Nanos::new(u64::MAX))),
        ("costs", with(|s| s.ablation.foresight = Some(Nanos::new(u64::MAX)))),
        ("longer than", with(|s| s.vms[0].tasks[0].from = Nanos::new(u64::MAX))),
        ("less than a block", with(|s| s.vms[0].disk = Sectors::new(3))),
        ("at least one at a time", load(io(|io| io.depth = 0))),
        ("at least a sector", load(io(|io| io.block = Sectors::ZERO))),
        ("0 of 1000", load(Load::Partly { burst: ms(1), permille: 0 })),
        ("1001 of 1000", load(Load::Partly { burst: ms(1), permille: 1001 })),
        ("a burst", load(Load::Partly { burst: Nanos::ZERO, permille: 10 })),
    ];
    for (says, spec) in bad {
        let error = Machine::new(&spec, "vanilla", 1, Instant::ZERO).err().expect(says);
        assert!(error.contains(says), "'{error}' does not say '{says}'");
    }
    let error = Machine::new(&good(), "vmagic", 1, Instant::ZERO).err().unwrap();
    assert!(error.contains("no vCPU policy 'vmagic'"), "{error}");
    let heavy = with(|s| s.vms[0].cpu_weight = NonZeroU32::MAX);
    run_named(&heavy, "vanilla", 1, ms(50));
}
