//! What can be changed while it serves: policies, prefetchers, shares.

use super::{Host, ServedDisk, listed};
use crate::config::CacheSize;
use crate::daemon::devices::Device;
use crate::daemon::error::HostError;
use crate::daemon::slots::lock;
use crate::reactor::Message;
use seekway_policy::{prefetchers, schedulers};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

impl Host {
    /// Another policy for one device, or for all and for those to come.
    ///
    /// # Errors
    /// An unknown policy, parameter or device: nothing has changed then.
    pub fn set_policy(&self, spec: &str, device: Option<&str>) -> Result<(), HostError> {
        let _turn = self.turn()?;
        schedulers::build(spec)?;
        self.tell_devices(device, |reply| Ok(Message::SetPolicy(spec.to_string(), reply)))?;
        if device.is_none() {
            *lock(&self.policy) = Some(spec.to_string());
        }
        Ok(())
    }

    /// Another prefetcher for one device, or for all and for those to come.
    ///
    /// # Errors
    /// An unknown prefetcher, parameter or device, or no cache to fetch into:
    /// nothing has changed then.
    pub fn set_prefetcher(&self, spec: &str, device: Option<&str>) -> Result<(), HostError> {
        let _turn = self.turn()?;
        let build = || prefetchers::build(spec).map_err(HostError::Prefetcher);
        build()?;
        if self.config.cache_size() == CacheSize::Off {
            return Err(HostError::NoCache);
        }
        self.tell_devices(device, |reply| {
            Ok(Message::SetPrefetcher(spec.to_string(), build()?, reply))
        })?;
        if device.is_none() {
            *lock(&self.prefetcher) = spec.to_string();
        }
        Ok(())
    }

    /// Tell one device, or all, and see that it is done.
    fn tell_devices(
        &self,
        device: Option<&str>,
        message: impl Fn(SyncSender<Result<(), String>>) -> Result<Message, HostError>,
    ) -> Result<(), HostError> {
        let devices = self.devices();
        let chosen: Vec<_> = match device {
            Some(name) => vec![find_device(&devices, name)?],
            None => devices,
        };
        for device in chosen {
            let (reply, answer) = sync_channel(1);
            device.handle().send(message(reply)?);
            let answer = answer.recv().map_err(|_| HostError::ReactorDied(device.name.clone()))?;
            answer.map_err(|e| HostError::Reactor(device.name.clone(), e))?;
        }
        Ok(())
    }

    /// Another share for a disk.
    ///
    /// # Errors
    /// An unknown name.
    pub fn set_weight(&self, name: &str, weight: NonZeroU32) -> Result<(), HostError> {
        let _turn = self.turn()?;
        set_weight(&*self.disk(name)?, weight)
    }
}

/// Another share for a disk.
pub(super) fn set_weight(disk: &ServedDisk, weight: NonZeroU32) -> Result<(), HostError> {
    let ask = |reply| Message::SetWeight(disk.id, weight, reply);
    disk.device.ask(ask)?.map_err(|e| HostError::Disk(disk.config.name.clone(), e))
}

fn find_device(devices: &[Arc<Device>], name: &str) -> Result<Arc<Device>, HostError> {
    let found = devices.iter().find(|d| d.name == name).cloned();
    found.ok_or_else(|| HostError::NoDevice {
        name: name.escape_debug().take(100).collect(),
        there: listed(devices.iter().map(|d| d.name.as_str())),
    })
}
