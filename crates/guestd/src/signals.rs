//! Signals that end the program or ask it for its status, and waiting for them and for the
//! kernel's messages at once.

use crate::kernel;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// SIGINT, SIGTERM and SIGHUP end the program; SIGUSR1 asks for its status.
#[derive(Debug)]
pub struct Signals {
    ending: Arc<AtomicBool>,
    asking: Arc<AtomicBool>,
    woken: UnixStream,
}

impl Signals {
    /// Handle them from now on.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn new() -> io::Result<Signals> {
        let ending = Arc::new(AtomicBool::new(false));
        let (woken, waker) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, ending.clone())?;
            signal_hook::low_level::pipe::register(signal, waker.try_clone()?)?;
        }
        let asking = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGUSR1, asking.clone())?;
        signal_hook::low_level::pipe::register(SIGUSR1, waker)?;
        Ok(Signals { ending, asking, woken })
    }

    /// The end has been asked for.
    pub fn ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// Tells whether a request for the status came after the last call.
    pub fn asked(&self) -> bool {
        self.asking.swap(false, Ordering::AcqRel)
    }

    /// Until a signal comes, `fd` can be read, or `at_most` has passed.
    ///
    /// # Errors
    /// Those of ppoll(2).
    pub fn wait(&self, at_most: Duration, fd: Option<RawFd>) -> io::Result<()> {
        kernel::wait_for_input([self.woken.as_raw_fd(), fd.unwrap_or(-1)], Some(at_most))?;
        let mut bytes = [0; 64];
        while (&self.woken).read(&mut bytes).is_ok_and(|n| n > 0) {}
        Ok(())
    }
}
