//! What is different about a reactor's thread: others depend on it at each moment.

use std::cell::Cell;
use std::panic;
use std::process;
use std::sync::Once;

thread_local! {
    static IS_REACTOR: Cell<bool> = const { Cell::new(false) };
}

/// Make this thread a reactor's. Its messages to the operator wait for nobody. A panic, once it is
/// told, ends the process at once: if the thread were unwound, buffers would be freed that a device
/// still writes to. The service manager starts the daemon again, which takes up what was in flight.
pub fn begin() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            previous(info);
            if IS_REACTOR.get() {
                process::abort();
            }
        }));
    });
    IS_REACTOR.set(true);
    crate::log::never_wait();
}
