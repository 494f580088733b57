//! A VM's queue on flash: which of its reads and writes goes next.

use super::{Class, QUANTUM};
use seekway_core::queues::{ExpiryQueue, Pool};
use seekway_core::request::{Op, Request};

/// So few writes of a VM do not keep its reads waiting for long: all go by age.
const FEW: usize = 4;

/// A VM's queue: its reads by age, and all else by age. When it has both, and more than a [`FEW`]
/// writes, both have the same cost: a read does not wait for all that the guest's write-back has
/// sent before it (Linux's kyber and deadline favour reads more), and a write that somebody waits
/// for does not wait for all reads.
#[derive(Default)]
pub struct Queue {
    reads: ExpiryQueue,
    writes: ExpiryQueue,
    /// The cost that writes may have before the next read, from -[`QUANTUM`] to [`QUANTUM`].
    credit: i64,
}

impl Queue {
    /// Its reads, or all else.
    pub fn class(&mut self, op: Op) -> &mut ExpiryQueue {
        if op == Op::Read { &mut self.reads } else { &mut self.writes }
    }
    /// As [`Queue::class`], to look at.
    pub fn of(&self, op: Op) -> &ExpiryQueue {
        if op == Op::Read { &self.reads } else { &self.writes }
    }
    /// The next request, of any class but the one that is withheld: by age while writes are few,
    /// else by credit.
    pub fn head<'a>(&self, queued: &'a Pool, withheld: Option<Class>) -> Option<&'a Request> {
        let first = |class: &ExpiryQueue| queued.get(class.head()?);
        let read = first(&self.reads).filter(|_| withheld != Some(Class::Reads));
        let write = first(&self.writes).filter(|_| withheld != Some(Class::Writes));
        match (read, write) {
            (Some(read), Some(write)) if self.writes.len() <= FEW => {
                Some(if write.arrived < read.arrived { write } else { read })
            }
            (Some(_), Some(write)) if self.credit > 0 => Some(write),
            (read, write) => read.or(write),
        }
    }
    /// Is neither a read nor anything else queued?
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }
    /// Charges a command of this cost that goes, before its request is taken out.
    pub fn charge(&mut self, op: Op, cost: u64) {
        if !self.reads.is_empty() && !self.writes.is_empty() {
            let cost = cost.min(QUANTUM) as i64;
            let credit = self.credit + if op == Op::Read { cost } else { -cost };
            self.credit = credit.clamp(-(QUANTUM as i64), QUANTUM as i64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedulers::fairway::cost;
    use seekway_core::queues::Links;
    use seekway_core::request::{Extent, RequestId, VmId};
    use seekway_core::units::{Instant, Lba, Sectors};

    /// A VM's queue, to which requests came one after another.
    fn queue(ops: &[Op]) -> (Queue, Pool, Links) {
        let (mut queue, mut queued, mut links) = (Queue::default(), Pool::new(), Links::new());
        for (n, &op) in ops.iter().enumerate() {
            let extent = Extent::new(Lba::new(n as u64 * 16), Sectors::new(8)).unwrap();
            let (id, arrived) = (RequestId::new(n as u32), Instant::from_nanos(n as u64));
            let request =
                Request { id, vm: VmId::new(0), tag: None, op, sync: true, extent, arrived };
            queue.class(op).push(&mut links, id);
            queued.insert(request);
        }
        (queue, queued, links)
    }

    /// In which order they go.
    fn order(ops: &[Op]) -> Vec<u32> {
        let (mut queue, mut queued, mut links) = queue(ops);
        std::iter::from_fn(|| {
            let Request { id, op, extent, .. } = *queue.head(&queued, None)?;
            queue.charge(op, cost::in_shares(op, cost::of_command(extent.len()), 2.0));
            queue.class(op).remove(&mut links, id);
            queued.take(id);
            Some(id.slot() as u32)
        })
        .collect()
    }

    #[test]
    fn reads_and_a_few_writes_go_by_age() {
        use Op::{Read, Write};
        let ops = [Write, Read, Write, Write, Read, Read, Write];
        assert_eq!(order(&ops), (0..7).collect::<Vec<_>>());
    }

    #[test]
    fn beside_many_writes_a_vms_reads_have_as_much_cost() {
        let ops = [vec![Op::Write; 40], vec![Op::Read; 40]].concat();
        let order = order(&ops);
        // A write costs two reads.
        let reads = order[..30].iter().filter(|&&n| n >= 40).count();
        assert!((19..=21).contains(&reads), "{order:?}");
        let is_sorted = |of: &dyn Fn(&u32) -> bool| {
            order.iter().filter(|n| of(n)).collect::<Vec<_>>().is_sorted()
        };
        assert!(is_sorted(&|&n| n < 40) && is_sorted(&|&n| n >= 40), "{order:?}");
    }
}
