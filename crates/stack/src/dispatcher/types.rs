//! Types that go into a dispatcher and come out of it, and its limits.

use seekway_core::request::{Extent, Op, ProcessTag, Request, VmId};
use seekway_core::units::{Instant, Nanos, Sectors};

/// Requests that may be outstanding on one device. [`Dispatcher::arrive`](super::Dispatcher::arrive)
/// panics beyond it: engines bound their queues well below.
pub const OUTSTANDING_MAX: usize = 1 << 22;
/// VMs on one device.
pub const VMS_MAX: usize = 4096;
/// The default of [`Config::coalesce`]: 512 KiB, Linux's usual limit
/// (`max_sectors_kb`).
pub const COALESCE_DEFAULT: Sectors = Sectors::new(1024);

/// The dispatcher's settings for the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Commands that the device takes at once, at least 1.
    pub depth: u32,
    /// Longest command that adjacent requests are coalesced into; zero never
    /// coalesces. A single request longer than this still goes whole, unless the policy splits it.
    pub coalesce: Sectors,
    /// A request that has waited longer is dispatched whatever the policy says.
    pub hard_limit: Nanos,
    /// The tags of the device's own queue, where they are known.
    pub tags: Option<Tags>,
}

/// A device's own queue. A command takes a tag of it, a long one several; whoever sends one
/// while all are taken may have to sleep until another command is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tags {
    /// Number of tags.
    pub count: u32,
    /// The longest that one may be for; zero counts as one.
    pub sectors: Sectors,
}

impl Tags {
    /// Number of tags for us: three quarters. The others are for the host's own requests, and for
    /// schedulers of the kernel that keep writes from taking all.
    pub(super) fn ours(self) -> u64 {
        (u64::from(self.count) / 4 * 3).max(1)
    }

    /// The longest command that our tags are enough for, in units of 4 KiB, at least one.
    pub fn command_max(self) -> Sectors {
        Sectors::new((self.ours().saturating_mul(self.sectors.get()) / 8 * 8).max(8))
    }
}

impl Default for Config {
    fn default() -> Self {
        let hard_limit = Nanos::from_secs(30);
        Config { depth: 1, coalesce: COALESCE_DEFAULT, hard_limit, tags: None }
    }
}

/// A request as it reaches the dispatcher, already mapped to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// The VM that sends it; it has to be attached before.
    pub vm: VmId,
    /// Which process inside the guest, if known.
    pub tag: Option<ProcessTag>,
    /// Operation; policies see reads and writes only.
    pub op: Op,
    /// Does somebody wait for it?
    pub sync: bool,
    /// The sectors of the device; says nothing for a flush.
    pub extent: Extent,
}

/// The engine's next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send this command to the device. Its extent covers all of
    /// [`Dispatcher::members`](super::Dispatcher::members). Its id is that of its
    /// first request, or one of its own when that is a part of a request; it is
    /// good until the command completes.
    Dispatch(Request),
    /// Poll again then, unless an input comes before.
    WakeAt(Instant),
    /// Poll again after the next input.
    Idle,
}

/// A command that is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletedCommand {
    /// The VM of its requests.
    pub vm: VmId,
    /// The operation, the same for all of its requests.
    pub op: Op,
    /// When it was dispatched.
    pub dispatched: Instant,
    /// From the later of that and the device's previous completion.
    pub service: Nanos,
}

/// Counts of what has passed through a dispatcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Guests' requests dispatched, each once however many parts it went in.
    pub requests: u64,
    /// Commands that they were coalesced into or split into.
    pub commands: u64,
    /// Requests taken from the policy because of the hard limit.
    pub forced: u64,
    /// Requests of the background class dispatched, counted in neither of the first two.
    pub background: u64,
    /// Commands that they were coalesced into.
    pub background_commands: u64,
    /// Bytes that these read.
    pub background_bytes: u64,
    /// Requests of the background class taken back before they reached the device.
    pub withdrawn: u64,
}
