//! The table of a reactor's ports: which are open, what each has under way, which have news
//! for their guests, which are to close.

use super::turns::Turns;
use crate::port::{DiskId, PortId};

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
