//! Where the daemon may open files once it serves: in the folders of `--images`, at its sockets, its
//! journals, and where the system tells of memory. What is open by then stays open. The images of
//! the configuration are not among them, which would keep a file that is removed later: whoever
//! attaches one again hands it over.

use super::memory::MemorySource;
use super::start::VhostAt;
use crate::config::Config;
use crate::sandbox::{self, Access, Kind, Places};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Confinement of the threads of control.
pub struct Confinement {
    /// Where files may be opened once it serves.
    places: Places,
    /// The threads that the main thread starts inherit its confinement.
    is_inherited: AtomicBool,
}

impl Confinement {
    /// That of a daemon that is started with these.
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
