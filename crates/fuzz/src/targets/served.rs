//! A reactor with one disk, for targets that talk to it.

use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Nanos, Sectors};
use seekway_hostd::images::{Image, Limits, OpenOptions};
use seekway_hostd::port::DiskId;
use seekway_hostd::reactor::{Disk, Handle, Message, Poll, Setup, Tuning, spawn};
use std::fs::{self, File};
use std::sync::atomic::{AtomicU64, Ordering};

pub struct ServedDisk {
    pub handle: Handle,
    pub disk: DiskId,
    pub limits: Limits,
    /// The image, which has no name any more.
    pub file: File,
}

/// A reactor without disks.
pub fn reactor() -> Handle {
    let setup = Setup {
        name: "fuzz".into(),
        policy: "noop".into(),
        tuning: Tuning {
            coalesce: Sectors::new(8),
            merge: true,
            hard_limit: Nanos::from_secs(1),
            poll: Poll::OFF,
            ..Tuning::default()
        },
        cache: None,
        throttle: None,
        profile: DeviceProfile::unknown(Sectors::new(1 << 20), false),
        tags: None,
        journal: None,
        groups: Vec::new(),
    };
    spawn(setup).expect("a reactor starts").0
}

/// Starts a reactor with a disk of `bytes` bytes, through the page cache.
pub fn disk(bytes: u64) -> ServedDisk {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("seekway-fuzz-{}-{count}.img", std::process::id());
    let path = std::env::temp_dir().join(name);
    let file = File::options().read(true).write(true).create_new(true).open(&path);
    let file = file.expect("an image");
    file.set_len(bytes).expect("room");
    let options = OpenOptions { direct: false, ..OpenOptions::writing() };
    let image = Image::open(&path, &options).expect("the image opens");
    fs::remove_file(&path).expect("the image is removed");
    let limits = *image.limits();
    let handle = reactor();
    let disk = Box::new(Disk::new("fuzz", image));
    let disk = handle.ask(|reply| Message::AttachDisk(disk, reply)).expect("a reactor");
    ServedDisk { handle, disk: disk.expect("the disk is served"), limits, file }
}
