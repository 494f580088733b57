//! Models against the measured drives of /work/shared/traces/drives.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros)] // a test may read files and print

use crate::common;

use common::trace;
use seekway_device::profile;
use seekway_device::validate::{Pace, Validation, parse, validate};
fn run(what: &str, text: &str, pace: Pace) -> Validation {
    let mut device = profile::load(what).unwrap().build();
    let v = validate(&mut *device, &parse(text).unwrap(), pace).unwrap();
    eprintln!(
        "{what} {pace:?}: demerit {:.3} ms ({:.1} %), mean {:.3} measured {:.3} model, paired {:.3} ms",
        v.demerit_ms,
        100.0 * v.demerit_relative,
        v.mean_measured_ms,
        v.mean_model_ms,
        v.paired_rms_ms
    );
    for (q, measured, model) in &v.quantiles {
        eprintln!("  {:4.0} %  {measured:7.3}  {model:7.3}", q * 100.0);
    }
    v
}

#[test]
fn demerits_are_small() {
    for (what, file, demerit_ms_max) in [
        // 0.302, of which 67 requests make more than half: see the profile's head.
        ("cheetah-15k5", "cheetah15k5/random.trace", 0.31),
        ("cheetah-9lp", "cheetah9LP/cheetah9LP.trace", 0.30),
        ("atlas-10k", "atlas10k/atlas10k.trace", 0.30),
    ] {
        let Some(text) = trace(file) else { return };
        let v = run(what, &text, Pace::Closed);
        assert!(v.demerit_ms <= demerit_ms_max, "{what}: demerit {:.3} ms", v.demerit_ms);
    }
}

/// The layout that was inferred from the trace predicts single requests: with
/// an arbitrary phase their differences would be 1.93 ms RMS.
#[test]
fn the_15k5_layout_keeps_in_phase() {
    let Some(text) = trace("cheetah15k5/random.trace") else { return };
    let v = run("cheetah-15k5", &text, Pace::Measured);
    assert!(v.paired_rms_ms < 1.6, "paired {:.3} ms", v.paired_rms_ms);
}

/// In the measured drives read-ahead runs on through idle time: without it the
/// models are clearly further off.
#[test]
fn read_ahead_in_idle_time_is_what_the_drives_do() {
    for (what, file) in
        [("cheetah-9lp", "cheetah9LP/cheetah9LP.trace"), ("atlas-10k", "atlas10k/atlas10k.trace")]
    {
        let Some(text) = trace(file) else { return };
        let with = run(what, &text, Pace::Closed).demerit_ms;
        let without = run(&format!("{what}:read_ahead_idle=false"), &text, Pace::Closed).demerit_ms;
        assert!(with * 1.3 < without, "{what}: {with:.3} and {without:.3} ms");
    }
}
