//! The devices and disks that are served.

use super::devices::Device;
use super::error::HostError;
use super::served::ServedDisk;
use super::{listed, shown};
use crate::threads::{lock, whole};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

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
