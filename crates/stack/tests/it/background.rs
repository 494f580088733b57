//! The background class: below demand under every policy, taken back while it
//! waits, unseen by policies.

use seekway_core::request::{Extent, Op, RequestId, VmId};
use seekway_core::scheduler::{DeviceProfile, VmSpec};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_policy::schedulers::{self, REGISTRY};
use seekway_stack::dispatcher::{Arrival, Config, Dispatcher, Output};

fn at(ms: u64) -> Instant {
    Instant::ZERO + Nanos::from_millis(ms)
}

fn read(vm: u16, start: u64, len: u64) -> Arrival {
    let extent = Extent::new(Lba::new(start), Sectors::new(len)).unwrap();
    Arrival { vm: VmId::new(vm), tag: None, op: Op::Read, sync: true, extent }
}

fn dispatcher(policy: &str, rotational: bool, depth: u32) -> Dispatcher {
    let profile = DeviceProfile::unknown(Sectors::new(1 << 30), rotational);
    let config = Config { depth, coalesce: Sectors::new(64), ..Config::default() };
    let mut d = Dispatcher::new(schedulers::build(policy).unwrap(), profile, config);
    for vm in 0..2 {
        d.attach(at(0), VmId::new(vm), VmSpec::default());
    }
    d
}

/// All commands that go now, as (background, extent).
fn commands(d: &mut Dispatcher, now: Instant) -> Vec<(RequestId, bool, String)> {
    let mut all = Vec::new();
    while let Output::Dispatch(c) = d.poll(now) {
        all.push((c.id, d.is_background(c.id), c.extent.to_string()));
    }
    all
}

fn finish(d: &mut Dispatcher, now: Instant, id: RequestId) -> usize {
    let mut done = Vec::new();
    d.complete(now, id, true, &mut done);
    done.len()
}

#[test]
fn demand_goes_first_under_every_policy() {
    for entry in REGISTRY.iter() {
        let mut d = dispatcher(entry.name, false, 1);
        d.arrive_background(at(0), read(0, 5_000, 8));
        d.arrive(at(0), read(1, 100, 8));
        d.arrive(at(0), read(0, 900, 8));
        let mut order = Vec::new();
        let mut now = at(0);
        while order.len() < 3 {
            match d.poll(now) {
                Output::Dispatch(c) => {
                    order.push(d.is_background(c.id));
                    now = now + Nanos::from_millis(1);
                    finish(&mut d, now, c.id);
                }
                Output::WakeAt(t) => now = t,
                Output::Idle => panic!("{}: {order:?} and idle", entry.name),
            }
        }
        assert_eq!(order, [false, false, true], "{}", entry.name);
        assert_eq!((d.stats().requests, d.stats().background), (2, 1), "{}", entry.name);
    }
}

#[test]
fn an_eighth_of_the_places_is_the_backgrounds() {
    for (depth, most) in [(1, 1), (2, 1), (8, 1), (16, 2), (256, 32)] {
        let mut d = dispatcher("noop", false, depth);
        (0..40).for_each(|_| d.background_is_late());
        for n in 0..40 {
            d.arrive_background(at(0), read(0, 10_000 * n, 8));
        }
        assert_eq!(commands(&mut d, at(0)).len(), most, "depth {depth}");
        if depth > 1 {
            d.arrive(at(0), read(1, 77, 8));
            assert!(!commands(&mut d, at(0))[0].1, "demand has its places at once");
        }
    }
}

/// Four of 128 KiB on flash, one more each time that a guest waits for one, one fewer after 64 that nobody
/// waited for. On a disk with a head all of its places from the start.
#[test]
fn more_go_at_once_the_later_they_come() {
    let most = |rotational: bool, late: usize, in_time: u64| {
        let mut d = dispatcher("noop", rotational, 128);
        (0..late).for_each(|_| d.background_is_late());
        for n in 0..in_time {
            d.arrive_background(at(0), read(0, 10_000 * n, 256));
            let [(id, true, _)] = commands(&mut d, at(0))[..] else { panic!("one goes") };
            finish(&mut d, at(0), id);
        }
        for n in 0..40 {
            d.arrive_background(at(0), read(1, 10_000 * n, 256));
        }
        commands(&mut d, at(0)).len()
    };
    let cases =
        [(0, 0, 4), (1, 0, 5), (5, 0, 9), (100, 0, 16), (5, 63, 9), (5, 64, 8), (5, 640, 4)];
    for (late, in_time, at_once) in cases {
        assert_eq!(most(false, late, in_time), at_once, "{late} late, {in_time} in time");
    }
    assert_eq!(most(true, 0, 0), 1, "what does not lie at the head goes one at a time");
}

#[test]
fn vms_take_turns_and_neighbours_coalesce() {
    let mut d = dispatcher("noop", false, 64);
    d.background_is_late();
    for start in [100, 108, 116, 900] {
        d.arrive_background(at(0), read(0, start, 8));
    }
    d.arrive_background(at(0), read(1, 124, 8));
    let order: Vec<String> = commands(&mut d, at(0)).into_iter().map(|c| c.2).collect();
    assert_eq!(order, ["100+24", "124+8", "900+8"], "never across VMs");
    assert_eq!((d.stats().background, d.stats().background_commands), (5, 3));
}

#[test]
fn a_head_leaves_its_place_only_when_nobody_wants_it() {
    let mut d = dispatcher("noop", true, 1);
    let demand = d.arrive(at(0), read(0, 100, 8));
    assert_eq!(d.poll(at(0)), Output::Dispatch(*d.members(demand).next().unwrap()));
    d.arrive_background(at(1), read(1, 9_000, 8));
    finish(&mut d, at(5), demand);
    assert_eq!(d.poll(at(5)), Output::WakeAt(at(15)));
    // What lies at the head costs no seek and goes at once.
    d.arrive_background(at(6), read(0, 108, 8));
    let [(near, true, _)] = commands(&mut d, at(6))[..] else { panic!("the near one goes") };
    finish(&mut d, at(7), near);
    assert_eq!(d.poll(at(7)), Output::WakeAt(at(15)), "background work is no demand");
    assert_eq!(commands(&mut d, at(15)).len(), 1);
}

#[test]
fn what_waits_can_be_taken_back_and_what_flies_cannot() {
    let mut d = dispatcher("noop", false, 1);
    let flying = d.arrive_background(at(0), read(0, 100, 8));
    let waiting = d.arrive_background(at(0), read(0, 900, 8));
    assert_eq!(commands(&mut d, at(0)).len(), 1);
    assert!(!d.withdraw(flying));
    assert!(d.withdraw(waiting) && !d.withdraw(waiting));
    assert_eq!((d.outstanding(), d.stats().withdrawn), (1, 1));
    assert_eq!(finish(&mut d, at(2), flying), 1);
    assert!(!d.is_background(flying), "its number is free");
    assert_eq!(d.poll(at(2)), Output::Idle);
}

#[test]
fn there_is_no_room_while_demand_is_crowded() {
    let mut d = dispatcher("noop", false, 2);
    assert_eq!(d.background_room(), 64, "algorithms.md, section 6: at least 64 on an SSD");
    d.arrive_background(at(0), read(1, 1_000_000, 8));
    for n in 0..3 {
        d.arrive(at(0), read(0, 100 * n, 8));
    }
    assert!(d.is_crowded());
    assert_eq!(d.background_room(), 0);
    commands(&mut d, at(0));
    assert_eq!(d.background_room(), 63, "the device took two of the three");
}

#[test]
fn a_vm_that_leaves_takes_its_background_with_it() {
    let mut d = dispatcher("noop", false, 1);
    let flying = d.arrive_background(at(0), read(0, 100, 8));
    commands(&mut d, at(0));
    let waiting = d.arrive_background(at(0), read(0, 900, 8));
    let other = d.arrive_background(at(0), read(1, 300, 8));
    let back: Vec<RequestId> = d.detach(at(1), VmId::new(0)).iter().map(|r| r.id).collect();
    assert_eq!(back, [waiting]);
    assert_eq!(finish(&mut d, at(2), flying), 1);
    assert_eq!(commands(&mut d, at(2))[0].0, other);
}

#[test]
fn a_discard_does_not_wait_for_the_background() {
    let mut d = dispatcher("noop", false, 2);
    d.arrive_background(at(0), read(0, 100, 8));
    let discard = Arrival { op: Op::Discard, ..read(0, 100, 64) };
    let id = d.arrive(at(0), discard);
    assert_eq!(commands(&mut d, at(0))[0].0, id);
}
