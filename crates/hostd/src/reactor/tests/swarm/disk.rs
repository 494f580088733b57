//! A disk, as those who use it see it, and the clock of what they see.

use super::random::Random;
use crate::frontends::nbd::DiskMemory;
use crate::images::{Image, Limits};
use crate::port::DiskId;
use seekway_testing::disk::Model;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Places of a disk that most requests touch: so they meet.
const HOT_SECTORS: u64 = 64;

/// Event numbers and names of requests.
#[derive(Default)]
pub struct Notes {
    time: u64,
    requests: u64,
}

impl Notes {
    /// The next event's time.
    pub fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    /// Number of requests that have a number.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// A number that no other request has.
    pub fn id(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }
}

/// A disk, as whoever uses it sees it.
pub struct Disk {
    pub path: PathBuf,
    pub truth: Model,
    pub sectors: usize,
    /// Something was injected that may let a request fail.
    pub may_fail: bool,
    /// Something was injected that may let flushes and durable writes fail.
    pub syncs_may_fail: bool,
    pub buffered: bool,
    /// The file system of its image looks at RWF_DSYNC.
    pub keeps_dsync: bool,
    /// Its image can be marked.
    pub keeps_mark: bool,
    /// I/O on its image begins and ends between blocks of this number of bytes.
    pub block: usize,
    /// When its image was opened.
    pub opened: u64,
    /// When somebody was told that a flush failed that was asked for since then.
    pub failed_flush: Option<u64>,
    /// The image as another daemon has opened it, for a guest that comes from here.
    pub awaited: Option<Image>,
    /// The disk is detached, or its daemon has been told to end: requests are not carried out.
    pub leaves: bool,
    /// Its number while it is attached.
    pub number: Option<DiskId>,
    pub limits: Arc<Mutex<Option<Limits>>>,
    pub memory: Arc<DiskMemory>,
}

impl Disk {
    /// A position for a request of `len` sectors.
    pub fn place(&self, len: usize, random: &mut Random) -> usize {
        let last = self.sectors - len;
        match random.once_in(4) {
            true => random.index(last + 1),
            false => (random.below(HOT_SECTORS) as usize).min(last),
        }
    }

    /// May a request fail, one that ends with a sync or another?
    pub fn may_fail(&self, syncs: bool) -> bool {
        self.may_fail || syncs && self.syncs_may_fail
    }

    /// A flush that was asked for at `begun` has failed: none goes well any more, and nobody opens
    /// the image who does not accept that.
    pub fn flush_failed(&mut self, begun: u64, now: u64) {
        if begun > self.opened {
            self.failed_flush.get_or_insert(now);
        }
    }

    /// A flush that was asked for at `begun` went well.
    pub fn flushed(&mut self, begun: u64) -> Result<(), String> {
        if self.failed_flush.is_some_and(|failed| begun > failed) {
            return Err("a flush went well after one had failed".into());
        }
        self.truth.flushed(begun);
        Ok(())
    }

    pub fn begin(&mut self, write: &Write, id: u64, now: u64) {
        self.truth.begin(write.sectors.clone(), id, write.stamp, now);
    }

    pub fn end(&mut self, write: &Write, id: u64, now: u64, ok: bool, durable: bool) {
        self.truth.end(write.sectors.clone(), id, now, ok && write.certain, durable);
    }

    /// Checks that a read may have found this data.
    pub fn check(&self, first: usize, data: &[u8], begun: u64) -> Result<(), String> {
        self.truth.check(first, data, begun)
    }
}

/// Effect of a request on sectors.
pub struct Write {
    pub sectors: Range<usize>,
    pub stamp: u64,
    /// The write is done when the device says so.
    pub certain: bool,
}
