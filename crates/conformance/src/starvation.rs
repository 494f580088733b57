//! Does a policy leave a VM without service while others keep the device busy?

use crate::Policy;
use crate::engine::{Engine, Lcg};
use seekway_core::request::{Extent, Op, VmId};
use seekway_core::scheduler::{DeviceProfile, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_stack::dispatcher::Arrival;
use std::fmt;

/// The longest that a VM may have requests queued and get none served.
const LIMIT: Nanos = Nanos::from_secs(30);
/// Length of a scene.
const LENGTH: Nanos = Nanos::from_secs(40);
/// Service time of a command.
const SERVICE: Nanos = Nanos::from_millis(2);

/// A VM that had requests queued for [`LIMIT`], and got none served.
struct Starved {
    scene: Scene,
    vm: usize,
    at: Instant,
}

impl fmt::Display for Starved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Starved { scene: Scene { flood, op, disk }, vm, at } = self;
        let device = if *disk { "a disk" } else { "flash" };
        let name = GUESTS[*vm].name;
        write!(f, "{name} got nothing from {device} for {LIMIT} by {at}, beside a flood of ")?;
        write!(f, "{op:?}s, {flood:?}")
    }
}

/// Plays scenes in which a VM floods the device and three others want little; the first of them in
/// which one starves.
fn starves(policy: &Policy) -> Option<Starved> {
    let floods = [Flood::Ring, Flood::Ahead, Flood::OnePlace, Flood::Anywhere];
    let scenes = floods.into_iter().flat_map(|flood| {
        let loads = [(Op::Read, true), (Op::Write, true), (Op::Read, false), (Op::Write, false)];
        loads.map(|(op, disk)| Scene { flood, op, disk })
    });
    scenes.map(|scene| scene.play(policy)).find_map(Result::err)
}

/// Tests that a policy starves nobody, or declares that it does. With an entry's defaults the
/// declaration has to be true.
///
/// # Panics
/// With the VM that starved and its neighbours, or with a declared starvation that does not happen.
pub fn starves_as_said(policy: &Policy) {
    let Policy { entry, given, .. } = policy;
    let has = |pair: &str| pair.is_empty() || given.split(',').any(|other| other == pair);
    let said = entry.starves.iter().any(|said| said.with.split(',').all(has));
    if !said && let Some(starved) = starves(policy) {
        panic!("{policy}: {starved}");
    }
    for said in entry.starves.iter().filter(|_| given.is_empty()) {
        let policy = Policy::new(entry, said.with);
        assert!(starves(&policy).is_some(), "{policy} starves nobody, and should: {}", said.why);
    }
}

/// Where the flood goes, 8 sectors each and gaps between them.
#[derive(Clone, Copy, Debug)]
enum Flood {
    /// Round and round 4,096 offsets.
    Ring,
    /// Always on.
    Ahead,
    OnePlace,
    Anywhere,
}

#[derive(Clone, Copy)]
struct Scene {
    flood: Flood,
    /// The flood's.
    op: Op,
    /// One command at a time and a head, or eight and none.
    disk: bool,
}

struct Guest {
    name: &'static str,
    /// Requests that it keeps queued.
    depth: u32,
    /// From a completion to its next request.
    think: Nanos,
}

const GUESTS: [Guest; 4] = [
    Guest { name: "the flood", depth: 32, think: Nanos::ZERO },
    Guest { name: "a distant reader", depth: 1, think: Nanos::from_millis(100) },
    Guest { name: "a distant writer", depth: 1, think: Nanos::from_millis(100) },
    Guest { name: "a random reader", depth: 4, think: Nanos::ZERO },
];

/// A guest's requests during a scene.
#[derive(Clone, Copy)]
struct State {
    /// Requests that it may send from `next` on.
    idle: u32,
    next: Instant,
    /// Time of its last service, or of its first request after an empty queue.
    since: Instant,
}

impl Scene {
    fn play(self, policy: &Policy) -> Result<(), Starved> {
        let profile = DeviceProfile::unknown(Sectors::new(1 << 31), self.disk);
        let mut engine = Engine::new(policy, profile, if self.disk { 1 } else { 8 });
        let fresh = |guest: &Guest| {
            let next = Instant::ZERO + guest.think;
            State { idle: guest.depth, next, since: next }
        };
        let mut states = GUESTS.each_ref().map(fresh);
        (0..GUESTS.len()).for_each(|vm| engine.attach(id(vm), VmSpec::default()));
        let (mut sent, mut lcg) = (0, Lcg(1));
        while engine.now < Instant::ZERO + LENGTH {
            for (vm, state) in states.iter_mut().enumerate() {
                if state.idle == GUESTS[vm].depth {
                    state.since = engine.now;
                }
                while state.idle > 0 && state.next <= engine.now {
                    engine.arrive(self.request(vm, sent, &mut lcg));
                    state.idle -= 1;
                    sent += u64::from(vm == 0);
                }
                if engine.now.since(state.since) > LIMIT {
                    return Err(Starved { scene: self, vm, at: engine.now });
                }
            }
            engine.pump();
            if engine.flying.is_empty() {
                engine.now = engine.hold.expect("the flood has requests queued");
                continue;
            }
            engine.wait(SERVICE);
            for request in engine.complete(0).requests {
                let vm = request.vm.index();
                let (now, idle) = (engine.now, states[vm].idle + 1);
                states[vm] = State { idle, next: now + GUESTS[vm].think, since: now };
            }
        }
        Ok(())
    }

    /// The next request of a guest; the flood's number `n`.
    fn request(self, vm: usize, n: u64, lcg: &mut Lcg) -> Arrival {
        let place = match (vm, self.flood) {
            (0, Flood::Ring) => 1_000_000 + n % 4_096 * 16,
            (0, Flood::Ahead) => 1_000_000 + n * 16,
            (0, Flood::OnePlace) => 1_000_000,
            (0, Flood::Anywhere) => lcg.below(1 << 26) * 16,
            (1, _) => 1_900_000_000,
            (2, _) => 100,
            _ => (1 << 30) + lcg.below(1 << 20) * 8,
        };
        let op = [self.op, Op::Read, Op::Write, Op::Read][vm];
        let extent = Extent::new(Lba::new(place), Sectors::new(8)).expect("on the device");
        Arrival { vm: id(vm), tag: None, op, sync: op == Op::Read, extent }
    }
}

fn id(vm: usize) -> VmId {
    VmId::new(vm as u16)
}
