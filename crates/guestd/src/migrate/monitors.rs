//! Monitors: one sleeping thread for each vCPU that is on line, pinned to it. A monitor takes
//! the steps that [`seekway_vcpu::agent`] describes. It waits for nothing but its vCPU.

use super::clock;
use super::preemption::thread::settle;
use super::preemption::{Monitor, Seen, Waker};
use super::shared::{Orders, Shared};
use crate::kernel;
use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::{Sign, VcpuId};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{Builder, JoinHandle};

/// Pause before a monitor tries again an event that another thread is at, and the time between
/// dense beats (algorithms.md, section 7).
const PAUSE: Nanos = Nanos::from_micros(300);
/// As above, where the kernel keeps alarms: about a tick, which is how often it looks at them.
const RETRY: Nanos = Nanos::from_millis(4);
/// The shortest time between beats that a policy asks for.
const GAP_MIN: Nanos = Nanos::from_micros(50);
/// A beat that is this late says that its vCPU was away.
const LATE: Nanos = Nanos::from_micros(150);
/// The most beats in a row that do not give the policy a turn.
const QUIET_MAX: usize = 3;
/// Due times that have passed are moved this far ahead of the clock.
const SOON: Nanos = Nanos::from_micros(1);
const STACK_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub struct Thread {
    waker: Waker,
    ending: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Thread {
    /// Starts the monitor of a vCPU.
    ///
    /// # Errors
    /// It cannot be watched, or there can be no more threads.
    pub fn start(shared: &Arc<Shared>, vcpu: VcpuId) -> io::Result<Thread> {
        let monitor = shared.preemption.monitor(vcpu)?;
        let waker = monitor.waker()?;
        shared.coordinator.add_waker(vcpu, Some(monitor.waker()?));
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

    /// Wakes the monitor before the time that it waits for.
    pub fn wake(&self) {
        self.waker.wake();
    }

    /// Has it ended by itself? Its vCPU went off line or out of the cpuset, or it failed.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends the monitor, and waits for that: as long as its vCPU is away.
    pub fn end(self, shared: &Shared, vcpu: VcpuId) {
        self.ending.store(true, SeqCst);
        self.waker.wake();
        // A panic was reported where it happened.
        let _ = self.thread.join();
        shared.coordinator.add_waker(vcpu, None);
    }
}

fn watch(
    shared: &Arc<Shared>,
    vcpu: VcpuId,
    mut monitor: Box<dyn Monitor>,
    ending: &AtomicBool,
) -> io::Result<()> {
    kernel::leave_signals_to_others();
    let rank = match settle(vcpu) {
        // It has gone off line, or out of the agent's cpuset: tried again once a second.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return Ok(()),
        rank => rank?,
    };
    shared.set_rank(rank);
    let (mut seen, mut orders) = (Vec::new(), Orders::default());
    let mut pace = Pace::default();
    let wakeups = &shared.wakeups[vcpu.index()];
    let cpu_time = || clock::read(libc::CLOCK_THREAD_CPUTIME_ID);
    let mut before = cpu_time();
    while !ending.load(SeqCst) {
        let now = clock::now();
        let pause = pace.pause(shared.coordinator.has_alarms(), now);
        let (until, beat) = pace.due(shared.coordinator.due(vcpu, pause), now);
        monitor.wait(until, beat, &mut seen)?;
        let now = clock::now();
        let due = shared.coordinator.is_due(now);
        match until {
            // The kernel's alarm, with or without edges.
            None if due.0 || due.1 => wakeups.count(false, true, due),
            _ => wakeups.count(!seen.is_empty(), until.is_some_and(|at| at <= now), due),
        }
        shared.coordinator.woke(vcpu, now);
        // The kernel takes who is pinned to a vCPU that goes off line elsewhere.
        if kernel::current_vcpu() != Some(vcpu) {
            return Ok(());
        }
        let news = pace.saw(&seen);
        shared.coordinator.tell(vcpu, &mut seen, news);
        let observed = shared.coordinator.observe()?;
        pace.met_others = !shared.turn(vcpu, true, &mut orders) || !observed;
        let spent = cpu_time();
        shared.coordinator.spent(Nanos::new(spent - std::mem::replace(&mut before, spent)));
    }
    Ok(())
}

/// Pace of a monitor while another thread has the policy. That thread may have lost its vCPU: then
/// the policy hears nothing, and due events wait until it is back.
#[derive(Default)]
struct Pace {
    /// When this monitor beat last.
    beaten: Instant,
    /// Time to its next beat if the policy was not told of the last one.
    gap: Nanos,
    /// Beats in a row that did not give the policy a turn.
    quiet: usize,
    met_others: bool,
}

impl Pace {
    /// Time before which it does not try another thread's event again.
    fn pause(&self, has_alarms: bool, now: Instant) -> Option<Instant> {
        // That thread may have lost its vCPU: where a wake-up is dear, it is not waited for.
        let pause = if has_alarms { RETRY } else { PAUSE };
        self.met_others.then(|| now + pause)
    }

    /// Until when to sleep, and when to beat: as the timetable says, but no beat twice.
    fn due(
        &self,
        (until, beat): (Option<Instant>, Option<Instant>),
        now: Instant,
    ) -> (Option<Instant>, Option<Instant>) {
        let beat =
            beat.map(|at| if at > self.beaten { at } else { self.beaten + self.gap.max(GAP_MIN) });
        // Lateness before now is no absence: the beat was asked for too late, or this thread was at
        // work.
        let beat = beat.map(|at| at.max(now + SOON));
        (until, beat)
    }

    /// Tells whether the policy has to be told at once. Dense beats that are on time say only that
    /// nothing has happened. A monitor that took the lock for each of them would often lose its
    /// vCPU while it has the lock.
    fn saw(&mut self, seen: &[Seen]) -> bool {
        let on_time = |seen: &Seen| match seen.sign {
            Sign::Beat { due: Some(due) } => {
                seen.at.since(due) < LATE && seen.at.since(self.beaten) < PAUSE + PAUSE
            }
            _ => false,
        };
        let quiet = seen.iter().all(on_time) && self.quiet < QUIET_MAX;
        self.quiet = if quiet { self.quiet + seen.len() } else { 0 };
        for seen in seen {
            if let Sign::Beat { due } = seen.sign {
                // If the policy is not told of this one, the next comes after as long.
                let gap = due.filter(|_| quiet).map(|due| due.since(self.beaten));
                self.gap = gap.unwrap_or(PAUSE).clamp(GAP_MIN, PAUSE);
                self.beaten = seen.at;
            }
        }
        !quiet
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
        assert_eq!(pace.due((Some(at(5)), Some(at(17))), at(10)), (Some(at(5)), Some(at(17))));
        assert_eq!(
            pace.due((None, Some(at(7))), at(10)).1,
            Some(at(11)),
            "never late from the start"
        );
        assert_eq!(pace.pause(false, at(10)), None);
        pace.met_others = true;
        assert_eq!(pace.pause(false, at(10)), Some(at(310)));
        assert_eq!(pace.pause(true, at(10)), Some(at(4_010)));
    }

    #[test]
    fn dense_beats_on_time_are_no_news_for_a_while() {
        let mut pace = Pace::default();
        let mut beat = |at_us, due: Option<u64>| {
            let sign = Sign::Beat { due: due.map(at) };
            pace.saw(&[Seen { at: at(at_us), vcpu: VcpuId::new(0), sign }])
        };
        assert!(beat(10_000, None));
        assert!(beat(110_000, Some(110_000)), "a seldom one");
        let news: Vec<bool> =
            (1..6).map(|n| beat(110_000 + 300 * n, Some(110_000 + 300 * n))).collect();
        assert_eq!(news, [false, false, false, true, false]);
        assert!(beat(111_950, Some(111_800)), "late");
        assert!(pace.saw(&[Seen { at: at(112_000), vcpu: VcpuId::new(0), sign: Sign::Preempted }]));
    }

    #[test]
    fn a_beat_is_not_made_twice() {
        let mut pace = Pace::default();
        let seen = |sign| Seen { at: at(12), vcpu: VcpuId::new(0), sign };
        let seen_at = |us, due| Seen {
            at: at(us),
            vcpu: VcpuId::new(0),
            sign: Sign::Beat { due: Some(at(due)) },
        };
        pace.saw(&[seen(Sign::Resumed)]);
        assert_eq!(pace.due((None, Some(at(10))), at(8)).1, Some(at(10)));
        // The policy does not know that beat yet: the next interval equals the last.
        pace.saw(&[seen(Sign::Beat { due: Some(at(10)) })]);
        assert!(!pace.saw(&[]));
        assert_eq!(pace.due((None, Some(at(10))), at(12)).1, Some(at(62)));
        assert_eq!(pace.due((None, Some(at(13))), at(12)).1, Some(at(13)));
        // Denser ones stay dense.
        assert!(!pace.saw(&[seen_at(112, 112)]));
        assert_eq!(pace.due((None, Some(at(112))), at(112)).1, Some(at(212)));
    }
}
