//! Reads into the cache from their beginning to their end: as jobs of no port,
//! in the background or not, taken over by guests, taken back, and handed to
//! those who wait for them.

use super::{Core, UnderWay, place_in};
use crate::port::{DiskId, Job, PortId};
use crate::reactor::core::disk_of;
use seekway_policy::cache::FetchId;
use seekway_policy::request::Op;
use seekway_policy::units::SECTOR_BYTES;

/// Whose jobs the fetches are.
const NOBODY: PortId = PortId { index: 0, generation: 0 };

impl Core {
    /// Read a new fetch's extent into its frames.
    pub(super) fn fetch(&mut self, id: FetchId, background: bool) {
        let Some(cached) = &mut self.cached else { return };
        if cached.under_way(id).job.is_some() {
            return;
        }
        let fetch = cached.books.fetch(id);
        let job = Job {
            disk: DiskId(fetch.vm.index() as u16),
            port: NOBODY,
            token: 0,
            op: Op::Read,
            offset: fetch.extent.start().get() * SECTOR_BYTES,
            len: fetch.extent.len().bytes(),
            tag: fetch.tag,
            fua: false,
            unmap: false,
        };
        cached.buffers.clear();
        cached.frames.iovecs(&fetch.frames, job.len, &mut cached.buffers);
        let index = self.jobs.insert(&job, &cached.buffers, self.now);
        cached.buffers.clear();
        self.jobs[index].fetch = Some(id);
        cached.under_way(id).job = Some(index);
        disk_of(&mut self.disks, job.disk).fetches += 1;
        self.news = true;
        if !background {
            return self.arrive_part(index, 0, job.len);
        }
        let mut requests = Vec::new();
        self.in_pieces(index, 0, job.len, &mut |core, arrival| {
            let id = core.dispatcher.arrive_background(core.now, arrival);
            requests.push(id);
            id
        });
        if let Some(cached) = &mut self.cached {
            cached.under_way(id).requests = requests;
            cached.prefetches.push(id);
        }
    }

    /// A guest waits for a fetch: what of it still waits in the background
    /// becomes demand.
    pub(super) fn promote(&mut self, id: FetchId) {
        if self.hurry(id)
            && let Some(cached) = &mut self.cached
        {
            cached.books.promoted(id);
        }
    }

    /// What of a fetch waits in the background becomes demand. False when
    /// nothing does.
    fn hurry(&mut self, id: FetchId) -> bool {
        let parts = self.withdraw(id);
        if parts.is_empty() {
            return false;
        }
        for &(index, start, len) in &parts {
            self.arrive_part(index, start, len);
            self.jobs.one_less(index);
        }
        if let Some(cached) = &mut self.cached {
            cached.prefetches.retain(|&other| other != id);
        }
        true
    }

    /// Take back what of a fetch waits in the background: job, beginning and
    /// length of each part. The job still counts them.
    fn withdraw(&mut self, id: FetchId) -> Vec<(u32, u64, u64)> {
        let mut parts = Vec::new();
        let Some(cached) = &mut self.cached else { return parts };
        cached.under_way(id).requests.retain(|&request| {
            let taken = self.dispatcher.withdraw(self.now, request);
            if taken {
                let part = self.jobs.part(request);
                parts.push((part.job, part.start, part.len));
                disk_of(&mut self.disks, self.jobs[part.job].job.disk).load.requests -= 1;
            }
            !taken
        });
        parts
    }

    /// Take back the prefetches of which nothing has left the background, and that
    /// nobody waits for. What the device has of others is worth its rest: a
    /// guest that comes meanwhile finds all of it under way.
    pub(in crate::reactor) fn drop_prefetches(&mut self) {
        let mut next = 0;
        while let Some(id) = self.cached.as_ref().and_then(|c| c.prefetches.get(next).copied()) {
            // What is dropped leaves its place to the one behind it.
            next += usize::from(!self.drop_prefetch(id));
        }
    }

    /// The same for one disk, which leaves: it does not wait for the rest of the
    /// others longer than for demand.
    pub(super) fn end_prefetches(&mut self, disk: DiskId) {
        let mut next = 0;
        while let Some(cached) = &self.cached
            && let Some(&id) = cached.prefetches.get(next)
        {
            let chosen = usize::from(disk.0) == cached.books.fetch(id).vm.index();
            next += usize::from(!chosen || !self.drop_prefetch(id) && !self.hurry(id));
        }
    }

    /// Take a prefetch back if nothing of it has left the background and nobody
    /// waits for it; else false.
    fn drop_prefetch(&mut self, id: FetchId) -> bool {
        let Some(cached) = &mut self.cached else { return false };
        let UnderWay { requests, begun, .. } = &cached.under_way[id.0 as usize];
        let waits = !begun && requests.iter().all(|&r| self.dispatcher.waits_in_background(r));
        if !waits || !cached.books.fetch(id).waiters.is_empty() {
            return false;
        }
        for (index, ..) in self.withdraw(id) {
            self.jobs.one_less(index);
        }
        self.forget_fetch(id);
        if let Some(cached) = &mut self.cached {
            cached.books.dropped(self.now, id);
        }
        true
    }

    /// The job of a fetch is over; true if it went well.
    fn forget_fetch(&mut self, id: FetchId) -> bool {
        let cached = self.cached.as_mut().expect("it has a fetch");
        let index = std::mem::take(cached.under_way(id)).job.expect("a fetch is a job");
        cached.prefetches.retain(|&other| other != id);
        let slot = &self.jobs[index];
        let (disk, ok) = (slot.job.disk, slot.error.is_none());
        self.jobs.remove(index);
        disk_of(&mut self.disks, disk).fetches -= 1;
        ok
    }

    /// Fetches whose jobs are done end: guests that waited have their data.
    pub(in crate::reactor) fn end_fetches(&mut self) {
        while let Some(id) = self.cached.as_mut().and_then(|c| c.ended.pop()) {
            self.end_fetch(id);
        }
    }

    fn end_fetch(&mut self, id: FetchId) {
        let ok = self.forget_fetch(id);
        let cached = self.cached.as_mut().expect("it has a fetch");
        let mut waiters = std::mem::take(&mut cached.waiters);
        waiters.extend_from_slice(&cached.books.fetch(id).waiters);
        for waiter in waiters.iter().filter(|_| ok) {
            let slot = &self.jobs[waiter.token as u32];
            cached.serve_fetched(id, &slot.job, &slot.buffers, waiter.extent);
        }
        cached.books.fetched(self.now, id, ok);
        cached.waiting -= waiters.len();
        for waiter in waiters.drain(..) {
            let index = waiter.token as u32;
            let job = self.jobs[index].job;
            disk_of(&mut self.disks, job.disk).load.waited(waiter.extent.len().bytes());
            if !ok {
                // Each on its own: what is wrong may lie beside what it wants.
                let (start, len) = place_in(&job, waiter.extent);
                self.arrive_part(index, start, len);
                self.news = true;
            }
            if self.jobs.one_less(index) {
                self.job_done(index);
            }
        }
        if let Some(cached) = &mut self.cached {
            cached.waiters = waiters;
        }
    }
}
