//! Threads and locks, as all parts of the daemon have them.

use std::io;
use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Stack of a thread that serves somebody or carries something out; what is touched of it is what
/// it costs.
pub const STACK_BYTES: usize = 256 << 10;
/// Stack of a thread that does little but wait.
pub const SMALL_STACK_BYTES: usize = 64 << 10;

/// Start a thread. Of its name as much is shown as the kernel takes.
///
/// # Errors
/// When there are no threads left.
pub fn spawn<T: Send + 'static>(
    name: &str,
    stack_bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let name = name.chars().filter(|c| *c != '\0').take(15).collect();
    Builder::new().name(name).stack_size(stack_bytes).spawn(work)
}

/// Lock what is whole at every point where its holder could panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    whole(mutex.lock())
}

/// Returns a value that was locked, or waited for, another way.
pub fn whole<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}
