//! The service trees of CFQ: which queues have work, in the order in which
//! they are to be served, by workload.

use super::queue::{Place, Queue, QueueId, Think, Workload};
use seekway_core::request::VmId;
use seekway_core::units::Instant;
use std::collections::BTreeSet;

/// A queue that is put in front goes this far before the first.
const FRONT_NS: i64 = 1_000_000_000;

#[derive(Default)]
pub(super) struct Trees {
    /// By key, then by order of entry.
    trees: [BTreeSet<(i64, u64, QueueId)>; 3],
    /// Think times of each tree as a whole.
    pub think: [Think; 3],
    entered: u64,
    /// Sum of the weights of all queues in the trees.
    pub weight: u64,
    /// The synchronous queues of each VM, by its number.
    vms: Vec<VmQueues>,
    /// Queues that wait for others of their VM.
    waiting: usize,
}

/// Where the shares are the VMs': one synchronous queue of each VM is in the trees at a time.
#[derive(Default)]
struct VmQueues {
    /// The one in the trees.
    current: Option<QueueId>,
    /// Those that have work and wait for their turn, by order of entry.
    waiting: BTreeSet<(u64, QueueId)>,
}

/// In the order that decides between equal keys.
const ALL: [Workload; 3] = [Workload::Sync, Workload::SyncNoIdle, Workload::Async];

impl Trees {
    /// Queues in one tree.
    pub fn count(&self, workload: Workload) -> usize {
        self.trees[workload as usize].len()
    }
    /// Queues in the trees.
    pub fn standing(&self) -> usize {
        self.trees.iter().map(BTreeSet::len).sum()
    }
    /// Queues with work, or idled for.
    pub fn busy(&self) -> usize {
        self.standing() + self.waiting
    }
    pub fn busy_sync(&self) -> usize {
        self.count(Workload::SyncNoIdle) + self.count(Workload::Sync) + self.waiting
    }

    /// The synchronous queue of a VM that is in the trees.
    pub fn current(&self, vm: VmId) -> Option<QueueId> {
        self.vms.get(vm.index())?.current
    }
    /// Do synchronous queues of a VM wait for their turn among each other?
    pub fn have_waiting(&self, vm: VmId) -> bool {
        self.vms.get(vm.index()).is_some_and(|vm| !vm.waiting.is_empty())
    }
    /// The next of them.
    pub fn next_waiting(&self, vm: VmId) -> Option<QueueId> {
        self.vms.get(vm.index())?.waiting.first().map(|&(_, id)| id)
    }
    /// Let a queue wait behind the others of its VM.
    pub fn wait(&mut self, id: QueueId, queue: &mut Queue) {
        let entered = self.entered;
        self.vm(queue.vm).waiting.insert((entered, id));
        queue.waits = Some(self.entered);
        self.entered += 1;
        self.waiting += 1;
    }
    fn vm(&mut self, vm: VmId) -> &mut VmQueues {
        if self.vms.len() <= vm.index() {
            self.vms.resize_with(vm.index() + 1, VmQueues::default);
        }
        &mut self.vms[vm.index()]
    }

    /// Put a queue in, at `key`.
    pub fn insert(&mut self, id: QueueId, queue: &mut Queue, workload: Workload, key: i64) {
        debug_assert!(queue.place.is_none(), "queue stands in two trees");
        self.trees[workload as usize].insert((key, self.entered, id));
        queue.place = Some((workload, key, self.entered));
        self.entered += 1;
        self.weight += queue.weight;
        if id.sync {
            self.vm(queue.vm).current = Some(id);
        }
    }
    /// Put a queue in, before all others of its tree.
    pub fn insert_front(&mut self, now: Instant, id: QueueId, queue: &mut Queue, of: Workload) {
        let first = self.trees[of as usize].first().map(|&(key, ..)| key);
        let key = first.unwrap_or(now.as_nanos() as i64).saturating_sub(FRONT_NS);
        self.insert(id, queue, of, key);
    }
    /// Take a queue out, if it is in or waits.
    pub fn remove(&mut self, id: QueueId, queue: &mut Queue) {
        if let Some(entered) = queue.waits.take() {
            self.vm(queue.vm).waiting.remove(&(entered, id));
            self.waiting -= 1;
        }
        let vm = self.vm(queue.vm);
        vm.current = vm.current.filter(|current| *current != id);
        if let Some((workload, key, entered)) = queue.place.take() {
            self.remove_at(id, (workload, key, entered), queue.weight);
        }
    }
    fn remove_at(&mut self, id: QueueId, (workload, key, entered): Place, weight: u64) {
        let found = self.trees[workload as usize].remove(&(key, entered, id));
        debug_assert!(found, "queue is not where it stands");
        self.weight -= weight;
    }

    /// The queue that is next in a tree.
    pub fn first(&self, workload: Workload) -> Option<QueueId> {
        self.trees[workload as usize].first().map(|&(_, _, id)| id)
    }
    /// The tree whose first queue has the lowest key.
    pub fn most_urgent(&self) -> Option<Workload> {
        let key = |w: &Workload| self.trees[*w as usize].first().map(|&(key, ..)| key);
        ALL.into_iter().filter(|w| key(w).is_some()).min_by_key(|w| key(w))
    }
}
