//! Estimates a thread's time spent waiting for I/O from the kernel's counters and the thread's
//! state at each look. Pure.
//!
//! A thread is running, ready, waiting for I/O, or asleep for another reason. The kernel counts for
//! every thread how long it ran and how long it was ready, to the nanosecond. So the time in which
//! it was blocked is known, but not the reason. The last looks that found it blocked give an
//! estimate: the share of these in which it waited for I/O. Looks that found it ready say nothing:
//! a look from its own vCPU always does, because a fast disk has answered by then. (The kernel's
//! delay accounting is exact, but off by default, and does not see threads that wait for
//! asynchronous I/O.)

use seekway_core::units::Nanos;
use seekway_vcpu::VcpuId;

/// State of a thread at a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Posture {
    /// Runs, or is ready to run.
    Ready,
    /// Waits for a disk: state D, or asleep in a system call that waits for I/O under way.
    WaitsForIo,
    /// Waits for something else.
    Sleeps,
}

/// Counters of a thread at one look. The sums are over its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counters {
    /// State of the thread.
    pub posture: Posture,
    /// Where it runs, or ran last.
    pub vcpu: VcpuId,
    /// Time for which it ran.
    pub ran: Nanos,
    /// Time for which it was ready and did not run.
    pub queued: Nanos,
    /// Times that it was put on a processor.
    pub turns: u64,
    /// Bytes from and to disks, at the time they were asked for.
    pub bytes: u64,
}

/// A thread's activity between two looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// Time for which it waited for I/O.
    pub waited: Nanos,
    /// Time for which it ran.
    pub ran: Nanos,
    /// I/Os that ended, as estimated from its turns on processors.
    pub ios: u32,
    /// Time that these took together, that in earlier windows included.
    pub io_time: Nanos,
}

/// A thread's last looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Estimate {
    last: Counters,
    /// One bit for each of the last looks, the last one lowest: found waiting for I/O?
    waits: u8,
    /// The same: asleep for another reason?
    sleeps: u8,
    /// Waited for the I/O that has not ended yet.
    pending: Nanos,
}

impl Estimate {
    /// Takes the first counters; loads count from these on.
    pub fn new(first: Counters) -> Estimate {
        Estimate { last: first, waits: 0, sleeps: 0, pending: Nanos::ZERO }
    }

    /// Counters at the last look.
    pub fn last(&self) -> &Counters {
        &self.last
    }

    /// The load since the last look, which was `elapsed` ago; none if it did no I/O.
    pub fn look(&mut self, now: Counters, elapsed: Nanos) -> Option<Load> {
        let last = std::mem::replace(&mut self.last, now);
        let waits = now.posture == Posture::WaitsForIo;
        // Eight looks are remembered: 40 ms of windows of 5 ms.
        self.waits = self.waits << 1 | u8::from(waits);
        self.sleeps = self.sleeps << 1 | u8::from(now.posture == Posture::Sleeps);

        let moved = now.bytes > last.bytes;
        let ran = now.ran.saturating_sub(last.ran).min(elapsed);
        let queued = now.queued.saturating_sub(last.queued);
        let blocked = elapsed.saturating_sub(ran).saturating_sub(queued);
        if !moved && !waits {
            return None;
        }
        let turns = now.turns.saturating_sub(last.turns);
        // Its present activity is not counted yet: about as long as each turn.
        let blocked = match now.posture {
            Posture::Ready => blocked.scaled(turns, turns.saturating_add(1)),
            _ => blocked,
        };
        let [io, other] = [self.waits, self.sleeps].map(|looks| u64::from(looks.count_ones()));
        // Never found blocked: it is for I/O, which it did.
        let (io, all) = if io + other > 0 { (io, io + other) } else { (1, 1) };
        let waited = blocked.scaled(io, all);
        // It was put on a processor after each wait, for any reason.
        let ios = turns.saturating_mul(io) / all;
        self.pending = Nanos::new(self.pending.get().saturating_add(waited.get()));
        let io_time = if ios > 0 { std::mem::take(&mut self.pending) } else { Nanos::ZERO };
        Some(Load { waited, ran, ios: u32::try_from(ios).unwrap_or(u32::MAX), io_time })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Nanos = Nanos::from_millis(1);
    const WINDOW: Nanos = Nanos::from_millis(5);

    fn still(posture: Posture) -> Counters {
        let zero = Nanos::ZERO;
        let vcpu = VcpuId::new(0);
        Counters { posture, vcpu, ran: zero, queued: zero, turns: 0, bytes: 0 }
    }

    /// The load after some windows of which each adds the same.
    fn after(windows: u64, postures: &[Posture], each: Counters) -> Option<Load> {
        let mut estimate = Estimate::new(still(Posture::Ready));
        let mut load = None;
        for n in 1..=windows {
            let now = Counters {
                posture: postures[n as usize % postures.len()],
                ran: each.ran.scaled(n, 1),
                queued: each.queued.scaled(n, 1),
                turns: each.turns * n,
                bytes: each.bytes * n,
                ..each
            };
            load = estimate.look(now, WINDOW);
        }
        load
    }

    #[test]
    fn one_that_waits_most_of_its_time_is_told_from_one_that_sleeps_computes_or_is_not_let() {
        use Posture::*;
        let reads = Counters { ran: MS, turns: 40, bytes: 4096, ..still(Ready) };
        let load = after(9, &[WaitsForIo], reads).unwrap();
        assert_eq!((load.waited, load.ran, load.ios), (MS.scaled(4, 1), MS, 40));
        assert_eq!(load.io_time, load.waited);

        let serves = after(9, &[Sleeps], reads).unwrap();
        assert_eq!((serves.waited, serves.ios), (Nanos::ZERO, 0));
        let half = after(8, &[Sleeps, WaitsForIo], reads).unwrap();
        assert_eq!((half.waited, half.ios), (MS.scaled(2, 1), 20));
        // The disk is so fast that it is always found with an answer.
        let fast = after(9, &[Ready], reads).unwrap();
        assert_eq!((fast.waited, fast.ios), (MS.scaled(4 * 40, 41), 40));
        // Found so and never put on a processor: its vCPU is away.
        let away = Counters { turns: 0, ran: Nanos::ZERO, ..reads };
        assert_eq!(after(9, &[Ready], away).unwrap().waited, Nanos::ZERO);

        let computes = Counters { ran: WINDOW, ..reads };
        assert_eq!(after(9, &[Ready], computes).unwrap().waited, Nanos::ZERO);
        // Its vCPU is away, or others are before it: ready all the time.
        let queued = Counters { queued: MS.scaled(4, 1), ran: MS, ..reads };
        assert_eq!(after(9, &[WaitsForIo], queued).unwrap().waited, Nanos::ZERO);
        assert_eq!(after(9, &[Sleeps], Counters { bytes: 0, ..reads }), None);
    }

    #[test]
    fn an_io_longer_than_a_window_has_its_whole_time_when_it_ends() {
        let mut estimate = Estimate::new(still(Posture::WaitsForIo));
        let asked = Counters { bytes: 4096, ..still(Posture::WaitsForIo) };
        for _ in 0..2 {
            let load = estimate.look(asked, WINDOW).unwrap();
            assert_eq!((load.waited, load.ios, load.io_time), (WINDOW, 0, Nanos::ZERO));
        }
        let load = estimate.look(Counters { turns: 1, ..asked }, WINDOW).unwrap();
        assert_eq!((load.ios, load.io_time), (1, WINDOW.scaled(3, 1)));
        // Time that was reported once is not reported again.
        let load = estimate.look(Counters { turns: 2, ..asked }, WINDOW).unwrap();
        assert_eq!((load.ios, load.io_time), (1, WINDOW));
    }

    fn counters() -> impl Strategy<Value = Counters> {
        use Posture::*;
        let posture = prop_oneof![Just(Ready), Just(WaitsForIo), Just(Sleeps)];
        let any = any::<u64>;
        (posture, any(), any(), any(), any()).prop_map(|(posture, ran, queued, turns, bytes)| {
            let (ran, queued) = (Nanos::new(ran), Nanos::new(queued));
            Counters { posture, vcpu: VcpuId::new(0), ran, queued, turns, bytes }
        })
    }

    proptest! {
        #[test]
        fn nobody_waits_and_runs_for_longer_than_there_was_time(
            looks in prop::collection::vec((counters(), any::<u64>()), 1..20),
        ) {
            let mut estimate = Estimate::new(still(Posture::Ready));
            for (now, elapsed) in looks {
                if let Some(load) = estimate.look(now, Nanos::new(elapsed)) {
                    prop_assert!(load.ran.get() <= elapsed);
                    prop_assert!(load.waited.get() <= elapsed - load.ran.get());
                }
            }
        }
    }
}
