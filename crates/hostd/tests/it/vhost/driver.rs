//! A guest's driver, of crate `virtio-driver`.

use super::raw::Memory;
use super::server::Served;
use crate::common::PATIENCE;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use virtio_driver::{
    EventFd, QueueNotifier, VhostUser, VirtioBlkConfig, VirtioBlkFeatureFlags, VirtioBlkQueue,
    VirtioBlkTransport, VirtioFeatureFlags,
};

/// Bytes of memory that the device can reach.
const BUFFER_BYTES: usize = 8 << 20;

/// Features that a driver of Linux's takes of those offered.
pub fn all_features() -> u64 {
    let blk = VirtioBlkFeatureFlags::all();
    let ring = VirtioFeatureFlags::VERSION_1
        | VirtioFeatureFlags::RING_EVENT_IDX
        | VirtioFeatureFlags::RING_INDIRECT_DESC;
    blk.bits() | ring.bits()
}

pub struct Driver {
    queues: Vec<VirtioBlkQueue<'static, usize>>,
    kicks: Vec<Box<dyn QueueNotifier>>,
    calls: Vec<Arc<EventFd>>,
    pub transport: Box<VirtioBlkTransport>,
    buffer: Memory,
}

impl Driver {
    pub fn connect(served: &Served, queues: usize, size: u16) -> Driver {
        Driver::with_features(served, queues, size, all_features())
    }

    pub fn with_features(served: &Served, queues: usize, size: u16, features: u64) -> Driver {
        let path = served.socket.to_str().unwrap();
        let transport = VhostUser::new(path, features).unwrap();
        let mut transport: Box<VirtioBlkTransport> = Box::new(transport);
        let buffer = Memory::new(BUFFER_BYTES);
        let (base, fd) = (buffer.base as usize, buffer.file.as_raw_fd());
        transport.map_mem_region(base, BUFFER_BYTES, fd, 0).unwrap();
        let mut vqs = VirtioBlkQueue::setup_queues(&mut *transport, queues, size).unwrap();
        vqs.iter_mut().for_each(|q: &mut VirtioBlkQueue<'_, usize>| q.set_used_notif_enabled(true));
        let kicks = (0..queues).map(|i| transport.get_submission_notifier(i)).collect();
        let calls = (0..queues).map(|i| transport.get_completion_fd(i)).collect();
        Driver { queues: vqs, kicks, calls, transport, buffer }
    }

    pub fn config(&self) -> VirtioBlkConfig {
        self.transport.get_config().unwrap()
    }

    /// The memory that requests use.
    pub fn buffer(&mut self) -> &mut [u8] {
        // SAFETY: mapped; the device is not at work when a test looks.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.base, BUFFER_BYTES) }
    }

    /// Queue a read into the buffer at `at`.
    pub fn queue_read(&mut self, queue: usize, offset: u64, at: usize, len: usize, name: usize) {
        assert!(at + len <= BUFFER_BYTES);
        let base = self.buffer.base.wrapping_add(at);
        // SAFETY: inside the mapping, which outlives the request.
        unsafe { self.queues[queue].read_raw(offset, base, len, name).unwrap() }
    }

    /// Queue a write from the buffer at `at`.
    pub fn queue_write(&mut self, queue: usize, offset: u64, at: usize, len: usize, name: usize) {
        assert!(at + len <= BUFFER_BYTES);
        let base = self.buffer.base.wrapping_add(at);
        // SAFETY: inside the mapping, which outlives the request.
        unsafe { self.queues[queue].write_raw(offset, base, len, name).unwrap() }
    }

    /// Tell the device, if it wants to be told.
    pub fn kick(&mut self, queue: usize) {
        if self.queues[queue].avail_notif_needed() {
            self.kicks[queue].notify().unwrap();
        }
    }

    /// Wait for at least one completion; their names and results.
    pub fn complete(&mut self, queue: usize) -> Vec<(usize, i32)> {
        loop {
            let done: Vec<_> =
                self.queues[queue].completions().map(|c| (c.context, c.ret)).collect();
            if !done.is_empty() {
                return done;
            }
            let fd = self.calls[queue].as_fd().as_raw_fd();
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry.
            let n = unsafe { libc::poll(&mut poll, 1, PATIENCE.as_millis() as i32) };
            assert_eq!(n, 1, "the device does not call");
            self.calls[queue].read().unwrap();
        }
    }

    fn one(&mut self, queue: usize) -> i32 {
        self.kick(queue);
        let done = self.complete(queue);
        assert_eq!(done.len(), 1);
        done[0].1
    }

    pub fn read(&mut self, queue: usize, offset: u64, len: usize) -> (i32, Vec<u8>) {
        self.buffer()[..len].fill(0xee);
        self.queue_read(queue, offset, 0, len, 0);
        let result = self.one(queue);
        (result, self.buffer()[..len].to_vec())
    }

    pub fn write(&mut self, queue: usize, offset: u64, data: &[u8]) -> i32 {
        self.buffer()[..data.len()].copy_from_slice(data);
        self.queue_write(queue, offset, 0, data.len(), 0);
        self.one(queue)
    }

    pub fn flush(&mut self, queue: usize) -> i32 {
        self.queues[queue].flush(0).unwrap();
        self.one(queue)
    }

    pub fn discard(&mut self, queue: usize, offset: u64, len: u64) -> i32 {
        self.queues[queue].discard(offset, len, 0).unwrap();
        self.one(queue)
    }

    pub fn write_zeroes(&mut self, queue: usize, offset: u64, len: u64, unmap: bool) -> i32 {
        self.queues[queue].write_zeroes(offset, len, unmap, 0).unwrap();
        self.one(queue)
    }
}
