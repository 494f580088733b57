//! A reactor runs as soon as it has something to do, where processors are few.

use std::mem;

/// The time for which a reactor wants the processor at once: the least that Linux takes.
const SLICE_NS: u64 = 100_000;

/// Ask for short slices of the processor for this thread: it then runs before threads with longer
/// ones when it wakes, and has no more of the processor for that (sched(7), EEVDF; Linux 6.12).
/// Older kernels, and those who forbid it, leave all as it is.
pub(super) fn shorten() {
    // SAFETY: plain numbers, for which zero is a value.
    let mut attributes: libc::sched_attr = unsafe { mem::zeroed() };
    attributes.size = mem::size_of::<libc::sched_attr>() as u32;
    // SAFETY: reads as many bytes as `size` says; 0 is this thread. The policy stays SCHED_OTHER.
    let current = unsafe {
        libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, attributes.size, 0)
    };
    if current == 0 && attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.sched_runtime = SLICE_NS;
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}
