//! Size of the caches, and its changes while the daemon runs.

use super::Host;
use super::devices::{Device, patience};
use super::error::HostError;
use super::memory::{MemorySource, STALL_LEAST_US};
use super::sizer::{Cause, Sizer};
use crate::config::{CACHE_BYTES_MIN, CacheSize, Config};
use crate::log::say;
use crate::reactor::{CacheSetup, Message};
use crate::sandbox::Places;
use crate::threads::lock;
use seekway_core::units::Instant;
use seekway_stack::cache::sizing::{AutoSize, Bounds, LOOK_OFTEN, Reading};
use std::sync::{Arc, Mutex, Weak};

/// The size of the caches of all devices.
pub(super) struct Caches {
    now: Mutex<Size>,
    /// Held while the size is changed.
    resizing: Mutex<()>,
}

struct Size {
    /// Where the system tells of the memory: what is found once the daemon is confined is less.
    source: MemorySource,
    /// As it was asked for last.
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
        let now = Instant::from_nanos(self.started.elapsed().as_nanos() as u64);
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
