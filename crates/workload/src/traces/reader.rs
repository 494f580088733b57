//! Opening a trace and drawing records from it, in the order of time.

use super::blktrace::{BlktraceDecoder, BlktraceEvent};
use super::buffer::Buffer;
use super::buffer::{Compression, TooLarge, foreign, is_tar, packed, read_up_to, unpack};
use super::raw::{Decode, Raw, Step, Stop, Volumes};
use super::stats::{Scan, ScannedVolume, TraceStats, VolumeStats};
use super::text::{Head, TextDecoder, other_text};
use super::{Format, Kept, Record, TraceError, TraceFiles, blktrace, fio, records};
use seekway_core::units::Nanos;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

/// Bytes that the format is detected from.
const SNIFF_BYTES: usize = 64 << 10;
/// Bytes of the windows of all packed files of one trace, and the least that each may have: more
/// than the ordinary levels of zstd and xz take.
const WINDOWS_BYTES_MAX: u64 = 1 << 30;
const WINDOW_BYTES_LEAST: u64 = 8 << 20;
/// Requests that the reorder window holds at most, and the trace time that it spans.
const WINDOW_REQUESTS_MAX: usize = 65_536;
const WINDOW_TIME_MAX: Nanos = Nanos::from_secs(1);

/// Options for reading a trace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TraceOptions {
    /// Format of the trace; `None` detects it from its content and name.
    pub format: Option<Format>,
    /// Which events of a blktrace are the requests; `None` takes those of the first kind that it
    /// has: queued, issued, completed.
    pub blktrace_event: Option<BlktraceEvent>,
    /// The columns of a table, `time_us,op,offset_bytes,size_bytes`, or the form of `blkparse -f`,
    /// `%T.%t %d %S %n`, instead of what the file says itself.
    pub columns: Option<String>,
    /// Skip and count unusable records instead of failing at the first.
    pub lenient: bool,
    /// Number of requests after which reading stops.
    pub limit: Option<u64>,
    /// Stop before the first request later than this (in trace time).
    pub duration_max: Option<Nanos>,
}

/// A trace, request by request, sorted by time.
pub struct TraceReader {
    path: String,
    format: Format,
    compression: Option<Compression>,
    options: TraceOptions,
    decoder: Box<dyn Decode>,
    volumes: Volumes,
    window: Window,
    stats: TraceStats,
    /// Of its files.
    notes: Vec<String>,
    /// The decoder has no more.
    drained: bool,
    /// Nothing more is handed on: end, limit or error.
    over: bool,
    /// The raw time that counts as zero.
    origin_ns: Option<u64>,
}

impl TraceReader {
    /// Open the trace at `path`; `-` is the standard input. The name of one CPU's file of a
    /// blktrace, the beginning of their names and a pattern stand for the files of all CPUs:
    /// [`TraceFiles`].
    pub fn open(path: &Path, options: &TraceOptions) -> Result<TraceReader, TraceError> {
        let name = path.display().to_string();
        if name == "-" {
            return TraceReader::from_read("stdin", Box::new(io::stdin()), options);
        }
        let found = TraceFiles::find(path, options.format)?;
        let alone = found.files.first().filter(|file| !found.of_cpus || *file == path);
        let mut reader = match alone.filter(|_| found.files.len() == 1) {
            Some(file) => TraceReader::one_file(file, options)?,
            None => TraceReader::per_cpu(&name, &found.files, options)?,
        };
        reader.notes = found.notes;
        Ok(reader)
    }

    fn one_file(path: &Path, options: &TraceOptions) -> Result<TraceReader, TraceError> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) if !path.is_dir() => TraceReader::from_read(&name, Box::new(file), options),
            Ok(_) => {
                Err(TraceError::Open { path: name, cause: io::ErrorKind::IsADirectory.into() })
            }
            Err(cause) => Err(TraceError::Open { path: name, cause }),
        }
    }

    /// Read a trace from any stream; `name` is what messages call it, and its
    /// stem names the volume of a format without volumes.
    pub fn from_read(
        name: &str,
        input: Box<dyn Read + Send>,
        options: &TraceOptions,
    ) -> Result<TraceReader, TraceError> {
        let (mut input, compression) =
            unpack(input, u64::MAX).map_err(|e| read_error(name, None, e))?;
        let mut head = vec![0; SNIFF_BYTES];
        let held =
            read_up_to(&mut *input, &mut head).map_err(|e| read_error(name, compression, e))?;
        head.truncate(held);
        if let (Some(outer), Some(inner)) = (compression, packed(&head)) {
            let (outer, inner) = (outer.name, inner.name);
            let problem = format!("packed twice, with {inner} and then {outer}: unpack it once");
            return Err(TraceError::Unclear { path: name.into(), problem });
        }
        let begin = Head { bytes: &head, whole: held < SNIFF_BYTES };
        let unclear = |problem| TraceError::Unclear { path: name.into(), problem };
        let format = match options.format {
            _ if head.is_empty() => return Err(TraceError::NoBytes { path: name.into() }),
            _ if is_tar(&head) => return Err(or_foreign(unknown(name), &head)),
            Some(format) => format,
            None => Format::detect(begin, name, options).map_err(|e| or_foreign(e, &head))?,
        };
        // The name cannot make a trace of it, but say that it is none.
        if format == Format::FioLog && (name.contains("_bw.") || name.contains("_iops.")) {
            return Err(unclear(fio::NOT_LATENCIES.into()));
        }
        let buffer = Buffer::new(Box::new(Cursor::new(head.clone()).chain(input)));
        let decoder: Box<dyn Decode> = match (format, format.parser()) {
            (_, Some(mut parser)) => {
                if let Some(problem) = other_text(&head) {
                    return Err(unclear(problem.into()));
                }
                parser.begin(&begin, options).map_err(unclear)?;
                Box::new(TextDecoder::new(buffer, parser))
            }
            (Format::Vscsi, _) => records::vscsi(buffer, &head),
            (Format::OracleGeneral, _) => records::oracle(buffer),
            _ => {
                Box::new(BlktraceDecoder::new(vec![(name.into(), buffer)], options.blktrace_event))
            }
        };
        Ok(TraceReader::new(name, format, compression, decoder, options))
    }

    fn per_cpu(
        name: &str,
        files: &[PathBuf],
        options: &TraceOptions,
    ) -> Result<TraceReader, TraceError> {
        let window_max = (WINDOWS_BYTES_MAX / files.len() as u64).max(WINDOW_BYTES_LEAST);
        let mut streams = Vec::new();
        for file in files {
            let path = file.display().to_string();
            let opened =
                File::open(file).map_err(|cause| TraceError::Open { path: path.clone(), cause })?;
            let (input, compression) =
                unpack(Box::new(opened), window_max).map_err(|e| read_error(&path, None, e))?;
            let input = FileOfSet { path: path.clone(), compression, input };
            let mut buffer = Buffer::new(Box::new(input));
            let head = buffer.ensure(blktrace::RECORD_BYTES_MAX);
            let head = head.map_err(|e| read_error(&path, None, e))?;
            if !head.is_empty() && !blktrace::is_blktrace(head) {
                return Err(TraceError::UnknownFormat { path });
            }
            streams.push((path, buffer));
        }
        let decoder = Box::new(BlktraceDecoder::new(streams, options.blktrace_event));
        Ok(TraceReader::new(name, Format::Blktrace, None, decoder, options))
    }

    fn new(
        name: &str,
        format: Format,
        compression: Option<Compression>,
        decoder: Box<dyn Decode>,
        options: &TraceOptions,
    ) -> TraceReader {
        TraceReader {
            path: name.into(),
            format,
            compression,
            options: options.clone(),
            decoder,
            volumes: Volumes::new(&stem(name)),
            window: Window::new(WINDOW_REQUESTS_MAX, WINDOW_TIME_MAX.get()),
            stats: TraceStats::default(),
            notes: Vec::new(),
            drained: false,
            over: false,
            origin_ns: None,
        }
    }

    /// Name of the trace in messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The format that was given, or else detected.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The units of times, offsets and sizes, as they are taken.
    pub fn units(&self) -> String {
        self.decoder.units().unwrap_or_else(|| self.format.units().into())
    }

    /// Everything known of the requests that were handed on.
    pub fn seen(&self) -> Scan {
        let mut stats = self.stats.clone();
        // A limit can cut off the first request of a volume that has been named.
        stats.volumes.resize(self.volumes.names().len(), VolumeStats::default());
        let named = self.volumes.names().iter().zip(&stats.volumes);
        let volumes = named
            .map(|(name, stats)| ScannedVolume { name: name.to_string(), stats: *stats })
            .collect();
        let (format, units, notes) = (self.format, self.units(), self.notes());
        Scan { format, units, notes, volumes, stats }
    }

    /// Sums over the requests that were handed on.
    pub fn stats(&self) -> &TraceStats {
        &self.stats
    }

    /// Remarks for the user until now: the files and events that the trace is of, and the records
    /// that were left out.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.notes.clone();
        notes.extend(self.decoder.notes());
        if self.format == Format::Blktrace && self.stats.clamped > 0 {
            notes.push(
                "times go back: if it is the files of several CPUs one after the other, name one \
                 of the files instead"
                    .into(),
            );
        }
        notes
    }

    /// The name of volume `number`; empty for a number that no record had.
    pub fn volume_name(&self, number: u32) -> &str {
        self.volumes.names().get(number as usize).map_or("", |name| name)
    }

    /// The time of the first request, by the trace's own clock.
    pub fn origin(&self) -> Nanos {
        Nanos::new(self.origin_ns.unwrap_or(0))
    }

    /// The next request, `None` at the end. After an error the trace is over.
    pub fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        if self.over || self.options.limit.is_some_and(|limit| self.stats.requests() >= limit) {
            return Ok(None);
        }
        let raw = match self.next_raw() {
            Ok(Some(raw)) => raw,
            end => {
                self.over = true;
                return end.map(|_| None);
            }
        };
        let record = self.place(raw);
        if self.options.duration_max.is_some_and(|max| record.at > max) {
            self.over = true;
            return Ok(None);
        }
        self.stats.add(&record);
        Ok(Some(record))
    }

    /// The next request in the order of time, by the trace's own clock.
    fn next_raw(&mut self) -> Result<Option<Raw>, TraceError> {
        loop {
            if let Some(raw) = self.window.pop(self.drained) {
                self.stats.reordered = self.window.reordered;
                self.stats.clamped = self.window.clamped;
                return Ok(Some(raw));
            }
            if self.drained {
                return Ok(None);
            }
            match self.decoder.step(&mut self.volumes) {
                Ok(Step::Request(raw)) => {
                    self.stats.rounded += u64::from(raw.span.rounded);
                    self.window.push(raw);
                }
                Ok(Step::Header) => {}
                Ok(Step::Ignored) => self.stats.ignored += 1,
                Ok(Step::End) => self.drained = true,
                Err(stop) => self.stopped(stop)?,
            }
        }
    }

    /// Skip the record if that is allowed.
    #[cold]
    fn stopped(&mut self, stop: Stop) -> Result<(), TraceError> {
        let (fault, place) = match stop {
            Stop::Record { fault, place } => (fault, place),
            Stop::Io(e) => return Err(read_error(&self.path, self.compression, e)),
        };
        let reason = fault.reason;
        let error = TraceError::Record {
            path: self.path.clone(),
            place,
            reason,
            expected: fault.expected,
            found: fault.found.unwrap_or_default(),
        };
        if !self.options.lenient {
            return Err(error);
        }
        self.stats.skip(reason, || error.to_string());
        Ok(())
    }

    /// Shifts a request to the trace's origin.
    fn place(&mut self, raw: Raw) -> Record {
        let Raw { time_ns, took_ns, volume, process, op, sync, span } = raw;
        let origin = *self.origin_ns.get_or_insert(time_ns);
        let at = Nanos::new(time_ns.saturating_sub(origin));
        let (took, start, len) = (Nanos::new(took_ns), span.start, span.len);
        Record { at, took, volume, process, op, sync, start, len }
    }
}

impl Iterator for TraceReader {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_record().transpose()
    }
}

/// Can the trace be read twice? Not so for the standard input and pipes.
pub fn scannable(path: &Path) -> bool {
    path.as_os_str() != "-" && (path.is_file() || !path.exists())
}

/// Read the whole trace once (under the options' limits) and say what is in
/// it: capacities for placing VMs, counts, duration. An error when there is
/// not one request.
pub fn scan(path: &Path, options: &TraceOptions) -> Result<Scan, TraceError> {
    scan_each(path, options, |_| ())
}

/// As [`scan`], and calls `each` with every request.
pub fn scan_each(
    path: &Path,
    options: &TraceOptions,
    mut each: impl FnMut(&Record),
) -> Result<Scan, TraceError> {
    let mut reader = TraceReader::open(path, options)?;
    while let Some(record) = reader.next_record()? {
        each(&record);
    }
    if reader.stats.requests() == 0 {
        let TraceReader { path, format, stats, decoder, .. } = reader;
        let (ignored, advice) = (stats.ignored, decoder.advice());
        return Err(TraceError::Empty { path, format, ignored, advice });
    }
    Ok(reader.seen())
}

/// Reads the whole trace into memory; `scanned` is what [`scan`] found under the same options.
/// `None` if the trace is another by now.
pub fn keep(
    path: &Path,
    options: &TraceOptions,
    scanned: &Scan,
) -> Result<Option<Kept>, TraceError> {
    let mut reader = TraceReader::open(path, options)?;
    let mut kept = Kept::for_requests(scanned.stats.requests() as usize);
    while let Some(record) = reader.next_record()? {
        if reader.stats().requests() > scanned.stats.requests() {
            return Ok(None);
        }
        kept.push(&record);
    }
    Ok((*reader.stats() == scanned.stats).then_some(kept))
}

/// One of several files; its errors name it.
struct FileOfSet {
    path: String,
    compression: Option<Compression>,
    input: Box<dyn Read + Send>,
}

impl Read for FileOfSet {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.input.read(out).map_err(|e| match e.kind() {
            io::ErrorKind::Interrupted => e,
            _ => io::Error::other(read_error(&self.path, self.compression, e)),
        })
    }
}

fn unknown(name: &str) -> TraceError {
    TraceError::UnknownFormat { path: name.into() }
}

/// Of what is no trace in any format: is it packed in another way, or another kind of text?
fn or_foreign(error: TraceError, head: &[u8]) -> TraceError {
    match (error, foreign(head), other_text(head)) {
        (TraceError::UnknownFormat { path }, Some((with, command)), _) => {
            TraceError::Foreign { path, with, command }
        }
        (TraceError::UnknownFormat { path }, None, Some(problem)) => {
            TraceError::Unclear { path, problem: problem.into() }
        }
        (error, ..) => error,
    }
}

fn read_error(path: &str, compression: Option<Compression>, source: io::Error) -> TraceError {
    let source = match source.downcast::<TraceError>() {
        Ok(error) => return error,
        Err(source) => source,
    };
    let path = path.into();
    let Some(Compression { name: compression, check: tool, .. }) = compression else {
        return TraceError::Read { path, cause: source };
    };
    match source.downcast::<TooLarge>() {
        Ok(TooLarge { what, most_mib, command }) => {
            TraceError::TooLarge { path, compression, what, most_mib, command }
        }
        Err(cause) => TraceError::Compressed { path, compression, tool, cause },
    }
}

/// File name up to its first dot: `trace` of `dir/trace.csv.gz`.
pub(crate) fn stem(name: &str) -> String {
    let file = Path::new(name).file_name().map_or(name.into(), |f| f.to_string_lossy());
    let stem = file.split('.').find(|part| !part.is_empty()).unwrap_or("trace");
    stem.into()
}

// Sorting by time within a bounded window.

/// Holds requests back until nothing earlier can come any more, as far as the
/// window reaches. Requests that come in order cost no sorting: they queue;
/// only the late ones go through a map.
pub(super) struct Window {
    records_max: usize,
    time_max_ns: u64,
    in_order: VecDeque<Raw>,
    /// By time, and then in the order in which they came.
    late: BTreeMap<(u64, u64), Raw>,
    /// The latest time that has come in, and the latest that has gone out.
    newest_ns: u64,
    released_ns: u64,
    pub(super) reordered: u64,
    pub(super) clamped: u64,
}

impl Window {
    /// A window of at most `records_max` requests and `time_max_ns` nanoseconds
    /// of trace time, whichever is reached first.
    pub(super) fn new(records_max: usize, time_max_ns: u64) -> Self {
        Window {
            records_max,
            time_max_ns,
            in_order: VecDeque::new(),
            late: BTreeMap::new(),
            newest_ns: 0,
            released_ns: 0,
            reordered: 0,
            clamped: 0,
        }
    }

    /// Take in the next request of the trace.
    pub(super) fn push(&mut self, raw: Raw) {
        if raw.time_ns >= self.newest_ns {
            self.newest_ns = raw.time_ns;
            self.in_order.push_back(raw);
            return;
        }
        self.reordered += 1;
        self.late.insert((raw.time_ns, self.reordered), raw);
    }

    /// The earliest request, once the window is full or `over` says that no
    /// more will come. Times never decrease: a request that came too late for
    /// the window gets the time of the one before it.
    pub(super) fn pop(&mut self, over: bool) -> Option<Raw> {
        let front = self.in_order.front().map(|raw| raw.time_ns);
        let late = self.late.first_key_value().map(|((time_ns, _), _)| *time_ns);
        let earliest = match (front, late) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b)?,
        };
        let held = self.in_order.len() + self.late.len();
        if !over && held <= self.records_max && self.newest_ns - earliest <= self.time_max_ns {
            return None;
        }
        // Of equal times the one in order came first.
        let mut raw = match (front, late) {
            (Some(a), Some(b)) if b < a => self.late.pop_first()?.1,
            (None, _) => self.late.pop_first()?.1,
            _ => self.in_order.pop_front()?,
        };
        if raw.time_ns < self.released_ns {
            self.clamped += 1;
            raw.time_ns = self.released_ns;
        }
        self.released_ns = raw.time_ns;
        Some(raw)
    }
}

#[cfg(test)]
mod order_tests {
    use super::super::raw::Span;
    use super::*;
    use seekway_core::request::Op;

    #[test]
    fn later_than_the_window_is_clamped() {
        let read = |records, time_ns| {
            let mut window = Window::new(records, time_ns);
            let mut times = Vec::new();
            for time_ns in [100, 101, 102, 103, 104, 50, 103] {
                let (op, span) = (Op::Read, Span::NONE);
                let (took_ns, volume, process) = (0, 0, 0);
                window.push(Raw { time_ns, took_ns, volume, process, op, sync: true, span });
                times.extend(std::iter::from_fn(|| window.pop(false)).map(|raw| raw.time_ns));
            }
            times.extend(std::iter::from_fn(|| window.pop(true)).map(|raw| raw.time_ns));
            (times, window.reordered, window.clamped)
        };
        assert_eq!(read(100, 1000), (vec![50, 100, 101, 102, 103, 103, 104], 2, 0));
        assert_eq!(read(3, 1000), (vec![100, 101, 101, 102, 103, 103, 104], 2, 1));
        assert_eq!(read(100, 2), (vec![100, 101, 101, 102, 103, 103, 104], 2, 1));
        assert_eq!(read(0, 0), (vec![100, 101, 102, 103, 104, 104, 104], 2, 2));
    }
}
