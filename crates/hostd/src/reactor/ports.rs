//! The reactor's books of its ports: which there are, what each has under way,
//! who has news for its guest, who shall end.

use super::core::Core;
use crate::port::{DiskId, PortId};

/// Ports of one reactor.
const PORTS_MAX: usize = 1 << 14;

/// What the reactor keeps of a port.
#[derive(Clone, Copy, Default)]
pub struct PortSlot {
    generation: u16,
    live: bool,
    disk: Option<DiskId>,
    /// SQEs and jobs under way.
    pub sqes: u32,
    pub jobs: u32,
    /// Is in `marked`.
    marked: bool,
    closing: bool,
}

/// All ports.
#[derive(Default)]
pub struct Ports {
    slots: Vec<PortSlot>,
    free: Vec<u16>,
    /// Ports with news for their guests.
    marked: Vec<u16>,
    /// Ports that shall close and have not been told.
    closing: Vec<PortId>,
    /// Ports that are closing.
    closing_count: usize,
}

impl Ports {
    /// What is kept of a port that is there.
    pub fn slot(&mut self, id: PortId) -> &mut PortSlot {
        &mut self.slots[usize::from(id.index)]
    }
    /// Has some port to be told something, or to tell its guest?
    pub fn have_news(&self) -> bool {
        !self.marked.is_empty() || !self.closing.is_empty()
    }
}

impl Core {
    /// Begin to close this port (see [`crate::port`], step 6). Closing twice is
    /// closing once.
    pub fn close(&mut self, port: PortId) {
        if let Some(slot) = self.ports.slots.get_mut(usize::from(port.index))
            && slot.live
            && slot.generation == port.generation
            && !slot.closing
        {
            slot.closing = true;
            self.ports.closing_count += 1;
            self.ports.closing.push(port);
        }
    }

    pub(super) fn mark(&mut self, id: PortId) {
        self.mark_index(usize::from(id.index));
    }
    pub(super) fn mark_index(&mut self, index: usize) {
        let slot = &mut self.ports.slots[index];
        if !slot.marked {
            slot.marked = true;
            self.ports.marked.push(index as u16);
        }
    }
    pub(super) fn next_marked(&mut self) -> Option<PortId> {
        let index = self.ports.marked.pop()?;
        let slot = &mut self.ports.slots[usize::from(index)];
        slot.marked = false;
        Some(PortId { index, generation: slot.generation })
    }

    /// A number for a new port. `None` when there are too many.
    pub(super) fn allocate_port(&mut self) -> Option<PortId> {
        let index = match self.ports.free.pop() {
            Some(index) => index,
            None if self.ports.slots.len() < PORTS_MAX => {
                self.ports.slots.push(PortSlot::default());
                (self.ports.slots.len() - 1) as u16
            }
            None => return None,
        };
        let slot = &mut self.ports.slots[usize::from(index)];
        let generation = slot.generation.wrapping_add(1);
        *slot = PortSlot { generation, live: true, ..PortSlot::default() };
        Some(PortId { index, generation })
    }
    /// The port serves this disk: it ends when the disk is detached.
    pub(super) fn bind(&mut self, id: PortId, disk: DiskId) {
        self.ports.slots[usize::from(id.index)].disk = Some(disk);
        if let Some(disk) = self.disks.get_mut(disk) {
            disk.ports += 1;
        }
    }
    pub(super) fn is_live(&self, id: PortId) -> bool {
        let slot = self.ports.slots.get(usize::from(id.index));
        slot.is_some_and(|s| s.live && s.generation == id.generation)
    }
    /// The ports of a disk, or of all disks.
    pub(super) fn ports_of(&self, disk: Option<DiskId>) -> Vec<PortId> {
        let of_disk = |s: &PortSlot| s.live && (disk.is_none() || s.disk == disk);
        let slots = self.ports.slots.iter().enumerate().filter(|(_, s)| of_disk(s));
        slots.map(|(i, s)| PortId { index: i as u16, generation: s.generation }).collect()
    }
    pub(super) fn sqe_ended(&mut self, id: PortId) {
        self.ports.slots[usize::from(id.index)].sqes -= 1;
    }
    pub(super) fn next_closing(&mut self) -> Option<PortId> {
        self.ports.closing.pop()
    }
    /// Ports that are closing and have nothing under way.
    pub(super) fn drained_ports(&self) -> Vec<PortId> {
        if self.ports.closing_count == 0 {
            return Vec::new();
        }
        // What is ready and not delivered is still the port's.
        let drained = |s: &PortSlot| s.live && s.closing && s.sqes == 0 && s.jobs == 0;
        let slots = self.ports.slots.iter().enumerate().filter(|(_, s)| drained(s));
        slots.map(|(i, s)| PortId { index: i as u16, generation: s.generation }).collect()
    }
    pub(super) fn release_port(&mut self, id: PortId) {
        let slot = &mut self.ports.slots[usize::from(id.index)];
        slot.live = false;
        if let Some(disk) = slot.disk.and_then(|disk| self.disks.get_mut(disk)) {
            disk.ports -= 1;
        }
        self.ports.closing_count -= 1;
        self.ports.free.push(id.index);
    }
}
