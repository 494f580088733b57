//! A program of the host that guests run: it reaches them as the content of a
//! read-only disk.

use crate::error::{At, Result};
use crate::guest::Guest;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// To copy a program of some 100 MB, debug information and all.
const PATIENCE: Duration = Duration::from_secs(180);

/// A program, laid out as a disk.
#[derive(Clone, Debug)]
pub struct Shipped {
    name: String,
    disk: PathBuf,
}

impl Shipped {
    /// Lay `program` out in `dir`. It will be `/usr/bin/NAME` in guests; a name
    /// has at most 20 letters, digits and dashes (a disk's serial number).
    ///
    /// # Errors
    /// It cannot be copied.
    pub fn new(program: &Path, name: &str, dir: &Path) -> Result<Shipped> {
        let disk = dir.join(format!("{name}.program"));
        let bytes = std::fs::copy(program, &disk).at("copy", program)?;
        let file = File::options().write(true).open(&disk).at("open", &disk)?;
        // A disk's size is a number of sectors.
        file.set_len(bytes.next_multiple_of(4096)).at("size", &disk)?;
        Ok(Shipped { name: name.into(), disk })
    }

    /// For [`GuestSpec::extra`](crate::GuestSpec::extra). The disk's letter
    /// comes after those of the guest's own disks.
    pub fn args(&self) -> [String; 4] {
        let (name, file) = (&self.name, self.disk.display().to_string().replace(',', ",,"));
        let drive =
            format!("file={file},format=raw,if=none,id={name},readonly=on,file.locking=off");
        let device = format!("virtio-blk-pci,drive={name},serial={name}");
        ["-drive".into(), drive, "-device".into(), device]
    }

    /// Copy it from its disk into the guest's memory.
    ///
    /// # Errors
    /// The guest has no such disk, or no memory.
    pub fn install(&self, guest: &mut Guest) -> Result<()> {
        let name = &self.name;
        let command = format!(
            "for d in /sys/block/vd*; do \
             if [ \"$(cat $d/serial)\" = {name} ]; then disk=/dev/${{d##*/}}; fi; done; \
             cat $disk >/usr/bin/{name} && chmod +x /usr/bin/{name} && {name} --version"
        );
        guest.check(&command, PATIENCE).map(drop)
    }
}
