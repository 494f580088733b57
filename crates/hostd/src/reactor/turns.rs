//! The ports of a reactor, and their turns of taking requests. Disks go round, and so do the ports of
//! each: a guest with many ports, or with much to do, does not get more turns than the others.

use crate::port::{Budget, DiskId, PortId};
use seekway_core::units::{Instant, Nanos};
use std::collections::VecDeque;

/// The ports of one disk that wait for their turn.
#[derive(Default)]
struct Queue {
    ports: VecDeque<PortId>,
    /// The disk is in one of the two lists of [`Turns`].
    is_listed: bool,
}

#[derive(Default)]
pub struct Turns {
    /// By number of the disk.
    queues: Vec<Queue>,
    /// Disks whose ports wait, the next one first.
    disks: VecDeque<DiskId>,
    /// Disks whose ports wait until requests are done.
    full: Vec<DiskId>,
    /// Disks that have had a turn recently.
    active: Vec<Active>,
}

/// A disk that has had a turn.
struct Active {
    disk: DiskId,
    at: Instant,
    /// The disk had less to do than it may do beside another such disk.
    is_quiet: bool,
}

/// Time after its last turn for which a disk is active.
const ACTIVE: Nanos = Nanos::from_millis(1);

impl Turns {
    /// A port waits for its turn, behind the others of its disk. It must not be waiting already.
    pub fn wait(&mut self, disk: DiskId, port: PortId) {
        let number = usize::from(disk.0);
        if number >= self.queues.len() {
            self.queues.resize_with(number + 1, Queue::default);
        }
        let queue = &mut self.queues[number];
        queue.ports.push_back(port);
        if !std::mem::replace(&mut queue.is_listed, true) {
            self.disks.push_back(disk);
        }
    }

    /// Number of disks that have a turn now.
    pub fn len(&self) -> usize {
        self.disks.len()
    }

    /// The disk whose turn it is. [`Turns::end`] follows.
    pub fn next_disk(&mut self) -> Option<DiskId> {
        self.disks.pop_front()
    }

    /// The port of this disk whose turn it is.
    pub fn next_port(&mut self, disk: DiskId) -> Option<PortId> {
        self.queues[usize::from(disk.0)].ports.pop_front()
    }

    /// Work that this disk may do in its turn now.
    pub fn budget(&mut self, disk: DiskId, now: Instant) -> Budget {
        self.active.retain(|other| other.disk != disk && now < other.at + ACTIVE);
        let beside_quiet = self.active.iter().any(|other| other.is_quiet);
        Budget::new(if beside_quiet { Budget::WORK_BESIDE_QUIET } else { Budget::WORK })
    }

    /// Notes the work that a disk has done in its turn.
    pub fn note(&mut self, disk: DiskId, now: Instant, work: u32) {
        if work > 0 {
            let is_quiet = work < Budget::WORK_BESIDE_QUIET;
            self.active.push(Active { disk, at: now, is_quiet });
        }
    }

    /// The turn of a disk is over. It has another one, behind all others, if its ports wait; one
    /// that `is_full` not before [`Turns::resume`].
    pub fn end(&mut self, disk: DiskId, is_full: bool) {
        let queue = &mut self.queues[usize::from(disk.0)];
        queue.is_listed = !queue.ports.is_empty();
        match (queue.is_listed, is_full) {
            (false, _) => {}
            (true, false) => self.disks.push_back(disk),
            (true, true) => self.full.push(disk),
        }
    }

    /// Requests are done: disks that were full may have room.
    pub fn resume(&mut self) {
        self.disks.extend(self.full.drain(..));
    }
}

// The table of a reactor's ports: which are open, what each has under way, which have news
// for their guests, which are to close.

/// Ports of one reactor.
const PORTS_MAX: usize = 1 << 14;

/// The reactor's state of a port.
#[derive(Clone, Copy, Default)]
pub struct PortSlot {
    generation: u16,
    live: bool,
    pub disk: Option<DiskId>,
    /// SQEs of the port whose last CQE has not come.
    pub sqes: u32,
    /// Jobs that the port has not been told of that they are done.
    pub jobs: u32,
    /// The port is in `Ports::marked`, and is not added twice.
    marked: bool,
    /// Waits for its turn.
    waiting: bool,
    closing: bool,
}

#[derive(Default)]
pub struct Ports {
    slots: Vec<PortSlot>,
    free: Vec<u16>,
    /// Ports that wait for their turn.
    pub turns: Turns,
    /// Ports with news for their guests.
    marked: Vec<u16>,
    /// Ports that are to close and have not been told.
    closing: Vec<PortId>,
    /// Ports that are closing.
    closing_count: usize,
}

impl Ports {
    /// The counters of an open port.
    pub fn slot(&mut self, id: PortId) -> &mut PortSlot {
        &mut self.slots[usize::from(id.index)]
    }

    /// Number a new port of `disk`, which ends when the disk is detached. `None` when there are
    /// too many.
    pub fn allocate(&mut self, disk: DiskId) -> Option<PortId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < PORTS_MAX => {
                self.slots.push(PortSlot::default());
                (self.slots.len() - 1) as u16
            }
            None => return None,
        };
        let slot = &mut self.slots[usize::from(index)];
        let generation = slot.generation.wrapping_add(1);
        *slot = PortSlot { generation, live: true, disk: Some(disk), ..PortSlot::default() };
        Some(PortId { index, generation })
    }

    /// Free the number of a port that has drained.
    pub fn release(&mut self, id: PortId) {
        self.slots[usize::from(id.index)].live = false;
        self.closing_count -= 1;
        self.free.push(id.index);
    }

    /// Is this port open? False for an earlier port of the same index.
    pub fn is_live(&self, id: PortId) -> bool {
        let slot = self.slots.get(usize::from(id.index));
        slot.is_some_and(|s| s.live && s.generation == id.generation)
    }

    pub fn all(&self) -> impl Iterator<Item = PortId> {
        self.filter(|_| true)
    }

    /// The open ports of a disk.
    pub fn of_disk(&self, disk: DiskId) -> impl Iterator<Item = PortId> {
        self.filter(move |slot| slot.disk == Some(disk))
    }

    /// Number of open ports of each of the first `disks` disks.
    pub fn count_by_disk(&self, disks: usize) -> Vec<u32> {
        let mut counts = vec![0; disks];
        for slot in self.slots.iter().filter(|slot| slot.live) {
            if let Some(count) = slot.disk.and_then(|disk| counts.get_mut(usize::from(disk.0))) {
                *count += 1;
            }
        }
        counts
    }

    /// Ask a port to close ([`crate::port`], step 7). Asking twice is asking once.
    pub fn close(&mut self, id: PortId) {
        if !self.is_live(id) {
            return;
        }
        let slot = &mut self.slots[usize::from(id.index)];
        if !std::mem::replace(&mut slot.closing, true) {
            self.closing_count += 1;
            self.closing.push(id);
        }
    }

    /// The next port that has to be told to close.
    pub fn next_closing(&mut self) -> Option<PortId> {
        self.closing.pop()
    }

    /// Ports that are closing and have nothing under way, nor done and not yet delivered.
    pub fn drained(&self) -> Vec<PortId> {
        if self.closing_count == 0 {
            return Vec::new();
        }
        self.filter(|s| s.closing && s.sqes == 0 && s.jobs == 0).collect()
    }

    /// Let a port have its turn. Asking twice is asking once.
    pub fn wait_turn(&mut self, id: PortId) {
        if !self.is_live(id) {
            return;
        }
        let slot = &mut self.slots[usize::from(id.index)];
        if let Some(disk) = slot.disk
            && !std::mem::replace(&mut slot.waiting, true)
        {
            self.turns.wait(disk, id);
        }
    }

    /// The port of `disk` whose turn it is.
    pub fn next_turn(&mut self, disk: DiskId) -> Option<PortId> {
        loop {
            let id = self.turns.next_port(disk)?;
            // Another one may have its number now.
            if self.is_live(id) {
                self.slots[usize::from(id.index)].waiting = false;
                return Some(id);
            }
        }
    }

    /// Note that a port may have news for its guest.
    pub fn mark(&mut self, index: u16) {
        let slot = &mut self.slots[usize::from(index)];
        if !std::mem::replace(&mut slot.marked, true) {
            self.marked.push(index);
        }
    }

    /// The next port that may have news for its guest.
    pub fn next_marked(&mut self) -> Option<PortId> {
        let index = self.marked.pop()?;
        let slot = &mut self.slots[usize::from(index)];
        slot.marked = false;
        Some(PortId { index, generation: slot.generation })
    }

    /// Is there a port to be told something, one that may have news for its guest, or one that has
    /// a turn?
    pub fn have_news(&self) -> bool {
        !self.marked.is_empty() || !self.closing.is_empty() || self.turns.len() > 0
    }

    fn filter(&self, is_wanted: impl Fn(&PortSlot) -> bool) -> impl Iterator<Item = PortId> {
        let slots = self.slots.iter().enumerate().filter(move |(_, s)| s.live && is_wanted(s));
        slots.map(|(index, s)| PortId { index: index as u16, generation: s.generation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(index: u16) -> PortId {
        PortId { index, generation: 0 }
    }

    /// Give each disk a turn in which one port is served and waits again.
    fn round(turns: &mut Turns, is_full: impl Fn(DiskId) -> bool) -> Vec<(u16, u16)> {
        let mut served = Vec::new();
        for _ in 0..turns.len() {
            let disk = turns.next_disk().unwrap();
            if !is_full(disk)
                && let Some(port) = turns.next_port(disk)
            {
                served.push((disk.0, port.index));
                turns.wait(disk, port);
            }
            turns.end(disk, is_full(disk));
        }
        served
    }

    #[test]
    fn disks_go_round_and_so_do_their_ports() {
        let mut turns = Turns::default();
        for index in 0..3 {
            turns.wait(DiskId(5), port(index));
        }
        turns.wait(DiskId(2), port(9));
        assert_eq!(round(&mut turns, |_| false), [(5, 0), (2, 9)]);
        assert_eq!(round(&mut turns, |_| false), [(5, 1), (2, 9)]);
        assert_eq!(round(&mut turns, |_| false), [(5, 2), (2, 9)]);
        assert_eq!(round(&mut turns, |_| false), [(5, 0), (2, 9)]);
    }

    #[test]
    fn a_full_disk_waits_until_requests_are_done() {
        let mut turns = Turns::default();
        turns.wait(DiskId(0), port(0));
        turns.wait(DiskId(1), port(1));
        assert_eq!(round(&mut turns, |disk| disk.0 == 0), [(1, 1)]);
        turns.wait(DiskId(0), port(2));
        assert_eq!(round(&mut turns, |_| false), [(1, 1)]);
        turns.resume();
        assert_eq!(round(&mut turns, |_| false), [(1, 1), (0, 0)]);
        assert_eq!(round(&mut turns, |_| false), [(1, 1), (0, 2)]);
    }

    #[test]
    fn a_disk_without_waiting_ports_has_no_turn() {
        let mut turns = Turns::default();
        turns.wait(DiskId(0), port(0));
        let disk = turns.next_disk().unwrap();
        assert_eq!((turns.next_port(disk), turns.next_port(disk)), (Some(port(0)), None));
        turns.end(disk, true);
        turns.resume();
        assert_eq!(turns.len(), 0);
    }

    #[test]
    fn turns_are_short_beside_a_disk_with_little_to_do_and_long_beside_others() {
        let mut turns = Turns::default();
        let (quiet, busy, other) = (DiskId(0), DiskId(1), DiskId(2));
        let at = |micros| Instant::ZERO + Nanos::from_micros(micros);
        let mut turn = |disk, now, wants: u32| {
            let given = turns.budget(disk, now).left();
            turns.note(disk, now, wants.min(given));
            given
        };
        let (long, short) = (Budget::WORK, Budget::WORK_BESIDE_QUIET);
        assert_eq!(turn(busy, at(0), u32::MAX), long);
        assert_eq!(turn(other, at(0), u32::MAX), long, "beside a busy one");
        assert_eq!(turn(quiet, at(10), 32), long);
        assert_eq!(turn(busy, at(10), u32::MAX), short);
        assert_eq!(turn(other, at(10), u32::MAX), short);
        // The quiet one waits for its guest, and has no turns meanwhile.
        assert_eq!(turn(busy, at(900), u32::MAX), short);
        assert_eq!(turn(busy, at(1_010), u32::MAX), long);
        // A disk is not quiet for using up a short turn.
        assert_eq!(turn(quiet, at(2_000), 32), long);
        assert_eq!(turn(busy, at(2_000), u32::MAX), short);
        assert_eq!(turn(quiet, at(2_010), u32::MAX), long);
        assert_eq!(turn(busy, at(2_010), u32::MAX), long);
    }
}
