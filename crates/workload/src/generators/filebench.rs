//! Servers as Filebench describes them: the personalities `fileserver`,
//! `webserver`, `varmail`, `webproxy`, `oltp` and `videoserver` of
//! <https://github.com/filebench/filebench> (`workloads/*.f`, version 1.5, with
//! `flowop_library.c` and `fileset.c` for what their steps do). [`super::servers`] has
//! them; this file has their sets of files and their limits.
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

use crate::generators::param;
use crate::guest::app::{FileSpec, Op};
use crate::rng::{Rng, gamma};
use seekway_core::params::{Kind, ParamError, ParamSpec, Params};
use seekway_core::units::{Instant, Nanos};
use std::collections::BTreeSet;

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

// A set of files as Filebench keeps it (`fileset.c`): which exist, how large
// each is, and the rotation in which they are picked.

/// Largest file, 4 TiB.
pub const FILE_BYTES_MAX: u64 = 1 << 42;

/// Parameters of a set.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Files, existing or not.
    pub count: u32,
    /// Their mean size, bytes.
    pub mean_bytes: u64,
    /// Sizes by the gamma distribution of shape 1.5, else all the same.
    pub gamma: bool,
    /// Files that exist at the start, in percent, at random.
    pub prealloc_percent: u64,
    /// Room behind each for appends, bytes.
    pub room_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Index among the application's files.
    file: u32,
    /// The size that it has when written as a whole, bytes.
    whole: u64,
    /// Present size, bytes.
    bytes: u64,
    /// Threads that have it open.
    open: u32,
}

/// The files of one set.
#[derive(Clone, Default, Debug)]
pub struct FileSet {
    entries: Vec<Entry>,
    room_bytes: u64,
    existing: BTreeSet<u32>,
    absent: BTreeSet<u32>,
    /// Where the search for an existing, and for an absent file goes on.
    rotors: [u32; 2],
}

impl FileSet {
    /// A set, and its files in the order in which they are laid out, numbered
    /// from `first_file` on.
    pub fn new(shape: Shape, first_file: u32, rng: &mut Rng) -> (FileSet, Vec<FileSpec>) {
        let mut places: Vec<u32> = (0..shape.count).collect();
        rng.shuffle(&mut places);
        let mut specs = vec![FileSpec::absent(0); shape.count as usize];
        let mut entries = Vec::with_capacity(places.len());
        let (mut existing, mut absent) = (Vec::new(), Vec::new());
        for (number, place) in (0..).zip(places) {
            let drawn = if shape.gamma { gamma(rng, 1.5, shape.mean_bytes as f64) } else { 0.0 };
            let whole = if shape.gamma { (drawn as u64).max(1) } else { shape.mean_bytes };
            // What exceeds it exceeds any image, and sums of it fit.
            let whole = whole.min(FILE_BYTES_MAX);
            let exists = rng.percent(shape.prealloc_percent);
            let bytes = if exists { whole } else { 0 };
            specs[place as usize] =
                FileSpec { bytes: whole + shape.room_bytes.min(FILE_BYTES_MAX), present: bytes };
            entries.push(Entry { file: first_file + place, whole, bytes, open: 0 });
            let to = if exists { &mut existing } else { &mut absent };
            to.push(number);
        }
        let set = FileSet {
            entries,
            room_bytes: shape.room_bytes,
            // From what is in order a set is made at once.
            existing: existing.into_iter().collect(),
            absent: absent.into_iter().collect(),
            rotors: [0; 2],
        };
        (set, specs)
    }

    /// A set of files that all exist, of these sizes in bytes, numbered from `first_file` on.
    pub fn full(sizes: &[u64], first_file: u32) -> FileSet {
        let entry = |(file, &bytes): (u32, &u64)| Entry { file, whole: bytes, bytes, open: 0 };
        FileSet {
            entries: (first_file..).zip(sizes).map(entry).collect(),
            existing: (0..sizes.len() as u32).collect(),
            ..FileSet::default()
        }
    }

    fn pick(&mut self, existing: bool) -> Option<u32> {
        let from = if existing { &self.existing } else { &self.absent };
        let rotor = &mut self.rotors[usize::from(existing)];
        let entry = *from.range(*rotor..).next().or_else(|| from.first())?;
        *rotor = entry + 1;
        Some(entry)
    }

    pub fn open_entry(&mut self, entry: u32) -> u32 {
        self.entries[entry as usize].open += 1;
        entry
    }
    /// The next existing file, opened.
    pub fn open(&mut self) -> Option<u32> {
        self.pick(true).map(|entry| self.open_entry(entry))
    }
    /// The next absent file, created empty and opened.
    pub fn create(&mut self) -> Option<u32> {
        let entry = self.pick(false)?;
        self.absent.remove(&entry);
        self.existing.insert(entry);
        Some(self.open_entry(entry))
    }
    /// The next existing file, taken from the set to be removed; `None` also
    /// when it happens to be open. [`FileSet::removed`] gives it back.
    pub fn remove(&mut self) -> Option<u32> {
        let entry = self.pick(true)?;
        if self.entries[entry as usize].open > 0 {
            return None;
        }
        self.existing.remove(&entry);
        self.entries[entry as usize].bytes = 0;
        Some(entry)
    }
    /// The removal is done.
    pub fn removed(&mut self, entry: u32) {
        self.absent.insert(entry);
    }
    /// A thread has closed the file.
    pub fn close(&mut self, entry: u32) {
        self.entries[entry as usize].open -= 1;
    }

    /// Index among the application's files.
    pub fn file(&self, entry: u32) -> u32 {
        self.entries[entry as usize].file
    }
    /// Bytes that there are of it.
    pub fn bytes(&self, entry: u32) -> u64 {
        self.entries[entry as usize].bytes
    }
    /// Bytes that it has when written as a whole.
    pub fn whole(&self, entry: u32) -> u64 {
        self.entries[entry as usize].whole
    }
    /// `len` bytes are written from `offset` on: as many as there is room for.
    pub fn write(&mut self, entry: u32, offset: u64, len: u64) -> u64 {
        let e = &mut self.entries[entry as usize];
        let len = len.min((e.whole + self.room_bytes).saturating_sub(offset));
        e.bytes = e.bytes.max(offset + len);
        len
    }
    /// Counts the files that exist, and those that do not.
    pub fn counts(&self) -> (usize, usize) {
        (self.existing.len(), self.absent.len())
    }
}

#[cfg(test)]
mod fileset_tests {
    use super::*;

    const SHAPE: Shape = Shape {
        count: 20_000,
        mean_bytes: 16_384,
        gamma: true,
        prealloc_percent: 80,
        room_bytes: 1000,
    };

    #[test]
    fn sizes_and_existence_are_as_asked() {
        let (set, specs) = FileSet::new(SHAPE, 7, &mut Rng::new(3));
        let mean = (0..20_000).map(|e| set.whole(e)).sum::<u64>() as f64 / 20_000.0;
        assert!((mean / 16_384.0 - 1.0).abs() < 0.03, "{mean}"); // sd 0.6 %
        let (existing, absent) = set.counts();
        assert!((15_700..16_300).contains(&existing), "{existing}"); // sd 57
        assert_eq!(existing + absent, 20_000);
        for entry in 0..20_000 {
            let spec = specs[set.file(entry) as usize - 7];
            assert_eq!(spec.bytes, set.whole(entry) + 1000);
            assert_eq!(spec.present, set.bytes(entry));
        }
        let in_order = (0..19_999).filter(|e| set.file(e + 1) == set.file(*e) + 1).count();
        assert!(in_order < 20, "files lie at random");
    }

    #[test]
    fn files_are_picked_in_rotation_and_open_ones_are_not_removed() {
        let shape = Shape { count: 3, gamma: false, prealloc_percent: 100, ..SHAPE };
        let (mut set, _) = FileSet::new(shape, 0, &mut Rng::new(1));
        assert_eq!([set.open(), set.open(), set.open(), set.open()], [0, 1, 2, 0].map(Some));
        assert_eq!((set.create(), set.remove()), (None, None));
        set.close(2);
        assert_eq!(set.remove(), Some(2));
        assert_eq!((set.open(), set.counts(), set.create()), (Some(0), (2, 0), None));
        set.removed(2);
        assert_eq!((set.create(), set.bytes(2)), (Some(2), 0));
        assert_eq!(set.write(2, 0, 500), 500);
        assert_eq!((set.write(2, 500, 100_000), set.bytes(2)), (16_884, 17_384));
        assert_eq!(set.write(2, 17_384, 1), 0);
    }
}
