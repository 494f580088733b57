//! Workers: threads that move tasks, and may block. To change the mask of a task that is the
//! current one of an absent vCPU takes until that vCPU is back.
//!
//! Each vCPU has a few workers, pinned to it. A move is made on the vCPU on which it was
//! decided: that vCPU runs just now, so a worker there wakes at once. The lock of a vCPU's queue
//! is shared only by threads of that vCPU, none of which runs while it is away.

use super::preemption::thread::settle;
use super::waited_for;
use crate::kernel;
use seekway_vcpu::agent::WORKERS_MAX;
use seekway_vcpu::{Action, VcpuId};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Stack of a worker, in bytes: moving a task takes little.
const STACK_BYTES: usize = 128 << 10;

/// The workers of one vCPU.
pub struct Pool(Arc<Inner>);

struct Inner {
    vcpu: VcpuId,
    queue: Mutex<Queue>,
    more: Condvar,
}

/// A worker's handler of actions.
pub type Work = Box<dyn FnMut(Action) + Send>;

#[derive(Default)]
struct Queue {
    actions: VecDeque<Action>,
    /// Workers that wait for an action.
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    ending: bool,
}

impl Pool {
    /// A pool without workers.
    pub fn new(vcpu: VcpuId) -> Pool {
        Pool(Arc::new(Inner { vcpu, queue: Mutex::default(), more: Condvar::new() }))
    }

    /// Starts the workers that are not there; each gets its own `work`.
    ///
    /// # Errors
    /// There can be no more threads.
    pub fn start(&self, work: impl Fn() -> Work) -> io::Result<()> {
        let mut queue = self.0.queue();
        // The vCPU may have been here before.
        queue.ending = false;
        for _ in queue.threads.len()..WORKERS_MAX {
            let (inner, work) = (self.0.clone(), work());
            let name = format!("worker/{}", inner.vcpu.index());
            let thread = Builder::new().name(name).stack_size(STACK_BYTES);
            queue.threads.push(thread.spawn(move || inner.run(work))?);
        }
        Ok(())
    }

    /// Hands an action to a worker. Returns false if all workers are blocked: then it is not
    /// carried out. Called on the vCPU of this pool.
    pub fn submit(&self, action: Action) -> bool {
        let mut queue = self.0.queue();
        // A worker that was woken may not have taken its action yet. An action that waits for
        // blocked workers is out of date when its turn comes.
        if queue.ending || queue.idle <= queue.actions.len() {
            return false;
        }
        queue.actions.push_back(action);
        self.0.more.notify_one();
        true
    }

    /// Ends the workers, and waits until the last one has carried out its action.
    pub fn end(&self) {
        let threads = {
            let mut queue = self.0.queue();
            queue.ending = true;
            queue.actions.clear();
            std::mem::take(&mut queue.threads)
        };
        self.0.more.notify_all();
        for thread in threads {
            // A panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Inner {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        waited_for(&self.queue)
    }

    fn run(&self, mut work: Work) {
        kernel::leave_signals_to_others();
        // Where it cannot be pinned the vCPU has gone, and its pool ends soon.
        let _ = settle(self.vcpu);
        while let Some(action) = self.take() {
            work(action);
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
