//! A script against one policy: VMs, requests and a device moved by hand.

use seekway_core::request::{Completion, Extent, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_policy::schedulers;
use std::num::NonZeroU32;

pub const FAR: u64 = 100_000_000;
pub const SEEK: u64 = 8_000;

pub struct Script {
    pub policy: Box<dyn Scheduler>,
    pub profile: DeviceProfile,
    pub requests: Vec<Request>,
    pub in_flight: u32,
}

/// Result of a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Did {
    Sent(usize),
    Coarse(u64),
    Fine(u64),
    Idle,
}
use Did::{Coarse, Fine, Idle, Sent};

pub fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1_000)
}

impl Script {
    /// VMs with regions of 10^6 sectors, one every 10^8.
    pub fn new(spec: &str, vms: u16) -> Script {
        let mut script = Script::bare(spec);
        for vm in 0..vms {
            script.attach(vm, 1, &[(u64::from(vm) * FAR, 1_000_000)]);
        }
        script
    }
    pub fn bare(spec: &str) -> Script {
        let seek = [1, 1 << 40].map(|d| (Sectors::new(d), Nanos::from_micros(SEEK / 2)));
        let rotation = Some(Nanos::from_micros(SEEK));
        let profile = DeviceProfile {
            capacity: Sectors::new(1 << 40),
            rotation,
            seek: seek.into(),
            stripe: None,
        };
        let policy = schedulers::build(spec).unwrap();
        Script { policy, profile, requests: Vec::new(), in_flight: 0 }
    }
    pub fn attach(&mut self, vm: u16, weight: u32, region: &[(u64, u64)]) {
        let extent = |&(s, l): &(u64, u64)| Extent::new(Lba::new(s), Sectors::new(l)).unwrap();
        let region = region.iter().map(extent).collect();
        let weight = NonZeroU32::new(weight).unwrap();
        self.policy.attach(at(0), VmId::new(vm), VmSpec { weight, region, ..VmSpec::default() });
    }
    pub fn arrive(&mut self, us: u64, vm: u16, lba: u64, op: Op) -> Did {
        let slot = self.requests.len();
        let extent = Extent::new(Lba::new(lba), Sectors::new(8)).unwrap();
        let sync = op == Op::Read;
        let id = RequestId::new(slot as u32);
        let vm = VmId::new(vm);
        let request = Request { id, vm, tag: None, op, sync, extent, arrived: at(us) };
        self.requests.push(request);
        self.policy.arrived(at(us), request);
        Sent(slot)
    }
    pub fn read(&mut self, us: u64, vm: u16, lba: u64) -> Did {
        self.arrive(us, vm, lba, Op::Read)
    }
    pub fn decide(&mut self, us: u64) -> Did {
        let device =
            DeviceView { in_flight: self.in_flight, ..DeviceView::idle(Lba::ZERO, &self.profile) };
        match self.policy.decide(at(us), &device) {
            Decision::Dispatch(id) => {
                self.in_flight += 1;
                Sent(id.slot())
            }
            Decision::Hold { until, why } => {
                assert!(until > at(us));
                let until = until.as_nanos() / 1_000;
                if why == "coarse" { Coarse(until) } else { Fine(until) }
            }
            Decision::Idle => Idle,
            other => panic!("{other:?}"),
        }
    }
    pub fn done(&mut self, us: u64, which: Did) {
        let Sent(slot) = which else { panic!("{which:?} was not sent") };
        self.in_flight -= 1;
        let request = self.requests[slot];
        let service = Nanos::from_millis(1);
        let completion = Completion::alone(request, at(us), service);
        self.policy.completed(at(us), &completion);
    }
    /// Read, dispatched at once, done 1 ms later.
    pub fn serve(&mut self, us: u64, vm: u16, lba: u64) {
        let request = self.read(us, vm, lba);
        assert_eq!(self.decide(us), request);
        self.done(us + 1_000, request);
    }
    pub fn metric(&self, name: &str) -> f64 {
        let mut value = f64::NAN;
        self.policy.metrics(&mut |n, v| {
            if n == name {
                value = v;
            }
        });
        value
    }
}

/// A sequential reader in VM 0 with a think time of `think`: its second
/// request completes at the time returned, when the one of VM 1 is queued
/// (request 2, at 0 of its region).
pub fn reader(spec: &str, think: u64) -> (Script, u64) {
    let mut s = Script::new(&format!("pregather:{spec}"), 3);
    s.serve(0, 0, 1_000);
    let second = s.read(1_000 + think, 0, 1_008);
    assert_eq!(s.decide(1_000 + think), second);
    s.read(1_000 + think, 1, FAR);
    s.done(2_000 + think, second);
    (s, 2_000 + think)
}

/// VM 0 has read zone 0 every `step` µs three times; a fourth request there
/// (at 8) completes while one far away (request 4) is queued.
pub fn zone_reader(spec: &str, step: u64) -> (Script, u64) {
    let mut s = Script::new(&format!("pregather:{spec}"), 2);
    for i in 0..3 {
        s.serve(i * step, 0, 1_000 - i * 100);
    }
    let t = 3 * step;
    let near = s.read(t, 0, 8);
    assert_eq!(s.decide(t), near);
    assert_eq!(s.read(t, 0, 500_000), Sent(4));
    s.done(t + 1_000, near);
    (s, t + 1_000)
}
