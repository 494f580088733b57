//! A set of files as Filebench keeps it (`fileset.c`): which exist, how large
//! each is, and the rotation in which they are picked.

use crate::generators::dist::gamma;
use crate::generators::rng::Rng;
use crate::guest::app::FileSpec;
use std::collections::BTreeSet;

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
mod tests {
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
