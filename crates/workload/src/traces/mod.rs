//! Reading block traces: every format becomes a stream of [`Record`]s, sorted
//! by time, in bounded memory whatever the trace's size.
//!
//! Bytes → (decompression by magic) → a decoder per format → a reorder window
//! → [`TraceReader`]. The format is detected from the first 64 KiB or given by
//! name. Nothing in a file can make a reader panic: an unusable record is an
//! error with its place, or in the lenient mode skipped and counted.
//!
//! Absent: no format is written here but CSV ([`write_csv`]); no trace is held whole, unless
//! somebody asks for it ([`keep`]); nothing is guessed from a file's name, but which other files are
//! of the same blktrace.

mod blktrace;
mod buffer;
mod columns;
mod csv;
mod cursor;
mod error;
mod events;
mod figures;
mod files;
mod fio;
mod format;
mod kept;
mod layout;
mod plausible;
mod raw;
mod reader;
mod records;
mod stats;
mod table;
mod text;

pub use blktrace::BlktraceEvent;
pub use error::{Place, Reason, TraceError};
pub use files::{TraceFiles, expand};
pub use format::Format;
pub use format::{Column, FormatPage};
pub use kept::{KEPT_BYTES_EACH, Kept};
pub use layout::check_columns;
pub(crate) use reader::stem;
pub use reader::{TraceOptions, TraceReader, keep, scan, scan_each, scannable};
pub use stats::{OpCounts, Scan, ScannedVolume, Skipped, TraceStats, VolumeStats};
pub use table::{WriteError, write_csv};

use seekway_core::request::Op;
use seekway_core::units::{Lba, Nanos, Sectors};

/// The longest line that is accepted, in bytes without its end.
pub const LINE_BYTES_MAX: usize = 4096;
/// The most volumes in a trace.
pub const VOLUMES_MAX: usize = 1 << 16;
/// Longest name of a volume, in bytes: a small compressed file must not become a large table.
pub const VOLUME_NAME_BYTES_MAX: usize = 255;
/// The longest request, in sectors (1 TiB: a discard can be this long).
pub const REQUEST_SECTORS_MAX: u64 = 1 << 31;
/// No request ends beyond this sector, so that byte offsets fit in 64 bits.
pub const SECTORS_MAX: u64 = 1 << 55;

/// One request of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Since the trace's first request; never less than the record before.
    pub at: Nanos,
    /// Time until it was done; zero where the trace does not tell.
    pub took: Nanos,
    /// The volume's number, from zero in the order of first appearance; its
    /// name is [`TraceReader::volume_name`].
    pub volume: u32,
    /// The process that asked (FIU, blktrace); zero where the trace has none.
    pub process: u32,
    /// Operation.
    pub op: Op,
    /// Does somebody wait for it? True for reads and for flushes of a
    /// blktrace; a write's only where the trace says so (`REQ_SYNC` in a
    /// blktrace): all other formats leave it false.
    pub sync: bool,
    /// First sector on the volume; zero for a flush.
    pub start: Lba,
    /// Sectors; zero for a flush only.
    pub len: Sectors,
}
