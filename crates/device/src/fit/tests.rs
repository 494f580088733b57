use super::*;
use crate::profile;
use seekway_core::units::{Lba, Sectors};

fn sample(op: Op, start: u64, service_ns: u64, from: Option<u64>) -> Sample {
    let extent = Extent::new(Lba::new(start), Sectors::new(8)).unwrap();
    Sample { op, extent, service_ns, from }
}

/// Random reads of a device whose service is exactly `a + b·d` ns, d in sectors.
fn exact(n: usize, a: u64, b: u64) -> Vec<Sample> {
    let mut from = None;
    let read = |block: u64| {
        let start = block * 8;
        let distance = from.map_or(0, |f: u64| f.abs_diff(start));
        sample(Op::Read, start, a + b * distance, from.replace(start + 8))
    };
    Places::new(3, 125_000).take(n).map(read).collect()
}

/// vpt-fit: the linear model's own random reads give its line back. The paper's
/// form needs the paper's 100,000 reads for 1 %: of 10,000, its windows at the
/// ends cost the stroke more than that.
#[test]
fn the_model_s_own_reads_give_back_its_line() {
    for (reads, form, off_max) in [
        (10_000, Form::Points, 0.001),
        (100_000, Form::Points, 0.001),
        (100_000, Form::Averaged, 0.01),
    ] {
        for seed in 1..=3 {
            let mut device = profile::load("linear-15k4").unwrap().build();
            let read = probe(device.as_mut(), reads, 8, seed);
            let f = fit(&read, Options { form, ..Options::default() }).unwrap();
            let (a, b) = (f.line.intercept_ms / 4.25 - 1.0, f.line.stroke_ms / 5.25 - 1.0);
            assert!(
                a.abs() < off_max && b.abs() < off_max,
                "seed {seed}, {reads} {form:?}: {:?}",
                f.line
            );
            assert!(f.demerit_ms() < 0.2 && !f.is_flat(), "seed {seed}: {f:?}");
        }
    }
}

#[test]
fn an_exact_line_is_found_exactly() {
    let f = fit(&exact(2_000, 5_000_000, 4), Options::default()).unwrap();
    let full_ms = 4.0 * f.largest as f64 / 1e6;
    assert!((f.line.intercept_ms - 5.0).abs() < 1e-9, "{f:?}");
    assert!((f.line.stroke_ms - full_ms).abs() < 1e-9, "{f:?}");
    assert!(f.residual_ms < 1e-9 && f.explained > 1.0 - 1e-12);
    assert_eq!((f.requests, f.hit_ms), (2_000, None));
}

#[test]
fn near_requests_are_left_out() {
    let mut all = exact(500, 5_000_000, 4);
    let right = fit(&all, Options::default()).unwrap().line;
    // A near one of 1000 sectors exactly, and one of 1001.
    all.push(sample(Op::Read, 11_000, 90_000_000, Some(10_000)));
    assert_eq!(fit(&all, Options::default()).unwrap().line, right);
    all.push(sample(Op::Read, 11_001, 90_000_000, Some(10_000)));
    assert_ne!(fit(&all, Options::default()).unwrap().line, right);
}

/// Writes that a cache answers have a time of their own; others are on the line.
#[test]
fn cached_writes_are_no_part_of_the_line() {
    let reads = exact(500, 5_000_000, 4);
    let right = fit(&reads, Options::default()).unwrap().line;
    let with = |service_ns: u64, options: Options| {
        let writes = (0..20).map(|n| sample(Op::Write, 900_000 + 8 * n, service_ns, Some(0)));
        fit(&reads.iter().copied().chain(writes).collect::<Vec<_>>(), options).unwrap()
    };
    let cached = with(700_000, Options::default());
    assert_eq!((cached.line, cached.write_ms), (right, Some(0.7)));
    assert!(cached.profile_toml("cached", "a test").contains("write_ms = 0.700000"));
    let one_line = Options { one_line: true, ..Options::default() };
    for on_it in [with(700_000, one_line), with(90_000_000, Options::default())] {
        assert_eq!(on_it.write_ms, None);
        assert_ne!(on_it.line, right);
    }
}

#[test]
fn the_average_is_over_what_is_there() {
    // 1200 services of 0, 1, 2, … ms by distance: away from the ends the mean
    // is the middle, at the ends that of the half window that there is.
    let ramp: Vec<Sample> =
        (0..1200).map(|i| sample(Op::Read, 2_000 + i, i * 1_000_000, Some(0))).collect();
    let curve = averaged(&ramp, Options::default());
    assert_eq!(curve.len(), 1200);
    assert_eq!(curve[0], (2_000, 250.0));
    assert_eq!(curve[600], (2_600, 600.0));
    assert_eq!(curve[1199].1, 1199.0 - 250.0);
}

#[test]
fn a_device_without_an_arm_is_flat() {
    // 80 to 120 µs at any distance.
    let mut reads = exact(5_000, 0, 0);
    for (r, noise) in reads.iter_mut().zip(Places::new(9, 40_000)) {
        r.service_ns = 80_000 + noise;
    }
    let f = fit(&reads, Options::default()).unwrap();
    assert!(f.is_flat() && f.explained < 0.02, "{f:?}");
    // A larger device does not draw the noise out: its times are the mean.
    let larger = Options { capacity: Some(1 << 40), ..Options::default() };
    let f = fit(&reads, larger).unwrap();
    let text = f.profile_toml("flat", "a test");
    assert!(text.contains("explains next to nothing"), "{text}");
    let profile = Profile::parse(&text).unwrap().build().profile();
    let far = profile.positioning(Sectors::new(1 << 39)).unwrap().get();
    assert!((99_000..101_000).contains(&far), "{far} ns: {text}");
    assert!(f.validation.mean_model_ms < 0.101, "{f:?}");
}

#[test]
fn hits_are_a_spike_and_a_hump_alone_is_none() {
    let mut reads = exact(4_000, 4_000_000, 5);
    assert_eq!(fit(&reads, Options::default()).unwrap().spike, None);
    // One read in twenty from the cache, 200 to 220 µs.
    for (n, noise) in Places::new(4, 20_000).take(4_000).enumerate() {
        if n % 20 == 0 {
            reads[n].service_ns = 200_000 + noise;
        }
    }
    let found = fit(&reads, Options::default()).unwrap();
    let spike = found.spike.unwrap();
    assert!((spike.ms - 0.21).abs() < 0.005, "{spike:?}");
    assert!((spike.share - 0.05).abs() < 1e-9 && spike.trough_ms < 4.1, "{spike:?}");
    assert_eq!(found.hit_ms, Some(spike.ms));
    let told = Options { hit_ms: Some(0.125), ..Options::default() };
    assert_eq!(fit(&reads, told).unwrap().hit_ms, Some(0.125));
}

#[test]
fn what_cannot_be_fitted_is_refused() {
    let few = exact(10, 5_000_000, 4);
    assert!(matches!(fit(&few, Options::default()), Err(FitError::TooFew { found: 9, .. })));
    assert!(matches!(fit(&[], Options::default()), Err(FitError::TooFew { found: 0, .. })));
    let same = vec![sample(Op::Read, 5_000, 1_000_000, Some(0)); 20];
    assert_eq!(
        fit(&same, Options::default()),
        Err(FitError::OneDistance { found: 20, distance: 5_000 })
    );
    // A year for each.
    let slow: Vec<Sample> =
        (0..20).map(|i| sample(Op::Read, 5_000 + i, 1 << 55, Some(0))).collect();
    assert!(matches!(fit(&slow, Options::default()), Err(FitError::Profile(_))));
}

#[test]
fn the_profile_holds_whatever_its_name() {
    let f = fit(&exact(100, 5_000_000, 4), Options::default()).unwrap();
    let text = f.profile_toml("a \"b\" \\ c\n", "one\nname = \"x\"");
    let profile = Profile::parse(&text).unwrap();
    assert_eq!(profile.name(), "a \"b\" \\ c\n");
    assert_eq!(profile.capacity_sectors(), f.capacity);
    let larger = Options { capacity: Some(2_000_000), ..Options::default() };
    let g = fit(&exact(100, 5_000_000, 4), larger).unwrap();
    assert_eq!((g.line, g.capacity), (f.line, 2_000_000));
    // The same time for the same distance in sectors.
    let position = |f: &Fit| {
        let device = Profile::parse(&f.profile_toml("x", "y")).unwrap().build();
        device.profile().positioning(Sectors::new(500_000)).unwrap().get()
    };
    assert!(position(&f).abs_diff(position(&g)) <= 2);
}

#[test]
fn places_fill_the_span_evenly() {
    let mut seen = [0_u32; 16];
    Places::new(1, 16).take(16_000).for_each(|p| seen[p as usize] += 1);
    assert!(seen.iter().all(|&n| (900..1100).contains(&n)), "{seen:?}");
    assert!(Places::new(7, 1).take(9).all(|p| p == 0));
}
