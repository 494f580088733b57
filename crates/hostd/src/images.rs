//! Images: raw files and block devices, their limits, locks, and where on the
//! device they lie.
//!
//! An image is opened once, by whoever attaches the disk, and then belongs to
//! the reactor. Nothing of it is on the data path but [`Limits`] and [`Map`];
//! the I/O itself is io_uring's, on [`Image::file`].
//!
//! Absent: image formats. Guests see the bytes of the file as they are.

mod error;
pub mod fault;
mod fiemap;
mod handover;
mod lock;
mod lost;
mod place;
mod probe;
mod rate;
mod surface;

pub use error::ImageError;
pub use fiemap::Allocation;
pub use handover::{Begun, HandOver, ImageUse, Kept, User, Users};
pub use lock::{PATIENCE, patiently};
pub use lost::{LostImage, Marker, Notes, Unmarked, file_identity, has_lost_writes, inode};
pub(crate) use place::{SEGMENT_BYTES, is_virtual};
pub(crate) use probe::may;
pub use probe::{BlockSize, Look, look};
pub use surface::{Piece, Surface, SurfaceError};

use crate::threads::lock;
use place::Place;
use rustix::fs::OFlags;
use seekway_core::scheduler::Stripe;
use seekway_core::units::Sectors;
use seekway_stack::dispatcher::Tags;
use seekway_stack::stack::Map;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Features and size of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Size in bytes; [`Limits::served_bytes`] is what guests and clients see.
    pub capacity_bytes: u64,
    /// Logical block size for guests, 512 or 4096.
    pub logical_block_bytes: u32,
    /// Physical block size for guests, at least the logical one.
    pub physical_block_bytes: u32,
    /// Offsets and lengths of I/O must be multiples of this power of two. What begins or ends
    /// between them is written by reading a block before.
    pub align_bytes: u32,
    /// Addresses of buffers must be multiples of this for direct I/O; others bounce.
    pub memory_align_bytes: u32,
    /// Writes, discards and write-zeroes are refused.
    pub read_only: bool,
    /// Does the device turn?
    pub rotational: bool,
}

impl Limits {
    /// The size that guests and clients see: whole sectors, as with QEMU. What lies behind the
    /// image's end reads as zeroes, and is kept when it is written.
    pub fn served_bytes(&self) -> u64 {
        Sectors::from_bytes(self.capacity_bytes).bytes()
    }

    /// Least bytes that a client should read and write: a guest's block, or a byte where the image
    /// ends inside a sector.
    pub fn least_bytes(&self) -> u32 {
        let is_whole = self.capacity_bytes == self.served_bytes();
        if is_whole { self.logical_block_bytes.max(1) } else { 1 }
    }
}

/// Options for opening an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    /// Refuse writes; opened read-only, a shared lock.
    pub read_only: bool,
    /// O_DIRECT where the file system can; [`Image::warnings`] says where not.
    pub direct: bool,
    /// Open an image although writes to it were acknowledged and lost.
    pub accept_lost_writes: bool,
    /// Another daemon serves it still: it is not locked, and a block device not claimed.
    pub incoming: bool,
    /// Logical block size for guests; `None` for that of the image.
    pub block_size: Option<BlockSize>,
}

impl OpenOptions {
    /// For reading alone, with O_DIRECT.
    pub const fn reading() -> OpenOptions {
        OpenOptions { read_only: true, ..OpenOptions::writing() }
    }
    /// For reading and writing, with O_DIRECT.
    pub const fn writing() -> OpenOptions {
        OpenOptions {
            read_only: false,
            direct: true,
            accept_lost_writes: false,
            incoming: false,
            block_size: None,
        }
    }
}

/// Warnings about an image for the operator, one sentence each; seldom any. They grow while it is
/// served. Shared by the image's user and by whoever asks.
#[derive(Debug, Default)]
pub struct Warnings(Mutex<Vec<String>>);

impl Warnings {
    /// All warnings, oldest first.
    pub fn all(&self) -> Vec<String> {
        lock(&self.0).clone()
    }

    fn add(&self, text: String) {
        lock(&self.0).push(text);
    }
}

/// An open image, locked unless it is [`OpenOptions::incoming`]. The lock lasts as long as the file is open anywhere,
/// a ring that still has a request for it included.
#[derive(Debug)]
pub struct Image {
    file: File,
    path: PathBuf,
    limits: Limits,
    place: Place,
    is_block: bool,
    is_direct: bool,
    in_memory: bool,
    punches_zeroes: bool,
    keeps_dsync: bool,
    keeps_mark: bool,
    /// FIEMAP and the block device's place say where it lies; not for [`Image::lies_on`].
    has_place: bool,
    warnings: Arc<Warnings>,
    /// The error of the sync that failed, once writes may be lost.
    lost_writes: Option<i32>,
    /// Marks the image then, with the arguments for it.
    marker: Option<(Marker, LostImage)>,
    /// After a failed sync: the list of images without a mark, and the name of this one in it.
    marking: Option<(Arc<Unmarked>, String)>,
}

impl Image {
    /// Open and lock.
    ///
    /// What looks like a formatted image (qcow2, …) is served as raw all the
    /// same, unless its name says so too: a guest can write such a header itself,
    /// and must not lock its operator out by it. [`Image::warnings`] tells.
    ///
    /// # Errors
    /// Names the path and what to do about it. A size that is not a multiple
    /// of the 4096 that were asked for is refused. One
    /// that lacks writes which were acknowledged is refused unless
    /// [`OpenOptions::accept_lost_writes`].
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Image, ImageError> {
        Image::of_file(open_file(path, options)?, path, options)
    }

    /// The image in a file that is open already, here or by [`open_file`] in another process, whose
    /// path is a name only. Locks it.
    ///
    /// # Errors
    /// As [`Image::open`].
    pub fn of_file(file: File, path: &Path, options: &OpenOptions) -> Result<Image, ImageError> {
        let meta = file.metadata().map_err(|e| io_error(path, "looking at its attributes", e))?;
        let is_block = is_block(path, meta.file_type())?;
        check_mode(&file, path, options)?;
        if is_block && !options.read_only && probe::is_write_protected(&file) {
            return Err(ImageError::WriteProtected { path: path.display().to_string() });
        }
        let mut warnings = Vec::new();
        if !options.incoming {
            lock::lock(&file, options.read_only).map_err(|e| lock_error(path, &meta, e))?;
        } else if is_block && lock::check(&file, false).is_ok() && lock::is_claimed(path) {
            warnings.push(format!(
                "{}: another program has claimed this block device, and nobody has locked it by \
                 this name: a daemon that serves it by another node would write to it too",
                path.display()
            ));
        }

        let in_memory = !is_block && probe::is_in_memory(&file);
        if in_memory {
            // Such a file system does not say that its I/O never waits (it may,
            // for a page that was swapped out), so that the ring would hand each
            // request to a worker thread. With this it carries them out at once:
            // a third of the CPU time.
            set_flag(&file, OFlags::NONBLOCK)
                .map_err(|e| io_error(path, "setting O_NONBLOCK", e))?;
        }
        if !is_block {
            // Also because written-back pages have a place that FIEMAP tells.
            lost::check(&file, path, options.accept_lost_writes, &mut warnings)?;
        }
        let place = Place::of(if is_block { meta.rdev() } else { meta.dev() });
        let Shape { align, blocks, .. } =
            Shape::of(&file, path, is_block, &place, options, &mut warnings)?;
        let least_physical = if is_block { 512 } else { 4096 };
        let limits = Limits {
            capacity_bytes: 0,
            logical_block_bytes: blocks,
            physical_block_bytes: place.physical.max(blocks).max(least_physical),
            align_bytes: align.blocks,
            memory_align_bytes: align.memory,
            read_only: options.read_only,
            rotational: place.rotational,
        };
        let (path, is_direct) = (path.to_path_buf(), align.direct);
        let punches_zeroes = is_block || probe::punches_zeroes(&file);
        // The kernel sends FUA only to a device that has announced it, and a flush to others.
        let keeps_dsync = is_block || probe::keeps_dsync(&file);
        let keeps_mark = !is_block && lost::keeps_mark(&file);
        let warnings = Arc::new(Warnings(Mutex::new(warnings)));
        let (lost_writes, marker, marking) = (None, None, None);
        let mut image = Image {
            file,
            path,
            limits,
            place,
            is_block,
            is_direct,
            in_memory,
            punches_zeroes,
            keeps_dsync,
            keeps_mark,
            has_place: true,
            warnings,
            lost_writes,
            marker,
            marking,
        };
        image.refresh(false)?;
        Ok(image)
    }

    /// Returns the image with its data on the device of `other`, a file or a block device: the
    /// operator knows what the file system of the image does not say. The position on that device
    /// is not known.
    ///
    /// # Errors
    /// When `other` cannot be looked at.
    pub fn lies_on(mut self, other: &Path) -> Result<Image, ImageError> {
        let dev = device_of(other)
            .map_err(|e| io_error(other, "looking for the device it lies on (option on)", e))?;
        self.place = Place::of(dev);
        self.limits.rotational = self.place.rotational;
        self.has_place = false;
        Ok(self)
    }

    /// The file, for io_uring.
    pub fn file(&self) -> &File {
        &self.file
    }
    /// Its path as given.
    pub fn path(&self) -> &PathBuf {
        &self.path
    }
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
    /// The physical device it lies on (major, minor of the whole disk where
    /// that is known). A file system without a device of its own (tmpfs,
    /// btrfs, NFS) has major 0 and a minor that is its own.
    pub fn device(&self) -> (u32, u32) {
        self.place.device
    }
    /// The size of that device, where it is known.
    pub fn device_capacity(&self) -> Option<Sectors> {
        self.place.capacity
    }
    /// Layout of that device over several drives, where it has one and it is known.
    pub fn stripe(&self) -> Option<Stripe> {
        self.place.stripe
    }
    /// The tags of that device's queue, where they are known.
    pub fn tags(&self) -> Option<Tags> {
        self.place.tags
    }
    /// Returns the image as if it lay on a disk, and its I/O went past the page cache or through
    /// it; with or without RWF_DSYNC.
    #[cfg(test)]
    pub fn as_on_disk(mut self, direct: bool, keeps_dsync: bool, block_bytes: u32) -> Image {
        (self.is_direct, self.in_memory, self.keeps_dsync) = (direct, false, keeps_dsync);
        self.limits.memory_align_bytes = if direct { 512 } else { 1 };
        self.limits.align_bytes = block_bytes;
        self
    }
    /// Returns the image as if it lay where images cannot be marked.
    #[cfg(test)]
    pub fn without_mark(mut self) -> Image {
        self.keeps_mark = false;
        self
    }
    /// A block device rather than a file.
    pub fn is_block(&self) -> bool {
        self.is_block
    }
    /// Goes the I/O past the page cache (O_DIRECT)?
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }
    /// Does the file live in the page cache and nowhere else (tmpfs)? Its I/O is
    /// a copy, carried out while it is submitted.
    pub fn is_in_memory(&self) -> bool {
        self.in_memory
    }
    /// Does a range that is deallocated read as zeroes?
    pub fn punches_zeroes(&self) -> bool {
        self.punches_zeroes
    }
    /// Is a write with RWF_DSYNC durable when it ends, and does its error say what failed? Where that
    /// is not known, a sync follows. Through the page cache the error may be of the write, as of one
    /// for which there is no room, or of what an earlier write-back has lost.
    pub fn keeps_dsync(&self) -> bool {
        self.keeps_dsync && (self.is_direct || self.in_memory)
    }
    /// Does each read go to a device, so that its time says something of that?
    pub fn reads_device(&self) -> bool {
        self.is_direct && !self.in_memory
    }
    /// One more thing that the operator should know.
    pub(crate) fn warn(&self, warning: String) {
        self.warnings.add(warning);
    }
    /// Writes come that change parts of blocks, of which the operator may not know.
    pub(crate) fn warn_of_edges(&self) {
        let Limits { logical_block_bytes, align_bytes, .. } = self.limits;
        // Else that was said when it was opened.
        if logical_block_bytes >= align_bytes {
            let (path, rmw) = (self.path.display(), probe::RMW);
            self.warn(format!(
                "{path}: writes come that do not begin and end with blocks of {align_bytes} bytes: \
                 {rmw}"
            ));
        }
    }
    /// Warnings for the operator; later ones are added.
    pub fn warnings(&self) -> &Arc<Warnings> {
        &self.warnings
    }

    /// Look at the size again; the new capacity in bytes. A smaller one has to be asked for by
    /// `shrink`.
    ///
    /// # Errors
    /// When the new size is none for a disk, or smaller; the capacity stays what it was.
    pub fn refresh(&mut self, shrink: bool) -> Result<u64, ImageError> {
        let Limits { logical_block_bytes, align_bytes, .. } = self.limits;
        let unit = size_unit(logical_block_bytes, align_bytes);
        let size_bytes = check_size(&self.file, &self.path, self.is_block, unit)?;
        let before_bytes = self.limits.capacity_bytes;
        if size_bytes < before_bytes && !shrink {
            return Err(ImageError::Shrunk {
                path: self.path.display().to_string(),
                size_bytes,
                before_bytes,
            });
        }
        self.limits.capacity_bytes = size_bytes;
        Ok(size_bytes)
    }

    /// Where it lies on its device, by FIEMAP; `None` where the file system
    /// does not say, and for a file that has no place yet (all hole).
    pub fn map(&self) -> Option<Map> {
        self.has_place
            .then(|| map_of(&self.file, &self.place, self.is_block, self.limits.capacity_bytes))?
    }

    /// A [`Mapper`] for another thread, for the image as it is now.
    ///
    /// # Errors
    /// When there are no more file descriptors.
    pub fn mapper(&self) -> io::Result<Mapper> {
        let (file, place) = (self.file.try_clone()?, self.place.clone());
        let capacity_bytes = self.limits.capacity_bytes;
        let (is_block, has_place) = (self.is_block, self.has_place);
        Ok(Mapper { file, place, is_block, has_place, capacity_bytes })
    }

    /// An [`Allocation`] for another thread: it tells which parts hold data.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn allocation(&self) -> io::Result<Allocation> {
        let file = self.file.try_clone()?;
        let align_bytes = self.limits.least_bytes().max(self.limits.align_bytes);
        Ok(Allocation::new(file, self.is_block, align_bytes))
    }
}

/// Asks where an image lies without holding up who serves it: the answer for
/// a file in many pieces takes milliseconds.
#[derive(Debug)]
pub struct Mapper {
    file: File,
    place: Place,
    is_block: bool,
    has_place: bool,
    capacity_bytes: u64,
}

impl Mapper {
    /// As [`Image::map`], for the capacity that it had at [`Image::mapper`].
    pub fn map(&self) -> Option<Map> {
        self.has_place
            .then(|| map_of(&self.file, &self.place, self.is_block, self.capacity_bytes))?
    }
}

/// Alignment of an image's I/O, and the block size that guests see.
struct Shape {
    align: probe::Align,
    /// Guests' logical block size.
    blocks: u32,
    size_bytes: u64,
}

/// Unit of an image's size. Only the page cache takes a part of a sector.
fn size_unit(logical_block_bytes: u32, align_bytes: u32) -> u32 {
    let of_guest = if logical_block_bytes > 512 { logical_block_bytes } else { 1 };
    of_guest.max(align_bytes)
}

impl Shape {
    /// The shape of an open image.
    fn of(
        file: &File,
        path: &Path,
        is_block: bool,
        place: &Place,
        options: &OpenOptions,
        warnings: &mut Vec<String>,
    ) -> Result<Shape, ImageError> {
        let size_bytes = size_of(file, path)?;
        // Not in direct mode yet: the kernel reads where it is told to.
        let contents = probe::Contents::of(file, size_bytes);
        let align = probe::choose(file, options.direct, is_block, place, size_bytes, warnings);
        let partitioned = contents.partitioned_for();
        let partitioned = partitioned.filter(|&b| size_bytes.is_multiple_of(b.into()));
        let (asked, least) = (options.block_size, align.blocks);
        let blocks = probe::choose_block_size(asked, is_block, least, partitioned, warnings);
        contents.warn(file, path, options.read_only, blocks, warnings)?;
        Ok(Shape { align, blocks, size_bytes })
    }
}

/// Size in bytes of an open file or device.
fn size_of(mut file: &File, path: &Path) -> Result<u64, ImageError> {
    // The end of a block device is its size too. I/O names its offsets, so
    // that the file's position matters to nobody.
    file.seek(SeekFrom::End(0)).map_err(|e| io_error(path, "asking for its size", e))
}

/// The size of an image, if it is one for a disk: a multiple of `unit_bytes`.
fn check_size(
    file: &File,
    path: &Path,
    is_block: bool,
    unit_bytes: u32,
) -> Result<u64, ImageError> {
    let size_bytes = size_of(file, path)?;
    if size_bytes == 0 || !size_bytes.is_multiple_of(u64::from(unit_bytes)) {
        let path = path.display().to_string();
        let hint = match (is_block, size_bytes) {
            // A device is a multiple of its own blocks.
            (true, 0) => "use another device".to_owned(),
            (true, _) => "use another device, or leave block_size out if it is given".to_owned(),
            (false, 0) => format!("to give it one: truncate -s 10G {path}"),
            (false, _) => format!("to round it up: truncate -s %{unit_bytes} {path}"),
        };
        let expected = match size_bytes {
            0 => String::new(),
            _ => format!(": expected a multiple of {unit_bytes}"),
        };
        return Err(ImageError::Size { path, size_bytes, expected, hint });
    }
    Ok(size_bytes)
}

/// The number of a block device, or of that which a file lies on.
pub(crate) fn device_of(path: &Path) -> io::Result<u64> {
    let meta = std::fs::metadata(path)?;
    Ok(if meta.file_type().is_block_device() { meta.rdev() } else { meta.dev() })
}

fn map_of(file: &File, place: &Place, is_block: bool, capacity_bytes: u64) -> Option<Map> {
    let len = Sectors::from_bytes(capacity_bytes);
    if is_block {
        return Some(Map::linear(place.start, len));
    }
    // Without a device, the addresses are of some other space.
    let limit = place.capacity?;
    let extents = fiemap::extents(file, capacity_bytes).ok()?;
    Map::of_extents(&extents, place.start, len, limit)
}

/// Block device or file; an error for everything else.
fn is_block(path: &Path, kind: std::fs::FileType) -> Result<bool, ImageError> {
    let what = match kind {
        k if k.is_file() => return Ok(false),
        k if k.is_block_device() => return Ok(true),
        k if k.is_dir() => "a directory",
        k if k.is_char_device() => "a character device",
        k if k.is_fifo() => "a pipe",
        k if k.is_socket() => "a socket",
        _ => "neither file nor device",
    };
    Err(ImageError::Kind { path: path.display().to_string(), what })
}

/// A file that is handed over is open for what is to be done with it.
fn check_mode(file: &File, path: &Path, options: &OpenOptions) -> Result<(), ImageError> {
    // SAFETY: a plain system call on a descriptor that is open.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    let mode = flags & libc::O_ACCMODE;
    let suits = mode == libc::O_RDWR || (options.read_only && mode == libc::O_RDONLY);
    if flags >= 0 && suits && flags & (libc::O_APPEND | libc::O_PATH) == 0 {
        return Ok(());
    }
    let right = if options.read_only { "reading" } else { "reading and writing" };
    let source = io::Error::other(format!("it has to be open for {right}, not for appending"));
    Err(io_error(path, "using the descriptor that was handed over", source))
}

/// Open the file of an image, and nothing of another kind. Without O_DIRECT, which comes when it is
/// known to work.
///
/// # Errors
/// As [`Image::open`].
pub fn open_file(path: &Path, options: &OpenOptions) -> Result<File, ImageError> {
    let about = std::fs::metadata(path).map_err(|e| open_error(path, true, e))?;
    let is_block = is_block(path, about.file_type())?;
    // O_EXCL claims a block device against mounts and the like. A reader does
    // without, so that several can read; and a second daemon, while the first has the claim.
    let claims = is_block && !options.read_only && !options.incoming;
    let claim = if claims { libc::O_EXCL } else { 0 };
    let mut open = File::options();
    let open = open.read(true).write(!options.read_only);
    let open = open.custom_flags(libc::O_CLOEXEC | libc::O_NOCTTY | claim);
    open.open(path).map_err(|e| match e.raw_os_error() {
        Some(libc::EBUSY) if is_block => ImageError::Busy { path: path.display().to_string() },
        _ => open_error(path, options.read_only, e),
    })
}

/// Set one more flag of an open file.
fn set_flag(file: &File, flag: OFlags) -> io::Result<()> {
    Ok(rustix::fs::fcntl_setfl(file, rustix::fs::fcntl_getfl(file)? | flag)?)
}

fn open_error(path: &Path, read_only: bool, source: io::Error) -> ImageError {
    let right = if read_only { "read" } else { "read and write" };
    let hint = if read_only { "" } else { ", or attach it read-only" };
    let path = path.display().to_string();
    match source.raw_os_error() {
        Some(libc::ENOENT) => ImageError::Missing { path },
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
            let uid = rustix::process::geteuid().as_raw();
            ImageError::Denied { path, uid, right, hint, source }
        }
        _ => ImageError::Io { path, what: "opening it", source },
    }
}

fn io_error(path: &Path, what: &'static str, source: io::Error) -> ImageError {
    ImageError::Io { path: path.display().to_string(), what, source }
}

fn lock_error(path: &Path, meta: &std::fs::Metadata, error: lock::LockError) -> ImageError {
    match error {
        lock::LockError::Held => {
            let holder = lock::describe_holders(meta);
            ImageError::Locked { path: path.display().to_string(), holder }
        }
        lock::LockError::Io(e) => io_error(path, "locking it", e),
    }
}
