//! The dispatcher's invariants, with policies of the tests' own so that each
//! failure names the dispatcher: coalescing, staging, the hard limit, barriers,
//! detach, switching and replay.

use seekway_core::request::{Completion, Extent, Op, ProcessTag, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_policy::schedulers;
use seekway_stack::dispatcher::{Arrival, Config, Dispatcher, Output};
use std::num::NonZeroU32;

const VM: VmId = VmId::new(0);

fn at(ms: u64) -> Instant {
    Instant::ZERO + Nanos::from_millis(ms)
}

fn arrival(vm: u16, op: Op, start: u64, len: u64) -> Arrival {
    let extent = Extent::new(Lba::new(start), Sectors::new(len)).unwrap();
    Arrival { vm: VmId::new(vm), tag: None, op, sync: op == Op::Read, extent }
}

fn dispatcher(policy: Box<dyn Scheduler>, config: Config) -> Dispatcher {
    let profile = DeviceProfile::unknown(Sectors::new(1 << 30), true);
    let mut d = Dispatcher::new(policy, profile, config);
    d.attach(at(0), VM, VmSpec::default());
    d
}

fn noop(config: Config) -> Dispatcher {
    dispatcher(schedulers::build("noop").unwrap(), config)
}

/// Poll once and expect a command; its extent as `start+len`.
fn command(d: &mut Dispatcher, now: Instant) -> (RequestId, String) {
    match d.poll(now) {
        Output::Dispatch(c) => (c.id, c.extent.to_string()),
        other => panic!("expected a command, got {other:?}"),
    }
}

fn finish(d: &mut Dispatcher, now: Instant, id: RequestId) -> usize {
    let mut done = Vec::new();
    d.complete(now, id, true, &mut done);
    done.len()
}

#[test]
fn adjacent_requests_become_one_command_up_to_the_limit() {
    let mut d = noop(Config { coalesce: Sectors::new(24), ..Config::default() });
    for n in 0..5 {
        d.arrive(at(0), arrival(0, Op::Read, 100 + 8 * n, 8));
    }
    let (first, extent) = command(&mut d, at(0));
    assert_eq!(extent, "100+24");
    assert_eq!(d.members(first).count(), 3);
    assert_eq!(d.poll(at(0)), Output::Idle, "depth 1: the device is busy");
    assert_eq!(finish(&mut d, at(8), first), 3);
    assert_eq!(command(&mut d, at(8)).1, "124+16");
}

#[test]
fn other_vm_other_direction_and_gaps_do_not_coalesce() {
    let mut d = noop(Config { depth: 9, ..Config::default() });
    d.attach(at(0), VmId::new(1), VmSpec::default());
    d.arrive(at(0), arrival(0, Op::Read, 100, 8));
    d.arrive(at(0), arrival(1, Op::Read, 108, 8));
    d.arrive(at(0), arrival(0, Op::Write, 108, 8));
    d.arrive(at(0), arrival(0, Op::Read, 109, 8));
    let extents: Vec<String> = (0..4).map(|_| command(&mut d, at(0)).1).collect();
    assert_eq!(extents, ["100+8", "108+8", "108+8", "109+8"]);
}

#[test]
fn a_decision_that_continues_nothing_is_the_next_command() {
    let mut d = noop(Config::default());
    for start in [100, 500, 108] {
        d.arrive(at(0), arrival(0, Op::Read, start, 8));
    }
    let (first, extent) = command(&mut d, at(0));
    assert_eq!(extent, "100+8", "the FIFO's next is 500, though 108 is queued");
    finish(&mut d, at(8), first);
    let (second, extent) = command(&mut d, at(8));
    assert_eq!(extent, "500+8");
    finish(&mut d, at(9), second);
    assert_eq!(command(&mut d, at(9)).1, "108+8");
    assert_eq!(d.stats().commands, 3);
}

#[test]
fn discards_wait_for_earlier_and_hold_back_later_overlapping_requests() {
    let mut d = noop(Config { depth: 9, coalesce: Sectors::ZERO, ..Config::default() });
    d.arrive(at(0), arrival(0, Op::Write, 100, 8));
    d.arrive(at(0), arrival(0, Op::Discard, 96, 8));
    d.arrive(at(0), arrival(0, Op::Read, 96, 8));
    d.arrive(at(0), arrival(0, Op::Read, 104, 8));
    let (write, extent) = command(&mut d, at(0));
    assert_eq!(extent, "100+8");
    assert_eq!(command(&mut d, at(0)).1, "104+8", "does not overlap the discard");
    assert_eq!(d.poll(at(0)), Output::Idle);
    finish(&mut d, at(1), write);
    let (discard, extent) = command(&mut d, at(1));
    assert_eq!(extent, "96+8");
    assert_eq!(d.poll(at(1)), Output::Idle);
    finish(&mut d, at(2), discard);
    assert_eq!(command(&mut d, at(2)).1, "96+8");
}

#[test]
fn barriers_keep_their_order_among_each_other() {
    let mut d = noop(Config { depth: 9, ..Config::default() });
    d.arrive(at(0), arrival(0, Op::Discard, 96, 8));
    d.arrive(at(0), arrival(0, Op::WriteZeroes, 100, 8));
    d.arrive(at(0), arrival(0, Op::Read, 104, 4)); // overlaps the second only
    let (first, _) = command(&mut d, at(0));
    assert_eq!(d.poll(at(0)), Output::Idle);
    finish(&mut d, at(1), first);
    let (second, extent) = command(&mut d, at(1));
    assert_eq!(extent, "100+8");
    assert_eq!(d.poll(at(1)), Output::Idle);
    finish(&mut d, at(2), second);
    assert_eq!(command(&mut d, at(2)).1, "104+4");
}

#[test]
fn flushes_pass_the_queue() {
    let mut d = noop(Config::default());
    d.arrive(at(0), arrival(0, Op::Read, 0, 8));
    d.arrive(at(0), arrival(0, Op::Flush, 0, 1));
    let Output::Dispatch(c) = d.poll(at(0)) else { panic!() };
    assert_eq!(c.op, Op::Flush);
}

/// Serves its newest request, holds every request for `hold`.
struct Stubborn {
    queued: Vec<Request>,
    hold: Nanos,
    completed: u32,
}

impl Stubborn {
    fn boxed(hold: Nanos) -> Box<Self> {
        Box::new(Stubborn { queued: Vec::new(), hold, completed: 0 })
    }
}

impl Scheduler for Stubborn {
    fn detach(&mut self, _now: Instant, vm: VmId) -> Vec<Request> {
        self.queued.extract_if(.., |r| r.vm == vm).collect()
    }
    fn arrived(&mut self, _now: Instant, request: Request) {
        self.queued.push(request);
    }
    fn withdraw(&mut self, _now: Instant, id: RequestId) {
        self.queued.retain(|r| r.id != id);
    }
    fn completed(&mut self, _now: Instant, _completion: &Completion) {
        self.completed += 1;
    }
    fn decide(&mut self, now: Instant, _device: &DeviceView<'_>) -> Decision {
        let Some(newest) = self.queued.last() else { return Decision::Idle };
        let until = newest.arrived + self.hold;
        if now < until {
            return Decision::Hold { until, why: "fine" };
        }
        Decision::Dispatch(self.queued.pop().unwrap().id)
    }
    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("completed", self.completed.into());
    }
}

#[test]
fn the_hard_limit_overrides_the_policy_and_counts() {
    let config = Config { hard_limit: Nanos::from_millis(50), ..Config::default() };
    let mut d = dispatcher(Stubborn::boxed(Nanos::ZERO), config);
    let oldest = d.arrive(at(0), arrival(0, Op::Read, 1000, 8));
    let mut order = Vec::new();
    for n in 0..20 {
        let now = at(10 * n);
        d.arrive(now, arrival(0, Op::Read, 5_000 - 100 * n, 8));
        let (id, extent) = command(&mut d, now);
        order.push(extent);
        finish(&mut d, now + Nanos::from_millis(5), id);
    }
    assert_eq!(order.iter().filter(|e| *e == "1000+8").count(), 1, "served once: {order:?}");
    assert_eq!(order[6], "1000+8", "at 60 ms it is the first past its limit");
    assert!(d.stats().forced >= 1);
    let _ = oldest;
    // The policy has forgotten what was forced: nothing is left, nothing comes twice.
    let mut left = Vec::new();
    while let Output::Dispatch(c) = d.poll(at(300)) {
        left.push(c.extent);
        finish(&mut d, at(300), c.id);
    }
    assert_eq!(left.len() + order.len(), 21);
    assert_eq!(d.outstanding(), 0);
    let mut completed = 0.0;
    d.policy_metrics(&mut |_, v| completed = v);
    let forced = d.stats().forced as f64;
    assert_eq!(completed, 21.0 - forced, "the policy hears of what it dispatched, once");
}

#[test]
fn a_policy_that_only_holds_meets_the_hard_limit_too() {
    struct Holder(Vec<Request>);
    impl Scheduler for Holder {
        fn detach(&mut self, _now: Instant, _vm: VmId) -> Vec<Request> {
            std::mem::take(&mut self.0)
        }
        fn arrived(&mut self, _now: Instant, request: Request) {
            self.0.push(request);
        }
        fn withdraw(&mut self, _now: Instant, id: RequestId) {
            self.0.retain(|r| r.id != id);
        }
        fn decide(&mut self, now: Instant, _device: &DeviceView<'_>) -> Decision {
            Decision::Hold { until: now + Nanos::from_secs(1), why: "fine" }
        }
    }
    let config = Config { hard_limit: Nanos::from_millis(50), ..Config::default() };
    let mut d = dispatcher(Box::new(Holder(Vec::new())), config);
    d.arrive(at(0), arrival(0, Op::Read, 100, 8));
    let limit = at(50) + Nanos::new(1);
    assert_eq!(d.poll(at(0)), Output::WakeAt(limit), "not the hold's end");
    assert_eq!(command(&mut d, limit).1, "100+8");
    d.arrive(at(60), arrival(0, Op::Read, 300, 8));
    // The next comes after four refusals, and not at every poll.
    let (mut now, mut polls) = (at(200), 0);
    finish(&mut d, now, RequestId::new(0));
    while let Output::WakeAt(t) = d.poll(now) {
        (now, polls) = (t, polls + 1);
    }
    assert_eq!((polls, d.stats().forced), (4, 2));
}

#[test]
fn what_is_forced_past_a_policy_leaves_nothing_behind() {
    let config = Config { hard_limit: Nanos::from_millis(1), ..Config::default() };
    let mut d = dispatcher(Stubborn::boxed(Nanos::ZERO), config);
    let mut most = 0;
    // Ten are outstanding, and the newest goes first: the others are forced in
    // the end.
    for n in 0..20_000 {
        d.arrive(at(n), arrival(0, Op::Read, 20 * n, 8));
        if n >= 10 {
            let (id, _) = command(&mut d, at(n));
            finish(&mut d, at(n), id);
        }
        most = most.max(d.outstanding());
    }
    assert!(d.stats().forced > 3_000, "{:?}", d.stats());
    assert_eq!(most, 10, "slots for ten requests");
}

#[test]
fn waits_are_counted_and_pay_only_when_an_arrival_ends_them() {
    let mut d = dispatcher(Stubborn::boxed(Nanos::from_millis(10)), Config::default());
    d.arrive(at(0), arrival(0, Op::Read, 100, 8));
    assert_eq!(d.poll(at(0)), Output::WakeAt(at(10)));
    let (id, _) = command(&mut d, at(10));
    finish(&mut d, at(11), id);
    let holds = d.holds();
    assert_eq!((holds.tried, holds.paid), (1, 0));
    assert_eq!(holds.held.time("fine"), Nanos::from_millis(10));
}

#[test]
fn a_wait_that_an_arrival_ends_has_paid() {
    let mut d = dispatcher(schedulers::build("cfq").unwrap(), Config::default());
    d.attach(at(0), VmId::new(1), VmSpec::default());
    d.arrive(at(0), arrival(0, Op::Read, 100, 8));
    d.arrive(at(0), arrival(1, Op::Read, 900_000, 8));
    let (id, _) = command(&mut d, at(0));
    finish(&mut d, at(5), id);
    assert_eq!(d.poll(at(5)), Output::WakeAt(at(13)));
    d.arrive(at(7), arrival(0, Op::Read, 200, 8));
    assert_eq!(command(&mut d, at(7)).1, "200+8");
    let holds = d.holds();
    assert_eq!((holds.tried, holds.paid), (1, 1));
    assert_eq!(holds.held.time("anticipation"), Nanos::from_millis(2));
}

#[test]
#[should_panic(expected = "policy holds until")]
fn a_hold_without_bound_is_a_bug() {
    let mut d = dispatcher(Stubborn::boxed(Nanos::from_secs(11)), Config::default());
    d.arrive(at(0), arrival(0, Op::Read, 100, 8));
    d.poll(at(0));
}

#[test]
fn the_time_in_which_a_vm_waits_for_its_turn_is_counted_once() {
    let mut d = noop(Config { coalesce: Sectors::ZERO, ..Config::default() });
    let other = VmId::new(1);
    d.attach(at(0), other, VmSpec::default());
    d.arrive(at(0), arrival(0, Op::Read, 100, 8));
    let (first, _) = command(&mut d, at(0));
    assert_eq!(d.queued_time(at(10), VM), Nanos::ZERO, "it is on the device");
    // Two at a time wait once; a flush is no read or write.
    d.arrive(at(10), arrival(1, Op::Read, 500, 8));
    d.arrive(at(11), arrival(1, Op::Read, 900, 8));
    d.arrive(at(12), arrival(0, Op::Flush, 0, 1));
    assert_eq!(d.queued_time(at(15), other), Nanos::from_millis(5));
    // Neither another weight nor another policy begins anew.
    d.respec(at(16), other, VmSpec { weight: NonZeroU32::new(5).unwrap(), ..VmSpec::default() });
    d.switch(at(17), schedulers::build("noop").unwrap());
    finish(&mut d, at(20), first);
    let (flush, _) = command(&mut d, at(20));
    finish(&mut d, at(21), flush);
    let (second, _) = command(&mut d, at(21));
    finish(&mut d, at(30), second);
    command(&mut d, at(30));
    assert_eq!(d.queued_time(at(99), other), Nanos::from_millis(20));
    assert_eq!(d.queued_time(at(99), VM), Nanos::ZERO);
    d.detach(at(99), other);
    assert_eq!(d.queued_time(at(99), other), Nanos::ZERO);
}

#[test]
fn detach_hands_back_everything_that_has_not_gone() {
    let mut d = noop(Config { coalesce: Sectors::new(64), ..Config::default() });
    for start in [100, 500, 108] {
        d.arrive(at(0), arrival(0, Op::Read, start, 8)); // 500 will be staged
    }
    d.arrive(at(0), arrival(0, Op::Discard, 500, 8));
    d.arrive(at(0), arrival(0, Op::Write, 500, 8));
    let (first, _) = command(&mut d, at(0));
    let starts: Vec<u64> = d.detach(at(1), VM).iter().map(|r| r.extent.start().get()).collect();
    assert_eq!(starts, [500, 108, 500, 500], "in order of arrival, barriers included");
    assert_eq!(finish(&mut d, at(2), first), 1);
    assert_eq!((d.outstanding(), d.poll(at(3))), (0, Output::Idle));
}

#[test]
fn the_policy_hears_of_a_staged_request_whose_vm_leaves() {
    let mut d = dispatcher(Stubborn::boxed(Nanos::ZERO), Config::default());
    for start in [108, 500, 100] {
        d.arrive(at(0), arrival(0, Op::Read, start, 8));
    }
    let (first, extent) = command(&mut d, at(0));
    assert_eq!(extent, "100+8", "500 is staged: it is newer than the continuation");
    assert_eq!(d.detach(at(1), VM).len(), 2);
    finish(&mut d, at(2), first);
    let mut completed = 0.0;
    d.policy_metrics(&mut |_, v| completed = v);
    assert_eq!(completed, 2.0, "both that the policy let go of");
    // The slots are used again: cfq keeps a table of what it has dispatched.
    d.switch(at(2), schedulers::build("cfq").unwrap());
    for ms in 3..9 {
        d.attach(at(ms), VM, VmSpec::default());
        for start in [500, 100, 108] {
            d.arrive(
                at(ms),
                Arrival { tag: ProcessTag::new(start as u16), ..arrival(0, Op::Read, start, 8) },
            );
        }
        let (id, _) = command(&mut d, at(ms));
        d.detach(at(ms), VM);
        finish(&mut d, at(ms), id);
    }
}
