//! Moves are made by threads that may block: to change where a task may run that is the
//! current one of an absent vCPU takes until that vCPU is back.
//!
//! Each vCPU has a few of them, pinned to it. A move is made by one on the vCPU on which it
//! was decided: that one runs just now, and wakes at once. So the lock of a vCPU's queue is
//! shared only by threads of that vCPU, none of which runs while it is away.

use super::agent::Shared;
use super::preemption::thread::settle;
use crate::kernel;
use seekway_policy::vcpu::{Action, Outcome, TaskId, VcpuId};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Workers of one vCPU: moves that may be blocked at a time.
const WORKERS_MAX: usize = 4;
/// Workers need little.
const STACK_BYTES: usize = 128 << 10;

/// The workers of one vCPU.
pub struct Pool {
    vcpu: VcpuId,
    queue: Mutex<Queue>,
    more: Condvar,
}

#[derive(Default)]
struct Queue {
    actions: VecDeque<Action>,
    /// Workers that wait for an action.
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    ending: bool,
}

impl Pool {
    /// No worker yet.
    pub fn new(vcpu: VcpuId) -> Pool {
        Pool { vcpu, queue: Mutex::default(), more: Condvar::new() }
    }

    /// Start the workers: whoever has a move made waits for no thread to be started.
    ///
    /// # Errors
    /// There can be no more threads.
    pub fn prepare(self: &Arc<Pool>, shared: &Arc<Shared>) -> io::Result<()> {
        let mut queue = self.queue();
        // The vCPU may have been here before.
        queue.ending = false;
        (queue.threads.len()..WORKERS_MAX).try_for_each(|_| self.start(&mut queue, shared))
    }

    /// Have it done; on the vCPU of this pool. False if all workers are blocked: then it is
    /// not going to be done.
    pub fn submit(&self, action: Action) -> bool {
        let mut queue = self.queue();
        // Who is woken has not taken anything yet. One that waits for workers that are blocked
        // is out of date when its turn comes.
        if queue.ending || queue.idle <= queue.actions.len() {
            return false;
        }
        queue.actions.push_back(action);
        self.more.notify_one();
        true
    }

    /// No worker takes an action any more; wait until the last one has made its own.
    pub fn end(&self) {
        let threads = {
            let mut queue = self.queue();
            queue.ending = true;
            queue.actions.clear();
            std::mem::take(&mut queue.threads)
        };
        self.more.notify_all();
        for thread in threads {
            // A panic was reported where it happened.
            let _ = thread.join();
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(self: &Arc<Pool>, queue: &mut Queue, shared: &Arc<Shared>) -> io::Result<()> {
        let (pool, shared) = (self.clone(), shared.clone());
        let name = format!("worker/{}", self.vcpu.index());
        let thread = Builder::new().name(name).stack_size(STACK_BYTES);
        queue.threads.push(thread.spawn(move || pool.work(&shared))?);
        Ok(())
    }

    fn work(self: &Arc<Pool>, shared: &Arc<Shared>) {
        kernel::leave_signals_to_others();
        // Where it cannot be pinned the vCPU has gone, and its pool ends soon.
        let _ = settle(self.vcpu);
        let mut said = Said::default();
        while let Some(action) = self.take() {
            let outcome = shared.book.carry_out(&action);
            shared.brain.ended(action.task(), outcome);
            shared.turn(self.vcpu, false, &mut said);
        }
    }

    fn take(&self) -> Option<Action> {
        let mut queue = self.queue();
        loop {
            if queue.ending {
                return None;
            }
            if let Some(action) = queue.actions.pop_front() {
                return Some(action);
            }
            queue.idle += 1;
            queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }
}

/// What the policy has said, on its way, and what of it is not going to be done.
#[derive(Default)]
pub struct Said {
    /// To be done.
    pub actions: Vec<Action>,
    /// Not done.
    pub dropped: Vec<(TaskId, Outcome)>,
}

/// Have it done by workers of this vCPU; what cannot be is said to the policy, now or with the
/// next.
pub fn dispatch(shared: &Arc<Shared>, here: VcpuId, said: &mut Said) {
    for action in said.actions.drain(..) {
        if !shared.pools[here.index()].submit(action) {
            shared.dropped.fetch_add(1, Relaxed);
            said.dropped.push((action.task(), Outcome::Dropped));
        }
    }
    shared.brain.ended_all(&mut said.dropped);
}
