//! The rules of mclock, one by one.

use super::*;
use crate::schedulers::tests::Rig;

/// Keep four reads of each VM queued and serve `n`, `us` each; how many of
/// each VM.
fn served(rig: &mut Rig, vms: &[u16], n: usize, us: u64) -> Vec<usize> {
    let mut counts = vec![0; 4];
    let mut next = 0;
    let mut read = |rig: &mut Rig, vm: u16| {
        next += 100;
        rig.read(vm, u64::from(vm) * 100_000_000 + next);
    };
    for &vm in vms {
        (0..4).for_each(|_| read(rig, vm));
    }
    for _ in 0..n {
        let vm = (rig.serve_late(us) / 100_000_000) as u16;
        counts[usize::from(vm)] += 1;
        read(rig, vm);
    }
    counts
}

#[test]
fn backlogged_vms_share_by_weight() {
    let mut rig = Rig::with_weights("mclock", &[1, 2, 4]);
    let counts = served(&mut rig, &[0, 1, 2], 700, 1_000);
    for (vm, share) in [100, 200, 400].into_iter().enumerate() {
        assert!(counts[vm].abs_diff(share) <= 1, "{counts:?}");
    }
}

#[test]
fn reservations_go_first_and_weights_share_the_rest() {
    // 1,000 requests a second in all; 100 of them each VM's own.
    let mut rig = Rig::with_weights("mclock:reserve_iops=100", &[1, 8]);
    let counts = served(&mut rig, &[0, 1], 1_000, 1_000);
    assert_eq!(counts.iter().sum::<usize>(), 1_000);
    // VM 0's share by weight is 111 anyway, and its reservation is a part of it.
    assert!((100..=125).contains(&counts[0]), "{counts:?}");
    let mut rig = Rig::with_weights("mclock:reserve_iops=300", &[1, 8]);
    let counts = served(&mut rig, &[0, 1], 1_000, 1_000);
    assert!((295..=310).contains(&counts[0]), "{counts:?}");
    assert!(rig.metric("by_reservation") >= 295.0);
}

#[test]
fn requests_by_weight_do_not_use_up_the_reservation() {
    // Alone on a device that does 2,000 a second: it gets far more than 100.
    let mut rig = Rig::with_weights("mclock:reserve_iops=100", &[1, 1]);
    served(&mut rig, &[0], 2_000, 500);
    // Now the other floods: the first VM's reservation is not in the future.
    rig.reads(1, (0..50).map(|i| 900_000_000 + 100 * i));
    let before = rig.metric("by_reservation");
    rig.wait_ms(30);
    rig.serve(500);
    assert!(rig.metric("by_reservation") > before);
}

#[test]
fn a_limit_holds_until_the_next_tag() {
    let mut rig = Rig::new("mclock:limit_iops=100");
    rig.wait_ms(1_000);
    rig.reads(0, [100, 300, 500]);
    rig.serve(1_000);
    assert_eq!(rig.hold_us(LIMIT), 9_000);
    // Another VM is not held by it.
    rig.read(1, 9_000);
    assert_eq!(rig.dispatch(), 9_000);
    rig.wait_us(9_000);
    assert_eq!(rig.dispatch(), 300);
}

#[test]
fn long_requests_count_by_their_length() {
    let mut rig = Rig::new("mclock");
    for i in 0..40 {
        rig.read_long(0, 1_000 * i, 456);
        rig.read(1, 100_000_000 + 100 * i);
    }
    let lbas = rig.serve_n(40);
    let long = lbas.iter().filter(|&&lba| lba < 100_000_000).count();
    assert!((8..=9).contains(&long), "one of 228 KiB for four of 4 KiB: {lbas:?}");
}

#[test]
fn a_new_vm_begins_level_with_the_others() {
    let mut rig = Rig::new("mclock");
    served(&mut rig, &[0], 1_000, 100);
    assert_eq!(served(&mut rig, &[1], 100, 100)[1], 50);
}

#[test]
fn a_vm_that_paused_goes_first_until_it_has_caught_up() {
    let mut rig = Rig::new("mclock");
    rig.read(1, 900_000_000);
    rig.serve(100);
    served(&mut rig, &[0], 200, 100);
    // It has paused for 20 ms, not for five minutes: 200 requests are its due.
    assert_eq!(served(&mut rig, &[1], 150, 100), [0, 150, 0, 0]);
}

#[test]
fn after_the_idle_time_it_is_level() {
    let mut rig = Rig::new("mclock");
    rig.read(1, 900_000_000);
    rig.serve(100);
    served(&mut rig, &[0], 310, 1_000_000);
    let counts = served(&mut rig, &[1], 100, 100);
    assert!((48..=52).contains(&counts[1]), "{counts:?}");
}

#[test]
fn a_first_request_that_is_taken_back_costs_nothing() {
    let mut rig = Rig::new("mclock:limit_iops=100");
    rig.wait_ms(1_000);
    let id = rig.read(0, 100);
    rig.withdraw(id);
    rig.read(0, 300);
    assert_eq!(rig.dispatch(), 300);
}

#[test]
fn a_reservation_above_the_limit_is_refused() {
    let error = crate::schedulers::build("mclock:reserve_iops=200,limit_iops=100").err();
    assert!(error.unwrap().to_string().contains("above limit_iops=100"));
}
