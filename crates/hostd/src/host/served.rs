//! The devices and disks that are served, and the sockets of the disks and of the daemon.

use super::devices::Device;
use super::error::HostError;
use super::losses::Losses;
use super::slots::DiskPlaces;
use super::sockets::Listener;
use super::{listed, shown};
use crate::config::DiskConfig;
use crate::frontends::nbd::DiskMemory;
use crate::frontends::vhost_user::ConfigListeners;
use crate::images::{Image, Limits, Users, Warnings};
use crate::port::DiskId;
use crate::reactor::Message;
use crate::threads::{lock, whole};
use seekway_stack::stack::limit::DiskLimits;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

/// A disk that is served.
pub struct ServedDisk {
    /// Its configuration; [`ServedDisk::rate_limits`] has later changes of limits.
    pub config: DiskConfig,
    /// Its number in its reactor.
    pub id: DiskId,
    pub device: Arc<Device>,
    pub is_block: bool,
    /// I/O goes past the page cache.
    pub is_direct: bool,
    /// Its connections, those included that may still open a port.
    pub places: DiskPlaces,
    /// Counts the buffers of its NBD clients.
    pub nbd_memory: Arc<DiskMemory>,
    /// The VMM to tell when its size changes.
    pub config_changed: Arc<ConfigListeners>,
    /// Warnings about its image, for the operator.
    pub warnings: Arc<Warnings>,
    pub(super) rate_limits: Mutex<DiskLimits>,
    pub(super) limits: Arc<Mutex<Limits>>,
    /// For growing it; gone once it is detached, since it holds the lock too.
    pub(super) file: Mutex<Option<File>>,
    /// Users of the image, and whether it is this daemon's.
    pub(super) users: Mutex<Users>,
    /// Name of its image for all daemons.
    pub(super) identity: String,
    pub(super) losses: Arc<Losses>,
    /// Held while the image is taken over.
    pub(super) taking: Mutex<()>,
}

impl ServedDisk {
    /// The disk of an image on a device, once its reactor has given it a number.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(super) fn of(
        config: &DiskConfig,
        image: &Image,
        device: Arc<Device>,
        losses: Arc<Losses>,
    ) -> Result<impl FnOnce(DiskId) -> ServedDisk + use<>, HostError> {
        let file = image.file().try_clone().map_err(|e| HostError::System("descriptor", e))?;
        let (is_block, is_direct, identity) =
            (image.is_block(), image.is_direct(), image.identity());
        let (config, warnings, limits) =
            (config.clone(), image.warnings().clone(), *image.limits());
        Ok(move |id| ServedDisk {
            id,
            device,
            is_block,
            is_direct,
            places: DiskPlaces::new(),
            nbd_memory: Arc::default(),
            config_changed: Arc::default(),
            warnings,
            rate_limits: Mutex::new(config.limits.clone()),
            limits: Arc::new(Mutex::new(limits)),
            file: Mutex::new(Some(file)),
            users: Mutex::new(Users::new(!config.incoming)),
            identity,
            losses,
            taking: Mutex::default(),
            config,
        })
    }

    /// Ask its reactor for something ([`Device::ask`]).
    ///
    /// # Errors
    /// The reactor's error for this disk, or [`HostError`] when the reactor has ended.
    pub(super) fn ask<T>(
        &self,
        message: impl FnOnce(SyncSender<Result<T, String>>) -> Message,
    ) -> Result<T, HostError> {
        self.device.ask(message)?.map_err(|e| HostError::Disk(self.config.name.clone(), e))
    }

    /// Its limits as they are now.
    pub fn limits(&self) -> Limits {
        *lock(&self.limits)
    }

    /// Its rate limits as they are now: `ctl limit` changes them.
    pub fn rate_limits(&self) -> DiskLimits {
        lock(&self.rate_limits).clone()
    }

    /// Its name in log lines.
    pub fn what(&self) -> String {
        format!("disk {}", self.config.name)
    }

    /// A function that asks for its limits later.
    pub fn limits_source(&self) -> Arc<dyn Fn() -> Limits + Send + Sync> {
        let limits = self.limits.clone();
        Arc::new(move || *lock(&limits))
    }
}

/// The export of a listening socket.
pub enum Service {
    /// vhost-user, for this disk.
    Vhost(Arc<ServedDisk>),
    /// NBD, for this disk.
    NbdOf(Arc<ServedDisk>),
    /// NBD, for all disks by name.
    Nbd,
    Control,
    /// HTTP, for programs that scrape the metrics.
    Metrics,
    /// HTTP, for the web page.
    Web,
}

impl Service {
    /// May its clients send descriptors from the start? `ctl attach` hands over images. VMMs, which
    /// hand over memory, wait for an answer first, and then nobody but a gate has their connection.
    pub fn takes_descriptors(&self) -> bool {
        matches!(self, Service::Control)
    }

    /// The disk, if it is one disk's socket.
    pub fn disk(&self) -> Option<&Arc<ServedDisk>> {
        match self {
            Service::Vhost(disk) | Service::NbdOf(disk) => Some(disk),
            Service::Nbd | Service::Control | Service::Metrics | Service::Web => None,
        }
    }

    /// Is it a socket of this disk?
    pub fn is_of(&self, disk: &Arc<ServedDisk>) -> bool {
        self.disk().is_some_and(|of| Arc::ptr_eq(of, disk))
    }

    /// The word for it in status and messages.
    pub const fn name(&self) -> &'static str {
        match self {
            Service::Vhost(_) => "vhost",
            Service::NbdOf(_) | Service::Nbd => "nbd",
            Service::Control => "control",
            Service::Metrics => "metrics",
            Service::Web => "web",
        }
    }
}

/// A listening socket, and what it serves.
pub struct ServedSocket {
    pub service: Service,
    pub listener: Listener,
}

// The table of devices and disks.

#[derive(Default)]
pub(super) struct Registry {
    served: RwLock<Served>,
    /// Held while a device's reactor is looked for, and started if there is none.
    starting: Mutex<()>,
}

#[derive(Default)]
struct Served {
    devices: Vec<Arc<Device>>,
    disks: BTreeMap<String, Arc<ServedDisk>>,
}

impl Registry {
    /// In the order in which they came.
    pub fn devices(&self) -> Vec<Arc<Device>> {
        self.read().devices.clone()
    }

    /// By name.
    pub fn disks(&self) -> Vec<Arc<ServedDisk>> {
        self.read().disks.values().cloned().collect()
    }

    /// # Errors
    /// [`HostError::NoDisk`].
    pub fn disk(&self, name: &str) -> Result<Arc<ServedDisk>, HostError> {
        let served = self.read();
        served.disks.get(name).cloned().ok_or_else(|| HostError::NoDisk {
            name: shown(name),
            there: listed(served.disks.keys().map(String::as_str)),
        })
    }

    /// Let a disk be found by its name.
    pub fn add(&self, disk: Arc<ServedDisk>) {
        self.write().disks.insert(disk.config.name.clone(), disk);
    }

    pub fn remove(&self, disk: &ServedDisk) {
        self.write().disks.remove(&disk.config.name);
    }

    /// The device of this number, and whether it is new: a missing one is started, by `start` with
    /// the number of devices that exist.
    ///
    /// # Errors
    /// Those of `start`.
    pub fn device_of(
        &self,
        number: Option<(u32, u32)>,
        start: impl FnOnce(usize) -> Result<Arc<Device>, HostError>,
    ) -> Result<(Arc<Device>, bool), HostError> {
        let _starting = lock(&self.starting);
        let devices = self.devices();
        if let Some(known) = devices.iter().find(|d| d.number == number) {
            return Ok((known.clone(), false));
        }
        let device = start(devices.len())?;
        self.write().devices.push(device.clone());
        Ok((device, true))
    }

    fn read(&self) -> RwLockReadGuard<'_, Served> {
        whole(self.served.read())
    }

    fn write(&self) -> RwLockWriteGuard<'_, Served> {
        whole(self.served.write())
    }
}

// The sockets at which the daemon listens, and those that it was handed.

/// The token of what tells the daemon to end.
pub const WAKE: u64 = 0;

pub struct Listeners {
    epoll: Epoll,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the token that epoll gives back; [`WAKE`] is not one of them.
    served: BTreeMap<u64, Arc<ServedSocket>>,
    last_token: u64,
    /// Sockets that were handed over, until somebody wants them.
    inherited: BTreeMap<String, Listener>,
    /// A front end that was connected from the start.
    connected: Option<UnixStream>,
    /// A socket that came now would stay behind.
    over: bool,
}

impl Listeners {
    pub(super) fn new(epoll: Epoll, inherited: BTreeMap<String, Listener>) -> Listeners {
        Listeners { epoll, state: Mutex::new(State { inherited, ..State::default() }) }
    }

    pub fn epoll(&self) -> &Epoll {
        &self.epoll
    }

    /// Serve this at a socket.
    ///
    /// # Errors
    /// The daemon ends, or what the system says.
    pub(super) fn add(&self, service: Service, listener: Listener) -> Result<(), HostError> {
        if !service.takes_descriptors() {
            listener.refuse_descriptors();
        }
        let mut state = lock(&self.state);
        if state.over {
            return Err(HostError::Ending);
        }
        state.last_token += 1;
        let token = state.last_token;
        let event = EpollEvent::new(EventSet::IN, token);
        let added = self.epoll.ctl(ControlOperation::Add, listener.as_raw_fd(), event);
        added.map_err(|e| HostError::System("epoll", e))?;
        state.served.insert(token, Arc::new(ServedSocket { service, listener }));
        Ok(())
    }

    /// The socket with this token; `None` when its disk was detached meanwhile.
    pub fn served(&self, token: u64) -> Option<Arc<ServedSocket>> {
        lock(&self.state).served.get(&token).cloned()
    }

    /// Where a disk, or with `None` the whole daemon, can be reached.
    pub(super) fn addresses(&self, disk: Option<&ServedDisk>) -> Vec<(&'static str, String)> {
        let of = |served: &&Arc<ServedSocket>| match (served.service.disk(), disk) {
            (Some(of), Some(disk)) => std::ptr::eq(Arc::as_ptr(of), disk),
            (of, disk) => of.is_none() && disk.is_none(),
        };
        let address = |s: &Arc<ServedSocket>| (s.service.name(), s.listener.address());
        lock(&self.state).served.values().filter(of).map(address).collect()
    }

    /// Close those of a disk.
    pub(super) fn remove(&self, disk: &Arc<ServedDisk>) {
        lock(&self.state).served.retain(|_, served| !served.service.is_of(disk));
    }

    /// Close all, and take no more.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.over = true;
        state.served.clear();
    }

    /// A socket of one of these names that was handed over.
    pub(super) fn take_inherited(&self, names: &[&str]) -> Option<Listener> {
        let mut state = lock(&self.state);
        names.iter().find_map(|name| state.inherited.remove(*name))
    }

    /// Nobody wanted it after all.
    pub(super) fn give_back(&self, name: String, listener: Listener) {
        lock(&self.state).inherited.insert(name, listener);
    }

    /// The names of sockets that were handed over and that nobody has taken.
    pub(super) fn inherited(&self) -> Vec<String> {
        lock(&self.state).inherited.keys().cloned().collect()
    }

    pub(super) fn connect(&self, stream: UnixStream) {
        lock(&self.state).connected = Some(stream);
    }

    /// A front end that was connected from the start, once.
    pub fn take_connected(&self) -> Option<UnixStream> {
        lock(&self.state).connected.take()
    }

    /// Is the daemon to end, while it starts?
    pub(super) fn is_told_to_end(&self) -> bool {
        let mut events = [EpollEvent::default(); 64];
        let ready = self.epoll.wait(0, &mut events).unwrap_or(0);
        events[..ready].iter().any(|event| event.data() == WAKE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_comes_when_the_daemon_ends_does_not_stay() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["early", "late"].map(|name| folder.path().join(name));
        let [early, late] = paths.each_ref().map(|path| Listener::unix(path).unwrap());
        let listeners = Listeners::new(Epoll::new().unwrap(), BTreeMap::new());
        listeners.add(Service::Nbd, early).unwrap();
        assert!(listeners.served(1).is_some());
        listeners.end();
        assert!(matches!(listeners.add(Service::Nbd, late), Err(HostError::Ending)));
        assert!(paths.iter().all(|path| !path.exists()));
    }
}
