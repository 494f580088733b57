//! The order in which the pending reads go that are no predicted hits, and when
//! it is made anew.
//!
//! A table ([`table`](super::table)) takes time in proportion to the square of
//! its reads. As long as it takes all that are pending, each read that arrives
//! and each request that goes by another rule makes the plan stale. With more
//! pending than a table takes, its cost would be paid for each request, while one
//! more read changes little for hundreds of others. So the plan stands then:
//!
//! - a read that arrives goes when the head passes it, or by a later plan;
//! - a plan that another rule has broken off is not made anew before half as many
//!   requests have gone as a plan takes.
//!
//! So a request pays for no more than two reads of a table.

use super::table::{Side, Table};
use seekway_core::queues::{LbaQueue, Pool, Queued};
use seekway_core::request::{Op, Request, RequestId};
use seekway_core::units::Lba;

/// The order that the last table gave, and how far it was followed.
#[derive(Default)]
pub struct Plan {
    /// Most reads in it.
    max: usize,
    table: Table,
    /// Its reads above and below the head, each nearest first.
    sides: [Vec<Queued>; 2],
    /// The reads in order; some may have gone otherwise.
    pub order: Vec<Queued>,
    /// Number of them that have been looked at.
    next: usize,
    /// Is it not to be followed any more?
    stale: bool,
    /// Reads have arrived that it does not know, though it stands.
    joined: bool,
    /// Requests that have to go before another one is made for more reads than it takes.
    rest: usize,
    /// Plans made until now, shown as the metric `plans`.
    pub made: u64,
}

impl Plan {
    /// No plan; one will take the `max` reads nearest to the head.
    pub fn new(max: usize) -> Self {
        Plan { max, stale: true, ..Plan::default() }
    }

    /// A read has joined the others.
    pub fn arrived(&mut self, reads: &LbaQueue) {
        self.joined = true;
        self.stale |= reads.len() <= self.max;
    }

    /// A request goes, by whatever rule.
    pub fn sent(&mut self) {
        self.rest = self.rest.saturating_sub(1);
    }

    /// The head has moved to where the plan did not send it.
    pub fn break_off(&mut self) {
        self.stale = true;
    }

    /// The next read, of a new plan if the old one is no longer good. Some read is
    /// pending. `None` when it is too early for a new plan.
    pub fn next(&mut self, head: Lba, reads: &LbaQueue, pool: &Pool) -> Option<RequestId> {
        if !self.stale {
            while let Some(&(lba, id)) = self.order.get(self.next) {
                // Hits and detached machines' reads are gone, and perhaps their slots
                // are taken again.
                let is_same = |r: &Request| r.op == Op::Read && r.extent.start() == lba;
                if pool.get(id).is_some_and(is_same) {
                    let passed = if self.joined { passed_between(head, lba, reads) } else { None };
                    return Some(passed.unwrap_or(id));
                }
                self.next += 1;
            }
        }
        if self.rest > 0 && reads.len() > self.max {
            return None;
        }
        self.make(head, reads);
        self.order.first().map(|&(_, id)| id)
    }

    /// A plan of the reads that are nearest to the head.
    fn make(&mut self, head: Lba, reads: &LbaQueue) {
        let mut above = reads.ascending(head).peekable();
        let mut below = reads.descending(head).peekable();
        self.table.clear();
        self.sides.iter_mut().for_each(Vec::clear);
        for _ in 0..self.max {
            let distance = |&(lba, _): &Queued| lba.distance(head).get();
            let (side, next) = match (above.peek().map(distance), below.peek().map(distance)) {
                (Some(up), Some(down)) if down < up => (Side::Below, below.next()),
                (None, Some(_)) => (Side::Below, below.next()),
                _ => (Side::Above, above.next()),
            };
            let Some(next) = next else { break };
            self.table.push(side, distance(&next));
            self.sides[side as usize].push(next);
        }
        let Plan { table, sides: [above, below], order, .. } = self;
        order.clear();
        let (mut above, mut below) = (above.iter(), below.iter());
        table.solve(|side| {
            let next = if side == Side::Above { above.next() } else { below.next() };
            order.extend(next);
        });
        (self.next, self.stale, self.joined) = (0, false, false);
        self.rest = if reads.len() > self.max { self.max / 2 } else { 0 };
        self.made += 1;
    }
}

/// The first read that the head passes on its way to `lba`.
fn passed_between(head: Lba, lba: Lba, reads: &LbaQueue) -> Option<RequestId> {
    let passed = match lba < head {
        true => reads.before(head).filter(|&(at, _)| at > lba),
        false => reads.at_or_after(head).filter(|&(at, _)| at < lba),
    };
    passed.map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_core::request::{Extent, VmId};
    use seekway_core::units::{Instant, Sectors};

    fn insert(reads: &mut LbaQueue, pool: &mut Pool, slot: u32, lba: u64) {
        let extent = Extent::new(Lba::new(lba), Sectors::new(8)).unwrap();
        let (id, vm, arrived) = (RequestId::new(slot), VmId::new(0), Instant::ZERO);
        let read = Request { id, vm, tag: None, op: Op::Read, sync: true, extent, arrived };
        reads.insert(&read);
        pool.insert(read);
    }

    #[test]
    fn a_read_in_the_slot_of_one_that_was_planned_is_another() {
        let (mut reads, mut pool, mut plan) = (LbaQueue::new(), Pool::new(), Plan::new(2));
        for (slot, lba) in [(0, 1_000), (1, 2_000), (2, 3_000), (3, 4_000)] {
            insert(&mut reads, &mut pool, slot, lba);
        }
        assert_eq!(plan.next(Lba::ZERO, &reads, &pool), Some(RequestId::new(0)));
        // It goes, the second is withdrawn, and a distant one has its slot.
        for slot in [0, 1] {
            reads.remove(&pool.take(RequestId::new(slot)));
        }
        insert(&mut reads, &mut pool, 1, 900_000);
        plan.arrived(&reads);
        let head = Lba::new(1_008);
        assert_eq!(plan.next(head, &reads, &pool), None, "too early for another plan");
        plan.sent();
        assert_eq!(plan.next(head, &reads, &pool), Some(RequestId::new(2)));
        assert_eq!(plan.made, 2);
    }
}
