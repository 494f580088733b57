//! The disks of a reactor: image, place on the device, and what has been done.

use super::edges::Edges;
use super::intervals::UseMeter;
use super::jobs::JobSlot;
use super::message::{DiskStatus, Handle, Message, OpStatus};
use crate::images::fault::Fault;
use crate::images::{Image, Limits};
use crate::op_kind::OpKind;
use crate::port::{DiskId, PortId};
use crate::sandbox;
use seekway_core::request::Op;
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_stack::dispatcher::Withheld;
use seekway_stack::stack::limit::DiskLimits;
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender, SyncSender};
use std::thread::{Builder, JoinHandle};

/// Disks placed one after another begin at multiples of this (1 MiB).
const PLACE_SECTORS: u64 = 2048;
/// Distance between disks on a device without an end, so that each disk can grow: 2 TiB.
const GROWTH_SECTORS: u64 = 1 << 32;
/// Sectors of a device: what bytes in 63 bits can name.
const SECTORS_MAX: u64 = i64::MAX as u64 / 512;

/// Time for which a disk that leaves still begins reads, writes and flushes.
const LEAVE_PATIENCE: Nanos = Nanos::from_secs(1);

/// Why and until when a disk takes no requests.
pub struct Freeze {
    /// Time at which it thaws by itself.
    pub until: Instant,
    /// Receiver of the end of what is under way. Kept until the disk thaws, which they see by its
    /// end.
    pub(super) reply: SyncSender<Result<(), String>>,
    /// They have been told that nothing is under way.
    pub(super) is_told: bool,
}

pub struct DiskState {
    pub name: String,
    pub image: Image,
    /// Its limits as they are now.
    pub limits: Limits,
    pub weight: NonZeroU32,
    pub limits_per_s: DiskLimits,
    /// The map is one piece that we chose: nothing to ask the file system.
    pub placed: Option<Lba>,
    /// The file system has not placed any of it yet.
    pub unmapped: bool,
    /// A write went where the map knows nothing.
    pub map_stale: bool,
    /// Earliest time to ask the file system again.
    pub map_due: Instant,
    /// Pause from one question to the next; it doubles each time.
    pub remap_after: Nanos,
    /// A thread is asking it now.
    pub mapping: bool,
    /// Says where the image holds data.
    pub status_thread: StatusThread,
    /// Its syncs under way.
    pub syncs: Syncs,
    /// Its writes to parts of blocks.
    pub edges: Edges,
    /// Failures to inject into its I/O, for tests.
    pub fault: Option<Fault>,
    /// Guests' jobs under way.
    pub outstanding: u32,
    /// Pieces of guests' memory that they have.
    pub pieces: usize,
    /// Device time withheld while this disk was the one served last.
    pub held: Withheld,
    /// The disk takes no requests for a while.
    pub frozen: Option<Freeze>,
    /// Time from which it has been leaving: it begins only what it must.
    pub leaving: Option<Instant>,
    /// The disk is being detached; the receiver waits for that.
    pub detaching: Option<SyncSender<Result<(), String>>>,
    /// Work done, by kind of operation.
    pub ops: [OpStatus; OpKind::COUNT],
    /// Its use of the device.
    pub meter: UseMeter,
}

impl DiskState {
    /// May a command with this operation begin? A disk that leaves begins no long work, and soon
    /// nothing: whoever waits for its end has little time.
    pub fn may_begin(&self, now: Instant, op: Op) -> bool {
        let Some(since) = self.leaving else { return true };
        !matches!(op, Op::Discard | Op::WriteZeroes) && now.since(since) < LEAVE_PATIENCE
    }

    /// The sectors where we put it; `None` where the file system did.
    pub fn placed_at(&self) -> Option<(u64, u64)> {
        let start = self.placed?.get();
        Some((start, start + self.limits.capacity_bytes.div_ceil(512)))
    }

    /// Counts a new job, with its number of pieces of memory.
    pub fn begin(&mut self, now: Instant, pieces: usize) {
        if self.outstanding == 0 {
            self.meter.begin_busy(now);
        }
        self.outstanding += 1;
        self.pieces += pieces;
    }

    /// A job is done: what it was, and how long it took.
    pub fn count(&mut self, now: Instant, slot: &JobSlot, ok: bool) -> (OpKind, Nanos) {
        let (job, response) = (&slot.job, now.since(slot.arrived));
        self.pieces -= slot.buffers.len();
        let kind = OpKind::of(job.op);
        let status = &mut self.ops[kind as usize];
        status.requests += 1;
        match ok {
            true => status.bytes += job.len,
            false => status.errors += 1,
        }
        // A copy, if somebody still looks at the last one. An auto-resizing histogram takes
        // every value but zero.
        let _ = Arc::make_mut(&mut status.latency_ns).record(response.get().max(1));
        if ok && job.op.is_data() {
            self.meter.add(Nanos::ZERO, job.len);
        }
        self.outstanding -= 1;
        if self.outstanding == 0 {
            self.meter.end_busy(now);
        }
        (kind, response)
    }

    /// Its counters; `ports` of it are open. What the stack knows of it is not filled in.
    pub fn status(&self, id: DiskId, ports: u32) -> DiskStatus {
        DiskStatus {
            id,
            name: self.name.clone(),
            weight: self.weight.get(),
            capacity_bytes: self.limits.capacity_bytes,
            ports,
            outstanding: self.outstanding,
            frozen_until: self.frozen.as_ref().map(|freeze| freeze.until),
            limits: self.limits_per_s.clone(),
            limited: 0,
            limited_time: Nanos::ZERO,
            queued_time: Nanos::ZERO,
            held: self.held.clone(),
            ops: self.ops.clone(),
            device_time: self.meter.device_time(),
            last_interval: self.meter.last(),
            share: None,
            policy_metrics: Vec::new(),
            cache: None,
        }
    }
}

/// Parts of a device on which disks may be placed.
pub struct Room {
    pub capacity: Sectors,
    /// The device is emulated: nothing may end behind it.
    pub emulated: bool,
}

/// The disks by number.
#[derive(Default)]
pub struct Disks(pub Vec<Option<DiskState>>);

impl Disks {
    /// The disk, if there is one of that number.
    pub fn get(&self, id: DiskId) -> Option<&DiskState> {
        self.0.get(usize::from(id.0))?.as_ref()
    }
    /// As [`Disks::get`], to change the disk.
    pub fn get_mut(&mut self, id: DiskId) -> Option<&mut DiskState> {
        self.0.get_mut(usize::from(id.0))?.as_mut()
    }
    /// As [`Disks::get_mut`], with an error for the sender of the number.
    pub fn find(&mut self, id: DiskId) -> Result<&mut DiskState, String> {
        self.get_mut(id).ok_or_else(|| format!("there is no disk number {}", id.0))
    }
    /// The disk of a job or of an I/O, which stays as long as that.
    pub fn of_job(&mut self, id: DiskId) -> &mut DiskState {
        self.get_mut(id).expect("a disk stays while it has jobs and I/O")
    }
    /// Limits of a disk that is there.
    pub fn limits(&self, id: DiskId) -> &Limits {
        &self.get(id).expect("a port's disk stays until the port has ended").limits
    }

    /// Where a disk begins that the file system does not place.
    pub fn place(
        &self,
        room: &Room,
        name: &str,
        lba: Option<Lba>,
        capacity_bytes: u64,
    ) -> Result<Lba, String> {
        let ends = self.0.iter().flatten().filter_map(DiskState::placed_at).map(|(_, end)| end);
        let last = ends.max().unwrap_or(0);
        let apart = last.next_multiple_of(GROWTH_SECTORS);
        let fits = apart.saturating_add(capacity_bytes.div_ceil(512)) <= SECTORS_MAX;
        let behind = match fits && !room.emulated {
            true => apart,
            false => last.next_multiple_of(PLACE_SECTORS),
        };
        let start = lba.map_or(behind, Lba::get);
        self.check_place(room, name, start, capacity_bytes, None)?;
        Ok(Lba::new(start))
    }

    /// May a disk, `number` if it is there already, lie at this sector?
    pub fn check_place(
        &self,
        room: &Room,
        name: &str,
        start: u64,
        capacity_bytes: u64,
        number: Option<DiskId>,
    ) -> Result<(), String> {
        let len = capacity_bytes.div_ceil(512);
        let device = room.capacity.get();
        let end = start.saturating_add(len);
        if end > SECTORS_MAX {
            return Err(format!(
                "{name}: {len} sectors from sector {start} end past every device, at most {SECTORS_MAX} sectors"
            ));
        }
        if room.emulated && end > device {
            return Err(format!(
                "{name}: {len} sectors from sector {start} do not fit on the emulated device, which has {device}"
            ));
        }
        for (other, disk) in self.0.iter().enumerate() {
            let Some((disk, (from, to))) = disk.as_ref().and_then(|d| Some((d, d.placed_at()?)))
            else {
                continue;
            };
            if number != Some(DiskId(other as u16)) && start < to && from < end {
                return Err(format!(
                    "{name}: {len} sectors from sector {start} overlap disk {}, which has {from} to {to}",
                    disk.name
                ));
            }
        }
        Ok(())
    }
}

// Where images hold data, asked by a thread of each disk: a file system that is slow to answer
// holds up nobody but those who ask about the same disk.

/// A port's question about data and holes.
pub struct Ask {
    pub port: PortId,
    pub token: u64,
    pub range: Range<u64>,
    /// Runs in the answer at most.
    pub max: usize,
}

/// The thread of one disk, from the first question on. It has the image's file open.
#[derive(Default)]
pub struct StatusThread(Option<(Sender<Ask>, JoinHandle<()>)>);

impl StatusThread {
    /// Ask; `answers` gets [`Message::Runs`]. When no thread can be had, all is data.
    pub fn ask(&mut self, image: &Image, answers: &Handle, ask: Ask) {
        if self.0.is_none() {
            self.0 = start(image, answers);
        }
        let unasked = match &self.0 {
            Some((asks, _)) => asks.send(ask).err().map(|unsent| unsent.0),
            None => Some(ask),
        };
        if let Some(Ask { port, token, range, .. }) = unasked {
            answers.send(Message::Runs(port, token, vec![(range.end - range.start, false)]));
        }
    }
}

fn start(image: &Image, answers: &Handle) -> Option<(Sender<Ask>, JoinHandle<()>)> {
    let allocation = image.allocation().ok()?;
    let (asks, asked) = mpsc::channel::<Ask>();
    let answers = answers.clone();
    let answer = move || {
        sandbox::enter(sandbox::Kind::Helper);
        while let Ok(Ask { port, token, range, max }) = asked.recv() {
            answers.send(Message::Runs(port, token, allocation.runs(range, max)));
        }
    };
    let thread = Builder::new().name("block-status".into()).spawn(answer).ok()?;
    Some((asks, thread))
}

impl Drop for StatusThread {
    /// The image's file is closed then, and its lock gone. Nothing is asked any more: ports wait
    /// for their answers before they end.
    fn drop(&mut self) {
        if let Some((asks, thread)) = self.0.take() {
            drop(asks);
            let _ = thread.join();
        }
    }
}

// Syncs of one image that are under way together: flushes, and those behind durable writes. The
// kernel tells one of them, any one, that something was not written back
// (`Documentation/core-api/errseq.rst`), and it may be told later than another that it went well. So
// one that went well is held until all that were under way with it have ended: if one of them fails,
// it fails too.

/// I/Os by their index. Few are under way at a time.
#[derive(Default)]
pub struct Syncs {
    /// With their numbers, which ascend.
    under_way: Vec<(u32, u64)>,
    next: u64,
    /// Syncs that went well, each with the number of the first that it does not wait for.
    held: VecDeque<(u32, u64)>,
}

impl Syncs {
    /// An I/O goes to the kernel, for the first time or with its rest.
    pub fn begin(&mut self, io: u32) {
        if !self.under_way.iter().any(|&(other, _)| other == io) {
            self.under_way.push((io, self.next));
            self.next += 1;
        }
    }

    /// Is one with the kernel?
    pub fn are_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// The kernel is done with an I/O.
    pub fn end(&mut self, io: u32) {
        self.under_way.retain(|&(other, _)| other != io);
    }

    /// An I/O went well, and has ended. True if it is held, until [`Syncs::release`] has it.
    pub fn hold(&mut self, io: u32) -> bool {
        self.end(io);
        let is_held = !self.under_way.is_empty();
        if is_held {
            self.held.push_back((io, self.next));
        }
        is_held
    }

    /// One that waits for none any more, or any if one has failed.
    pub fn release(&mut self, has_failed: bool) -> Option<u32> {
        let &(io, until) = self.held.front()?;
        let waits = self.under_way.iter().any(|&(_, number)| number < until);
        if waits && !has_failed {
            return None;
        }
        self.held.pop_front();
        Some(io)
    }
}

#[cfg(test)]
mod tests;
