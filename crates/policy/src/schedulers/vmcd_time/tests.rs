//! The rules of vmcd-time, one by one. VM `n` reads at multiples of `n`
//! gigasectors.

use super::TURN;
use crate::schedulers::tests::Rig;
use seekway_core::request::{Op, VmId};
use seekway_core::scheduler::Decision;
use seekway_core::units::{Instant, Nanos};

const GIGA: u64 = 1_000_000_000;

fn reads(rig: &mut Rig, vm: u16, places: impl IntoIterator<Item = u64>) {
    rig.reads(vm, places.into_iter().map(|place| u64::from(vm) * GIGA + place));
}

/// Serve `n` requests of `us` each: whose they were, in runs of (VM, count).
fn turns(rig: &mut Rig, n: usize, us: u64) -> Vec<(u64, usize)> {
    let vms: Vec<u64> = (0..n).map(|_| rig.serve(us) / GIGA).collect();
    vms.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
}

/// VMs with many reads each, apart enough not to be coalesced.
fn backlogged(spec: &str, weights: &[u32]) -> Rig {
    let mut rig = Rig::with_weights(spec, weights);
    for vm in 0..weights.len() as u16 {
        reads(&mut rig, vm, (0..400).map(|i| 100 * i));
    }
    rig
}

/// A VM that keeps requests outstanding.
#[derive(Clone, Copy)]
struct Client {
    outstanding: u32,
    think_us: u64,
    service_us: u64,
}

/// Let clients of these weights read on one device for `seconds`: each one's
/// share of the time served, and the longest that any of its requests waited.
fn shares(spec: &str, clients: &[(u32, Client)], seconds: u64) -> Vec<(f64, Nanos)> {
    let mut rig = Rig::with_weights(spec, &clients.iter().map(|c| c.0).collect::<Vec<_>>());
    let mut due: Vec<(Instant, u16)> = Vec::new();
    for (vm, client) in clients.iter().enumerate() {
        due.extend((0..client.1.outstanding).map(|_| (Instant::ZERO, vm as u16)));
    }
    let (mut served, mut longest) = (vec![0u64; clients.len()], vec![Nanos::ZERO; clients.len()]);
    let mut place = 0;
    let mut waiting: Vec<(u64, Instant)> = Vec::new();
    while rig.now.as_nanos() < seconds * 1_000_000_000 {
        due.sort();
        while due.first().is_some_and(|&(at, _)| at <= rig.now) {
            let (_, vm) = due.remove(0);
            place = (place + 7_919) % 500_000;
            rig.read(vm, u64::from(vm) * GIGA + 100 * place);
            waiting.push((u64::from(vm) * GIGA + 100 * place, rig.now));
        }
        let next = due.first().map(|&(at, _)| at);
        match rig.decide() {
            Decision::Dispatch(_) => {
                let lba = rig.head.get() - 8;
                let vm = (lba / GIGA) as usize;
                let at = waiting.iter().position(|&(l, _)| l == lba).unwrap();
                longest[vm] = longest[vm].max(rig.now - waiting.remove(at).1);
                let client = clients[vm].1;
                let end = rig.now + Nanos::from_micros(client.service_us);
                // What comes in the meantime comes before the completion.
                while let Some(first) = due.iter().position(|&(at, _)| at <= end) {
                    let (at, vm) = due.remove(first);
                    rig.now = at.max(rig.now);
                    place = (place + 7_919) % 500_000;
                    rig.read(vm, u64::from(vm) * GIGA + 100 * place);
                    waiting.push((u64::from(vm) * GIGA + 100 * place, rig.now));
                    due.sort();
                }
                rig.now = end;
                rig.complete();
                served[vm] += client.service_us;
                due.push((rig.now + Nanos::from_micros(client.think_us), vm as u16));
            }
            Decision::Hold { until, .. } => rig.now = next.map_or(until, |at| at.min(until)),
            Decision::Idle => rig.now = next.unwrap(),
            other => panic!("{other:?}"),
        }
    }
    let total: u64 = served.iter().sum();
    served.iter().map(|&s| s as f64 / total as f64).zip(longest).collect()
}

/// One request at a time, of 6 ms, 0.2 ms after the last.
const QUIET: Client = Client { outstanding: 1, think_us: 200, service_us: 6_000 };

#[test]
fn weights_hold_with_one_request_at_a_time() {
    let shared = shares("vmcd-time", &[(1, QUIET), (2, QUIET), (4, QUIET)], 30);
    for ((share, _), expected) in shared.iter().zip([1.0 / 7.0, 2.0 / 7.0, 4.0 / 7.0]) {
        assert!((share - expected).abs() < 0.02, "{shared:?}");
    }
    // Without the wait each has a request queued when the turn's channel has none.
    let shared = shares("vmcd-time:hold=0", &[(1, QUIET), (2, QUIET), (4, QUIET)], 30);
    assert!(shared[2].0 < 0.52, "{shared:?}");
}

#[test]
fn a_flood_gains_nothing() {
    let flood = Client { outstanding: 64, think_us: 0, service_us: 6_000 };
    let shared = shares("vmcd-time", &[(1, QUIET), (1, QUIET), (1, flood)], 30);
    for (share, _) in &shared {
        assert!((share - 1.0 / 3.0).abs() < 0.02, "{shared:?}");
    }
    // Long requests gain nothing either: shares are of time.
    let long = Client { outstanding: 8, think_us: 0, service_us: 40_000 };
    let shared = shares("vmcd-time", &[(1, QUIET), (1, long)], 30);
    assert!((shared[0].0 - 0.5).abs() < 0.02, "{shared:?}");
}

#[test]
fn a_light_channel_is_served_within_the_bound() {
    let heavy = Client { outstanding: 8, think_us: 0, service_us: 6_000 };
    let shared = shares("vmcd-time", &[(1, QUIET), (100, heavy)], 60);
    assert!(shared[0].1 <= Nanos::from_millis(500 + 6), "{shared:?}");
    // One request in 500 ms is 1.2 %, where its weight gives 1 %: the bound gives no turns.
    assert!(shared[0].0 < 0.02, "{shared:?}");
    // The flooder's own oldest has waited for longer, and is not late.
    let flood = Client { outstanding: 300, think_us: 0, service_us: 6_000 };
    let shared = shares("vmcd-time", &[(1, QUIET), (1, flood)], 30);
    assert!((shared[1].0 - 0.5).abs() < 0.02 && shared[1].1 > Nanos::from_secs(2), "{shared:?}");
}

#[test]
fn equal_channels_take_turns_in_a_fixed_order() {
    let mut rig = backlogged("vmcd-time:turn=100ms", &[1, 1, 1]);
    let expected = [(0, 10), (1, 10), (2, 10), (0, 10), (1, 10), (2, 10)];
    assert_eq!(turns(&mut rig, 60, 10_000), expected);
    // A turn that overran is made good by the next: 105 ms, and then 98.
    let mut rig = backlogged("vmcd-time:turn=100ms", &[1, 1]);
    assert_eq!(turns(&mut rig, 58, 7_000), [(0, 15), (1, 15), (0, 14), (1, 14)]);
}

#[test]
fn a_long_command_is_paid_for_with_turns() {
    let mut rig = backlogged("vmcd-time:turn=100ms", &[1, 1]);
    assert_eq!(rig.serve(250_000), 0);
    // 250 ms: two turns and a half. VM 1 has its two before VM 0 has the other half.
    assert_eq!(turns(&mut rig, 35, 10_000), [(1, 20), (0, 5), (1, 10)]);
}

#[test]
fn turns_are_shortened_so_that_a_round_fits_into_the_bound() {
    let mut rig = backlogged("vmcd-time", &[1; 9]);
    // 500 ms among ten.
    assert_eq!(turns(&mut rig, 15, 10_000), [(0, 5), (1, 5), (2, 5)]);
    let mut rig = backlogged("vmcd-time", &[1, 1]);
    assert_eq!(turns(&mut rig, 30, 10_000), [(0, 15), (1, 15)]);
    // 80 channels: never under 16 ms, and nobody is late in a round of 1,280 ms.
    let mut rig = backlogged("vmcd-time", &[1; 80]);
    let expected: Vec<(u64, usize)> = (0..80).map(|vm| (vm, 4)).collect();
    assert_eq!(turns(&mut rig, 320, 4_000), expected);
    assert_eq!(rig.metric("late_dispatches"), 0.0);
}

#[test]
fn holds_for_the_channel_whose_turn_it_is() {
    let mut rig = Rig::new("vmcd-time");
    reads(&mut rig, 0, [5_000]);
    reads(&mut rig, 1, [0]);
    rig.serve(500);
    assert_eq!(rig.hold_us(TURN), 2_000);
    rig.wait_us(1_500);
    reads(&mut rig, 0, [90_000_000]);
    assert_eq!(rig.serve(500), 90_000_000, "wherever its next request is");
    assert_eq!(rig.hold_us(TURN), 2_000);
    // In vain: the turn is over.
    rig.wait_ms(2);
    assert_eq!(rig.serve(500), GIGA);
    assert_eq!((rig.metric("holds"), rig.metric("holds_in_vain")), (2.0, 1.0));
}

#[test]
fn does_not_hold_for_a_slow_thinker_nor_after_writes_that_nobody_waits_for() {
    let mut rig = Rig::new("vmcd-time");
    for i in 0..20 {
        reads(&mut rig, 0, [100 * i]);
        rig.serve(500);
        rig.wait_ms(5);
    }
    reads(&mut rig, 0, [0]);
    reads(&mut rig, 1, [0]);
    assert_eq!(turns(&mut rig, 2, 500), [(0, 1), (1, 1)]);
    let mut rig = Rig::new("vmcd-time");
    rig.write(0, 0);
    reads(&mut rig, 1, [0]);
    assert_eq!(turns(&mut rig, 2, 500), [(0, 1), (1, 1)]);
}

#[test]
fn a_hold_is_charged_like_service() {
    // VM 0 thinks 1.5 ms and is served for 1.5: the other one gets as much wall time.
    let thinker = Client { outstanding: 1, think_us: 1_500, service_us: 1_500 };
    let busy = Client { outstanding: 8, think_us: 0, service_us: 6_000 };
    let shared = shares("vmcd-time", &[(1, thinker), (1, busy)], 30);
    assert!((shared[0].0 - 1.0 / 3.0).abs() < 0.02, "{shared:?}");
}

#[test]
fn a_hold_is_charged_no_longer_than_it_can_last() {
    let mut rig = Rig::with_weights("vmcd-time", &[1, 1]);
    reads(&mut rig, 0, [5_000]);
    rig.serve(500);
    reads(&mut rig, 1, [0]);
    assert_eq!(rig.hold_us(TURN), 2_000);
    // The one for whom the device was held goes nowhere, the other leaves.
    rig.leave_and_come_again(1);
    rig.wait_ms(3_600_000);
    reads(&mut rig, 1, (0..2_000).map(|i| 100 * i));
    reads(&mut rig, 0, (0..2_000).map(|i| 100 * i));
    let shares = turns(&mut rig, 1_000, 1_000);
    let of_vm = |vm: u64| shares.iter().filter(|(v, _)| *v == vm).map(|(_, n)| n).sum::<usize>();
    assert!(of_vm(0).abs_diff(of_vm(1)) <= 300, "{shares:?}");
}

#[test]
fn a_channel_that_wakes_is_behind_by_one_turn_at_most() {
    let mut rig = Rig::with_weights("vmcd-time:turn=100ms", &[1, 1]);
    reads(&mut rig, 0, (0..1_000).map(|i| 100 * i));
    assert_eq!(turns(&mut rig, 503, 10_000), [(0, 503)]);
    // VM 1 slept for five seconds. Once VM 0's turn is over it has two turns, not fifty.
    reads(&mut rig, 1, (0..100).map(|i| 100 * i));
    let order = turns(&mut rig, 60, 10_000);
    let of_vm1: Vec<usize> = order.iter().filter(|run| run.0 == 1).map(|run| run.1).collect();
    assert!(order[0].1 <= 10 && of_vm1[0] <= 20 && of_vm1[1] == 10, "{order:?}");
}

#[test]
fn in_a_turn_the_choose_rule_decides_and_once_the_oldest_if_expired() {
    let mut rig = Rig::new("vmcd-time");
    reads(&mut rig, 0, [500]);
    rig.serve(500);
    reads(&mut rig, 0, [100_000, 300, 600, 700]);
    let order: Vec<u64> = (0..4).map(|_| rig.serve(500)).collect();
    assert_eq!(order, [600, 700, 300, 100_000], "near and behind before far and ahead");
    let mut rig = Rig::new("vmcd-time:turn=100ms");
    reads(&mut rig, 0, [50_000_000]);
    rig.serve(500);
    // Far behind the head, so that the rule prefers all that is ahead.
    reads(&mut rig, 0, [10]);
    reads(&mut rig, 0, (0..100).map(|i| 50_000_100 + 100 * i));
    let order: Vec<u64> = (0..30).map(|_| rig.serve(10_000)).collect();
    let at = order.iter().position(|&lba| lba == 10).expect("served");
    // The look at 100 ms is too early for 125, the one at 200 is not.
    assert!((18..=21).contains(&at), "{at}: {order:?}");
}

#[test]
fn an_ssd_serves_several_channels_at_once_and_never_holds() {
    let mut rig = Rig::new("vmcd-time").solid();
    for vm in 0..3 {
        reads(&mut rig, vm, (0..10).map(|i| 1_000 * i));
    }
    let mut dispatch = |n| (0..n).map(|_| rig.dispatch() / GIGA).collect::<Vec<_>>();
    assert_eq!(dispatch(6), [0, 1, 2, 0, 1, 2]);
    // The first to be done has had the least of the device. Then commands on the device
    // count at the mean cost of the channel's.
    rig.wait_us(600);
    rig.complete();
    assert_eq!(rig.dispatch() / GIGA, 1);
    rig.wait_us(100);
    rig.complete();
    rig.complete();
    let next: Vec<u64> = (0..3).map(|_| rig.dispatch() / GIGA).collect();
    assert_eq!(next, [0, 2, 1]);
    let mut rig = Rig::new("vmcd-time").solid();
    reads(&mut rig, 0, [0]);
    reads(&mut rig, 1, [0]);
    assert_eq!(turns(&mut rig, 2, 100), [(0, 1), (1, 1)], "no hold for VM 0");
}

#[test]
fn an_ssd_gives_weights_their_shares_among_queues() {
    let client = Client { outstanding: 16, think_us: 0, service_us: 100 };
    let clients = [(1, client), (3, Client { service_us: 300, ..client })];
    let mut rig = Rig::with_weights("vmcd-time", &[1, 3]).solid();
    let mut served = [0.0; 2];
    for (vm, _) in clients.iter().enumerate() {
        reads(&mut rig, vm as u16, (0..16).map(|i| 1_000 * i));
    }
    for i in 0..4_000u64 {
        let vm = (rig.dispatch() / GIGA) as usize;
        rig.wait_us(clients[vm].1.service_us);
        rig.complete();
        served[vm] += clients[vm].1.service_us as f64;
        reads(&mut rig, vm as u16, [1_000 * (i + 16) % 900_000_000]);
    }
    let share = served[0] / (served[0] + served[1]);
    assert!((share - 0.25).abs() < 0.01, "{share}");
}

/// Closed loops on an SSD that serves commands in order, eight at once: each of
/// `outstanding` reads of `sectors` takes a microsecond for each sector and
/// eight more. A VM begins at its time, and asks for the next read when one is
/// done. For each VM: the time served, and the longest wait for a dispatch
/// from `from_us` on.
fn solid(vms: &[(u64, u32, u64)], from_us: u64, until_us: u64) -> Vec<(u64, Nanos)> {
    let mut rig = Rig::with_weights("vmcd-time", &vec![1; vms.len()]).solid();
    let mut begun = vec![false; vms.len()];
    let (mut flying, mut place) = (0, 0);
    let mut seen = vec![(0, Nanos::ZERO); vms.len()];
    while rig.now < Instant::from_nanos(until_us * 1_000) {
        for (vm, &(begins_us, outstanding, sectors)) in vms.iter().enumerate() {
            if !begun[vm] && rig.now >= Instant::from_nanos(begins_us * 1_000) {
                begun[vm] = true;
                for _ in 0..outstanding {
                    place += 10_000;
                    rig.read_long(vm as u16, place, sectors);
                }
            }
        }
        while flying < 8 && !rig.is_idle() {
            flying += 1;
            let request = rig.newest_in_flight();
            let waited = rig.now - request.arrived;
            let longest = &mut seen[request.vm.index()].1;
            if rig.now >= Instant::from_nanos(from_us * 1_000) {
                *longest = waited.max(*longest);
            }
        }
        let done = rig.oldest_in_flight();
        let (vm, sectors) = (done.vm.index(), done.extent.len().get());
        rig.wait_us(sectors + 8);
        rig.complete();
        flying -= 1;
        seen[vm].0 += sectors + 8;
        place += 10_000;
        rig.read_long(vm as u16, place, sectors);
    }
    seen
}

#[test]
fn on_an_ssd_a_flood_that_wakes_keeps_nobody_waiting() {
    // A quiet VM and a flood; another flood wakes after a second.
    let seen = solid(&[(0, 1, 8), (0, 32, 8), (1_000_000, 64, 8)], 1_000_000, 1_500_000);
    // The eight commands on the device, and one of each of the others.
    assert!(seen[0].1 <= Nanos::from_micros(11 * 16), "{seen:?}");
    // The first flood has its share of the rest: 32 of its own in turn with the other's.
    assert!(seen[1].1 <= Nanos::from_micros(4 * 32 * 16), "{seen:?}");
}

#[test]
fn on_an_ssd_shares_are_of_time_whatever_the_sizes() {
    // 4 KiB and 64 KiB, as many outstanding: the larger stay no longer on the device.
    let seen = solid(&[(0, 32, 8), (0, 32, 128)], 0, 2_000_000);
    let share = seen[0].0 as f64 / (seen[0].0 + seen[1].0) as f64;
    assert!((share - 0.5).abs() < 0.03, "{share}");
}

#[test]
fn on_an_ssd_a_command_of_several_requests_is_charged_for_all() {
    let mut rig = Rig::new("vmcd-time").solid();
    reads(&mut rig, 0, (0..16).map(|i| 8 * i));
    reads(&mut rig, 1, [0]);
    // 16 reads as one command, and a single one beside it: 136 and 16 of 152 parts.
    let order: Vec<u64> = (0..17).map(|_| rig.dispatch() / GIGA).collect();
    assert_eq!(order.iter().sum::<u64>(), 1, "{order:?}");
    rig.wait_us(1_520);
    (0..17).for_each(|_| rig.complete());
    let charged = [0, 1].map(|vm| rig.vm_metric(vm, "device_time_ms").unwrap());
    assert_eq!(charged.map(|ms| (ms * 1e3).round()), [1_360.0, 160.0]);
}

#[test]
fn an_ssd_takes_the_continuation_of_a_command_first() {
    let mut rig = Rig::new("vmcd-time").solid();
    for vm in 0..2 {
        reads(&mut rig, vm, [0, 8, 16]);
    }
    let order: Vec<u64> = (0..6).map(|_| rig.dispatch()).collect();
    assert_eq!(order, [0, 8, 16, GIGA, GIGA + 8, GIGA + 16]);
}

#[test]
fn detach_in_mid_turn_hands_back_all_in_order() {
    let mut rig = Rig::new("vmcd-time");
    reads(&mut rig, 0, [900, 500, 700, 100, 300]);
    reads(&mut rig, 1, [0]);
    assert_eq!(rig.serve(100), 100);
    rig.dispatch();
    let now = rig.now;
    let returned = rig.policy.detach(now, VmId::new(0));
    let places: Vec<u64> = returned.iter().map(|r| r.extent.start().get()).collect();
    assert_eq!(places, [900, 500, 700]);
    // One of its requests is still on the device; the number is given to another VM.
    rig.policy.attach(now, VmId::new(0), Default::default());
    rig.wait_us(100);
    rig.complete();
    assert_eq!(rig.metric("commands_in_flight"), 0.0);
    assert_eq!(rig.serve(100), GIGA);
    assert!(rig.is_idle());
}

#[test]
fn what_is_on_the_device_when_the_turn_ends_is_charged_to_its_channel() {
    let mut rig = backlogged("vmcd-time:turn=10ms", &[1, 1]);
    // Two of VM 0 on the device together, for 20 ms.
    rig.dispatch();
    rig.dispatch();
    rig.wait_ms(20);
    rig.complete();
    assert_eq!(rig.dispatch(), GIGA, "VM 0's turn is over");
    // Its second and VM 1's first share the next 10.
    rig.wait_ms(10);
    rig.complete();
    rig.wait_ms(5);
    rig.complete();
    let times = [0, 1].map(|vm| rig.vm_metric(vm, "device_time_ms"));
    assert_eq!(times, [Some(25.0), Some(10.0)]);
}

#[test]
fn a_device_that_hangs_is_not_waited_for_for_ever() {
    let mut rig = Rig::new("vmcd-time");
    reads(&mut rig, 0, [0]);
    rig.dispatch();
    rig.wait_ms(600);
    reads(&mut rig, 1, [0]);
    assert_eq!(rig.hold_us(TURN), 400_000, "the turn's command is on the device");
    rig.wait_ms(400);
    assert_eq!(rig.dispatch(), GIGA);
}

#[test]
fn reads_and_writes_of_a_channel_go_by_place_together() {
    let mut rig = Rig::new("vmcd-time");
    for (at, op) in [(100, Op::Write), (200, Op::Read), (300, Op::Write)] {
        rig.arrive(0, 0, op, op == Op::Read, at);
    }
    assert_eq!(rig.serve_n(3), [100, 200, 300]);
}

#[test]
fn a_turn_shorter_than_what_is_on_the_device_goes_on() {
    // Found by the conformance tests: the next turn was used up as it began, for ever.
    let mut rig = backlogged("vmcd-time:turn=1ms", &[1]);
    turns(&mut rig, 8, 10_000);
    for place in 0..8 {
        rig.dispatch();
        rig.read(0, 900_000 + 100 * place);
    }
    assert_eq!(rig.metric("commands_in_flight"), 8.0);
}
