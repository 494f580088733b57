//! Random play of a policy that does whatever it may, against a flat model.

use super::{arrival, at};
use proptest::prelude::*;
use seekway_conformance::Lcg;
use seekway_core::request::{Completion, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, Scheduler, VmSpec};
use seekway_core::units::{Instant, Nanos, Sectors};
use seekway_stack::dispatcher::{Config, Dispatcher, Output};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// A policy that does whatever it may: whole requests, parts of any size,
/// holds, waits, in any order.
struct Whim {
    random: RefCell<Lcg>,
    queued: BTreeMap<RequestId, (u64, Request)>,
    arrivals: u64,
    /// Parts in flight of each request, and whole ones.
    out: BTreeMap<RequestId, u32>,
}

impl Whim {
    fn boxed(seed: u64) -> Box<Whim> {
        let (queued, out) = (BTreeMap::new(), BTreeMap::new());
        Box::new(Whim { random: RefCell::new(Lcg(seed)), queued, arrivals: 0, out })
    }
    fn below(&self, n: u64) -> u64 {
        self.random.borrow_mut().below(n)
    }
}

impl Scheduler for Whim {
    fn detach(&mut self, _: Instant, vm: VmId) -> Vec<Request> {
        let gone = self.queued.extract_if(.., |_, (_, r)| r.vm == vm);
        let mut gone: Vec<(u64, Request)> = gone.map(|(_, entry)| entry).collect();
        gone.sort_by_key(|&(order, _)| order);
        gone.into_iter().map(|(_, r)| r).collect()
    }
    fn arrived(&mut self, _: Instant, request: Request) {
        let old = self.queued.insert(request.id, (self.arrivals, request));
        assert!(old.is_none(), "{request:?} arrives twice");
        self.arrivals += 1;
    }
    fn withdraw(&mut self, _: Instant, id: RequestId) {
        self.queued.remove(&id).expect("what is withdrawn is queued");
    }
    fn completed(&mut self, _: Instant, end: &Completion) {
        let id = end.request.id;
        let out = self.out.get_mut(&id).expect("it was dispatched");
        *out -= 1;
        let last = *out == 0 && !self.queued.contains_key(&id);
        assert_eq!(end.last, last, "{end:?}");
        if *out == 0 {
            self.out.remove(&id);
        }
    }
    fn decide(&mut self, now: Instant, view: &DeviceView<'_>) -> Decision {
        assert!(view.unseen <= view.commands && view.commands <= view.depth);
        let n = self.queued.len() as u64;
        if n == 0 {
            return Decision::Idle;
        }
        match self.below(8) {
            0 => {
                let until = now + Nanos::from_micros(1 + self.below(3_000));
                return Decision::Hold { until, why: "whim" };
            }
            1 if view.commands > 0 => return Decision::Wait { until: None, why: "whim" },
            _ => {}
        }
        let nth = self.below(n) as usize;
        let (&id, _) = self.queued.iter().nth(nth).expect("below the length");
        *self.out.entry(id).or_default() += 1;
        let len = Sectors::new(1 + self.below(40));
        if self.below(3) == 0 {
            self.queued.remove(&id);
            return Decision::Dispatch(id);
        }
        let request = &mut self.queued.get_mut(&id).expect("it was found").1;
        match request.extent.split(len).1 {
            Some(rest) => request.extent = rest,
            None => drop(self.queued.remove(&id)),
        }
        Decision::DispatchPart { id, len }
    }
    fn full(&mut self, _: Instant, view: &DeviceView<'_>) {
        assert!(view.commands == view.depth && !self.queued.is_empty());
    }
    fn wants_full(&self) -> bool {
        self.below(2) == 0
    }
}

/// A request as the flat model has it.
struct Owed {
    request: Request,
    /// Whether each sector was sent.
    sent: Vec<bool>,
    /// Sectors that are not done.
    left: usize,
    ok: bool,
    /// Its VM has left, and it was not handed back.
    dropped: bool,
}

struct Model {
    disk: Dispatcher,
    now: Instant,
    owed: BTreeMap<RequestId, Owed>,
    /// Commands on the device with their members.
    flying: Vec<(RequestId, Vec<Request>)>,
    split: usize,
}

impl Model {
    fn new(seed: u64, depth: u32, hard_us: u64, coalesce: u64) -> Model {
        let hard_limit = Nanos::from_micros(hard_us);
        let coalesce = Sectors::new(coalesce);
        let config = Config { depth, hard_limit, coalesce, ..Config::default() };
        let profile = DeviceProfile::unknown(Sectors::new(1 << 30), false);
        let mut disk = Dispatcher::new(Whim::boxed(seed), profile, config);
        (0..2).for_each(|vm| disk.attach(at(0), VmId::new(vm), VmSpec::default()));
        Model { disk, now: at(0), owed: BTreeMap::new(), flying: Vec::new(), split: 0 }
    }

    fn arrive(&mut self, vm: u16, value: u32) {
        let op = [Op::Read, Op::Write, Op::Read, Op::Discard][value as usize % 4];
        let (start, len) = (u64::from(value) / 4 % 300, 1 + u64::from(value >> 12) % 120);
        let arrival = arrival(vm, op, start, len);
        let background = op == Op::Read && value.is_multiple_of(5);
        let id = match background {
            true => self.disk.arrive_background(self.now, arrival),
            false => self.disk.arrive(self.now, arrival),
        };
        let request = *self.disk.request(id);
        let (sent, left) = (vec![false; len as usize], len as usize);
        let owed = Owed { request, sent, left, ok: true, dropped: false };
        assert!(self.owed.insert(id, owed).is_none(), "{id:?} is given out twice");
    }

    /// Take everything that goes now; when to poll again.
    fn poll(&mut self) -> Option<Instant> {
        loop {
            match self.disk.poll(self.now) {
                Output::Dispatch(command) => self.send(&command),
                Output::WakeAt(t) => return Some(t),
                Output::Idle => return None,
            }
        }
    }

    fn send(&mut self, command: &Request) {
        let members: Vec<Request> = self.disk.members(command.id).copied().collect();
        let mut end = command.extent.start();
        for part in &members {
            let owed = self.owed.get_mut(&part.id).expect("a member is owed");
            assert_eq!((part.extent.start(), part.op, part.vm), (end, command.op, command.vm));
            assert_eq!(owed.request.extent, self.disk.request(part.id).extent);
            end = part.extent.end();
            self.split += usize::from(part.extent != owed.request.extent);
            let from = part.extent.start().distance(owed.request.extent.start()).get() as usize;
            for sector in from..from + part.extent.len().get() as usize {
                let before = std::mem::replace(&mut owed.sent[sector], true);
                assert!(!before, "sector {sector} of {:?} is sent twice", owed.request);
            }
        }
        assert_eq!(end, command.extent.end());
        assert!(self.flying.iter().all(|(id, _)| *id != command.id), "two commands of one id");
        self.flying.push((command.id, members));
    }

    fn complete(&mut self, which: usize, ok: bool) {
        if self.flying.is_empty() {
            return;
        }
        let (id, members) = self.flying.swap_remove(which % self.flying.len());
        let mut done = Vec::new();
        self.disk.complete(self.now, id, ok, &mut done);
        let mut expected = BTreeSet::new();
        for part in members {
            let owed = self.owed.get_mut(&part.id).expect("a member is owed");
            owed.left -= part.extent.len().get() as usize;
            owed.ok &= ok;
            let flies = |(_, members): &(_, Vec<Request>)| members.iter().any(|m| m.id == part.id);
            if owed.left == 0 || owed.dropped && !self.flying.iter().any(flies) {
                expected.insert(part.id);
            }
        }
        for end in &done {
            let owed = self.owed.remove(&end.request.id).expect("it completes once");
            assert_eq!(end.request, owed.request, "as it arrived");
            assert_eq!((end.ok, end.command), (owed.ok && owed.left == 0, id));
            assert!(expected.remove(&end.request.id), "{end:?} is not done");
        }
        assert!(expected.is_empty(), "done, and not told: {expected:?}");
    }

    /// A VM leaves, and comes again at once.
    fn detach(&mut self, vm: VmId) {
        for back in self.disk.detach(self.now, vm) {
            let owed = self.owed.remove(&back.id).expect("handed back once");
            assert_eq!(back, owed.request);
            let flies = self.flying.iter().any(|(_, m)| m.iter().any(|m| m.id == back.id));
            assert!(!flies, "{back:?} is on the device");
        }
        for owed in self.owed.values_mut().filter(|owed| owed.request.vm == vm) {
            owed.dropped = true;
        }
        self.disk.attach(self.now, vm, VmSpec::default());
    }

    fn step(&mut self, (what, vm, value): (u8, u8, u32)) {
        self.now = self.now + Nanos::from_micros(u64::from(value % 700));
        let vm = u16::from(vm % 2);
        match what % 32 {
            0 => self.detach(VmId::new(vm)),
            1 => self.disk.switch(self.now, Whim::boxed(u64::from(value))),
            2 => self.disk.respec(self.now, VmId::new(vm), VmSpec::default()),
            3..=16 => self.complete(value as usize, value % 9 > 0),
            _ => self.arrive(vm, value),
        }
        self.poll();
    }

    fn drain(&mut self) {
        for _ in 0..200_000 {
            let wake = self.poll();
            if !self.flying.is_empty() {
                self.now = self.now + Nanos::from_micros(10);
                self.complete(0, true);
            } else if let Some(t) = wake {
                self.now = t;
            } else {
                break;
            }
        }
        assert_eq!((self.owed.len(), self.disk.outstanding(), self.disk.in_flight()), (0, 0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn each_sector_is_sent_once_and_each_request_completes_once(
        seed in any::<u64>(),
        depth in 1u32..6,
        hard_us in prop::sample::select(vec![0, 500, 5_000, 30_000_000]),
        coalesce in prop::sample::select(vec![0, 50, 1_024]),
        steps in prop::collection::vec(any::<(u8, u8, u32)>(), 0..300),
    ) {
        let mut model = Model::new(seed, depth, hard_us, coalesce);
        steps.iter().for_each(|&step| model.step(step));
        model.drain();
        prop_assert!(model.split > 0 || steps.len() < 100 || hard_us == 0, "nothing was split");
    }
}
