//! The contract between the host cache and a prefetcher: it predicts a guest's next reads, and
//! chooses the amount to fetch now.
//!
//! A prefetcher is a state machine like a scheduler: the cache reports every read, and asks for
//! proposals. It never reads a clock, knows no device and no engine, and proposes the same on the
//! same input. Offsets are sectors of the VM's own disk, before any mapping to the device.

use crate::request::{Extent, ProcessTag, VmId};
use crate::units::{Instant, Sectors};

/// A guest's read as it reached the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// The VM that reads.
    pub vm: VmId,
    /// Which process inside the guest, if its agent says so.
    pub tag: Option<ProcessTag>,
    /// Where on the VM's disk.
    pub extent: Extent,
    /// Sectors that needed a new read of the device: those that "reached the disk" in the paper's
    /// sense. 0 to the extent's length.
    pub missed: Sectors,
    /// Sectors that wait for a fetch under way: prefetched, but late.
    pub late: Sectors,
}

/// Sectors of a VM's disk to be fetched ahead of its guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// The VM whose disk is read.
    pub vm: VmId,
    /// For which of its processes; `None` where the prefetcher does not tell them apart.
    pub tag: Option<ProcessTag>,
    /// Extent of the VM's disk, inside its capacity. Sectors in the cache are not fetched again.
    pub extent: Extent,
}

/// A stream of reads as a prefetcher sees it, for reports.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stream {
    /// The VM that reads it.
    pub vm: VmId,
    /// Of which process, if known.
    pub tag: Option<ProcessTag>,
    /// Is it being prefetched for?
    pub armed: bool,
    /// Share of its blocks that followed its pattern recently, 0 to 1.
    pub linear: f64,
    /// Aggressiveness S (algorithms.md, section 6); 1 where the prefetcher has none.
    pub scale: f64,
}

/// A policy that learns of guests' reads and proposes what to fetch ahead.
pub trait Prefetcher: Send {
    /// Adds a VM with a disk of this size; for a known VM, changes the size.
    fn attach(&mut self, _now: Instant, _vm: VmId, _capacity: Sectors) {}

    /// A VM leaves: forget it.
    fn detach(&mut self, _vm: VmId) {}

    /// Sets the device's highest rate (the paper's BW_T). Without this call a prefetcher has no
    /// bound by it.
    fn bandwidth(&mut self, _bytes_per_s: u64) {}

    /// Whether its fetches are ordinary reads, which the scheduling policy orders among guests'. As a
    /// rule they wait in the background, which no policy sees, and are dropped while demand queues.
    fn fetches_as_demand(&self) -> bool {
        false
    }

    /// Reports sectors that a guest wants to read and that its VM's limit delays.
    /// [`Prefetcher::accessed`] reports them when they have passed the limit.
    fn held(&mut self, _vm: VmId, _sectors: Sectors) {}

    /// Tells of a guest's read and how much of it the cache did not have.
    fn accessed(&mut self, _now: Instant, _access: &Access) {}

    /// Prefetched blocks leave the cache, or were never fetched: `used` says
    /// whether a guest read them meanwhile.
    fn evicted(&mut self, _now: Instant, _vm: VmId, _extent: Extent, _used: bool) {}

    /// Chooses the next fetch, at most `room` sectors. Called until it returns `None`. A proposal
    /// counts as fetched: it is not made again unless the pattern comes back to it.
    fn propose(&mut self, _now: Instant, _room: Sectors) -> Option<Proposal> {
        None
    }

    /// Proposes a fetch right behind the last reported read, at most `most` sectors, while the disk
    /// arm is there and demand leaves no time for other proposals. It counts as proposed.
    fn along(&mut self, _now: Instant, _most: Sectors) -> Option<Proposal> {
        None
    }

    /// Names extents that were proposed for the VM that read last and that its reader has
    /// abandoned: the cache may drop them before anything that was read. Called after
    /// [`Prefetcher::accessed`] until it returns `None`; each extent is named once.
    fn left(&mut self, _now: Instant) -> Option<Extent> {
        None
    }

    /// When it wants to be asked again if nothing is read before.
    fn next_wake(&self) -> Option<Instant> {
        None
    }

    /// The streams that it follows, in a fixed order.
    fn streams(&self, _sink: &mut dyn FnMut(&Stream)) {}

    /// Reports figures that only this prefetcher knows.
    fn metrics(&self, _sink: &mut dyn FnMut(&'static str, f64)) {}
}
