//! The rules of VMCD, one by one. VM `n` reads at multiples of `n` gigasectors.

use crate::schedulers::tests::Rig;
use seekway_core::request::VmId;

const GIGA: u64 = 1_000_000_000;

/// A request of each VM at each of these places in its region.
fn reads(rig: &mut Rig, vm: u16, places: impl IntoIterator<Item = u64>) {
    rig.reads(vm, places.into_iter().map(|place| u64::from(vm) * GIGA + place));
}

/// Serve `n` requests of `us` each; whose they were.
fn serve(rig: &mut Rig, n: usize, us: u64) -> Vec<u64> {
    (0..n).map(|_| rig.serve(us) / GIGA).collect()
}

fn credits(rig: &Rig) -> [f64; 4] {
    [0, 1, 2, 3].map(|vm| rig.vm_metric(vm, "credits_left").unwrap())
}

/// Replenishments by (period, spare, exhaustion).
fn causes(rig: &Rig) -> (f64, f64, f64) {
    let by = |cause| rig.metric(&format!("replenished_by_{cause}"));
    (by("period"), by("spare"), by("exhaustion"))
}

#[test]
fn credits_follow_the_queues_and_run_out_together() {
    let mut rig = Rig::new("vmcd");
    reads(&mut rig, 0, [0, 100, 200, 300, 400]);
    reads(&mut rig, 1, [0, 100]);
    // Nothing is known of the device: a credit for each request, and one is gone.
    let first = rig.serve(100) / GIGA;
    let mut left = [5.0, 2.0, 0.0, 0.0];
    left[first as usize] -= 1.0;
    assert_eq!((credits(&rig), causes(&rig)), (left, (0.0, 0.0, 1.0)));
    // A channel that wakes has to wait; the others' credits go first.
    reads(&mut rig, 2, [0]);
    assert!(!serve(&mut rig, 6, 100).contains(&2));
    assert_eq!(causes(&rig), (0.0, 0.0, 1.0));
    assert_eq!(serve(&mut rig, 1, 100), [2]);
    assert_eq!(causes(&rig), (0.0, 0.0, 2.0));
}

#[test]
fn a_period_is_as_long_as_the_longest_remaining_deadline() {
    for (write, period_ms) in [(false, 125), (true, 250)] {
        let mut rig = Rig::new("vmcd:batch=1");
        reads(&mut rig, 0, (0..600).map(|i| 100 * i));
        if write {
            rig.write(1, GIGA);
        }
        for ms in 0..period_ms {
            assert_eq!(causes(&rig).0, 0.0, "after {ms} ms");
            rig.serve(1_000);
        }
        rig.serve(1_000);
        rig.serve(1_000);
        assert_eq!(causes(&rig), (1.0, 0.0, 1.0), "the credits of a period, and not all consumed");
    }
}

#[test]
fn spare_credits_are_dealt_out_anew_when_more_came_than_any_consumed() {
    let scene = |first: u64, newcomers: u64| {
        let mut rig = Rig::new("vmcd");
        // The last period: `first` credits each, all consumed.
        for vm in [0, 1] {
            reads(&mut rig, vm, (0..first).map(|i| 100 * i));
        }
        serve(&mut rig, 2 * first as usize, 100);
        // This one: six each; four are consumed in a round while others come.
        for vm in [0, 1] {
            reads(&mut rig, vm, (0..6).map(|i| 100 * i));
        }
        serve(&mut rig, 4, 100);
        reads(&mut rig, 2, (0..newcomers).map(|i| 100 * i));
        serve(&mut rig, 1, 100);
        causes(&rig)
    };
    // Eight are unused, three are more than the two that each consumed.
    assert_eq!(scene(2, 3), (0.0, 1.0, 2.0));
    assert_eq!(scene(2, 2), (0.0, 0.0, 2.0), "no more arrivals than were consumed");
    assert_eq!(scene(2, 0), (0.0, 0.0, 2.0), "no channel wants credits");
    assert_eq!(scene(8, 9), (0.0, 0.0, 2.0), "eight unused are not more than the least allotted");
    assert_eq!(scene(7, 9), (0.0, 1.0, 2.0), "eight are more than seven");
}

#[test]
fn a_slow_device_has_no_more_credits_than_it_serves_in_a_period() {
    let mut rig = Rig::new("vmcd:batch=1");
    reads(&mut rig, 0, [0]);
    rig.serve(10_000);
    reads(&mut rig, 0, (0..60).map(|i| 100 * i));
    reads(&mut rig, 1, (0..30).map(|i| 100 * i));
    rig.serve(10_000);
    // 125 ms / 10 ms = 12 credits for 90 requests.
    let [a, b, ..] = credits(&rig);
    assert_eq!(a + b, 11.0, "{a}, {b}");
    assert!((7.0..=8.0).contains(&a), "{a}");
}

#[test]
fn the_winner_sends_four_in_the_order_of_the_choose_rule() {
    let mut rig = Rig::new("vmcd");
    reads(&mut rig, 1, [900, 500, 700, 100, 300, 1_100]);
    let lbas: Vec<u64> = (0..6).map(|_| rig.serve(100) - GIGA).collect();
    assert_eq!(lbas, [100, 300, 500, 700, 900, 1_100]);
    assert_eq!(rig.metric("rounds"), 2.0);
}

#[test]
fn a_continuation_costs_a_credit_too() {
    let mut rig = Rig::new("vmcd");
    reads(&mut rig, 0, [0, 8, 16, 24, 32]);
    // As the dispatcher does for one command: no input in between.
    for n in 1..=4 {
        rig.dispatch();
        assert_eq!(credits(&rig)[0], 5.0 - f64::from(n));
    }
}

/// VMs that always have these numbers of requests queued: the shares and the order of `n`
/// dispatches.
fn steady(spec: &str, weights: &[u32], queued: &[u64], n: usize) -> (Vec<f64>, Vec<u64>) {
    let mut rig = Rig::with_weights(spec, weights);
    for (vm, &len) in queued.iter().enumerate() {
        reads(&mut rig, vm as u16, (0..len).map(|i| 100 * i));
    }
    let (mut shares, mut order) = (vec![0.0; weights.len()], Vec::new());
    for i in 0..n as u64 {
        let vm = rig.serve(100) / GIGA;
        reads(&mut rig, vm as u16, [100 * (i % 5_000)]);
        shares[vm as usize] += 1.0 / n as f64;
        order.push(vm);
    }
    (shares, order)
}

#[test]
fn the_lottery_is_won_in_proportion_to_credits() {
    for seed in 1..=5 {
        let (shares, order) = steady(&format!("vmcd:seed={seed}"), &[1; 3], &[30, 20, 10], 20_000);
        for (share, expected) in shares.iter().zip([1.0 / 2.0, 1.0 / 3.0, 1.0 / 6.0]) {
            // Not exact: the last to have credits left may see a replenishment for the others.
            assert!((share - expected).abs() < 0.03, "seed {seed}: {shares:?}");
        }
        let again = steady(&format!("vmcd:seed={seed}"), &[1; 3], &[30, 20, 10], 20_000);
        assert!(order == again.1, "seed {seed}: another schedule");
        let other = steady(&format!("vmcd:seed={}", seed + 5), &[1; 3], &[30, 20, 10], 20_000);
        assert!(order != other.1, "seeds {seed} and {}: the same schedule", seed + 5);
    }
}

#[test]
fn weights_scale_credits() {
    let (shares, _) = steady("vmcd", &[1, 2, 4], &[20; 3], 20_000);
    for (share, expected) in shares.iter().zip([1.0 / 7.0, 2.0 / 7.0, 4.0 / 7.0]) {
        assert!((share - expected).abs() < 0.02, "{shares:?}");
    }
}

#[test]
fn a_head_about_to_be_late_goes_after_the_round_for_a_credit() {
    let mut rig = Rig::new("vmcd:seed=1");
    reads(&mut rig, 0, (0..40).map(|i| 100 * i));
    reads(&mut rig, 3, [0]);
    // Two rounds of VM 0; at 160 ms the first that came, of each channel, is late.
    assert_eq!(serve(&mut rig, 10, 20_000), [0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
    assert_eq!(rig.metric("late_dispatches"), 2.0);
}

#[test]
fn a_late_head_without_a_credit_waits() {
    let mut rig = Rig::new("vmcd:seed=1");
    reads(&mut rig, 0, (0..40).map(|i| 100 * i));
    rig.serve(20_000);
    reads(&mut rig, 3, [0]);
    // Late at 145 ms. The pass at 160 ms has one for VM 0 alone; the period is over since
    // 125 ms, and the draw after the pass replenishes.
    assert_eq!(serve(&mut rig, 8, 20_000), [0; 8]);
    assert_eq!((rig.metric("late_dispatches"), causes(&rig).0), (1.0, 0.0));
    // Its head is late, and has a credit now: in this round, by the draw or by the pass.
    assert!(serve(&mut rig, 6, 20_000).contains(&3));
    assert_eq!((causes(&rig).0, causes(&rig).1), (1.0, 0.0));
}

#[test]
fn nobody_starves_beside_a_flood() {
    for seed in 1..=5 {
        let mut rig = Rig::new(&format!("vmcd:seed={seed}"));
        reads(&mut rig, 0, (0..64).map(|i| 100 * i));
        let (mut arrived, mut longest_ms) = (None, 0);
        for i in 0..20_000u64 {
            if arrived.is_none() && i % 100 == 50 {
                arrived = Some(rig.now);
                reads(&mut rig, 1, [i]);
            }
            match rig.serve(8_000) / GIGA {
                0 => reads(&mut rig, 0, [100 * i]),
                _ => {
                    let waited = rig.now - arrived.take().unwrap();
                    longest_ms = longest_ms.max(waited.get() / 1_000_000);
                }
            }
        }
        // At most the rest of a period without a credit, and then until its deadline and to
        // the end of a round (four, and two that are late).
        assert!(longest_ms <= 125 + 125 + 7 * 8, "seed {seed}: {longest_ms} ms");
    }
}

#[test]
fn detach_in_mid_round_hands_back_all_in_order() {
    let mut rig = Rig::new("vmcd:seed=1");
    reads(&mut rig, 0, [900, 500, 700, 100, 300, 1_100]);
    reads(&mut rig, 3, [0]);
    assert_eq!(serve(&mut rig, 2, 100), [0, 0]);
    let now = rig.now;
    let returned = rig.policy.detach(now, VmId::new(0));
    let places: Vec<u64> = returned.iter().map(|r| r.extent.start().get()).collect();
    assert_eq!(places, [900, 500, 700, 1_100], "the order of arrival, without 100 and 300");
    assert_eq!(serve(&mut rig, 1, 100), [3]);
    assert!(rig.is_idle());
    assert_eq!(rig.vm_metric(0, "queued"), None);
    assert_eq!(causes(&rig), (0.0, 0.0, 1.0));
}

#[test]
fn the_monitor_shows_what_the_paper_keeps() {
    let mut rig = Rig::new("vmcd");
    reads(&mut rig, 0, [0, 100, 200]);
    serve(&mut rig, 3, 100);
    reads(&mut rig, 0, (0..10).map(|i| 100 * i));
    serve(&mut rig, 1, 1_000);
    let shown = ["queued", "credits_allotted", "dispatched", "credits_left"]
        .map(|name| rig.vm_metric(0, name).unwrap());
    assert_eq!(shown, [9.0, 3.0, 3.0, 9.0]);
    assert_eq!(rig.vm_metric(0, "deadline_left_ms"), Some(125.0));
    assert_eq!(rig.vm_metric(0, "waited_ms"), Some(1.0));
    assert_eq!(rig.vm_metric(1, "waited_ms"), None, "nothing waits there");
}

/// A stream in which the next request comes when the last one is done.
#[test]
fn with_idle_a_turn_waits_for_the_winners_next_request() {
    let mut rig = Rig::new("vmcd:idle=4ms,credits=period");
    // What a request takes has to be known: 0.1 ms, so that 1,250 are served in a period.
    for vm in [0, 1] {
        reads(&mut rig, vm, [0]);
        rig.serve(100);
    }
    (0..2).for_each(|vm| reads(&mut rig, vm, [8]));
    let winner = rig.serve(100) / GIGA;
    let next = 16;
    assert_eq!(rig.hold_us("anticipation"), 4_000);
    reads(&mut rig, winner as u16, [next]);
    assert_eq!(rig.serve(100), winner * GIGA + next, "its turn goes on");
    rig.wait_ms(4);
    assert_eq!(rig.serve(100) / GIGA, 1 - winner, "it has waited long enough");
}

#[test]
fn what_is_late_needs_a_credit_unless_it_is_free() {
    for (spec, free) in [("vmcd:batch=1", false), ("vmcd:batch=1,late=free", true)] {
        let mut rig = Rig::new(spec);
        rig.writes(0, (0..4).map(|i| 100 * i));
        // Four credits for a period of 250 ms; then a channel without one comes.
        serve(&mut rig, 1, 1_000);
        reads(&mut rig, 1, [0]);
        rig.wait_ms(200);
        let order = serve(&mut rig, 2, 1_000);
        assert_eq!(order.contains(&1), free, "{spec}: {order:?}");
    }
}
