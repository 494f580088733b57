//! The extents of a file as the file system tells them (FS_IOC_FIEMAP;
//! Documentation/filesystems/fiemap.rst of the kernel).

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use seekway_core::units::SECTOR_BYTES;
use seekway_stack::stack::FileExtent;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Extents asked for at once.
const CHUNK: usize = 256;
/// Extents of a file that are looked at; what lies behind counts as a hole.
const EXTENTS_MAX: usize = 1 << 20;

const FIEMAP_EXTENT_LAST: u32 = 0x1;
/// Flags under which the address is none that data can be found at: UNKNOWN,
/// DELALLOC, ENCODED, DATA_ENCRYPTED, NOT_ALIGNED, DATA_INLINE, DATA_TAIL.
const FIEMAP_NO_PLACE: u32 = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400;
/// Preallocated and never written: reads give zeroes without asking the device.
const FIEMAP_EXTENT_UNWRITTEN: u32 = 0x800;

/// `struct fiemap_extent` of `linux/fiemap.h`; places and length are in bytes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` with its extents behind it.
#[repr(C)]
struct Raw {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [RawExtent; CHUNK],
}

/// `_IOWR('f', 11, struct fiemap)`, whose size is that of the head alone.
const FS_IOC_FIEMAP: libc::Ioctl = libc::_IOWR::<[u64; 4]>(b'f' as u32, 11);

/// The extents of the first `size_bytes` that have a place, ascending and
/// disjoint. Does not wait for dirty pages: those have no place yet.
pub(super) fn extents(file: &File, size_bytes: u64) -> io::Result<Vec<FileExtent>> {
    extents_without(FIEMAP_NO_PLACE, file, size_bytes)
}

/// Extents of the file without those that were preallocated and never written.
pub(super) fn written(file: &File, size_bytes: u64) -> io::Result<Vec<FileExtent>> {
    extents_without(FIEMAP_NO_PLACE | FIEMAP_EXTENT_UNWRITTEN, file, size_bytes)
}

/// The extents that have none of these flags.
fn extents_without(flags: u32, file: &File, size_bytes: u64) -> io::Result<Vec<FileExtent>> {
    let mut found: Vec<FileExtent> = Vec::new();
    let mut raw = Raw {
        start: 0,
        length: 0,
        flags: 0,
        mapped_extents: 0,
        extent_count: 0,
        reserved: 0,
        extents: [RawExtent::default(); CHUNK],
    };
    let (mut next, mut seen) = (0, 0);
    while next < size_bytes && seen < EXTENTS_MAX {
        (raw.start, raw.length) = (next, size_bytes - next);
        (raw.flags, raw.mapped_extents, raw.extent_count) = (0, 0, CHUNK as u32);
        // SAFETY: `raw` is laid out as the kernel wants it, with room for
        // `extent_count` extents, and ours alone.
        if unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &mut raw) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let mapped = (raw.mapped_extents as usize).min(CHUNK);
        let before = next;
        for extent in &raw.extents[..mapped] {
            found.extend(placed(extent, flags, next, size_bytes));
            next = next.max(extent.logical.saturating_add(extent.length));
        }
        seen += mapped;
        let last = raw.extents[..mapped].last();
        // A file that changes meanwhile must not keep us here.
        if next == before || last.is_none_or(|e| e.flags & FIEMAP_EXTENT_LAST != 0) {
            break;
        }
    }
    Ok(found)
}

/// The part of an extent in `from..to` (bytes) when it has a place and none of
/// the flags `without`.
fn placed(raw: &RawExtent, without: u32, from: u64, to: u64) -> Option<FileExtent> {
    let multiple = (raw.logical | raw.physical).is_multiple_of(SECTOR_BYTES);
    if raw.flags & without != 0 || !multiple {
        return None;
    }
    // The file system may begin before and end behind what was asked for.
    let start = raw.logical.max(from.next_multiple_of(SECTOR_BYTES));
    let end = raw.logical.checked_add(raw.length)?.min(to);
    let len = end.checked_sub(start)? / SECTOR_BYTES;
    let place = raw.physical.checked_add(start - raw.logical)? / SECTOR_BYTES;
    (len > 0).then_some(FileExtent { at: start / SECTOR_BYTES, place, len })
}

// Data and holes of an image, as its file system tells them (SEEK_DATA).

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_the_kernels() {
        assert_eq!(size_of::<RawExtent>(), 56);
        assert_eq!(size_of::<Raw>(), 32 + 56 * CHUNK);
        assert_eq!(FS_IOC_FIEMAP, 0xc020_660b);
    }

    #[test]
    fn extents_are_cut_and_those_without_a_place_left_out() {
        let raw = |flags| RawExtent {
            logical: 4096,
            physical: 1 << 20,
            length: 8192,
            flags,
            ..RawExtent::default()
        };
        let whole = FileExtent { at: 8, place: 2048, len: 16 };
        assert_eq!(placed(&raw(0), FIEMAP_NO_PLACE, 0, 1 << 20), Some(whole));
        assert_eq!(placed(&raw(0x800), FIEMAP_NO_PLACE, 0, 1 << 20), Some(whole), "preallocated");
        let written = FIEMAP_NO_PLACE | FIEMAP_EXTENT_UNWRITTEN;
        assert_eq!(placed(&raw(0x800), written, 0, 1 << 20), None, "preallocated");
        let cut = FileExtent { at: 16, place: 2056, len: 4 };
        assert_eq!(placed(&raw(0), FIEMAP_NO_PLACE, 8192, 10_240), Some(cut));
        for flag in [0x2, 0x4, 0x8, 0x80, 0x100, 0x200, 0x400] {
            assert_eq!(placed(&raw(flag), FIEMAP_NO_PLACE, 0, 1 << 20), None, "{flag:#x}");
        }
        assert_eq!(placed(&raw(0), FIEMAP_NO_PLACE, 12_288, 1 << 20), None);
        let wild = RawExtent { logical: u64::MAX - 511, length: u64::MAX, ..raw(0) };
        assert_eq!(placed(&wild, FIEMAP_NO_PLACE, 0, u64::MAX), None);
    }
}
