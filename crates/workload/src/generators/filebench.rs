//! Servers as Filebench describes them: the personalities `fileserver`,
//! `webserver`, `varmail`, `webproxy`, `oltp` and `videoserver` of
//! <https://github.com/filebench/filebench> (`workloads/*.f`, version 1.5, with
//! `flowop_library.c` and `fileset.c` for what their steps do).
//!
//! Taken as they are: the flow of each thread, threads, sizes of files, reads
//! and appends, the share of files that exist at the start, sizes by the gamma
//! distribution with shape 1.5, appends of a uniform length below `append`, files
//! picked in rotation and laid out in random order.
//!
//! Scaled: the numbers of files where Filebench's own (16 MB in all) would never
//! leave the page cache, and the sizes of videos and of the database. Each
//! default is about 0.5 to 2 GB, and needs no more than the default image of
//! 12 GiB.
//!
//! What the guest has no operation for:
//! - there are no directories: creating and removing changes the inode and the
//!   bitmaps, which go through the journal, and no directory block; opening,
//!   closing and `statfile` cost nothing;
//! - a file that is created again gets the blocks that it had, and has room for
//!   its size and a few appends: what exceeds that is cut off;
//! - all threads count as processes of their own for tags (Linux schedules I/O
//!   by thread).

pub mod fileset;
pub mod oltp;
pub mod servers;
pub mod video;

use crate::generators::param;
use crate::guest::app::Op;
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};
use seekway_core::units::{Instant, Nanos};

pub(super) const RUNTIME: ParamSpec =
    param("runtime", Kind::Duration, "0", "ends after this time (0: when the run ends)");
pub(super) const OPERATIONS: ParamSpec = param(
    "operations",
    Kind::Count(0, u64::MAX),
    "0",
    "reads, writes, fsyncs and removals after which it ends (0: not)",
);
pub(super) const BYTES: ParamSpec =
    param("bytes", Kind::Size, "0", "bytes read and written after which it ends (0: not)");

/// Rounds of a server's flow a second.
pub(super) const RATE: ParamSpec = param(
    "rate",
    Kind::Count(0, 1_000_000),
    "0",
    "rounds a second of all threads together, at exponential intervals (0: no limit)",
);

/// The parameters that end a server; it goes on until the run ends if all are zero.
pub(super) const LIMITS: &[&str] = &["runtime", "operations", "bytes"];

/// When a server stops. The default never does.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Limit {
    runtime: Nanos,
    operations: u64,
    bytes: u64,
    started: Option<Instant>,
    made: u64,
    moved: u64,
}

impl Limit {
    /// From the parameters in [`LIMITS`].
    pub(super) fn new(p: &Params) -> Limit {
        let (operations, bytes) = (p.count("operations"), p.size("bytes").bytes());
        Limit { operations, bytes, ..Limit::of_time(p) }
    }

    /// By the parameter `runtime` alone.
    pub(super) fn of_time(p: &Params) -> Limit {
        Limit { runtime: p.duration("runtime"), ..Limit::default() }
    }

    /// Is it over? Asked before each call.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        let since = now.since(*self.started.get_or_insert(now));
        (self.runtime > Nanos::ZERO && since >= self.runtime)
            || (self.operations > 0 && self.made >= self.operations)
            || (self.bytes > 0 && self.moved >= self.bytes)
    }

    /// Time until it is over, `None` without an end in time.
    fn time_left(&self, now: Instant) -> Option<Nanos> {
        let since = now.since(self.started.unwrap_or(now));
        (self.runtime > Nanos::ZERO).then(|| self.runtime.saturating_sub(since))
    }

    /// A sleep, at most until it is over.
    pub(super) fn sleep(&self, now: Instant, span: Nanos) -> Op {
        Op::Sleep(self.time_left(now).map_or(span, |left| left.min(span)))
    }

    pub(super) fn count(&mut self, op: &Op) {
        match op {
            Op::Read { len, .. } | Op::Write { len, .. } => self.moved += u64::from(*len),
            Op::Fsync { .. } | Op::Delete { .. } => {}
            _ => return,
        }
        self.made += 1;
    }
}

/// The length of one system call: what `iosize` says, checked.
pub(super) fn call_bytes(name: &str, p: &Params, key: &str) -> Result<u64, ParamError> {
    match p.size(key).bytes() {
        0 => Err(ParamError::new(format!("{name}: {key} must not be 0"))),
        bytes if bytes > 1 << 30 => {
            Err(ParamError::new(format!("{name}: {key}={bytes} bytes; at most 1 GiB")))
        }
        bytes => Ok(bytes),
    }
}
