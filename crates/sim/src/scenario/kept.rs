//! Traces that this process has read: a comparison needs each once for each run, and a program
//! that calls comparisons needs it for each of them.

use seekway_workload::traces::{
    KEPT_BYTES_EACH, Kept, Scan, TraceError, TraceFiles, TraceOptions, keep, scan,
};
use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Memory of all requests that are kept, in bytes: 37 million requests.
const BYTES_MAX: usize = 1 << 30;
/// Most traces that are known.
const TRACES_MAX: usize = 4096;

/// Findings of a pass over a trace.
pub struct ScannedTrace {
    pub scan: Scan,
    /// Its requests, unless they are too many.
    pub kept: Option<Arc<Kept>>,
}

/// A file as it was.
#[derive(Clone, PartialEq)]
struct FileState {
    device: u64,
    inode: u64,
    bytes: u64,
    modified_ns: i128,
}

/// A trace's files as they were, and how they were read.
#[derive(Clone, PartialEq)]
struct Key {
    files: Vec<FileState>,
    /// Messages and the names of volumes have it.
    path: Box<Path>,
    options: TraceOptions,
}

impl Key {
    /// `None` for an input that is no file: it is read each time.
    fn of(path: &Path, options: &TraceOptions) -> Option<Key> {
        let found = TraceFiles::find(path, options.format).ok()?;
        let files = found.files.iter().map(|file| {
            let about = file.metadata().ok().filter(|about| about.is_file())?;
            let modified_ns =
                i128::from(about.mtime()) * 1_000_000_000 + i128::from(about.mtime_nsec());
            let (device, inode, bytes) = (about.dev(), about.ino(), about.len());
            Some(FileState { device, inode, bytes, modified_ns })
        });
        Some(Key {
            files: files.collect::<Option<_>>()?,
            path: path.into(),
            options: options.clone(),
        })
    }
}

impl Drop for ScannedTrace {
    fn drop(&mut self) {
        BYTES.fetch_sub(self.kept.as_ref().map_or(0, |kept| kept.bytes()), Ordering::Relaxed);
    }
}

/// Memory of all [`ScannedTrace`]s, known here or only to those who use them.
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Known traces in the order of their last use, the latest in front.
type Traces = VecDeque<(Key, Arc<ScannedTrace>)>;

static TRACES: Mutex<Traces> = Mutex::new(VecDeque::new());

/// The trace at `path`, and whether it was read now: an unchanged file is read once.
pub fn scanned(
    path: &Path,
    options: &TraceOptions,
) -> Result<(Arc<ScannedTrace>, bool), TraceError> {
    let key = Key::of(path, options);
    let lock = || TRACES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = key.as_ref().and_then(|key| find(&mut lock(), key)) {
        return Ok((found, false));
    }
    let scan = scan(path, options)?;
    let bytes = (scan.stats.requests() as usize).saturating_mul(KEPT_BYTES_EACH);
    let kept = match key.is_some() && make_room(&mut lock(), bytes, BYTES_MAX) {
        true => keep(path, options, &scan)?.map(Arc::new),
        false => None,
    };
    BYTES.fetch_add(kept.as_ref().map_or(0, |kept| kept.bytes()), Ordering::Relaxed);
    let made = Arc::new(ScannedTrace { scan, kept });
    // A file that changes while it is read is of no use to others.
    if let Some(key) = key.filter(|key| Key::of(path, options).as_ref() == Some(key)) {
        let mut known = lock();
        known.push_front((key, made.clone()));
        known.truncate(TRACES_MAX);
    }
    Ok((made, true))
}

fn find(known: &mut Traces, key: &Key) -> Option<Arc<ScannedTrace>> {
    let at = known.iter().position(|(known, _)| known == key)?;
    let found = known.remove(at)?;
    let trace = found.1.clone();
    known.push_front(found);
    Some(trace)
}

/// Forgets the least recently used traces until there is room for `bytes` more. False if there is
/// none: those in use stay.
fn make_room(known: &mut Traces, bytes: usize, bytes_max: usize) -> bool {
    let full = || BYTES.load(Ordering::Relaxed).saturating_add(bytes) > bytes_max;
    while full() && known.pop_back().is_some() {}
    !full()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(path: &Path, requests: u64) {
        let row = |n: u64| format!("{n} 0 {} 8 1\n", n * 8);
        fs::write(path, (0..requests).map(row).collect::<String>()).unwrap();
    }

    /// One test, because the kept traces belong to the whole process.
    #[test]
    fn traces_are_read_once_and_leave_when_there_is_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let (path, options) = (dir.path().join("t.trace"), TraceOptions::default());
        write(&path, 10);
        let (first, is_new) = scanned(&path, &options).unwrap();
        assert!(is_new);
        assert_eq!(first.kept.as_ref().unwrap().bytes(), 290);
        let (again, is_new) = scanned(&path, &options).unwrap();
        assert!(Arc::ptr_eq(&first, &again) && !is_new);
        drop(again);
        let fewer = TraceOptions { limit: Some(3), ..TraceOptions::default() };
        assert_eq!(scanned(&path, &fewer).unwrap().0.scan.stats.requests(), 3);
        write(&path, 11);
        assert_eq!(scanned(&path, &options).unwrap().0.scan.stats.requests(), 11);

        let mut traces = TRACES.lock().unwrap();
        assert_eq!(BYTES.load(Ordering::Relaxed), 29 * (10 + 3 + 11));
        assert!(!make_room(&mut traces, 29, 29 * 10), "what is in use has all the room");
        assert_eq!(BYTES.load(Ordering::Relaxed), 29 * 10, "all others have left");
        drop(first);
        assert!(make_room(&mut traces, 29, 29));
    }
}
