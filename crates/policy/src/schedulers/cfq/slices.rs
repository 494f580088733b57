//! Slices of CFQ: how long, whose turn, and what is worth waiting for.

use super::queue::{Queue, QueueId, Workload};
use super::{Cfq, SLICE, TARGET_LATENCY};
use seekway_core::request::VmId;
use seekway_core::units::{Instant, Nanos};

/// The least time that a workload is given (`CFQ_MIN_TT`).
const WORKLOAD_MIN: Nanos = Nanos::from_millis(2);

impl Cfq {
    /// `cfq_scaled_cfqq_slice`: by weight, and by `low_latency`.
    pub(super) fn slice(&self, queue: &Queue) -> Nanos {
        let busy = self.trees.busy().max(1) as u64;
        let standing = self.trees.standing().max(1) as u64;
        let weights = self.trees.weight.max(1);
        let base = SLICE[queue.sync as usize];
        let slice = base.scaled(queue.weight.saturating_mul(standing), weights);
        let slice_sync = SLICE[1];
        let round = slice_sync.scaled(busy, 1);
        if !self.config.low_latency || round <= TARGET_LATENCY {
            return slice;
        }
        let low = self.config.slice_idle.scaled(2 * slice.get(), slice_sync.get()).min(slice);
        slice.scaled(TARGET_LATENCY.get(), round.get()).max(low)
    }

    /// The key at which a queue goes back into its tree (`cfq_slice_offset`):
    /// the later, the more queues there are and the shorter its slices.
    fn key(&self, now: Instant, queue: &Queue) -> i64 {
        // The longest slice, of the highest priority, is 1.8 times the default one.
        let longest = SLICE[1].scaled(9, 5);
        let short = longest.saturating_sub(SLICE[queue.sync as usize]);
        // It stands in no tree now: those that do are the others.
        let others = self.trees.standing() as u64;
        let key = (now + short.scaled(others, 1)).as_nanos() as i64;
        key.saturating_sub(queue.residual_ns)
    }

    /// A queue has work: put it into its tree, at the back, or behind the others of its VM.
    pub(super) fn enqueue(&mut self, now: Instant, id: QueueId) {
        let vm = self.queue(id).vm;
        let others = self.trees.current(vm).is_some() || self.trees.have_waiting(vm);
        if self.config.share_by_vm && id.sync && others {
            let queue = self.queues[id.sync as usize].get_mut(id.issuer);
            return self.trees.wait(id, queue);
        }
        self.insert(now, id);
    }

    /// A queue has left the trees: the next one of its VM takes its place, at the back.
    pub(super) fn succeed(&mut self, now: Instant, vm: VmId) {
        if self.trees.current(vm).is_none()
            && let Some(next) = self.trees.next_waiting(vm)
        {
            self.trees.remove(next, self.queues[1].get_mut(next.issuer));
            self.insert(now, next);
        }
    }

    fn insert(&mut self, now: Instant, id: QueueId) {
        let key = self.key(now, self.queue(id));
        let old = self.config.old;
        let queue = self.queues[id.sync as usize].get_mut(id.issuer);
        queue.residual_ns = 0;
        let workload = if old { Workload::Sync } else { queue.workload() };
        self.trees.insert(id, queue, workload, key);
    }

    /// The active queue gives the device up (`cfq_slice_expired`); `cut`: what
    /// is left of its slice, or what it overran, counts next time.
    pub(super) fn expire(&mut self, now: Instant, cut: bool) {
        let Some(id) = self.active.take() else { return };
        self.idle_until = None;
        let whole = self.slice(self.queue(id)).get() as i64;
        let queue = self.queues[id.sync as usize].get_mut(id.issuer);
        if cut {
            let left = |end: Instant| end.as_nanos() as i64 - now.as_nanos() as i64;
            queue.residual_ns = queue.slice_end.map_or(whole, left);
        }
        self.trees.remove(id, queue);
        let (vm, has_work) = (queue.vm, !queue.sorted.is_empty());
        if has_work {
            self.enqueue(now, id);
        }
        self.succeed(now, vm);
    }

    /// Choose the workload (`choose_wl_class_and_type`) and in it the next queue.
    pub(super) fn activate_next(&mut self, now: Instant) -> Option<QueueId> {
        let stays = self.trees.count(self.serving) > 0 && now < self.workload_ends;
        if self.config.old {
            self.serving = Workload::Sync;
        } else if !stays {
            self.serving = self.trees.most_urgent()?;
            self.workload_ends = now + self.workload_time();
        }
        let id = self.trees.first(self.serving)?;
        self.queue_mut(id).begin_slice();
        self.active = Some(id);
        self.idle_until = None;
        self.slices += 1;
        Some(id)
    }

    /// Length of the turn of the workload in `serving`: its share of the target latency.
    fn workload_time(&self) -> Nanos {
        let count = self.trees.count(self.serving) as u64;
        let share = TARGET_LATENCY.scaled(count, self.trees.standing() as u64);
        let [slice_async, slice_sync] = SLICE;
        let time = match self.serving {
            Workload::Async => share.scaled(slice_async.get(), slice_sync.get()),
            _ => share.max(self.config.slice_idle.scaled(2, 1)),
        };
        time.max(WORKLOAD_MIN)
    }

    /// `cfq_should_idle`: is a queue worth waiting for?
    pub(super) fn should_idle(&self, queue: &Queue) -> bool {
        if self.idle == Nanos::ZERO || !queue.sync {
            return false;
        }
        if queue.idle_window || self.config.old {
            return queue.idle_window;
        }
        // Not by itself; but the last one of its tree keeps the tree's share.
        let tree = queue.place.map_or(queue.workload(), |(workload, ..)| workload);
        let think = &self.trees.think[tree as usize];
        let last = self.trees.count(tree) == 1 && !self.trees.have_waiting(queue.vm);
        last && !think.is_longer_than(self.idle)
    }

    /// Decides anew whether the queue is worth idling for (`cfq_update_idle_window`).
    pub(super) fn update_idle_window(&mut self, id: QueueId) {
        let (idle, old) = (self.idle, self.config.old);
        let queue = self.queue_mut(id);
        if idle == Nanos::ZERO || !old && queue.is_seeky() {
            queue.idle_window = false;
        } else if queue.think.is_known() {
            queue.idle_window = !queue.think.is_longer_than(idle);
        }
    }

    /// The active queue has run empty: wait for its issuer? (`cfq_arm_slice_timer`)
    pub(super) fn arm_idle(&mut self, now: Instant, id: QueueId) {
        let queue = self.queue(id);
        if queue.in_flight > 0 || !self.should_idle(queue) {
            return;
        }
        let left = queue.slice_end.map_or(Nanos::ZERO, |end| end.since(now));
        if queue.think.is_longer_than(left) {
            return;
        }
        let idle = if queue.is_seeky() { self.config.seeky_idle } else { self.idle };
        self.idle_until = Some(now + idle);
        self.idles += 1;
    }

    /// `cfq_should_preempt`: does a request in the queue `new` end the active slice?
    pub(super) fn should_preempt(&self, now: Instant, new: QueueId) -> bool {
        let Some(active) = self.active.map(|id| self.queue(id)) else { return false };
        let (empty, new) = (active.sorted.is_empty(), self.queue(new));
        let both_no_idle = !self.config.old
            && self.serving == Workload::SyncNoIdle
            && new.workload() == Workload::SyncNoIdle;
        new.sync && !active.sync
            || active.slice_used(now)
            || empty && (both_no_idle || !self.should_idle(active))
    }

    pub(super) fn preempt(&mut self, now: Instant, id: QueueId) {
        self.preemptions += 1;
        let before = self.active.map(|active| self.queue(active).workload());
        self.expire(now, true);
        let old = self.config.old;
        let queue = self.queues[id.sync as usize].get_mut(id.issuer);
        let workload = queue.workload();
        if before != Some(workload) {
            // Another workload: its time begins anew.
            self.workload_ends = now;
        }
        self.trees.remove(id, queue);
        let vm = queue.vm;
        if self.config.share_by_vm
            && id.sync
            && let Some(other) = self.trees.current(vm)
        {
            let other_queue = self.queues[1].get_mut(other.issuer);
            self.trees.remove(other, other_queue);
            self.trees.wait(other, other_queue);
        }
        let queue = self.queues[id.sync as usize].get_mut(id.issuer);
        let tree = if old { Workload::Sync } else { workload };
        self.trees.insert_front(now, id, queue, tree);
    }
}
