//! The detector that every guest has: a thread pinned to the vCPU sleeps until a beat
//! is due. If it wakes much later, the vCPU was away (algorithms.md, section 7).
//!
//! The sleep is one ppoll(2) with the time that is left. An absolute timer (timerfd)
//! takes two system calls more for each beat and nothing is gained: a vCPU that
//! goes away between the look at the clock and the sleep makes that beat as late as it was away.

use super::{Monitor, Preemption, Seen, Waker, sleep};
use crate::migrate::clock;
use seekway_core::units::Instant;
use seekway_vcpu::{Sign, VcpuId};
use std::io;

/// Beats on each vCPU.
#[derive(Clone, Copy, Debug)]
pub struct Heartbeat;

impl Preemption for Heartbeat {
    fn monitor(&self, vcpu: VcpuId) -> io::Result<Box<dyn Monitor>> {
        Ok(Box::new(Heart { vcpu, woken: Waker::new()?, rested: true }))
    }
}

#[derive(Debug)]
struct Heart {
    vcpu: VcpuId,
    woken: Waker,
    /// The last wait had no beat: the next one's due time is no news.
    rested: bool,
}

impl Monitor for Heart {
    fn wait(
        &mut self,
        until: Option<Instant>,
        beat: Option<Instant>,
        seen: &mut Vec<Seen>,
    ) -> io::Result<()> {
        let end = [until, beat].into_iter().flatten().min();
        sleep([self.woken.fd()], end)?;
        let now = clock::now();
        match beat {
            None => self.rested = true,
            Some(due) if now >= due => {
                let sign = Sign::Beat { due: (!self.rested).then_some(due) };
                seen.push(Seen { at: now, vcpu: self.vcpu, sign });
                self.rested = false;
            }
            Some(_) => {}
        }
        self.woken.take();
        Ok(())
    }

    fn waker(&self) -> io::Result<Waker> {
        self.woken.try_clone()
    }
}

#[cfg(test)]
mod tests {
    use super::super::thread::{here, settle};
    use super::*;
    use crate::migrate::loads::tests::Stop;
    use seekway_core::units::Nanos;

    const MS: Nanos = Nanos::from_millis(1);

    fn monitor() -> Box<dyn Monitor> {
        Heartbeat.monitor(VcpuId::new(0)).unwrap()
    }

    fn beat(monitor: &mut dyn Monitor, due: Instant) -> Seen {
        let mut seen = Vec::new();
        while seen.is_empty() {
            monitor.wait(None, Some(due), &mut seen).unwrap();
        }
        seen[0]
    }

    #[test]
    fn a_beat_comes_when_due_or_later_and_says_when_it_was() {
        let mut monitor = monitor();
        let due = clock::now() + MS;
        let first = beat(&mut *monitor, due);
        assert!(first.at >= due);
        assert_eq!(first.sign, Sign::Beat { due: None }, "nothing was asked for before");
        let on_time = (1..1000).any(|_| {
            let due = clock::now() + MS;
            let seen = beat(&mut *monitor, due);
            assert!(seen.at >= due);
            assert_eq!(seen.sign, Sign::Beat { due: Some(due) });
            seen.at.since(due) < MS
        });
        assert!(on_time, "not one of a thousand came within twice its time");
    }

    #[test]
    fn who_is_woken_early_has_not_beaten_and_one_who_rested_forgets_when_he_was_to() {
        let (mut monitor, mut seen) = (monitor(), Vec::new());
        beat(&mut *monitor, clock::now());
        let waker = monitor.waker().unwrap();
        let far = clock::now() + Nanos::from_secs(600);
        waker.wake();
        monitor.wait(None, Some(far), &mut seen).unwrap();
        let due = clock::now() + MS;
        monitor.wait(Some(due), Some(far), &mut seen).unwrap();
        assert!(clock::now() >= due && seen.is_empty());
        assert_eq!(beat(&mut *monitor, due).sign, Sign::Beat { due: Some(due) });
        waker.wake();
        monitor.wait(None, None, &mut seen).unwrap();
        assert!(seen.is_empty());
        assert_eq!(beat(&mut *monitor, due).sign, Sign::Beat { due: None });
    }

    #[test]
    fn who_waits_for_nothing_is_woken_from_another_thread() {
        let mut monitor = monitor();
        let waker = monitor.waker().unwrap();
        let waits = std::thread::spawn(move || {
            let mut seen = Vec::new();
            monitor.wait(None, None, &mut seen).map(|()| seen)
        });
        waker.wake();
        assert_eq!(waits.join().unwrap().unwrap(), []);
    }

    /// Computes with a rank above the monitor's, which is as if the vCPU were away; returns the
    /// begin and the end. None where that is not allowed.
    fn take_vcpu(vcpu: VcpuId, span: Nanos) -> Option<(Instant, Instant)> {
        settle(vcpu).unwrap();
        let above = libc::sched_param { sched_priority: 2 };
        // SAFETY: the parameter is ours, and 0 names the caller.
        let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const above) };
        let began = clock::now();
        let mut now = began;
        while set == 0 && now < began + span {
            now = clock::now();
        }
        (set == 0).then_some((began, now))
    }

    #[test]
    fn a_beat_is_late_by_as_long_as_its_vcpu_was_away() {
        const PERIOD: Nanos = Nanos::from_micros(300);
        let away = MS.scaled(5, 1);
        let vcpu = here();
        let (beats, heard) = std::sync::mpsc::channel();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let taken = std::thread::scope(|scope| {
            let end = Stop(&stop);
            scope.spawn(|| {
                settle(vcpu).unwrap();
                let (mut monitor, mut due) = (monitor(), clock::now());
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let seen = beat(&mut *monitor, due);
                    beats.send((due, seen)).unwrap();
                    due = seen.at + PERIOD;
                }
            });
            heard.recv().unwrap();
            let taken = scope.spawn(|| take_vcpu(vcpu, away)).join().unwrap();
            drop(end);
            taken
        });
        let Some((began, ended)) = taken else {
            return seekway_testing::skip("the right to use SCHED_FIFO");
        };
        drop(beats);
        let (due, back) = heard.iter().find(|(_, seen)| seen.at > began).unwrap();
        assert!(back.at >= ended, "nobody beats on a vCPU that is away");
        assert_eq!(back.sign, Sign::Beat { due: Some(due) });
        assert!(due <= began + PERIOD && back.at.since(due) >= away.saturating_sub(PERIOD));
    }
}
