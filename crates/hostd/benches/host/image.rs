//! Images to serve, and where they lie.

use seekway_client::{Result, write_image};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Where an image lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On a disk, beside cargo's output.
    Disk,
    /// In memory, on the tmpfs at /dev/shm.
    Memory,
}

impl Place {
    /// For a row's name.
    pub fn name(self) -> &'static str {
        match self {
            Place::Disk => "disk",
            Place::Memory => "/dev/shm",
        }
    }
}

/// An image in a directory of its own, both removed in the end.
pub struct Image {
    _dir: tempfile::TempDir,
    path: PathBuf,
    place: Place,
}

impl Image {
    /// Write `len_bytes` below `dir`, and wait until they are on the disk.
    pub fn create(place: Place, dir: &Path, len_bytes: u64) -> Result<Image> {
        let context =
            |error| format!("an image of {len_bytes} bytes in {}: {error}", dir.display());
        let dir = tempfile::Builder::new()
            .prefix("seekway-bench-host.")
            .tempdir_in(dir)
            .map_err(context)?;
        let path = dir.path().join("bench.img");
        write_image(&path, len_bytes)?;
        let image = Image { _dir: dir, path, place };
        image.drop_cache();
        Ok(image)
    }

    /// Path of the image's file, which is removed when this is dropped.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the image lies on a disk or in memory.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Forget what the page cache holds of it; what lies in memory stays there.
    pub fn drop_cache(&self) {
        if self.place == Place::Memory {
            return;
        }
        if let Ok(file) = File::open(&self.path) {
            // SAFETY: a plain call on a descriptor that is open.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
        // As root also what other descriptors' hints keep; else the hint is all.
        let _ = std::fs::write("/proc/sys/vm/drop_caches", "1");
    }
}
