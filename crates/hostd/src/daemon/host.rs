//! What is served: devices, disks, their sockets; and how that changes while
//! it runs. Shared by the control thread and by whoever talks to a client.
//!
//! Changes of settings take turns (`changes`): they are sent to the reactors in the same order, and
//! the answers are waited for afterwards. Who attaches, detaches or resizes a disk claims its name
//! ([`changes`]), and others go on meanwhile: its device may hang. Looking something up never waits
//! for a change, and nobody waits for a reactor with something locked that others need.

mod attach;
mod cache;
mod changes;
mod failed;
mod freeze;
mod limits;
mod resize;
mod retries;
mod settings;
mod tls;

pub use attach::Attached;
use cache::Caches;
pub use changes::Pending;
pub use failed::FailedDisk;
pub use freeze::FREEZE_MAX;
pub use tls::check_tls;

use super::WAKE;
use super::confine;
use super::devices::Device;
use super::error::HostError;
use super::losses::Losses;
use super::memory::MemorySource;
use super::recent::Recent;
use super::served::{ServedDisk, ServedSocket, Service};
use super::slots::{ConnectionSlots, lock};
use super::sockets::{self, Listener, SocketError};
use super::start::{StartOptions, Stopper, VhostAt};
use crate::config::Config;
use crate::log;
use crate::reactor::Status;
use crate::sandbox::{self, Kind, Places};
use seekway_stack::stack::limit::{GroupName, Limits as RateLimits};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::{Duration, Instant};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

/// Most connections at once, beyond those reserved for each disk.
const CONNECTIONS_MAX: usize = 1024;
/// How long whoever asks how devices stand waits for those whose disks hang.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);
/// Most clients at the NBD address of all disks that have not said which disk they want.
const NEGOTIATING_MAX: usize = 256;
/// Most clients of the control socket, and as many of metrics, at once.
pub(super) const CLIENTS_MAX: usize = 64;
/// Most connections of browsers at once. A browser has up to six, and an answer is up to 8 MB.
const VIEWERS_MAX: usize = 32;

#[derive(Default)]
struct Registry {
    devices: Vec<Arc<Device>>,
    disks: BTreeMap<String, Arc<ServedDisk>>,
    /// By the token that epoll gives back; 0 is not one of them.
    listeners: BTreeMap<u64, Arc<ServedSocket>>,
    last_token: u64,
}

/// Held by whoever changes what is served; never while a device is waited for, which may hang.
#[derive(Default)]
struct Changes {
    /// The daemon ends: a socket that was made now would stay behind.
    over: bool,
    /// Disks that are being attached, detached or resized, by name.
    claimed: BTreeMap<String, Pending>,
    /// Number of the last one.
    last_claim: u64,
}

/// What is served. See the module's text.
pub struct Host {
    config: Config,
    epoll: Epoll,
    stopper: Stopper,
    /// When it was started.
    pub started: Instant,
    /// Connections beyond those reserved for each disk.
    pub(super) connections: Arc<ConnectionSlots>,
    /// Those at the NBD address of all disks that have not negotiated yet. Apart: anybody may
    /// come there and say nothing.
    pub(super) negotiating: Arc<ConnectionSlots>,
    /// Clients of the control socket.
    pub(super) clients: Arc<ConnectionSlots>,
    /// Clients of metrics. Apart: they come over the network, and whoever
    /// manages the daemon must find room whatever they do.
    pub(super) scrapers: Arc<ConnectionSlots>,
    /// Browsers of the web page. Apart, like those.
    pub(super) viewers: Arc<ConnectionSlots>,
    metrics: Recent<String>,
    registry: RwLock<Registry>,
    changes: Mutex<Changes>,
    /// Held while a device's reactor is looked for, and started if there is none.
    starting: Mutex<()>,
    /// Held while the size of the caches is changed.
    resizing: Mutex<()>,
    /// Disks of the configuration that are not served, and why.
    failed: Mutex<BTreeMap<String, FailedDisk>>,
    /// Names of those that the background has served since.
    recovered: Mutex<BTreeSet<String>>,
    /// The background ends with this.
    retrying: Mutex<Option<Sender<()>>>,
    /// For devices to come; the configuration's, until it is changed for all.
    policy: Mutex<Option<String>>,
    /// The same of the prefetcher; says nothing without a cache.
    prefetcher: Mutex<String>,
    caches: Mutex<Caches>,
    /// Marks images of which a sync has failed.
    losses: Arc<Losses>,
    /// Where files may be opened once it serves.
    places: Places,
    /// The threads that it starts inherit the confinement of control.
    is_confined: AtomicBool,
    /// For the thread that follows the memory.
    me: Weak<Host>,
    /// Groups with their limits as they are now, for devices to come as well.
    groups: Mutex<BTreeMap<GroupName, RateLimits>>,
    tls: Option<Arc<rustls::ServerConfig>>,
    /// Sockets that were handed over, until somebody wants them.
    inherited: Mutex<BTreeMap<String, Listener>>,
    /// A front end that was connected from the start.
    connected: Mutex<Option<UnixStream>>,
}

impl Host {
    pub(super) fn start(
        mut config: Config,
        options: StartOptions,
        epoll: Epoll,
        stopper: &Stopper,
    ) -> Result<Arc<Host>, HostError> {
        if options.vhost.is_some() && config.disks.len() != 1 {
            return Err(HostError::NotOneDisk(config.disks.len()));
        }
        let tls = tls::server_config(&config)?;
        if let Some(folder) = &config.listen {
            sockets::make_folder(folder)?;
        }
        // Disks may come later, when no names of users can be looked up.
        config.sockets = config.sockets.numbered();
        config.disks.iter_mut().for_each(|disk| disk.sockets = disk.sockets.numbered());
        if !config.sandbox {
            sandbox::switch_off();
        }
        log::start();
        let stopper = stopper.duplicate().map_err(|e| HostError::System("descriptor", e))?;
        let memory = MemorySource::here();
        memory.guests_that_count(&config.disks).iter().for_each(|text| log::say(text));
        let losses = Losses::start(options.state.as_deref());
        let losses = Arc::new(losses.map_err(|e| HostError::System("thread", e))?);
        let host = Arc::new_cyclic(|me| Host {
            me: Weak::clone(me),
            places: confine::places(&config, options.vhost.as_ref(), &memory),
            is_confined: AtomicBool::new(false),
            losses,
            caches: Mutex::new(Caches::new(&config, memory)),
            policy: Mutex::new(config.policy.clone()),
            prefetcher: Mutex::new(config.prefetcher().to_string()),
            groups: Mutex::new(config.groups.iter().map(|g| (g.name.clone(), g.limits)).collect()),
            config,
            epoll,
            stopper,
            started: Instant::now(),
            connections: ConnectionSlots::new(CONNECTIONS_MAX),
            negotiating: ConnectionSlots::new(NEGOTIATING_MAX),
            clients: ConnectionSlots::new(CLIENTS_MAX),
            scrapers: ConnectionSlots::new(CLIENTS_MAX),
            viewers: ConnectionSlots::new(VIEWERS_MAX),
            metrics: Recent::default(),
            registry: RwLock::default(),
            changes: Mutex::default(),
            starting: Mutex::default(),
            resizing: Mutex::default(),
            failed: Mutex::default(),
            recovered: Mutex::default(),
            retrying: Mutex::default(),
            tls,
            inherited: Mutex::new(options.sockets),
            connected: Mutex::new(None),
        });
        let served = host.start_caches().and_then(|()| host.open_all(options.vhost));
        if let Err(e) = served {
            let _ = host.end(); // the first error is the one to tell
            return Err(e);
        }
        Ok(host)
    }

    fn open_all(self: &Arc<Host>, vhost: Option<VhostAt>) -> Result<(), HostError> {
        // The control socket first: that of a running daemon is the best way to
        // notice it.
        if let Some(path) = self.config.control_path() {
            let listener = self.listener(&["control", "control.sock"], || Listener::unix(&path))?;
            self.listen(Service::Control, listener)?;
        } else if let Some(listener) = self.take_inherited(&["control", "control.sock"]) {
            self.listen(Service::Control, listener)?;
        }
        self.attach_all(vhost.is_some())?;
        if self.is_told_to_end() {
            return Ok(());
        }
        if let (Some(at), Some(disk)) = (vhost, self.disks().first()) {
            match at {
                VhostAt::Path(path) => {
                    self.listen(Service::Vhost(disk.clone()), Listener::unix(&path)?)?;
                }
                VhostAt::Listener(listener) => {
                    self.listen(Service::Vhost(disk.clone()), listener)?
                }
                VhostAt::Connected(stream) => *lock(&self.connected) = Some(stream),
            }
        }
        for (name, address, kind) in [
            ("nbd", self.config.nbd, Service::Nbd),
            ("metrics", self.config.metrics, Service::Metrics),
            ("web", self.config.web, Service::Web),
        ] {
            if let Some(listener) = self.take_inherited(&[name]) {
                self.listen(kind, listener)?;
            } else if let Some(address) = address {
                self.listen(kind, Listener::tcp(address)?)?;
            }
        }
        // Those of a disk that is not served yet wait for it, with whoever connects meanwhile.
        let failed = lock(&self.failed);
        let waits = |name: &str| {
            name.rsplit_once('.').is_some_and(|(disk, kind)| {
                failed.contains_key(disk) && matches!(kind, "vhost" | "nbd")
            })
        };
        match lock(&self.inherited).keys().find(|name| !waits(name)) {
            Some(name) => Err(HostError::Leftover(name.clone())),
            None => Ok(()),
        }
    }

    /// A front end that was connected from the start, once.
    pub(super) fn take_connected(&self) -> Option<UnixStream> {
        lock(&self.connected).take()
    }

    fn take_inherited(&self, names: &[&str]) -> Option<Listener> {
        let mut inherited = lock(&self.inherited);
        names.iter().find_map(|name| inherited.remove(*name))
    }

    fn listener(
        &self,
        names: &[&str],
        make: impl FnOnce() -> Result<Listener, SocketError>,
    ) -> Result<Listener, SocketError> {
        self.take_inherited(names).map_or_else(make, Ok)
    }

    fn listen(&self, service: Service, listener: Listener) -> Result<(), HostError> {
        if !service.takes_descriptors() {
            listener.refuse_descriptors();
        }
        let mut registry = self.write();
        registry.last_token += 1;
        let token = registry.last_token;
        let event = EpollEvent::new(EventSet::IN, token);
        let fd = listener.as_raw_fd();
        registry.listeners.insert(token, Arc::new(ServedSocket { service, listener }));
        self.epoll.ctl(ControlOperation::Add, fd, event).map_err(|e| {
            registry.listeners.remove(&token);
            HostError::System("epoll", e)
        })
    }

    /// Confine this thread, and with it those that it starts: it carries out commands.
    pub(super) fn confine(&self) {
        if !self.is_confined.load(Ordering::SeqCst) {
            sandbox::enter_with(Kind::Control, &self.places);
        }
    }

    /// May it open files in few places only?
    pub(super) fn is_confined(&self) -> bool {
        self.is_confined.load(Ordering::SeqCst) && sandbox::is_on()
    }

    /// The same of the thread that starts all others from now on.
    pub(super) fn confine_main(&self) {
        sandbox::leave_network();
        self.confine();
        self.is_confined.store(true, Ordering::SeqCst);
    }

    /// How all devices stand. One whose reactor has ended is left out.
    pub fn statuses(&self) -> Vec<(Arc<Device>, Status)> {
        self.ask_statuses().0
    }

    /// The same, and the names of devices that do not answer: their reactors wait for their disks.
    pub fn ask_statuses(&self) -> (Vec<(Arc<Device>, Status)>, Vec<String>) {
        let asked = self.devices().into_iter().map(|device| (device.ask_status(), device));
        let (asked, until) = (asked.collect::<Vec<_>>(), Instant::now() + STATUS_PATIENCE);
        let (mut statuses, mut silent) = (Vec::new(), Vec::new());
        for (answer, device) in asked {
            match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(status) => statuses.push((device, status)),
                Err(RecvTimeoutError::Timeout) => silent.push(device.name.clone()),
                Err(RecvTimeoutError::Disconnected) => {}
            }
        }
        (statuses, silent)
    }

    /// What `render` makes of the metrics, up to a second old: those who scrape share it.
    pub fn recent_metrics(&self, render: impl FnOnce() -> String) -> Arc<String> {
        self.metrics.get(Instant::now(), render)
    }

    /// Where a disk, or with `None` the whole daemon, can be reached.
    pub fn addresses(&self, disk: Option<&ServedDisk>) -> Vec<(&'static str, String)> {
        let registry = self.read();
        let of = |served: &&Arc<ServedSocket>| match (served.service.disk(), disk) {
            (Some(of), Some(disk)) => of.config.name == disk.config.name,
            (of, disk) => of.is_none() && disk.is_none(),
        };
        let address = |s: &Arc<ServedSocket>| (s.service.name(), s.listener.address());
        registry.listeners.values().filter(of).map(address).collect()
    }

    /// The configuration that it was started with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What TLS sessions of NBD are set up with; `None` without certificates.
    pub(super) fn tls(&self) -> Option<&Arc<rustls::ServerConfig>> {
        self.tls.as_ref()
    }

    /// All disks, by name.
    pub fn disks(&self) -> Vec<Arc<ServedDisk>> {
        self.read().disks.values().cloned().collect()
    }

    /// All devices, in the order in which they came.
    pub fn devices(&self) -> Vec<Arc<Device>> {
        self.read().devices.clone()
    }

    /// A disk by name.
    ///
    /// # Errors
    /// [`HostError::NoDisk`].
    pub fn disk(&self, name: &str) -> Result<Arc<ServedDisk>, HostError> {
        let registry = self.read();
        registry.disks.get(name).cloned().ok_or_else(|| HostError::NoDisk {
            name: name.escape_debug().take(100).collect(),
            there: listed(registry.disks.keys().map(String::as_str)),
        })
    }

    pub(super) fn served(&self, token: u64) -> Option<Arc<ServedSocket>> {
        self.read().listeners.get(&token).cloned()
    }

    pub(super) fn epoll(&self) -> &Epoll {
        &self.epoll
    }

    /// Accept nothing any more, and let the reactors end.
    pub(super) fn end(&self) -> Result<(), HostError> {
        let mut changes = lock(&self.changes);
        changes.over = true;
        lock(&self.retrying).take();
        self.write().listeners.clear();
        self.end_caches();
        let devices = self.devices();
        devices.iter().for_each(|device| device.end());
        devices.iter().for_each(|device| device.join());
        // Not before: clients get the replies to what was outstanding.
        self.disks().iter().for_each(|disk| {
            disk.places.close();
            // The next daemon, and whoever unmounts what it lies on, may come at once.
            lock(&disk.file).take();
        });
        self.losses.end();
        let died = devices.iter().find(|d| d.died.load(Ordering::SeqCst));
        died.map_or(Ok(()), |d| Err(HostError::ReactorDied(d.name.clone())))
    }

    /// Is it to end, while it starts?
    fn is_told_to_end(&self) -> bool {
        let mut events = [EpollEvent::default(); 64];
        let ready = self.epoll.wait(0, &mut events).unwrap_or(0);
        events[..ready].iter().any(|event| event.data() == WAKE)
    }

    /// The turn of whoever wants to change something.
    fn turn(&self) -> Result<MutexGuard<'_, Changes>, HostError> {
        let changes = lock(&self.changes);
        if changes.over { Err(HostError::Ending) } else { Ok(changes) }
    }

    fn read(&self) -> RwLockReadGuard<'_, Registry> {
        self.registry.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write(&self) -> RwLockWriteGuard<'_, Registry> {
        self.registry.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}
