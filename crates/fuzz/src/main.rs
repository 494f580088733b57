//! One target under libFuzzer: `SEEKWAY_FUZZ=TARGET seekway-fuzz [libFuzzer's arguments]`.
//! `scripts/fuzz` builds and starts it.
#![no_main]

use seekway_fuzz::{TARGETS, Target};
use std::sync::LazyLock;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("SEEKWAY_FUZZ").unwrap_or_default();
    Target::find(&name).unwrap_or_else(|| {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("SEEKWAY_FUZZ='{name}' is no target; there are {}", names.join(", "));
        std::process::exit(2);
    })
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| TARGET.check(input));
