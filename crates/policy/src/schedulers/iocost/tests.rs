//! The rules of iocost, one by one. The device is a solid-state drive of the
//! class `ssd`: a random read of 4 KiB costs 117.4 µs.

use super::{BUDGET, CLASSES, Coefficients, Groups, HDD, Model, SSD, WHOLE, adjustment, charged};
use crate::schedulers::tests::Rig;
use seekway_core::request::{Extent, Op, Request, RequestId, VmId};
use seekway_core::scheduler::Decision;
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use std::collections::VecDeque;

/// VMs 0.. with these weights, that read at random places far apart, on a
/// device that takes `depth` requests at once and `us` for each.
struct Load {
    rig: Rig,
    us: u64,
    depth: usize,
    /// Requests that a flood has queued.
    queued: usize,
    /// When what is in flight is done.
    ends: VecDeque<Instant>,
    next: u64,
    served: Vec<usize>,
}

impl Load {
    fn new(spec: &str, weights: &[u32], us: u64) -> Load {
        let rig = Rig::with_weights(spec, weights).solid();
        let served = vec![0; weights.len()];
        Load { rig, us, depth: 64, queued: 4, ends: VecDeque::new(), next: 0, served }
    }

    fn read(&mut self, vm: u16) {
        self.next = (self.next + 7_777_777) % 1_000_000_000;
        self.rig.read(vm, u64::from(vm) * 1_000_000_000 + self.next);
    }

    /// Go on for `ms`; each of `floods` always has some queued.
    fn run(&mut self, floods: &[u16], ms: u64) {
        let stop = self.rig.now + Nanos::from_millis(ms);
        while self.rig.now < stop {
            let until = self.send(floods);
            let done = self.ends.front().copied();
            self.rig.now = [until, done].into_iter().flatten().min().unwrap_or(stop).min(stop);
            if done.is_some_and(|done| done <= self.rig.now) {
                self.ends.pop_front();
                self.rig.complete();
            }
        }
    }

    /// Send what may go; until when the policy holds.
    fn send(&mut self, floods: &[u16]) -> Option<Instant> {
        while self.ends.len() < self.depth {
            for &vm in floods {
                while self.rig.queued_of(vm) < self.queued {
                    self.read(vm);
                }
            }
            match self.rig.decide() {
                Decision::Dispatch(_) => {
                    self.served[self.rig.newest_in_flight().vm.index()] += 1;
                    self.ends.push_back(self.rig.now + Nanos::from_micros(self.us));
                }
                Decision::Hold { until, why } => {
                    assert_eq!(why, BUDGET);
                    return Some(until);
                }
                Decision::Idle => return None,
                other => panic!("{other:?}"),
            }
        }
        None
    }
}

fn request(op: Op, lba: u64, sectors: u64) -> Request {
    let extent = Extent::new(Lba::new(lba), Sectors::new(sectors)).unwrap();
    let (id, vm) = (RequestId::new(0), VmId::new(0));
    Request { id, vm, tag: None, op, sync: true, extent, arrived: Instant::ZERO }
}

#[test]
fn figures_give_the_kernels_coefficients() {
    let model = Model::new(&CLASSES[SSD], None);
    let far = Some(Lba::new(1 << 30));
    let us = |op, lba, sectors, cursor| model.cost(&request(op, lba, sectors), cursor) / 1_000_000;
    // 4 KiB cost what the figure says; each 4 KiB more, what the bandwidth says.
    assert_eq!(us(Op::Read, 0, 8, far), 1_000_000 / 8_518);
    assert_eq!(us(Op::Write, 0, 8, far), 1_000_000 / 21_940);
    assert_eq!(us(Op::Read, 0, 8, None), 1_000_000 / 8_932);
    assert_eq!(us(Op::Read, 0, 128, far), 117 + 15 * 4_096 * 1_000 / 488_637 + 1);
    // Up to 16 MiB away is sequential; part of a page is a page only once.
    assert_eq!(us(Op::Read, 0, 8, Some(Lba::new(8 * 4_096 + 7))), 111);
    assert_eq!(us(Op::Read, 0, 8, Some(Lba::new(8 * 4_097))), 117);
    assert_eq!(us(Op::Read, 0, 1, far), 117);
    let hdd = Model::new(&CLASSES[HDD], None);
    assert_eq!(hdd.cost(&request(Op::Read, 0, 8), far) / 1_000_000, 1_000_000 / 370);
}

#[test]
fn a_figure_of_zero_is_free_and_a_given_one_counts() {
    let free = [[0, 0, 1_000], [0; 3]];
    let model = Model::new(&CLASSES[HDD], Some(free));
    let cost = model.cost(&request(Op::Read, 0, 8), Some(Lba::new(1 << 30)));
    assert_eq!(cost / 1_000_000, 1_000);
    assert_eq!(Coefficients::default().page, 0);
}

#[test]
fn a_smaller_share_pays_more() {
    assert_eq!(charged(1_000, WHOLE), 1_000);
    assert_eq!(charged(1_000, WHOLE / 4), 4_000);
    assert_eq!(charged(1, WHOLE - 1), 2);
}

#[test]
fn the_rate_changes_slowly_first() {
    let steps = [0, 3, 4, 19, 20, 36, 44, 52, 1_000].map(adjustment);
    assert_eq!(steps, [0, 0, 1, 1, 2, 4, 8, 16, 16]);
    assert_eq!(adjustment(-4), 1);
}

#[test]
fn beyond_its_budget_a_vm_waits_for_the_cost_of_the_next_request() {
    let mut load = Load::new("iocost", &[1], 10);
    // Half a period of 50 ms, and as much as passes meanwhile: 25 ms at 117.4 µs.
    (0..400).for_each(|_| load.read(0));
    let mut sent = 0;
    while let Decision::Dispatch(_) = load.rig.decide() {
        sent += 1;
    }
    // The first one counts as sequential: it has no predecessor.
    assert_eq!(sent, 212);
    let us = load.rig.hold_us(BUDGET);
    // What is missing, and 1 % of the period.
    assert!((500..=620).contains(&us), "{us}");
    load.rig.wait_us(us + 1);
    assert!(matches!(load.rig.decide(), Decision::Dispatch(_)));
}

#[test]
fn backlogged_vms_share_by_weight() {
    let mut load = Load::new("iocost:max=100", &[1, 2, 4], 20);
    load.run(&[0, 1, 2], 4_000);
    let [a, b, c] = load.served[..] else { panic!() };
    assert!((b as f64 / a as f64 - 2.0).abs() < 0.1, "{:?}", load.served);
    assert!((c as f64 / a as f64 - 4.0).abs() < 0.2, "{:?}", load.served);
    // In all what the model allows.
    let all = (a + b + c) as f64;
    assert!((all / 4.0 / 8_518.0 - 1.0).abs() < 0.05, "{all}");
}

#[test]
fn a_vm_that_uses_little_gives_its_share_away() {
    let mut load = Load::new("iocost:max=100", &[1, 1], 20);
    for _ in 0..200 {
        load.read(1);
        load.run(&[0], 20);
    }
    // VM 1 sends 50 a second. VM 0 has nearly all the rest, not half of the device.
    assert_eq!(load.served[1], 200);
    let rest = 4.0 * (8_518.0 - 50.0);
    assert!(load.served[0] as f64 > 0.93 * rest, "{:?} of {rest}", load.served);
}

#[test]
fn spare_capacity_raises_the_rate() {
    let mut load = Load::new("iocost", &[1, 1], 20);
    load.run(&[0, 1], 3_000);
    assert!(load.rig.metric("rate_percent") > 200.0);
    assert!(load.rig.metric("busy_level") < 0.0);
}

#[test]
fn waiting_for_a_tag_lowers_the_rate() {
    let mut load = Load::new("iocost", &[1, 1, 1], 1_000);
    // More outstanding than there are tags; one at a time is served.
    (load.depth, load.queued) = (1, 100);
    load.run(&[0, 1, 2], 3_000);
    assert!(load.rig.metric("rate_percent") < 60.0, "{}", load.rig.metric("rate_percent"));
    assert!(load.rig.metric("rate_percent") >= 1.0);
}

#[test]
fn latency_counts_only_with_a_percentile() {
    let slow = |spec: &str| {
        let mut load = Load::new(spec, &[1], 3_000);
        load.run(&[0], 3_000);
        load.rig.metric("rate_percent")
    };
    assert!(slow("iocost:rlat=2ms,rpct=90") < 50.0);
    assert!(slow("iocost:rlat=2ms") >= 100.0);
}

#[test]
fn an_idle_device_stops_its_clock() {
    let mut load = Load::new("iocost", &[1, 1], 20);
    load.read(0);
    load.run(&[], 0);
    assert!(matches!(load.rig.decide(), Decision::Dispatch(_)));
    load.rig.wait_us(20);
    load.rig.complete();
    assert_eq!(load.rig.metric("active_vms"), 1.0);
    load.rig.wait_ms(10_000);
    assert!(load.rig.is_idle());
    assert_eq!(load.rig.metric("active_vms"), 0.0);
    assert_eq!(load.rig.metric("periods"), 2.0);
}

#[test]
fn a_drive_that_is_fast_for_ten_seconds_changes_its_class() {
    let mut load = Load::new("iocost", &[1], 1_000);
    // 64,000 requests a second, 7.5 times the figures of `ssd`; then it waits.
    load.run(&[0], 8_000);
    assert_eq!(load.rig.metric("class"), SSD as f64);
    assert!(load.rig.metric("rate_percent") > 500.0);
    load.run(&[0], 10_000);
    assert_eq!(load.rig.metric("class"), SSD as f64 + 1.0);
}

#[test]
fn donors_leave_the_rest_in_proportion() {
    let mut groups = Groups::default();
    for (vm, weight) in [100, 100, 200].into_iter().enumerate() {
        groups.all.push(super::Group::default());
        groups.set(vm, weight << 16, weight << 16);
    }
    // VM 2 keeps a tenth of its half.
    groups.transfer(&mut [(2, WHOLE / 20)], 0);
    assert!(groups.share_in_use(2).abs_diff(WHOLE / 20) <= 2);
    assert!(groups.share_in_use(0).abs_diff(WHOLE * 19 / 40) <= 2);
    assert_eq!(groups.share_in_use(0), groups.share_in_use(1));
    assert_eq!(groups.share(2), WHOLE / 2);
    // It takes back what it needs, in quarters of its weight.
    let cost = groups.cost(2, 1_000, 10_000, 3_000);
    assert!(cost <= 3_000 && groups.share_in_use(2) > WHOLE / 4, "{cost}");
}

#[test]
fn a_request_that_is_taken_back_is_not_paid_for() {
    let mut load = Load::new("iocost", &[1], 20);
    load.read(0);
    load.run(&[], 0);
    assert!(matches!(load.rig.decide(), Decision::Dispatch(_)));
    let id = load.rig.read(0, 500_000_000);
    load.rig.withdraw(id);
    load.rig.wait_us(20);
    load.rig.complete();
    load.rig.wait_ms(200);
    assert!(load.rig.is_idle());
    // Paid and done are equal, or it would never rest.
    assert_eq!(load.rig.metric("active_vms"), 0.0);
}
