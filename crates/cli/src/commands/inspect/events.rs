//! Depth of a trace of the block layer's events: requests at the driver, from their issue (D) to
//! their completion (C).

use seekway_core::units::Nanos;
use seekway_workload::trace_stats::depth::{DEPTH_MAX, Depth};
use seekway_workload::traces::{
    BlktraceEvent, Format, Record, TraceError, TraceOptions, TraceReader,
};
use std::collections::HashMap;
use std::path::Path;

/// Has the format events of issue and completion?
pub fn tells(format: Format) -> bool {
    matches!(format, Format::Blktrace | Format::Blkparse | Format::Perf)
}

/// Reads the trace by its issues and by its completions, and pairs these. The depth is empty if the
/// trace has not both.
pub fn depth(path: &Path, options: &TraceOptions) -> Result<Depth, TraceError> {
    let mut depth = Depth::default();
    // Lines that do not say their event cannot be read by it.
    let (Ok(mut issued), Ok(mut done)) = (
        Events::open(path, options, BlktraceEvent::Issued),
        Events::open(path, options, BlktraceEvent::Completed),
    ) else {
        return Ok(depth);
    };
    let mut under_way: HashMap<Request, u64> = HashMap::new();
    let (mut issue, mut completion) = (issued.next()?, done.next()?);
    loop {
        match (&issue, &completion) {
            (Some((at, request)), Some((done_at, _))) if at <= done_at => {
                if under_way.len() < DEPTH_MAX && under_way.insert(request.clone(), *at).is_none() {
                    depth.issued();
                }
                issue = issued.next()?;
            }
            (_, Some((at, request))) => {
                if let Some(from) = under_way.remove(request) {
                    depth.done(Nanos::new(at - from));
                }
                completion = done.next()?;
            }
            (_, None) => return Ok(depth),
        }
    }
}

/// The events of one kind.
struct Events(TraceReader);

/// Volume, first sector and length.
type Request = (String, u64, u64);

impl Events {
    fn open(
        path: &Path,
        options: &TraceOptions,
        event: BlktraceEvent,
    ) -> Result<Events, TraceError> {
        // The first pass has told of records that cannot be read.
        let blktrace_event = Some(event);
        let options = TraceOptions { blktrace_event, lenient: true, ..options.clone() };
        TraceReader::open(path, &options).map(Events)
    }

    /// The next event: its time by the trace's own clock, and the request.
    fn next(&mut self) -> Result<Option<(u64, Request)>, TraceError> {
        let Some(Record { at, volume, start, len, .. }) = self.0.next_record()? else {
            return Ok(None);
        };
        let volume = self.0.volume_name(volume).to_string();
        Ok(Some((self.0.origin().get() + at.get(), (volume, start.get(), len.get()))))
    }
}
