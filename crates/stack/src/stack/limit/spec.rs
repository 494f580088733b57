//! A limit: rates, bursts and the size of one I/O, checked when they are made.
//! [`LimitsDraft`](super::LimitsDraft) is the way to make them.

use seekway_core::params::ParamError;
use seekway_core::request::Op;
use seekway_core::scheduler::{Promise, Reserve};
use seekway_core::units::Nanos;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};

/// Highest rate or burst, per second, and highest product of a burst and its
/// length in seconds (QEMU's `THROTTLE_VALUE_MAX`).
pub const RATE_MAX: u64 = 1_000_000_000_000_000;
/// Shortest and longest burst.
pub const BURST_LENGTH_MIN: Nanos = Nanos::from_millis(1);
/// Longest burst: as long as any parameter that is a duration.
pub const BURST_LENGTH_MAX: Nanos = seekway_core::params::DURATION_MAX;
/// Length of a burst where none is given (as in QEMU and libvirt).
pub const BURST_LENGTH_DEFAULT: Nanos = Nanos::from_secs(1);
/// Least and highest target of latency.
pub const LATENCY_MIN: Nanos = Nanos::from_micros(1);
/// Highest target of latency: a minute.
pub const LATENCY_MAX: Nanos = Nanos::from_secs(60);
/// Longest name of a group, in bytes.
pub const GROUP_NAME_BYTES_MAX: usize = 64;

/// Which requests a rate counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Scope {
    /// Reads and writes together.
    Total,
    /// Reads alone; flushes are counted nowhere.
    Read,
    /// Writes, discards and write-zeroes alone.
    Write,
}

/// Unit in which a rate counts a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Unit {
    /// I/O operations; see [`Limits::ios`].
    Iops,
    /// Bytes of its extent, also for discards and write-zeroes.
    Bytes,
}

/// The direction of a request, as limits see it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Direction {
    /// From the disk to the guest.
    Read,
    /// To the disk: writes, discards and write-zeroes.
    Write,
}

impl Direction {
    /// Both, in the order of [`Direction::index`].
    pub const ALL: [Direction; 2] = [Direction::Read, Direction::Write];

    /// The direction of an operation; `None` for a flush, which is never limited.
    /// Discards and write-zeroes are writes, as for QEMU's throttle filter.
    pub const fn of(op: Op) -> Option<Direction> {
        match op {
            Op::Read => Some(Direction::Read),
            Op::Write | Op::Discard | Op::WriteZeroes => Some(Direction::Write),
            Op::Flush => None,
        }
    }
    /// 0 for reads, 1 for writes.
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl Scope {
    /// All, in the order of output.
    pub const ALL: [Scope; 3] = [Scope::Total, Scope::Read, Scope::Write];

    /// Does a request in this direction count?
    pub const fn counts(self, direction: Direction) -> bool {
        match self {
            Scope::Total => true,
            Scope::Read => matches!(direction, Direction::Read),
            Scope::Write => matches!(direction, Direction::Write),
        }
    }
}

impl Unit {
    /// All, in the order of output.
    pub const ALL: [Unit; 2] = [Unit::Iops, Unit::Bytes];
}

/// A rate, and the higher one that holds for a while after a quiet time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Units per second in the long run, 1 to [`RATE_MAX`].
    pub per_s: u64,
    /// The burst, if there is one.
    pub burst: Option<Burst>,
}

/// A higher rate for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Burst {
    /// Units per second, from the rate's own to [`RATE_MAX`].
    pub per_s: u64,
    /// Time for which it holds when the disk was idle before.
    pub length: Nanos,
}

/// Rates that a disk or a group may have at most, and rates that it is to have at least. Free of
/// contradictions: see [`LimitsDraft::finish`](super::LimitsDraft::finish). The default has
/// neither.
///
/// The limiter keeps the rates; a policy is told the service-level targets.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    pub(super) rates: [[Option<Rate>; 3]; 2],
    pub(super) io_size_bytes: Option<NonZeroU64>,
    /// Rate that a disk is to have at least; a group has none.
    pub reserve: Reserve,
    /// The time within which 99 of 100 requests of a disk are to be done.
    pub latency: Option<Nanos>,
    /// A group's share, relative to those of other groups and of disks without a group; its
    /// disks divide it by their own weights. Without it each disk has a share of its own.
    pub weight: Option<NonZeroU32>,
}

impl Limits {
    /// There is neither a limit nor a promise.
    pub fn is_none(&self) -> bool {
        *self == Limits::default()
    }
    /// No rate is limited.
    pub fn is_unlimited(&self) -> bool {
        self.rates.iter().flatten().all(Option::is_none)
    }
    /// Service-level targets given here beside rates, each with the key by which an operator asks
    /// for it.
    pub fn promises(&self) -> impl Iterator<Item = (Promise, &'static str)> {
        let all = [
            (self.reserve.iops > 0, Promise::Iops, "reserve_iops"),
            (self.reserve.bytes_per_s > 0, Promise::Bandwidth, "reserve_bandwidth"),
            (self.latency.is_some(), Promise::Latency, "latency"),
            (self.weight.is_some(), Promise::Group, "weight"),
        ];
        all.into_iter().filter(|(is_given, ..)| *is_given).map(|(_, promise, key)| (promise, key))
    }
    /// The rate for these requests, if they have one.
    pub fn rate(&self, unit: Unit, scope: Scope) -> Option<Rate> {
        self.rates[unit as usize][scope as usize]
    }
    /// Bytes up to which a request counts as one I/O; `None` where each
    /// request counts as one whatever its size.
    pub fn io_size_bytes(&self) -> Option<NonZeroU64> {
        self.io_size_bytes
    }
    /// Number of I/Os that a request of this size counts as, at least one. A part of an I/O counts
    /// whole; QEMU counts it in part.
    pub fn ios(&self, bytes: u64) -> u64 {
        ios(self.io_size_bytes, bytes)
    }
}

/// I/Os that `bytes` count as: see [`Limits::ios`].
pub(super) fn ios(io_size_bytes: Option<NonZeroU64>, bytes: u64) -> u64 {
    match io_size_bytes {
        Some(size) if bytes > size.get() => bytes.div_ceil(size.get()),
        _ => 1,
    }
}

/// The name of a group of disks that share limits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupName(Box<str>);

impl GroupName {
    /// A group's name: letters, digits, `_`, `-` and `.`, the last two not at the
    /// front, at most [`GROUP_NAME_BYTES_MAX`].
    ///
    /// # Errors
    /// What a name is made of.
    pub fn new(name: &str) -> Result<GroupName, ParamError> {
        let good = name.len() <= GROUP_NAME_BYTES_MAX
            && name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if good {
            return Ok(GroupName(name.into()));
        }
        let shown: String = name.escape_debug().take(2 * GROUP_NAME_BYTES_MAX).collect();
        Err(ParamError::new(format!(
            "'{shown}' cannot be a group's name: letters, digits, '_', '-' and '.' (the last two \
             not at the front), at most {GROUP_NAME_BYTES_MAX}"
        )))
    }
    /// The name as [`GroupName::new`] took it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Limits of a disk: its own, a group's, or both. The default is neither.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct DiskLimits {
    /// The disk's own limits.
    pub limits: Limits,
    /// The group whose limits hold as well.
    pub group: Option<GroupName>,
}

impl DiskLimits {
    /// The disk has neither limits nor a group.
    pub fn is_none(&self) -> bool {
        self.limits.is_none() && self.group.is_none()
    }
}
