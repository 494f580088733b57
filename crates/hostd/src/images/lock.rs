//! Locks on images, in QEMU's terms, so that neither opens what the other
//! writes. Open file description locks: they belong to the open file, survive
//! a `close` of another descriptor in this process, and conflict between two
//! opens in one process too.
//!
//! QEMU (`block/file-posix.c`) never locks data. Of two ranges of bytes, it
//! locks byte `100 + p` shared when it uses permission p, and byte `200 + p`
//! shared when it does not share p with others; then it looks whether anybody
//! holds the counterpart. Both lock first and look then, so that of two that
//! open at once at least one sees the other.
//!
//! - A writer here locks the whole file exclusively: nobody else can have any
//!   of those bytes, QEMU cannot get any, and neither can a reader here.
//! - A reader here does as a read-only device of QEMU does: it uses "consistent
//!   read" and does not share "write" and "resize". Readers of both kinds go
//!   together. A shared lock of the whole file would not do: QEMU's writers
//!   hold shared locks only, with which it goes together.

use super::ImageError;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Base of the bytes that tell which permissions are used.
const USED: i64 = 100;
/// Base of the bytes that tell which permissions are not shared.
const UNSHARED: i64 = 200;
/// QEMU's permissions, by bit number (`BLK_PERM_CONSISTENT_READ`, …).
const CONSISTENT_READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

/// Descriptors that are looked at for who holds a lock.
const DESCRIPTORS_MAX: usize = 1 << 16;
/// Holders that are named.
const HOLDERS_MAX: usize = 4;

/// Why there is no lock.
#[derive(Debug)]
pub(super) enum LockError {
    /// Somebody else has one.
    Held,
    /// The file system refuses.
    Io(io::Error),
}

/// Lock an image until it is closed.
pub(super) fn lock(file: &File, read_only: bool) -> Result<(), LockError> {
    if !read_only {
        return set(file, libc::F_WRLCK, 0, 0);
    }
    for byte in [USED + CONSISTENT_READ, UNSHARED + WRITE, UNSHARED + RESIZE] {
        set(file, libc::F_RDLCK, byte, 1)?;
    }
    for byte in [UNSHARED + CONSISTENT_READ, USED + WRITE, USED + RESIZE] {
        if is_locked(file, byte)? {
            return Err(LockError::Held);
        }
    }
    Ok(())
}

/// Let go of what [`lock`] has locked.
pub(super) fn unlock(file: &File) -> io::Result<()> {
    set(file, libc::F_UNLCK, 0, 0).map_err(|e| match e {
        LockError::Held => io::ErrorKind::WouldBlock.into(),
        LockError::Io(e) => e,
    })
}

/// Would [`lock`] get its lock now? Takes none.
pub(super) fn check(file: &File, read_only: bool) -> Result<(), LockError> {
    let is_held = match read_only {
        false => is_range_locked(file, 0, 0)?,
        true => {
            // A writer of ours has the whole file, and one of QEMU's these bytes.
            let bytes = [UNSHARED + CONSISTENT_READ, USED + WRITE, USED + RESIZE];
            bytes.iter().try_fold(false, |held, byte| Ok(held || is_locked(file, *byte)?))?
        }
    };
    if is_held { Err(LockError::Held) } else { Ok(()) }
}

/// Has another program claimed a block device? Claims, unlike locks, are the device's and not the
/// node's.
pub(super) fn is_claimed(path: &Path) -> bool {
    let flags = libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    let opened = File::options().read(true).custom_flags(flags).open(path);
    opened.is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY))
}

fn flock(kind: i32, start: i64, len: i64) -> libc::flock64 {
    // SAFETY: plain numbers, for which zero is a value.
    let mut lock: libc::flock64 = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    // A length of 0 is to the end, wherever that will be.
    (lock.l_start, lock.l_len) = (start, len);
    lock
}

fn set(file: &File, kind: i32, start: i64, len: i64) -> Result<(), LockError> {
    let lock = flock(kind, start, len);
    // SAFETY: `lock` lives through the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Err(LockError::Held),
        _ => Err(LockError::Io(error)),
    }
}

/// Does another open file hold any lock on this byte?
fn is_locked(file: &File, byte: i64) -> Result<bool, LockError> {
    is_range_locked(file, byte, 1)
}

/// Looks whether a range of bytes is locked; a length of 0 is to the end.
fn is_range_locked(file: &File, start: i64, len: i64) -> Result<bool, LockError> {
    let mut lock = flock(libc::F_WRLCK, start, len);
    // SAFETY: `lock` lives through the call and is ours alone.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) } != 0 {
        return Err(LockError::Io(io::Error::last_os_error()));
    }
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

/// Describes the holders of locks on the file, for people. The kernel does not tell the holder of
/// open file description locks (the pid is -1), but `/proc/PID/fdinfo` does.
pub(super) fn describe_holders(meta: &Metadata) -> String {
    let holders = holders(meta);
    if holders.is_empty() {
        return "this user cannot see which; `lslocks` and `fuser -v` of root can".to_owned();
    }
    let shown = holders.iter().map(|&pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        match pid == std::process::id() {
            true => "this daemon itself".to_owned(),
            false => format!("process {pid} ({})", name.trim_end()),
        }
    });
    format!("{} has it open; shut that down, or attach another image", {
        shown.collect::<Vec<_>>().join(", ")
    })
}

/// Processes with a lock on the file.
fn holders(meta: &Metadata) -> Vec<u32> {
    let mut left = DESCRIPTORS_MAX;
    let mut found = Vec::new();
    let Ok(processes) = fs::read_dir("/proc") else { return found };
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        if found.len() == HOLDERS_MAX || left == 0 {
            break;
        }
        if holds(pid, meta, &mut left) {
            found.push(pid);
        }
    }
    found.sort_unstable();
    found
}

fn holds(pid: u32, meta: &Metadata, left: &mut usize) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    for descriptor in descriptors.flatten() {
        if *left == 0 {
            return false;
        }
        *left -= 1;
        let same = fs::metadata(descriptor.path())
            .is_ok_and(|m| (m.dev(), m.ino()) == (meta.dev(), meta.ino()));
        if !same {
            continue;
        }
        let number = descriptor.file_name();
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", number.display()));
        if info.is_ok_and(|text| text.lines().any(|l| l.starts_with("lock:"))) {
            return true;
        }
    }
    false
}

// Waiting for an image that a dying process still has.

/// Longest wait of a starting daemon, or of an attach.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Interval at which to look.
const PAUSE: Duration = Duration::from_millis(20);

/// Repeat `open` until nobody else has the image, or it is `until`. A process that was killed, or
/// that has ended a moment ago, keeps its files locked, and its block devices claimed, until the
/// kernel has done with what it had in flight and with its ring.
///
/// # Errors
/// The last one of `open`.
pub fn patiently<T>(
    until: Instant,
    mut open: impl FnMut() -> Result<T, ImageError>,
) -> Result<T, ImageError> {
    loop {
        match open() {
            Err(e) if e.is_taken() && Instant::now() < until => pause(),
            opened => return opened,
        }
    }
}

fn pause() {
    #[cfg(test)]
    if let Some(others) = crate::waiting::others() {
        return others();
    }
    std::thread::sleep(PAUSE);
}
