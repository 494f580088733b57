//! The bound, without a device.

use super::*;

/// A device that does a byte a nanosecond at best, and on which a command takes 100 µs at least.
fn known(isolation: f64) -> Governor {
    let mut governor = Governor::new(isolation);
    governor.rates[0] = 1.0;
    governor.delays = [[[100_000.0; KEPT]; KINDS]; 2];
    governor.shares[SHORT_READS] = 1.0;
    governor.look();
    governor
}

/// The bound goes up while the device does less than it could and light VMs do not feel it, down
/// while they do, and up again where the device would do too little.
#[test]
fn the_bound_follows_what_light_vms_feel() {
    let mut governor = known(0.5);
    let mut after = |slowdown: f64, rate: f64| {
        for _ in 0..200 {
            governor.begin_epoch(Instant::ZERO);
            governor.answered(false, 8192, Nanos::new((slowdown * 1e5) as u64));
            governor.answered(false, 1 << 20, Nanos::from_secs(1)); // Long reads say nothing.
            governor.steer(rate);
        }
        governor.bound().unwrap() / (1e5 * governor.gain())
    };
    assert_eq!(after(1.5, 0.9), 2.0, "as far as it may go");
    assert_eq!(after(2.0, 0.9), 2.0);
    assert_eq!(after(1.5, 0.99), 2.0, "all that the device can do");
    assert_eq!(after(3.0, 0.95), 1.0);
    let least = after(6.0, 0.95);
    assert!(least < 2.0 / 3.0, "far too slow: less than what just keeps the device busy: {least}");
    assert!((after(3.0, 0.95) - least).abs() < 0.1 * least, "it stays there");
    assert!((after(1.5, 0.99) - least).abs() < 0.1 * least, "more would bring nothing");
    assert_eq!(after(3.0, 0.8), 2.0, "0.85 is the others'");
    assert_eq!(after(3.0, 0.87), 2.0);
    assert!(known(0.2).stretch_max() == 5.0 && known(1.0).stretch_max() == 1.0);
}

/// After a trial of the price the device is still fast: its rate then is not its best rate, and
/// the time of a command is measured at once.
#[test]
fn what_a_device_does_right_after_a_trial_is_no_rate() {
    let mut governor = known(0.6);
    let from = Instant::ZERO + Nanos::from_secs(1);
    governor.settle(from, true);
    assert_eq!(governor.bound(), Some(0.0), "one command at a time");
    let at = |us: u64| from + Nanos::from_micros(us);
    (1..=8).for_each(|n| governor.completed(at(50 * n), false, 8192, at(50 * n - 50)));
    assert_eq!(governor.delay_of(SHORT_READS), 50_000.0);
    (0..200).for_each(|n| governor.completed(at(400 + n), false, 65_536, at(0)));
    assert_eq!(governor.rate(), 1.0, "it is too early");
    (0..64).for_each(|n| governor.completed(at(5_001 + 100 * n), false, 8192, at(5_000)));
    assert_eq!(governor.rate(), 1.0);
    assert!(governor.reached > 0.0, "an epoch was seen");
}

/// A device of a byte a nanosecond, on which a command takes 100 µs: writes have a quarter of
/// the bound, or their share of the cost where that is more.
#[test]
fn writes_have_their_share_of_the_bound() {
    assert!(Governor::new(1.0).allows_write(1 << 40, 4096), "there is no bound yet");
    let mut governor = known(1.0);
    for (shares, most) in [([0.9, 0.0, 0.1, 0.0], 25_000), ([0.0, 0.4, 0.2, 0.4], 60_000)] {
        governor.shares = shares;
        governor.look();
        assert_eq!(governor.bound().map(f64::round), Some(100_000.0));
        assert!(governor.allows_write(most - 5_000, 4_900), "{shares:?}");
        assert!(!governor.allows_write(most - 5_000, 5_100), "{shares:?}");
    }
    assert!(governor.allows_write(0, 1 << 40), "one may always go");
}

/// The time of a light VM's short writes counts once it is known how long one takes alone, and a
/// probe of the delay waits for one. Without reads or writes of light VMs the bound stays at its
/// gain.
#[test]
fn the_bound_follows_writes_of_light_vms_too() {
    let mut governor = known(0.5);
    governor.delays[0][SHORT_WRITES] = [f64::INFINITY; KEPT];
    let after = |governor: &mut Governor, writes: bool| {
        for _ in 0..200 {
            governor.begin_epoch(Instant::ZERO);
            if writes {
                governor.answered(true, 8192, Nanos::from_micros(600));
            }
            governor.steer(0.95);
        }
        (governor.bound().unwrap() / (1e5 * governor.gain()) * 100.0).round()
    };
    assert_eq!(after(&mut governor, false), 100.0);
    assert_eq!(after(&mut governor, true), 100.0, "nobody knows what 600 us are");
    let at = |us: u64| Instant::ZERO + Nanos::from_micros(us);
    governor.settle(at(0), true);
    (1..=10).for_each(|n| governor.completed(at(50 * n), false, 8192, at(50 * n - 50)));
    assert_eq!(governor.bound(), Some(0.0), "the probe waits for a write");
    governor.completed(at(600), true, 8192, at(500));
    assert_eq!(governor.delay_of(SHORT_WRITES), 100_000.0);
    assert_eq!(governor.delay_of(SHORT_READS), 50_000.0);
    governor.delays[0][SHORT_READS] = [100_000.0; KEPT];
    governor.look();
    assert!(after(&mut governor, true) < 67.0);
}

/// A light VM's short writes are asked for, and none comes: the next probe of the delay is short.
#[test]
fn a_kind_that_does_not_come_is_not_asked_for_again() {
    let mut governor = known(0.5);
    governor.delays[0][SHORT_WRITES] = [f64::INFINITY; KEPT];
    governor.answered(true, 8192, Nanos::from_micros(600));
    let mut probe = || {
        governor.phase = Phase::Delay;
        let read = |_: &u32| {
            governor.completed(Instant::ZERO, false, 8192, Instant::ZERO);
            governor.is_steady()
        };
        (1..100).find(read)
    };
    assert_eq!([probe(), probe()], [Some(DELAY_COMMANDS_MAX), Some(DELAY_COMMANDS)]);
}

/// The kind that had all of the cost does not come while delays are measured: they are not measured
/// for ever, one command at a time.
#[test]
fn a_probe_of_the_delay_ends_though_what_matters_does_not_come() {
    let mut governor = Governor::new(0.6);
    governor.rates[0] = 1.0;
    governor.shares[SHORT_READS + 1] = 1.0;
    let mut one_by_one = 0;
    for n in 1..20_000 {
        let now = Instant::ZERO + Nanos::from_micros(10 * n);
        governor.probe(now, true);
        one_by_one += u32::from(governor.bound() == Some(0.0));
        let dispatched = Instant::ZERO + Nanos::from_micros(10 * n - 5);
        governor.completed(now, false, 8192, dispatched);
    }
    assert!((1..=1_000).contains(&one_by_one), "{one_by_one} of 20,000");
}

/// A VM that reads once a second does not meet the doubled bound of a probe again and again, whenever
/// it began.
#[test]
fn probes_do_not_fall_into_step_with_a_vm() {
    const STEP_US: u64 = 200;
    let mut governor = Governor::new(0.6);
    let mut doubled = Vec::new();
    for n in 1..60 * 1_000_000 / STEP_US {
        let now = Instant::ZERO + Nanos::from_micros(STEP_US * n);
        governor.probe(now, true);
        governor.completed(
            now,
            false,
            1 << 16,
            Instant::ZERO + Nanos::from_micros(STEP_US * (n - 1)),
        );
        doubled.push(governor.phase == Phase::Rate);
    }
    let second = (1_000_000 / STEP_US) as usize;
    let met = |from: usize| doubled.iter().skip(from).step_by(second).filter(|is| **is).count();
    let most = (0..second).map(met).max();
    assert!(most < Some(12), "{most:?} of 60 reads");
}
