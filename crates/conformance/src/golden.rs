//! One fixed scene, and a policy's decisions in it as text.

use crate::Policy;
use crate::engine::{Command, Engine, Lcg};
use seekway_core::request::{Extent, Op, VmId};
use seekway_core::scheduler::{DeviceProfile, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_stack::dispatcher::Arrival;
use std::fmt::Write;

/// Each VM has a gigabyte of the disk.
const REGION: Sectors = Sectors::new(1 << 21);

/// The requests that a VM has not sent yet.
struct Guest {
    left: u32,
    next: Instant,
    place: u64,
}

/// A stream that reads on 0.2 ms after each completion, a reader that thinks
/// 2 ms and jumps, and a writer that drops four writes every 15 ms.
struct Scene {
    guests: [Guest; 3],
    lcg: Lcg,
}

impl Scene {
    fn new() -> Self {
        let guest = |left, place| Guest { left, next: Instant::ZERO, place };
        Scene { guests: [guest(24, 1_000), guest(12, 0), guest(24, 0)], lcg: Lcg(42) }
    }

    /// When the next request arrives.
    fn next(&self) -> Option<Instant> {
        self.guests.iter().filter(|g| g.left > 0).map(|g| g.next).min()
    }

    /// Sends the requests that are due by `now`.
    fn arrivals(&mut self, now: Instant) -> Vec<Arrival> {
        let mut due = Vec::new();
        for vm in 0..3u16 {
            let n = usize::from(vm);
            while self.guests[n].left > 0 && self.guests[n].next <= now {
                due.push(self.request(vm));
            }
        }
        due
    }

    fn request(&mut self, vm: u16) -> Arrival {
        let guest = &mut self.guests[usize::from(vm)];
        guest.left -= 1;
        let never = Instant::from_nanos(u64::MAX);
        let (op, sectors) = match vm {
            0 => {
                guest.place += 64;
                guest.next = never;
                (Op::Read, 64)
            }
            1 => {
                guest.place = self.lcg.below(REGION.get() / 8) * 8;
                guest.next = never;
                (Op::Read, 8)
            }
            _ => {
                guest.place = self.lcg.below(REGION.get() / 64) * 64;
                if guest.left.is_multiple_of(4) {
                    guest.next = guest.next + Nanos::from_millis(15);
                }
                (Op::Write, 16)
            }
        };
        let start = Lba::new(u64::from(vm) * REGION.get() + guest.place);
        let extent = Extent::new(start, Sectors::new(sectors)).unwrap();
        Arrival { vm: VmId::new(vm), tag: None, op, sync: op == Op::Read, extent }
    }

    fn completed(&mut self, now: Instant, vm: VmId) {
        let think = [200, 2_000].map(Nanos::from_micros);
        if let Some(&think) = think.get(vm.index()) {
            self.guests[vm.index()].next = now + think;
        }
    }
}

/// 0.5 ms, and 1 ms for each 500,000 sectors between the head and the start.
fn service(head: Lba, command: &Command) -> Nanos {
    let distance = command.requests[0].extent.start().distance(head).get();
    Nanos::from_micros(500 + distance / 500)
}

/// Logs the policy's decisions in a fixed scene, one in a line: three VMs on a disk, a stream, a
/// reader that thinks, and a writer. For a text that is kept, and read when it changes.
///
/// # Panics
/// With the rule of the contract that was broken.
pub fn decisions(policy: &Policy) -> String {
    let entry = policy.entry;
    let profile = DeviceProfile::unknown(Sectors::new(3 * REGION.get()), true);
    let mut engine = Engine::new(policy, profile, 1);
    for vm in 0..3u64 {
        let region = Extent::new(Lba::new(vm * REGION.get()), REGION).unwrap();
        let spec = VmSpec { region: vec![region], ..VmSpec::default() };
        engine.attach(VmId::new(vm as u16), spec);
    }
    let mut scene = Scene::new();
    let mut text = format!("# {}: {}\n", entry.name, entry.summary);
    let (mut head, mut ends, mut waited) = (Lba::ZERO, None, [Nanos::ZERO; 3]);
    loop {
        for arrival in scene.arrivals(engine.now) {
            engine.arrive(arrival);
        }
        let held = engine.hold;
        if engine.pump() > 0 {
            let command = &engine.flying[0];
            ends = Some(engine.now + service(head, command));
            for request in &command.requests {
                let wait = engine.now.since(request.arrived);
                waited[request.vm.index()] += wait;
                let ms = engine.now.as_nanos() as f64 / 1e6;
                let (vm, op) = (request.vm.index(), request.op.letter());
                let wait = wait.as_millis_f64();
                writeln!(text, "{ms:9.3}  vm{vm} {op} {}  waited {wait:.3}", request.extent)
                    .unwrap();
                head = request.extent.end();
            }
        } else if engine.hold != held
            && let Some(line) = engine.log.lines().last()
        {
            let (ms, hold) = (engine.now.as_nanos() as f64 / 1e6, engine.hold);
            let why = line.split(' ').nth(2).unwrap_or("");
            let span = hold.map_or(Nanos::ZERO, |until| until.since(engine.now)).as_millis_f64();
            writeln!(text, "{ms:9.3}  hold {span:.3} {why}").unwrap();
        }
        let Some(next) = [ends, engine.hold, scene.next()].into_iter().flatten().min() else {
            break;
        };
        if next == Instant::from_nanos(u64::MAX) {
            break;
        }
        engine.now = next;
        if ends == Some(engine.now) {
            ends = None;
            for request in engine.complete(0).requests {
                scene.completed(engine.now, request.vm);
            }
        }
    }
    assert_eq!(engine.completed, 60, "{}", entry.name);
    let total = engine.now.as_nanos() as f64 / 1e6;
    let [a, b, c] = [(0, 24.0), (1, 12.0), (2, 24.0)].map(|(vm, n)| waited[vm].as_millis_f64() / n);
    writeln!(text, "# done at {total:.3} ms; mean waits {a:.3}, {b:.3}, {c:.3} ms").unwrap();
    text
}
