//! Which connections there may be, of each disk and of all together. What one disk's clients take,
//! no other disk's clients and no VMM lack.

use super::slots::{ConnectionSlot, ConnectionSlots};
use crate::stream::Stream;
use std::sync::Arc;

/// Most connections of one kind, VMMs or NBD clients, of one disk at once.
const DISK_MAX: usize = 64;
/// Number of them that do not count in the total: they are there whatever other disks' clients do.
const RESERVED: usize = 4;
/// Most NBD clients at a disk's socket that have not negotiated yet. They have little time to.
const NEGOTIATING_MAX: usize = 32;

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
        let negotiating = ConnectionSlots::new(NEGOTIATING_MAX);
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
    use std::os::unix::net::UnixStream;

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
        limits_table::says(negotiating, &NEGOTIATING_MAX.to_string());
    }

    #[test]
    fn the_unit_has_room_for_all_threads_of_peers() {
        let unit = include_str!("../../../../share/systemd/seekway.service");
        let tasks = unit.lines().find_map(|line| line.strip_prefix("TasksMax="));
        let tasks: usize = tasks.unwrap().parse().unwrap();
        // Each process that receives for a VMM has three threads.
        let of_disk = 3 * DISK_MAX + 2 * RESERVED + NEGOTIATING_MAX;
        assert_eq!(crate::config::DISKS_MAX * of_disk, 237_568, "as its comment says");
        // A part is for what no peer has: devices, workers of io_uring.
        assert!(tasks * 19 / 20 > crate::config::DISKS_MAX * of_disk + 1024);
    }

    #[test]
    fn who_does_not_negotiate_takes_no_place_of_who_has() {
        let total = ConnectionSlots::new(100);
        let disk = DiskPlaces::new();
        let idle: Vec<_> = std::iter::from_fn(|| disk.negotiating("a disk", stream())).collect();
        assert_eq!(idle.len(), NEGOTIATING_MAX);
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
