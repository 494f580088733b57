//! Bandwidth of a modelled device's reads, for prefetchers: a real device's is measured when it is
//! opened.

use super::Throttle;
use seekway_core::request::{Extent, Op, Request, RequestId, VmId};
use seekway_core::units::{Instant, Lba, Sectors};
use std::collections::VecDeque;

/// Sectors of one read.
const READ: Sectors = Sectors::new(256);
/// Reads at once, as far as the model takes them.
const DEPTH: u32 = 32;
/// Reads in all: 64 MiB.
const READS: u64 = 512;

impl Throttle {
    /// Bytes a second that the modelled device reads at best, one read of 128 KiB
    /// behind the other from its first sector on, at the k of now. It uses the
    /// throttle up: the model has a past then. `None` for a device that is too
    /// small to tell.
    pub fn bandwidth(self) -> Option<u64> {
        let mut model = self.model;
        if model.profile().capacity.get() < READS * READ.get() {
            return None;
        }
        let depth = model.queue_depth().min(DEPTH);
        let mut free: VecDeque<RequestId> = (0..depth).map(RequestId::new).collect();
        let (mut now, mut sent, mut done) = (Instant::ZERO, 0, 0);
        while done < READS {
            while sent < READS
                && let Some(id) = free.pop_front()
            {
                model.submit(now, &read(id, sent * READ.get(), now));
                sent += 1;
            }
            now = model.next_completion()?;
            while let Some(id) = model.pop_completed(now) {
                free.push_back(id);
                done += 1;
            }
        }
        let span = self.clock.factor().stretch(now.since(Instant::ZERO));
        Some(((READS * READ.bytes()) as f64 / span.as_secs_f64()) as u64)
    }
}

fn read(id: RequestId, start: u64, now: Instant) -> Request {
    let extent = Extent::new(Lba::new(start), READ).expect("it lies inside the device");
    Request { id, vm: VmId::new(0), tag: None, op: Op::Read, sync: true, extent, arrived: now }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretched_disk_reads_that_much_less() {
        let rate = |spec| Throttle::parse(spec).unwrap().bandwidth().unwrap();
        let plain = rate("seagate-1tb-7200:k=1");
        // What disks of that time read at their outer edge.
        assert!((80_000_000..250_000_000).contains(&plain), "{plain} bytes/s");
        let half = rate("seagate-1tb-7200:k=2");
        assert!(half.abs_diff(plain / 2) < plain / 100, "{plain} and {half}");
    }
}
