//! Requests that go in parts, waits for completions, and what a policy sees of
//! the device, with policies of the tests' own so that each failure names the
//! dispatcher. The random test plays against a flat model: each sector of each
//! request is sent exactly once, each request completes exactly once, and the
//! journal replays.

mod random;

use seekway_core::request::{Completion, Extent, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_stack::dispatcher::{Arrival, Config, Dispatcher, Output};
use std::collections::BTreeSet;
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
