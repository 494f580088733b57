//! Properties of a reactor's thread alone: others depend on it at each moment.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::Cell;
use std::panic::{self, PanicHookInfo};
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
        panic::set_hook(Box::new(move |info| match IS_REACTOR.get() {
            true => end(info),
            false => previous(info),
        }));
    });
    IS_REACTOR.set(true);
    crate::log::start();
}

/// Tell of a panic, as the standard library does but without waiting for whoever does not read
/// standard error, and end the process.
fn end(info: &PanicHookInfo<'_>) -> ! {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("unnamed");
    let backtrace = Backtrace::capture();
    let more = match backtrace.status() {
        BacktraceStatus::Captured => format!("\n{backtrace}"),
        _ => String::new(),
    };
    crate::log::say(&format!("thread '{name}' {info}{more}"));
    crate::log::flush();
    process::abort();
}
