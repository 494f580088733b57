//! Messages of other threads to a reactor, and its answers.

use super::intervals::{DiskUse, Fairness, Share, fairness};
use super::jobs::SlowRequest;
use crate::images::Image;
use crate::images::fault::Fault;
use crate::op_kind::OpKind;
use crate::port::{DiskId, Port, PortId};
use hdrhistogram::Histogram;
use seekway_core::prefetcher::Prefetcher;
use seekway_core::request::ProcessTag;
use seekway_core::units::{Instant, Lba, Nanos};
use seekway_stack::cache::Usage;
use seekway_stack::dispatcher::{HoldStats, Stats, Withheld};
use seekway_stack::stack::Map;
use seekway_stack::stack::limit::{DiskLimits, GroupName, Limits};
use std::any::Any;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use vmm_sys_util::eventfd::EventFd;

/// Significant digits of the latency histograms: within one per cent.
const DIGITS: u8 = 2;
/// Parts of a device by which commands are counted.
pub const REGIONS: usize = 64;

/// Message of another thread to a reactor. A reply that nobody waits for is dropped.
pub enum Message {
    /// Take in a port; it is open when the reply comes.
    OpenPort(Box<dyn Port>, SyncSender<PortId>),
    /// Hand something to a port; dropped when the port is gone.
    ToPort(PortId, Box<dyn Any + Send>),
    /// Close a port; nothing happens when it is gone.
    ClosePort(PortId),
    /// Serve one more disk. The error is for the operator.
    AttachDisk(Box<Disk>, SyncSender<Result<DiskId, String>>),
    /// The disk is about to be detached: close its ports, lift its limits, and begin no more of its
    /// discards and write-zeroes, nor, after a second, anything else of it: such requests fail with
    /// ESHUTDOWN, or are left to the record of what is in flight.
    LeaveDisk(DiskId),
    /// As [`Message::LeaveDisk`], and release the image. The reply comes when it is closed.
    DetachDisk(DiskId, SyncSender<Result<(), String>>),
    /// Take no requests of the disk for this time, unless it is thawed before. The reply comes when
    /// none is under way.
    Freeze(DiskId, Nanos, SyncSender<Result<(), String>>),
    /// Take requests of a frozen disk again.
    Thaw(DiskId, SyncSender<Result<(), String>>),
    /// The image has a new size: look, and take it over, a smaller one only if the flag is set.
    /// The reply is the capacity in bytes.
    Resize(DiskId, bool, SyncSender<Result<u64, String>>),
    /// The image lacks writes, as another daemon has marked it: every flush fails from now on.
    LostWrites(DiskId),
    /// The disk's share from now on.
    SetWeight(DiskId, NonZeroU32, SyncSender<Result<(), String>>),
    /// The disk's rate limits from now on.
    SetLimits(DiskId, DiskLimits, SyncSender<Result<(), String>>),
    /// Rate limits of a group of the device's disks from now on.
    SetGroup(GroupName, Limits, SyncSender<()>),
    /// Another policy, or the same with other parameters; nothing queued is lost.
    SetPolicy(String, SyncSender<Result<(), String>>),
    /// Another prefetcher, with its specification; what is cached stays.
    SetPrefetcher(String, Box<dyn Prefetcher>, SyncSender<Result<(), String>>),
    /// The cache keeps at most this number of bytes from now on. It gives back what it has above
    /// that in the turns that follow.
    ResizeCache(u64, SyncSender<()>),
    /// Bytes of memory that the cache has; 0 without one.
    CacheMemory(SyncSender<u64>),
    /// Where the file system says that the image lies now; `None` when it does not.
    Remapped(DiskId, Option<Map>),
    /// A port's answer about runs of data and holes, by its token.
    Runs(PortId, u64, Vec<(u64, bool)>),
    Status(SyncSender<Status>),
    /// The last requests that took at least this time, oldest first.
    Slow(Nanos, SyncSender<Vec<SlowRequest>>),
    /// All disks leave ([`Message::LeaveDisk`]); end when nothing is under way.
    Shutdown,
}

/// A disk to be served.
pub struct Disk {
    /// Its name, unique in the daemon.
    pub name: String,
    /// Opened, and locked unless it is [`incoming`](crate::images::OpenOptions::incoming).
    pub image: Image,
    /// Its share, relative to the others'.
    pub weight: NonZeroU32,
    pub limits: DiskLimits,
    /// Where it begins on an emulated device, or on one whose file system does
    /// not say; `None` for behind all others.
    pub lba: Option<Lba>,
    /// Where the file system says that the image lies. Who attaches the disk asks: the answer takes
    /// long for an image in many pieces.
    pub map: Option<Map>,
    /// Failures to inject, for tests.
    pub fault: Option<Fault>,
    /// Its reads go through the device's cache, if there is one.
    pub cached: bool,
    /// Measured bandwidth of the device's reads, from this image.
    pub bandwidth_bytes_per_s: Option<u64>,
}

impl Disk {
    /// A disk with defaults.
    pub fn new(name: impl Into<String>, image: Image) -> Disk {
        Disk {
            name: name.into(),
            map: image.map(),
            image,
            weight: NonZeroU32::MIN,
            limits: DiskLimits::default(),
            lba: None,
            fault: None,
            cached: true,
            bandwidth_bytes_per_s: None,
        }
    }
}

/// Status of a reactor. Counters count from its start.
#[derive(Clone, Debug)]
pub struct Status {
    /// Time since the reactor's start.
    pub now: Instant,
    /// The policy's specification as it was given.
    pub policy: String,
    /// Commands that the device takes at once.
    pub depth: u32,
    /// Commands on the device.
    pub in_flight: u32,
    /// Requests that have arrived and not completed.
    pub outstanding: usize,
    /// Requests dispatched, their commands, and those that the hard limit forced.
    pub stats: Stats,
    /// Time withheld by cause.
    pub holds: HoldStats,
    /// Commands by the part of the device where they began.
    pub regions: [u64; REGIONS],
    /// Figures of the policy's own (credits, hits, …).
    pub policy_metrics: Vec<(&'static str, f64)>,
    /// The throttle, when the device is emulated.
    pub throttle: Option<crate::throttle::Report>,
    /// The modelled device's own time, when it is.
    pub model_now: Option<Instant>,
    /// Reads and writes that the device has done.
    pub served: Served,
    /// The cache, when there is one.
    pub cache: Option<CacheStatus>,
    /// Fairness among the disks in the last whole interval.
    pub fairness: Fairness,
    /// One for each disk.
    pub disks: Vec<DiskStatus>,
}

/// Fairness among these disks of a device in the last whole interval; sets each disk's share.
pub(super) fn judge(disks: &mut [DiskStatus]) -> Fairness {
    let uses: Vec<Share> =
        disks.iter().map(|d| Share { weight: d.weight, used: d.last_interval }).collect();
    let (fairness, shares) = fairness(&uses);
    for (disk, share) in disks.iter_mut().zip(shares) {
        disk.share = share;
    }
    fairness
}

/// Status of a device's cache.
#[derive(Clone, PartialEq, Debug)]
pub struct CacheStatus {
    /// Bytes of data at most.
    pub capacity_bytes: u64,
    /// Bytes of data at most if it is made larger.
    pub room_bytes: u64,
    /// Bytes of memory that it has.
    pub memory_bytes: u64,
    /// The prefetcher's specification as it was given.
    pub prefetcher: String,
    /// Bandwidth of the device's reads at best, where that is known.
    pub bandwidth_bytes_per_s: Option<u64>,
    /// Reads into the cache under way.
    pub fetching: usize,
    /// Bytes that the device has read, into the cache and past it.
    pub device_read_bytes: u64,
    /// Figures of the prefetcher's own.
    pub prefetcher_metrics: Vec<(&'static str, f64)>,
}

/// A disk's share of its device's cache.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct DiskCache {
    /// Bytes of its data there, or on their way.
    pub resident_bytes: u64,
    /// Use by all its processes.
    pub usage: Usage,
    /// Its guest's processes, by tag, those without one first.
    pub processes: Vec<ProcessCache>,
}

impl DiskCache {
    /// The entry of a process, new if there is none.
    pub(super) fn process(&mut self, tag: Option<ProcessTag>) -> &mut ProcessCache {
        let at = match self.processes.binary_search_by_key(&tag, |p| p.tag) {
            Ok(at) => at,
            Err(at) => {
                self.processes.insert(at, ProcessCache { tag, ..ProcessCache::default() });
                at
            }
        };
        &mut self.processes[at]
    }
    /// Streams that are followed, and those of them that are prefetched for.
    pub fn streams(&self) -> (u32, u32) {
        self.processes.iter().fold((0, 0), |(all, armed), p| (all + p.streams, armed + p.armed))
    }
}

/// Use of the cache by a process of a guest.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct ProcessCache {
    /// As the guest's agent tagged it; `None` for all that is not tagged.
    pub tag: Option<ProcessTag>,
    pub usage: Usage,
    /// Streams of its reads that the prefetcher follows.
    pub streams: u32,
    /// Streams that are prefetched for.
    pub armed: u32,
    /// The highest aggressiveness S among them.
    pub scale_max: Option<f64>,
}

/// Commands of reads and writes that are done, and their time together.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Served {
    pub commands: u64,
    /// From the later of each one's dispatch and the completion before it.
    pub service: Nanos,
    /// From each one's dispatch.
    pub service_from_dispatch: Nanos,
}

/// Status of a disk.
#[derive(Clone, Debug)]
pub struct DiskStatus {
    pub id: DiskId,
    pub name: String,
    pub weight: u32,
    pub capacity_bytes: u64,
    /// Vrings and connections that are open.
    pub ports: u32,
    /// Requests that have arrived and not completed.
    pub outstanding: u32,
    /// Time until which it takes no requests, unless somebody thaws it before.
    pub frozen_until: Option<Instant>,
    pub limits: DiskLimits,
    /// Requests that wait for them now.
    pub limited: usize,
    /// Time in which some did.
    pub limited_time: Nanos,
    /// Time in which reads or writes waited for their turn at the device.
    pub queued_time: Nanos,
    /// Device time withheld while this disk was the one served last, by cause.
    pub held: Withheld,
    /// Work done by each kind of operation; [`OpKind`] is the index.
    pub ops: [OpStatus; OpKind::COUNT],
    /// Device time of its commands, flushes and discards included.
    pub device_time: Nanos,
    /// Its use of the device in the last whole interval.
    pub last_interval: DiskUse,
    /// Its device time then as a part of its share under weighted max-min fairness; `None`
    /// where it asked for nothing.
    pub share: Option<f64>,
    /// Figures that the policy has for this disk.
    pub policy_metrics: Vec<(&'static str, f64)>,
    /// Its share of the cache; `None` where there is none, or not for it.
    pub cache: Option<DiskCache>,
}

/// Work done for one disk by one kind of operation.
#[derive(Clone, Debug)]
pub struct OpStatus {
    /// Requests done, failed ones included.
    pub requests: u64,
    /// Bytes of those that succeeded.
    pub bytes: u64,
    /// Failed requests, a part of `requests`.
    pub errors: u64,
    /// From arrival to completion, in nanoseconds. Shared with the reactor until it counts the
    /// next one: who asks for the status makes it copy nothing.
    pub latency_ns: Arc<Histogram<u64>>,
}

impl Default for OpStatus {
    /// No requests, and an empty histogram of two significant digits.
    fn default() -> Self {
        let latency_ns = Histogram::new(DIGITS).expect("two digits are in range");
        OpStatus { requests: 0, bytes: 0, errors: 0, latency_ns: Arc::new(latency_ns) }
    }
}

/// The sending end: cheap to clone, without a descriptor of its own (the reactor
/// clones it, also when there are no more). Messages to a reactor that has ended
/// are dropped.
#[derive(Clone)]
pub struct Handle {
    sender: mpsc::Sender<Message>,
    wake: Arc<EventFd>,
    turns: Arc<AtomicU64>,
}

impl Handle {
    /// A handle, the receiving end, and what tells it of messages.
    pub(crate) fn new() -> std::io::Result<(Handle, Receiver<Message>)> {
        let wake = Arc::new(EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?);
        let (sender, mailbox) = mpsc::channel();
        Ok((Handle { sender, wake, turns: Arc::default() }, mailbox))
    }

    /// Number of turns that the reactor has made. One that has nothing to do makes none: see
    /// [`Handle::nudge`].
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Let the reactor make a turn, if it can.
    pub fn nudge(&self) {
        let _ = self.wake.write(1); // full: it has been told
    }

    /// The reactor has made a turn.
    pub(crate) fn turned(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// The eventfd that is written to at each message.
    pub(super) fn wake(&self) -> &EventFd {
        &self.wake
    }

    /// Send a message. False when the reactor has ended.
    pub fn send(&self, message: Message) -> bool {
        // The counter of an eventfd holds more than can ever be added here.
        self.sender.send(message).is_ok() && self.wake.write(1).is_ok()
    }

    /// Send what `message` makes of a reply's sender, and wait for the reply.
    /// `None` when the reactor has ended.
    pub fn ask<T>(&self, message: impl FnOnce(SyncSender<T>) -> Message) -> Option<T> {
        wait(&self.request(message))
    }

    /// As [`Handle::ask`], without waiting: the reply comes to the receiver, or its sender is
    /// dropped when the reactor has ended.
    pub fn request<T>(&self, message: impl FnOnce(SyncSender<T>) -> Message) -> Receiver<T> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.send(message(reply));
        answer
    }
}

/// Wait for a reactor's reply. `None` when none will come.
pub fn wait<T>(reply: &Receiver<T>) -> Option<T> {
    #[cfg(test)]
    if let Some(others) = crate::waiting::others() {
        return loop {
            match reply.try_recv() {
                Ok(answer) => break Some(answer),
                Err(mpsc::TryRecvError::Disconnected) => break None,
                // Nor does a destructor wait while its thread panics: a second panic would abort.
                Err(mpsc::TryRecvError::Empty)
                    if crate::death::has_come() || std::thread::panicking() =>
                {
                    break None;
                }
                Err(mpsc::TryRecvError::Empty) => others(),
            }
        };
    }
    reply.recv().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_clone_needs_no_descriptor() {
        let (handle, _mailbox) = Handle::new().unwrap();
        assert_eq!(handle.clone().wake().as_raw_fd(), handle.wake().as_raw_fd());
    }
}
