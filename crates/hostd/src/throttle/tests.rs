//! The throttle driven by a small engine with simulated arrivals.

use super::*;
use proptest::prelude::*;
use seekway_core::mix;
use seekway_core::request::{Extent, Op, VmId};
use seekway_core::units::{Lba, Sectors};

/// One command of a script: what, and how long the real device takes.
#[derive(Clone, Copy, Debug)]
struct Step {
    op: Op,
    lba: u64,
    sectors: u64,
    real_ns: u64,
}

/// Outcome of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Outcome {
    submitted: Instant,
    arrived: Instant,
    handed_up: Instant,
}

fn request(slot: usize, step: &Step) -> Request {
    Request {
        id: RequestId::new(slot as u32),
        vm: VmId::new(0),
        tag: None,
        op: step.op,
        sync: true,
        extent: Extent::new(Lba::new(step.lba), Sectors::new(step.sectors)).unwrap(),
        arrived: Instant::ZERO,
    }
}

/// Keep `depth` commands on the way, handed up as soon as the throttle allows,
/// until all are done. Ids are positions in the script.
fn drive(throttle: &mut Throttle, depth: usize, script: &[Step]) -> Vec<Outcome> {
    let mut outcomes: Vec<Option<Outcome>> = vec![None; script.len()];
    let mut arrivals: BTreeSet<(Instant, usize)> = BTreeSet::new();
    let (mut now, mut sent, mut done) = (Instant::ZERO, 0, 0);
    let mut turns = 0;
    while done < script.len() {
        turns += 1;
        assert!(turns < 20 * script.len() + 100, "the engine turns without progress");
        while sent < script.len() && sent - done < depth {
            throttle.submit(now, &request(sent, &script[sent]));
            let arrived = now + Nanos::new(script[sent].real_ns);
            arrivals.insert((arrived, sent));
            outcomes[sent] = Some(Outcome { submitted: now, arrived, handed_up: Instant::ZERO });
            sent += 1;
        }
        let arrival = arrivals.first().map(|&(at, _)| at);
        let next = throttle.next().into_iter().chain(arrival).min().expect("something happens");
        assert!(next >= now, "{next} has passed at {now}");
        now = next;
        while arrivals.first().is_some_and(|&(at, _)| at <= now) {
            let (_, slot) = arrivals.pop_first().unwrap();
            throttle.arrived(now, RequestId::new(slot as u32));
        }
        while let Some(id) = throttle.pop(now) {
            let outcome = outcomes[id.slot()].as_mut().expect("submitted");
            assert_eq!(outcome.handed_up, Instant::ZERO, "{id:?} handed up twice");
            assert!(outcome.arrived <= now, "{id:?} before the data are there");
            outcome.handed_up = now;
            done += 1;
        }
    }
    assert_eq!((throttle.next(), throttle.pop(now)), (None, None));
    outcomes.into_iter().flatten().collect()
}

/// When a model of its own, told the same commands at the same moments, is done.
fn targets(profile: &str, script: &[Step], outcomes: &[Outcome]) -> Vec<Instant> {
    let mut model = profile::load(profile).unwrap().build();
    let mut targets = vec![Instant::ZERO; script.len()];
    let mut take = |model: &mut dyn DeviceModel, until: Instant| {
        while let Some(at) = model.next_completion()
            && let Some(id) = model.pop_completed(until)
        {
            targets[id.slot()] = at;
        }
    };
    for (slot, outcome) in outcomes.iter().enumerate() {
        take(&mut *model, outcome.submitted);
        model.submit(outcome.submitted, &request(slot, &script[slot]));
    }
    take(&mut *model, Instant::from_nanos(u64::MAX));
    targets
}

/// A simple generator of numbers, for scripts that are the same each time.
fn numbers(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |below| mix::next(&mut seed) % below
}

/// Random reads of 4 KiB over the first 200 million sectors.
fn random_reads(count: usize, real_ns: u64) -> Vec<Step> {
    let mut number = numbers(1);
    let step = |_| Step { op: Op::Read, lba: number(25_000_000) * 8, sectors: 8, real_ns };
    (0..count).map(step).collect()
}

#[test]
fn random_reads_take_exactly_the_models_time() {
    for profile in ["linear-15k4", "cheetah-15k5", "seagate-1tb-7200"] {
        let script = random_reads(1000, 100_000);
        let mut model = profile::load(profile).unwrap().build();
        let mut alone = Instant::ZERO;
        for (slot, step) in script.iter().enumerate() {
            model.submit(alone, &request(slot, step));
            alone = model.next_completion().unwrap();
            assert!(model.pop_completed(alone).is_some());
        }
        let mut throttle = Throttle::parse(profile).unwrap();
        let outcomes = drive(&mut throttle, 1, &script);
        assert_eq!(outcomes.last().unwrap().handed_up, alone, "{profile}");
        let report = throttle.report();
        assert_eq!((report.commands, report.late, report.k), (1000, 0, 1.0));
        let total = alone.since(Instant::ZERO);
        let sums = [report.service, report.service_from_dispatch];
        assert_eq!(sums, [total; 2], "nothing between commands, nothing queued");
        assert_eq!([report.model_service, report.model_service_from_dispatch], [total; 2]);
        assert_eq!(report.overslept, Nanos::ZERO);
    }
}

#[test]
fn a_fixed_k_stretches_everything() {
    let run = |spec: &str| {
        let mut throttle = Throttle::parse(spec).unwrap();
        let outcomes = drive(&mut throttle, 1, &random_reads(300, 100_000));
        (outcomes.last().unwrap().handed_up.as_nanos(), throttle.report())
    };
    for profile in ["linear-15k4", "cheetah-15k5:read_ahead=true"] {
        let (once, _) = run(&format!("{profile}:k=1"));
        let (thrice, report) = run(&format!("{profile}:k=3"));
        assert_eq!(thrice, 3 * once, "rotation and seeks alike");
        assert_eq!((report.k, report.changes.len()), (3.0, 0));
        assert_eq!(report.model_service.get(), once);
    }
    // Fixed, whatever comes late.
    let mut throttle = Throttle::parse("linear-15k4:k=1").unwrap();
    drive(&mut throttle, 1, &random_reads(300, 50_000_000));
    let report = throttle.report();
    assert_eq!((report.k, report.late), (1.0, 300));
    assert!(report.late_by > Nanos::from_secs(9));
}

#[test]
fn auto_follows_a_slow_device_and_comes_back() {
    let mut throttle = Throttle::parse("linear-15k4").unwrap();
    let mut script = random_reads(2000, 20_000_000);
    script.extend(random_reads(4000, 100_000));
    drive(&mut throttle, 1, &script);
    let report = throttle.report();
    let (up, down): (Vec<_>, Vec<_>) =
        report.changes.iter().copied().partition(|(_, _, why)| *why == "late completions");
    let top = up.last().unwrap().1;
    // 20 ms over a shortest service of 4.25 ms, and a tenth.
    assert!((4.0..=5.2).contains(&top), "{:?}", report.changes);
    assert!(up.len() <= 4 && report.changes[..up.len()] == up[..], "up, then down");
    assert!(up[0].0 < Instant::from_nanos(64 * 20_000_001), "with the first window");
    assert_eq!((down.last().unwrap().1, report.k), (1.0, 1.0));
    assert!(report.late < 64 * 5, "{}", report.late);
}

#[test]
fn barriers_bypass_the_model() {
    let mut throttle = Throttle::parse("linear-15k4:queue_depth=1").unwrap();
    let step = |op| Step { op, lba: 1_000_000, sectors: 8, real_ns: 0 };
    let at = Instant::from_nanos;
    throttle.submit(at(0), &request(0, &step(Op::Read)));
    for (slot, op) in [(1, Op::Flush), (2, Op::Discard), (3, Op::WriteZeroes)] {
        throttle.submit(at(5), &request(slot, &step(op)));
    }
    throttle.arrived(at(10), RequestId::new(0));
    assert_eq!(throttle.pop(at(10)), None);
    for slot in [3, 1, 2] {
        throttle.arrived(at(20), RequestId::new(slot));
    }
    assert_eq!(throttle.next(), Some(at(20)));
    let popped: Vec<usize> =
        std::iter::from_fn(|| throttle.pop(at(20))).map(|i| i.slot()).collect();
    assert_eq!(popped, [3, 1, 2], "as they arrived");
    let target = throttle.next().unwrap();
    assert!(target >= at(4_250_000));
    assert_eq!(throttle.pop(target), Some(RequestId::new(0)));
    let report = throttle.report();
    assert_eq!((report.commands, report.barriers, report.late), (1, 3, 0));
    assert_eq!(report.service, target.since(at(0)));
}

#[test]
fn a_late_command_goes_up_at_once_and_a_late_reactor_is_told() {
    let mut throttle = Throttle::parse("linear-15k4").unwrap();
    let step = Step { op: Op::Read, lba: 0, sectors: 8, real_ns: 0 };
    let ms = |n: u64| Instant::from_nanos(n * 1_000_000);
    throttle.submit(ms(0), &request(0, &step));
    let target = throttle.next().unwrap();
    assert_eq!(throttle.pop(target), None, "the data are not there");
    assert_eq!(throttle.next(), None, "nothing to wait for but the device");
    throttle.arrived(ms(30), RequestId::new(0));
    assert_eq!(throttle.next(), Some(ms(30)));
    assert_eq!(throttle.pop(ms(31)), Some(RequestId::new(0)));
    let report = throttle.report();
    assert_eq!((report.late, report.late_by), (1, ms(30).since(target)));
    assert_eq!((report.overslept, report.service), (Nanos::from_millis(1), Nanos::from_millis(31)));
}

#[test]
fn a_profile_file_is_a_profile() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    std::fs::write(&path, profile::text("linear-15k4").unwrap()).unwrap();
    let path = path.display();
    let parse = |text: String| Throttle::parse(&text);
    for (text, depth, auto) in [
        (format!("{path}"), 1, true),
        (format!("{path}:k=2"), 1, false),
        (format!("{path}:queue_depth=4"), 4, true),
        (format!("{path}:queue_depth=4:k=1"), 4, false),
        (format!("{path}:queue_depth=4,k=1"), 4, false),
    ] {
        let throttle = parse(text.clone()).unwrap();
        assert_eq!((throttle.queue_depth(), throttle.auto.is_some()), (depth, auto), "{text}");
    }
    let error = |text: String| parse(text).err().unwrap();
    assert!(error(format!("{path}x/none")).contains("cannot read the profile"));
    assert!(error(format!("{path}:queue_depth=0")).contains("queue_depth"));
}

#[test]
fn specifications() {
    let parse =
        |text: &str| Throttle::parse(text).map(|t| (t.report.profile.clone(), t.auto.is_some()));
    let is = |profile: &str, auto| Ok((profile.to_owned(), auto));
    assert_eq!(parse("linear-15k4"), is("linear-15k4", true));
    assert_eq!(parse("linear-15k4:k=auto"), is("linear-15k4", true));
    assert_eq!(parse("linear-15k4:queue_depth=4:k=2.5"), is("linear-15k4:queue_depth=4", false));
    assert_eq!(parse("linear-15k4:k=1,hit_ms=0.1"), is("linear-15k4:hit_ms=0.1", false));
    let error = |text: &str| parse(text).unwrap_err();
    assert!(error("linear").contains("no device profile is called `linear`"));
    assert!(error("linear-15k4:colour=red").contains("expected one of"));
    assert!(error("linear-15k4:k=0.5").contains("k=0.5: expected auto or a number from 1 to 1000"));
    assert!(error("linear-15k4:k=NaN").contains("expected auto"));
    assert!(error("linear-15k4:k=1:k=2").contains("twice"));
    assert!(error(&"x".repeat(5000)).contains("at most 4096"));
    let four = Throttle::parse("linear-15k4:queue_depth=4").unwrap();
    assert_eq!(four.queue_depth(), 4);
    let (one, two) = (four.profile(), Throttle::parse("linear-15k4:k=2").unwrap().profile());
    let position = |p: &DeviceProfile| p.positioning(Sectors::new(1_000_000)).unwrap().get();
    assert!(position(&two).abs_diff(2 * position(&one)) <= 1, "but for rounding");
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let op = prop_oneof![
        6 => Just(Op::Read),
        3 => Just(Op::Write),
        1 => Just(Op::Flush),
        1 => Just(Op::Discard),
    ];
    let place = prop_oneof![0u64..25_000_000, 1000u64..1010];
    let real = prop_oneof![4 => 0u64..2_000_000, 1 => 0u64..60_000_000];
    let step = (op, place, 1u64..32, real).prop_map(|(op, place, blocks, real_ns)| Step {
        op,
        lba: place * 8,
        sectors: blocks * 8,
        real_ns,
    });
    proptest::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// With k = 1, each command is handed up once, exactly when it is done in
    /// both worlds: neither before, nor (by an engine that is in time) after.
    #[test]
    fn handed_up_when_done_in_both_worlds(
        script in steps(),
        profile in prop_oneof![
            Just(("linear-15k4", 1)),
            Just(("linear-7200:queue_depth=8", 8)),
            Just(("cheetah-15k5:queue_depth=4,queue_order=sptf", 4)),
        ],
    ) {
        let (profile, depth) = profile;
        let mut throttle = Throttle::parse(&format!("{profile}:k=1")).unwrap();
        let outcomes = drive(&mut throttle, depth, &script);
        let data: Vec<usize> = (0..script.len()).filter(|&n| script[n].op.is_data()).collect();
        // The model of the test sees the data commands only, in order of submission.
        let steps: Vec<Step> = data.iter().map(|&n| script[n]).collect();
        let seen: Vec<Outcome> = data.iter().map(|&n| outcomes[n]).collect();
        let targets = targets(profile, &steps, &seen);
        for (outcome, &target) in seen.iter().zip(&targets) {
            prop_assert_eq!(outcome.handed_up, target.max(outcome.arrived));
        }
        for n in (0..script.len()).filter(|n| !data.contains(n)) {
            prop_assert_eq!(outcomes[n].handed_up, outcomes[n].arrived);
        }
        let late = seen.iter().zip(&targets).filter(|(o, t)| o.arrived > **t).count();
        let report = throttle.report();
        prop_assert_eq!(report.late, late as u64);
        prop_assert_eq!(report.commands, data.len() as u64);
        prop_assert_eq!(report.overslept, Nanos::ZERO);
        prop_assert!(report.service <= report.service_from_dispatch);
    }

    /// Whatever k does, the model's time is consistent: divided by the k of the
    /// time, no command takes less than the model's shortest, and all end.
    #[test]
    fn any_k_hands_up_each_once(script in steps(), k in prop_oneof![Just(None), (1.0f64..20.0).prop_map(Some)]) {
        let scaling = k.map_or(Scaling::Auto, Scaling::Fixed);
        let model = profile::load("linear-15k4:queue_depth=8").unwrap().build();
        let mut throttle = Throttle::new("linear".into(), model, scaling);
        // Again and again, so that windows fill.
        let script: Vec<Step> = script.iter().copied().cycle().take(script.len().max(600)).collect();
        let outcomes = drive(&mut throttle, 8, &script);
        for (outcome, step) in outcomes.iter().zip(&script) {
            prop_assert!(outcome.handed_up >= outcome.arrived);
            if step.op.is_data() {
                let took = outcome.handed_up.since(outcome.submitted);
                prop_assert!(took >= Nanos::from_micros(250), "a hit at least: {}", took);
            }
        }
        let report = throttle.report();
        prop_assert!(report.model_service <= report.service + Nanos::new(report.commands));
        prop_assert!(report.k >= 1.0);
    }
}

#[test]
fn factors_stay_in_their_range() {
    for (k, expected) in [(0.0, 1.0), (-3.0, 1.0), (f64::NAN, 1.0), (2.5, 2.5), (1e9, 1000.0)] {
        assert_eq!(Factor::nearest(k).as_f64(), expected);
    }
    let thousandths = [0, 1, 2500, u64::MAX].map(|n| Factor::from_thousandths(n).as_f64());
    assert_eq!(thousandths, [1.0, 1.0, 2.5, 1000.0]);
}

proptest! {
    /// At its real moment the model's time has come; a nanosecond before,
    /// it has not. Neither runs backwards over changes of k.
    #[test]
    fn the_two_times_agree(steps in proptest::collection::vec(
        (1.0f64..50.0, 0u64..1 << 40, 0u64..1 << 40), 1..20)) {
        let mut clock = Clock::new(Factor::ONE);
        let mut now = Instant::ZERO;
        for (k, wait, ahead) in steps {
            let before = clock.model(now);
            clock.rescale(now, Factor::nearest(k));
            prop_assert_eq!(clock.model(now), before);
            let due = clock.real(before + Nanos::new(ahead));
            prop_assert!(clock.model(due) >= before + Nanos::new(ahead));
            if ahead > 0 {
                let early = Instant::from_nanos(due.as_nanos() - 1);
                prop_assert!(clock.model(early) < before + Nanos::new(ahead));
            }
            now = now + Nanos::new(wait);
            prop_assert!(clock.model(now) >= before);
        }
    }
}

#[test]
fn a_stretched_disk_reads_that_much_less() {
    let rate = |spec| Throttle::parse(spec).unwrap().bandwidth().unwrap();
    let plain = rate("seagate-1tb-7200:k=1");
    // What disks of that time read at their outer edge.
    assert!((80_000_000..250_000_000).contains(&plain), "{plain} bytes/s");
    let half = rate("seagate-1tb-7200:k=2");
    assert!(half.abs_diff(plain / 2) < plain / 100, "{plain} and {half}");
}
