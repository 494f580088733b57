//! The served devices, disks and sockets; and the changes to them at run time. Shared by the
//! control thread and by the threads of connections.
//!
//! Changes of settings take turns (`changes`): they are sent to the reactors in the same order, and
//! the answers are waited for afterwards. Who attaches, detaches or resizes a disk claims its name
//! ([`changes`]), and others go on meanwhile: its device may hang. Looking something up never waits
//! for a change, and nobody waits for a reactor with something locked that others need.
//!
//! **The order of locks.** Whoever holds one takes only those of later steps, and never two of one
//! step:
//!
//! 1. the turn ([`Host::turn`]), or a device's start (in [`Registry::device_of`]), or a change of
//!    the caches' size ([`Host::set_cache`]);
//! 2. how large the caches are (in [`cache`]);
//! 3. [`Registry`], [`Settings`], [`Listeners`], [`FailedDisks`]: each lock is private to its file,
//!    and what holds it calls nothing of the others;
//! 4. a disk's own ([`ServedDisk`]): `taking`, then `file`, then `users`; its others alone.

mod attach;
mod cache;
mod changes;
mod devices;
mod error;
mod failed;
mod handover;
mod losses;
mod memory;
mod retries;
mod served;
mod settings;
mod slots;
mod sockets;
mod start;

pub use attach::Attached;
pub use changes::{FREEZE_MAX, Pending};
pub use devices::{Device, POLICY_DEFAULT};
pub use error::HostError;
pub use failed::FailedDisk;
pub(crate) use handover::Used;
pub(crate) use memory::MemorySource;
pub use served::ServedDisk;
pub(crate) use served::{Service, WAKE};
pub(crate) use slots::{CLIENTS_MAX, ConnectionSlot, ConnectionSlots};
pub use sockets::{Inherited, Listener, PATH_BYTES_MAX, SocketError, inherit};
pub(crate) use sockets::{connect_at_once, keep_alive};
pub use start::{StartOptions, Stopper, VhostAt, check_tls};

use crate::config::Config;
use crate::reactor::Status;
use crate::threads::lock;
use crate::{log, sandbox};
use cache::Caches;
use changes::Changes;
use failed::FailedDisks;
use losses::Losses;
use served::{Listeners, Registry};
use settings::Settings;
use slots::DaemonSlots;
use start::Confinement;
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};
use vmm_sys_util::epoll::Epoll;

/// Longest wait of a status request for devices whose disks hang.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);

/// Everything that is served. See the module's text.
pub struct Host {
    config: Config,
    stopper: Stopper,
    /// When it was started.
    pub started: Instant,
    pub(crate) slots: DaemonSlots,
    pub(crate) listeners: Listeners,
    pub(crate) confinement: Confinement,
    registry: Registry,
    settings: Settings,
    caches: Caches,
    failed: FailedDisks,
    changes: Mutex<Changes>,
    /// Marks images of which a sync has failed.
    losses: Arc<Losses>,
    tls: Option<Arc<rustls::ServerConfig>>,
    /// Metrics as text, for those who scrape.
    pub(crate) recent_metrics: Recent<String>,
    /// For threads that outlive who starts them.
    me: Weak<Host>,
}

impl Host {
    pub(crate) fn start(
        mut config: Config,
        options: StartOptions,
        epoll: Epoll,
        stopper: &Stopper,
    ) -> Result<Arc<Host>, HostError> {
        if options.vhost.is_some() && config.disks.len() != 1 {
            return Err(HostError::NotOneDisk(config.disks.len()));
        }
        let tls = start::server_config(&config)?;
        if let Some(folder) = &config.listen {
            sockets::make_folder(folder)?;
        }
        // Disks may come later, when no names of users can be looked up.
        config.sockets = config.sockets.numbered();
        config.disks.iter_mut().for_each(|disk| disk.sockets = disk.sockets.numbered());
        if config.unconfined {
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
            confinement: Confinement::new(&config, options.vhost.as_ref(), &memory),
            losses,
            caches: Caches::new(&config, memory),
            settings: Settings::new(&config),
            config,
            stopper,
            started: Instant::now(),
            slots: DaemonSlots::new(),
            listeners: Listeners::new(epoll, options.sockets),
            registry: Registry::default(),
            failed: FailedDisks::default(),
            changes: Mutex::default(),
            tls,
            recent_metrics: Recent::default(),
        });
        let served = host.start_caches().and_then(|()| host.open_all(options.vhost));
        if let Err(e) = served {
            let _ = host.end(); // the first error is the one to tell
            return Err(e);
        }
        Ok(host)
    }

    fn open_all(&self, vhost: Option<VhostAt>) -> Result<(), HostError> {
        // The control socket first: that of a running daemon is the best way to
        // notice it.
        let control = self.listeners.take_inherited(&["control", "control.sock"]);
        let control = match (control, self.config.control_path()) {
            (None, Some(path)) => Some(Listener::unix(&path)?),
            (inherited, _) => inherited,
        };
        control.map_or(Ok(()), |listener| self.listeners.add(Service::Control, listener))?;
        self.attach_all(vhost.is_some())?;
        if self.listeners.is_told_to_end() {
            return Ok(());
        }
        if let (Some(at), Some(disk)) = (vhost, self.disks().pop()) {
            let listener = match at {
                VhostAt::Path(path) => Some(Listener::unix(&path)?),
                VhostAt::Listener(listener) => Some(listener),
                VhostAt::Connected(stream) => {
                    self.listeners.connect(stream);
                    None
                }
            };
            let listen = |listener| self.listeners.add(Service::Vhost(disk), listener);
            listener.map_or(Ok(()), listen)?;
        }
        for (name, address, kind) in [
            ("nbd", self.config.nbd, Service::Nbd),
            ("metrics", self.config.metrics, Service::Metrics),
            ("web", self.config.web, Service::Web),
        ] {
            if let Some(listener) = self.listeners.take_inherited(&[name]) {
                self.listeners.add(kind, listener)?;
            } else if let Some(address) = address {
                self.listeners.add(kind, Listener::tcp(address)?)?;
            }
        }
        // Those of a disk that is not served yet wait for it, with whoever connects meanwhile.
        let waits = |name: &String| {
            name.rsplit_once('.').is_some_and(|(disk, kind)| {
                self.failed.get(disk).is_some() && matches!(kind, "vhost" | "nbd")
            })
        };
        match self.listeners.inherited().into_iter().find(|name| !waits(name)) {
            Some(name) => Err(HostError::Leftover(name)),
            None => Ok(()),
        }
    }

    /// Status of all devices. One whose reactor has ended is left out.
    pub fn statuses(&self) -> Vec<(Arc<Device>, Status)> {
        self.ask_statuses().0
    }

    /// As [`Host::statuses`], and the names of devices that do not answer: their reactors wait for
    /// their disks.
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

    /// Where a disk, or with `None` the whole daemon, can be reached.
    pub fn addresses(&self, disk: Option<&ServedDisk>) -> Vec<(&'static str, String)> {
        self.listeners.addresses(disk)
    }

    /// The configuration that it was started with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Configuration of NBD's TLS sessions; `None` without certificates.
    pub(crate) fn tls(&self) -> Option<&Arc<rustls::ServerConfig>> {
        self.tls.as_ref()
    }

    /// All disks, by name.
    pub fn disks(&self) -> Vec<Arc<ServedDisk>> {
        self.registry.disks()
    }

    /// All devices, in the order in which they came.
    pub fn devices(&self) -> Vec<Arc<Device>> {
        self.registry.devices()
    }

    /// A disk by name.
    ///
    /// # Errors
    /// [`HostError::NoDisk`].
    pub fn disk(&self, name: &str) -> Result<Arc<ServedDisk>, HostError> {
        self.registry.disk(name)
    }

    /// Accept nothing any more, and let the reactors end.
    pub(crate) fn end(&self) -> Result<(), HostError> {
        let mut changes = lock(&self.changes);
        changes.end();
        self.failed.end_background();
        self.listeners.end();
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

    /// The turn of whoever wants to change something.
    fn turn(&self) -> Result<MutexGuard<'_, Changes>, HostError> {
        let changes = lock(&self.changes);
        if changes.is_over() { Err(HostError::Ending) } else { Ok(changes) }
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// A name that somebody gave, as an error repeats it.
fn shown(name: &str) -> String {
    name.escape_debug().take(100).collect()
}

// Answers that several share: however many ask, the work is done once a second.

/// Age up to which an answer is shared.
const RECENT: Duration = Duration::from_secs(1);

/// The last answer, for those who ask again soon after.
pub(crate) struct Recent<T>(Mutex<Option<(Instant, Arc<T>)>>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Recent(Mutex::new(None))
    }
}

impl<T> Recent<T> {
    /// The last answer if it is recent at `now`, else a new one, for which others wait meanwhile.
    pub fn get(&self, now: Instant, ask: impl FnOnce() -> T) -> Arc<T> {
        let mut last = lock(&self.0);
        match &*last {
            Some((at, answer)) if now.saturating_duration_since(*at) < RECENT => answer.clone(),
            _ => last.insert((now, Arc::new(ask()))).1.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrapes_share_an_answer_for_a_second() {
        let (recent, asked) = (Recent::default(), std::cell::Cell::new(0));
        let ask = || {
            asked.set(asked.get() + 1);
            asked.get()
        };
        let start = Instant::now();
        for (after_ms, expected) in [(0, 1), (500, 1), (999, 1), (1_000, 2), (1_999, 2), (5_000, 3)]
        {
            let now = start + Duration::from_millis(after_ms);
            assert_eq!(*recent.get(now, ask), expected, "after {after_ms} ms");
        }
    }
}
