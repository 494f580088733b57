//! A reactor with disks whose requests a test knows to wait.

use super::{Client, Rig, RigSetup, image};
use seekway_hostd::port::DiskId;
use seekway_hostd::reactor::{DiskStatus, Message};
use seekway_stack::stack::limit::DiskLimits;
use tempfile::TempDir;

/// A reactor with disks on images in a folder.
pub struct Bench {
    pub rig: Rig,
    folder: TempDir,
}

impl Bench {
    pub fn new() -> Bench {
        Bench { folder: tempfile::tempdir().unwrap(), rig: Rig::start(RigSetup::default()) }
    }

    pub fn disk(&self, name: &str) -> DiskId {
        self.rig.attach(&image(&self.folder, name, 1 << 20), None).unwrap()
    }

    pub fn limit(&self, disk: DiskId, limits: &str) {
        let limits = DiskLimits::parse(limits).unwrap();
        self.rig.handle.ask(|reply| Message::SetLimits(disk, limits, reply)).unwrap().unwrap();
    }

    pub fn limited_disk(&self, name: &str, limits: &str) -> DiskId {
        let disk = self.disk(name);
        self.limit(disk, limits);
        disk
    }

    pub fn status(&self, disk: DiskId) -> DiskStatus {
        self.rig.status().disks.into_iter().find(|d| d.id == disk).unwrap()
    }
}

/// Takes `count` answers, none of them an error.
pub fn take(client: &Client, count: u64) {
    (0..count).for_each(|_| assert!(client.answer().result.is_ok()));
}
