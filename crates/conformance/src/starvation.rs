//! Does a policy leave a request without service while others keep the device busy?

use crate::Policy;
use crate::engine::{Engine, Lcg};
use seekway_core::request::{Extent, Op, VmId};
use seekway_core::scheduler::{DeviceProfile, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_stack::dispatcher::Arrival;
use std::collections::BTreeMap;
use std::fmt;

/// The longest that a request may be queued.
const LIMIT: Nanos = Nanos::from_secs(30);
/// Length of a scene.
const LENGTH: Nanos = Nanos::from_secs(40);
/// Service time of a command.
const SERVICE: Nanos = Nanos::from_millis(2);

/// A request that was queued for [`LIMIT`].
struct Starved {
    scene: Scene,
    guest: usize,
    at: Instant,
}

impl fmt::Display for Starved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Starved { scene: Scene { flood, op, disk, one_vm }, guest, at } = self;
        let device = if *disk { "a disk" } else { "flash" };
        let vms = if *one_vm { "in one VM" } else { "in a VM each" };
        let name = GUESTS[*guest].name;
        write!(f, "{name} waited for {device} for {LIMIT} by {at}, beside a flood of ")?;
        write!(f, "{op:?}s, {flood:?}, {vms}")
    }
}

/// Plays scenes in which one guest floods the device and three others want little, in a VM each or
/// as applications of one VM; the first of them in which a request starves.
fn starves(policy: &Policy) -> Option<Starved> {
    let floods = [Flood::Ring, Flood::Ahead, Flood::OnePlace, Flood::Anywhere];
    let scenes = floods.into_iter().flat_map(|flood| {
        let loads = [(Op::Read, true), (Op::Write, true), (Op::Read, false), (Op::Write, false)];
        let scene = move |(op, disk), one_vm| Scene { flood, op, disk, one_vm };
        loads.into_iter().flat_map(move |load| [false, true].map(|one_vm| scene(load, one_vm)))
    });
    scenes.map(|scene| scene.play(policy)).find_map(Result::err)
}

/// Tests that a policy starves no request, or declares that it does. With an entry's defaults the
/// declaration has to be true.
///
/// # Panics
/// With the guest that starved and its neighbours, or with a declared starvation that does not happen.
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
    /// The guests are applications of one VM.
    one_vm: bool,
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
}

impl Scene {
    fn play(self, policy: &Policy) -> Result<(), Starved> {
        let profile = DeviceProfile::unknown(Sectors::new(1 << 31), self.disk);
        let mut engine = Engine::new(policy, profile, if self.disk { 1 } else { 8 });
        let fresh = |guest: &Guest| State { idle: guest.depth, next: Instant::ZERO + guest.think };
        let mut states = GUESTS.each_ref().map(fresh);
        let vms = if self.one_vm { 1 } else { GUESTS.len() as u16 };
        (0..vms).for_each(|vm| engine.attach(VmId::new(vm), VmSpec::default()));
        let (mut sent, mut lcg, mut guest_of) = (0, Lcg(1), BTreeMap::new());
        while engine.now < Instant::ZERO + LENGTH {
            for (guest, state) in states.iter_mut().enumerate() {
                while state.idle > 0 && state.next <= engine.now {
                    let id = engine.arrive(self.request(guest, sent, &mut lcg));
                    guest_of.insert(id, guest);
                    state.idle -= 1;
                    sent += u64::from(guest == 0);
                }
            }
            if let Some(oldest) = engine.oldest()
                && engine.now.since(oldest.arrived) > LIMIT
            {
                return Err(Starved { scene: self, guest: guest_of[&oldest.id], at: engine.now });
            }
            engine.pump();
            if engine.flying.is_empty() {
                engine.now = engine.hold.expect("the flood has requests queued");
                continue;
            }
            engine.wait(SERVICE);
            for request in engine.complete(0).requests {
                let guest = guest_of[&request.id];
                let idle = states[guest].idle + 1;
                states[guest] = State { idle, next: engine.now + GUESTS[guest].think };
            }
        }
        Ok(())
    }

    /// The next request of a guest; the flood's number `n`.
    fn request(self, guest: usize, n: u64, lcg: &mut Lcg) -> Arrival {
        let place = match (guest, self.flood) {
            (0, Flood::Ring) => 1_000_000 + n % 4_096 * 16,
            (0, Flood::Ahead) => 1_000_000 + n * 16,
            (0, Flood::OnePlace) => 1_000_000,
            (0, Flood::Anywhere) => lcg.below(1 << 26) * 16,
            (1, _) => 1_900_000_000,
            (2, _) => 100,
            _ => (1 << 30) + lcg.below(1 << 20) * 8,
        };
        let op = [self.op, Op::Read, Op::Write, Op::Read][guest];
        let extent = Extent::new(Lba::new(place), Sectors::new(8)).expect("on the device");
        let vm = VmId::new(if self.one_vm { 0 } else { guest as u16 });
        Arrival { vm, tag: None, op, sync: op == Op::Read, extent }
    }
}
