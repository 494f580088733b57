//! A process of its own, the descriptor receiver, receives a VMM's messages. It hands on messages
//! and harmless descriptors.
//!
//! Whoever has the last descriptor of a file closes it, and the close of a file on a file system of
//! the sender's (FUSE) may wait for ever, uninterruptibly. In the daemon such a thread keeps the
//! process, and with it the locks of all images, alive past SIGKILL. A gate has nothing but one
//! VMM's connection, and keeps nobody waiting.
//!
//! ```text
//!  VMM ◀──▶ gate ◀──socket pair──▶ connection's thread
//!            ▲ forked for each connection
//!          keeper ◀── the connection, and the other end of the socket pair ── whoever accepts
//! ```
//!
//! The keeper is forked by the program before it has threads ([`start`]). Without one, as in tests
//! of the library, connections are served directly.

mod carry;

use crate::descriptors;
use crate::log::say;
use rustix::net::RecvFlags;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Pause of the keeper before it tries again to fork a process.
const FORK_PAUSE: Duration = Duration::from_millis(50);

/// Where the keeper takes connections.
static KEEPER: OnceLock<UnixStream> = OnceLock::new();

/// Start the keeper. Before the process has threads.
///
/// # Errors
/// There is no process to be had, or there are threads already.
pub fn start() -> io::Result<()> {
    if std::fs::read_dir("/proc/self/task")?.count() > 1 {
        return Err(io::Error::other("the process has threads already"));
    }
    let (ours, theirs) = UnixStream::pair()?;
    // SAFETY: there are no other threads, whose locks the child would find taken.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => keep(theirs),
        _ => {
            // The thread that accepts connections must not wait.
            ours.set_nonblocking(true)?;
            let _ = KEEPER.set(ours); // started once
            Ok(())
        }
    }
}

/// A connection's gate, in the daemon.
pub struct Gate(UnixStream);

impl Gate {
    /// Wait until the process has ended: a file that it has to close may keep it.
    pub fn wait(mut self) {
        let _ = self.0.read(&mut [0]); // nothing is written
    }
}

/// Have a VMM's connection received by a gate. Returns what the daemon talks to.
///
/// # Errors
/// When there are no descriptors left, or too many connections wait for a process.
pub fn pass(vmm: UnixStream) -> io::Result<(UnixStream, Option<Gate>)> {
    if let Some(keeper) = KEEPER.get() {
        let (ours, theirs) = UnixStream::pair()?;
        let (ended, token) = UnixStream::pair()?;
        let fds = [vmm.as_raw_fd(), theirs.as_raw_fd(), token.as_raw_fd()];
        match keeper.send_with_fds(&[&[0u8][..]], &fds) {
            Ok(_) => return Ok((ours, Some(Gate(ended)))),
            Err(e) if matches!(e.errno(), libc::EPIPE | libc::ECONNRESET) => {
                say(&format!("the process that receives for VMMs has ended ({e})"));
            }
            // The keeper is busy. The daemon must not receive in its place.
            Err(e) => return Err(io::Error::from_raw_os_error(e.errno())),
        }
    }
    descriptors::take_on(vmm.as_fd());
    Ok((vmm, None))
}

/// The keeper: fork a gate for each connection, until the daemon has ended. Never has descriptors of
/// a VMM itself.
fn keep(daemon: UnixStream) -> ! {
    // SAFETY: plain system calls. The daemon's other descriptors are closed, and nothing here uses
    // them; signals to the process group are the daemon's: this process ends with it.
    unsafe {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGCHLD] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"vhost-keeper".as_ptr());
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        (0..=2).for_each(|fd| _ = libc::dup2(null, fd));
        let fd = daemon.as_raw_fd() as libc::c_uint;
        if fd > 3 {
            libc::close_range(3, fd - 1, 0);
        }
        libc::close_range(fd + 1, libc::c_uint::MAX, 0);
        libc::chdir(c"/".as_ptr());
    }
    loop {
        // Only a look: what comes with it stays in the socket.
        let mut byte = [0u8; 1];
        // SAFETY: one byte to write to.
        let seen =
            unsafe { libc::recv(daemon.as_raw_fd(), byte.as_mut_ptr().cast(), 1, libc::MSG_PEEK) };
        let is_interrupted =
            seen < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        if is_interrupted {
            continue;
        }
        if seen <= 0 {
            end();
        }
        // There may be too many processes for a while: VMMs can cause that.
        if !let_in(&daemon) {
            thread::sleep(FORK_PAUSE);
        }
    }
}

/// Fork a gate, and wait until it has taken the next connection. False when nothing can be forked.
fn let_in(daemon: &UnixStream) -> bool {
    let Ok((mut taken, takes)) = io::pipe() else { return false };
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => false,
        0 => {
            drop(taken);
            let received = descriptors::receive(daemon.as_fd(), &mut [0], RecvFlags::empty());
            // SAFETY: the keeper's end, which is the daemon's: not used here any more.
            unsafe { libc::close(daemon.as_raw_fd()) };
            drop(takes);
            let Ok(Ok([vmm, ours, token])) = received.map(|(_, f)| <[OwnedFd; 3]>::try_from(f))
            else {
                end()
            };
            let _token = File::from(token); // closed by the end of the process
            carry::run(vmm.into(), ours.into())
        }
        _ => {
            drop(takes);
            let _ = taken.read(&mut [0]);
            true
        }
    }
}

/// End this process at once.
fn end() -> ! {
    // SAFETY: takes a number. What the daemon has registered for its end is not run.
    unsafe { libc::_exit(0) }
}
