//! Replays each target's corpus and a fixed number of mutations of it.
//! `SEED=N` runs other mutations, `RUNS=N` that many for each target.

use seekway_fuzz::mutate::{Random, mutate};
use seekway_fuzz::{INPUT_BYTES_MAX, TARGETS, Target, corpus};
use std::env;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

fn run(target: &Target, input: &[u8], what: &str) {
    let result = catch_unwind(AssertUnwindSafe(|| target.check(input)));
    assert!(result.is_ok(), "{}: {what}: {}", target.name, input.escape_ascii());
}

/// Silences the daemon's log, which would fill the screen. A failed test prints on standard output.
fn silence() {
    if cfg!(miri) {
        return; // it has no dup2, and nothing that is logged
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let null = File::options().write(true).open("/dev/null").expect("/dev/null opens");
        // SAFETY: takes numbers.
        unsafe { libc::dup2(null.as_raw_fd(), libc::STDERR_FILENO) };
    });
}

fn check(name: &str) {
    silence();
    let target = Target::find(name).expect("a target of this name");
    let inputs = corpus::kept(target.name);
    assert!(!inputs.is_empty(), "{name} has no corpus");
    for (i, input) in inputs.iter().enumerate() {
        assert!(input.len() <= INPUT_BYTES_MAX, "{name}: input {i} is too long");
        run(target, input, "a kept input");
    }
    run(target, &[], "no bytes");
    let seed = number("SEED").unwrap_or(1);
    let mut random = Random(seed);
    for i in 0..number("RUNS").unwrap_or(target.test_runs.into()) {
        let input = mutate(&mut random, &inputs, target.words);
        run(target, &input, &format!("mutation {i} of SEED={seed}"));
    }
}

macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test] fn $name() { check(stringify!($name)); })*
        #[test]
        fn every_target_is_tested() {
            let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

tests! {
    chain vring vhost_session inflight nbd_options nbd_requests nbd_session traces control journal
}
