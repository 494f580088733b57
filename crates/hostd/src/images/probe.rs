//! Features of an open image: direct I/O and its alignment, by asking the kernel; and hints in its
//! bytes.

use super::format::{self, Format};
use super::place::Place;
use super::{ImageError, set_flag};
use rustix::fs::OFlags;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

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
    end: [u8; format::END_BYTES],
    /// Where ISO 9660 says what it is.
    disc: [u8; 8],
    size_bytes: u64,
}

/// The first bytes, aligned, for the file may be in direct mode.
#[repr(C, align(4096))]
struct Start([u8; format::START_BYTES]);

/// Where ISO 9660 says what it is.
const DISC: u64 = 32769;

impl Contents {
    /// Zeroes for what cannot be read: that will fail where it matters.
    pub(super) fn of(file: &File, size_bytes: u64) -> Contents {
        let mut contents = Contents {
            start: Start([0; format::START_BYTES]),
            end: [0; format::END_BYTES],
            disc: [0; 8],
            size_bytes,
        };
        let Contents { start, end, disc, .. } = &mut contents;
        read(file, &mut start.0, 0);
        read(file, end, size_bytes.saturating_sub(format::END_BYTES as u64));
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
        warnings.extend(format::warn_of_iso(&self.disc, path).filter(|_| !read_only));
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
}
