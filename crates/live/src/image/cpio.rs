//! A cpio archive in the "newc" form that the kernel unpacks as its initramfs
//! (Documentation/driver-api/early-userspace/buffer-format.rst of Linux).

use std::collections::BTreeSet;
use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_755;

/// Writes entries one after the other. Parent directories come by themselves.
pub(crate) struct Cpio<W> {
    out: W,
    inode: u32,
    directories: BTreeSet<String>,
}

impl<W: Write> Cpio<W> {
    pub(crate) fn new(out: W) -> Self {
        Cpio { out, inode: 0, directories: BTreeSet::new() }
    }

    /// A directory, and those above it. Paths are without a leading slash.
    pub(crate) fn directory(&mut self, path: &str) -> io::Result<()> {
        self.parents(path)?;
        if self.directories.insert(path.to_string()) {
            self.entry(path, DIRECTORY, &[])?;
        }
        Ok(())
    }

    /// A file, readable and executable by all.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path, FILE, content)
    }

    /// The trailer; gives the writer back.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn parents(&mut self, path: &str) -> io::Result<()> {
        for (at, _) in path.match_indices('/') {
            let parent = &path[..at];
            if self.directories.insert(parent.to_string()) {
                self.entry(parent, DIRECTORY, &[])?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.inode += 1;
        let size = u32::try_from(content.len())
            .map_err(|_| io::Error::other(format!("{path}: too large for an initramfs")))?;
        // magic, ino, mode, uid, gid, nlink, mtime, filesize, dev ×2, rdev ×2,
        // namesize (with its NUL), check.
        let nlink = if mode == DIRECTORY { 2 } else { 1 };
        let name_len = path.len() as u32 + 1;
        write!(self.out, "070701{:08x}{mode:08x}", self.inode)?;
        for field in [0, 0, nlink, 0, size, 0, 0, 0, 0, name_len, 0] {
            write!(self.out, "{field:08x}")?;
        }
        self.out.write_all(path.as_bytes())?;
        self.out.write_all(&[0])?;
        // Header (110 bytes) and name are padded together to a multiple of 4.
        self.pad(110 + path.len() + 1)?;
        self.out.write_all(content)?;
        self.pad(content.len())
    }

    fn pad(&mut self, len: usize) -> io::Result<()> {
        self.out.write_all(&[0; 3][..len.next_multiple_of(4) - len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mode, path and content of each entry, read as the kernel reads them.
    fn entries(mut archive: &[u8]) -> Vec<(u32, String, Vec<u8>)> {
        let mut found = Vec::new();
        while !archive.is_empty() {
            assert_eq!(&archive[..6], b"070701");
            let field = |n: usize| {
                let digits = str::from_utf8(&archive[6 + 8 * n..14 + 8 * n]).expect("text");
                u32::from_str_radix(digits, 16).expect("hexadecimal")
            };
            let (mode, size, name_len) = (field(1), field(6) as usize, field(11) as usize);
            let name = String::from_utf8(archive[110..110 + name_len - 1].to_vec());
            let at = (110 + name_len).next_multiple_of(4);
            found.push((mode, name.expect("text"), archive[at..at + size].to_vec()));
            archive = &archive[(at + size).next_multiple_of(4)..];
        }
        found
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut archive = Cpio::new(Vec::new());
        archive.file("init", b"#!/bin/sh\n").expect("written");
        archive.file("lib/modules/a.ko", b"abc").expect("written");
        archive.directory("lib").expect("written");
        let bytes = archive.finish().expect("written");
        let expected: [(u32, &str, &[u8]); 5] = [
            (FILE, "init", b"#!/bin/sh\n"),
            (DIRECTORY, "lib", b""),
            (DIRECTORY, "lib/modules", b""),
            (FILE, "lib/modules/a.ko", b"abc"),
            (0, "TRAILER!!!", b""),
        ];
        let expected = expected.map(|(mode, name, content)| (mode, name.into(), content.to_vec()));
        assert_eq!(entries(&bytes), expected);
    }
}
