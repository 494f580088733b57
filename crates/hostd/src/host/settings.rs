//! Settings that change while the daemon serves: policies, prefetchers, shares, rate limits; and
//! those for devices to come.

use super::devices::{Device, kernel_name, patience};
use super::error::HostError;
use super::{Host, ServedDisk, listed, shown};
use crate::config::{CacheSize, Config};
use crate::reactor::Message;
use crate::threads::lock;
use seekway_policy::{prefetchers, schedulers};
use seekway_stack::stack::limit::{DiskLimits, GroupName, Limits};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Settings for all devices, those to come included: the configuration's, until they are changed.
pub(super) struct Settings(Mutex<Now>);

struct Now {
    policy: Option<String>,
    /// Says nothing without a cache.
    prefetcher: String,
    groups: BTreeMap<GroupName, Limits>,
}

impl Settings {
    pub fn new(config: &Config) -> Settings {
        Settings(Mutex::new(Now {
            policy: config.policy.clone(),
            prefetcher: config.prefetcher().to_string(),
            groups: config.groups.iter().map(|g| (g.name.clone(), g.limits)).collect(),
        }))
    }

    pub fn policy(&self) -> Option<String> {
        lock(&self.0).policy.clone()
    }

    pub fn prefetcher(&self) -> String {
        lock(&self.0).prefetcher.clone()
    }

    /// By name.
    pub fn groups(&self) -> Vec<(GroupName, Limits)> {
        lock(&self.0).groups.iter().map(|(name, limits)| (name.clone(), *limits)).collect()
    }

    /// # Errors
    /// [`HostError::NoGroup`].
    pub fn set_group(&self, name: &GroupName, limits: Limits) -> Result<(), HostError> {
        self.group(name, |of_group| *of_group = limits)
    }

    /// # Errors
    /// [`HostError::NoGroup`].
    pub fn know_group(&self, name: &GroupName) -> Result<(), HostError> {
        self.group(name, |_| ())
    }

    fn group(&self, name: &GroupName, with: impl FnOnce(&mut Limits)) -> Result<(), HostError> {
        let groups = &mut lock(&self.0).groups;
        match groups.get_mut(name) {
            Some(limits) => {
                with(limits);
                Ok(())
            }
            None => {
                let there = listed(groups.keys().map(GroupName::as_str));
                Err(HostError::NoGroup { name: name.to_string(), there })
            }
        }
    }
}

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
            lock(&self.settings.0).policy = Some(spec.to_string());
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
            lock(&self.settings.0).prefetcher = spec.to_string();
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

/// The reactor's answer to a setting of a disk.
fn settled(disk: &ServedDisk, told: &Answer, until: Instant) -> Result<(), HostError> {
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
        name: shown(name),
        there: listed(devices.iter().map(|d| d.name.as_str())),
    })
}

// Rate limits of disks and groups.

impl Host {
    /// Other limits for a disk, and another group or none, instead of all that it
    /// has. What waits goes on under the new ones. A weight among them is the disk's from now
    /// on; without one it keeps its weight.
    ///
    /// # Errors
    /// An unknown disk or group, or a group whose disks lie on another device:
    /// nothing has changed then.
    pub fn set_limits(&self, name: &str, limits: &DiskLimits) -> Result<(), HostError> {
        let turn = self.turn()?;
        let disk = self.disk(name)?;
        if let Some(group) = &limits.group {
            let joined = self.may_join(name, disk.device.number, group);
            joined.map_err(|e| HostError::Disk(name.into(), e))?;
        }
        let mut limits = limits.clone();
        let weight = limits.limits.weight.take();
        let weighed =
            weight.map(|w| disk.device.request(|reply| Message::SetWeight(disk.id, w, reply)));
        let limited =
            disk.device.request(|reply| Message::SetLimits(disk.id, limits.clone(), reply));
        *lock(&disk.rate_limits) = limits;
        drop(turn);
        let until = patience();
        weighed.map_or(Ok(()), |told| settled(&disk, &told, until))?;
        settled(&disk, &limited, until)
    }

    /// Other limits for a group, instead of all that it has; no limits keep the
    /// group, with its disks.
    ///
    /// # Errors
    /// An unknown group, or a reactor that has ended.
    pub fn set_group_limits(&self, name: &GroupName, limits: &Limits) -> Result<(), HostError> {
        let turn = self.turn()?;
        self.settings.set_group(name, *limits)?;
        let tell = |reply| Message::SetGroup(name.clone(), *limits, reply);
        let told: Vec<_> = self.devices().into_iter().map(|d| (d.request(tell), d)).collect();
        drop(turn);
        let (until, mut result) = (patience(), Ok(()));
        for (answer, device) in told {
            result = result.and(device.reply(&answer, until));
        }
        result
    }

    /// All groups with their limits as they are now, by name.
    pub fn groups(&self) -> Vec<(GroupName, Limits)> {
        self.settings.groups()
    }

    /// May a disk on the device of this number be in a group? Each device keeps the
    /// limits of its own disks: a group on two would get its limits twice.
    pub(super) fn may_join(
        &self,
        disk: &str,
        device: Option<(u32, u32)>,
        group: &GroupName,
    ) -> Result<(), String> {
        self.settings.know_group(group).map_err(|e| e.to_string())?;
        let is_elsewhere = |d: &super::ServedDisk| {
            d.config.name != disk
                && d.device.number != device
                && d.rate_limits().group.as_ref() == Some(group)
        };
        let Some(other) = self.disks().into_iter().find(|d| is_elsewhere(d)) else {
            return Ok(());
        };
        let here = device.map_or("another device".to_string(), kernel_name);
        let (other, there) = (&other.config.name, &other.device.name);
        Err(format!(
            "group '{group}' has disk {other} on {there}, and this disk lies on {here}: limits of a \
             group hold for disks of one device; make a group for each device"
        ))
    }
}
