//! Contents of a simulated device: for reads, and after a power failure.

use super::random::Random;
use seekway_testing::disk::SECTOR_BYTES;
use std::collections::BTreeMap;

type Sector = [u8; SECTOR_BYTES];

/// A file or device with a write cache.
#[derive(Default)]
pub struct Content {
    /// The data that reads find: the last write to each sector.
    data: Vec<u8>,
    /// The data that is left after a power failure, but for `cached`.
    durable: Vec<u8>,
    /// Writes to each sector after it was last made durable, in order: after a power failure any of
    /// them may be there, or none.
    cached: BTreeMap<usize, Vec<Sector>>,
    /// Something that reads find is on no device, and no sync brings it there.
    is_lost: bool,
}

impl Content {
    /// A file of this number of zeroes, all of them durable.
    pub fn new(bytes: usize) -> Content {
        let (data, durable) = (vec![0; bytes], vec![0; bytes]);
        Content { data, durable, ..Content::default() }
    }

    /// Makes the file larger.
    pub fn grow(&mut self, bytes: usize) {
        self.data.resize(bytes, 0);
        self.durable.resize(bytes, 0);
    }

    pub fn bytes(&self) -> &[u8] {
        &self.data
    }

    /// Write whole sectors; `durable` as O_DSYNC has it.
    pub fn write(&mut self, offset: usize, bytes: &[u8], durable: bool) {
        assert!(offset.is_multiple_of(SECTOR_BYTES) && bytes.len().is_multiple_of(SECTOR_BYTES));
        self.data[offset..offset + bytes.len()].copy_from_slice(bytes);
        for (n, sector) in bytes.as_chunks::<SECTOR_BYTES>().0.iter().enumerate() {
            let number = offset / SECTOR_BYTES + n;
            self.cached.entry(number).or_default().push(*sector);
            if durable {
                self.keep(number);
            }
        }
    }

    /// One sector is durable now.
    fn keep(&mut self, number: usize) {
        let at = number * SECTOR_BYTES..(number + 1) * SECTOR_BYTES;
        self.durable[at.clone()].copy_from_slice(&self.data[at]);
        self.cached.remove(&number);
    }

    /// All that was written is durable, but for what was lost.
    pub fn sync(&mut self) {
        while let Some((&number, _)) = self.cached.first_key_value() {
            self.keep(number);
        }
    }

    /// The page cache could not be written back: it is marked clean all the same, and what was
    /// written is on no device.
    pub fn lose_cached(&mut self) {
        self.is_lost |= !self.cached.is_empty();
        self.cached.clear();
    }

    /// Is something that reads find on no device?
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Whoever accepts a loss, as the image is refused until then, has mended the image.
    pub fn mend(&mut self) {
        if std::mem::take(&mut self.is_lost) {
            self.durable.copy_from_slice(&self.data);
            self.cached.clear();
        }
    }

    /// The power fails: each sector keeps one of its cached writes, or none.
    pub fn power_fails(&mut self, random: &mut Random) {
        for (number, written) in std::mem::take(&mut self.cached) {
            let survivor = random.index(written.len() + 1);
            if let Some(sector) = survivor.checked_sub(1).map(|n| &written[n]) {
                let at = number * SECTOR_BYTES;
                self.durable[at..at + SECTOR_BYTES].copy_from_slice(sector);
            }
        }
        self.data.copy_from_slice(&self.durable);
        self.is_lost = false;
    }
}
