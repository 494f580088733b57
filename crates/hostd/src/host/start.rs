//! The daemon's start: options besides its configuration, certificates, confinement; and the handle
//! that ends it.

use super::error::HostError;
use super::memory::MemorySource;
use super::sockets::Listener;
use crate::config::{Config, TlsConfig};
use crate::frontends::nbd;
use crate::sandbox::{self, Access, Kind, Places};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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

// Certificates.

/// Can the certificates be used?
///
/// # Errors
/// [`HostError::Tls`].
pub fn check_tls(config: &Config) -> Result<(), HostError> {
    server_config(config).map(|_| ())
}

/// Makes the configuration for `--tls-cert` and its like.
pub(super) fn server_config(
    config: &Config,
) -> Result<Option<Arc<rustls::ServerConfig>>, HostError> {
    let TlsConfig { cert: Some(cert), key: Some(key), client_ca, .. } = &config.tls else {
        return Ok(None);
    };
    let made = nbd::tls_config(cert, key, client_ca.as_deref());
    made.map(Some).map_err(|e| HostError::Tls(e.to_string()))
}

// Where the daemon may open files once it serves: in the folders of `--images`, at its sockets, its
// journals, and where the system tells of memory. What is open by then stays open. The images of
// the configuration are not among them, which would keep a file that is removed later: whoever
// attaches one again hands it over.

/// Confinement of the threads of control.
pub struct Confinement {
    /// Where files may be opened once it serves.
    places: Places,
    /// The threads that the main thread starts inherit its confinement.
    is_inherited: AtomicBool,
}

impl Confinement {
    /// The confinement of a daemon that is started with these.
    pub(super) fn new(
        config: &Config,
        vhost: Option<&VhostAt>,
        memory: &MemorySource,
    ) -> Confinement {
        let places = places(config, vhost, memory);
        Confinement { places, is_inherited: AtomicBool::new(false) }
    }

    /// Confine this thread, and with it those that it starts: it carries out commands.
    pub fn enter(&self) {
        if !self.is_inherited.load(Ordering::SeqCst) {
            sandbox::enter_with(Kind::Control, &self.places);
        }
    }

    /// Confines the main thread, which starts all others from now on.
    pub fn enter_main(&self) {
        sandbox::leave_network();
        self.enter();
        self.is_inherited.store(true, Ordering::SeqCst);
    }

    /// May it open files in few places only?
    pub(super) fn is_on(&self) -> bool {
        self.is_inherited.load(Ordering::SeqCst) && sandbox::is_on()
    }
}

/// The places of a daemon that is started with these.
pub(super) fn places(config: &Config, vhost: Option<&VhostAt>, memory: &MemorySource) -> Places {
    let mut places = Places::default();
    config.images.iter().for_each(|folder| places.allow(folder, Access::Images));
    if let Some(folder) = &config.listen {
        places.allow(folder, Access::Sockets);
    }
    let socket = match vhost {
        Some(VhostAt::Path(path)) => Some(path.clone()),
        Some(VhostAt::Listener(_) | VhostAt::Connected(_)) | None => None,
    };
    for path in config.control_path().iter().chain(&socket) {
        places.allow(folder_of(path), Access::Remove);
    }
    if let Some(folder) = &config.journal {
        // A device that comes later says what is wrong with it.
        let _ = std::fs::create_dir_all(folder);
        places.allow(folder, Access::Journals);
    }
    if let Some(profile) = config.emulate.as_ref().and_then(|spec| spec.split(':').next()) {
        places.allow(Path::new(profile), Access::Read);
    }
    // Where images lie, and what their devices can do.
    places.allow(Path::new("/sys"), Access::Read);
    memory.allow(&mut places);
    places
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
