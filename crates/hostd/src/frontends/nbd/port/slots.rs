//! Requests between header and reply, by small numbers that are reused.

use crate::frontends::nbd::buffers::Buffer;
use crate::frontends::nbd::reply::Reply;
use crate::frontends::nbd::request::{Action, Request};
use seekway_core::request::Op;
use std::ops::{Index, IndexMut};

/// Data of a request besides its header.
pub enum Data {
    /// No data: the operation has none, or the request is refused.
    None,
    /// Data that are read or written.
    Buffer(Buffer),
    /// A reply that is made here.
    Bytes(Vec<u8>),
}

/// A request under way.
pub struct Slot {
    /// The header as the client sent it.
    pub request: Request,
    /// Action to ask of the reactor, if any.
    pub action: Action,
    /// Reply to the client when the request is done.
    pub reply: Reply,
    pub data: Data,
}

/// The requests of one connection.
pub struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    max: usize,
}

impl Slots {
    /// None yet, and never more than `max`.
    pub fn new(max: usize) -> Slots {
        Slots { slots: Vec::new(), free: Vec::new(), max }
    }

    /// Is there room for one more?
    pub fn has_room(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < self.max
    }

    /// A slot for a request without data and action. Only while there is room.
    pub fn insert(&mut self, request: Request, reply: Reply) -> u32 {
        let action = Action { op: Op::Flush, fua: false, unmap: false };
        let slot = Slot { request, action, reply, data: Data::None };
        match self.free.pop() {
            Some(index) => {
                self[index] = slot;
                index
            }
            None => {
                assert!(self.slots.len() < self.max, "more requests than slots");
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        }
    }

    /// The request is over; its data.
    pub fn remove(&mut self, index: u32) -> Data {
        self.free.push(index);
        std::mem::replace(&mut self[index].data, Data::None)
    }

    /// Is no request under way?
    pub fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Is another request under way than `except`?
    pub fn is_busy(&self, except: Option<u32>) -> bool {
        self.slots.len() - self.free.len() > usize::from(except.is_some())
    }
}

impl Index<u32> for Slots {
    type Output = Slot;
    fn index(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }
}

impl IndexMut<u32> for Slots {
    fn index_mut(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[index as usize]
    }
}
