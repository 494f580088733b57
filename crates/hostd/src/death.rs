//! Points at which a simulated daemon may be killed: before each store into memory that outlasts
//! it, and when it hands something to the kernel. Nothing outside of tests.

#[cfg(test)]
pub use simulated::{Killed, comes_in, has_come, point};

/// A point at which the process may be killed.
#[cfg(not(test))]
#[inline(always)]
pub fn point() {}

#[cfg(test)]
mod simulated {
    use std::cell::Cell;
    use std::panic::resume_unwind;

    thread_local! {
        /// Points that are still passed alive; `None` while nobody is to be killed.
        static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
        static DEAD: Cell<bool> = const { Cell::new(false) };
    }

    /// The panic's payload, past all panic hooks.
    pub struct Killed;

    /// Kill this thread's daemon at its `points`th point from now; `None` for not at all.
    pub fn comes_in(points: Option<u64>) {
        LEFT.set(points);
        DEAD.set(false);
    }

    /// Has it been killed, and not begun again?
    pub fn has_come() -> bool {
        DEAD.get()
    }

    /// A point at which the process may be killed.
    pub fn point() {
        match LEFT.get() {
            // Destructors that run now are none of a process that was killed.
            _ if DEAD.get() => {}
            None => {}
            Some(0) => {
                DEAD.set(true);
                resume_unwind(Box::new(Killed));
            }
            Some(left) => LEFT.set(Some(left - 1)),
        }
    }
}
