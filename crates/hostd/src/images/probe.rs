//! Features of an image: direct I/O and its alignment, by asking the kernel; the block size for
//! guests; and the format that its bytes and its name hint at.

use super::place::Place;
use super::{
    ImageError, OpenOptions, Shape, check_size, is_block, lock, lock_error, lost, open_error,
    probe, set_flag, size_unit,
};
use Mark::{At, End};
use Way::{Convert, Print, Unpack};
use rustix::fs::{Access, AtFlags, CWD, OFlags, accessat};
use seekway_core::params::parse_bytes;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::str::FromStr;
use std::{fmt, io};

/// Alignment of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Align {
    /// Goes I/O past the page cache?
    pub direct: bool,
    /// Offsets and lengths, a power of two: 512 or 4096 of direct I/O and of block devices, else 1.
    pub blocks: u32,
    /// Addresses: a power of two.
    pub memory: u32,
}

/// Kinds of file systems, by `f_type` of `statfs` (`linux/magic.h`).
const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;
const FUSE_MAGIC: i64 = 0x6573_5546;
/// ext2 and ext3 too.
const EXT4_MAGIC: i64 = 0xef53;
const XFS_MAGIC: i64 = 0x5846_5342;
const BTRFS_MAGIC: i64 = 0x9123_683e;
/// The largest alignment that guests can be told of.
const BLOCK_MAX: u32 = 4096;

/// Does the file live in the page cache and nowhere else?
pub(super) fn is_in_memory(file: &File) -> bool {
    matches!(file_system(file), Some(TMPFS_MAGIC | RAMFS_MAGIC))
}

/// Does a range that is deallocated read as zeroes? On FUSE nobody knows: nbdfuse and the
/// export of QEMU 7.2 discard, and what is not a whole cluster keeps its data.
pub(super) fn punches_zeroes(file: &File) -> bool {
    file_system(file) != Some(FUSE_MAGIC)
}

/// Is a write with RWF_DSYNC durable when it ends? Of these file systems it is known: they sync
/// behind it (`generic_write_sync`), or send it to their device with FUA. FUSE, for one, hands the
/// flag to its server, and most servers do not look.
pub(super) fn keeps_dsync(file: &File) -> bool {
    let known = [EXT4_MAGIC, XFS_MAGIC, BTRFS_MAGIC, TMPFS_MAGIC, RAMFS_MAGIC];
    file_system(file).is_some_and(|magic| known.contains(&magic))
}

/// The magic number of the file's file system.
fn file_system(file: &File) -> Option<i64> {
    rustix::fs::fstatfs(file).ok().map(|stat| stat.f_type)
}

/// Ask for what was wanted, take what there is, warn when that is less.
pub(super) fn choose(
    file: &File,
    direct: bool,
    is_block: bool,
    place: &Place,
    size_bytes: u64,
    warnings: &mut Vec<String>,
) -> Align {
    // A block device has blocks of its own with and without the page cache.
    let least = if is_block { round_block(place.logical) } else { 1 };
    let buffered = Align { direct: false, blocks: least, memory: 1 };
    if !direct {
        return buffered;
    }
    let (memory, blocks) = dio_alignment(file).unwrap_or((place.logical, place.logical));
    if blocks != 0 && !is_block && !size_bytes.is_multiple_of(round_block(blocks).into()) {
        let blocks = round_block(blocks);
        warnings.push(format!(
            "{size_bytes} bytes are no multiple of {blocks}, and direct I/O (O_DIRECT) cannot write \
             the last ones: the host's page cache is used; truncate -s %{blocks} IMAGE rounds it up"
        ));
        return buffered;
    }
    if blocks == 0 || blocks > BLOCK_MAX || set_flag(file, OFlags::DIRECT).is_err() {
        let why =
            if blocks > BLOCK_MAX { "wants blocks over 4096 bytes" } else { "is not possible" };
        warnings.push(format!(
            "direct I/O (O_DIRECT) {why} on this file system: the host's page cache is used; the \
             disk's option buffered says that this is meant"
        ));
        return buffered;
    }
    let blocks = round_block(blocks).max(least);
    Align { direct: true, blocks, memory: memory.max(1).next_power_of_two() }
}

/// 512 or 4096, the two that guests know.
fn round_block(bytes: u32) -> u32 {
    if bytes <= 512 { 512 } else { BLOCK_MAX }
}

/// Alignment of memory and of offsets for direct I/O (`statx(2)`,
/// STATX_DIOALIGN, Linux 6.1); both 0 where it is not possible, `None` where
/// the kernel does not say.
fn dio_alignment(file: &File) -> Option<(u32, u32)> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut out: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: an empty path with AT_EMPTY_PATH names the descriptor; `out` is ours.
    let result = unsafe {
        let flags = libc::AT_EMPTY_PATH;
        libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, libc::STATX_DIOALIGN, &mut out)
    };
    let known = result == 0 && out.stx_mask & libc::STATX_DIOALIGN != 0;
    known.then_some((out.stx_dio_mem_align, out.stx_dio_offset_align))
}

/// Does a write-protected block device lie behind it (`BLKROGET`, `linux/fs.h`)?
pub(super) fn is_write_protected(file: &File) -> bool {
    const BLKROGET: libc::Ioctl = libc::_IO(0x12, 94);
    let mut protected: libc::c_int = 0;
    // SAFETY: the kernel writes one number.
    let asked = unsafe { libc::ioctl(file.as_raw_fd(), BLKROGET, &raw mut protected) };
    asked == 0 && protected != 0
}

/// The beginning and the end of an image.
pub(super) struct Contents {
    start: Start,
    end: [u8; END_BYTES],
    /// Where ISO 9660 says what it is.
    disc: [u8; 8],
    size_bytes: u64,
}

/// The first bytes, aligned, for the file may be in direct mode.
#[repr(C, align(4096))]
struct Start([u8; START_BYTES]);

/// Where ISO 9660 says what it is.
const DISC: u64 = 32769;

impl Contents {
    /// Zeroes for what cannot be read: that will fail where it matters.
    pub(super) fn of(file: &File, size_bytes: u64) -> Contents {
        let mut contents = Contents {
            start: Start([0; START_BYTES]),
            end: [0; END_BYTES],
            disc: [0; 8],
            size_bytes,
        };
        let Contents { start, end, disc, .. } = &mut contents;
        read(file, &mut start.0, 0);
        read(file, end, size_bytes.saturating_sub(END_BYTES as u64));
        read(file, disc, DISC);
        contents
    }

    /// The size of the blocks for which the image was partitioned. A GUID partition table
    /// begins in the second block; older tables do not say.
    pub(super) fn partitioned_for(&self) -> Option<u32> {
        let begins = |bytes: &u32| self.start.0[*bytes as usize..].starts_with(b"EFI PART");
        [512, BLOCK_MAX].into_iter().find(begins)
    }

    /// Warn when it looks like another format, or when its partition table was made for other
    /// blocks than the `block_bytes` that guests see.
    ///
    /// # Errors
    /// When it is surely no raw image.
    pub(super) fn warn(
        &self,
        file: &File,
        path: &Path,
        read_only: bool,
        block_bytes: u32,
        warnings: &mut Vec<String>,
    ) -> Result<(), ImageError> {
        if let Some(format) = Format::of(&self.start.0, &self.end) {
            // What FUSE shows has the name of the image that it is made of.
            let may_refuse = file_system(file) != Some(FUSE_MAGIC);
            warnings.push(format.judge(path, self.size_bytes, may_refuse)?);
        }
        warnings.extend(warn_of_iso(&self.disc, path).filter(|_| !read_only));
        let path = path.display();
        if let Some(made_for) = self.partitioned_for().filter(|&bytes| bytes != block_bytes) {
            warnings.push(format!(
                "{path} has a partition table (GPT) for blocks of {made_for} bytes, and guests see \
                 blocks of {block_bytes}: they will not find their partitions"
            ));
        }
        Ok(())
    }
}

/// Read as much as there is.
fn read(file: &File, to: &mut [u8], offset: u64) {
    let mut filled = 0;
    while let Ok(bytes @ 1..) = file.read_at(&mut to[filled..], offset + filled as u64) {
        filled += bytes;
    }
}

// Files that people mistake for raw images: told by their first or last bytes, and what to do with
// them.
//
// A guest can write all of that itself into its own raw disk, and must not be locked out by it. So
// the bytes alone are a reason to warn, and one to refuse only where something that no guest can
// write says the same: the file's name, or a size that is none for a disk.

/// Bytes of the beginning, and of the end, that are read.
const START_BYTES: usize = 8192;
const END_BYTES: usize = 512;

/// Where a format's mark is.
#[derive(Clone, Copy)]
enum Mark {
    /// Magic bytes at an offset from the beginning.
    At(usize, &'static [u8]),
    /// In front of the end.
    End(&'static [u8]),
}

/// Way to get at the contents.
#[derive(Clone, Copy)]
enum Way {
    /// `qemu-img convert -f` with this name.
    Convert(&'static str),
    /// The command that prints what is in it.
    Print(&'static str),
    /// The command that unpacks it.
    Unpack(&'static str),
}

/// One format.
pub(super) struct Format {
    mark: Mark,
    name: &'static str,
    way: Way,
    /// Endings of the names of such files.
    endings: &'static [&'static str],
}

const FORMATS: &[Format] = &[
    of(At(0, b"QFI\xfb\0\0\0\x01"), "qcow", Convert("qcow"), &["qcow"]),
    of(At(0, b"QFI\xfb"), "qcow2", Convert("qcow2"), &["qcow2", "qcow"]),
    of(At(0, b"QED\0"), "qed", Convert("qed"), &["qed"]),
    of(At(0, b"KDMV"), "vmdk", Convert("vmdk"), &["vmdk"]),
    of(At(0, b"COWD"), "vmdk", Convert("vmdk"), &["vmdk"]),
    of(At(0, b"# Disk DescriptorFile"), "vmdk", Convert("vmdk"), &["vmdk"]),
    of(At(0, b"vhdxfile"), "vhdx", Convert("vhdx"), &["vhdx"]),
    of(At(0, b"conectix"), "vhd", Convert("vpc"), &["vhd", "vpc"]),
    of(End(b"conectix"), "vhd", Convert("vpc"), &["vhd", "vpc"]),
    // VirtualBox writes a line of text first and its signature behind that.
    of(At(64, b"\x7f\x10\xda\xbe"), "vdi", Convert("vdi"), &["vdi"]),
    of(At(0, b"WithoutFreeSpace"), "parallels", Convert("parallels"), &["hdd", "hds"]),
    of(At(0, b"WithouFreSpacExt"), "parallels", Convert("parallels"), &["hdd", "hds"]),
    of(End(b"koly"), "dmg", Convert("dmg"), &["dmg"]),
    of(At(0, b"\x1f\x8b\x08"), "gzip", Print("gzip -dc"), &["gz", "gzip", "tgz"]),
    of(At(0, b"\xfd7zXZ\0"), "xz", Print("xz -dc"), &["xz", "txz"]),
    of(At(0, b"\x28\xb5\x2f\xfd"), "zstd", Print("zstd -dc"), &["zst", "zstd"]),
    of(At(0, b"\x04\x22\x4d\x18"), "lz4", Print("lz4 -dc"), &["lz4"]),
    of(At(4, b"1AY&SY"), "bzip2", Print("bzip2 -dc"), &["bz2", "bzip2"]),
    of(At(0, b"7z\xbc\xaf\x27\x1c"), "7z", Unpack("7z x"), &["7z"]),
    of(At(0, b"PK\x03\x04"), "zip", Unpack("unzip"), &["zip"]),
    of(At(257, b"ustar"), "tar", Unpack("tar xf"), &["tar", "ova"]),
];

const fn of(mark: Mark, name: &'static str, way: Way, endings: &'static [&'static str]) -> Format {
    Format { mark, name, way, endings }
}

impl Format {
    /// The format of a file with these first and last bytes.
    pub(super) fn of(start: &[u8], end: &[u8]) -> Option<&'static Format> {
        FORMATS.iter().find(|format| match format.mark {
            At(at, mark) => start.get(at..).is_some_and(|bytes| bytes.starts_with(mark)),
            End(mark) => end.starts_with(mark),
        })
    }

    /// The format that it looks like, and what to do.
    fn advice(&self, path: &Path) -> String {
        let (name, shown) = (self.name, path.display());
        match self.way {
            // What a qcow2 image holds can be served without a copy.
            Convert("qcow2") => format!(
                "{shown} looks like a qcow2 image: convert it with qemu-img convert -f qcow2 -O \
                 raw {shown} {shown}.raw, or serve it through nbdfuse (docs/images.md)"
            ),
            Convert(of_qemu) => format!(
                "{shown} looks like a {name} image: convert it with qemu-img convert -f {of_qemu} \
                 -O raw {shown} {shown}.raw"
            ),
            // By any name.
            Print(command) => format!(
                "{shown} looks packed ({name}): unpack it with {command} {shown} > {shown}.raw"
            ),
            Unpack(command) => format!(
                "{shown} looks packed ({name}): unpack it with {command} {shown}, and serve what \
                 is in it"
            ),
        }
    }

    /// The warning, for an image that is served all the same.
    ///
    /// # Errors
    /// When its name says the same, or its size that it is no disk, and it `may_refuse`.
    pub(super) fn judge(
        &self,
        path: &Path,
        size_bytes: u64,
        may_refuse: bool,
    ) -> Result<String, ImageError> {
        let advice = self.advice(path);
        let ending = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
        let is_named = ending.as_deref().is_some_and(|e| self.endings.contains(&e));
        let is_no_disk = !size_bytes.is_multiple_of(512);
        if may_refuse && (is_named || is_no_disk) {
            let but = match is_named {
                true => "if it is a raw image all the same, give it another name",
                false => {
                    "if it is a raw image all the same, give it a size in sectors of 512 bytes"
                }
            };
            return Err(ImageError::Format { advice, but });
        }
        Ok(format!(
            "{advice}; served as it is, guests see its bytes (if a guest wrote them into its own \
             raw disk, ignore this)"
        ))
    }
}

/// The warning of an image by ISO 9660 that a guest may write to.
fn warn_of_iso(start: &[u8], path: &Path) -> Option<String> {
    let is_named = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("iso"));
    (is_named && start.starts_with(b"CD001")).then(|| {
        let shown = path.display();
        format!("{shown} looks like a CD or DVD (ISO 9660), and a guest can write to it: say ro")
    })
}

// A look at an image without serving it: nothing is locked, claimed or changed.

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
    if !options.read_only && !may(path, Access::WRITE_OK) {
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

/// May this process, by its effective user, use a path so?
pub(crate) fn may(path: &Path, access: Access) -> bool {
    accessat(CWD, path, access, AtFlags::EACCESS).is_ok()
}

// The logical block size for guests, from the request and the image.
//
// Guests can be told of two, 512 and 4096 bytes.

/// A logical block size, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub enum BlockSize {
    B512,
    B4096,
}

impl BlockSize {
    /// The size in bytes: 512 or 4096.
    pub const fn bytes(self) -> u32 {
        match self {
            BlockSize::B512 => 512,
            BlockSize::B4096 => 4096,
        }
    }
}

impl From<BlockSize> for u32 {
    fn from(size: BlockSize) -> u32 {
        size.bytes()
    }
}

impl TryFrom<u32> for BlockSize {
    type Error = String;

    fn try_from(bytes: u32) -> Result<BlockSize, String> {
        match bytes {
            512 => Ok(BlockSize::B512),
            4096 => Ok(BlockSize::B4096),
            _ => Err(format!("block_size={bytes}: expected 512 or 4096")),
        }
    }
}

impl FromStr for BlockSize {
    type Err = String;

    fn from_str(text: &str) -> Result<BlockSize, String> {
        let bytes = parse_bytes(text).ok().and_then(|bytes| u32::try_from(bytes).ok());
        let size = bytes.and_then(|bytes| BlockSize::try_from(bytes).ok());
        size.ok_or_else(|| format!("{text}: expected 512 or 4096"))
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// The block size for guests, in bytes, as it was asked for; else that of a block device, and of a
/// file 512, unless it was partitioned for 4096. What direct I/O on a file takes is no reason: that
/// changes with a snapshot or when the file moves, and a guest must not see another block size then.
/// A warning if less than `least_bytes`, which is what can be written without reading before.
pub(super) fn choose_block_size(
    asked: Option<BlockSize>,
    is_block: bool,
    least_bytes: u32,
    partitioned_for: Option<u32>,
    warnings: &mut Vec<String>,
) -> u32 {
    let chosen = match (asked, is_block) {
        (Some(asked), _) => asked.bytes(),
        (None, true) => least_bytes,
        (None, false) => partitioned_for.unwrap_or(512),
    };
    if chosen < least_bytes {
        warnings.push(format!(
            "guests see blocks of {chosen} bytes, and I/O on this image takes {least_bytes}: {RMW}"
        ));
    }
    chosen
}

/// Cost of a write to a part of a block.
pub(super) const RMW: &str =
    "a write to a part of such a block reads it before, which costs a read, and waits for others";

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(at: usize, bytes: &[u8]) -> Contents {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(bytes, at as u64).unwrap();
        Contents::of(&file, (at + bytes.len()) as u64)
    }

    #[test]
    fn a_partition_table_tells_its_blocks() {
        assert_eq!(holding(512, b"EFI PART").partitioned_for(), Some(512));
        assert_eq!(holding(4096, b"EFI PART").partitioned_for(), Some(4096));
        assert_eq!(holding(1024, b"EFI PART").partitioned_for(), None);
        assert_eq!(holding(510, b"\x55\xaa").partitioned_for(), None);
    }

    #[test]
    fn the_beginning_and_the_end_are_looked_at() {
        let contents = holding((1 << 20) - 8, b"\0conectix");
        assert_eq!(contents.end[504..], *b"conectix", "not where a footer begins");
        assert!(
            holding((1 << 20) - 512, &[&b"conectix"[..], &[0; 504]].concat()).end[..8]
                == *b"conectix"
        );
        assert_eq!(holding(32769, b"CD001\x01\0\0").disc[..5], *b"CD001");
    }

    #[test]
    fn blocks_are_512_or_4096() {
        let rounded = [1, 512, 1024, 4096, 8192].map(round_block);
        assert_eq!(rounded, [512, 512, 4096, 4096, 4096]);
    }

    fn told(at: usize, mark: &[u8]) -> Option<&'static str> {
        let mut start = vec![0; START_BYTES];
        start[at..at + mark.len()].copy_from_slice(mark);
        Format::of(&start, &[0; END_BYTES]).map(|format| format.name)
    }

    fn judged(mark: &[u8], path: &str, size: u64) -> Result<String, String> {
        let format = Format::of(mark, &[]).expect("a format");
        format.judge(Path::new(path), size, true).map_err(|e| e.to_string())
    }

    #[test]
    fn formats_are_told_by_their_marks() {
        assert_eq!(told(0, b"QFI\xfb\0\0\0\x03"), Some("qcow2"));
        assert_eq!(told(0, b"QFI\xfb\0\0\0\x01"), Some("qcow"));
        assert_eq!(told(0, b"vhdxfile"), Some("vhdx"));
        assert_eq!(told(64, &[0x7f, 0x10, 0xda, 0xbe]), Some("vdi"));
        assert_eq!(told(0, b"\xfd7zXZ\0"), Some("xz"));
        assert_eq!(told(0, b"BZh91AY&SY"), Some("bzip2"));
        assert_eq!(told(257, b"ustar"), Some("tar"));
        // A boot sector, LUKS and nothing at all are ordinary disks.
        assert_eq!(told(510, b"\x55\xaa"), None);
        assert_eq!(told(0, b"LUKS\xba\xbe"), None);
        assert_eq!(told(0, b""), None);
        assert_eq!(Format::of(&[], b"conectix\0\0").map(|f| f.name), Some("vhd"));
        assert!(Format::of(b"\x1f", b"").is_none(), "a file of one byte");
    }

    #[test]
    fn what_a_guest_can_write_refuses_nothing() {
        let gzip = b"\x1f\x8b\x08";
        for (mark, path) in [(&gzip[..], "web.img"), (b"QFI\xfb\0\0\0\x03", "/dev/vg0/web")] {
            let warning = judged(mark, path, 1 << 20).unwrap();
            assert!(warning.contains("if a guest wrote them"), "{warning}");
        }
        assert!(
            judged(gzip, "web.img.gz", 1 << 20).unwrap_err().contains("gzip -dc web.img.gz > ")
        );
        assert!(judged(gzip, "WEB.GZ", 1 << 20).is_err());
        assert!(judged(gzip, "web.img", 1000).unwrap_err().contains("a size in sectors"));
        assert!(judged(b"QFI\xfb\0\0\0\x03", "web.qcow2", 1 << 20).is_err());
        let format = Format::of(gzip, &[]).unwrap();
        assert!(format.judge(Path::new("web.gz"), 1 << 20, false).is_ok(), "shown by FUSE");
    }

    #[test]
    fn a_disc_that_is_written_to_is_warned_of() {
        let of = |mark: &[u8], path: &str| warn_of_iso(mark, Path::new(path)).is_some();
        assert!(of(b"CD001", "a.iso") && of(b"CD001", "A.ISO"));
        assert!(!of(b"CD001", "web.img") && !of(b"", "a.iso"));
    }

    fn chosen(
        asked: Option<BlockSize>,
        is_block: bool,
        least: u32,
        partitioned_for: Option<u32>,
    ) -> (u32, usize) {
        let mut warnings = Vec::new();
        let chosen = choose_block_size(asked, is_block, least, partitioned_for, &mut warnings);
        (chosen, warnings.len())
    }

    #[test]
    fn guests_get_what_was_asked_for() {
        use BlockSize::*;
        for is_block in [false, true] {
            for least in [512, 4096] {
                assert_eq!(chosen(Some(B4096), is_block, least, Some(512)), (4096, 0));
                let warned = usize::from(least > 512);
                assert_eq!(chosen(Some(B512), is_block, least, Some(4096)), (512, warned));
            }
        }
    }

    #[test]
    fn a_device_has_its_own_blocks_and_a_file_those_of_its_partition_table() {
        assert_eq!(chosen(None, true, 512, Some(4096)), (512, 0));
        assert_eq!(chosen(None, true, 4096, Some(512)), (4096, 0));
        // Whatever direct I/O needs now.
        for (least, warned) in [(1, 0), (512, 0), (4096, 1)] {
            assert_eq!(chosen(None, false, least, None), (512, warned));
            assert_eq!(chosen(None, false, least, Some(512)), (512, warned));
            assert_eq!(chosen(None, false, least, Some(4096)), (4096, 0));
        }
    }

    #[test]
    fn sizes_are_512_or_4096() {
        assert_eq!("512".parse(), Ok(BlockSize::B512));
        assert_eq!("4KiB".parse(), Ok(BlockSize::B4096));
        assert_eq!("4096".parse(), Ok(BlockSize::B4096));
        assert_eq!("4k".parse(), Ok(BlockSize::B4096));
        for wrong in ["", "0", "1024", "-1", "99999999999"] {
            let error = wrong.parse::<BlockSize>().unwrap_err();
            assert_eq!(error, format!("{wrong}: expected 512 or 4096"));
        }
    }
}
