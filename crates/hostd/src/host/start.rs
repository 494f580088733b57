//! The daemon's start options besides its configuration, and the handle that ends it.

use super::sockets::Listener;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Options of the program besides its configuration.
#[derive(Debug, Default)]
pub struct StartOptions {
    /// Listening sockets by name: `web.vhost`, `web.nbd`, `control`, `nbd`,
    /// `metrics`. They are used instead of ones of our own.
    pub sockets: BTreeMap<String, Listener>,
    /// Serve the only disk by vhost-user here too.
    pub vhost: Option<VhostAt>,
    /// SIGINT and SIGTERM end it in good order, while it starts too, and at once when they come
    /// again. SIGHUP is ignored: nothing here has to be opened again.
    pub ends_by_signals: bool,
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
pub struct Stopper(UnixStream);

impl Stopper {
    /// One that writes to this socket, without waiting.
    pub(crate) fn new(wakes: UnixStream) -> Stopper {
        Stopper(wakes)
    }

    /// Let [`Daemon::run`](crate::daemon::Daemon::run) end in good order. Does nothing when it has ended.
    pub fn stop(&self) {
        let _ = (&self.0).write(&[1]); // full: it has been told
    }

    /// Let signals do that: [`StartOptions::ends_by_signals`].
    pub(crate) fn by_signals(&self) -> io::Result<()> {
        let seen = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first sets what the second looks at.
            signal_hook::flag::register_conditional_shutdown(signal, 1, seen.clone())?;
            signal_hook::flag::register(signal, seen.clone())?;
            signal_hook::low_level::pipe::register(signal, self.duplicate()?.0)?;
        }
        // A write beyond the limit of a file's size is an error (EFBIG), and no end.
        signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        signal_hook::flag::register(SIGHUP, Arc::new(AtomicBool::new(false)))?;
        Ok(())
    }

    /// Another one that ends the same daemon.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(crate) fn duplicate(&self) -> io::Result<Stopper> {
        self.0.try_clone().map(Stopper)
    }
}
