//! Where requests come from: traces and generators, behind one small trait.
//!
//! **To add a trace format**: a parser in [`traces`], its entry in `traces/format.rs`, and a fixture
//! in `tests/fixtures`. A generator: a file in [`generators`] and its line in `generators/mod.rs`.
#![forbid(unsafe_code)]

pub mod generators;
pub mod guest;
mod recording;
pub mod replay;
pub mod rng;
pub mod tasks;
pub mod trace_stats;
pub mod traces;

pub use recording::{Recorded, Recording};

use seekway_core::request::{Extent, Op, ProcessTag};
use seekway_core::units::{Instant, Lba, Sectors};

/// One VM's disk as a source needs it: its name and how large its address
/// space is. The engine places it on the device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VmDisk {
    /// Shown in every table.
    pub name: String,
    /// Sectors that the source's extents stay below.
    pub capacity: Sectors,
}

/// A request that a source wants done now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Issue {
    /// The source's own handle; it comes back in [`Source::completed`].
    pub token: u64,
    /// Owner: an index into [`Source::vms`].
    pub vm: u16,
    /// Process inside the guest, where the source knows it.
    pub tag: Option<ProcessTag>,
    pub op: Op,
    /// Does somebody wait for it (see `policy::request::Request::sync`)?
    pub sync: bool,
    /// First sector, relative to the VM's disk.
    pub start: Lba,
    /// Length, at least one sector (any value for a flush).
    pub len: Sectors,
}

/// Figures of one application of a source, for the experiments' tables.
#[derive(Clone, PartialEq, Debug)]
pub struct AppReport {
    /// The VM that it runs in: an index into [`Source::vms`].
    pub vm: u16,
    /// `SR`, `RR`, `sort.map3`, …
    pub name: String,
    /// When it had done all its work; `None` while it runs.
    pub finished: Option<Instant>,
    /// Bytes that it has read and written (as the application counts them).
    pub bytes: u64,
}

/// A load on one or more VMs. A pure state machine: the engine polls it when
/// `next_wake` is due and after each batch of completions.
pub trait Source: Send {
    /// The VMs that this source drives, fixed for its lifetime, at least one.
    fn vms(&self) -> &[VmDisk];

    /// Append what is to be issued at `now`. Called at time zero, whenever
    /// `next_wake` is due, and after completions.
    fn poll(&mut self, now: Instant, out: &mut Vec<Issue>) -> Result<(), SourceError>;

    /// The request issued with `token` is done.
    fn completed(&mut self, now: Instant, token: u64);

    /// When the source wants to be polled next if nothing completes before.
    fn next_wake(&self) -> Option<Instant>;

    /// True when the source will issue nothing more and waits for nothing.
    fn finished(&self) -> bool;

    /// Extents of the files of a prefilled VM that are read through its page cache and are not in
    /// it, in random order. A prefilled host cache has them. `_vm` is the VM's number in the
    /// source.
    fn lacks(&self, _vm: usize) -> Vec<Extent> {
        Vec::new()
    }

    /// Per application, where the source has any.
    fn apps(&self) -> Vec<AppReport> {
        Vec::new()
    }
}

/// A source failed in mid-run: a bad line in a trace, a file that vanished.
/// The text says what, where and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(pub String);
