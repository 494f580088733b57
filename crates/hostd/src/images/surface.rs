//! Files and block devices as calibration sees them: opened read-only, read
//! past the page cache, and only where a read reaches the device.
//!
//! Absent: writing. The descriptor is O_RDONLY, and no lock is taken,
//! since nothing that a reader does can hurt who holds one.

use super::place::Place;
use super::{ImageError, OpenOptions, fiemap, io_error, is_block, lost, open_file, probe, size_of};
use seekway_core::units::{SECTOR_BYTES, Sectors};
use seekway_stack::stack::FileExtent;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Why something cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum SurfaceError {
    /// The image cannot be opened or looked at.
    #[error(transparent)]
    Image(ImageError),
    /// The rights of this process do not suffice.
    #[error("{path}: to read a disk takes root, or the group that owns it (`ls -l {path}`)")]
    Denied {
        /// Path of the file or device, as given.
        path: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file of tmpfs or ramfs.
    #[error(
        "{path}: this file lies in memory (tmpfs): there is no device to measure; take a file on the disk, or the disk itself"
    )]
    InMemory {
        /// Path of the file, as given.
        path: String,
    },
    /// Its file system has no direct I/O.
    #[error(
        "{path}: this file system has no direct I/O (O_DIRECT), so that reads would measure the page cache; take the block device below it"
    )]
    NoDirect {
        /// Path of the file or device, as given.
        path: String,
    },
    /// Nothing in it that a read would fetch from the device.
    #[error(
        "{path}: nothing is written in it yet, so that reads never reach the device: fill it first, for example with `dd if=/dev/urandom of={path} bs=1M conv=notrunc count={mib}`"
    )]
    NoData {
        /// Path of the file or device, as given.
        path: String,
        /// Its size in MiB, at least 1.
        mib: u64,
    },
    /// Holes, and nobody says where.
    #[error(
        "{path}: {held_bytes} of its {size_bytes} bytes are written, and this file system does not say which (FIEMAP): reads of holes never reach the device; take a file without holes"
    )]
    Sparse {
        /// Path of the file, as given.
        path: String,
        /// Bytes for which the file system has allocated blocks (`st_blocks`).
        held_bytes: u64,
        size_bytes: u64,
    },
}

impl From<ImageError> for SurfaceError {
    /// A daemon's rights are not what matters here.
    fn from(error: ImageError) -> SurfaceError {
        match error {
            ImageError::Denied { path, source, .. } => SurfaceError::Denied { path, source },
            other => SurfaceError::Image(other),
        }
    }
}

/// A run of bytes that lies in one piece on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where in the file, in sectors.
    pub at: u64,
    /// Where on the device, in sectors; the same as `at` where that is unknown.
    pub lba: u64,
    /// Length in sectors, at least 1.
    pub len: u64,
}

/// An open file or block device.
#[derive(Debug)]
pub struct Surface {
    file: File,
    path: PathBuf,
    pieces: Vec<Piece>,
    is_block: bool,
    device_capacity: Option<Sectors>,
    block_bytes: u32,
    memory_align_bytes: u32,
}

impl Surface {
    /// Opens `path` read-only with O_DIRECT. Pages of a file that wait to be
    /// written back are written back first, for only then do they have a place.
    ///
    /// # Errors
    /// Says what is in the way and what to do about it.
    pub fn open(path: &Path) -> Result<Surface, SurfaceError> {
        let file = open_file(path, &OpenOptions::reading())?;
        let meta = file.metadata().map_err(|e| io_error(path, "looking at its attributes", e))?;
        let is_block = is_block(path, meta.file_type())?;
        let shown = || path.display().to_string();
        if !is_block && probe::is_in_memory(&file) {
            return Err(SurfaceError::InMemory { path: shown() });
        }
        let place = Place::of(if is_block { meta.rdev() } else { meta.dev() });
        // Its warnings are about guests; what matters here is the result.
        let size_bytes = size_of(&file, path)?;
        // Of whole blocks: what lies behind them is not read.
        let whole_bytes = size_bytes & !4095;
        let align = probe::choose(&file, true, is_block, &place, whole_bytes, &mut Vec::new());
        if !align.direct {
            return Err(SurfaceError::NoDirect { path: shown() });
        }
        let len = size_bytes / SECTOR_BYTES;
        let mut device_capacity = place.capacity;
        let pieces = if is_block {
            Vec::from_iter((len > 0).then_some(Piece { at: 0, lba: place.start.get(), len }))
        } else {
            // What is not written back has no place, and is left out.
            let _ = lost::sync(&file);
            let held_bytes = meta.blocks().saturating_mul(SECTOR_BYTES);
            match fiemap::written(&file, size_bytes) {
                Ok(extents) => pieces_of(&extents, &place),
                Err(_) if held_bytes < size_bytes => {
                    let path = shown();
                    return Err(SurfaceError::Sparse { path, held_bytes, size_bytes });
                }
                Err(_) => {
                    device_capacity = None;
                    Vec::from_iter((len > 0).then_some(Piece { at: 0, lba: 0, len }))
                }
            }
        };
        if pieces.is_empty() {
            return Err(SurfaceError::NoData { path: shown(), mib: (size_bytes >> 20).max(1) });
        }
        let (block_bytes, memory_align_bytes) = (align.blocks, align.memory);
        let path = path.to_path_buf();
        Ok(Surface {
            file,
            path,
            pieces,
            is_block,
            device_capacity,
            block_bytes,
            memory_align_bytes,
        })
    }

    /// Where reads reach the device, ascending in the file.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }
    /// A block device rather than a file.
    pub fn is_block(&self) -> bool {
        self.is_block
    }
    /// Size of the whole device below it; `None` where the pieces' `lba` are
    /// offsets in the file because nobody says where it lies.
    pub fn device_capacity(&self) -> Option<Sectors> {
        self.device_capacity
    }
    /// Offsets and lengths of reads are multiples of this: 512 or 4096.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }
    /// Addresses of buffers are multiples of this, a power of two.
    pub fn memory_align_bytes(&self) -> u32 {
        self.memory_align_bytes
    }

    /// Fills `buffer` from the byte `offset` on.
    ///
    /// # Errors
    /// The kernel's error, with the place; a file that became shorter.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> Result<(), SurfaceError> {
        match self.file.read_at(buffer, offset) {
            Ok(n) if n == buffer.len() => Ok(()),
            Ok(_) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            Err(e) => Err(e),
        }
        .map_err(|source| {
            let path = format!("{}: byte {offset}", self.path.display());
            ImageError::Io { path, what: "reading", source }.into()
        })
    }
}

/// The pieces of a file. Without a device of known size the places are of some
/// other space (btrfs): what lies next to what in the file has to do.
fn pieces_of(extents: &[FileExtent], place: &Place) -> Vec<Piece> {
    let lba = |e: &FileExtent| match place.capacity {
        Some(_) => place.start.get().saturating_add(e.place),
        None => e.at,
    };
    extents.iter().map(|e| Piece { at: e.at, lba: lba(e), len: e.len }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_core::units::Lba;
    use std::os::fd::AsRawFd;

    #[test]
    fn places_count_from_the_disk_s_start_where_it_is_known() {
        let place = |capacity| Place {
            device: (8, 0),
            capacity,
            start: Lba::new(2048),
            rotational: true,
            logical: 512,
            physical: 512,
            stripe: None,
            tags: None,
        };
        let extents = [FileExtent { at: 8, place: 4096, len: 16 }];
        let known = pieces_of(&extents, &place(Some(Sectors::new(1 << 20))));
        assert_eq!(known, [Piece { at: 8, lba: 6144, len: 16 }]);
        let unknown = pieces_of(&extents, &place(None));
        assert_eq!(unknown, [Piece { at: 8, lba: 8, len: 16 }]);
    }

    #[test]
    fn a_file_is_opened_for_reading_only_and_holes_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.img");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(4 << 20).unwrap();
        let surface = match Surface::open(&path) {
            Err(SurfaceError::NoDirect { .. } | SurfaceError::InMemory { .. }) => {
                seekway_testing::skip("direct I/O where temporary files are");
                return;
            }
            opened => opened.unwrap(),
        };
        // SAFETY: a plain system call on a descriptor that is open.
        let flags = unsafe { libc::fcntl(surface.file.as_raw_fd(), libc::F_GETFL) };
        assert_eq!(flags & libc::O_ACCMODE, libc::O_RDONLY);
        let sectors: u64 = surface.pieces().iter().map(|p| p.len).sum();
        assert_eq!(sectors, 2048, "{surface:?}");
        assert!(surface.read(&mut [0; 512], 8 << 20).is_err());
    }

    #[test]
    fn what_holds_nothing_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hole.img");
        File::create(&path).unwrap().set_len(4 << 20).unwrap();
        let error = Surface::open(&path).unwrap_err().to_string();
        assert!(error.contains("hole.img"), "{error}");
        assert!(Surface::open(folder.path()).unwrap_err().to_string().contains("a directory"));
        let memory = Path::new("/dev/shm");
        if let Ok(file) = tempfile::NamedTempFile::new_in(memory) {
            std::fs::write(file.path(), [1; 4096]).unwrap();
            let refused = Surface::open(file.path());
            assert!(matches!(refused, Err(SurfaceError::InMemory { .. })), "{refused:?}");
        }
    }
}
