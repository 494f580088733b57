//! Slots of connections: the most at once, of each disk and of all together; and the way to hang up on
//! all of them.

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

// Slots by disk. What one disk's clients take, no other disk's clients and no VMM lack.

/// Most connections of one kind, VMMs or NBD clients, of one disk at once.
const DISK_MAX: usize = 64;
/// Number of them that do not count in the total: they are there whatever other disks' clients do.
const RESERVED: usize = 4;
/// Most NBD clients at a disk's socket that have not negotiated yet. They have little time to.
const DISK_NEGOTIATING_MAX: usize = 32;

/// A connection's place: among those of its disk, and among those reserved or those of all.
pub type Place = (ConnectionSlot, ConnectionSlot);

/// Places for connections of one kind of one disk.
struct Places {
    all: Arc<ConnectionSlots>,
    reserved: Arc<ConnectionSlots>,
}

/// Places for the connections of one disk.
pub struct DiskPlaces {
    vmms: Places,
    clients: Places,
    negotiating: Arc<ConnectionSlots>,
    /// Processes that receive for VMMs; they may outlive their connections.
    gates: Arc<ConnectionSlots>,
}

impl Places {
    fn new() -> Places {
        let (all, reserved) = (ConnectionSlots::new(DISK_MAX), ConnectionSlots::new(RESERVED));
        Places { all, reserved }
    }

    fn take(&self, what: &str, total: &Arc<ConnectionSlots>, stream: Stream) -> Option<Place> {
        let own = self.all.take(what, Some(stream))?;
        let counted = self.reserved.try_take(None).or_else(|| total.take("the daemon", None))?;
        Some((own, counted))
    }
}

impl DiskPlaces {
    pub fn new() -> DiskPlaces {
        let negotiating = ConnectionSlots::new(DISK_NEGOTIATING_MAX);
        let gates = ConnectionSlots::new(DISK_MAX);
        DiskPlaces { vmms: Places::new(), clients: Places::new(), negotiating, gates }
    }

    /// A place for a VMM; `stream` is hung up on when the disk is detached. Beyond what is
    /// reserved for the disk it counts in `total`.
    pub fn vmm(&self, what: &str, total: &Arc<ConnectionSlots>, stream: Stream) -> Option<Place> {
        self.vmms.take(what, total, stream)
    }

    /// As [`DiskPlaces::vmm`], for a client of NBD that has asked for this disk.
    pub fn client(
        &self,
        what: &str,
        total: &Arc<ConnectionSlots>,
        stream: Stream,
    ) -> Option<Place> {
        self.clients.take(what, total, stream)
    }

    /// As [`DiskPlaces::client`], for one at the disk's socket that has not asked yet.
    pub fn negotiating(&self, what: &str, stream: Stream) -> Option<ConnectionSlot> {
        self.negotiating.take(what, Some(stream))
    }

    /// Write a line to the log that a client of NBD can cause at will: their number is limited.
    pub fn say(&self, text: impl FnOnce() -> String) {
        self.negotiating.say(text);
    }

    /// Number of such lines in this minute.
    #[cfg(test)]
    pub fn lines_of_minute(&self) -> u32 {
        self.negotiating.lines.of_minute()
    }

    /// A place for the process that receives for a VMM. Who detaches the disk does not wait for it.
    pub fn gate(&self, what: &str) -> Option<ConnectionSlot> {
        self.gates.take(what, None)
    }

    /// Hang up on all connections, and take no more.
    pub fn close(&self) {
        self.each(|slots| slots.close());
    }

    /// Wait until there are none.
    pub fn wait_empty(&self) {
        self.each(|slots| slots.wait_empty());
    }

    fn each(&self, what: impl Fn(&ConnectionSlots)) {
        [&self.negotiating, &self.vmms.all, &self.clients.all].into_iter().for_each(|s| what(s));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits_table;
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

    fn stream() -> Stream {
        Stream::Unix(UnixStream::pair().unwrap().0)
    }

    #[test]
    fn a_disks_clients_take_no_place_of_its_vmm_or_of_another_disk() {
        let total = ConnectionSlots::new(100);
        let disks: Vec<DiskPlaces> = (0..4).map(|_| DiskPlaces::new()).collect();
        let mut held = Vec::new();
        for disk in &disks[..3] {
            while let Some(place) = disk.client("a disk", &total, stream()) {
                held.push(place);
            }
        }
        assert_eq!(held.len(), 100 + 3 * RESERVED, "all that there is, but what is reserved");
        assert!(disks[0].negotiating("a disk", stream()).is_some());
        for disk in &disks {
            assert!(disk.vmm("a disk", &total, stream()).is_some());
        }
        let others: Vec<Place> =
            (0..RESERVED).map_while(|_| disks[3].client("another", &total, stream())).collect();
        assert_eq!(others.len(), RESERVED);
    }

    #[test]
    fn the_table_of_limits_is_that_of_the_code() {
        let all = "connections to a disk's sockets, VMMs and NBD each";
        limits_table::says(all, &DISK_MAX.to_string());
        limits_table::says("processes that receive for a disk's VMMs", &DISK_MAX.to_string());
        let negotiating = "connections to a disk's NBD socket that have not negotiated";
        limits_table::says(negotiating, &DISK_NEGOTIATING_MAX.to_string());
    }

    #[test]
    fn the_unit_has_room_for_all_threads_of_peers() {
        let unit = include_str!("../../../../share/systemd/seekway.service");
        let tasks = unit.lines().find_map(|line| line.strip_prefix("TasksMax="));
        let tasks: usize = tasks.unwrap().parse().unwrap();
        // Each process that receives for a VMM has three threads.
        let of_disk = 3 * DISK_MAX + 2 * RESERVED + DISK_NEGOTIATING_MAX;
        assert_eq!(crate::config::DISKS_MAX * of_disk, 237_568, "as its comment says");
        // A part is for what no peer has: devices, workers of io_uring.
        assert!(tasks * 19 / 20 > crate::config::DISKS_MAX * of_disk + 1024);
    }

    #[test]
    fn who_does_not_negotiate_takes_no_place_of_who_has() {
        let total = ConnectionSlots::new(100);
        let disk = DiskPlaces::new();
        let idle: Vec<_> = std::iter::from_fn(|| disk.negotiating("a disk", stream())).collect();
        assert_eq!(idle.len(), DISK_NEGOTIATING_MAX);
        assert!(disk.client("a disk", &total, stream()).is_some());
        assert!(disk.vmm("a disk", &total, stream()).is_some());
    }

    #[test]
    fn a_disk_that_leaves_hangs_up_on_all() {
        let total = ConnectionSlots::new(100);
        let disk = DiskPlaces::new();
        let vmm = disk.vmm("a disk", &total, stream()).unwrap();
        disk.close();
        assert!(disk.negotiating("a disk", stream()).is_none());
        assert!(disk.client("a disk", &total, stream()).is_none());
        drop(vmm);
        disk.wait_empty();
    }
}
