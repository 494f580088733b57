//! A guest's driver without a guest: one virtqueue of a vhost-user-blk device,
//! loaded in a closed loop. It sleeps on the queue's call eventfd, as a guest waits
//! for its interrupt, and rings once for all that it adds at a time.
//!
//! The daemon's bench and the live experiments use it, with their other needs: images whose data is
//! checked, and peers' servers.

mod image;
mod load;
mod server;

pub use image::{in_memory, wait_until_unlocked, write_image};
pub use load::{Load, Result, Span};
pub use server::{listening, qemu_file};

use hdrhistogram::Histogram;
use image::stamp;
use load::Places;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use virtio_driver::{
    QueueNotifier, VhostUser, VirtioBlkConfig, VirtioBlkFeatureFlags, VirtioBlkQueue,
    VirtioBlkReqBuf, VirtioBlkTransport, VirtioFeatureFlags, VirtioTransport,
};

/// Entries of the queue, at least: three descriptors for each of 64 requests, as Linux asks.
const QUEUE_SIZE_MIN: u16 = 256;
/// Descriptors of a request: header, data, status.
const DESCRIPTORS: u16 = 3;
/// Most requests outstanding: the queue has at most 1,024 entries.
const DEPTH_MAX: u16 = 341;
/// Longest silence of the server before it counts as an error.
const PATIENCE: Duration = Duration::from_secs(120);

/// Way of waiting for completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// For the queue's call eventfd.
    Event,
    /// Looking at the used ring all the time, the server's notices turned off.
    Spin,
}

/// A connected device with one queue.
pub struct Client {
    // Declared before the memory it points into, so that it is dropped first.
    queue: VirtioBlkQueue<'static, u16>,
    notifier: Box<dyn QueueNotifier>,
    bell: Bell,
    // Keeps the connection and the queue's memory.
    _transport: VhostUser<VirtioBlkConfig, VirtioBlkReqBuf>,
    memory: Memory,
    capacity_bytes: u64,
    queue_size: u16,
    stop: Arc<AtomicBool>,
}

impl Client {
    /// Connect to a socket on which a server listens; `memory_bytes` are shared
    /// with it for data. Loads have at most 64 requests outstanding.
    pub fn connect(socket: &Path, memory_bytes: usize) -> Result<Client> {
        Self::with_queue(socket, memory_bytes, QUEUE_SIZE_MIN)
    }

    /// As [`Client::connect`], for one load at its own depth. Ends with an error soon after `stop`
    /// is set.
    pub fn for_load(socket: &Path, load: Load, stop: Arc<AtomicBool>) -> Result<Client> {
        let entries = load.depth.min(DEPTH_MAX) * DESCRIPTORS;
        let size = entries.next_power_of_two().max(QUEUE_SIZE_MIN);
        Ok(Client { stop, ..Self::with_queue(socket, load.memory_bytes(), size)? })
    }

    fn with_queue(socket: &Path, memory_bytes: usize, queue_size: u16) -> Result<Client> {
        let fail = |what: &str, error| format!("{}: {what}: {error}", socket.display());
        let features = VirtioFeatureFlags::VERSION_1.bits()
            | VirtioFeatureFlags::RING_EVENT_IDX.bits()
            | VirtioBlkFeatureFlags::all().bits() & !VirtioBlkFeatureFlags::RO.bits();
        let path = socket.to_str().ok_or("a socket's path that is no UTF-8")?;
        let mut transport = VhostUser::<VirtioBlkConfig, VirtioBlkReqBuf>::new(path, features)
            .map_err(|error| fail("vhost-user", error))?;
        let config = transport.get_config().map_err(|error| fail("its configuration", error))?;
        let queue = {
            let transport: &mut VirtioBlkTransport = &mut transport;
            VirtioBlkQueue::setup_queues(transport, 1, queue_size)
                .map_err(|error| fail("its queue", error))?
                .pop()
                .ok_or("a device without a queue")?
        };
        let memory = Memory::new(memory_bytes).map_err(|error| fail("memory to share", error))?;
        transport
            .map_mem_region(memory.base as usize, memory.len, memory.file.as_raw_fd(), 0)
            .map_err(|error| fail("sharing memory", error))?;
        Ok(Client {
            queue,
            notifier: transport.get_submission_notifier(0),
            bell: Bell::new(&transport).map_err(|error| fail("its call eventfd", error))?,
            _transport: transport,
            memory,
            capacity_bytes: config.capacity.to_native() * 512,
            queue_size,
            stop: Arc::default(),
        })
    }

    /// From now on it reads and writes below `bytes` only.
    pub fn stay_below(&mut self, bytes: u64) {
        self.capacity_bytes = self.capacity_bytes.min(bytes);
    }

    /// Load the server. Latencies in nanoseconds of the requests that completed in
    /// the counted span, and how long that was; `at_start` runs when it begins.
    pub fn run(
        &mut self,
        load: Load,
        span: Span,
        wait: Wait,
        at_start: impl FnOnce(),
    ) -> Result<(Histogram<u64>, Duration)> {
        let block_bytes = load.block_bytes as usize;
        assert!(load.memory_bytes() <= self.memory.len);
        assert!(load.depth * DESCRIPTORS <= self.queue_size);
        let mut places = Places::new(load, self.capacity_bytes);
        let mut latencies = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("fixed bounds");
        let mut at_start = Some(at_start);
        let mut now = Instant::now();
        let (counted_from, mut first) = (now + span.warm_up, None);
        // Per slot: when and where it reads or writes.
        let mut slots = vec![(now, 0_u64); load.depth.into()];
        let mut free: Vec<u16> = (0..load.depth).collect();
        loop {
            if first.is_none() && now >= counted_from {
                first = Some(now);
                at_start.take().expect("the first time")();
            }
            let stopped = self.stop.load(Ordering::Relaxed);
            let over = stopped || first.is_some_and(|first| now >= first + span.counted);
            if over && free.len() == slots.len() {
                break;
            }
            if !over && !free.is_empty() {
                for slot in free.drain(..) {
                    let offset = places.next();
                    slots[usize::from(slot)] = (now, offset);
                    self.add(load, slot, offset)
                        .map_err(|error| format!("adding a request: {error}"))?;
                }
                if self.queue.avail_notif_needed() {
                    self.notifier.notify().map_err(|error| format!("the kick: {error}"))?;
                }
            }
            self.wait(wait)?;
            self.reap(&mut free)?;
            now = Instant::now();
            for &slot in &free {
                let (since, offset) = slots[usize::from(slot)];
                if !load.write {
                    self.check(usize::from(slot) * block_bytes, offset)?;
                }
                if !over && first.is_some() {
                    latencies.saturating_record((now - since).as_nanos() as u64);
                }
            }
        }
        if self.stop.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        Ok((latencies, span.counted))
    }

    /// Puts a request into the queue. A write has the image's own contents, in the range that is
    /// checked.
    fn add(&mut self, load: Load, slot: u16, offset: u64) -> std::io::Result<()> {
        let len = load.block_bytes as usize;
        let data = self.memory.at(usize::from(slot) * len);
        // SAFETY: the slot's own part of the shared memory, aligned to the block, which
        // outlives the queue's last completion.
        unsafe {
            if load.write {
                data.cast::<u64>().write_volatile(stamp(offset).to_le());
                self.queue.write_raw(offset, data, len, slot)
            } else {
                self.queue.read_raw(offset, data, len, slot)
            }
        }
    }

    /// Until the server says that something is done.
    fn wait(&mut self, wait: Wait) -> Result<()> {
        let in_time = match wait {
            Wait::Event => {
                self.bell.wait().map_err(|error| format!("the call eventfd: {error}"))?
            }
            Wait::Spin => {
                self.queue.set_used_notif_enabled(false);
                let until = Instant::now() + PATIENCE;
                while !self.queue.completions().has_next() && Instant::now() < until {
                    std::hint::spin_loop();
                }
                self.queue.completions().has_next()
            }
        };
        if in_time {
            return Ok(());
        }
        Err(format!("no answer within {} s", PATIENCE.as_secs()))
    }

    /// Take all that is done, as Linux's driver does in its interrupt handler:
    /// notices off, take, notices on, look again.
    fn reap(&mut self, free: &mut Vec<u16>) -> Result<()> {
        loop {
            self.queue.set_used_notif_enabled(false);
            for completion in self.queue.completions() {
                if completion.ret != 0 {
                    return Err(format!("a request failed: status {}", completion.ret));
                }
                free.push(completion.context);
            }
            self.queue.set_used_notif_enabled(true);
            if !self.queue.completions().has_next() {
                return Ok(());
            }
        }
    }

    /// Checks a slot's data against the image.
    fn check(&self, at: usize, offset: u64) -> Result<()> {
        // SAFETY: within the shared memory, aligned to the block.
        let found = u64::from_le(unsafe { self.memory.at(at).cast::<u64>().read_volatile() });
        if found == stamp(offset) {
            return Ok(());
        }
        Err(format!("the server gave other data than the image has at byte {offset}"))
    }
}

/// The queue's call eventfd, seen through epoll by its edges: one system call for
/// each notice, as a guest gets one interrupt, and none to read the counter.
struct Bell {
    epoll: OwnedFd,
}

impl Bell {
    fn new(transport: &VhostUser<VirtioBlkConfig, VirtioBlkReqBuf>) -> std::io::Result<Bell> {
        let fd = transport.get_completion_fd(0).as_raw_fd();
        let mut event =
            libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        // SAFETY: a new descriptor, checked; the event is read within the call.
        unsafe {
            let epoll = check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?;
            let epoll = OwnedFd::from_raw_fd(epoll);
            check(libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event))?;
            Ok(Bell { epoll })
        }
    }

    /// Until it rings; false when it did not within [`PATIENCE`].
    fn wait(&self) -> std::io::Result<bool> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let patience_ms = PATIENCE.as_millis() as i32;
        loop {
            // SAFETY: room for the one event.
            let result =
                unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), &raw mut event, 1, patience_ms) };
            match check(result) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                result => return result.map(|ready| ready > 0),
            }
        }
    }
}

/// A system call's result, or its error.
fn check(result: i32) -> std::io::Result<i32> {
    match result {
        -1 => Err(std::io::Error::last_os_error()),
        result => Ok(result),
    }
}

/// Memory that both sides map: the guest's RAM.
struct Memory {
    file: OwnedFd,
    base: *mut u8,
    len: usize,
}

impl Memory {
    fn new(len: usize) -> std::io::Result<Memory> {
        // SAFETY: a new descriptor, a new mapping, checked each.
        unsafe {
            let fd = check(libc::memfd_create(c"bench-guest".as_ptr(), libc::MFD_CLOEXEC))?;
            let file = OwnedFd::from_raw_fd(fd);
            check(libc::ftruncate(file.as_raw_fd(), len as i64))?;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let kind = libc::MAP_SHARED | libc::MAP_POPULATE;
            let base = libc::mmap(ptr::null_mut(), len, access, kind, file.as_raw_fd(), 0);
            if base == libc::MAP_FAILED {
                return Err(std::io::Error::last_os_error());
            }
            Ok(Memory { file, base: base.cast(), len })
        }
    }

    /// The address of a byte, less than `len`.
    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.len);
        // SAFETY: within the mapping.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; nobody keeps a pointer into it.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
