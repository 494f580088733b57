use super::*;

const PERIOD: Nanos = Nanos::from_micros(300);

fn us(us: u64) -> Nanos {
    Nanos::from_micros(us)
}

fn at(us: u64) -> Instant {
    Instant::ZERO + Nanos::from_micros(us)
}

fn settings(literal: bool) -> Settings {
    let predict = if literal { Predict::Last } else { Predict::Min8 };
    let absence = if literal { Nanos::ZERO } else { us(600) };
    Settings { period: PERIOD, predict, absence, literal }
}

fn remaining(monitor: &Monitor, now: Instant, vcpu: VcpuId) -> Option<Nanos> {
    monitor.get(vcpu)?.remaining(now, &monitor.settings)
}

/// One vCPU, with the beats that it is asked for and a host that takes it away.
struct Host {
    monitor: Monitor,
    now: u64,
    sparse: bool,
    beats: u64,
}

const V: VcpuId = VcpuId::new(0);

impl Host {
    fn new(literal: bool, sparse: bool) -> Host {
        let mut monitor = Monitor::new(settings(literal));
        monitor.attach(at(0), &VcpuSet::only(V));
        Host { monitor, now: 0, sparse, beats: 0 }
    }

    fn watch(&self) -> &Watch {
        self.monitor.get(V).unwrap()
    }

    fn due(&self) -> Instant {
        match self.sparse {
            true => self.watch().next_beat(&self.monitor.settings, Nanos::from_millis(100)),
            false => self.watch().seen + PERIOD,
        }
    }

    fn beat(&mut self, when: Instant) -> News {
        let due = Some(self.due());
        self.beats += 1;
        self.monitor.heard(when, V, Sign::Beat { due })
    }

    /// Lets the vCPU run for `runs` and be away for `away`, then gives it back.
    fn round(&mut self, runs: u64, away: u64) {
        let ends = at(self.now + runs);
        while self.due() < ends {
            self.beat(self.due());
        }
        self.now += runs + away;
        if self.due() <= at(self.now) {
            self.beat(at(self.now));
        }
    }
}

#[test]
fn the_paper_takes_the_last_beat_for_the_end_and_the_late_one_for_the_beginning() {
    let mut host = Host::new(true, false);
    host.round(5_000, 11_000);
    assert_eq!(host.watch().predicted(), None, "how long it had run before nobody knows");
    host.round(11_000, 11_000);
    assert_eq!(host.watch().predicted(), Some(us(10_800)));
    assert_eq!(remaining(&host.monitor, at(host.now + 3_000), V), Some(us(7_800)));
    assert_eq!(remaining(&host.monitor, at(host.now + 13_000), V), Some(Nanos::ZERO));
    host.round(3_000, 11_000);
    assert_eq!(host.watch().predicted(), Some(us(2_700)), "the last one counts");
    assert_eq!(host.watch().slices(), 2);
}

#[test]
fn a_late_beat_is_no_absence_where_nothing_was_to_be_gained() {
    for (literal, slices) in [(true, 20), (false, 0)] {
        let mut host = Host::new(literal, false);
        host.round(1_000, 11_000);
        for _ in 0..20 {
            host.beat(host.due() + us(500)); // as in an emulated guest
        }
        assert_eq!(host.watch().slices(), slices, "literal: {literal}");
    }
}

#[test]
fn the_least_of_eight_without_those_that_were_cut_short() {
    let mut host = Host::new(false, false);
    for runs in [5_000, 11_200, 10_900, 11_100, 2_000, 11_000, 11_200] {
        host.round(runs, 11_000);
    }
    assert_eq!(host.watch().predicted(), Some(us(10_800)));
    // Every one is short now: that is how long they are.
    (0..8).for_each(|_| host.round(2_000, 11_000));
    assert_eq!(host.watch().predicted(), Some(us(1_800)));
}

#[test]
fn one_that_outlives_what_was_seen_is_expected_to_go_on() {
    let mut host = Host::new(false, false);
    (0..6).for_each(|_| host.round(11_000, 11_000));
    let left = |host: &Host, ran: u64| remaining(&host.monitor, at(host.now + ran), V);
    assert_eq!(left(&host, 10_700), Some(us(100)));
    assert_eq!(left(&host, 10_800), Some(Nanos::ZERO));
    // Beats show that it runs on: expect as long again as it has outlived the longest.
    let began = host.now;
    while host.due() < at(began + 16_000) {
        host.beat(host.due());
    }
    assert_eq!(left(&host, 15_900), Some(us(5_100)));
    // Without them nothing is known of it, and less is expected.
    assert_eq!(left(&host, 19_000), Some(us(2_000)));
}

#[test]
fn edges_are_exact_and_interruptions_end_nothing() {
    let mut monitor = Monitor::new(settings(false));
    monitor.attach(at(0), &VcpuSet::only(V));
    assert_eq!(monitor.heard(at(100), V, Sign::Preempted), News::Left);
    assert_eq!(monitor.heard(at(11_100), V, Sign::Resumed), News::Returned);
    assert_eq!(monitor.heard(at(14_000), V, Sign::Preempted), News::Left);
    assert_eq!(monitor.heard(at(14_200), V, Sign::Resumed), News::Back, "of 200 us");
    assert_eq!(monitor.heard(at(22_100), V, Sign::Preempted), News::Left);
    let watch = monitor.get(V).unwrap();
    assert_eq!((watch.back_at(at(22_100)), watch.away(at(22_200))), (at(33_100), us(11_100)));
    // Overdue: after as long again.
    assert_eq!(watch.back_at(at(34_100)), at(35_100));
    assert_eq!(monitor.heard(at(33_100), V, Sign::Resumed), News::Returned);
    assert_eq!(monitor.get(V).unwrap().predicted(), Some(us(11_000)));
    assert_eq!(monitor.heard(at(35_000), V, Sign::Idle), News::Back);
    assert_eq!(remaining(&monitor, at(40_000), V), Some(us(11_000)), "its slice is not used");
}

#[test]
fn a_vcpu_learns_from_others_until_it_knows_better() {
    let other = VcpuId::new(1);
    let mut monitor = Monitor::new(settings(false));
    monitor.attach(at(0), &VcpuSet::first(2));
    for n in 0..3 {
        monitor.heard(at(n * 22_000), V, Sign::Resumed);
        monitor.heard(at(n * 22_000 + 11_000), V, Sign::Preempted);
    }
    assert_eq!(monitor.get(other).unwrap().predicted(), Some(us(11_000)));
    monitor.attach(at(70_000), &VcpuSet::only(other));
    assert!(monitor.get(V).is_none() && monitor.get(other).is_some(), "0 went off line");
    assert_eq!(monitor.heard(at(71_000), V, Sign::Resumed), News::None);
}

/// Sparse beats, varying slices and cut ones: a prediction is no less than some slice of the last
/// eight learned ones, but for a period.
#[test]
fn predictions_never_fall_below_what_was_seen() {
    for seed in 1..200u64 {
        let mut random = seed;
        let mut draw = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % most
        };
        let mut host = Host::new(false, true);
        let mut least = u64::MAX;
        for n in 0..200 {
            let whole = 10_700 + draw(600);
            let runs = if draw(10) == 0 { 700 + draw(10_000) } else { whole };
            host.round(runs, 2_000 + draw(60_000));
            if n > 0 {
                least = least.min(runs);
            }
            let predicted = host.watch().predicted().unwrap_or(us(least));
            assert!(predicted + PERIOD >= us(least), "seed {seed}: {predicted} of {least} us");
        }
        // The prediction is right: slices cut to less than 3/4 are left out.
        let predicted = host.watch().predicted().unwrap();
        assert!(predicted + PERIOD >= us(10_700 * 3 / 4), "seed {seed}: {predicted} of 11 ms");
    }
}

#[test]
fn sparse_beats_are_few_and_find_slices_that_have_become_shorter() {
    let mut host = Host::new(false, true);
    (0..60).for_each(|_| host.round(11_000, 11_000));
    let (beats, predicted) = (host.beats, host.watch().predicted());
    assert!(beats < 60 * 5, "{beats} beats in 60 slices");
    assert!(predicted.is_some_and(|p| p >= us(10_400)), "{predicted:?}");
    (0..60).for_each(|_| host.round(4_000, 4_000));
    let predicted = host.watch().predicted();
    assert!(predicted.is_some_and(|p| p <= us(4_300) && p >= us(3_400)), "{predicted:?}");
}

/// Two slices with an unseen absence between were once taken for one, and for ever.
#[test]
fn a_slice_that_is_really_three_is_found_out() {
    let mut host = Host::new(false, true);
    (0..6).for_each(|_| host.round(33_000, 33_000));
    (0..60).for_each(|_| host.round(11_000, 11_000));
    let predicted = host.watch().predicted();
    assert!(predicted.is_some_and(|p| p <= us(11_300)), "{predicted:?}");
}

#[test]
fn one_that_was_idle_and_has_to_wait_is_away_from_then_on() {
    let mut monitor = Monitor::new(settings(false));
    monitor.attach(at(0), &VcpuSet::only(V));
    assert_eq!(monitor.heard(at(1_000), V, Sign::Idle), News::Back);
    assert_eq!(monitor.heard(at(50_000), V, Sign::Preempted), News::Left);
    let watch = monitor.get(V).unwrap();
    assert_eq!((watch.state, watch.away(at(52_000))), (State::Away, us(2_000)));
    assert_eq!(monitor.heard(at(50_200), V, Sign::Resumed), News::Back, "of 200 us, not 49 ms");
}

/// As in an emulated guest, whose timers are late by 1 to 8 ms at times.
#[test]
fn beats_that_come_late_now_and_then_end_no_slice() {
    let mut host = Host::new(false, true);
    (0..20).for_each(|_| host.round(11_000, 33_000));
    for n in 0..200 {
        // Late by 1 to 7 ms at the same point of every third slice.
        if n % 3 == 0 {
            let due = host.due();
            if due + us(8_000) < at(host.now + 11_000) {
                host.beat(due + us(1_000 + n % 7 * 1_000));
            }
        }
        host.round(11_000, 33_000);
        let predicted = host.watch().predicted().unwrap();
        assert!(predicted >= us(10_400), "round {n}: {predicted}");
    }
    // When all are short that is how they are.
    (0..40).for_each(|_| host.round(4_000, 4_000));
    let predicted = host.watch().predicted().unwrap();
    assert!(predicted <= us(4_300), "{predicted}");
    assert!(host.watch().absence() <= us(4_300));
}

/// Slices of 11 ms whose ends are known to a tick of 4 ms, whenever the last tick was.
#[test]
fn ends_that_are_known_to_a_span_do_not_make_slices_short() {
    let predicted = |spans: bool| {
        let mut monitor = Monitor::new(settings(false));
        monitor.attach(at(0), &VcpuSet::only(V));
        for n in 0..32 {
            let (back, last) = (22_000 * n, 22_000 * n + 11_000 - 370 * (n * 7 % 11));
            monitor.heard(at(back), V, Sign::Resumed);
            let loss = if spans { Sign::Lost { by: at(last + 4_000) } } else { Sign::Preempted };
            monitor.heard(at(last), V, loss);
        }
        monitor.get(V).unwrap().predicted().unwrap()
    };
    assert_eq!(predicted(false), us(7_300), "the shortest of eight");
    let spans = predicted(true);
    assert!((us(10_000)..=us(11_000)).contains(&spans), "{spans:?}");
}
