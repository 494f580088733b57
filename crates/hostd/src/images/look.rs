//! A look at an image without serving it: nothing is locked, claimed or changed.

use super::{ImageError, OpenOptions, Shape, check_size, is_block, lock, lock_error, lost};
use super::{open_error, place::Place, probe, size_unit};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Facts about an image before it is served.
#[derive(Debug)]
pub struct Look {
    pub size_bytes: u64,
    /// Number of the block device that it is, or that its file system is on.
    pub device: u64,
    /// I/O can go past the page cache, and shall.
    pub is_direct: bool,
    /// The image is in the page cache and nowhere else (tmpfs).
    pub is_in_memory: bool,
    /// Warnings for the operator, as far as a look at the image tells.
    pub warnings: Vec<String>,
}

/// Look at an image. What is locked or claimed by another program is refused, unless
/// [`OpenOptions::incoming`].
///
/// # Errors
/// As [`super::Image::open`], as far as they can be seen without opening it for writing.
pub fn look(path: &Path, options: &OpenOptions) -> Result<Look, ImageError> {
    let about = std::fs::metadata(path).map_err(|e| open_error(path, true, e))?;
    let is_block = is_block(path, about.file_type())?;
    if !options.read_only && !may_write(path) {
        let denied = io::Error::from_raw_os_error(libc::EACCES);
        return Err(open_error(path, false, denied));
    }
    // Reading alone: who closes a block device that was open for writing makes udev look at it.
    let claims = is_block && !options.read_only && !options.incoming;
    let claim = if claims { libc::O_EXCL } else { 0 };
    let flags = libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK | claim;
    let file = File::options().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|e| match e.raw_os_error() {
        Some(libc::EBUSY) if is_block => ImageError::Busy { path: path.display().to_string() },
        _ => open_error(path, options.read_only, e),
    })?;
    if is_block && !options.read_only && probe::is_write_protected(&file) {
        return Err(ImageError::WriteProtected { path: path.display().to_string() });
    }
    if !options.incoming {
        lock::check(&file, options.read_only).map_err(|e| lock_error(path, &about, e))?;
    }
    if !is_block && !options.accept_lost_writes && lost::is_marked(&file) {
        return Err(lost::refused(path));
    }
    let device = if is_block { about.rdev() } else { about.dev() };
    let is_in_memory = !is_block && probe::is_in_memory(&file);
    let mut warnings = Vec::new();
    let place = Place::of(device);
    let Shape { align, blocks, size_bytes } =
        Shape::of(&file, path, is_block, &place, options, &mut warnings)?;
    check_size(&file, path, is_block, size_unit(blocks, align.blocks))?;
    Ok(Look { size_bytes, device, is_direct: align.direct, is_in_memory, warnings })
}

fn may_write(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path ends with a NUL and lives through the call.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK, libc::AT_EACCESS) == 0 }
}
