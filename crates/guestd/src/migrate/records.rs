//! The state file of `migrate`. Each task has a line at a fixed offset, so that a change costs one
//! small write, for any number of changed tasks.
//!
//! A line lies within one page of the file. The kernel writes it whole or not at all: a
//! process is killed between two system calls, or between two pages.

use super::mask_history::MaskHistory;
use crate::state::{Result, StateFile, Stored};
use seekway_vcpu::Affinity;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Of each line, with its end.
const LINE_BYTES: usize = 1024;
/// Begin of the first line.
const MAGIC: &str = "seekway-guest migrate 1";
/// Of the masks that were set, as many are written down.
const MASKS_MAX: usize = 16;

/// The record of one task whose affinity was changed, or is about to be, with the masks that its
/// descendants may have inherited.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    pub pid: i32,
    pub tid: i32,
    /// When it started, in ticks after boot.
    pub start: u64,
    /// Ownership of its mask.
    pub affinity: Affinity,
    /// Masks that were set, to find the task's descendants.
    pub history: MaskHistory,
}

impl Record {
    fn line(&self) -> Option<String> {
        let Record { pid, tid, start, affinity, history } = self;
        let fits = |n: &usize| {
            let line = format!("{tid} {start} {pid} {affinity} {}", history.latest(*n));
            Some(line).filter(|line| line.len() < LINE_BYTES)
        };
        (0..=MASKS_MAX).rev().find_map(|n| fits(&n))
    }

    fn read(line: &str) -> std::result::Result<Record, String> {
        let short = "expected thread, start, process, three lists of CPUs";
        let mut parts = line.splitn(7, ' ');
        let mut next = || parts.next().ok_or(short);
        let (tid, start, pid) = (next()?, next()?, next()?);
        let affinity = format!("{} {} {}", next()?, next()?, next()?).parse()?;
        let number = |e: std::num::ParseIntError| e.to_string();
        Ok(Record {
            tid: tid.parse().map_err(number)?,
            start: start.parse().map_err(number)?,
            pid: pid.parse().map_err(number)?,
            affinity,
            history: parts.next().unwrap_or_default().parse()?,
        })
    }
}

/// Content of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// Numbers of threads mean nothing after another boot.
    pub boot: String,
    pub records: Vec<Record>,
    /// Lines that cannot be read: whom they tell of is not known.
    pub unreadable: usize,
}

impl Stored for Changed {
    fn to_bytes(&self) -> Vec<u8> {
        let first = format!("{MAGIC} {}", self.boot);
        // A record that does not fit was not made.
        let lines = self.records.iter().filter_map(Record::line);
        std::iter::once(first).chain(lines).flat_map(|line| padded(&line)).collect()
    }

    fn from_bytes(bytes: &[u8]) -> std::result::Result<Changed, String> {
        let (first, lines) = bytes.split_at(bytes.len().min(LINE_BYTES));
        let first = str::from_utf8(first).ok().and_then(|line| line.strip_prefix(MAGIC));
        // In a file of shorter lines there are several in the first piece.
        let boot = first.map(str::trim).filter(|boot| boot.lines().count() == 1);
        let boot = boot.ok_or("its first line is another")?.to_string();
        // A slot whose first write failed is a hole in the file: zeroes.
        let used = |line: &&[u8]| line.iter().any(|&b| b != 0 && !b.is_ascii_whitespace());
        let lines = lines.chunks(LINE_BYTES).filter(used);
        let read = lines.map(|line| Record::read(str::from_utf8(line).ok()?.trim_end()).ok());
        let (read, unreadable): (Vec<_>, Vec<_>) = read.partition(Option::is_some);
        let records = read.into_iter().flatten().collect();
        Ok(Changed { boot, records, unreadable: unreadable.len() })
    }
}

fn padded(line: &str) -> Vec<u8> {
    let mut bytes = line.as_bytes().to_vec();
    bytes.resize(LINE_BYTES - 1, b' ');
    bytes.push(b'\n');
    bytes
}

/// A task's slot in the file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place(u64);

/// The file, while the agent works.
#[derive(Debug)]
pub struct Records {
    file: File,
    free: Vec<Place>,
    /// The first slot that was never used.
    end: u64,
}

impl Records {
    /// Begins a file with an earlier agent's remaining changes, and nothing else.
    ///
    /// # Errors
    /// It cannot be written: nothing may be changed then.
    pub fn begin(state: &StateFile, left: &Changed) -> Result<Records> {
        state.save(left)?;
        let file = state.reopen()?;
        Ok(Records { file, free: Vec::new(), end: 1 + left.records.len() as u64 })
    }

    /// In a file of a test's.
    #[cfg(test)]
    pub fn on(file: File) -> Records {
        Records { file, free: Vec::new(), end: 1 }
    }

    /// Takes a slot for a task.
    pub fn place(&mut self) -> Place {
        self.free.pop().unwrap_or_else(|| {
            self.end += 1;
            Place(self.end - 1)
        })
    }

    /// Writes down the change that is about to be made to a task.
    ///
    /// # Errors
    /// It cannot be written: it may not be done then.
    pub fn write(&self, place: Place, record: &Record) -> std::io::Result<()> {
        let line = record.line().ok_or(std::io::ErrorKind::FileTooLarge)?;
        self.file.write_all_at(&padded(&line), place.0 * LINE_BYTES as u64)
    }

    /// The task has gone, or its mask is its owner's again.
    pub fn erase(&mut self, place: Place) {
        // A record that stays will turn out to be put back, or its task to have ended.
        let _ = self.file.write_all_at(&padded(""), place.0 * LINE_BYTES as u64);
        self.free.push(place);
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::migrate::BootTime;
    use proptest::prelude::*;
    use seekway_vcpu::{VcpuId, VcpuSet};
    use std::path::Path;

    /// A new file in this folder, and no changes.
    pub fn in_folder(dir: &Path) -> (StateFile, Records) {
        let state = StateFile::lock(&dir.join("state")).unwrap();
        let nothing = Changed { boot: "b".into(), records: Vec::new(), unreadable: 0 };
        let records = Records::begin(&state, &nothing).unwrap();
        (state, records)
    }

    fn record(tid: i32, affinity: &str) -> Record {
        let mut history = MaskHistory::default();
        (0..20).for_each(|n| history.begin(BootTime(n.into()), VcpuSet::only(VcpuId::new(n))));
        let affinity = affinity.parse().unwrap();
        Record { pid: 5, tid, start: 7, affinity, history: history.latest(MASKS_MAX) }
    }

    fn boot() -> String {
        "b-o-o-t".into()
    }

    #[test]
    fn lines_come_and_go_in_places_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateFile::lock(&dir.path().join("state")).unwrap();
        let left = Changed { boot: boot(), records: vec![record(1, "0-3 1 -")], unreadable: 0 };
        let mut records = Records::begin(&state, &left).unwrap();
        let read = || {
            let changed: Changed = state.load().unwrap().unwrap();
            assert_eq!(changed.boot, boot());
            changed.records
        };
        let [second, third] = [records.place(), records.place()];
        records.write(third, &record(3, "0-3 - 2")).unwrap();
        records.write(second, &record(2, "0-3 - 1")).unwrap();
        records.write(second, &record(2, "0-3 1 2")).unwrap();
        assert_eq!(
            read(),
            [record(1, "0-3 1 -"), record(2, "0-3 1 2"), record(3, "0-3 - 2")],
            "what an earlier agent has left stays"
        );
        records.erase(second);
        assert_eq!(read(), [record(1, "0-3 1 -"), record(3, "0-3 - 2")]);
        assert_eq!(records.place(), second);
        let size = std::fs::metadata(dir.path().join("state")).unwrap().len();
        assert_eq!(size, 4 * LINE_BYTES as u64);
    }

    #[test]
    fn a_line_that_is_too_long_drops_the_past_and_then_is_none() {
        let scattered = |n: u16| {
            let every_other: VcpuSet = (0..n).map(|n| VcpuId::new(2 * n)).collect();
            record(1, &format!("{every_other} - -"))
        };
        let kept = Record::read(&scattered(262).line().unwrap()).unwrap();
        assert!(kept.history != scattered(262).history && kept.affinity == scattered(262).affinity);
        assert_eq!(scattered(400).line(), None);
    }

    #[test]
    fn a_line_that_cannot_be_read_is_counted_and_the_others_are_kept() {
        let records = [1, 2, 3].map(|tid| record(tid, "0-3 1 -")).to_vec();
        let all = Changed { boot: boot(), records, unreadable: 0 };
        let (good, second) = (all.to_bytes(), 2 * LINE_BYTES..3 * LINE_BYTES);
        assert_eq!(Changed::from_bytes(&good), Ok(all.clone()));
        for (byte, unreadable) in [(0, 0), (b'x', 1), (0xff, 1)] {
            let mut bytes = good.clone();
            bytes[second.clone()].fill(byte);
            let read = Changed::from_bytes(&bytes).unwrap();
            let tids: Vec<i32> = read.records.iter().map(|r| r.tid).collect();
            assert_eq!((tids, read.unreadable), (vec![1, 3], unreadable), "{byte}");
        }
        for bad in ["", "seekway-guest 1\n", "seekway-guest migrate 1 b\n1 2 3\n"] {
            assert!(Changed::from_bytes(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn noise_is_no_panic(noise in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Changed::from_bytes(&noise);
            let _ = Changed::from_bytes(&[MAGIC.as_bytes(), b" b\n", &noise].concat());
        }
    }
}
