//! The numbers in a directory of `/proc`, few at a time: the kernel takes 1 to 2 us for
//! each, so all of a thousand at once would keep a monitor from its vCPU for a beat or more.

use crate::netlink::half;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Some sixty entries: 100 us.
const BATCH_BYTES: usize = 2048;
/// Of `struct linux_dirent64`: the entry's length, and its name.
const LENGTH_AT: usize = 16;
const NAME_AT: usize = 19;

/// A directory that is being listed.
#[derive(Debug)]
pub struct Walk {
    dir: File,
    batch: Vec<i32>,
}

impl Walk {
    /// Begin.
    ///
    /// # Errors
    /// It has gone, or may not be listed.
    pub fn new(path: &str) -> io::Result<Walk> {
        let mut walk = Walk { dir: File::open(path)?, batch: Vec::new() };
        walk.fill();
        Ok(walk)
    }

    /// Numbers that are known already.
    pub fn at_hand(&self) -> usize {
        self.batch.len()
    }

    /// Read some more; false at the end, which is also when the directory has gone.
    fn fill(&mut self) -> bool {
        let mut buffer = [0u8; BATCH_BYTES];
        // SAFETY: the buffer is as long as it is said to be.
        let got = unsafe {
            let (fd, at) = (self.dir.as_raw_fd(), buffer.as_mut_ptr());
            libc::syscall(libc::SYS_getdents64, fd, at, buffer.len())
        };
        let len = usize::try_from(got).unwrap_or_default();
        self.batch = numbers(&buffer[..len]).collect();
        len > 0
    }
}

impl Iterator for Walk {
    type Item = i32;

    fn next(&mut self) -> Option<i32> {
        while self.batch.is_empty() {
            if !self.fill() {
                return None;
            }
        }
        self.batch.pop()
    }
}

/// The entries whose names are numbers.
fn numbers(mut bytes: &[u8]) -> impl Iterator<Item = i32> {
    let entries = std::iter::from_fn(move || {
        let len = usize::from(half(bytes, LENGTH_AT)?);
        if len < NAME_AT || len > bytes.len() {
            return None;
        }
        let (entry, rest) = bytes.split_at(len);
        bytes = rest;
        Some(entry)
    });
    entries.filter_map(|entry| {
        let name = entry[NAME_AT..].split(|b| *b == 0).next()?;
        str::from_utf8(name).ok()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs;
    use proptest::prelude::*;

    #[test]
    fn all_that_are_there_are_told_once() {
        let own = std::process::id() as i32;
        let mut found: Vec<i32> = Walk::new("/proc").unwrap().collect();
        found.sort_unstable();
        let before = found.len();
        found.dedup();
        assert_eq!(before, found.len());
        assert!(found.binary_search(&own).is_ok() && found.binary_search(&1).is_ok());
        let threads: Vec<i32> = Walk::new(&format!("/proc/{own}/task")).unwrap().collect();
        assert!(threads.contains(&own) && !procfs::threads(own).is_empty());
        assert!(Walk::new("/proc/2147483647/task").is_err());
    }

    proptest! {
        #[test]
        fn noise_is_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = numbers(&bytes).count();
        }
    }
}
