//! A disk image with an ext4 file system whose files lie where the simulator's
//! guest has them (`seekway_workload::guest::layout`), made without root and
//! without writing the files' data.
//!
//! mke2fs makes an empty file system in a sparse file; debugfs enters each file
//! with its one extent, marked as written, so that a guest reads it from the
//! disk (a hole, or an extent that was only reserved, would read as zeros without
//! any I/O); e2fsck puts the counters right. It takes a tenth of a second and a
//! few MiB, and what the files read as are zeros.

use crate::error::{At, LiveError, Result};
use crate::process::run;
use seekway_workload::generators::rng::Rng;
use seekway_workload::guest::layout::{Run, lay_out};
use seekway_workload::guest::{PAGE_BYTES, PAGE_SECTORS};
use std::fmt::Write;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

/// Longest extent of ext4 that counts as written, in blocks of 4 KiB.
const EXTENT_BLOCKS_MAX: u32 = 32_768;

/// Files of one size in a directory, named as sysbench names them:
/// `test_file.0`, `test_file.1`, …
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileSet {
    /// The directory, in the root of the file system.
    pub directory: String,
    pub count: u32,
    /// Size of each: a multiple of 4 KiB, at most 128 MiB.
    pub file_bytes: u64,
}

/// Make the image `path` of `bytes` (sparse) with these files. The same `seed`
/// gives the same layout.
pub fn make(path: &Path, bytes: u64, sets: &[FileSet], seed: u64) -> Result<()> {
    let file = File::create(path).at("create", path)?;
    file.set_len(bytes).at("size", path)?;
    drop(file);
    let layout = place(path, bytes, sets, seed)?;
    // Few groups' tables at the front, no journal, no checksums: less to write
    // and to read, and debugfs can enter extents as numbers.
    let features = "^has_journal,^resize_inode,^metadata_csum,^64bit,extent,flex_bg";
    let inodes: u32 = sets.iter().map(|s| s.count + 16).sum();
    run(
        Command::new("/sbin/mke2fs")
            .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-G", "4096", "-O", features])
            .args(["-E", "lazy_itable_init=1", "-N", &inodes.to_string()])
            .arg(path),
        "e2fsprogs",
    )?;
    let script = script(sets, &layout);
    let commands = path.with_extension("debugfs");
    fs::write(&commands, script).at("write", &commands)?;
    run(Command::new("/sbin/debugfs").arg("-w").arg("-f").arg(&commands).arg(path), "e2fsprogs")?;
    fs::remove_file(&commands).at("remove", &commands)?;
    check(path)
}

/// Where each file of each set lies.
fn place(path: &Path, bytes: u64, sets: &[FileSet], seed: u64) -> Result<Vec<Vec<Vec<Run>>>> {
    let files: Vec<Vec<u64>> = sets.iter().map(|s| vec![s.file_bytes; s.count as usize]).collect();
    let layout = lay_out(bytes / 512, &files, 1, &mut Rng::new(seed));
    let layout = layout.map_err(|missing| {
        let what = format!("{}: its files need {missing} bytes more", path.display());
        LiveError::Measured(what)
    })?;
    Ok(layout.files)
}

/// What debugfs is to do.
fn script(sets: &[FileSet], layout: &[Vec<Vec<Run>>]) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    for (set, files) in sets.iter().zip(layout) {
        let _ = writeln!(text, "mkdir {}", set.directory);
        for (n, runs) in files.iter().enumerate() {
            let name = format!("{}/test_file.{n}", set.directory);
            let _ = writeln!(text, "write /dev/null {name}");
            for run in runs {
                assert!(run.pages <= EXTENT_BLOCKS_MAX, "a file of one extent");
                let block = run.sector / PAGE_SECTORS;
                let fields = [
                    ("size", set.file_bytes),
                    // EXT4_EXTENTS_FL
                    ("flags", 0x8_0000),
                    ("blocks", u64::from(run.pages) * PAGE_SECTORS),
                    // The header: magic 0xf30a, one entry of at most four, depth 0.
                    ("block[0]", 0x1_f30a),
                    ("block[1]", 4),
                    ("block[2]", 0),
                    // The extent: first block of the file, length, first block
                    // on the disk (images are below 16 TiB).
                    ("block[3]", 0),
                    ("block[4]", u64::from(run.pages)),
                    ("block[5]", block),
                ];
                for (field, value) in fields {
                    let _ = writeln!(text, "set_inode_field {name} {field} {value}");
                }
                let _ = writeln!(text, "setb {block} {}", run.pages);
            }
            debug_assert_eq!(set.file_bytes % PAGE_BYTES, 0);
        }
    }
    text
}

/// The first check puts the counters of free blocks right, the second has to
/// find nothing.
fn check(path: &Path) -> Result<()> {
    let fsck = |flags: &str| {
        let output = Command::new("/sbin/e2fsck").arg(flags).arg(path).output();
        output.at("run", Path::new("/sbin/e2fsck"))
    };
    fsck("-fy")?;
    let second = fsck("-fn")?;
    if second.status.success() {
        return Ok(());
    }
    Err(LiveError::Command {
        command: format!("e2fsck -fn {}", path.display()),
        status: second.status.to_string(),
        stderr: String::from_utf8_lossy(&second.stdout).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_where_the_simulator_has_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let image = dir.path().join("disk.img");
        let sets: Vec<FileSet> = ["a", "b"]
            .map(|d| FileSet { directory: d.into(), count: 20, file_bytes: 8 << 20 })
            .into();
        make(&image, 2 << 30, &sets, 7).expect("made");
        let layout = place(&image, 2 << 30, &sets, 7).expect("placed");
        let run = layout[1][19][0];
        let block = run.sector / PAGE_SECTORS;
        let shown = crate::process::run(
            Command::new("/sbin/debugfs").args(["-R", "ex b/test_file.19"]).arg(&image),
            "e2fsprogs",
        )
        .expect("debugfs runs");
        let words: Vec<&str> = shown.lines().last().expect("a line").split_whitespace().collect();
        let expected = [
            "0/",
            "0",
            "1/",
            "1",
            "0",
            "-",
            "2047",
            &block.to_string(),
            "-",
            &(block + 2047).to_string(),
            "2048",
        ]
        .map(String::from);
        assert_eq!(words, expected, "{shown}");
        // Sparse: the data is not there.
        use std::os::unix::fs::MetadataExt;
        let stored = fs::metadata(&image).expect("there").blocks() * 512;
        assert!(stored < 16 << 20, "{stored} bytes stored");
        // Too little room is an error.
        assert!(make(&image, 64 << 20, &sets, 7).is_err());
    }
}
