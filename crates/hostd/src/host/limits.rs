//! Rate limits of disks and groups while they are served.

use super::Host;
use super::devices::{kernel_name, patience};
use super::error::HostError;
use super::settings::settled;
use crate::reactor::Message;
use crate::threads::lock;
use seekway_stack::stack::limit::{DiskLimits, GroupName, Limits};

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
