//! Size of the caches, and its changes while the daemon runs.

use super::Host;
use super::devices::{Device, patience};
use super::error::HostError;
use super::memory::{MemorySource, STALL_LEAST_US};
use crate::config::{CACHE_BYTES_MIN, CacheSize, Config};
use crate::log::say;
use crate::reactor::{CacheSetup, Message};
use crate::sandbox::{self, Kind, Places};
use crate::threads::{STACK_BYTES, lock, spawn};
use seekway_core::units::{self, Nanos};
use seekway_stack::cache::sizing::{AutoSize, Bounds, LOOK_OFTEN, Reading};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

/// The size of the caches of all devices.
pub(super) struct Caches {
    now: Mutex<Size>,
    /// Held while the size is changed.
    resizing: Mutex<()>,
}

struct Size {
    /// Where the system tells of the memory: what is found once the daemon is confined is less.
    source: MemorySource,
    /// The last size that was asked for.
    size: CacheSize,
    /// Most bytes of a device's cache; 0 when the daemon was started without.
    room_bytes: u64,
    auto: Option<Following>,
}

/// A size that follows the memory.
struct Following {
    size: AutoSize,
    source: MemorySource,
    /// The source's total of stalls at the last sign of pressure.
    stalled_us: u64,
    /// The thread that watches the memory; it ends when this is dropped.
    _thread: Sizer,
}

impl Caches {
    pub(super) fn new(config: &Config, source: MemorySource) -> Caches {
        let room_bytes = match config.cache_size() {
            CacheSize::Off => 0,
            CacheSize::Bytes(bytes) => bytes,
            CacheSize::Auto => {
                let total = source.reading(0).map_or(0, |reading| reading.total);
                Bounds::of_memory(total).ceiling.max(CACHE_BYTES_MIN)
            }
        };
        let now = Size { source, size: CacheSize::Off, room_bytes, auto: None };
        Caches { now: Mutex::new(now), resizing: Mutex::default() }
    }
}

impl Size {
    /// Bytes of each cache, when this number of devices share the memory.
    fn each(&self, devices: usize) -> u64 {
        let bytes = match (&self.size, &self.auto) {
            (CacheSize::Off, _) => 0,
            (CacheSize::Bytes(bytes), _) => *bytes,
            (CacheSize::Auto, Some(auto)) => auto.size.bytes() / devices.max(1) as u64,
            (CacheSize::Auto, None) => 0,
        };
        bytes.min(self.room_bytes)
    }
}

impl Host {
    /// Begin with the configuration's size.
    pub(super) fn start_caches(&self) -> Result<(), HostError> {
        match self.config.cache_size() {
            CacheSize::Off => Ok(()),
            size => self.resize_caches(size),
        }
    }

    /// Let no cache change its size any more.
    pub(super) fn end_caches(&self) {
        let auto = lock(&self.caches.now).auto.take();
        drop(auto); // waits for its thread, which may want the lock
    }

    /// The cache of a device that is to be started, beside `others` devices.
    pub(super) fn cache_setup(&self, prefetcher: String, others: usize) -> Option<CacheSetup> {
        let caches = lock(&self.caches.now);
        (caches.room_bytes > 0).then(|| CacheSetup {
            bytes: caches.each(others + 1),
            room_bytes: caches.room_bytes,
            prefetcher,
            lock: self.config.cache_lock,
            bandwidth_bytes_per_s: self.config.bandwidth_bytes_per_s,
            seed: None,
        })
    }

    /// Does the size of the caches follow the memory?
    pub fn is_cache_auto(&self) -> bool {
        lock(&self.caches.now).size == CacheSize::Auto
    }

    /// Another size for the caches of all devices. What is cached above it is let go.
    ///
    /// # Errors
    /// More than there is room for; no cache at all; what the system says.
    pub fn set_cache(&self, size: CacheSize) -> Result<(), HostError> {
        drop(self.turn()?); // fails when the daemon ends
        let resizing = lock(&self.caches.resizing);
        self.resize_caches(size)?;
        drop(resizing);
        if let Err(e) = self.turn().map(drop) {
            self.end_caches(); // the end has come before a new thread was there to be ended
            return Err(e);
        }
        Ok(())
    }

    fn resize_caches(&self, size: CacheSize) -> Result<(), HostError> {
        let room_bytes = lock(&self.caches.now).room_bytes;
        match size {
            _ if room_bytes == 0 => return Err(HostError::NoCache),
            CacheSize::Bytes(bytes) if bytes > room_bytes => {
                return Err(HostError::CacheTooLarge { bytes, room_bytes });
            }
            _ => {}
        }
        let auto = match size {
            CacheSize::Auto => Some(self.follow(room_bytes)?),
            CacheSize::Off | CacheSize::Bytes(_) => None,
        };
        let before = {
            let mut caches = lock(&self.caches.now);
            caches.size = size;
            std::mem::replace(&mut caches.auto, auto)
        };
        drop(before); // waits for its thread, which may want the lock
        self.divide_cache();
        Ok(())
    }

    /// Begin to follow the memory.
    fn follow(&self, room_bytes: u64) -> Result<Following, HostError> {
        let source = lock(&self.caches.now).source.clone();
        let triggers = source.triggers();
        let Some(reading) = self.reading(&source) else {
            return Err(HostError::NoMemory);
        };
        let mut bounds = Bounds::of_memory(reading.total);
        bounds.ceiling = bounds.ceiling.min(room_bytes);
        bounds.floor = bounds.floor.min(bounds.ceiling);
        let is_told = !triggers.is_empty();
        if !is_told {
            say(&format!(
                "cache: this kernel does not tell of memory pressure (CONFIG_PSI, /proc/pressure): \
                 looking at the available memory every {LOOK_OFTEN} instead"
            ));
        }
        let size = AutoSize::new(bounds, &reading, is_told);
        let stalled_us = source.stalled_us();
        let mut places = Places::default();
        source.allow(&mut places);
        let thread = Sizer::start(Weak::clone(&self.me), triggers, size.look_after(), places);
        let thread = thread.map_err(|e| HostError::System("the cache's thread", e))?;
        Ok(Following { size, source, stalled_us, _thread: thread })
    }

    fn reading(&self, source: &MemorySource) -> Option<Reading> {
        let devices = self.devices();
        let asked: Vec<_> = devices.iter().map(|d| (d, d.request(Message::CacheMemory))).collect();
        // All together: several may hang.
        let until = patience();
        let memory = |(device, reply): (&Arc<Device>, _)| device.reply(&reply, until).unwrap_or(0);
        source.reading(asked.into_iter().map(memory).sum())
    }

    /// Look at the memory, and make the caches as large as they should be.
    pub(super) fn follow_memory(&self, cause: Cause) {
        let source = lock(&self.caches.now).auto.as_ref().map(|auto| auto.source.clone());
        // Read without the lock: it takes as long as the reactors do.
        let Some(reading) = source.and_then(|source| self.reading(&source)) else { return };
        let now = units::Instant::from_nanos(self.started.elapsed().as_nanos() as u64);
        {
            let mut caches = lock(&self.caches.now);
            let Some(auto) = &mut caches.auto else { return };
            let Following { size, stalled_us, source, .. } = auto;
            let before = size.bytes();
            if cause == Cause::Pressure {
                let last = std::mem::replace(stalled_us, source.stalled_us());
                if stalled_us.saturating_sub(last) < STALL_LEAST_US {
                    return;
                }
            }
            let bytes = match cause {
                Cause::Pressure => size.pressure(now, &reading),
                Cause::Time => size.look(now, &reading),
            };
            if bytes == before {
                return;
            }
        }
        self.divide_cache();
    }

    /// Tell all devices how large their caches are.
    pub(super) fn divide_cache(&self) {
        let caches = lock(&self.caches.now);
        if caches.room_bytes == 0 {
            return;
        }
        // Looked up with the lock: whoever divides last knows all of them.
        let devices = self.devices();
        let each = caches.each(devices.len());
        // A reactor that has ended needs no cache. Nobody waits for those that live: this lock
        // keeps the sizes in order, and a status may want it.
        for device in devices {
            let (reply, _) = std::sync::mpsc::sync_channel(1);
            device.handle().send(Message::ResizeCache(each, reply));
        }
    }
}

// The thread that keeps the size of the caches where the host's memory wants it. There is one
// only while the size is `auto`.

/// The token of what ends it. Others are of files that tell of pressure.
const END: u64 = u64::MAX;

/// Why the thread looks at the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Tasks waited for memory.
    Pressure,
    /// The usual time between two looks has passed.
    Time,
}

/// The thread. It ends when this is dropped.
pub struct Sizer {
    end: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Sizer {
    /// Start it. It looks at the memory every `look_after`, and when a trigger says so, and opens
    /// files in `places` only.
    ///
    /// # Errors
    /// When there are no descriptors or threads left.
    pub fn start(
        host: Weak<Host>,
        triggers: Vec<std::fs::File>,
        look_after: Nanos,
        places: Places,
    ) -> io::Result<Sizer> {
        let (end, ended) = UnixStream::pair()?;
        let epoll = Epoll::new()?;
        let watch = |fd, events, token| {
            epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(events, token))
        };
        watch(ended.as_raw_fd(), EventSet::IN, END)?;
        for (trigger, token) in triggers.iter().zip(0..) {
            watch(trigger.as_raw_fd(), EventSet::PRIORITY, token)?;
        }
        let look_after = Duration::from_nanos(look_after.get());
        let thread = spawn("cache-size", STACK_BYTES, move || {
            let _open = ended;
            sandbox::enter_with(Kind::Helper, &places);
            watch_memory(&host, &epoll, &triggers, look_after);
        })?;
        Ok(Sizer { end, thread: Some(thread) })
    }
}

impl Drop for Sizer {
    fn drop(&mut self) {
        let _ = self.end.write_all(&[1]); // it has ended already when this fails
        let Some(thread) = self.thread.take() else { return };
        // The thread itself may be the last to let go of the host.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

fn watch_memory(
    host: &Weak<Host>,
    epoll: &Epoll,
    triggers: &[std::fs::File],
    look_after: Duration,
) {
    let mut events = [EpollEvent::default(); 8];
    let mut due = Instant::now() + look_after;
    loop {
        let left = due.saturating_duration_since(Instant::now());
        // Up to the next whole millisecond, or it would look too early again and again.
        let left_ms = left.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32;
        let ready = match epoll.wait(left_ms, &mut events) {
            Ok(ready) => ready,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return say(&format!("cache: the size stays as it is: epoll: {e}")),
        };
        let ready = &events[..ready];
        if ready.iter().any(|event| event.data() == END) {
            return;
        }
        for event in ready.iter().filter(|e| e.event_set().contains(EventSet::ERROR)) {
            // A control group that has gone. It would be ready for ever.
            if let Some(trigger) = triggers.get(event.data() as usize) {
                let gone = EpollEvent::default();
                let _ = epoll.ctl(ControlOperation::Delete, trigger.as_raw_fd(), gone);
            }
        }
        let is_pressed = ready.iter().any(|e| e.event_set().contains(EventSet::PRIORITY));
        let is_due = Instant::now() >= due;
        if !is_pressed && !is_due {
            continue;
        }
        if is_due {
            due = Instant::now() + look_after;
        }
        let Some(host) = host.upgrade() else { return };
        host.follow_memory(if is_pressed { Cause::Pressure } else { Cause::Time });
    }
}
