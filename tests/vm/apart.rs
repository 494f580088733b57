//! A guest without the daemon: it has the agent, and a disk of QEMU's own to read from.

use seekway_live::{Guest, GuestImage, GuestSpec, Kernel, Result, Shipped};
use std::fs::File;
use std::path::Path;
use tempfile::TempDir;

const DISK_BYTES: u64 = 64 << 20;

/// In a guest's shell: `$disk` is its disk, which has this serial number.
pub const FIND_DISK: &str =
    "for d in /sys/block/vd*; do [ \"$(cat $d/serial)\" = apart ] && disk=/dev/${d##*/}; done\n";

/// Boot a kernel. The folder has the disk.
pub fn boot(kernel: Kernel, agent: &Path, spec: GuestSpec) -> Result<(Guest, TempDir)> {
    let image = GuestImage::prepare_with(kernel)?;
    let dir = tempfile::tempdir().expect("a directory");
    let disk = dir.path().join("disk.img");
    File::create(&disk).and_then(|f| f.set_len(DISK_BYTES)).expect("an image");
    let shipped = Shipped::new(agent, "seekway-guest", dir.path())?;
    let mut extra = shipped.args().to_vec();
    let drive = format!("file={},format=raw,if=none,id=apart", disk.display());
    extra.extend(["-drive".into(), drive, "-device".into()]);
    extra.push("virtio-blk-pci,drive=apart,serial=apart".into());
    let mut guest = Guest::start(&image, &GuestSpec { extra, ..spec })?;
    guest.wait_ready()?;
    shipped.install(&mut guest)?;
    Ok((guest, dir))
}
