//! The policies' unit tests share this bench: one policy, fed and asked by hand.

use seekway_core::request::{Completion, Extent, Op, ProcessTag, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use std::num::NonZeroU32;

/// A policy with a clock and a device that the test moves.
pub struct Rig {
    pub policy: Box<dyn Scheduler>,
    pub now: Instant,
    pub head: Lba,
    profile: DeviceProfile,
    queued: Vec<Request>,
    flying: Vec<(Request, Instant)>,
    slots: u32,
}

impl Rig {
    /// The policy of that specification, with VMs 0 to 3 of weight 1 on a disk.
    pub fn new(spec: &str) -> Rig {
        Rig::with_weights(spec, &[1, 1, 1, 1])
    }

    /// As [`Rig::new`], with VMs of these weights.
    pub fn with_weights(spec: &str, weights: &[u32]) -> Rig {
        let mut policy = super::build(spec).unwrap();
        for (vm, &weight) in weights.iter().enumerate() {
            let weight = NonZeroU32::new(weight).unwrap();
            let spec = VmSpec { weight, ..VmSpec::default() };
            policy.attach(Instant::ZERO, VmId::new(vm as u16), spec);
        }
        let profile = DeviceProfile::unknown(Sectors::new(1 << 31), true);
        let (queued, flying) = (Vec::new(), Vec::new());
        Rig { policy, now: Instant::ZERO, head: Lba::ZERO, profile, queued, flying, slots: 0 }
    }

    /// A VM leaves with all that it has queued, and comes again with weight 1.
    pub fn leave_and_come_again(&mut self, vm: u16) {
        let vm = VmId::new(vm);
        let left = self.policy.detach(self.now, vm);
        self.queued.retain(|queued| left.iter().all(|gone| gone.id != queued.id));
        self.policy.attach(self.now, vm, VmSpec::default());
    }

    /// A queued request is taken back.
    pub fn withdraw(&mut self, id: RequestId) {
        self.queued.retain(|queued| queued.id != id);
        self.policy.withdraw(self.now, id);
    }

    /// Turn the disk into an SSD.
    pub fn solid(mut self) -> Rig {
        self.profile.rotation = None;
        self
    }

    pub fn arrive(&mut self, vm: u16, tag: u16, op: Op, sync: bool, lba: u64) -> RequestId {
        self.arrive_long(vm, tag, op, sync, lba, 8)
    }
    /// A read of that many sectors.
    pub fn read_long(&mut self, vm: u16, lba: u64, sectors: u64) -> RequestId {
        self.arrive_long(vm, 0, Op::Read, true, lba, sectors)
    }
    /// A write of that many sectors that nobody waits for.
    pub fn write_long(&mut self, vm: u16, lba: u64, sectors: u64) -> RequestId {
        self.arrive_long(vm, 0, Op::Write, false, lba, sectors)
    }
    fn arrive_long(
        &mut self,
        vm: u16,
        tag: u16,
        op: Op,
        sync: bool,
        lba: u64,
        sectors: u64,
    ) -> RequestId {
        let id = RequestId::new(self.slots);
        self.slots += 1;
        let extent = Extent::new(Lba::new(lba), Sectors::new(sectors)).unwrap();
        let (vm, tag) = (VmId::new(vm), ProcessTag::new(tag));
        let request = Request { id, vm, tag, op, sync, extent, arrived: self.now };
        self.queued.push(request);
        self.policy.arrived(self.now, request);
        id
    }
    /// A read of 8 sectors.
    pub fn read(&mut self, vm: u16, lba: u64) -> RequestId {
        self.arrive(vm, 0, Op::Read, true, lba)
    }
    /// Reads of 8 sectors, one at each address.
    pub fn reads(&mut self, vm: u16, lbas: impl IntoIterator<Item = u64>) {
        for lba in lbas {
            self.read(vm, lba);
        }
    }
    /// Writes of 8 sectors that nobody waits for, one at each address.
    pub fn writes(&mut self, vm: u16, lbas: impl IntoIterator<Item = u64>) {
        for lba in lbas {
            self.write(vm, lba);
        }
    }
    /// A write of 8 sectors that nobody waits for.
    pub fn write(&mut self, vm: u16, lba: u64) -> RequestId {
        self.arrive(vm, 0, Op::Write, false, lba)
    }

    /// Ask, and carry a dispatch out.
    pub fn decide(&mut self) -> Decision {
        let in_flight = self.flying.len() as u32;
        let view = DeviceView {
            in_flight,
            commands: in_flight,
            depth: u32::MAX,
            ..DeviceView::idle(self.head, &self.profile)
        };
        let decision = self.policy.decide(self.now, &view);
        if let Decision::Dispatch(id) = decision {
            let at = self.queued.iter().position(|r| r.id == id).expect("not queued");
            let request = self.queued.remove(at);
            self.head = request.extent.end();
            self.flying.push((request, self.now));
        }
        decision
    }
    /// Ask, expect a dispatch, and hand back its first sector.
    pub fn dispatch(&mut self) -> u64 {
        match self.decide() {
            Decision::Dispatch(_) => self.flying.last().unwrap().0.extent.start().get(),
            other => panic!("expected a dispatch at {}: {other:?}", self.now),
        }
    }
    /// Ask, expect a hold, and hand back how many microseconds from now it lasts.
    pub fn hold_us(&mut self, expected: &str) -> u64 {
        match self.decide() {
            Decision::Hold { until, why } if why == expected => (until - self.now).get() / 1_000,
            other => panic!("expected {expected:?} at {}: {other:?}", self.now),
        }
    }

    /// Number of requests that a VM has queued.
    pub fn queued_of(&self, vm: u16) -> usize {
        self.queued.iter().filter(|queued| queued.vm == VmId::new(vm)).count()
    }
    /// The request that was dispatched last.
    pub fn newest_in_flight(&self) -> Request {
        self.flying[self.flying.len() - 1].0
    }
    /// The oldest request in flight.
    pub fn oldest_in_flight(&self) -> Request {
        self.flying[0].0
    }
    /// The oldest request in flight completes now.
    pub fn complete(&mut self) {
        let (request, dispatched) = self.flying.remove(0);
        let service = self.now - dispatched;
        self.policy.completed(self.now, &Completion::alone(request, dispatched, service));
    }
    /// Dispatch, complete `us` later, and hand back the first sector.
    pub fn serve(&mut self, us: u64) -> u64 {
        let lba = self.dispatch();
        self.wait_us(us);
        self.complete();
        lba
    }
    /// As [`Rig::serve`], after waiting for the ends of holds.
    pub fn serve_late(&mut self, us: u64) -> u64 {
        loop {
            match self.decide() {
                Decision::Hold { until, .. } => self.now = until,
                Decision::Dispatch(_) => break,
                other => panic!("expected a dispatch or a hold at {}: {other:?}", self.now),
            }
        }
        let lba = self.flying.last().unwrap().0.extent.start().get();
        self.wait_us(us);
        self.complete();
        lba
    }
    /// Serve `n` requests, 100 µs each; their first sectors.
    pub fn serve_n(&mut self, n: usize) -> Vec<u64> {
        (0..n).map(|_| self.serve(100)).collect()
    }

    pub fn wait_us(&mut self, us: u64) {
        self.now = self.now + Nanos::from_micros(us);
    }
    pub fn wait_ms(&mut self, ms: u64) {
        self.wait_us(ms * 1_000);
    }
    pub fn is_idle(&mut self) -> bool {
        self.decide() == Decision::Idle
    }
    /// A figure of the policy's own.
    pub fn metric(&self, name: &str) -> f64 {
        let mut found = None;
        self.policy.metrics(&mut |key, value| {
            if key == name {
                found = Some(value);
            }
        });
        found.unwrap_or_else(|| panic!("no metric {name}"))
    }
    /// A figure that the policy has of a VM, if it has it.
    pub fn vm_metric(&self, vm: u16, name: &str) -> Option<f64> {
        let mut found = None;
        self.policy.vm_metrics(&mut |key, of, value| {
            if (key, of) == (name, VmId::new(vm)) {
                found = Some(value);
            }
        });
        found
    }
}
