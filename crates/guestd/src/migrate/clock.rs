//! The one clock of `migrate`: CLOCK_MONOTONIC, which BPF programs read too
//! (`bpf_ktime_get_ns`).

use seekway_core::units::Instant;

/// Nanoseconds of CLOCK_MONOTONIC, as BPF's `bpf_ktime_get_ns` gives them.
pub fn now() -> Instant {
    Instant::from_nanos(read(libc::CLOCK_MONOTONIC))
}

/// Nanoseconds of a clock that every Linux has.
pub(super) fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the buffer for the answer is ours.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
