//! The processor time of a step.

use std::time::{Duration, Instant};

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
