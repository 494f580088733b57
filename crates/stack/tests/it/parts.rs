//! Requests that go in parts, waits for completions, and what a policy sees of
//! the device, with policies of the tests' own so that each failure names the
//! dispatcher. The random test plays against a flat model: each sector of each
//! request is sent exactly once, each request completes exactly once, and the
//! journal replays.

use proptest::prelude::*;
use seekway_conformance::Lcg;
use seekway_core::request::{Completion, Extent, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_stack::dispatcher::{Arrival, Config, Dispatcher, Output};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

const VM: VmId = VmId::new(0);

fn at(us: u64) -> Instant {
    Instant::ZERO + Nanos::from_micros(us)
}

fn arrival(vm: u16, op: Op, start: u64, len: u64) -> Arrival {
    let extent = Extent::new(Lba::new(start), Sectors::new(len)).unwrap();
    Arrival { vm: VmId::new(vm), tag: None, op, sync: op == Op::Read, extent }
}

/// A policy's view in a test.
#[derive(Default)]
struct Seen {
    completions: Vec<Completion>,
    /// (depth, commands, unseen, in_flight) at each decision.
    views: Vec<(u32, u32, u32, u32)>,
    full: usize,
    withdrawn: Vec<RequestId>,
}

/// A FIFO that sends parts of at most `part` sectors, and waits while `window`
/// of its commands are in flight.
struct Fifo {
    part: u64,
    window: u32,
    queued: Vec<Request>,
    seen: Arc<Mutex<Seen>>,
}

impl Fifo {
    fn new(part: u64, window: u32) -> (Box<Fifo>, Arc<Mutex<Seen>>) {
        let seen = Arc::new(Mutex::new(Seen::default()));
        (Box::new(Fifo { part, window, queued: Vec::new(), seen: seen.clone() }), seen)
    }
}

impl Scheduler for Fifo {
    fn detach(&mut self, _: Instant, vm: VmId) -> Vec<Request> {
        self.queued.extract_if(.., |r| r.vm == vm).collect()
    }
    fn arrived(&mut self, _: Instant, request: Request) {
        self.queued.push(request);
    }
    fn withdraw(&mut self, _: Instant, id: RequestId) {
        let at = self.queued.iter().position(|r| r.id == id).expect("it is queued");
        self.queued.remove(at);
        self.seen.lock().unwrap().withdrawn.push(id);
    }
    fn completed(&mut self, _: Instant, completion: &Completion) {
        self.seen.lock().unwrap().completions.push(*completion);
    }
    fn decide(&mut self, _: Instant, view: &DeviceView<'_>) -> Decision {
        let DeviceView { depth, commands, unseen, in_flight, .. } = *view;
        self.seen.lock().unwrap().views.push((depth, commands, unseen, in_flight));
        if commands - unseen >= self.window {
            return Decision::Wait { until: None, why: "window" };
        }
        let len = Sectors::new(self.part);
        let Some(first) = self.queued.first_mut() else { return Decision::Idle };
        let id = first.id;
        match first.extent.split(len).1 {
            Some(rest) => first.extent = rest,
            None => drop(self.queued.remove(0)),
        }
        Decision::DispatchPart { id, len }
    }
    fn full(&mut self, _: Instant, view: &DeviceView<'_>) {
        assert_eq!(view.commands, view.depth);
        self.seen.lock().unwrap().full += 1;
    }
    fn wants_full(&self) -> bool {
        true
    }
}

fn dispatcher(policy: Box<dyn Scheduler>, config: Config) -> Dispatcher {
    let profile = DeviceProfile::unknown(Sectors::new(1 << 30), false);
    let mut d = Dispatcher::new(policy, profile, config);
    d.attach(at(0), VM, VmSpec::default());
    d
}

/// Poll once and expect a command; its id and its extent as `start+len`.
fn command(d: &mut Dispatcher, now: Instant) -> (RequestId, String) {
    match d.poll(now) {
        Output::Dispatch(c) => (c.id, c.extent.to_string()),
        other => panic!("expected a command, got {other:?}"),
    }
}

fn finish(d: &mut Dispatcher, now: Instant, id: RequestId, ok: bool) -> Vec<Completion> {
    let mut done = Vec::new();
    d.complete(now, id, ok, &mut done);
    done
}

#[test]
fn a_request_in_parts_completes_once_when_the_last_is_done() {
    let (policy, seen) = Fifo::new(64, 9);
    let mut d = dispatcher(policy, Config { depth: 3, ..Config::default() });
    let id = d.arrive(at(0), arrival(0, Op::Write, 1_000, 150));
    let parts: Vec<_> = (0..3).map(|n| command(&mut d, at(n))).collect();
    let extents: Vec<&str> = parts.iter().map(|(_, extent)| &extent[..]).collect();
    assert_eq!(extents, ["1000+64", "1064+64", "1128+22"]);
    assert_eq!(parts.iter().map(|p| p.0).collect::<BTreeSet<_>>().len(), 3, "ids of their own");
    let member = *d.members(parts[1].0).next().unwrap();
    assert_eq!((member.id, member.extent.to_string()), (id, "1064+64".into()));
    assert_eq!(d.request(id).extent.to_string(), "1000+150", "to tell which part of it");
    assert_eq!(d.outstanding(), 1, "parts are no requests");
    assert_eq!(finish(&mut d, at(10), parts[2].0, true), []);
    assert_eq!(finish(&mut d, at(20), parts[0].0, false), []);
    let done = finish(&mut d, at(25), parts[1].0, true);
    let [whole] = done[..] else { panic!("{done:?}") };
    assert_eq!((whole.request.id, whole.request.extent.len()), (id, Sectors::new(150)));
    assert_eq!((whole.ok, whole.last, whole.dispatched), (false, true, at(0)));
    assert_eq!(whole.service, Nanos::from_micros(8 + 10 + 5), "the sum of the parts'");
    assert_eq!((d.stats().requests, d.stats().commands, d.outstanding()), (1, 3, 0));
    let told = &seen.lock().unwrap().completions;
    let told: Vec<_> =
        told.iter().map(|c| (c.command, c.request.id, c.request.extent.len(), c.last)).collect();
    let part = |n: usize, len, last| (parts[n].0, id, Sectors::new(len), last);
    assert_eq!(told, [part(2, 22, false), part(0, 64, false), part(1, 64, true)]);
}

#[test]
fn a_limit_bounds_what_is_coalesced() {
    let (policy, seen) = Fifo::new(16, 9);
    let mut d = dispatcher(policy, Config { depth: 9, ..Config::default() });
    for n in 0..4 {
        d.arrive(at(0), arrival(0, Op::Read, 8 * n, 8));
    }
    let (first, extent) = command(&mut d, at(0));
    assert_eq!((&extent[..], d.members(first).count()), ("0+16", 2));
    assert_eq!(command(&mut d, at(0)).1, "16+16");
    assert_eq!(finish(&mut d, at(1), first, true).len(), 2);
    let told = &seen.lock().unwrap().completions;
    assert!(told.iter().all(|c| c.command == first && c.last), "{told:?}");
}

#[test]
fn past_the_hard_limit_the_rest_goes_as_one() {
    let (policy, seen) = Fifo::new(10, 1);
    let config = Config { depth: 2, hard_limit: Nanos::from_micros(50), ..Config::default() };
    let mut d = dispatcher(policy, config);
    let id = d.arrive(at(0), arrival(0, Op::Read, 0, 100));
    let (part, extent) = command(&mut d, at(0));
    // The policy waits for the part; if that is never done, the rest has its limit.
    let limit = Output::WakeAt(at(50) + Nanos::new(1));
    assert_eq!((&extent[..], d.poll(at(1))), ("0+10", limit));
    let (rest, extent) = command(&mut d, at(60));
    assert_eq!((extent, d.stats().forced), ("10+90".into(), 1));
    assert_eq!(finish(&mut d, at(70), rest, true), []);
    let done = finish(&mut d, at(80), part, true);
    assert_eq!(done.iter().map(|c| c.request.extent.len().get()).collect::<Vec<_>>(), [100]);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.withdrawn, [id]);
    // Only the part that it sent itself, which is the last that it will hear of.
    let told: Vec<_> = seen.completions.iter().map(|c| (c.request.extent.len(), c.last)).collect();
    assert_eq!(told, [(Sectors::new(10), true)]);
}

#[test]
fn a_vm_that_leaves_fails_what_has_gone_in_part() {
    for (finish_first, handed_back) in [(true, 1), (false, 0)] {
        let (policy, _) = Fifo::new(10, 1);
        let mut d = dispatcher(policy, Config { depth: 2, ..Config::default() });
        d.arrive(at(0), arrival(0, Op::Read, 0, 100));
        let (part, _) = command(&mut d, at(0));
        if finish_first {
            assert_eq!(finish(&mut d, at(1), part, true), []);
        }
        let back = d.detach(at(2), VM);
        assert_eq!(back.len(), handed_back);
        assert!(back.iter().all(|r| r.extent.len() == Sectors::new(100)), "whole: {back:?}");
        if !finish_first {
            let done = finish(&mut d, at(3), part, true);
            assert_eq!(done.iter().map(|c| c.ok).collect::<Vec<_>>(), [false]);
        }
        assert_eq!((d.outstanding(), d.in_flight(), d.poll(at(4))), (0, 0, Output::Idle));
    }
}

#[test]
fn another_policy_gets_the_rest_and_hears_nothing_of_earlier_parts() {
    let (policy, old) = Fifo::new(10, 1);
    let mut d = dispatcher(policy, Config { depth: 4, ..Config::default() });
    let id = d.arrive(at(0), arrival(0, Op::Read, 0, 25));
    let (first, _) = command(&mut d, at(0));
    let (policy, new) = Fifo::new(10, 9);
    d.switch(at(1), policy);
    let (second, extent) = command(&mut d, at(1));
    assert_eq!(extent, "10+10");
    let (third, extent) = command(&mut d, at(1));
    assert_eq!(extent, "20+5");
    assert_eq!(new.lock().unwrap().views[0], (4, 1, 1, 1), "the old part is unseen load");
    assert_eq!(finish(&mut d, at(2), third, true), []);
    assert_eq!(finish(&mut d, at(3), second, true), []);
    assert_eq!(finish(&mut d, at(4), first, true)[0].request.id, id);
    let told: Vec<bool> = new.lock().unwrap().completions.iter().map(|c| c.last).collect();
    assert_eq!(told, [false, true], "its own parts only");
    assert!(old.lock().unwrap().completions.is_empty());
}

#[test]
fn discards_wait_for_every_part() {
    let (policy, seen) = Fifo::new(10, 9);
    let mut d = dispatcher(policy, Config { depth: 2, ..Config::default() });
    d.arrive(at(0), arrival(0, Op::Write, 0, 20));
    let parts = [command(&mut d, at(0)).0, command(&mut d, at(0)).0];
    d.arrive(at(1), arrival(0, Op::Discard, 0, 5));
    d.arrive(at(1), arrival(0, Op::Read, 4, 4));
    assert_eq!(finish(&mut d, at(2), parts[0], true), []);
    assert_eq!(d.poll(at(2)), Output::Idle, "the write is half done");
    finish(&mut d, at(3), parts[1], true);
    let (discard, extent) = command(&mut d, at(3));
    assert_eq!((&extent[..], d.poll(at(3))), ("0+5", Output::Idle));
    finish(&mut d, at(4), discard, true);
    assert_eq!(command(&mut d, at(4)).1, "4+4");
    assert_eq!(seen.lock().unwrap().completions.len(), 2);
}

#[test]
fn a_wait_ends_with_a_completion_and_its_time_is_counted() {
    let (policy, seen) = Fifo::new(1_000, 1);
    let mut d = dispatcher(policy, Config { depth: 2, ..Config::default() });
    d.arrive(at(0), arrival(0, Op::Read, 0, 8));
    let (first, _) = command(&mut d, at(0));
    d.arrive(at(10), arrival(0, Op::Read, 900, 8));
    let limit = Output::WakeAt(at(10) + Config::default().hard_limit + Nanos::new(1));
    assert_eq!(d.poll(at(10)), limit);
    // A flush takes the second place for 5 µs: no room, and so nothing withheld.
    d.arrive(at(20), arrival(0, Op::Flush, 0, 1));
    let (flush, _) = command(&mut d, at(20));
    assert_eq!(d.poll(at(20)), Output::Idle);
    finish(&mut d, at(25), flush, true);
    assert_eq!(d.poll(at(25)), limit);
    finish(&mut d, at(40), first, true);
    assert_eq!(command(&mut d, at(40)).1, "900+8");
    let cause = d.holds().held.get("window");
    assert_eq!((cause.time, cause.count), (Nanos::from_micros(10 + 15), 2));
    assert_eq!((d.holds().tried, d.holds().paid), (0, 0), "the device was never idle");
    let seen = seen.lock().unwrap();
    assert_eq!(seen.full, 1);
    assert!(seen.views.contains(&(2, 1, 0, 1)), "{:?}", seen.views);
}

#[test]
#[should_panic(expected = "nothing in flight")]
fn a_wait_of_an_idle_device_is_a_bug() {
    let mut d = dispatcher(Fifo::new(8, 0).0, Config::default());
    d.arrive(at(0), arrival(0, Op::Read, 0, 8));
    d.poll(at(0));
}

#[test]
fn what_a_policy_does_not_see_is_in_its_view() {
    let (policy, seen) = Fifo::new(1_000, 9);
    let config = Config { depth: 9, hard_limit: Nanos::from_micros(50), ..Config::default() };
    let mut d = dispatcher(policy, config);
    d.arrive_background(at(0), arrival(0, Op::Read, 5_000, 8));
    command(&mut d, at(0));
    d.arrive(at(0), arrival(0, Op::Flush, 0, 1));
    command(&mut d, at(0));
    for n in 0..2 {
        d.arrive(at(0), arrival(0, Op::Read, 100 * n, 8));
    }
    // Past the limit: the first is forced, the second is the policy's.
    command(&mut d, at(60));
    command(&mut d, at(60));
    assert_eq!(d.stats().forced, 1);
    d.arrive(at(60), arrival(0, Op::Read, 900, 8));
    command(&mut d, at(60));
    let seen = seen.lock().unwrap();
    assert_eq!(seen.views, [(9, 3, 3, 2), (9, 4, 3, 3)]);
}

// Random play of a policy that does whatever it may, against a flat model.

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
