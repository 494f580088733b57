//! One VMM's connection: the vhost-user protocol, and the virtqueues that it
//! sets up and takes down. All waiting is done here, on the connection's own
//! thread.

use super::DiskHandle;
use super::config;
use super::doorbell::{Bell, Doorbell};
use super::inflight::Inflight;
use super::memory::{Memory, REGIONS_MAX};
use super::port::{PortMessage, VringPort, Wiring};
use super::ring::SIZE_MAX;
use super::vring::{Serial, Setup, Vring};
use crate::port::PortId;
use crate::reactor::{self, Message};
use crate::shortage::told;
use std::fmt::Display;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::*;
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

/// A virtqueue as the VMM has set it up so far.
#[derive(Default)]
struct Queue {
    size: Option<u16>,
    /// Where to begin in the available ring.
    base: u16,
    /// Descriptors, available ring, used ring, in the VMM's address space.
    addresses: Option<[u64; 3]>,
    kick: Option<Doorbell>,
    call: Option<Doorbell>,
    err: Option<Doorbell>,
    enabled: bool,
    running: Option<Running>,
    /// It has run on this connection: where it goes on is known from here.
    has_run: bool,
}

/// What is known of the disk's write cache, which the guest can switch off.
#[derive(Clone, Copy)]
enum WriteCache {
    /// The guest begins on this connection and has not touched it: on, as the
    /// configuration says.
    Untouched,
    /// As the guest has set it: on or off.
    Set(bool),
    /// The guest began on an earlier connection, and its VMM has brought no record
    /// of what it set then: off, until the guest sets it again. A guest that has
    /// switched it off sends no flushes, and would lose what is not durable.
    Unknown,
}

impl WriteCache {
    fn is_on(self) -> bool {
        match self {
            WriteCache::Untouched => true,
            WriteCache::Set(on) => on,
            WriteCache::Unknown => false,
        }
    }
}

/// A virtqueue that the reactor has.
struct Running {
    port: PortId,
    /// Where the available ring goes on, when the port has closed.
    closed: Receiver<u16>,
}

pub struct Session {
    disk: DiskHandle,
    /// What was offered when the VMM connected.
    offered: u64,
    features: u64,
    write_cache: WriteCache,
    /// What the ports look at.
    write_through: Arc<AtomicBool>,
    memory: Memory,
    inflight: Option<Inflight>,
    queues: Vec<Queue>,
}

fn refuse(why: impl Display) -> Error {
    Error::ReqHandlerError(io::Error::other(why.to_string()))
}

impl Session {
    /// A connection that has not said anything.
    pub fn new(disk: DiskHandle) -> Session {
        let offered = config::features(&(disk.limits)(), disk.queues);
        let queues = (0..disk.queues).map(|_| Queue::default()).collect();
        Session {
            disk,
            offered,
            features: 0,
            write_cache: WriteCache::Untouched,
            // Until the driver has said that it can flush.
            write_through: Arc::new(AtomicBool::new(true)),
            memory: Memory::default(),
            inflight: None,
            queues,
        }
    }

    fn queue(&mut self, index: u32) -> Result<&mut Queue> {
        let count = self.queues.len();
        self.queues
            .get_mut(index as usize)
            .ok_or_else(|| refuse(format_args!("queue {index} of {count}")))
    }

    /// A queue that may be changed.
    fn stopped(&mut self, index: u32) -> Result<&mut Queue> {
        let queue = self.queue(index)?;
        match queue.running {
            None => Ok(queue),
            Some(_) => Err(refuse(format_args!("queue {index} is running: stop it first"))),
        }
    }

    /// Hand a queue to the reactor when all is there that it takes.
    fn start_if_ready(&mut self, index: usize) -> Result<()> {
        let queue = &self.queues[index];
        let (Some(size), Some(addresses), Some(kick)) = (queue.size, queue.addresses, &queue.kick)
        else {
            return Ok(());
        };
        if !queue.enabled || queue.running.is_some() || self.memory.is_empty() {
            return Ok(());
        }
        let parts = self.memory.parts(addresses, size).map_err(refuse)?;
        // Not before: a queue that goes on may come between.
        self.note_write_cache();
        let record = match &self.inflight {
            Some(inflight) => inflight.queue(index as u16, size).map_err(refuse)?,
            None => None,
        };
        let (sender, closed) = mpsc::sync_channel(1);
        let wiring = Wiring {
            name: format!("{}: queue {index}", self.disk.name),
            disk: self.disk.disk,
            kick: kick.try_clone().map_err(|e| short("an eventfd", &e))?,
            call: bell(&queue.call)?,
            err: copy(&queue.err)?,
            write_through: self.write_through.clone(),
            peer: self.disk.config_changed.clone(),
            closed: sender,
        };
        let setup = Setup {
            parts,
            size,
            event_idx: config::has_event_idx(self.features),
            base: queue.base,
            memory: self.memory.map(),
            record,
            serial: serial(&self.disk.name),
        };
        // SAFETY: `parts` were found in that memory.
        let port = Box::new(VringPort::new(unsafe { Vring::new(setup) }, wiring));
        let port = self
            .disk
            .handle
            .ask(|reply| Message::OpenPort(port, reply))
            .ok_or_else(|| refuse("the disk is not served any more"))?;
        let queue = &mut self.queues[index];
        (queue.running, queue.has_run) = (Some(Running { port, closed }), true);
        Ok(())
    }

    /// Take a queue back, when what it has in flight is done.
    fn stop(&mut self, index: usize) {
        self.stop_all(index..index + 1);
    }

    fn stop_all(&mut self, which: std::ops::Range<usize>) {
        for running in self.queues[which.clone()].iter().filter_map(|q| q.running.as_ref()) {
            self.disk.handle.send(Message::ClosePort(running.port));
        }
        for queue in &mut self.queues[which] {
            if let Some(running) = queue.running.take()
                // Nothing comes from a reactor that has ended.
                && let Some(base) = reactor::wait(&running.closed)
            {
                queue.base = base;
            }
        }
    }

    /// Tell a queue's port, and wait for its reply: a VMM that sends messages without end fills
    /// its own socket, and not the reactor's queue. `None` where there is no port any more.
    fn tell<T>(
        &self,
        index: usize,
        message: impl FnOnce(SyncSender<T>) -> PortMessage,
    ) -> Option<T> {
        let running = self.queues[index].running.as_ref()?;
        let (reply, answer) = mpsc::sync_channel(1);
        self.disk.handle.send(Message::ToPort(running.port, Box::new(message(reply))));
        reactor::wait(&answer)
    }

    /// The guest's memory is this from now on.
    fn use_memory(&mut self, memory: Memory) -> Result<()> {
        for index in 0..self.queues.len() {
            let queue = &self.queues[index];
            let (Some(size), Some(addresses), true) =
                (queue.size, queue.addresses, queue.running.is_some())
            else {
                continue;
            };
            match memory.parts(addresses, size) {
                // A port that has closed uses nothing.
                Ok(parts) => {
                    self.tell(index, |reply| PortMessage::Memory(parts, memory.map(), reply));
                }
                // Its memory is being taken away: so is the queue.
                Err(_) => self.stop(index),
            }
        }
        self.memory = memory;
        (0..self.queues.len()).try_for_each(|index| self.start_if_ready(index))
    }

    /// The write cache is this from now on.
    fn set_write_cache(&mut self, cache: WriteCache) {
        self.write_cache = cache;
        self.note_write_cache();
        self.update_write_through();
    }

    /// Tell the daemon after this one what is known of the write cache.
    fn note_write_cache(&self) {
        let known = match self.write_cache {
            WriteCache::Unknown => None,
            known => Some(known.is_on()),
        };
        if let Some(inflight) = &self.inflight {
            inflight.note_write_cache(known);
        }
    }

    fn update_write_through(&self) {
        let through = config::writes_through(self.features, self.write_cache.is_on());
        self.write_through.store(through, Ordering::Relaxed);
    }

    /// A queue that has not run on this connection goes on where it has run before.
    fn goes_on(&mut self) {
        if matches!(self.write_cache, WriteCache::Untouched) {
            crate::log::say(&format!(
                "{}: the guest ran before and its VMM does not say whether it has switched the \
                 write cache off: each write is made durable until the guest sets it",
                self.disk.name
            ));
            self.set_write_cache(WriteCache::Unknown);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop_all(0..self.queues.len());
    }
}

/// The answer to GET_ID: as much of the disk's name as there is room for.
fn serial(name: &str) -> Serial {
    let mut serial = Serial::default();
    let len = name.len().min(serial.len());
    serial[..len].copy_from_slice(&name.as_bytes()[..len]);
    serial
}

fn doorbell(file: Option<File>) -> Result<Option<Doorbell>> {
    file.map(Doorbell::new).transpose().map_err(|e| short("an eventfd", &e))
}

fn bell(call: &Option<Doorbell>) -> Result<Option<Bell>> {
    call.as_ref().map(Bell::new).transpose().map_err(|e| short("calls of the guest", &e))
}

fn copy(doorbell: &Option<Doorbell>) -> Result<Option<Doorbell>> {
    let copy = doorbell.as_ref().map(Doorbell::try_clone).transpose();
    copy.map_err(|e| short("an eventfd", &e))
}

/// The system refuses something.
fn short(what: &str, error: &io::Error) -> Error {
    refuse(format_args!("{what}: {}", told(error)))
}

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.stop_all(0..self.queues.len());
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        Err(unsupported())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !self.offered;
        if unknown != 0 {
            return Err(refuse(format_args!("features {unknown:#x} were not offered")));
        }
        self.features = features;
        self.update_write_through();
        // Without the protocol's own features there is no message that enables queues.
        if features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0 {
            for index in 0..self.queues.len() {
                self.queues[index].enabled = true;
                self.start_if_ready(index)?;
            }
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let mut memory = Memory::default();
        for (region, file) in regions.iter().zip(files) {
            memory = memory.with(region, file).map_err(refuse)?;
        }
        self.use_memory(memory)?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let queue = self.stopped(index)?;
        let size = u16::try_from(num).ok().filter(|n| n.is_power_of_two() && *n <= SIZE_MAX);
        let why =
            format_args!("queue {index} of {num} entries: not a power of two up to {SIZE_MAX}");
        queue.size = Some(size.ok_or_else(|| refuse(why))?);
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let addresses = Some([descriptor, available, used]);
        if self.queue(index)?.addresses == addresses {
            return Ok(());
        }
        self.stopped(index)?.addresses = addresses;
        self.start_if_ready(index as usize)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let queue = self.stopped(index)?;
        queue.base = u16::try_from(base).map_err(refuse)?;
        if queue.base != 0 && !queue.has_run {
            self.goes_on();
        }
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.queue(index)?;
        self.stop(index as usize);
        let queue = self.queue(index)?;
        // It starts again when it gets another.
        queue.kick = None;
        Ok(VhostUserVringState::new(index, u32::from(queue.base)))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let kick = doorbell(file)?;
        if kick.is_none() {
            return Err(refuse(format_args!("queue {index} without a kick eventfd")));
        }
        self.queue(u32::from(index))?;
        self.stop(usize::from(index));
        self.queue(u32::from(index))?.kick = kick;
        self.start_if_ready(usize::from(index))
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let call = doorbell(file)?;
        let queue = self.queue(u32::from(index))?;
        queue.call = call;
        if queue.running.is_some() {
            let bell = bell(&queue.call)?;
            self.tell(usize::from(index), |reply| PortMessage::Call(bell, reply));
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let err = doorbell(file)?;
        let clone = copy(&err)?;
        self.queue(u32::from(index))?.err = err;
        self.tell(usize::from(index), |reply| PortMessage::Err(clone, reply));
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(config::protocol_features())
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        // What is negotiated only adds messages, and those are understood anyway.
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.queues.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.queue(index)?.enabled = enable;
        if !enable {
            self.stop(index as usize);
        }
        self.start_if_ready(index as usize)
    }

    fn get_config(&mut self, at: u32, len: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let limits = (self.disk.limits)();
        Ok(config::read(&limits, self.disk.queues, self.write_cache.is_on(), at, len))
    }

    fn set_config(&mut self, at: u32, bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        match (at, bytes) {
            (config::WRITEBACK_OFFSET, &[value]) if config::may_set_writeback(self.features) => {
                self.set_write_cache(WriteCache::Set(value != 0));
                Ok(())
            }
            _ => Err(refuse("of the configuration only the write cache's switch can be written")),
        }
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, size) = self.inflight_shape(wanted)?;
        let file = Inflight::create(queues, size).map_err(refuse)?;
        let bytes = Inflight::bytes(queues, size);
        Ok((VhostUserInflight::new(bytes, 0, queues, size), file))
    }

    fn set_inflight_fd(&mut self, given: &VhostUserInflight, file: File) -> Result<()> {
        let (queues, size) = self.inflight_shape(given)?;
        let (offset, bytes) = (given.mmap_offset, given.mmap_size);
        let inflight = Inflight::map(file, offset, bytes, queues, size).map_err(refuse)?;
        let cache = match (self.write_cache, inflight.write_cache()) {
            // What the guest has said on this connection is newer than any record.
            (set @ WriteCache::Set(_), _) => set,
            (_, Some(on)) => WriteCache::Set(on),
            (unset, None) => unset,
        };
        self.inflight = Some(inflight);
        if !matches!(cache, WriteCache::Untouched) {
            self.set_write_cache(cache);
        }
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS_MAX as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        self.use_memory(self.memory.with(region, file).map_err(refuse)?)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.use_memory(self.memory.without(region).map_err(refuse)?)
    }

    fn set_gpu_socket(&mut self, _gpu: GpuBackend) -> Result<()> {
        Err(unsupported())
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(unsupported())
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        Err(unsupported())
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(unsupported())
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(unsupported())
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(unsupported())
    }
}

/// The answer to messages whose feature is not offered.
fn unsupported() -> Error {
    Error::InvalidOperation("a message of a feature that was not offered")
}

impl Session {
    /// Queues and entries of an inflight record, within bounds.
    fn inflight_shape(&self, shape: &VhostUserInflight) -> Result<(u16, u16)> {
        let (queues, size) = (shape.num_queues, shape.queue_size);
        if usize::from(queues) > self.queues.len() || size > SIZE_MAX {
            let why = format_args!("an inflight record of {queues} queues of {size} entries");
            return Err(refuse(why));
        }
        Ok((queues, size))
    }
}

#[cfg(test)]
mod tests;
