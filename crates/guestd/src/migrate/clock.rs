//! The one clock of `migrate`: CLOCK_MONOTONIC, which BPF programs read too
//! (`bpf_ktime_get_ns`).

use seekway_policy::units::Instant;

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now() -> Instant {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every Linux, and the place for its answer is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
