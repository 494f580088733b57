//! Prints lines without waiting for a reader: a pipe that is full or closed must not keep the agent
//! from tagging, nor from putting back.

use std::io::{self, Write};
use std::os::fd::AsRawFd;

/// Prints a line on `to` if it takes one at once, else drops it.
pub fn say(to: &mut (impl Write + AsRawFd), line: &str) {
    // A pipe that is ready takes this much without blocking, and whole.
    let fits = line.len() < libc::PIPE_BUF;
    if fits && is_ready(to) {
        let _ = to.write_all(format!("{line}\n").as_bytes());
        let _ = to.flush();
    }
}

/// A warning or an error, on standard error.
pub fn warn(line: &str) {
    say(&mut io::stderr(), &format!("seekway-guest: {line}"));
}

fn is_ready(to: &impl AsRawFd) -> bool {
    let mut watched = libc::pollfd { fd: to.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one descriptor, as is said.
    unsafe { libc::poll(&raw mut watched, 1, 0) == 1 && watched.revents & libc::POLLOUT != 0 }
}
