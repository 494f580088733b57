//! What a daemon is started with besides its configuration, and what ends it.

use super::sockets::Listener;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// What the program was started with besides its configuration.
#[derive(Debug, Default)]
pub struct StartOptions {
    /// Listening sockets by name: `web.vhost`, `web.nbd`, `control`, `nbd`,
    /// `metrics`. They are used instead of ones of our own.
    pub sockets: BTreeMap<String, Listener>,
    /// Serve the only disk by vhost-user here too.
    pub vhost: Option<VhostAt>,
    /// The folder of this host's notes, which outlast a boot and which all daemons share.
    pub state: Option<PathBuf>,
}

/// Where the only disk is served by vhost-user (QEMU's conventions for
/// programs that are back ends: `--socket-path`, `--fd`).
#[derive(Debug)]
pub enum VhostAt {
    /// A socket to be made.
    Path(PathBuf),
    /// One that listens already.
    Listener(Listener),
    /// A front end that is connected already: the daemon ends with it.
    Connected(UnixStream),
}

/// Ends a daemon from another thread.
#[derive(Debug)]
pub struct Stopper(pub(super) UnixStream);

impl Stopper {
    /// Let [`Daemon::run`](super::Daemon::run) end in good order. Does nothing when it has ended.
    pub fn stop(&self) {
        let _ = (&self.0).write(&[1]); // full: it has been told
    }

    /// Another one that ends the same daemon.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(super) fn duplicate(&self) -> io::Result<Stopper> {
        self.0.try_clone().map(Stopper)
    }
}
