//! The guests' applications: what each reads and writes, and the image that it has.

use crate::error::{At, Result};
use crate::filesystem::{self, FileSet};
use std::fs::File;
use std::path::Path;
use std::time::Duration;

/// Of every guest. Sparse: what is read are zeros, in the emulated device's time.
pub(super) const IMAGE_BYTES: u64 = 16 << 30;
/// Size of the database's table, at the beginning of its disk.
const TABLE_BYTES: u64 = 8 << 30;
/// What a stream reads of its disk in one round: more than it can.
const FILM_BYTES: u64 = 2 << 30;
/// Files for each process of the file server in one round: more than it can read.
const FILES: u32 = 384;
const FILE_BYTES: u64 = 1 << 20;
const FILE_BLOCK_BYTES: u64 = 64 << 10;

/// What a guest is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// Random reads and synchronous writes of 16 KiB past the page cache, four of five reads.
    Database,
    /// Whole files, one after the other, through the page cache.
    Files,
    /// A stream through the page cache.
    Video,
    /// Compute tasks alone: the guest's application does no I/O.
    Build,
}

/// A window of an application.
pub(super) struct Work {
    /// 0: off, 1: on, 2: the private disk.
    pub side: usize,
    pub round: u32,
    pub seed: u64,
    /// fio does not count for this long.
    pub settle: Duration,
}

impl Load {
    /// As disks, guests and rows are named.
    pub fn name(self) -> &'static str {
        match self {
            Load::Database => "database",
            Load::Files => "files",
            Load::Video => "video",
            Load::Build => "build",
        }
    }

    /// Processes that do I/O.
    pub fn processes(self) -> u32 {
        match self {
            Load::Database => 16,
            Load::Files => 2,
            Load::Video => 1,
            Load::Build => 0,
        }
    }

    /// The guest's disk for one side. The same `seed` gives the same places of files.
    pub(super) fn make_image(self, path: &Path, rounds: u32, seed: u64) -> Result<()> {
        if self != Load::Files {
            let file = File::create(path).at("create", path)?;
            return file.set_len(IMAGE_BYTES).at("size", path);
        }
        // No window reads what another of its side has read.
        let set = |round: u32, process: u32| FileSet {
            directory: directory(round, process),
            count: FILES,
            file_bytes: FILE_BYTES,
        };
        let sets = (0..rounds).flat_map(|pair| (0..self.processes()).map(move |p| set(pair, p)));
        filesystem::make(path, IMAGE_BYTES, &sets.collect::<Vec<_>>(), seed)
    }

    /// A shell command that makes the guest ready for its windows.
    pub(super) fn prepare(self) -> &'static str {
        match self {
            // The files' inodes stay in memory: reading data reads data only.
            Load::Files => {
                "for d in vda vdb vdc; do mkdir /mnt/$d && \
                 mount -t ext4 -o noatime,noinit_itable /dev/$d /mnt/$d && \
                 find /mnt/$d -type f | xargs stat >/dev/null || exit 1; done"
            }
            _ => "true",
        }
    }

    /// fio's command line, or nothing where there is no I/O.
    pub(super) fn fio(self, work: &Work) -> Option<String> {
        let disk = ["vda", "vdb", "vdc"][work.side];
        let own = match self {
            Load::Database => format!(
                "--filename=/dev/{disk} --direct=1 --sync=dsync --rw=randrw --rwmixread=80 \
                 --bs=16k --size={TABLE_BYTES} --io_size=1T --norandommap"
            ),
            Load::Files => format!(
                "--directory=/mnt/{disk} --filename_format='{}/test_file.$filenum' \
                 --allow_file_create=0 --rw=read --bs={FILE_BLOCK_BYTES} --nrfiles={FILES} \
                 --size={} --file_service_type=random:{}",
                directory_format(work.round),
                FILE_BYTES * u64::from(FILES),
                FILE_BYTES / FILE_BLOCK_BYTES
            ),
            Load::Video => format!(
                "--filename=/dev/{disk} --rw=read --bs=128k --offset={} --size={FILM_BYTES}",
                u64::from(work.round) * FILM_BYTES
            ),
            Load::Build => return None,
        };
        // Who has read all there is, on a machine so busy that windows last, begins again.
        // As applications do: no hints to the kernel, and no cache is dropped on the way. Places
        // follow from the seed alone: with `randrepeat`, fio's default, two windows of different
        // seeds share four of ten places.
        Some(format!(
            "fio --name={} --ioengine=psync --numjobs={} --group_reporting \
             --unified_rw_reporting=1 --randrepeat=0 --randseed={} --fadvise_hint=0 --invalidate=0 \
             --ramp_time={}ms --runtime=3600 --time_based --output-format=json --output=/tmp/fio.json {own}",
            self.name(),
            self.processes(),
            work.seed,
            work.settle.as_millis()
        ))
    }
}

fn directory(round: u32, process: u32) -> String {
    format!("p{round}j{process}")
}

/// The same as fio writes it.
fn directory_format(round: u32) -> String {
    format!("p{round}j$jobnum")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_window_reads_its_own_part_of_its_side() {
        let fio = |load: Load, side, round| {
            load.fio(&Work { side, round, seed: 7, settle: Duration::from_secs(4) })
        };
        assert_eq!(fio(Load::Build, 0, 0), None);
        for load in [Load::Database, Load::Files, Load::Video] {
            let [off, on, alone] = [0, 1, 2].map(|side| fio(load, side, 0).expect("it does I/O"));
            assert_eq!(off.replace("/vda", "/vdb"), on, "the same work on the other disk");
            assert_eq!(off.replace("/vda", "/vdc"), alone, "and on the private one");
            assert_ne!(off, on);
            assert!(off.contains(&format!("--numjobs={} ", load.processes())), "{off}");
        }
        let video = |round| fio(Load::Video, 1, round).expect("it reads");
        assert!(video(0).contains("--offset=0 ") && video(1).contains("--offset=2147483648 "));
        let files = fio(Load::Files, 1, 3).expect("it reads");
        assert!(files.contains(&directory(3, 0).replace("j0", "j$jobnum/test_file")), "{files}");
        // A film for each of seven rounds.
        const { assert!(IMAGE_BYTES / FILM_BYTES >= 7) };
    }

    #[test]
    fn the_file_server_has_files_for_each_round() {
        let dir = tempfile::tempdir().expect("a directory");
        let image = dir.path().join("files.img");
        Load::Files.make_image(&image, 2, 1).expect("made");
        let listed = crate::process::run(
            std::process::Command::new("/sbin/debugfs").args(["-R", "ls -p /p1j1"]).arg(&image),
            "e2fsprogs",
        );
        let listed = listed.expect("debugfs runs");
        let files = listed.lines().filter(|line| line.contains("/test_file.")).count();
        assert_eq!(files, FILES as usize, "{listed}");
    }
}
