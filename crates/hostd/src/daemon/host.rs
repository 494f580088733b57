//! What is served: devices, disks, their sockets; and how that changes while
//! it runs. Shared by the control thread and by whoever talks to a client.
//!
//! Changes take turns (`changes`); looking something up never waits for one,
//! and nobody waits for a reactor with the registry locked.

mod cache;
mod limits;
mod resize;
mod settings;
mod tls;

use cache::Caches;
pub use tls::check_tls;

use super::devices::Device;
use super::error::HostError;
use super::served::{ServedDisk, ServedSocket, Service};
use super::slots::{ConnectionSlots, lock};
use super::sockets::{self, Listener, SocketError};
use super::start::{StartOptions, Stopper, VhostAt};
use crate::config::{Config, DISKS_MAX, DiskConfig};
use crate::images::fault::Fault;
use crate::images::{Image, ImageError, OpenOptions};
use crate::log::say;
use crate::reactor::{Disk, Message, Status};
use seekway_policy::stack::limit::{GroupName, Limits as RateLimits};
use seekway_policy::units::Lba;
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::{Duration, Instant};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

/// Most connections at once, at the sockets of disks together; and as many at
/// the address of all disks.
const CONNECTIONS_MAX: usize = 1024;
/// Most connections of one disk at once.
const CONNECTIONS_DISK_MAX: usize = 64;
/// Most clients of the control socket, and as many of metrics, at once.
pub(super) const CLIENTS_MAX: usize = 64;

/// How long to wait for the lock of an image, and how often to look.
const LOCKED_PATIENCE: Duration = Duration::from_secs(2);
const LOCKED_PAUSE: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Registry {
    devices: Vec<Arc<Device>>,
    disks: BTreeMap<String, Arc<ServedDisk>>,
    /// By the token that epoll gives back; 0 is not one of them.
    listeners: BTreeMap<u64, Arc<ServedSocket>>,
    last_token: u64,
}

/// Held by whoever changes what is served.
#[derive(Default)]
struct Changes {
    /// The daemon ends: a socket that was made now would stay behind.
    over: bool,
}

/// Where a disk that was attached can be reached.
#[derive(Clone, Debug)]
pub struct Attached {
    pub capacity_bytes: u64,
    /// Its sockets, as clients name them.
    pub sockets: Vec<String>,
    /// What the operator should know of its image.
    pub warnings: Vec<String>,
}

/// What is served. See the module's text.
pub struct Host {
    config: Config,
    epoll: Epoll,
    stopper: Stopper,
    /// When it was started.
    pub started: Instant,
    /// Connections at the sockets of disks.
    pub(super) connections: Arc<ConnectionSlots>,
    /// Those at the NBD address of all disks. Apart: anybody may come there and
    /// say nothing, and VMMs must find room all the same.
    pub(super) nbd_connections: Arc<ConnectionSlots>,
    /// Clients of the control socket.
    pub(super) clients: Arc<ConnectionSlots>,
    /// Clients of metrics. Apart: they come over the network, and whoever
    /// manages the daemon must find room whatever they do.
    pub(super) scrapers: Arc<ConnectionSlots>,
    registry: RwLock<Registry>,
    changes: Mutex<Changes>,
    /// For devices to come; the configuration's, until it is changed for all.
    policy: Mutex<Option<String>>,
    /// The same of the prefetcher; says nothing without a cache.
    prefetcher: Mutex<String>,
    caches: Mutex<Caches>,
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
        config: Config,
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
        let stopper = stopper.duplicate().map_err(|e| HostError::System("descriptor", e))?;
        let host = Arc::new_cyclic(|me| Host {
            me: Weak::clone(me),
            caches: Mutex::new(Caches::new(&config)),
            policy: Mutex::new(config.policy.clone()),
            prefetcher: Mutex::new(config.prefetcher().to_string()),
            groups: Mutex::new(config.groups.iter().map(|g| (g.name.clone(), g.limits)).collect()),
            config,
            epoll,
            stopper,
            started: Instant::now(),
            connections: ConnectionSlots::new(CONNECTIONS_MAX),
            nbd_connections: ConnectionSlots::new(CONNECTIONS_MAX),
            clients: ConnectionSlots::new(CLIENTS_MAX),
            scrapers: ConnectionSlots::new(CLIENTS_MAX),
            registry: RwLock::default(),
            changes: Mutex::default(),
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
        for disk in &self.config.disks {
            self.attach(disk)?;
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
        ] {
            if let Some(listener) = self.take_inherited(&[name]) {
                self.listen(kind, listener)?;
            } else if let Some(address) = address {
                self.listen(kind, Listener::tcp(address)?)?;
            }
        }
        match lock(&self.inherited).keys().next() {
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
        let mut registry = self.write();
        registry.last_token += 1;
        let token = registry.last_token;
        let event = EpollEvent::new(EventSet::IN, token);
        let fd = listener.as_raw_fd();
        registry.listeners.insert(token, Arc::new(ServedSocket { service, listener }));
        let added = self.epoll.ctl(ControlOperation::Add, fd, event);
        added.map_err(|e| HostError::System("epoll", e))
    }

    /// Serve one more disk.
    ///
    /// # Errors
    /// Name or options, image, sockets, and what the device's reactor says.
    /// Nothing of the disk is left then.
    pub fn attach(&self, asked: &DiskConfig) -> Result<Attached, HostError> {
        let _turn = self.turn()?;
        let name = &asked.name;
        let wrong = |text: String| HostError::Disk(name.clone(), text);
        asked.check().map_err(wrong)?;
        if self.read().disks.contains_key(name) {
            return Err(wrong("is there already; detach it or choose another name".into()));
        }
        if self.read().disks.len() >= DISKS_MAX {
            return Err(wrong(format!("{DISKS_MAX} disks are served, and that is the most")));
        }
        let fault = asked.fault.as_deref().map(Fault::parse).transpose();
        let fault = fault.map_err(|e| wrong(format!("fault: {e}")))?;
        let options = OpenOptions {
            read_only: asked.read_only,
            direct: !asked.buffered,
            accept_lost_writes: asked.accept_lost_writes,
        };
        let image = open_image(asked, &options)?;
        let warnings = image.warnings().clone();
        let (limits, is_block) = (*image.limits(), image.is_block());
        let (is_direct, reads_device) = (image.is_direct(), image.reads_device());
        let file = image.file().try_clone().map_err(|e| HostError::System("descriptor", e))?;
        if let Some(group) = &asked.limits.group {
            self.may_join(name, self.device_number(&image), group).map_err(wrong)?;
        }
        let sockets = self.disk_sockets(name)?;
        let device = self.device_of(&image)?;
        // Others would wait behind what is measured, and make it too low.
        let idle = !self.read().disks.values().any(|d| Arc::ptr_eq(&d.device, &device));
        let bandwidth_bytes_per_s = idle.then(|| device.measure(&image)).flatten();
        let disk = Box::new(Disk {
            name: name.clone(),
            image,
            weight: asked.weight,
            limits: asked.limits.clone(),
            lba: asked.lba.map(Lba::new),
            fault,
            // What is in the host's memory already it need not have again, unless asked for.
            cached: asked.cache && (reads_device || !self.is_cache_auto()),
            bandwidth_bytes_per_s,
        });
        let answer = device.handle().ask(|reply| Message::AttachDisk(disk, reply));
        let id = answer.ok_or_else(|| HostError::ReactorDied(device.name.clone()))?;
        let disk = Arc::new(ServedDisk {
            config: asked.clone(),
            id: id.map_err(wrong)?,
            device,
            is_block,
            is_direct,
            connections: ConnectionSlots::new(CONNECTIONS_DISK_MAX),
            config_changed: Arc::default(),
            warnings,
            rate_limits: Mutex::new(asked.limits.clone()),
            limits: Arc::new(Mutex::new(limits)),
            file: Mutex::new(Some(file)),
        });

        self.write().disks.insert(name.clone(), disk.clone());
        let warnings = disk.warnings.all();
        warnings.iter().for_each(|warning| say(&format!("{name}: {warning}")));
        let addresses = sockets.iter().map(|(_, listener)| listener.address()).collect();
        for (vhost, listener) in sockets {
            let disk = disk.clone();
            self.listen(if vhost { Service::Vhost(disk) } else { Service::NbdOf(disk) }, listener)?;
        }
        Ok(Attached { capacity_bytes: limits.capacity_bytes, sockets: addresses, warnings })
    }

    /// The sockets of a disk: is it that of vhost-user?
    fn disk_sockets(&self, name: &str) -> Result<Vec<(bool, Listener)>, SocketError> {
        let mut sockets = Vec::new();
        for (kind, vhost) in [("vhost", true), ("nbd", false)] {
            let file = format!("{name}.{kind}");
            match (self.take_inherited(&[&file]), &self.config.listen) {
                (Some(listener), _) => sockets.push((vhost, listener)),
                (None, Some(folder)) => sockets.push((vhost, Listener::unix(&folder.join(file))?)),
                (None, None) => {}
            }
        }
        Ok(sockets)
    }

    /// Major and minor number of the device that an image lies on; `None` when all
    /// lie on the emulated one.
    fn device_number(&self, image: &Image) -> Option<(u32, u32)> {
        self.config.emulate.is_none().then(|| image.device())
    }

    /// The device that an image lies on, with its reactor; started when it is
    /// the first.
    fn device_of(&self, image: &Image) -> Result<Arc<Device>, HostError> {
        let number = self.device_number(image);
        let known = self.read().devices.iter().find(|d| d.number == number).cloned();
        if let Some(device) = known {
            return Ok(device);
        }
        let policy = lock(&self.policy).clone();
        let prefetcher = lock(&self.prefetcher).clone();
        let cache = self.cache_setup(prefetcher, self.devices().len());
        let groups = self.groups();
        let policy = policy.as_deref();
        let device = Device::start(&self.config, policy, cache, groups, image, &self.stopper)?;
        self.write().devices.push(device.clone());
        self.divide_cache(&self.devices());
        Ok(device)
    }

    /// Stop serving a disk: its sockets go, what is outstanding is carried out,
    /// and the image is closed.
    ///
    /// # Errors
    /// An unknown name; or what the reactor says.
    pub fn detach(&self, name: &str) -> Result<(), HostError> {
        let _turn = self.turn()?;
        let disk = self.disk(name)?;
        {
            let mut registry = self.write();
            registry.disks.remove(name);
            registry.listeners.retain(|_, served| !served.service.is_of(&disk));
        }
        // Its number may be another disk's afterwards: nobody may be left who
        // could open a port by it.
        disk.connections.close();
        disk.connections.wait_empty();
        lock(&disk.file).take(); // holds the lock of the image too
        let answer = disk.device.handle().ask(|reply| Message::DetachDisk(disk.id, reply));
        let answer = answer.ok_or_else(|| HostError::ReactorDied(disk.device.name.clone()))?;
        answer.map_err(|e| HostError::Disk(name.into(), e))
    }

    /// How all devices stand. One whose reactor has ended is left out.
    pub fn statuses(&self) -> Vec<(Arc<Device>, Status)> {
        self.devices().into_iter().filter_map(|d| d.status().map(|s| (d, s))).collect()
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

    /// TLS for NBD.
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
        self.write().listeners.clear();
        self.end_caches();
        let devices = self.devices();
        devices.iter().for_each(|device| device.end());
        devices.iter().for_each(|device| device.join());
        // Not before: clients get the replies to what was outstanding.
        self.disks().iter().for_each(|disk| disk.connections.close());
        let died = devices.iter().find(|d| d.died.load(Ordering::SeqCst));
        died.map_or(Ok(()), |d| Err(HostError::ReactorDied(d.name.clone())))
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

/// Open an image. What a daemon that was killed had in flight keeps its files
/// open, and locked, until the kernel has done with it: that takes a moment.
fn open_image(asked: &DiskConfig, options: &OpenOptions) -> Result<Image, HostError> {
    let began = Instant::now();
    loop {
        match Image::open(&asked.path, options) {
            Err(ImageError::Locked { .. }) if began.elapsed() < LOCKED_PATIENCE => {
                std::thread::sleep(LOCKED_PAUSE);
            }
            opened => return opened.map_err(|e| HostError::Image(asked.name.clone(), e)),
        }
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}
