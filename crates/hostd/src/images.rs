//! Images: raw files and block devices, their limits, locks, and where on the
//! device they lie.

/// What an image can do and how large it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Size in bytes, a multiple of 512.
    pub capacity_bytes: u64,
    /// Logical block size for guests, 512 or 4096.
    pub logical_block_bytes: u32,
    /// Physical block size for guests, at least the logical one.
    pub physical_block_bytes: u32,
    /// Offsets and lengths of requests must be multiples of this, at least 512.
    pub align_bytes: u32,
    /// Addresses of buffers must be multiples of this for direct I/O; others bounce.
    pub memory_align_bytes: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Does the device turn?
    pub rotational: bool,
}

pub mod fault;

use seekway_policy::request::Extent;
use seekway_policy::units::{Lba, Sectors};
use std::fs::File;
use std::path::{Path, PathBuf};

/// How to open an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    /// Refuse writes; opened read-only, a shared lock.
    pub read_only: bool,
    /// O_DIRECT where the file system can.
    pub direct: bool,
}

/// Why an image cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// To be filled.
    #[error("{0}")]
    Other(String),
}

/// An open, locked image.
pub struct Image {}

impl Image {
    /// Open and lock.
    pub fn open(_path: &Path, _options: &OpenOptions) -> Result<Image, ImageError> {
        todo!()
    }
    /// The file, for io_uring.
    pub fn file(&self) -> &File {
        todo!()
    }
    /// Its path as given.
    pub fn path(&self) -> &PathBuf {
        todo!()
    }
    /// Its limits.
    pub fn limits(&self) -> &Limits {
        todo!()
    }
    /// The physical device it lies on (major, minor of the whole disk where that is known).
    pub fn device(&self) -> (u32, u32) {
        todo!()
    }
    /// The size of that device, where it is known.
    pub fn device_capacity(&self) -> Option<Sectors> {
        todo!()
    }
    /// A block device rather than a file.
    pub fn is_block(&self) -> bool {
        todo!()
    }
    /// Look at the size again; the new capacity in bytes.
    pub fn refresh(&mut self) -> Result<u64, ImageError> {
        todo!()
    }
    /// Where it lies on its device, by FIEMAP; `None` where the file system does not say.
    pub fn map(&self) -> Option<Map> {
        todo!()
    }
    /// What asks for the map elsewhere.
    pub fn mapper(&self) -> std::io::Result<Mapper> {
        todo!()
    }
    /// Runs of data and holes: length and "is a hole", at most `max`.
    pub fn runs(&self, _offset: u64, _len: u64, _max: usize) -> Vec<(u64, bool)> {
        todo!()
    }
}

/// Asks the file system where an image lies, on a thread of its own: keeps a
/// duplicate of the file.
pub struct Mapper {}

impl Mapper {
    /// As [`Image::map`].
    pub fn map(&self) -> Option<Map> {
        todo!()
    }
}

/// Where the bytes of an image lie on the device.
#[derive(Clone, Debug)]
pub struct Map {}

impl Map {
    /// The image lies in one piece.
    pub fn linear(_start: Lba, _len: Sectors) -> Map {
        todo!()
    }
    /// The first piece of `offset..offset+len` (bytes, multiples of 512): its
    /// place and length. Never longer than asked, at least one sector; a hole is
    /// placed where the file system would most likely put it.
    pub fn piece(&self, _offset: u64, _len: u64) -> Extent {
        todo!()
    }
    /// Is any part of the range a hole (or beyond what was mapped)?
    pub fn has_hole(&self, _offset: u64, _len: u64) -> bool {
        todo!()
    }
    /// All pieces, ascending and disjoint, neighbours merged, at most 1024: the
    /// VM's region for policies.
    pub fn region(&self) -> Vec<Extent> {
        todo!()
    }
}
