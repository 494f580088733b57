//! Fits of the measured drives of /work/shared/traces/drives.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros)] // a test may read files and print

use crate::common;

use seekway_device::fit::{Fit, Form, Options, fit, samples};
use seekway_device::validate::parse;

/// Two independent fits of the same points, in ms: they agree to the digits given. They go through
/// reads and writes of all sizes; the paper's moving average of so sparse points does not (see
/// `fit`'s head).
const INDEPENDENT: &[(&str, f64, f64, usize)] = &[
    ("cheetah15k5/random.trace", 4.71, 4.22, 9_999),
    ("cheetah9LP/cheetah9LP.trace", 4.83, 5.49, 4_942),
    ("atlas10k/atlas10k.trace", 4.64, 5.02, 4_966),
];

fn fitted(file: &str, options: Options) -> Option<Fit> {
    let found = fit(&samples(&parse(&common::trace(file)?).unwrap()), options).unwrap();
    eprintln!(
        "{file} {options:?}: {:?} (averaged {:?}), {} of {}, residual {:.3}, R² {:.3}, demerit {:.3} of {:.3} ms, {:?}",
        found.line,
        found.line_averaged,
        found.fitted,
        found.requests,
        found.residual_ms,
        found.explained,
        found.demerit_ms(),
        found.validation.mean_measured_ms,
        found.spike,
    );
    Some(found)
}

#[test]
fn the_measured_drives_agree_with_independent_fits() {
    for &(file, intercept_ms, stroke_ms, count) in INDEPENDENT {
        let one_line = Options { one_line: true, ..Options::default() };
        let Some(f) = fitted(file, one_line) else { continue };
        assert!((f.line.intercept_ms - intercept_ms).abs() < 0.006, "{file}: {:?}", f.line);
        assert!((f.line.stroke_ms - stroke_ms).abs() < 0.006, "{file}: {:?}", f.line);
        assert_eq!((f.requests, f.fitted), (10_000, count), "{file}");
        assert!(!f.is_flat(), "{file}");
    }
}

/// With 5,000 points, windows of 1001 that the ends cut short flatten the line.
#[test]
fn the_moving_average_flattens_the_line_of_few_points() {
    for &(file, _, stroke_ms, _) in INDEPENDENT {
        let Some(f) =
            fitted(file, Options { form: Form::Averaged, one_line: true, ..Options::default() })
        else {
            continue;
        };
        let flatter = 1.0 - f.line.stroke_ms / stroke_ms;
        assert!((0.01..0.1).contains(&flatter), "{file}: {flatter}");
    }
}

/// Writes go to the write cache of two of the drives: only reads show the arms, and their fit is
/// much nearer. The mean service of each drive comes out within 15 %.
#[test]
fn writes_that_a_cache_answers_are_told_apart() {
    for (file, cached) in [
        ("cheetah15k5/random.trace", false),
        ("cheetah9LP/cheetah9LP.trace", true),
        ("atlas10k/atlas10k.trace", true),
    ] {
        let one_line = Options { one_line: true, ..Options::default() };
        let (Some(all), Some(f)) = (fitted(file, one_line), fitted(file, Options::default()))
        else {
            continue;
        };
        assert_eq!(f.write_ms.is_some(), cached, "{file}");
        assert!(!cached || all.residual_ms > 2.0 * f.residual_ms, "{file}");
        let off = f.validation.mean_model_ms / f.validation.mean_measured_ms - 1.0;
        eprintln!("{file}: mean service {:+.1} % off", 100.0 * off);
        assert!(off.abs() < 0.15, "{file}: {off}");
    }
}

#[test]
fn the_spike_is_where_reads_hit() {
    for (file, hit_ms) in [
        ("cheetah15k5/random.trace", None),
        ("cheetah9LP/cheetah9LP.trace", Some(0.665)),
        ("atlas10k/atlas10k.trace", Some(0.60)),
    ] {
        let Some(f) = fitted(file, Options::default()) else { continue };
        match (f.hit_ms, hit_ms) {
            (Some(found), Some(expected)) => {
                assert!((found - expected).abs() < 0.02, "{file}: {found}")
            }
            (found, expected) => assert_eq!(found, expected, "{file}"),
        }
    }
}
