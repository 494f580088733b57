//! A run's ingredients, its end, and its errors.

use super::Host;
use crate::layout::Layout;
use seekway_core::scheduler::Scheduler;
use seekway_core::units::Instant;
use seekway_device::DeviceModel;
use seekway_stack::dispatcher::Config;
use seekway_stack::stack::limit::{DiskLimits, GroupName, Limits as GroupLimits};
use seekway_workload::SourceError;
use std::num::NonZeroU32;

/// Ingredients of a run besides its sources.
pub struct Setup {
    pub scheduler: Box<dyn Scheduler>,
    pub device: Box<dyn DeviceModel>,
    /// Coalescing and the hard limit; the depth is the device's own.
    pub config: Config,
    /// Where the VMs lie.
    pub layout: Layout,
    /// Weights by VM; those missing are 1.
    pub weights: Vec<NonZeroU32>,
    /// Rate limits by VM; those missing have none.
    pub limits: Vec<DiskLimits>,
    /// Rate limits of groups of VMs.
    pub groups: Vec<(GroupName, GroupLimits)>,
    /// The policy's specification, to keep a journal of the run.
    pub journal: Option<String>,
    /// A cache in the host.
    pub host: Option<Host>,
}

impl Setup {
    /// VMs of weight 1 without limits, no journal and no cache in the host.
    pub fn new(
        scheduler: Box<dyn Scheduler>,
        device: Box<dyn DeviceModel>,
        layout: Layout,
    ) -> Setup {
        Setup {
            scheduler,
            device,
            config: Config::default(),
            layout,
            weights: Vec::new(),
            limits: Vec::new(),
            groups: Vec::new(),
            journal: None,
            host: None,
        }
    }
}

/// From when a run is measured, and when it stops before its sources end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Simulated time before which nothing is measured: requests, bytes, times, seeks,
    /// applications' bytes, the host cache's counts. A run that ends before is measured whole. The
    /// dispatcher's, the policy's and the device's own figures are always those of the whole run.
    pub settle: Option<Instant>,
    /// At this simulated time.
    pub until: Option<Instant>,
    /// After this many completed requests.
    pub requests: Option<u64>,
}

/// Requests outstanding beyond which a run is given up: the device cannot
/// keep up with an open-loop trace, and every figure would only say so.
pub const OUTSTANDING_MAX: usize = 500_000;

/// Why a run ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A request lies outside its VM's disk.
    #[error(
        "VM {vm}: request {start}+{len} lies past the end of its disk ({capacity} sectors); \
         is the capacity given too small?"
    )]
    OutOfRange {
        vm: String,
        /// First sector of the request, on its VM's disk.
        start: u64,
        /// Length of the request, in sectors.
        len: u64,
        /// Size of the VM's disk.
        capacity: u64,
    },
    /// The device cannot keep up.
    #[error(
        "{OUTSTANDING_MAX} requests are outstanding at {at}: the device cannot keep up with this \
         load; slow it down (--time-scale), replay it closed-loop (--outstanding), or choose a \
         faster device"
    )]
    Overloaded { at: Instant },
    /// A replay of the journal would begin with an empty cache.
    #[error(
        "a journal does not hold what a host's cache begins with beside warm VMs: leave out \
         the journal, the cache, or warm=true"
    )]
    WarmJournal,
    /// A source keeps issuing without time passing: flushes, discards and write-zeroes are done
    /// at once.
    #[error(
        "a load issues without end at {at}: flushes, discards and write-zeroes take no time in \
         the simulator; give it reads or writes, or a think time"
    )]
    RunAway { at: Instant },
}
