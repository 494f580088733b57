//! A virtqueue of a block device being served: which chains are in flight, the
//! memory they point to, their record for a restart. Knows no reactor: jobs go
//! to a closure.

use super::dirty_log::{Logging, WORD_BYTES};
use super::inflight::Record;
use super::memory::GuestMemory;
use super::request::{self, Ask, BrokenChain, Request, STATUS_OK, Table};
use super::ring::{BrokenRing, Parts, Ring};
use libc::iovec;
use seekway_core::request::Op;
use std::collections::VecDeque;
use std::sync::Arc;
use virtio_bindings::virtio_blk::VIRTIO_BLK_ID_BYTES;

/// A disk's serial number: text, padded with zero bytes.
pub type Serial = [u8; VIRTIO_BLK_ID_BYTES as usize];

/// Why a virtqueue cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Broken {
    /// Its rings make no sense.
    #[error(transparent)]
    Ring(#[from] BrokenRing),
    /// A chain makes no sense.
    #[error(transparent)]
    Chain(#[from] BrokenChain),
    /// A chain is made available while the device still has it.
    #[error("descriptor {0} is made available a second time before it was used")]
    Twice(u16),
    /// Memory of the guest, or the record of what is in flight, is not there any more.
    #[error("some of its memory was taken away")]
    Memory,
}

/// Outcome of a request that was handed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// The request is under way; a call of [`Vring::done`] follows.
    Submitted,
    /// The request is over, with this status.
    Refused(u8),
}

/// A chain by its head.
#[derive(Clone, Copy)]
struct Slot {
    state: State,
    /// The chain that was done before in the same batch.
    next: u16,
    /// Which of the guest's memory maps it points into.
    epoch: u32,
    writable_len: u32,
    /// Bytes of those, from the first on, that its data may fill.
    data_len: u32,
    status: Option<*mut u8>,
    /// Address of the status in the guest's memory.
    status_address: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// Taken from the available ring, and not done yet.
    InFlight,
    /// Done, and the guest has not been shown.
    Done,
}

/// Guest memory that is no longer current and that requests in flight use.
struct RetiredMemory {
    epoch: u32,
    in_flight: u16,
    _memory: Arc<GuestMemory>,
}

/// Parts of a virtqueue.
pub struct Setup {
    /// Where its parts are, inside `memory`.
    pub parts: Parts,
    /// Entries, a power of two, at most [`super::ring::SIZE_MAX`].
    pub size: u16,
    /// VIRTIO_F_EVENT_IDX was negotiated: each side says at which index to notify it.
    pub event_idx: bool,
    /// Where to begin in the available ring; a record of requests in flight
    /// knows better.
    pub base: u16,
    pub memory: Arc<GuestMemory>,
    /// Where to note what is in flight.
    pub record: Option<Record>,
    /// The answer to GET_ID.
    pub serial: Serial,
    /// The log of written memory, for the VMM.
    pub logging: Option<Logging>,
}

pub struct Vring {
    ring: Ring,
    memory: Arc<GuestMemory>,
    epoch: u32,
    retired: Vec<RetiredMemory>,
    slots: Box<[Slot]>,
    /// Submitted and not done, in the current memory.
    in_flight: u16,
    /// Done and not shown to the guest: how many, and the last of them.
    batch_len: u16,
    batch_head: u16,
    record: Option<Record>,
    counter: u64,
    /// Left by the daemon before this one, to be submitted first.
    resubmit: VecDeque<u16>,
    /// The guest has been asked to kick.
    kicks: bool,
    serial: Serial,
    logging: Option<Logging>,
    /// Reused for each chain.
    pieces: Vec<iovec>,
}

// SAFETY: the pointers are into guest memory, which is mapped for the process
// and kept so by `memory` and `retired`.
unsafe impl Send for Vring {}

impl Vring {
    /// A virtqueue, not looked at yet.
    ///
    /// # Safety
    /// `setup.parts` have the sizes and alignments of [`Parts::layout`] and are
    /// mapped by `setup.memory`.
    pub unsafe fn new(setup: Setup) -> Vring {
        // SAFETY: the caller's promise; `memory` is kept beside it.
        let mut ring = unsafe { Ring::new(setup.parts, setup.size, setup.event_idx, setup.base) };
        let (mut resubmit, mut counter) = (VecDeque::new(), 0);
        if let Some(record) = &setup.record {
            let used = ring.used_index();
            let (left, next) = record.recover(used);
            (resubmit, counter) = (left.into(), next);
            // What was taken is either used or in flight.
            ring.seek(used.wrapping_add(resubmit.len() as u16));
        }
        let free = Slot {
            state: State::Free,
            next: 0,
            epoch: 0,
            writable_len: 0,
            data_len: 0,
            status: None,
            status_address: 0,
        };
        Vring {
            ring,
            memory: setup.memory,
            epoch: 0,
            retired: Vec::new(),
            slots: vec![free; usize::from(setup.size)].into_boxed_slice(),
            in_flight: 0,
            batch_len: 0,
            batch_head: 0,
            record: setup.record,
            counter,
            resubmit,
            // As far as this is known.
            kicks: true,
            serial: setup.serial,
            logging: setup.logging,
            pieces: Vec::with_capacity(request::CHAIN_MAX),
        }
    }

    /// Take the next available chain, those of the daemon before first. `submit` is
    /// given the head, by which [`Vring::done`] names the chain. Returns how much work it is, in
    /// descriptors read; `None` when no chain is there, and the guest will kick for the next.
    pub fn take(
        &mut self,
        submit: impl FnMut(u16, &Request, &[iovec]) -> Taken,
    ) -> Result<Option<u32>, Broken> {
        if let Some(head) = self.resubmit.pop_front() {
            return self.start(head, true, submit).map(Some);
        }
        loop {
            if std::mem::replace(&mut self.kicks, false) {
                self.ring.disable_kicks();
                self.log_used();
            }
            if let Some(head) = self.ring.pop()? {
                return self.start(head, false, submit).map(Some);
            }
            if !self.allow_kicks()? {
                return Ok(None);
            }
        }
    }

    /// Ask the guest to kick for the next chain. True when one came meanwhile.
    fn allow_kicks(&mut self) -> Result<bool, BrokenRing> {
        self.kicks = true;
        let more = self.ring.enable_kicks();
        self.log_used();
        more
    }

    /// Nothing more is taken. Whoever serves the ring next finds the guest's kicks allowed.
    pub fn leave(&mut self) {
        // What is wrong with the ring is for the next one to say.
        let _ = self.allow_kicks();
    }

    /// Fails when some of the memory that it uses was taken away.
    pub fn check_memory(&self) -> Result<(), Broken> {
        match self.memory.is_lost() || self.record.as_ref().is_some_and(Record::is_lost) {
            true => Err(Broken::Memory),
            false => Ok(()),
        }
    }

    /// Are there chains to take? Does not write.
    pub fn has_work(&self) -> bool {
        self.ring.peek()
    }

    fn start(
        &mut self,
        head: u16,
        again: bool,
        mut submit: impl FnMut(u16, &Request, &[iovec]) -> Taken,
    ) -> Result<u32, Broken> {
        if self.slots[usize::from(head)].state != State::Free {
            return Err(Broken::Twice(head));
        }
        let request = request::parse(&self.memory, table(&self.ring), head, &mut self.pieces)?;
        // What was read may be zeroes in place of the guest's bytes.
        self.check_memory()?;
        self.slots[usize::from(head)] = Slot {
            state: State::InFlight,
            next: 0,
            epoch: self.epoch,
            writable_len: request.writable_len,
            data_len: data_len(&request),
            status: request.status,
            status_address: request.status_address,
        };
        self.in_flight += 1;
        if let Some(record) = &self.record
            && !again
        {
            record.begin(head, self.counter);
            self.counter = self.counter.wrapping_add(1);
        }
        let work = self.work(&request);
        let taken = match request.ask {
            Ask::Refuse(status) => Taken::Refused(status),
            Ask::Identify => {
                request::scatter(&self.pieces, &self.serial);
                Taken::Refused(STATUS_OK)
            }
            _ => submit(head, &request, &self.pieces),
        };
        if let Taken::Refused(status) = taken {
            if request.ask != Ask::Identify {
                self.slots[usize::from(head)].data_len = 0;
            }
            self.done(head, status);
        }
        Ok(work)
    }

    /// Cost of a request, in descriptors read.
    fn work(&self, request: &Request) -> u32 {
        match self.logging {
            None => request.descriptors,
            // It is walked again, and what it writes is marked.
            Some(_) => 2 * request.descriptors + data_len(request) / WORD_BYTES as u32,
        }
    }

    /// A chain that was not carried out, or not to its end, stays in flight for whoever serves the
    /// ring next. False if there is no record by which they would know.
    pub fn leave_in_flight(&self, head: u16) -> bool {
        debug_assert!(self.slots[usize::from(head)].state == State::InFlight);
        self.record.is_some()
    }

    /// A chain is done. Panics when it was not in flight.
    pub fn done(&mut self, head: u16, status: u8) {
        let slot = &mut self.slots[usize::from(head)];
        assert!(slot.state == State::InFlight, "chain {head} is done and was not in flight");
        if let Some(byte) = slot.status
            && !self.memory.is_lost()
        {
            // SAFETY: the memory that was current when the chain was read is kept
            // until the chain is done.
            unsafe { byte.write_volatile(status) };
        }
        if let Some(Logging { log, .. }) = &self.logging {
            log.mark(slot.status_address, u64::from(slot.status.is_some()));
            // What the chain's descriptors say is kept until the guest sees that it is done. One
            // that changes them all the same loses its own pages, and no more is marked for it.
            request::writable(&self.memory, table(&self.ring), head, slot.data_len, |at, len| {
                log.mark(at, u64::from(len));
            });
        }
        // The whole of the writable part, as other devices say, even of a read that failed.
        self.ring.push_used(head, slot.writable_len);
        (slot.state, slot.next) = (State::Done, self.batch_head);
        let epoch = slot.epoch;
        self.batch_head = head;
        self.batch_len += 1;
        if let Some(record) = &self.record {
            record.link(head);
        }
        if epoch == self.epoch {
            self.in_flight -= 1;
        } else {
            self.retire(epoch);
        }
    }

    /// A chain in old memory is done.
    fn retire(&mut self, epoch: u32) {
        let at = self.retired.iter().position(|old| old.epoch == epoch);
        let at = at.expect("memory is kept while chains use it");
        self.retired[at].in_flight -= 1;
        if self.retired[at].in_flight == 0 {
            self.retired.swap_remove(at);
        }
    }

    /// Show the guest what is done. True when it wants to be told.
    pub fn publish(&mut self) -> bool {
        if self.batch_len == 0 {
            return false;
        }
        self.ring.publish();
        for _ in 0..std::mem::take(&mut self.batch_len) {
            let slot = &mut self.slots[usize::from(self.batch_head)];
            slot.state = State::Free;
            if let Some(record) = &self.record {
                record.end(self.batch_head);
            }
            self.batch_head = slot.next;
        }
        if let Some(record) = &self.record {
            record.settle(self.ring.used_index());
        }
        self.log_used();
        self.ring.needs_call()
    }

    /// Tell the VMM of memory that is written from now on, or no more. Returns what was told of
    /// before.
    pub fn set_logging(&mut self, logging: Option<Logging>) -> Option<Logging> {
        std::mem::replace(&mut self.logging, logging)
    }

    /// The used ring was written. What a daemon wrote that was killed before it logged it, the next
    /// logs at the latest when it leaves the ring.
    fn log_used(&self) {
        if let Some(Logging { log, used: Some(used) }) = &self.logging {
            let [.., (bytes, _)] = Parts::layout(self.ring.size());
            log.mark(*used, bytes);
        }
    }

    /// The guest's memory is another. What is in flight ends in the old one,
    /// which is kept until then.
    ///
    /// # Safety
    /// As for [`Vring::new`], with the new memory.
    pub unsafe fn relocate(&mut self, parts: Parts, memory: Arc<GuestMemory>) {
        // SAFETY: the caller's promise.
        unsafe { self.ring.relocate(parts) };
        let old = std::mem::replace(&mut self.memory, memory);
        if self.in_flight > 0 {
            let (epoch, in_flight) = (self.epoch, self.in_flight);
            self.retired.push(RetiredMemory { epoch, in_flight, _memory: old });
        }
        self.epoch = self.epoch.wrapping_add(1);
        self.in_flight = 0;
    }

    /// The next entry of the available ring to take: where a ring that is
    /// stopped goes on later.
    pub fn base(&self) -> u16 {
        self.ring.next_available()
    }
}

/// Bytes of the guest's memory that a request's data may fill.
fn data_len(request: &Request) -> u32 {
    // The last writable byte is the status.
    let room = request.writable_len.saturating_sub(1);
    match request.ask {
        Ask::Carry { op: Op::Read, .. } => room,
        Ask::Identify => room.min(VIRTIO_BLK_ID_BYTES),
        _ => 0,
    }
}

/// The ring's descriptors, which the guest's memory maps as long as the ring.
fn table(ring: &Ring) -> Table<'_> {
    // SAFETY: `size` entries, mapped as long as the ring is used.
    unsafe { Table::new(ring.descriptors(), ring.size()) }
}

#[cfg(test)]
mod tests;
