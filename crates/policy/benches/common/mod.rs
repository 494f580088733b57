//! Parts that the benches share.

#![allow(dead_code)] // each uses its own part
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // a bench measures time

use criterion::Criterion;
use std::time::{Duration, Instant};

/// Criterion's statistics of two seconds, after one that does not count.
pub fn config() -> Criterion {
    let (measured, before) = (Duration::from_secs(2), Duration::from_secs(1));
    Criterion::default().measurement_time(measured).warm_up_time(before)
}

/// xorshift64: cheap beside what is measured.
pub fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// CPU time of this thread, where the system tells it: other work on the
/// machine does not count. Exact to a scheduler's tick, so measure long spans.
fn cpu_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

/// The time of `times` steps.
pub fn measure(times: u64, mut step: impl FnMut()) -> Duration {
    let (wall, cpu) = (Instant::now(), cpu_time());
    (0..times).for_each(|_| step());
    match (cpu, cpu_time()) {
        (Some(before), Some(after)) if after > before => after - before,
        _ => wall.elapsed(),
    }
}
