//! SPLA rule by rule (algorithms.md, section 2.2), on scripted sequences.
//! Times are in microseconds. Every seek takes 8 ms, 4 of them half a turn.

use Did::{Coarse, Fine, Idle, Sent};
use seekway_core::request::{Completion, Extent, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_policy::schedulers;
use std::num::NonZeroU32;

#[test]
fn coarse_timer_waits_for_the_vm_that_is_served() {
    let (mut s, t) = reader("", 5_000);
    assert_eq!(s.decide(t), Coarse(t + 5_000));
    let own = s.read(t + 3_000, 0, 1_016);
    assert_eq!(s.decide(t + 3_000), own, "a request of x is suitable");
    assert_eq!((s.metric("coarse_tried"), s.metric("coarse_paid")), (1.0, 1.0));
    assert_eq!(s.metric("dispatch_arrival"), 1.0);
}

#[test]
fn coarse_timer_over_sends_the_neighbours_request() {
    let (mut s, t) = reader("", 5_000);
    assert_eq!(s.decide(t), Coarse(t + 5_000));
    assert_eq!(s.decide(t + 5_000), Sent(2));
    assert_eq!((s.metric("coarse_tried"), s.metric("coarse_paid")), (1.0, 0.0));
    assert_eq!(s.metric("dispatch_borrowed"), 1.0);
}

#[test]
fn coarse_pr_goes_when_thinking_takes_as_long_as_the_seek() {
    let (mut s, t) = reader("", SEEK);
    assert_eq!(s.decide(t), Sent(2), "AvgT = SeekTime");
    let (mut s, t) = reader("", SEEK - 1);
    assert_eq!(s.decide(t), Coarse(t + SEEK - 1));
}

#[test]
fn literal_seek_time_lacks_half_a_turn() {
    let (mut s, t) = reader("except=half_rotation", 5_000);
    assert_eq!(s.decide(t), Sent(2));
    let (mut s, t) = reader("except=half_rotation", 3_000);
    assert_eq!(s.decide(t), Coarse(t + 3_000));
}

#[test]
fn literal_average_time_counts_service_too() {
    // 1 ms of service and 5 ms of thought between two arrivals.
    let (mut s, t) = reader("except=think", 5_000);
    assert_eq!(s.decide(t), Coarse(t + 6_000));
    let (mut s, t) = reader("literal=true,except=half_rotation", 7_500);
    assert_eq!(s.decide(t), Sent(2), "8.5 ms exceed the seek");
    // Without half a turn the seek takes 4 ms.
    let (mut s, t) = reader("literal=true", 3_000);
    assert_eq!(s.decide(t), Sent(2));
    let (mut s, t) = reader("literal=true,except=think", 3_000);
    assert_eq!(s.decide(t), Coarse(t + 3_000));
}

#[test]
fn coarse_timer_is_not_set_when_x_jumps_further_than_its_neighbour_is_away() {
    let mut s = Script::new("pregather", 2);
    s.serve(0, 0, 0);
    s.serve(3_000, 0, 900_000);
    s.serve(6_000, 0, 0);
    // AvgD is about 900,000: a neighbour 10^8 away is worth a wait, one at 10^5 is not.
    let last = s.read(9_000, 0, 999_992);
    assert_eq!(s.decide(9_000), last);
    let near = s.read(9_500, 1, 1_000_100);
    s.done(10_000, last);
    assert_eq!(s.decide(10_000), near);
}

#[test]
fn coarse_timer_runs_alone_and_judges_the_first_foreign_request() {
    for (spec, held) in [("", true), ("except=alone", false), ("literal=true", false)] {
        let mut s = Script::new(&format!("pregather:{spec}"), 2);
        s.serve(0, 0, 1_000);
        s.serve(4_000, 0, 1_008);
        assert_eq!(s.decide(5_000), Idle);
        let foreign = s.read(6_000, 1, FAR);
        let expected = if held { Coarse(8_000) } else { foreign };
        assert_eq!(s.decide(6_000), expected, "{spec}");
    }
    let mut s = Script::new("pregather", 2);
    s.serve(0, 0, 0);
    s.serve(4_000, 0, 900_000);
    let near = s.read(6_000, 1, 1_000_100);
    assert_eq!(s.decide(6_000), near, "AvgD exceeds the way to it");
}

#[test]
fn fine_timer_waits_for_a_request_in_the_unit() {
    let (mut s, t) = zone_reader("", 3_000);
    assert_eq!(s.decide(t), Fine(t + 3_000));
    s.read(t + 1_000, 0, 700_000);
    assert_eq!(s.decide(t + 1_000), Fine(t + 3_000), "not in U, and too far");
    s.read(t + 1_500, 1, FAR);
    assert_eq!(s.decide(t + 1_500), Fine(t + 3_000), "not in U either");
    let near = s.read(t + 2_000, 0, 3_500);
    assert_eq!(s.decide(t + 2_000), near, "in Z+1");
    assert_eq!((s.metric("fine_tried"), s.metric("fine_paid")), (1.0, 1.0));
}

#[test]
fn fine_timer_over_sends_pr() {
    let (mut s, t) = zone_reader("", 3_000);
    assert_eq!(s.decide(t), Fine(t + 3_000));
    assert_eq!(s.decide(t + 3_000), Sent(4));
    assert_eq!((s.metric("fine_tried"), s.metric("fine_paid")), (1.0, 0.0));
}

#[test]
fn fine_pr_goes_when_it_lies_in_the_unit_or_the_interval_reaches_the_seek() {
    let (mut s, t) = zone_reader("", 3_000);
    let near = s.read(t, 0, 40);
    assert_eq!(s.decide(t), near);
    let (mut s, t) = zone_reader("", SEEK);
    assert_eq!(s.decide(t), Sent(4), "ST = SeekTime");
    let (mut s, t) = zone_reader("", SEEK - 1);
    assert_eq!(s.decide(t), Fine(t + SEEK - 1));
}

#[test]
fn fine_timer_is_not_set_outside_of_hot_units() {
    let mut s = Script::new("pregather", 1);
    for i in 0..3 {
        s.serve(i * 2_000, 0, 1_000);
    }
    let far = s.read(6_000, 0, 500_000);
    assert_eq!(s.decide(6_000), far);
    let other = s.read(6_000, 0, 900_000);
    s.done(7_000, far);
    assert_eq!(s.decide(7_000), other, "P(LR) lies in a zone below the mean");
}

#[test]
fn a_zone_seen_once_predicts_the_least_interval() {
    for (spec, expected) in
        [("", Fine(2_000)), ("except=unmeasured", Sent(1)), ("except=interval_min", Sent(1))]
    {
        let mut s = Script::new(&format!("pregather:{spec}"), 1);
        let first = s.read(0, 0, 0);
        assert_eq!(s.decide(0), first);
        s.read(0, 0, 900_000);
        s.done(1_000, first);
        assert_eq!(s.decide(1_000), expected, "{spec}");
    }
}

#[test]
fn literal_fine_arrival_sends_pr() {
    for (spec, new) in [("", true), ("except=arrival", false), ("literal=true", false)] {
        let (mut s, t) = zone_reader(spec, 3_000);
        assert!(matches!(s.decide(t), Fine(_)), "{spec}");
        // Behind PR in the sweep, so that PR stays what it was.
        let near = s.read(t + 1_000, 0, 0);
        assert_eq!(s.decide(t + 1_000), if new { near } else { Sent(4) }, "{spec}");
    }
}

#[test]
fn literal_arrival_measures_its_seek_from_pr() {
    // A request at PR's very place: no seek from PR, 8 ms from LR.
    for (spec, expected) in [("except=arrival_seek", Sent(5)), ("", Fine(13_000))] {
        let (mut s, t) = zone_reader(spec, 3_000);
        assert_eq!(s.decide(t), Fine(t + 3_000));
        s.read(t + 1_000, 0, 500_000);
        assert_eq!(s.decide(t + 1_000), expected, "{spec}");
    }
}

#[test]
fn literal_position_is_the_start_of_the_last_request() {
    // LR ends at the border of zone 1 and starts in zone 0, both hot zone 0's unit;
    // a request behind it lies at distance zero from its end only.
    for (spec, expected) in [("", Sent(2)), ("except=position", Coarse(7_000))] {
        let mut s = Script::bare(&format!("pregather:{spec}"));
        s.attach(0, 1, &[(0, 1_000)]);
        s.attach(1, 1, &[(1_000, 1_000)]);
        s.serve(0, 0, 0);
        let last = s.read(3_000, 0, 8);
        assert_eq!(s.decide(3_000), last);
        let next_door = s.read(3_500, 1, 16);
        s.done(5_000, last);
        assert_eq!(next_door, Sent(2));
        assert_eq!(s.decide(5_000), expected, "{spec}");
    }
}

#[test]
fn an_expired_request_goes_before_all_and_ends_the_hold() {
    let (mut s, t) = zone_reader("sync_expire=13ms", 3_000);
    // Request 4 arrived at 9 ms: its deadline of 22 ms does not shorten this hold.
    assert_eq!((t, s.decide(t)), (10_000, Fine(13_000)));
    let (mut s, t) = zone_reader("sync_expire=3ms", 3_000);
    assert_eq!(s.decide(t), Fine(12_000), "no longer than the EDF head's deadline");
    assert_eq!(s.decide(12_000), Sent(4));
    assert_eq!(s.metric("dispatch_expired"), 1.0);
}

#[test]
fn the_oldest_deadline_decides_and_reads_expire_before_writes() {
    let mut s = Script::new("pregather", 1);
    let first = s.read(0, 0, 500);
    assert_eq!(s.decide(0), first);
    let write = s.arrive(1_000, 0, 700_000, Op::Write);
    let read = s.read(2_000, 0, 600_000);
    s.read(100_000, 0, 516);
    s.done(127_000, first);
    assert_eq!(s.decide(127_000), read, "125 ms after its arrival");
    s.done(128_000, read);
    assert_eq!(s.decide(225_000), Sent(3));
    s.done(252_000, Sent(3));
    assert_eq!(s.decide(252_000), write, "250 ms after its arrival");
    assert_eq!(s.metric("dispatch_expired"), 3.0);
}

#[test]
fn an_expired_request_of_another_vm_waits_for_its_turn() {
    let mut s = Script::new("pregather:sync_expire=5ms,slice=100ms", 2);
    let first = s.read(0, 0, 0);
    assert_eq!(s.decide(0), first);
    let foreign = s.read(0, 1, FAR);
    let own = s.read(49_000, 0, 8);
    s.done(50_000, first);
    assert_eq!(s.decide(50_000), own, "not the oldest of all");
    s.read(99_500, 0, 16);
    s.done(100_000, own);
    assert_eq!(s.decide(100_000), foreign, "the turn of VM 1");
    assert_eq!((s.metric("dispatch_expired"), s.metric("turns")), (1.0, 2.0));
}

#[test]
fn expiry_may_be_looked_at_once_a_turn() {
    let mut s = Script::new("pregather:except=expire,sync_expire=10ms", 1);
    let first = s.read(0, 0, 100);
    assert_eq!(s.decide(0), first);
    let late = s.read(0, 0, 900_000);
    let next = s.read(40_000, 0, 200);
    s.done(50_000, first);
    assert_eq!(s.decide(50_000), next, "looked at when the turn began");
    s.read(201_000, 0, 300);
    s.done(201_000, next);
    assert_eq!(s.decide(201_000), late, "a new turn");
}

#[test]
fn a_hold_ends_with_the_slice() {
    let (mut s, t) = reader("slice=9ms", 5_000);
    assert_eq!((t, s.decide(t)), (7_000, Coarse(9_000)));
    s.read(8_000, 2, 2 * FAR);
    assert_eq!(s.decide(9_000), Sent(2), "the turn of VM 1");
    assert_eq!((s.metric("turns"), s.metric("dispatch_next")), (2.0, 3.0));
}

#[test]
fn a_hold_never_outlives_prs_deadline() {
    let (mut s, t) = reader("sync_expire=3ms", 5_000);
    // PR arrived at 6 ms, LR completed at 7 ms, the timer ends at 12 ms.
    assert_eq!((t, s.decide(t)), (7_000, Coarse(9_000)));
    assert_eq!(s.decide(9_000), Sent(2));
    assert_eq!(s.metric("dispatch_borrowed"), 1.0);
}

#[test]
fn a_borrowed_dispatch_keeps_the_turn() {
    let (mut s, t) = reader("", SEEK);
    assert_eq!(s.decide(t), Sent(2));
    s.read(t, 1, FAR + 8_000);
    let own = s.read(t + 500, 0, 1_016);
    s.done(t + 1_000, Sent(2));
    assert_eq!(s.decide(t + 1_000), own, "x first, whatever lies nearer");
    assert_eq!(s.metric("turns"), 1.0);
}

#[test]
fn a_borrowed_completion_sets_no_timer() {
    let (mut s, t) = reader("", SEEK);
    assert_eq!(s.decide(t), Sent(2));
    let other = s.read(t, 2, 2 * FAR);
    s.done(t + 1_000, Sent(2));
    assert_eq!(s.decide(t + 1_000), other);
}

#[test]
fn vms_take_turns_of_their_slice_by_weight() {
    let mut s = Script::bare("pregather:slice=10ms,sync_expire=10s");
    for (vm, weight) in [(0, 1), (1, 3), (2, 1)] {
        s.attach(vm, weight, &[(u64::from(vm) * FAR, 1_000_000)]);
    }
    for i in 0..100 {
        for vm in 0..3 {
            s.read(0, vm, u64::from(vm) * FAR + i * 8);
        }
    }
    let mut served = Vec::new();
    for ms in 0..100 {
        let Sent(slot) = s.decide(ms * 1_000) else { panic!("nothing to wait for") };
        served.push(s.requests[slot].vm.index());
        s.done(ms * 1_000 + 900, Sent(slot));
    }
    let turns: Vec<(usize, usize)> =
        served.chunk_by(|a, b| a == b).map(|t| (t[0], t.len())).collect();
    assert_eq!(turns[..5], [(0, 10), (1, 30), (2, 10), (0, 10), (1, 30)]);
}

#[test]
fn the_neighbour_is_the_vm_whose_extents_are_nearest() {
    // VM 1 lies in two pieces around VM 0 and VM 2; VM 2 is nearer than the near piece.
    for (spec, expected) in [("", Sent(2)), ("except=region", Sent(1))] {
        let mut s = Script::bare(&format!("pregather:{spec}"));
        s.attach(0, 1, &[(10_000_000, 1_000)]);
        s.attach(1, 1, &[(0, 1_000), (30_000_000, 1_000)]);
        s.attach(2, 1, &[(12_000_000, 1_000)]);
        let first = s.read(0, 0, 10_000_000);
        assert_eq!(s.decide(0), first);
        s.read(0, 1, 0);
        s.read(0, 2, 12_000_000);
        s.done(1_000, first);
        assert_eq!(s.decide(1_000), expected, "{spec}");
    }
}

#[test]
fn the_sweep_goes_on_and_wraps() {
    let mut s = Script::new("pregather:except=unmeasured,sync_expire=10s", 1);
    let lbas = [500_000, 100_000, 900_000, 300_000];
    lbas.iter().for_each(|&lba| {
        s.read(0, 0, lba);
    });
    let mut order = Vec::new();
    for i in 0..4 {
        let Sent(slot) = s.decide(i * 1_000) else { panic!() };
        order.push(lbas[slot]);
        s.done(i * 1_000 + 900, Sent(slot));
        if i == 1 {
            s.read(i * 1_000 + 950, 0, 50_000);
        }
    }
    assert_eq!(order, [100_000, 300_000, 500_000, 900_000]);
    assert_eq!(s.decide(4_000), Sent(4), "round the end");
}

#[test]
fn a_turn_goes_on_where_the_vm_stopped() {
    for (spec, expected) in [("", 600_000), ("except=sweep", 100_000)] {
        let mut s = Script::new(&format!("pregather:slice=2ms,{spec}"), 2);
        s.serve(0, 0, 500_000);
        s.serve(2_500, 1, FAR);
        s.read(5_000, 0, 100_000);
        s.read(5_000, 0, 600_000);
        let Sent(slot) = s.decide(5_000) else { panic!("{spec}") };
        assert_eq!(s.requests[slot].extent.start().get(), expected, "{spec}");
    }
}

#[test]
fn a_continuation_joins_its_command_before_deadlines_count() {
    for (spec, expected) in [("", Sent(2)), ("except=merge", Sent(1))] {
        let mut s = Script::new(&format!("pregather:sync_expire=5ms,{spec}"), 1);
        let first = s.read(0, 0, 900_000);
        s.read(500, 0, 100_000);
        s.read(900, 0, 900_008);
        assert_eq!(s.decide(10_000), first);
        assert_eq!(s.decide(10_000), expected, "{spec}");
    }
}

#[test]
fn what_arrives_behind_a_command_in_flight_does_not_join_it() {
    let mut s = Script::new("pregather:sync_expire=5ms", 1);
    let first = s.read(0, 0, 900_000);
    let late = s.read(500, 0, 100_000);
    assert_eq!(s.decide(4_000), late, "upwards from zero");
    s.done(5_000, late);
    assert_eq!(s.decide(5_000), first);
    let oldest = s.read(5_100, 0, 200_000);
    // The device has room for another command: deadlines count again.
    s.read(11_000, 0, 900_008);
    assert_eq!(s.decide(11_000), oldest);
}

#[test]
fn nothing_is_held_in_flight_or_without_rotation_or_without_knowledge() {
    let (mut s, t) = reader("", 5_000);
    s.in_flight += 1;
    assert_eq!(s.decide(t), Sent(2));
    let (mut s, t) = reader("", 5_000);
    s.profile.rotation = None;
    assert_eq!(s.decide(t), Sent(2));
    let (mut s, t) = reader("", 500);
    // Distances 0 only have been learnt: the way to VM 1 is not known.
    s.profile.seek.clear();
    assert_eq!(s.decide(t), Sent(2));
}

#[test]
fn windows_count_the_time_of_the_vms_own_turns() {
    // VM 0 learns 3 ms in zone 0; VM 1 has many turns; VM 0 comes back.
    // The letter divides the sum of intervals by the number of requests.
    for (spec, expected) in [("", 3_000), ("literal=true,except=interval_cap", 2_000)] {
        let mut s = Script::new(&format!("pregather:slice=12ms,{spec}"), 2);
        for i in 0..3 {
            s.serve(i * 3_000, 0, 1_000);
        }
        let mut t = 20_000;
        while t < 3_000_000 {
            s.serve(t, 1, FAR);
            t += 10_000;
        }
        let near = s.read(t, 0, 8);
        assert_eq!(s.decide(t), near, "{spec}");
        s.read(t, 0, 900_000);
        s.done(t + 1_000, near);
        assert_eq!(s.decide(t + 1_000), Fine(t + 1_000 + expected), "{spec}");
    }
}

#[test]
fn leaving_hands_back_in_order_and_ends_the_turn() {
    let (mut s, t) = reader("", 5_000);
    for lba in [9_000, 5_000] {
        s.read(t, 1, FAR + lba);
    }
    assert_eq!(s.decide(t), Coarse(t + 5_000));
    assert!(s.policy.detach(at(t), VmId::new(0)).is_empty());
    assert_eq!(s.decide(t), Sent(2), "no hold for a VM that has left");
    let back = s.policy.detach(at(t), VmId::new(1));
    assert_eq!(back.iter().map(|r| r.id.slot()).collect::<Vec<_>>(), [3, 4]);
    s.done(t + 1_000, Sent(2));
    assert_eq!(s.decide(t + 1_000), Idle);
}

#[test]
fn wrong_parameters_say_what_is_wrong() {
    for (spec, part) in [
        ("zone=0", "at least one sector"),
        ("window=0", "at least 1us"),
        ("lambda=1", "from 1.1"),
        ("except=think,literal=yes,slice=1us", "at least 1ms"),
    ] {
        let error = schedulers::build(&format!("pregather:{spec}")).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(part), "{spec}: {error}");
    }
}

/// A reader in VM 0 that thinks 4 and 6 ms in turn; VM 1 has a request queued
/// from the start of the last wait. How long is it withheld?
fn uneven_reader(spec: &str) -> u64 {
    let mut s = Script::new(&format!("pregather:slice=10s,{spec}"), 2);
    let mut t = 0;
    for i in 0..40 {
        s.serve(t, 0, 1_000 + i * 8);
        t += 1_000 + if i % 2 == 0 { 4_000 } else { 6_000 };
    }
    let last = s.read(t, 0, 1_320);
    assert_eq!(s.decide(t), last);
    s.read(t, 1, FAR);
    s.done(t + 1_000, last);
    match s.decide(t + 1_000) {
        Coarse(until) => until - t - 1_000,
        other => panic!("{spec}: {other:?}"),
    }
}

#[test]
fn patience_bridges_uneven_thinking_up_to_the_seek() {
    let letter = uneven_reader("except=patience");
    assert!((4_500..5_500).contains(&letter), "AvgT is {letter}");
    assert_eq!(uneven_reader(""), SEEK, "5 ms and 4 times 1 ms, but no more than the seek");
}

#[test]
fn a_vm_without_work_keeps_its_place() {
    let mut s = Script::new("pregather:slice=2ms", 3);
    s.serve(0, 0, 0);
    // VM 1 has nothing when its turn comes: VM 2, then VM 1 before VM 0.
    s.serve(3_000, 2, 2 * FAR);
    s.read(6_000, 0, 0);
    let second = s.read(6_000, 1, FAR);
    assert_eq!(s.decide(6_000), second);
}

// A script against one policy: VMs, requests and a device moved by hand.

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
