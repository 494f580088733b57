//! One VMM's connection: the virtqueues that it sets up and takes down. All waiting is done here,
//! on the connection's own thread.

use super::account::{Account, Hold, Resource};
use super::dirty_log::{DirtyLog, Logging};
use super::doorbell::{BROKEN, Bell, CALL, Doorbell, Notes};
use super::inflight::Inflight;
use super::memory::{Memory, REGIONS_MAX, Retired};
use super::port::{Closed, PortMessage, VringPort, Wiring};
use super::ring::SIZE_MAX;
use super::vring::{Serial, Setup, Vring};
use super::{DiskHandle, config};
use crate::descriptors::told;
use crate::port::PortId;
use crate::reactor::{self, Message};
use crate::toll::{RESTS, busy};
use std::fmt::Display;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Duration, Instant};
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::*;
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

/// Most earlier memory that requests in flight use: SET_MEM_TABLE and the like wait for more.
pub const RETIRED_MAX: usize = 4;
/// Interval at which the connection looks whether requests have released it.
const RETIRED_INTERVAL: Duration = Duration::from_millis(100);
/// Time that queues wait for the log of the guest's memory before a line says that it is missing.
const LOG_PATIENCE: Duration = Duration::from_secs(1);
/// Most descriptors of a queue: its eventfds, their copies and its rings.
const QUEUE_DESCRIPTORS: usize = 7;
const QUEUE_MAPPINGS: usize = 6;

/// A virtqueue as the VMM has set it up until now.
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
    /// Where the used ring is in the guest's memory, if the VMM wants to know when it is written.
    log_used: Option<u64>,
    /// Calls the guest in place of the port.
    own_bell: Option<Bell>,
    /// Holds for its eventfds and rings.
    holds: Option<[Hold; 2]>,
    enabled: bool,
    running: Option<Running>,
    /// The queue has run on this connection: its position is known from here.
    has_run: bool,
}

/// State of the disk's write cache, which the guest can switch off.
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
    closed: Receiver<Closed>,
}

pub struct Session {
    disk: DiskHandle,
    /// Features offered when the VMM connected.
    offered: u64,
    features: u64,
    write_cache: WriteCache,
    /// The flag that the ports read.
    write_through: Arc<AtomicBool>,
    /// Resources that the VMM makes the daemon hold.
    account: Arc<Account>,
    memory: Memory,
    /// Earlier memory that requests in flight use, at most [`RETIRED_MAX`].
    retired: Vec<Retired>,
    notes: Arc<Notes>,
    /// The connection's thread calls no guest until then.
    rests_until: Option<Instant>,
    inflight: Option<Inflight>,
    /// Where to note what is written to the guest's memory, while that is wanted.
    log: Option<Arc<DirtyLog>>,
    /// A queue waits for that log: when to say that it is missing.
    log_due: Option<Instant>,
    /// The disk knows that its image is used.
    uses_image: bool,
    /// The VMM has hung up.
    has_left: bool,
    queues: Vec<Queue>,
}

fn refuse(why: impl Display) -> Error {
    Error::ReqHandlerError(io::Error::other(why.to_string()))
}

impl Session {
    /// A connection that has not said anything.
    pub fn new(disk: DiskHandle) -> Session {
        let offered = config::features(&(disk.limits)(), disk.queues);
        let (disk_queues, guest_memory) = (disk.queues, disk.guest_memory);
        let queues = (0..disk.queues).map(|_| Queue::default()).collect();
        Session {
            disk,
            offered,
            features: 0,
            write_cache: WriteCache::Untouched,
            // Until the driver has said that it can flush.
            write_through: Arc::new(AtomicBool::new(true)),
            account: Arc::new(Account::new(guest_memory)),
            memory: Memory::default(),
            retired: Vec::new(),
            notes: Notes::new(disk_queues),
            rests_until: None,
            inflight: None,
            log: None,
            log_due: None,
            uses_image: false,
            has_left: false,
            queues,
        }
    }

    fn queue(&mut self, index: u32) -> Result<&mut Queue> {
        let count = self.queues.len();
        self.queues
            .get_mut(index as usize)
            .ok_or_else(|| refuse(format_args!("queue {index} of {count}")))
    }

    /// A queue that may be given eventfds.
    fn with_eventfds(&mut self, index: u32) -> Result<&mut Queue> {
        let account = self.account.clone();
        let queue = self.queue(index)?;
        if queue.holds.is_none() {
            let hold = |resource, count| account.hold(resource, count).map_err(refuse);
            queue.holds = Some([
                hold(Resource::Descriptors, QUEUE_DESCRIPTORS)?,
                hold(Resource::Mappings, QUEUE_MAPPINGS)?,
            ]);
        }
        Ok(queue)
    }

    /// A queue that may be changed.
    fn stopped(&mut self, index: u32) -> Result<&mut Queue> {
        let queue = self.queue(index)?;
        match queue.running {
            None => Ok(queue),
            Some(_) => Err(refuse(format_args!("queue {index} is running: stop it first"))),
        }
    }

    /// Hand to the reactor all queues that are ready.
    fn start_those_ready(&mut self) -> Result<()> {
        (0..self.queues.len()).try_for_each(|index| self.start_if_ready(index))
    }

    /// Hand a queue to the reactor when all is there that it takes.
    fn start_if_ready(&mut self, index: usize) -> Result<()> {
        let queue = &self.queues[index];
        let (Some(size), Some(addresses), true) =
            (queue.size, queue.addresses, queue.kick.is_some())
        else {
            return Ok(());
        };
        if !queue.enabled || queue.running.is_some() || self.memory.is_empty() {
            return Ok(());
        }
        // QEMU shows the log after the queues when it connects in the middle of a migration. What
        // a queue wrote before that would be in no log, and if the connection ended then, nobody
        // would know of it.
        if config::logs(self.features) && self.log.is_none() {
            self.log_due.get_or_insert_with(|| Instant::now() + LOG_PATIENCE);
            return Ok(());
        }
        let parts = self.memory.parts(addresses, size).map_err(refuse)?;
        let mut has_run = parts.have_been_used(size);
        if !self.uses_image {
            has_run |= self.disk.image_use.begin().map_err(refuse)?;
            self.uses_image = true;
        }
        if has_run && !self.queues[index].has_run {
            self.goes_on();
        }
        let queue = &self.queues[index];
        let Some(kick) = &queue.kick else { return Ok(()) };
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
            queue: index as u16,
            notes: self.notes.clone(),
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
            serial: serial(&self.disk.serial),
            logging: self.logging(index),
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
                && let Some(closed) = reactor::wait(&running.closed)
            {
                queue.base = closed.base;
            }
        }
        // What its ports have left to us: the VMM may look for calls now.
        self.rests_until = None;
        self.ring_bells();
        let is_running = self.queues.iter().any(|queue| queue.running.is_some());
        if !is_running && std::mem::take(&mut self.uses_image) {
            // A VMM that stops its guest while memory is logged sends it elsewhere.
            self.disk.image_use.end(!self.has_left && self.logs());
        }
    }

    /// Is what is written to the guest's memory logged?
    fn logs(&self) -> bool {
        self.log.is_some() && config::logs(self.features)
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

    /// The log for this queue.
    fn logging(&self, index: usize) -> Option<Logging> {
        let log = self.log.as_ref().filter(|_| config::logs(self.features))?;
        Some(Logging { log: log.clone(), used: self.queues[index].log_used })
    }

    /// All that is written from now on is logged as it was asked for.
    fn update_logging(&self) {
        for index in 0..self.queues.len() {
            // What was used before is dropped here, and not by the reactor.
            self.tell(index, |reply| PortMessage::Log(self.logging(index), reply));
        }
    }

    /// Do what the reactor has left to the connection's thread. Returns when to come again if
    /// nothing happens.
    pub fn catch_up(&mut self) -> Option<Duration> {
        self.retired.retain(|memory| !memory.is_released());
        let looks = (!self.retired.is_empty()).then_some(RETIRED_INTERVAL);
        let log_due = self.say_if_log_is_missing();
        self.ring_bells().into_iter().chain(looks).chain(log_due).min()
    }

    /// The queues of a VMM that wants memory logged and sends no log never start: say so after
    /// [`LOG_PATIENCE`]. Returns what is left of it.
    fn say_if_log_is_missing(&mut self) -> Option<Duration> {
        let is_missing = config::logs(self.features) && self.log.is_none();
        let due = self.log_due.take().filter(|_| is_missing)?;
        let left = due.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            self.log_due = Some(due);
            return Some(left);
        }
        self.disk.config_changed.say(|| {
            format!(
                "{}: its queues do not start: the VMM wants the guest's memory logged \
                 (VHOST_F_LOG_ALL) and has sent no log (VHOST_USER_SET_LOG_BASE). If the guest \
                 waits for its disk, cancel the migration in the VMM or start the guest again",
                self.disk.name
            )
        });
        None
    }

    /// Work that ports leave for the connection's thread.
    pub fn notes(&self) -> Arc<Notes> {
        self.notes.clone()
    }

    /// Call guests, and tell the VMM of queues that have stopped, where ports have left it to this
    /// thread. Who makes it slow is served seldom. Returns how long it rests, if it has to.
    fn ring_bells(&mut self) -> Option<Duration> {
        for (index, queue) in self.queues.iter_mut().enumerate() {
            let now = Instant::now();
            if let Some(rest) = self.rests_until.and_then(|at| at.checked_duration_since(now)) {
                return Some(rest);
            }
            let (calls, is_broken) = (self.notes.take(index, CALL), self.notes.take(index, BROKEN));
            if !calls && !is_broken {
                continue;
            }
            let before = busy();
            if calls && queue.own_bell.is_none() {
                // Without a ring its next call may come from its port.
                queue.own_bell = bell(&queue.call).ok().flatten();
            }
            if calls && let Some(bell) = &mut queue.own_bell {
                bell.ring();
            }
            // One that has gone knows.
            if is_broken && let Some(err) = &queue.err {
                let _ = err.ring_once();
            }
            let (ended, took) = (Instant::now(), busy().saturating_sub(before));
            self.disk.config_changed.toll.charge(ended, took, 1);
            self.rests_until = Some(ended + RESTS * took);
        }
        None
    }

    /// The guest's memory is this from now on. Waits while requests use too much that it had before.
    fn use_memory(&mut self, memory: Memory) -> Result<()> {
        self.catch_up();
        while self.retired.len() >= RETIRED_MAX {
            self.retired.remove(0).wait();
        }
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
        self.retired.push(std::mem::replace(&mut self.memory, memory).retire());
        self.catch_up();
        self.start_those_ready()
    }

    /// The write cache is this from now on.
    fn set_write_cache(&mut self, cache: WriteCache) {
        self.write_cache = cache;
        self.note_write_cache();
        self.update_write_through();
    }

    /// Tell the next connection how the write cache is taken to be. One that is unknown is off there
    /// too: the first queue that connects need not show that its guest ran before.
    fn note_write_cache(&self) {
        if let Some(inflight) = &self.inflight {
            inflight.note_write_cache(self.write_cache.is_on());
        }
    }

    fn update_write_through(&self) {
        let through = config::writes_through(self.features, self.write_cache.is_on());
        self.write_through.store(through, Ordering::Relaxed);
    }

    /// A queue that has not run on this connection goes on where it has run before.
    fn goes_on(&mut self) {
        if matches!(self.write_cache, WriteCache::Untouched) {
            self.disk.config_changed.say(|| {
                format!(
                    "{}: the guest ran before and its VMM does not say whether it has switched the \
                 write cache off: each write is made durable until the guest sets it",
                    self.disk.name
                )
            });
            self.set_write_cache(WriteCache::Unknown);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.has_left = true;
        self.stop_all(0..self.queues.len());
    }
}

/// The answer to GET_ID.
fn serial(text: &str) -> Serial {
    let mut serial = Serial::default();
    let len = text.len().min(serial.len());
    serial[..len].copy_from_slice(&text.as_bytes()[..len]);
    serial
}

fn doorbell(file: Option<File>) -> Result<Option<Doorbell>> {
    file.map(Doorbell::new).transpose().map_err(|e| short("an eventfd", &e))
}

fn bell(call: &Option<Doorbell>) -> Result<Option<Bell>> {
    call.as_ref().map(Bell::new).transpose().map_err(|e| short("calls of the guest", &e))
}

/// The system refuses something.
fn short(what: &str, error: &io::Error) -> Error {
    refuse(format_args!("{what}: {}", told(error)))
}

// The messages of the vhost-user protocol (QEMU's `docs/interop/vhost-user.rst`), as crate `vhost`
// has read them.

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.stop_all(0..self.queues.len());
        Ok(())
    }

    /// The guest's memory, its log and the VMM's feature bits of the protocol stay: they are not
    /// the device's.
    fn reset_device(&mut self) -> Result<()> {
        self.stop_all(0..self.queues.len());
        self.queues.fill_with(Queue::default);
        self.inflight = None;
        self.features = 0;
        self.set_write_cache(WriteCache::Untouched);
        Ok(())
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
        self.update_logging();
        // Without the protocol's own features there is no message that enables queues.
        if features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0 {
            self.queues.iter_mut().for_each(|queue| queue.enabled = true);
        }
        self.start_those_ready()
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let mut memory = Memory::default();
        for (region, file) in regions.iter().zip(files) {
            memory = memory.with(region, file, &self.account).map_err(refuse)?;
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
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Result<()> {
        let is_logged = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG);
        let (addresses, log_used) = (Some([descriptor, available, used]), is_logged.then_some(log));
        let queue = self.queue(index)?;
        if queue.addresses == addresses {
            queue.log_used = log_used;
            self.update_logging();
            return Ok(());
        }
        self.stopped(index)?.log_used = log_used;
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
        self.with_eventfds(u32::from(index))?;
        self.stop(usize::from(index));
        self.queue(u32::from(index))?.kick = kick;
        self.start_if_ready(usize::from(index))
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let call = doorbell(file)?;
        let queue = self.with_eventfds(u32::from(index))?;
        (queue.call, queue.own_bell) = (call, None);
        if queue.running.is_some() {
            let bell = bell(&queue.call)?;
            self.tell(usize::from(index), |reply| PortMessage::Call(bell, reply));
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let err = doorbell(file)?;
        self.with_eventfds(u32::from(index))?.err = err;
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
        if self.queues.iter().any(|queue| queue.running.is_some()) {
            return Err(refuse("an inflight record for queues that run: stop them first"));
        }
        let (queues, size) = self.inflight_shape(given)?;
        let (offset, bytes) = (given.mmap_offset, given.mmap_size);
        let inflight = Inflight::map(file, offset, bytes, queues, size, &self.account);
        let inflight = inflight.map_err(refuse)?;
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
        self.use_memory(self.memory.with(region, file, &self.account).map_err(refuse)?)?;
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

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        let log = DirtyLog::map(file, log.mmap_offset, log.mmap_size, &self.account);
        self.log = Some(Arc::new(log.map_err(refuse)?));
        self.update_logging();
        self.start_those_ready()
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
