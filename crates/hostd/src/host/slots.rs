//! Slots of connections: how many there may be at once, and how to hang up on all of them.

use crate::log::LineLimit;
use crate::stream::Stream;
use crate::threads::{lock, whole};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex};

/// A host may have one in this number of slots, however many other hosts there are.
const SHARES: usize = 4;
/// Steps of one connection that count: it cannot keep its slot by steps alone.
const SHOWN_MAX: u32 = 16;

/// Most connections at once, beyond those reserved for each disk.
const CONNECTIONS_MAX: usize = 1024;
/// Most clients at the NBD address of all disks that have not said which disk they want.
const NEGOTIATING_MAX: usize = 256;
/// Most clients of the control socket, and as many of metrics, at once.
pub const CLIENTS_MAX: usize = 64;
/// Most connections of browsers at once. A browser has up to six, and an answer is up to 8 MB.
const VIEWERS_MAX: usize = 32;

/// Slots of the whole daemon, by who takes them.
pub struct DaemonSlots {
    /// Connections beyond those reserved for each disk.
    pub connections: Arc<ConnectionSlots>,
    /// Those at the NBD address of all disks that have not negotiated yet. Apart: anybody may
    /// come there and say nothing.
    pub negotiating: Arc<ConnectionSlots>,
    /// Clients of the control socket.
    pub clients: Arc<ConnectionSlots>,
    /// Clients of metrics. Apart: they come over the network, and whoever
    /// manages the daemon must find room whatever they do.
    pub scrapers: Arc<ConnectionSlots>,
    /// Browsers of the web page. Apart, like those.
    pub viewers: Arc<ConnectionSlots>,
}

impl DaemonSlots {
    pub fn new() -> DaemonSlots {
        DaemonSlots {
            connections: ConnectionSlots::new(CONNECTIONS_MAX),
            negotiating: ConnectionSlots::new(NEGOTIATING_MAX),
            clients: ConnectionSlots::new(CLIENTS_MAX),
            scrapers: ConnectionSlots::new(CLIENTS_MAX),
            viewers: ConnectionSlots::new(VIEWERS_MAX),
        }
    }
}

/// Counts connections up to a maximum.
pub struct ConnectionSlots {
    max: usize,
    taken: Mutex<SlotTable>,
    freed: Condvar,
    pub(super) lines: LineLimit,
}

#[derive(Default)]
struct SlotTable {
    /// Counts connections and their steps.
    last: u64,
    /// By number.
    taken: BTreeMap<u64, Taken>,
    /// No more connections are taken.
    closed: bool,
    /// A line has said that the maximum is reached.
    logged_full: bool,
}

/// The owner of a slot.
struct Taken {
    /// A duplicate of the stream, to hang up.
    stream: Option<Stream>,
    /// Its host, where that matters.
    peer: Option<IpAddr>,
    /// Steps that it has taken of what it came for: [`ConnectionSlot::shows`].
    shown: u32,
    /// When it took the last one, or came.
    since: u64,
}

impl SlotTable {
    /// The slot that goes when a connection of `peer` comes and all `max` are taken. A host that
    /// has more than its share loses one. Among all others those that have said nothing go first,
    /// unless they are less than half: a client that has begun keeps its slot beside any number of
    /// silent ones, and one that is about to begin has time to. Of several the one goes that has
    /// been idle for longest.
    fn loser(&self, peer: Option<IpAddr>, max: usize) -> Option<u64> {
        let mut counts = BTreeMap::from([(peer, 1)]);
        self.taken.values().for_each(|taken| *counts.entry(taken.peer).or_default() += 1);
        let most = counts.values().copied().max().unwrap_or(0);
        let is_greedy = most > (max / SHARES).max(1);
        let silent = self.taken.values().filter(|taken| taken.shown == 0).count();
        let spares_silent = !is_greedy && 2 * silent < max;
        let may_lose = |taken: &Taken| !is_greedy || counts.get(&taken.peer) == Some(&most);
        let order = |taken: &Taken| ((taken.shown == 0) == spares_silent, taken.since);
        let losers = self.taken.iter().filter(|(_, taken)| may_lose(taken));
        losers.min_by_key(|(_, taken)| order(taken)).map(|(number, _)| *number)
    }

    fn tick(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn add(
        &mut self,
        slots: &Arc<ConnectionSlots>,
        stream: Option<Stream>,
        peer: Option<IpAddr>,
    ) -> ConnectionSlot {
        let number = self.tick();
        self.taken.insert(number, Taken { stream, peer, shown: 0, since: number });
        ConnectionSlot { slots: slots.clone(), number }
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

    /// As [`ConnectionSlots::take`], without a line in the log.
    pub fn try_take(self: &Arc<ConnectionSlots>, stream: Option<Stream>) -> Option<ConnectionSlot> {
        let mut taken = lock(&self.taken);
        if taken.closed || taken.taken.len() >= self.max {
            return None;
        }
        Some(taken.add(self, stream, None))
    }

    /// Take a slot for a connection that comes from `peer`. When all are taken, another connection
    /// loses its own: one of a host that has many, or one that has said nothing.
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
            && let Some(loser) = taken.loser(peer, self.max).and_then(|n| taken.taken.remove(&n))
        {
            loser.stream.iter().for_each(Stream::hang_up);
        }
        Some(taken.add(self, Some(stream), peer))
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
            taken = whole(self.freed.wait(taken));
        }
    }
}

impl ConnectionSlot {
    /// The connection has taken a step towards what it came for.
    pub fn shows(&self) {
        let mut taken = lock(&self.slots.taken);
        let now = taken.tick();
        if let Some(taken) = taken.taken.get_mut(&self.number)
            && taken.shown < SHOWN_MAX
        {
            (taken.shown, taken.since) = (taken.shown + 1, now);
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

    /// A client whose negotiation takes its time, beside hosts without number.
    #[test]
    fn who_has_begun_keeps_the_slot_beside_silent_ones() {
        let slots = ConnectionSlots::new(16);
        let connect = |host: u32| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            theirs.set_nonblocking(true).unwrap();
            let peer = Some(IpAddr::V4(Ipv4Addr::from_bits(host)));
            (slots.take_share(peer, Stream::Unix(ours)).unwrap(), theirs)
        };
        let is_open =
            |(_, theirs): &(ConnectionSlot, UnixStream)| (&*theirs).read(&mut [0]).is_err();
        let modest = connect(1);
        let _crowd: Vec<_> = (100..115).map(connect).collect();
        modest.0.shows();
        let _more: Vec<_> = (200..400).map(connect).collect();
        assert!(is_open(&modest));
        // Others say something, too, and no more: half of the slots is for those that come.
        let talking: Vec<_> = (400..800)
            .map(connect)
            .inspect(|(slot, _)| (0..2 * SHOWN_MAX).for_each(|_| slot.shows()))
            .collect();
        assert!(!is_open(&modest), "it has said nothing since");
        let late = connect(2);
        let _crowd: Vec<_> = (800..807).map(connect).collect();
        assert!(is_open(&late));
        late.0.shows();
        let _crowd: Vec<_> = (900..1000).map(connect).collect();
        assert!(is_open(&late));
        drop(talking);
    }
}
