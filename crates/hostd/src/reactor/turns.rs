//! Turns of taking requests. Disks go round, and so do the ports of each: a guest with many ports,
//! or with much to do, does not get more turns than the others.

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
