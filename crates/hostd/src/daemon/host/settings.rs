//! What can be changed while it serves: policies, prefetchers, shares.

use super::{Host, ServedDisk, listed};
use crate::config::CacheSize;
use crate::daemon::devices::{Device, patience};
use crate::daemon::error::HostError;
use crate::daemon::slots::lock;
use crate::reactor::Message;
use seekway_policy::{prefetchers, schedulers};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

impl Host {
    /// Another policy for one device, or for all and for those to come.
    ///
    /// # Errors
    /// An unknown policy, parameter or device: nothing has changed then.
    pub fn set_policy(&self, spec: &str, device: Option<&str>) -> Result<(), HostError> {
        let turn = self.turn()?;
        schedulers::build(spec)?;
        let told =
            self.tell_devices(device, |reply| Ok(Message::SetPolicy(spec.to_string(), reply)))?;
        if device.is_none() {
            *lock(&self.policy) = Some(spec.to_string());
        }
        drop(turn);
        told.wait()
    }

    /// Another prefetcher for one device, or for all and for those to come.
    ///
    /// # Errors
    /// An unknown prefetcher, parameter or device, or no cache to fetch into:
    /// nothing has changed then.
    pub fn set_prefetcher(&self, spec: &str, device: Option<&str>) -> Result<(), HostError> {
        let turn = self.turn()?;
        let build = || prefetchers::build(spec).map_err(HostError::Prefetcher);
        build()?;
        if self.config.cache_size() == CacheSize::Off {
            return Err(HostError::NoCache);
        }
        let told = self.tell_devices(device, |reply| {
            Ok(Message::SetPrefetcher(spec.to_string(), build()?, reply))
        })?;
        if device.is_none() {
            *lock(&self.prefetcher) = spec.to_string();
        }
        drop(turn);
        told.wait()
    }

    /// Tell one device, or all.
    fn tell_devices(
        &self,
        device: Option<&str>,
        message: impl Fn(SyncSender<Result<(), String>>) -> Result<Message, HostError>,
    ) -> Result<Told, HostError> {
        let devices = self.devices();
        let chosen: Vec<_> = match device {
            Some(name) => vec![find_device(&devices, name)?],
            None => devices,
        };
        let tell = |device: Arc<Device>| {
            let (reply, answer) = sync_channel(1);
            device.handle().send(message(reply)?);
            Ok((device, answer))
        };
        Ok(Told(chosen.into_iter().map(tell).collect::<Result<_, HostError>>()?))
    }

    /// Another share for a disk.
    ///
    /// # Errors
    /// An unknown name.
    pub fn set_weight(&self, name: &str, weight: NonZeroU32) -> Result<(), HostError> {
        let turn = self.turn()?;
        let disk = self.disk(name)?;
        let told = disk.device.request(|reply| Message::SetWeight(disk.id, weight, reply));
        drop(turn);
        settled(&disk, &told, patience())
    }
}

/// Where a reactor's answer to a setting comes.
type Answer = Receiver<Result<(), String>>;

/// What a reactor says to a setting of a disk.
pub(super) fn settled(disk: &ServedDisk, told: &Answer, until: Instant) -> Result<(), HostError> {
    let answer = disk.device.reply(told, until)?;
    answer.map_err(|e| HostError::Disk(disk.config.name.clone(), e))
}

/// Devices that were told a setting, and where their answers come.
struct Told(Vec<(Arc<Device>, Answer)>);

impl Told {
    /// Wait until all have it. The settings are no longer locked meanwhile: a device may hang.
    ///
    /// # Errors
    /// The first device's that refuses or does not answer. The others have the setting.
    fn wait(self) -> Result<(), HostError> {
        let (until, mut result) = (patience(), Ok(()));
        for (device, answer) in self.0 {
            let refused = |e| HostError::Reactor(device.name.clone(), e);
            result = result.and(device.reply(&answer, until).and_then(|a| a.map_err(refused)));
        }
        result
    }
}

fn find_device(devices: &[Arc<Device>], name: &str) -> Result<Arc<Device>, HostError> {
    let found = devices.iter().find(|d| d.name == name).cloned();
    found.ok_or_else(|| HostError::NoDevice {
        name: name.escape_debug().take(100).collect(),
        there: listed(devices.iter().map(|d| d.name.as_str())),
    })
}
