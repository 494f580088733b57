//! CPU time of threads, as Linux tells it.

use seekway_core::units::Nanos;

/// CPU time of this thread; `None` where the system does not tell it. Exact to a
/// scheduler's tick: what is measured by it lasts long.
pub fn of_this_thread() -> Option<Nanos> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Nanos::new)
}
