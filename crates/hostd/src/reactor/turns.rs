//! Whose turn it is to take requests. Disks go round, and so do the ports of each: a guest with
//! many ports, or with much to do, does not get more turns than the others.

use crate::port::{DiskId, PortId};
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
}

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

    /// How many disks have a turn now.
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
}
