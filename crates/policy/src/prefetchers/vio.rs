//! **VIO** (the VIO-prefetching paper, section 3; algorithms.md, section 6):
//! streams of each process inside each guest, by the tags that its agent gives
//! them, and followed by address within a process. What is untagged is followed
//! by address among all untagged reads of the VM. The rules are in
//! [`super::following`].
//!
//! The paper hashes (process, process in the guest, block region) to one state
//! machine. Followed by address, a process may read several files in turns, and
//! no region has to be chosen that a fast stream does not cross in an interval.
//! How much is prefetched is the paper's letter with `literal=true` only.

use super::Entry;
use super::following::{FEEDBACK, INTERVAL, Key, LEAD, LITERAL, StreamFollower, THRESHOLD};

pub(super) const ENTRY: Entry = Entry {
    name: "vio",
    summary: "streams of each in-guest process, as fast as it reads and the device can spare",
    source: "VIO-prefetching (IEEE TSC 2015), section 3",
    params: &[INTERVAL, THRESHOLD, FEEDBACK, LEAD, LITERAL],
    build: |params| StreamFollower::build(params, Key::Process),
};
