//! Slots of connections: how many there may be at once, and how to hang up on all of them.

use crate::log::LineLimit;
use crate::stream::Stream;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Counts connections up to a maximum.
pub struct ConnectionSlots {
    max: usize,
    taken: Mutex<SlotTable>,
    freed: Condvar,
    pub(super) lines: LineLimit,
}

#[derive(Default)]
struct SlotTable {
    last: u64,
    /// By number, so that older ones come first.
    taken: BTreeMap<u64, Taken>,
    /// No more connections are taken.
    closed: bool,
    /// It has been logged that the maximum is reached.
    logged_full: bool,
}

/// Who has a slot.
struct Taken {
    /// A duplicate of the stream, to hang up.
    stream: Option<Stream>,
    /// Its host, where that matters.
    peer: Option<IpAddr>,
}

impl SlotTable {
    /// The oldest slot of the peer that has the most, which may be `peer` with one more.
    fn oldest_of_most(&self, peer: Option<IpAddr>) -> Option<u64> {
        let mut counts = BTreeMap::from([(peer, 1)]);
        self.taken.values().for_each(|taken| *counts.entry(taken.peer).or_default() += 1);
        let most = counts.values().copied().max();
        let loses = |taken: &Taken| counts.get(&taken.peer).copied() == most;
        self.taken.iter().find(|(_, taken)| loses(taken)).map(|(number, _)| *number)
    }

    fn add(&mut self, slots: &Arc<ConnectionSlots>, taken: Taken) -> ConnectionSlot {
        self.last += 1;
        self.taken.insert(self.last, taken);
        ConnectionSlot { slots: slots.clone(), number: self.last }
    }
}

/// One counted connection; dropping this frees its slot.
pub struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    number: u64,
}

impl ConnectionSlots {
    /// Slots for `max` connections.
    pub fn new(max: usize) -> Arc<ConnectionSlots> {
        let (taken, freed, lines) = (Mutex::default(), Condvar::new(), LineLimit::default());
        Arc::new(ConnectionSlots { max, taken, freed, lines })
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
            self.say(|| format!("{what}: {} connections, no more are accepted", self.max));
        }
        slot
    }

    /// Write a line to the log that whoever connects can cause at will: their number is limited.
    pub fn say(&self, text: impl FnOnce() -> String) {
        self.lines.say(text);
    }

    /// The same as [`ConnectionSlots::take`], without a word to the log.
    pub fn try_take(self: &Arc<ConnectionSlots>, stream: Option<Stream>) -> Option<ConnectionSlot> {
        let mut taken = lock(&self.taken);
        if taken.closed || taken.taken.len() >= self.max {
            return None;
        }
        Some(taken.add(self, Taken { stream, peer: None }))
    }

    /// Take a slot for a connection that comes from `peer`. When all are taken, the peer that has
    /// the most loses its oldest connection: what one host does costs others no slot.
    pub fn take_share(
        self: &Arc<ConnectionSlots>,
        peer: Option<IpAddr>,
        stream: Stream,
    ) -> Option<ConnectionSlot> {
        let mut taken = lock(&self.taken);
        if taken.closed {
            return None;
        }
        if taken.taken.len() >= self.max
            && let Some(loser) = taken.oldest_of_most(peer).and_then(|n| taken.taken.remove(&n))
        {
            loser.stream.iter().for_each(Stream::hang_up);
        }
        Some(taken.add(self, Taken { stream: Some(stream), peer }))
    }

    /// Hang up on all connections, and take no more.
    pub fn close(&self) {
        let mut taken = lock(&self.taken);
        taken.closed = true;
        taken.taken.values().filter_map(|t| t.stream.as_ref()).for_each(Stream::hang_up);
    }

    /// Wait until no slot is taken.
    pub fn wait_empty(&self) {
        let mut taken = lock(&self.taken);
        while !taken.taken.is_empty() {
            taken = self.freed.wait(taken).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = lock(&self.slots.taken);
        taken.taken.remove(&self.number);
        taken.logged_full = false;
        self.slots.freed.notify_all();
    }
}

/// Lock a mutex whose data is whole at every point where its holder could panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::Ipv4Addr;
    use std::os::unix::net::UnixStream;

    #[test]
    fn who_has_the_most_slots_loses_the_oldest() {
        let slots = ConnectionSlots::new(8);
        let peer = |n| Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)));
        let connect = |n| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            theirs.set_nonblocking(true).unwrap();
            (slots.take_share(peer(n), Stream::Unix(ours)).unwrap(), theirs)
        };
        let is_open = |(_, theirs): &(ConnectionSlot, UnixStream)| {
            (&*theirs).read(&mut [0]).is_err() // nothing has come; 0 bytes are the end
        };
        let greedy: Vec<_> = (0..20).map(|_| connect(1)).collect();
        let open = |all: &[_]| all.iter().map(is_open).collect::<Vec<_>>();
        assert_eq!(open(&greedy), [[false; 12].as_slice(), &[true; 8]].concat());
        let modest: Vec<_> = (2..6).map(connect).collect();
        assert_eq!(open(&greedy), [[false; 16].as_slice(), &[true; 4]].concat());
        let again = connect(1);
        assert_eq!(open(&greedy), [[false; 17].as_slice(), &[true; 3]].concat());
        assert_eq!(open(&modest), [true; 4]);
        assert!(is_open(&again));
        slots.close();
        assert!(slots.take_share(peer(9), Stream::Unix(UnixStream::pair().unwrap().0)).is_none());
        assert!(!is_open(&again) && modest.iter().all(|one| !is_open(one)));
        drop((greedy, modest, again));
        slots.wait_empty();
    }
}
