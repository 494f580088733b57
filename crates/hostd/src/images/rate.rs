//! Bandwidth of reads of an image's device: measured with a sample of the image before anybody is
//! served, for prefetchers, which share out what demand leaves of it (BW_T in the VIO paper).

use super::Image;
use rustix::fs::{Advice, fadvise};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes of one read: long enough that its own cost says little.
const READ_BYTES: u64 = 1 << 20;
/// Most that is read.
const SAMPLE_BYTES: u64 = 64 << 20;
/// Less says nothing: what is short may come from the drive's own cache.
const SAMPLE_BYTES_MIN: u64 = 4 << 20;
/// Longest that it takes, but for the reads that are under way then.
const TIME: Duration = Duration::from_millis(250);
/// Reads at once: an array gives its best to several.
const THREADS: usize = 4;
/// Addresses of direct I/O are multiples of at most this.
const ALIGN: usize = 4096;
/// Runs of data and holes that are looked at.
const RUNS_MAX: usize = 4096;

impl Image {
    /// Bytes a second, read from the image's beginning where it has data: at most
    /// 64 MiB or a quarter of a second. `None` where there is too little data to
    /// tell, for an image that only [lies on](Image::lies_on) the device, or where reading fails (which is for the guest to see).
    pub fn measure_bandwidth(&self) -> Option<u64> {
        if !self.has_place {
            return None; // What is between this image and the device may be slower.
        }
        let places = self.sample();
        if (places.len() as u64) < SAMPLE_BYTES_MIN / READ_BYTES {
            return None;
        }
        if !self.is_direct() && !self.is_in_memory() {
            // Advice: what is not taken makes the figure too high, which prefetching survives.
            let _ = fadvise(&self.file, 0, NonZeroU64::new(SAMPLE_BYTES), Advice::DontNeed);
        }
        let (next, begin) = (AtomicUsize::new(0), Instant::now());
        let read = std::thread::scope(|scope| {
            let start = || {
                std::thread::Builder::new().name("measure".into()).spawn_scoped(scope, || {
                    let mut memory = vec![0; READ_BYTES as usize + ALIGN];
                    let skip = memory.as_ptr().align_offset(ALIGN).min(ALIGN);
                    let buffer = &mut memory[skip..skip + READ_BYTES as usize];
                    let mut read = 0;
                    while begin.elapsed() < TIME {
                        let place = places.get(next.fetch_add(1, Ordering::Relaxed));
                        let Some(&place) = place else { break };
                        self.file.read_exact_at(buffer, place).ok()?;
                        read += READ_BYTES;
                    }
                    Some(read)
                })
            };
            let threads: Vec<_> = (0..THREADS).filter_map(|_| start().ok()).collect();
            threads.into_iter().map(|t| t.join().ok().flatten()).sum::<Option<u64>>()
        })?;
        let enough = read >= SAMPLE_BYTES_MIN;
        enough.then(|| (read as f64 / begin.elapsed().as_secs_f64()) as u64)
    }

    /// Where the first whole MiB of data are.
    fn sample(&self) -> Vec<u64> {
        let mut places = Vec::new();
        let mut at = 0;
        let Ok(allocation) = self.allocation() else { return places };
        for (len, hole) in allocation.runs(0..self.limits.capacity_bytes, RUNS_MAX) {
            let first = at / READ_BYTES + u64::from(!at.is_multiple_of(READ_BYTES));
            let end = (at + len) / READ_BYTES;
            let room = SAMPLE_BYTES / READ_BYTES - places.len() as u64;
            if !hole {
                places.extend((first..end).take(room as usize).map(|n| n * READ_BYTES));
            }
            at += len;
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use crate::images::{Image, OpenOptions};
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    const MIB: u64 = 1 << 20;

    #[test]
    fn holes_are_no_measure_and_data_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.img");
        let file = File::create(&path).unwrap();
        file.set_len(256 * MIB).unwrap();
        let open = || Image::open(&path, &OpenOptions::reading()).unwrap();
        assert_eq!(open().measure_bandwidth(), None, "an empty image");
        file.write_all_at(&vec![1; 3 * MIB as usize], 20 * MIB + 4096).unwrap();
        file.write_all_at(&vec![1; 6 * MIB as usize], 100 * MIB).unwrap();
        let image = open();
        let expected: Vec<u64> =
            [21, 22, 100, 101, 102, 103, 104, 105].iter().map(|n| n * MIB).collect();
        assert_eq!(image.sample(), expected);
        let bytes_per_s = image.measure_bandwidth().expect("there is data");
        assert!(bytes_per_s > MIB, "{bytes_per_s}");
    }
}
