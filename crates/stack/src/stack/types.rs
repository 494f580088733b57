//! Types that go into the stack and come out of it.

use super::map::Map;
use crate::cache::FetchId;
use crate::dispatcher;
use seekway_core::params::ParamError;
use seekway_core::prefetcher::Prefetcher;
use seekway_core::request::{Extent, Op, ProcessTag, Request, RequestId, VmId};
use seekway_core::units::{Instant, Nanos, Sectors};
use seekway_policy::prefetchers;

/// Guests' requests that may be outstanding on one device, unless [`Config`] says otherwise.
pub const OUTSTANDING_DEFAULT: usize = 1 << 18;

/// The stack's settings for the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Depth, coalescing and hard limit.
    pub dispatch: dispatcher::Config,
    /// Guests' requests that may be outstanding; [`Refused::Full`] beyond it.
    pub outstanding_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config { dispatch: dispatcher::Config::default(), outstanding_max: OUTSTANDING_DEFAULT }
    }
}

/// A guest's request as its front end hands it in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Submit {
    /// Which VM; attached before.
    pub vm: VmId,
    /// Which process inside the guest, if known.
    pub tag: Option<ProcessTag>,
    /// Operation; flushes and discards come too.
    pub op: Op,
    /// Does somebody wait for it? See [`super::is_sync`].
    pub sync: bool,
    /// The sectors of the VM's disk. Says nothing for a flush.
    pub extent: Extent,
    /// The engine's own name for the request; it comes back with what is to be done for it.
    pub token: u64,
}

/// Why a request was not taken in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Lies outside the VM's disk.
    Range,
    /// Too many requests are outstanding.
    Full,
}

/// Why a part of a request failed: the engine's own code (an errno in the daemon).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoError(pub i32);

/// The error of what is not carried out because its disk leaves: ESHUTDOWN.
pub const ABANDONED: IoError = IoError(108);

/// The engine's next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send this command to the device. Its id names it in [`super::Stack::io_done`]; its
    /// extent on the device covers all of [`super::Stack::members`].
    Issue(Request),
    /// Copy cached data to the guest.
    Copy(Copy),
    /// A guest's request is done.
    Done(Done),
    /// A guest's read was looked up in the cache, and `commands` reads of the device follow
    /// from it. For engines that count what such work costs.
    LookedUp {
        /// The engine's name for the read: [`Submit::token`].
        token: u64,
        /// Reads into the cache and past it that it began.
        commands: u32,
    },
    /// A prefetch waits for the device. For engines that count what such work costs.
    Prefetching,
    /// Nothing more to do now: poll again at one of these times, or after the next input.
    Wait(Wake),
}

/// Copy `part` of a guest's disk from [frames](super::Stack::frames) of the cache to the guest.
/// The frames keep their data until the engine carries out the next [`Action::Issue`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copy {
    /// The engine's name for the guest's read: [`Submit::token`].
    pub token: u64,
    /// The sectors of the disk. The first lies in the first frame, as far behind its
    /// beginning as it lies behind a block's on the disk.
    pub part: Extent,
    /// Where the frames stand in the stack's list.
    pub(super) frames: (u32, u32),
}

/// A guest's request is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// The engine's name for it.
    pub token: u64,
    /// The VM whose request it is.
    pub vm: VmId,
    /// The first error of its parts.
    pub result: Result<(), IoError>,
    /// Where its time went.
    pub stages: Stages,
}

/// Where a request's time went, from its arrival until it was done. A read that the cache answers
/// has spent none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stages {
    /// Held by rate limits.
    pub limited: Nanos,
    /// Then until the device got the first of it, or of the read into the cache that it waited
    /// for: the policy's queue, barriers, the device's depth.
    pub queued: Nanos,
    /// Then until it was done.
    pub device: Nanos,
}

/// When the stack wants to be polled if nothing happens before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wake {
    /// Requests are withheld until then, by a limit or by the policy.
    pub demand: Option<Instant>,
    /// The prefetcher wants to look at its streams then.
    pub prefetch: Option<Instant>,
}

impl Wake {
    /// The earlier of the two.
    pub fn earliest(self) -> Option<Instant> {
        self.demand.into_iter().chain(self.prefetch).min()
    }
}

/// A part of a command on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// The request that it belongs to, for [`super::Stack::io_done`].
    pub id: RequestId,
    /// The VM on whose disk it lies.
    pub vm: VmId,
    /// The operation, the same for all members of the command.
    pub op: Op,
    /// The request or fetch whose data it moves.
    pub target: Target,
    /// Where it lies on the VM's disk. Says nothing for a flush.
    pub part: Extent,
}

/// Where the data of a [`Member`] comes from or goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Buffers of a guest's request, which the engine knows.
    Guest {
        /// The engine's name for the guest's request.
        token: u64,
    },
    /// Frames of the cache ([`super::Stack::fetch`]).
    Cache(FetchId),
}

/// The cache of a stack as it is made.
pub struct CacheSpec {
    /// Bytes, unit and seed.
    pub config: crate::cache::Config,
    /// The prefetcher that fills the cache ahead of guests.
    pub prefetcher: Box<dyn Prefetcher>,
    /// Its specification, for journals and status.
    pub spec: String,
}

impl CacheSpec {
    /// A cache with the prefetcher of this specification ([`prefetchers::build`]).
    ///
    /// # Errors
    /// For a specification that is none.
    pub fn new(config: crate::cache::Config, spec: &str) -> Result<CacheSpec, ParamError> {
        Ok(CacheSpec { config, prefetcher: prefetchers::build(spec)?, spec: spec.into() })
    }
}

/// A disk that joins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskSpec {
    /// Share of the device relative to the others'.
    pub weight: std::num::NonZeroU32,
    /// Size of the disk.
    pub capacity: Sectors,
    /// Where it lies on the device.
    pub map: Map,
    /// Its reads go through the cache, if there is one.
    pub cached: bool,
}
