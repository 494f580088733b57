//! Which parts of an image hold data, as its file system says.

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::ops::Range;

/// Says which parts of an image hold data without holding up who serves it: a slow file system
/// takes its time to answer.
#[derive(Debug)]
pub struct Allocation {
    file: File,
    is_block: bool,
    align_bytes: u32,
}

impl Allocation {
    pub(super) fn new(file: File, is_block: bool, align_bytes: u32) -> Allocation {
        Allocation { file, is_block, align_bytes }
    }

    /// Runs of data and holes: length in bytes and "is a hole", at most `max`,
    /// covering a prefix of the range, multiples of the alignment when
    /// the range is. Data when in doubt: a block device, a file
    /// system that does not say, an error.
    pub fn runs(&self, range: Range<u64>, max: usize) -> Vec<(u64, bool)> {
        let Range { start: mut at, end } = range;
        let mut runs: Vec<(u64, bool)> = Vec::new();
        while at < end && runs.len() < max {
            let (data, hole) = match self.is_block {
                true => (at, end),
                false => next_run(&self.file, self.align_bytes.into(), at, end),
            };
            if at < data {
                runs.push((data - at, true));
            }
            // No data before the end, or no room to say so.
            if data < end && runs.len() < max {
                runs.push((hole - data, false));
            }
            at = hole;
        }
        runs
    }
}

/// The next data at or behind `at`: where it begins and ends, both rounded
/// outwards to the alignment and cut at `end`. At least one of the two lies
/// behind `at`.
fn next_run(file: &File, align: u64, at: u64, end: u64) -> (u64, u64) {
    let data = match seek(file, SeekFrom::Data(at)) {
        Ok(data) => (data / align * align).max(at),
        Err(Errno::NXIO) => return (end, end),
        Err(_) => return (at, end),
    };
    if data >= end {
        return (end, end);
    }
    let hole = match seek(file, SeekFrom::Hole(data)) {
        // `max`: a hole punched meanwhile must not stop the loop.
        Ok(hole) => hole.max(data + 1).div_ceil(align).saturating_mul(align),
        Err(_) => end,
    };
    (data, hole.min(end))
}
