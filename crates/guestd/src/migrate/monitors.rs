//! One sleeping thread for each vCPU that is on line, pinned to it: it sees, lets the
//! policy hear, and hands on what that says. It waits for nothing but its vCPU.

use super::agent::Shared;
use super::preemption::thread::settle;
use super::preemption::{Monitor, Waker};
use crate::kernel;
use seekway_policy::vcpu::VcpuId;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{Builder, JoinHandle};

const STACK_BYTES: usize = 256 << 10;

/// A monitor's thread.
#[derive(Debug)]
pub struct Thread {
    waker: Waker,
    ending: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Thread {
    /// Watch a vCPU from now on.
    ///
    /// # Errors
    /// It cannot be watched, or there can be no more threads.
    pub fn start(shared: &Arc<Shared>, vcpu: VcpuId) -> io::Result<Thread> {
        let monitor = shared.preemption.monitor(vcpu)?;
        let waker = monitor.waker()?;
        shared.brain.add_waker(vcpu, Some(monitor.waker()?));
        let ending = Arc::new(AtomicBool::new(false));
        let (its_shared, its_ending) = (shared.clone(), ending.clone());
        let run = move || {
            let ended = watch(&its_shared, vcpu, monitor, &its_ending);
            if let Err(e) = ended {
                its_shared.fail(format!("watch vCPU {}: {e}", vcpu.index()));
            }
        };
        let name = format!("monitor/{}", vcpu.index());
        let thread = Builder::new().name(name).stack_size(STACK_BYTES).spawn(run)?;
        Ok(Thread { waker, ending, thread })
    }

    /// Wake it.
    pub fn wake(&self) {
        self.waker.wake();
    }

    /// It has ended by itself: its vCPU went off line, or it failed.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Have it end, and wait for that: as long as its vCPU is away.
    pub fn end(self, shared: &Shared, vcpu: VcpuId) {
        self.ending.store(true, SeqCst);
        self.waker.wake();
        // A panic was reported where it happened.
        let _ = self.thread.join();
        shared.brain.add_waker(vcpu, None);
    }
}

fn watch(
    shared: &Arc<Shared>,
    vcpu: VcpuId,
    mut monitor: Box<dyn Monitor>,
    ending: &AtomicBool,
) -> io::Result<()> {
    kernel::leave_signals_to_others();
    let rank = settle(vcpu)?;
    shared.ranked(rank);
    let (mut seen, mut actions) = (Vec::new(), Vec::new());
    while !ending.load(SeqCst) {
        let (until, beat) = shared.brain.due(vcpu);
        monitor.wait(until, beat, &mut seen)?;
        // The kernel takes who is pinned to a vCPU that goes off line elsewhere.
        if kernel::current_vcpu() != Some(vcpu) {
            return Ok(());
        }
        shared.brain.tell(vcpu, &mut seen);
        shared.brain.observe()?;
        shared.turn(vcpu, true, &mut actions);
    }
    Ok(())
}
