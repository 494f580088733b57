//! Images to serve: written in full with data that says where it belongs, so
//! that no file system answers from a hole and no server with another block.

use crate::load::{Result, mix};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// The unit of [`stamp`].
const BLOCK_BYTES: u64 = 4096;

/// The first eight bytes of the block at a byte offset.
pub fn stamp(offset: u64) -> u64 {
    mix(offset + 1)
}

/// Write an image of whole MiB, and wait until it is on the disk.
pub fn write_image(path: &Path, len_bytes: u64) -> Result<()> {
    let context = |error| format!("an image of {len_bytes} bytes, {}: {error}", path.display());
    let mut file = File::create(path).map_err(context)?;
    let mut words = vec![0_u64; (1 << 20) / 8];
    let per_block = (BLOCK_BYTES / 8) as usize;
    for chunk in 0..len_bytes.div_ceil(1 << 20) {
        for (n, word) in words.iter_mut().enumerate() {
            let (block, within) = (n / per_block, n % per_block);
            let offset = (chunk << 20) + block as u64 * BLOCK_BYTES;
            *word = stamp(offset).rotate_left(within as u32 % 64) ^ within as u64;
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        file.write_all(&bytes).map_err(context)?;
    }
    file.sync_all().map_err(context)?;
    Ok(())
}

/// Wait until nobody holds a lock on an image. A server that was killed holds its
/// locks for some more milliseconds: the kernel ends its ring in the background.
pub fn wait_until_unlocked(path: &Path) -> Result<()> {
    let context = |error| format!("{}: {error}", path.display());
    let file = File::options().read(true).write(true).open(path).map_err(context)?;
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        // SAFETY: all zeroes are the whole file, from its start, and no process.
        let mut lock = unsafe { std::mem::zeroed::<libc::flock>() };
        lock.l_type = libc::F_WRLCK as i16;
        // SAFETY: an open descriptor and a lock to be filled in.
        let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
        if result != 0 {
            return Err(context(std::io::Error::last_os_error()));
        }
        if lock.l_type == libc::F_UNLCK as i16 {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(format!("{}: stays locked: see lslocks", path.display()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Is a directory in memory rather than on a disk?
pub fn in_memory(dir: &Path) -> Result<bool> {
    let text = std::fs::read_to_string("/proc/mounts")
        .map_err(|error| format!("/proc/mounts: {error}"))?;
    let dir = dir.canonicalize().map_err(|error| format!("{}: {error}", dir.display()))?;
    let kind = text
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(mount, _)| dir.starts_with(mount))
        .max_by_key(|(mount, _)| mount.len())
        .map(|(_, kind)| kind);
    Ok(matches!(kind, Some("tmpfs" | "ramfs")))
}
