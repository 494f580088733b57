//! Signals that end a command in good order.

use anyhow::{Context, Result};
use signal_hook::flag;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

/// Becomes true when one of these signals comes. They do nothing else from now on.
///
/// # Errors
/// The system refuses.
pub fn noted(signals: &[c_int]) -> Result<Arc<AtomicBool>> {
    let came = Arc::new(AtomicBool::new(false));
    for &signal in signals {
        flag::register(signal, came.clone()).context("cannot handle signals")?;
    }
    Ok(came)
}

/// Becomes true when the first of these signals comes. The next one has its default effect.
///
/// # Errors
/// Where the system refuses to note signals.
pub fn first_noted(signals: &[c_int]) -> Result<Arc<AtomicBool>> {
    let came = Arc::new(AtomicBool::new(false));
    for &signal in signals {
        flag::register_conditional_default(signal, came.clone())
            .and_then(|_| flag::register(signal, came.clone()))
            .context("cannot handle signals")?;
    }
    Ok(came)
}
