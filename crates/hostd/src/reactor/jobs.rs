//! Guests' requests under way, as ports handed them in: what the stack does not know of them.
//! The stack names each by its number here.

use crate::port::Job;
use seekway_core::request::Extent;
use seekway_core::units::{Instant, Lba, SECTOR_BYTES, Sectors};
use std::ops::Index;

/// A job under way.
pub struct JobSlot {
    /// As the port handed it in.
    pub job: Job,
    /// Its data, in order. Kept when the slot is free, for the next job.
    pub buffers: Vec<libc::iovec>,
    /// When the port handed it in; its response time begins then.
    pub arrived: Instant,
    live: bool,
}

// SAFETY: the iovecs point to memory that the port keeps until `done`; nobody
// but the reactor's thread looks at them.
unsafe impl Send for JobSlot {}

#[derive(Default)]
pub struct Jobs {
    slots: Vec<JobSlot>,
    free: Vec<u32>,
}

impl Jobs {
    /// Keep a job until [`Jobs::remove`]: its number.
    pub fn insert(&mut self, job: &Job, buffers: &[libc::iovec], now: Instant) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(JobSlot { job: *job, buffers: Vec::new(), arrived: now, live: false });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        (slot.job, slot.arrived, slot.live) = (*job, now, true);
        slot.buffers.clear();
        slot.buffers.extend_from_slice(buffers);
        index
    }

    /// Give memory back: what free slots keep for the next jobs.
    pub fn shrink(&mut self) {
        while self.slots.pop_if(|slot| !slot.live).is_some() {}
        let slots = self.slots.len() as u32;
        self.free.retain(|&job| job < slots);
        self.slots.iter_mut().filter(|slot| !slot.live).for_each(|slot| slot.buffers = Vec::new());
        self.slots.shrink_to_fit();
        self.free.shrink_to_fit();
    }

    /// The job is done with.
    pub fn remove(&mut self, job: u32) {
        let slot = &mut self.slots[job as usize];
        assert!(slot.live, "job {job} ends twice");
        slot.live = false;
        self.free.push(job);
    }
}

impl Index<u32> for Jobs {
    type Output = JobSlot;
    fn index(&self, job: u32) -> &JobSlot {
        &self.slots[job as usize]
    }
}

/// The sectors of its disk that a job touches. A flush touches none, and names the first.
pub fn extent_of(job: &Job) -> Extent {
    let start = job.offset / SECTOR_BYTES;
    let end = job.offset.saturating_add(job.len.max(1)).div_ceil(SECTOR_BYTES);
    let extent = Extent::new(Lba::new(start), Sectors::new(end - start));
    extent.expect("jobs are checked when they come")
}

/// Where in a job this part of its disk is: begin and length in bytes.
pub fn bytes_of(job: &Job, part: Extent) -> (u64, u64) {
    let start = (part.start().get() * SECTOR_BYTES).max(job.offset);
    let end = (part.end().get() * SECTOR_BYTES).min(job.offset + job.len);
    (start - job.offset, end - start)
}

/// Append to `out` the pieces of `buffers` that hold bytes `start..start+len`.
pub fn slice_buffers(buffers: &[libc::iovec], start: u64, len: u64, out: &mut Vec<libc::iovec>) {
    let (mut skip, mut left) = (start as usize, len as usize);
    for buffer in buffers {
        if left == 0 {
            break;
        }
        if skip >= buffer.iov_len {
            skip -= buffer.iov_len;
            continue;
        }
        let take = left.min(buffer.iov_len - skip);
        // An address inside the buffer.
        let iov_base = buffer.iov_base.wrapping_byte_add(skip);
        out.push(libc::iovec { iov_base, iov_len: take });
        (skip, left) = (0, left - take);
    }
    assert!(left == 0, "a job's buffers hold less than its length");
}

/// The bytes that buffers hold together.
pub fn buffers_len(buffers: &[libc::iovec]) -> u64 {
    buffers.iter().map(|b| b.iov_len as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_jobs_that_are_done_is_given_back() {
        let disk = crate::port::DiskId(0);
        let port = crate::port::PortId { index: 0, generation: 0 };
        let (op, offset, len) = (seekway_core::request::Op::Read, 0, 512);
        let (priority, fua, unmap) = (0, false, false);
        let job = Job { disk, port, token: 0, op, offset, len, priority, fua, unmap };
        let buffers = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 512 }; 1000];
        let mut jobs = Jobs::default();
        let numbers: Vec<u32> =
            (0..100).map(|_| jobs.insert(&job, &buffers, Instant::ZERO)).collect();
        for number in numbers.into_iter().filter(|&number| number != 40) {
            jobs.remove(number);
        }
        jobs.shrink();
        assert_eq!((jobs.slots.len(), jobs.free.len()), (41, 40));
        assert_eq!(jobs[40].buffers.len(), 1000);
        assert!(jobs.slots[..40].iter().all(|slot| slot.buffers.capacity() == 0));
        // All numbers can be used, and no one twice.
        let mut numbers: Vec<u32> =
            (0..50).map(|_| jobs.insert(&job, &[], Instant::ZERO)).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..=50).filter(|&number| number != 40).collect::<Vec<_>>());
    }

    #[test]
    fn slices_cross_buffers() {
        let iovec = |base: usize, iov_len| libc::iovec { iov_base: base as *mut _, iov_len };
        let buffers = [iovec(1000, 10), iovec(2000, 20), iovec(3000, 30)];
        let mut out = Vec::new();
        slice_buffers(&buffers, 15, 20, &mut out);
        let got: Vec<_> = out.iter().map(|v| (v.iov_base as usize, v.iov_len)).collect();
        assert_eq!(got, [(2005, 15), (3000, 5)]);
        assert_eq!(buffers_len(&buffers), 60);
    }
}
