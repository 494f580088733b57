//! A disk that is served, and the sockets at which disks and the daemon are.

use super::devices::Device;
use super::error::HostError;
use super::losses::Losses;
use super::places::DiskPlaces;
use super::sockets::Listener;
use crate::config::DiskConfig;
use crate::frontends::nbd::DiskMemory;
use crate::frontends::vhost_user::ConfigListeners;
use crate::images::{Image, Limits, Users, Warnings};
use crate::port::DiskId;
use crate::reactor::Message;
use crate::threads::lock;
use seekway_stack::stack::limit::DiskLimits;
use std::fs::File;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};

/// A disk that is served.
pub struct ServedDisk {
    /// As it was asked for; [`ServedDisk::rate_limits`] has later changes of limits.
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
    /// By which all daemons know its image.
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
    /// What that says of the disk, or that it has ended.
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
