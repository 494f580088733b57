//! One sleeping thread for each vCPU that is on line, pinned to it: it sees, lets the
//! policy hear, and hands on what that says. It waits for nothing but its vCPU.

use super::agent::Shared;
use super::clock;
use super::preemption::thread::settle;
use super::preemption::{Monitor, Seen, Waker};
use crate::kernel;
use seekway_policy::units::{Instant, Nanos};
use seekway_policy::vcpu::{Sign, VcpuId};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{Builder, JoinHandle};

/// Until what somebody else is at is looked at again.
const PAUSE: Nanos = Nanos::from_micros(300);
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
    let mut pace = Pace::default();
    while !ending.load(SeqCst) {
        let (until, beat) = pace.due(shared.brain.due(vcpu), clock::now());
        monitor.wait(until, beat, &mut seen)?;
        // The kernel takes who is pinned to a vCPU that goes off line elsewhere.
        if kernel::current_vcpu() != Some(vcpu) {
            return Ok(());
        }
        pace.saw(&seen);
        shared.brain.tell(vcpu, &mut seen);
        let observed = shared.brain.observe()?;
        pace.met_others = !shared.turn(vcpu, true, &mut actions) || !observed;
    }
    Ok(())
}

/// Whoever has the brain's lock may lose its vCPU with it. Meanwhile nothing is heard, and what
/// is due stays due: the others go on, but no faster than this.
#[derive(Default)]
struct Pace {
    /// When this monitor beat last.
    beaten: Instant,
    met_others: bool,
}

impl Pace {
    /// What is due, until when and the beat, but not once more what was done already.
    fn due(
        &self,
        (until, beat): (Option<Instant>, Option<Instant>),
        now: Instant,
    ) -> (Option<Instant>, Option<Instant>) {
        let until = until.map(|at| if self.met_others { at.max(now + PAUSE) } else { at });
        let beat = beat.map(|at| if at > self.beaten { at } else { self.beaten + PAUSE });
        (until, beat)
    }

    fn saw(&mut self, seen: &[Seen]) {
        let beats = seen.iter().filter(|seen| matches!(seen.sign, Sign::Beat { .. }));
        self.beaten = beats.map(|seen| seen.at).max().unwrap_or(self.beaten);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    #[test]
    fn what_is_due_and_cannot_be_done_is_not_tried_at_once() {
        let mut pace = Pace::default();
        assert_eq!(pace.due((Some(at(5)), Some(at(7))), at(10)), (Some(at(5)), Some(at(7))));
        pace.met_others = true;
        assert_eq!(pace.due((Some(at(5)), None), at(10)).0, Some(at(310)));
        assert_eq!(pace.due((Some(at(900)), None), at(10)).0, Some(at(900)));
    }

    #[test]
    fn a_beat_is_not_made_twice() {
        let mut pace = Pace::default();
        let seen = |sign| Seen { at: at(12), vcpu: VcpuId::new(0), sign };
        pace.saw(&[seen(Sign::Resumed)]);
        assert_eq!(pace.due((None, Some(at(10))), at(12)).1, Some(at(10)));
        // Nobody has heard that one yet: what is asked for is what was made.
        pace.saw(&[seen(Sign::Beat { due: Some(at(10)) })]);
        pace.saw(&[]);
        assert_eq!(pace.due((None, Some(at(10))), at(12)).1, Some(at(312)));
        assert_eq!(pace.due((None, Some(at(13))), at(12)).1, Some(at(13)));
    }
}
