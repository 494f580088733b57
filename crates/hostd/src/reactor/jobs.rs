//! Guests' requests on their way: jobs as ports handed them in, and the parts
//! that they were cut into where an image lies in pieces. One part is one
//! request of the dispatcher. Reads into the cache are jobs too, of no port.

use crate::port::{Errno, Job};
use seekway_policy::cache::FetchId;
use seekway_policy::request::RequestId;
use seekway_policy::units::Instant;
use std::ops::{Index, IndexMut};

/// A job under way.
pub struct JobSlot {
    /// As the port handed it in.
    pub job: Job,
    /// Its data, in order. Kept when the slot is free, for the next job.
    pub buffers: Vec<libc::iovec>,
    /// Parts not yet done, and fetches that it waits for.
    pub parts_left: u32,
    /// The read into the cache that this is; the job's port says nothing then.
    pub fetch: Option<FetchId>,
    /// The first error.
    pub error: Option<Errno>,
    /// When it came.
    pub arrived: Instant,
    /// Not free.
    pub live: bool,
}

// SAFETY: the iovecs point to memory that the port keeps until `done`; nobody
// but the reactor's thread looks at them.
unsafe impl Send for JobSlot {}

/// A part of a job: what the dispatcher knows as one request.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Which job.
    pub job: u32,
    /// Where in the job it begins, in bytes.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// What went wrong with it.
    pub error: Option<Errno>,
}

/// All jobs and parts.
#[derive(Default)]
pub struct Jobs {
    slots: Vec<JobSlot>,
    free: Vec<u32>,
    /// By [`RequestId::slot`].
    parts: Vec<Part>,
}

impl Jobs {
    /// Take a job in, without parts.
    pub fn insert(&mut self, job: &Job, buffers: &[libc::iovec], now: Instant) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(JobSlot {
                job: *job,
                buffers: Vec::new(),
                parts_left: 0,
                fetch: None,
                error: None,
                arrived: now,
                live: false,
            });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        (slot.job, slot.parts_left, slot.fetch, slot.error) = (*job, 0, None, None);
        (slot.arrived, slot.live) = (now, true);
        slot.buffers.clear();
        slot.buffers.extend_from_slice(buffers);
        index
    }

    /// The job has one part more.
    pub fn add_part(&mut self, id: RequestId, job: u32, start: u64, len: u64) {
        let part = Part { job, start, len, error: None };
        if id.slot() >= self.parts.len() {
            self.parts.resize(id.slot() + 1, part);
        }
        self.parts[id.slot()] = part;
        self[job].parts_left += 1;
    }

    /// The part of a request.
    pub fn part(&self, id: RequestId) -> &Part {
        &self.parts[id.slot()]
    }

    /// The part of a request failed.
    pub fn fail_part(&mut self, id: RequestId, error: Errno) {
        self.parts[id.slot()].error.get_or_insert(error);
    }

    /// A part is done. True when it was the job's last.
    pub fn part_done(&mut self, id: RequestId) -> bool {
        let Part { job, error, .. } = self.parts[id.slot()];
        let slot = &mut self[job];
        slot.error = slot.error.or(error);
        self.one_less(job)
    }

    /// The job waits for one thing less. True when it was the last.
    pub fn one_less(&mut self, job: u32) -> bool {
        let slot = &mut self[job];
        slot.parts_left -= 1;
        slot.parts_left == 0
    }

    /// The job is done with.
    pub fn remove(&mut self, job: u32) {
        let slot = &mut self[job];
        assert!(slot.live && slot.parts_left == 0, "job {job} ends while it runs");
        slot.live = false;
        self.free.push(job);
    }

    /// Jobs under way.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

impl Index<u32> for Jobs {
    type Output = JobSlot;
    fn index(&self, job: u32) -> &JobSlot {
        &self.slots[job as usize]
    }
}
impl IndexMut<u32> for Jobs {
    fn index_mut(&mut self, job: u32) -> &mut JobSlot {
        &mut self.slots[job as usize]
    }
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
