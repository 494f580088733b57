//! Errors in a trace, with all that the user needs to mend it: file, line or record, column, the
//! expected and the found value.

use super::Format;
use std::fmt;
use std::io;

/// Why one record cannot be used. The lenient mode counts by these.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, thiserror::Error)]
pub enum Reason {
    /// A field is missing or the record ends too early.
    #[error("missing field")]
    Missing,
    /// A field holds something else than its format says.
    #[error("malformed field")]
    Malformed,
    /// Control or non-ASCII bytes where text was expected.
    #[error("binary bytes in text")]
    Binary,
    #[error("negative number")]
    Negative,
    /// A number, a time or an end of extent too large to be represented.
    #[error("number too large")]
    Overflow,
    /// A read, write or discard of no sectors.
    #[error("zero length")]
    ZeroLength,
    /// Neither read nor write nor any other operation of the format.
    #[error("unknown operation")]
    UnknownOp,
    /// A line of more than [`super::LINE_BYTES_MAX`] bytes.
    #[error("line too long")]
    LineTooLong,
    /// A binary record without its magic number.
    #[error("no magic number")]
    BadMagic,
    /// A version of the format that no reader here knows.
    #[error("unsupported version")]
    BadVersion,
    /// The file ends inside a binary record.
    #[error("truncated record")]
    Truncated,
    /// More than [`super::VOLUMES_MAX`] volumes.
    #[error("too many volumes")]
    TooManyVolumes,
    /// The name of a volume has more than [`super::VOLUME_NAME_BYTES_MAX`] bytes.
    #[error("name of a volume too long")]
    LongName,
}

/// Where in a trace something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// A text format: both count from one; the column counts bytes.
    Line {
        /// Number of the line, from one.
        line: u64,
        /// Byte in the line.
        column: u64,
    },
    Record {
        /// Record number from one.
        number: u64,
        /// Offset of the record's first byte in the (uncompressed) file.
        offset: u64,
    },
}

impl Place {
    /// Text between `file:` and the place.
    const fn gap(self) -> &'static str {
        match self {
            Place::Line { .. } => "",
            Place::Record { .. } => " ",
        }
    }
}

impl fmt::Display for Place {
    /// `12:7` for a line and column, `record 3 at byte 96` for a record.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line { line, column } => write!(f, "{line}:{column}"),
            Place::Record { number, offset } => write!(f, "record {number} at byte {offset}"),
        }
    }
}

/// A trace cannot be read. Every message names the file.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened.
    #[error("{path}: cannot open the trace: {cause}")]
    Open { path: String, cause: io::Error },
    /// A read failed in the middle.
    #[error("{path}: cannot read on: {cause}")]
    Read { path: String, cause: io::Error },
    /// The compressed data ends too early or is damaged.
    #[error("{path}: {compression} data truncated or damaged ({cause}); check it with `{tool}`")]
    Compressed {
        path: String,
        /// `gzip`, `bzip2`, `xz` or `zstd`.
        compression: &'static str,
        /// The command that checks such a file.
        tool: &'static str,
        /// Error of the decoder.
        cause: io::Error,
    },
    /// Unpacking takes too much memory.
    #[error(
        "{path}: {compression}: its {what} is larger than the {most_mib} MiB that are kept while \
         a trace is read; unpack it first: `{command}{file}`",
        file = file_of(path)
    )]
    TooLarge {
        path: String,
        /// `xz` or `zstd`.
        compression: &'static str,
        /// Its window or dictionary, with its size if that is known.
        what: String,
        most_mib: u64,
        /// The command that unpacks such a file, without the file.
        command: String,
    },
    /// Packed in a way that is not unpacked here.
    #[error("{path}: packed with {with}, which is not read: unpack it first, `{command}{file}`", file = file_of(path))]
    Foreign {
        path: String,
        /// zip, tar, …
        with: &'static str,
        /// The command that unpacks such a file to standard output, without the file.
        command: &'static str,
    },
    /// One record is unusable. The lenient mode skips and counts it.
    #[error("{path}:{gap}{place}: {reason}: expected {expected}, found {found}", gap = place.gap())]
    Record {
        path: String,
        place: Place,
        /// The kind of fault.
        reason: Reason,
        /// Value that the format has there.
        expected: &'static str,
        /// Value of the file there, escaped and shortened.
        found: String,
    },
    /// There is nothing in it at all.
    #[error("{path}: the trace is empty: 0 bytes")]
    NoBytes { path: String },
    /// No reader recognises the content.
    #[error(
        "{path}: trace format not recognised; name it with --input-format: {}; or list its \
         columns: --columns time_us,op,offset_bytes,size_bytes",
        Format::names()
    )]
    UnknownFormat { path: String },
    /// Several readers recognise the content.
    #[error("{path}: could be {candidates}: name the right one with --input-format")]
    AmbiguousFormat {
        path: String,
        /// The formats' names, with `or` in between.
        candidates: String,
    },
    /// The content has two readings: units, or columns.
    #[error("{path}: {problem}")]
    Unclear {
        path: String,
        /// The readings, and what decides between them.
        problem: String,
    },
    /// There is not one request in the trace.
    #[error(
        "{path}: no requests in this trace (read as {format}; {ignored} other lines or events){}",
        advice.as_ref().map(|advice| format!("; {advice}")).unwrap_or_default()
    )]
    Empty {
        path: String,
        /// The format that was detected or given.
        format: Format,
        /// Lines and events that are no requests.
        ignored: u64,
        /// Advice on taking other events as requests.
        advice: Option<String>,
    },
    /// The trace cannot be replayed in the way that was asked for.
    #[error("{path}: {problem}")]
    Replay {
        path: String,
        /// Description of the problem, and of what to do.
        problem: String,
    },
}

/// The file for a command; the standard input has no name.
fn file_of(path: &str) -> String {
    if path == "stdin" { String::new() } else { format!(" {path}") }
}

impl TraceError {
    /// Name of the trace in messages.
    pub fn path(&self) -> &str {
        let (TraceError::Open { path, .. }
        | TraceError::Read { path, .. }
        | TraceError::Compressed { path, .. }
        | TraceError::TooLarge { path, .. }
        | TraceError::Foreign { path, .. }
        | TraceError::Record { path, .. }
        | TraceError::NoBytes { path }
        | TraceError::UnknownFormat { path }
        | TraceError::AmbiguousFormat { path, .. }
        | TraceError::Unclear { path, .. }
        | TraceError::Empty { path, .. }
        | TraceError::Replay { path, .. }) = self;
        path
    }

    /// Renames the trace in the error to `shown`, the name that the user knows.
    pub fn renamed(mut self, shown: &str) -> TraceError {
        // What to do may be a command, which names the file too.
        if let TraceError::Unclear { path, problem } = &mut self {
            *problem = problem.replace(path.as_str(), shown);
        }
        let (TraceError::Open { path, .. }
        | TraceError::Read { path, .. }
        | TraceError::Compressed { path, .. }
        | TraceError::TooLarge { path, .. }
        | TraceError::Foreign { path, .. }
        | TraceError::Record { path, .. }
        | TraceError::NoBytes { path }
        | TraceError::UnknownFormat { path }
        | TraceError::AmbiguousFormat { path, .. }
        | TraceError::Unclear { path, .. }
        | TraceError::Empty { path, .. }
        | TraceError::Replay { path, .. }) = &mut self;
        *path = shown.into();
        self
    }
}
