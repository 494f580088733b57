//! **flashy** (flashy prefetching, as the VIO-prefetching paper, 4.3, compares
//! itself with it): [vio](super::vio) without knowledge of who reads. Each region of 1 GiB of a
//! VM's disk is one state machine, which compares every read there with those before it (3.1 names
//! the region, but not its size). Two processes that read by turns in one region look like one that
//! jumps. The rules are the paper's letter, as with `vio:literal=true`.

use super::Entry;
use super::following::{INTERVAL, Key, StreamFollower, THRESHOLD};

pub(super) const ENTRY: Entry = Entry {
    name: "flashy",
    summary: "one stream for each 1 GiB of a VM's disk, blind to processes",
    source: "VIO-prefetching (IEEE TSC 2015), sections 3.1 and 4.3",
    params: &[],
    build: |_| {
        Ok(Box::new(StreamFollower::new(Some(INTERVAL), Some(THRESHOLD), None, Key::Region)))
    },
};
