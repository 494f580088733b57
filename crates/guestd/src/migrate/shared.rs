//! State that the threads of `migrate` share: the detector, the coordinator, the tasks and the
//! workers.

use super::coordinator::Coordinator;
use super::preemption::Preemption;
use super::preemption::thread::Rank;
use super::records::Records;
use super::selection::Selection;
use super::tasks::Tasks;
use super::wakeups::Wakeups;
use super::workers::Pool;
use super::{clock, loads::Loads, preemption::Waker, waited_for};
use crate::system::Linux;
use crate::tagger::Selection as Chosen;
use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::{Action, Outcome, TaskId, VCPUS_MAX, VcpuId, VcpuPolicy, VcpuSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// State that all threads share.
pub struct Shared {
    /// Detector of preemption.
    pub preemption: Box<dyn Preemption>,
    pub coordinator: Coordinator<Linux>,
    /// Tasks and their masks.
    pub tasks: Arc<Tasks<Linux>>,
    /// The workers of each vCPU, by its number.
    pub pools: Vec<Pool>,
    /// Moves that no worker was free for.
    pub dropped: AtomicU64,
    /// Why the monitor of each vCPU woke.
    pub wakeups: Vec<Wakeups>,
    failed: Mutex<Option<String>>,
    rank: Mutex<Option<Rank>>,
}

/// One thread's lists for a turn of the policy, which it uses again.
#[derive(Default)]
pub struct Orders {
    /// Actions that the policy asks for.
    actions: Vec<Action>,
    /// Actions that were carried out at once, or that no worker took, not yet reported to the
    /// policy.
    ended: Vec<(TaskId, Outcome)>,
}

impl Shared {
    /// `watching`: the detector of waiting for I/O, and the tasks that count.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn new(
        policy: Box<dyn VcpuPolicy>,
        preemption: Box<dyn Preemption>,
        watching: (Box<dyn Loads>, Chosen),
        records: Records,
        (online, stirred): (VcpuSet, Waker),
    ) -> io::Result<Shared> {
        let (loads, chosen) = watching;
        let tasks = Arc::new(Tasks::new(Linux, records, online, stirred));
        let own = std::process::id().cast_signed();
        let watching = (loads, Selection::new(Linux, chosen, own));
        let at = (online, clock::now as fn() -> Instant);
        let coordinator =
            Coordinator::new(policy, preemption.alarms(), watching, tasks.clone(), at)?;
        let pools = (0..VCPUS_MAX as u16).map(|n| Pool::new(VcpuId::new(n))).collect();
        let wakeups = (0..VCPUS_MAX).map(|_| Wakeups::default()).collect();
        let (dropped, failed, rank) = Default::default();
        Ok(Shared { preemption, coordinator, tasks, pools, dropped, wakeups, failed, rank })
    }

    /// Starts the workers of this vCPU: a thread with an action waits for no start.
    ///
    /// # Errors
    /// There can be no more threads.
    pub fn start_workers(self: &Arc<Shared>, vcpu: VcpuId) -> io::Result<()> {
        self.pools[vcpu.index()].start(|| {
            let (shared, mut orders) = (self.clone(), Orders::default());
            Box::new(move |action| {
                let before = clock::read(libc::CLOCK_THREAD_CPUTIME_ID);
                let outcome = shared.tasks.carry_out(&action);
                shared.coordinator.ended(action.task(), outcome);
                shared.turn(vcpu, false, &mut orders);
                let spent = clock::read(libc::CLOCK_THREAD_CPUTIME_ID) - before;
                shared.coordinator.used(Nanos::new(spent));
            })
        })
    }

    /// Gives the policy its turn, and carries out its actions: the caller those that cannot block,
    /// and workers of the vCPU `here` the rest. An action that no worker takes is reported to the
    /// policy as dropped, now or in the next turn. Returns false if another thread has the policy.
    /// `awake`: the caller is the monitor of `here`.
    pub fn turn(&self, here: VcpuId, awake: bool, orders: &mut Orders) -> bool {
        let got = self.coordinator.turn(here, awake, &mut orders.actions);
        let made = self.carry_out(here, awake, orders);
        self.coordinator.ended_all(&mut orders.ended);
        if !made {
            return got;
        }
        // The policy learns the results at once and gives its next actions. That is for workers: a
        // monitor that went on by itself would keep others from the vCPU.
        let got = self.coordinator.turn(here, awake, &mut orders.actions);
        self.carry_out(here, false, orders);
        self.coordinator.ended_all(&mut orders.ended);
        got
    }

    /// Carries out an action; true if it did. `itself`: the caller carries out actions that cannot
    /// block, and is the monitor of `here`.
    fn carry_out(&self, here: VcpuId, itself: bool, orders: &mut Orders) -> bool {
        let mut made = false;
        for action in orders.actions.drain(..) {
            // A monitor runs before the tasks of its vCPU: none of them is the current one, and the
            // move stops nobody. To wake a worker costs more than the move.
            if itself && self.tasks.is_on(action.task(), here) {
                orders.ended.push((action.task(), self.tasks.carry_out(&action)));
                made = true;
            } else if !self.pools[here.index()].submit(action) {
                self.dropped.fetch_add(1, Relaxed);
                orders.ended.push((action.task(), Outcome::Dropped));
            }
        }
        made
    }

    /// A thread cannot go on: then nothing can.
    pub fn fail(&self, message: String) {
        *waited_for(&self.failed) = Some(message);
    }

    /// Why a thread could not go on, once.
    pub fn failure(&self) -> Option<String> {
        waited_for(&self.failed).take()
    }

    /// Monitors are scheduled so.
    pub fn set_rank(&self, rank: Rank) {
        *waited_for(&self.rank) = Some(rank);
    }

    /// Scheduling of the monitors; `None` before the first has started.
    pub fn rank(&self) -> Option<Rank> {
        *waited_for(&self.rank)
    }
}
