//! What an open image can do: direct I/O and its alignment, by asking the
//! kernel; and whether its first bytes look like another format's.

use super::place::Place;
use super::set_flag;
use rustix::fs::OFlags;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How requests must lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Align {
    /// Goes I/O past the page cache?
    pub direct: bool,
    /// Offsets and lengths: 512 or 4096.
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
    warnings: &mut Vec<String>,
) -> Align {
    // A block device has blocks of its own with and without the page cache.
    let least = if is_block { round_block(place.logical) } else { 512 };
    let buffered = Align { direct: false, blocks: least, memory: 1 };
    if !direct {
        return buffered;
    }
    let (memory, blocks) = dio_alignment(file).unwrap_or((place.logical, place.logical));
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

/// First bytes of formats that people mistake for raw, and qemu-img's names.
const FORMATS: &[(&[u8], &str)] = &[
    (b"QFI\xfb", "qcow2"),
    (b"QED\0", "qed"),
    (b"KDMV", "vmdk"),
    (b"# Disk DescriptorFile", "vmdk"),
    (b"vhdxfile", "vhdx"),
    (b"conectix", "vpc"),
];

/// Warn when the image begins as another format does, or when its partition table
/// was made for other blocks than the `block_bytes` that guests see.
pub(super) fn warn_of_contents(
    file: &File,
    path: &Path,
    block_bytes: u32,
    warnings: &mut Vec<String>,
) {
    let start = first_bytes(file);
    if let Some(advice) = advice_of(&start, path) {
        warnings.push(format!(
            "{advice}; served as it is, guests see its header (if a guest wrote this header into \
             its own raw disk, ignore this)"
        ));
    }
    let path = path.display();
    if let Some(made_for) = partitioned_for(&start).filter(|&bytes| bytes != block_bytes) {
        warnings.push(format!(
            "{path} has a partition table (GPT) for blocks of {made_for} bytes, and guests see \
             blocks of {block_bytes}: they will not find their partitions"
        ));
    }
}

/// What to do with an image that looks like one of another format; `None` if it does not.
pub(super) fn advice(file: &File, path: &Path) -> Option<String> {
    advice_of(&first_bytes(file), path)
}

fn advice_of(start: &Start, path: &Path) -> Option<String> {
    let (format, path) = (format(start)?, path.display());
    // What a qcow2 image holds can be served without a copy.
    let or = match format {
        "qcow2" => ", or serve it through nbdfuse (docs/images.md)",
        _ => "",
    };
    Some(format!(
        "{path} looks like a {format} image: convert it with \
         qemu-img convert -f {format} -O raw {path} {path}.raw{or}"
    ))
}

/// The largest block and as much again, aligned, for the file may be in direct mode.
#[repr(C, align(4096))]
struct Start([u8; 2 * BLOCK_MAX as usize]);

/// The first bytes, or zeroes: what cannot be read will fail where it matters.
fn first_bytes(file: &File) -> Start {
    let mut start = Start([0; 2 * BLOCK_MAX as usize]);
    if file.read_at(&mut start.0, 0).is_err() {
        start.0.fill(0);
    }
    start
}

fn format(start: &Start) -> Option<&'static str> {
    let found = FORMATS.iter().find(|(magic, _)| start.0.starts_with(magic));
    // VirtualBox writes a line of text first and its signature behind that.
    let vdi = start.0[64..68] == [0x7f, 0x10, 0xda, 0xbe];
    found.map(|&(_, name)| name).or(vdi.then_some("vdi"))
}

/// The size of the blocks for which the image was partitioned. A GUID partition table
/// begins in the second block; older tables do not say.
fn partitioned_for(start: &Start) -> Option<u32> {
    [512, BLOCK_MAX].into_iter().find(|&bytes| start.0[bytes as usize..].starts_with(b"EFI PART"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(at: usize, bytes: &[u8]) -> Start {
        let mut start = Start([0; 8192]);
        start.0[at..at + bytes.len()].copy_from_slice(bytes);
        start
    }

    #[test]
    fn a_partition_table_tells_its_blocks() {
        assert_eq!(partitioned_for(&holding(512, b"EFI PART")), Some(512));
        assert_eq!(partitioned_for(&holding(4096, b"EFI PART")), Some(4096));
        assert_eq!(partitioned_for(&holding(1024, b"EFI PART")), None);
        assert_eq!(partitioned_for(&holding(510, b"\x55\xaa")), None);
    }

    #[test]
    fn formats_are_told_by_their_first_bytes() {
        let check = |at: usize, bytes: &[u8]| format(&holding(at, bytes));
        assert_eq!(check(0, b"QFI\xfb\0\0\0\x03"), Some("qcow2"));
        assert_eq!(check(0, b"vhdxfile"), Some("vhdx"));
        assert_eq!(check(64, &[0x7f, 0x10, 0xda, 0xbe]), Some("vdi"));
        assert_eq!(check(510, b"\x55\xaa"), None);
        assert_eq!(check(0, b""), None);
    }

    #[test]
    fn blocks_are_512_or_4096() {
        let rounded = [1, 512, 1024, 4096, 8192].map(round_block);
        assert_eq!(rounded, [512, 512, 4096, 4096, 4096]);
    }
}
