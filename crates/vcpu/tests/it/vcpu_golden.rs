//! One scene through every policy for virtual CPUs, as text in `tests/golden/vcpu`.
//! `UPDATE_EXPECT=1 cargo test -p seekway-vcpu --test it vcpu_golden` rewrites them.
//!
//! The guest has four vCPUs. For a fifth of a second nobody else wants their processors;
//! then each runs 11 ms of 22, vCPU 0 first and each next one 4 ms later, with gaps in which
//! none runs. Task 1 reads an SSD and computes from 0.4 to 0.5 s, task 2 reads a disk
//! (8 ms) and may only run on vCPU 2 and 3, task 3 computes and reads a little.

use expect_test::expect_file;
use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::{
    self as vcpu, Action, Outcome, REGISTRY, Sign, TaskId, TaskLoad, VcpuId, VcpuPolicy, VcpuSet,
};
use std::fmt::Write;

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
        if entry.params.iter().any(|p| p.key == "literal") {
            text += "\n# literal=true\n";
            text += &Scene::play(&format!("{}:literal=true", entry.name));
        }
        expect_file![format!("../golden/vcpu/{}.txt", entry.name)].assert_eq(&text);
    }
}
