//! Slots of connections: how many there may be at once, and how to hang up on all of them.

use super::sockets::Stream;
use crate::log::say;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Counts connections up to a maximum.
pub struct ConnectionSlots {
    max: usize,
    taken: Mutex<SlotTable>,
    freed: Condvar,
}

#[derive(Default)]
struct SlotTable {
    last: u64,
    /// By number: a duplicate of the stream, to hang up.
    streams: BTreeMap<u64, Option<Stream>>,
    /// No more connections are taken.
    closed: bool,
    /// It has been logged that the maximum is reached.
    logged_full: bool,
}

/// One counted connection; dropping this frees its slot.
pub struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    number: u64,
}

impl ConnectionSlots {
    /// Slots for `max` connections.
    pub fn new(max: usize) -> Arc<ConnectionSlots> {
        Arc::new(ConnectionSlots { max, taken: Mutex::default(), freed: Condvar::new() })
    }

    /// Take a slot for a connection to `what`; `None` when all are taken, which is logged once
    /// until one is free again.
    pub fn take(
        self: &Arc<ConnectionSlots>,
        what: &str,
        stream: Option<Stream>,
    ) -> Option<ConnectionSlot> {
        let slot = self.try_take(stream);
        let mut taken = lock(&self.taken);
        if slot.is_none() && !taken.closed && !std::mem::replace(&mut taken.logged_full, true) {
            say(&format!("{what}: {} connections, no more are accepted", self.max));
        }
        slot
    }

    /// The same without a word to the log.
    pub fn try_take(self: &Arc<ConnectionSlots>, stream: Option<Stream>) -> Option<ConnectionSlot> {
        let mut taken = lock(&self.taken);
        if taken.closed || taken.streams.len() >= self.max {
            return None;
        }
        taken.last += 1;
        let number = taken.last;
        taken.streams.insert(number, stream);
        Some(ConnectionSlot { slots: self.clone(), number })
    }

    /// Hang up on all connections, and take no more.
    pub fn close(&self) {
        let mut taken = lock(&self.taken);
        taken.closed = true;
        taken.streams.values().flatten().for_each(Stream::hang_up);
    }

    /// Wait until no slot is taken.
    pub fn wait_empty(&self) {
        let mut taken = lock(&self.taken);
        while !taken.streams.is_empty() {
            taken = self.freed.wait(taken).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = lock(&self.slots.taken);
        taken.streams.remove(&self.number);
        taken.logged_full = false;
        self.slots.freed.notify_all();
    }
}

/// Lock a mutex whose data is whole at every point where its holder could panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
