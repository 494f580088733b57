//! Disks get another size while they are served.

use super::Host;
use super::change::Change;
use super::changes::Claim;
use super::error::HostError;
use super::served::ServedDisk;
use crate::reactor::Message;
use crate::threads::lock;

impl Host {
    /// Give a disk another size: that of its image as it is now, or `size_bytes`,
    /// to which a regular file is made first. A smaller disk loses what lies beyond, also where
    /// the image has shrunk by itself, and has to be asked for by `shrink`.
    ///
    /// # Errors
    /// An unknown name, a size that cannot be, what the file system says, or a device that does not
    /// answer: nothing has changed then, unless the error is [`HostError::Pending`].
    pub fn resize(
        &self,
        name: &str,
        size_bytes: Option<u64>,
        shrink: bool,
    ) -> Result<u64, HostError> {
        let disk = name.to_string();
        self.change(name, Change::Resize, move |host, claim| {
            host.resize_claimed(claim, &disk, size_bytes, shrink)
        })
    }

    /// As [`Host::resize`], for the owner of the claim.
    fn resize_claimed(
        &self,
        claim: &Claim,
        name: &str,
        size_bytes: Option<u64>,
        shrink: bool,
    ) -> Result<u64, HostError> {
        let disk = self.disk(name)?;
        claim.lies_on(&disk.device);
        disk.device.must_answer(name)?;
        let wrong = |text| HostError::Disk(name.into(), text);
        let grown_from = match size_bytes {
            Some(size) => make_size(&disk, size, shrink).map_err(wrong)?,
            None => None,
        };
        let answer = disk.device.ask(|reply| Message::Resize(disk.id, shrink, reply))?;
        let capacity_bytes = answer.map_err(|text| match grown_from {
            Some(before_bytes) => wrong(shrink_back(&disk, before_bytes, text)),
            None => wrong(text),
        })?;
        lock(&disk.limits).capacity_bytes = capacity_bytes;
        disk.config_changed.notify();
        Ok(capacity_bytes)
    }
}

/// Make the image of a disk so large. What it had, in bytes, if it has grown.
fn make_size(disk: &ServedDisk, size_bytes: u64, shrink: bool) -> Result<Option<u64>, String> {
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
    let failed = |e| format!("{}: {e}", disk.config.path.display());
    let file = lock(&disk.file);
    let Some(file) = &*file else { return Err("is being detached".into()) };
    // It is handed over by whoever has the file locked.
    if disk.is_elsewhere() {
        return Err("cannot be resized here: another daemon has its image".into());
    }
    let before_bytes = file.metadata().map_err(failed)?.len();
    file.set_len(size_bytes).map_err(failed)?;
    Ok((before_bytes < size_bytes).then_some(before_bytes))
}

/// The reactor refused the new size, as `text` says: the file gets back the one
/// that it had, or the disk would have the refused one when it is served again.
/// No guest has seen what is cut off.
fn shrink_back(disk: &ServedDisk, before_bytes: u64, text: String) -> String {
    let file = lock(&disk.file);
    // What another daemon has by now stays as it is.
    match file.as_ref().filter(|_| !disk.is_elsewhere()).map(|file| file.set_len(before_bytes)) {
        Some(Err(e)) => {
            format!("{text}; {} stays larger all the same: {e}", disk.config.path.display())
        }
        _ => text,
    }
}
