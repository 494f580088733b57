//! Disks get another size while they are served.

use super::{Host, HostError, ServedDisk, lock};
use crate::reactor::Message;

impl Host {
    /// Give a disk another size: that of its image as it is now, or `size_bytes`,
    /// to which a regular file is made first. Making one smaller loses what lies
    /// beyond, and has to be asked for by `shrink`.
    ///
    /// # Errors
    /// An unknown name, a size that cannot be, or what the file system says.
    pub fn resize(
        &self,
        name: &str,
        size_bytes: Option<u64>,
        shrink: bool,
    ) -> Result<u64, HostError> {
        let _turn = self.turn()?;
        let disk = self.disk(name)?;
        if let Some(size) = size_bytes {
            make_size(&disk, size, shrink).map_err(|e| HostError::Disk(name.into(), e))?;
        }
        let answer = disk.device.handle().ask(|reply| Message::Resize(disk.id, reply));
        let answer = answer.ok_or_else(|| HostError::ReactorDied(disk.device.name.clone()))?;
        let capacity_bytes = answer.map_err(|e| HostError::Disk(name.into(), e))?;
        lock(&disk.limits).capacity_bytes = capacity_bytes;
        disk.config_changed.notify();
        Ok(capacity_bytes)
    }
}

/// Make the image of a disk so large.
fn make_size(disk: &ServedDisk, size_bytes: u64, shrink: bool) -> Result<(), String> {
    let limits = disk.limits();
    let unit = u64::from(limits.align_bytes.max(limits.logical_block_bytes)).max(512);
    if disk.is_block {
        return Err("a block device cannot be resized from here; resize it and give no size".into());
    }
    if limits.read_only {
        return Err("is read-only and cannot be resized".into());
    }
    if size_bytes == 0 || !size_bytes.is_multiple_of(unit) {
        return Err(format!("{size_bytes} bytes: expected a multiple of {unit}, not 0"));
    }
    if size_bytes < limits.capacity_bytes && !shrink {
        return Err(format!(
            "has {} bytes: {size_bytes} would lose what lies beyond; say --shrink \
             (\"shrink\": true) if that is wanted",
            limits.capacity_bytes
        ));
    }
    match &*lock(&disk.file) {
        Some(file) => {
            file.set_len(size_bytes).map_err(|e| format!("{}: {e}", disk.config.path.display()))
        }
        None => Err("is being detached".into()),
    }
}
