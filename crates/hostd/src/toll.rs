//! Wake-up cost of a disk's peers. Signalling an eventfd, and sending to a socket, runs the
//! callbacks of all who wait for it, and a peer can have thousands. Reactors measure the cost of a
//! disk's calls; while it is high, other threads make them.
//!
//! What counts is the processor time of the thread that calls. By the clock an innocent peer's call
//! takes long too where processors are busy: who is woken has the processor at once.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Wake-up cost of one disk's peers to the caller. It is paid off over time.
#[derive(Default, Debug)]
pub struct Toll {
    /// When it is paid off, in nanoseconds of [`since_start`].
    paid_at: AtomicU64,
    /// While calls take long, who makes them makes none before.
    rests_until: AtomicU64,
    /// Time of the last of those calls beyond [`QUICK`].
    last: AtomicU64,
    /// Time until which calls are measured by processor time, which costs a system call.
    suspect_until: AtomicU64,
}

/// When a call began.
pub struct Began {
    at: Instant,
    /// The thread's processor time then, if the peer is suspect.
    busy: Option<Duration>,
}

/// A call that takes no longer costs nothing.
const FREE: Duration = Duration::from_micros(50);
/// The part of a reactor's time that slow calls of one disk may take: one in this many.
pub const SHARE: u64 = 20;
/// Time that may be owed before another thread calls.
const CREDIT: Duration = Duration::from_millis(2);
/// A call of another thread that takes no longer is followed by no rest.
const QUICK: Duration = Duration::from_micros(200);
/// After a call that does, no other thread calls for this number of times its time.
pub const RESTS: u32 = 9;

/// Time of suspicion after a call that took long by the clock.
const SUSPECT: Duration = Duration::from_secs(10);

impl Toll {
    /// A call begins now.
    pub fn begin(&self, at: Instant) -> Began {
        let is_suspect = self.suspect_until.load(Ordering::Relaxed) > since_start(at);
        Began { at, busy: is_suspect.then(busy) }
    }

    /// The call is over: it is charged. The first one in [`SUSPECT`] that takes long is free.
    pub fn end(&self, began: &Began, now: Instant) {
        let took = now.saturating_duration_since(began.at);
        if took > FREE {
            self.suspect_until.store(since_start(now) + nanos(SUSPECT), Ordering::Relaxed);
            if let Some(before) = began.busy {
                self.charge(now, busy().saturating_sub(before).min(took), 1);
            }
        }
    }

    /// Charges `calls` calls that ended now and took `took` each.
    pub fn charge(&self, now: Instant, took: Duration, calls: u32) {
        if took > FREE {
            let paid_at = self.paid_at.load(Ordering::Relaxed).max(since_start(now));
            let cost = SHARE * nanos(took).saturating_mul(u64::from(calls));
            self.paid_at.store(paid_at.saturating_add(cost), Ordering::Relaxed);
        }
    }

    /// True until all calls are paid off; `now` is asked only if need be.
    pub fn is_owed(&self, now: impl FnOnce() -> Instant) -> bool {
        let paid_at = self.paid_at.load(Ordering::Relaxed);
        paid_at > 0 && paid_at > since_start(now())
    }

    /// May another thread than the reactor call now? Returns how long it has to wait, if it has to.
    pub fn rest(&self, now: Instant) -> Option<Duration> {
        let (now, until) = (since_start(now), self.rests_until.load(Ordering::Relaxed));
        if until > now {
            return Some(Duration::from_nanos(until - now));
        }
        // As if it took as long as the last one: calls of several peers do not go at once.
        let expected = u64::from(RESTS + 1) * self.last.load(Ordering::Relaxed);
        self.rests_until.store(now.saturating_add(expected), Ordering::Relaxed);
        None
    }

    /// Takes the time of another thread's call that ended now.
    pub fn called(&self, now: Instant, took: Duration) {
        let took = nanos(took.saturating_sub(QUICK));
        self.last.store(took, Ordering::Relaxed);
        let until = since_start(now).saturating_add(u64::from(RESTS).saturating_mul(took));
        self.rests_until.fetch_max(until, Ordering::Relaxed);
    }

    /// Is more owed than a reactor may spend?
    pub fn is_high(&self, now: Instant) -> bool {
        let paid_at = self.paid_at.load(Ordering::Relaxed);
        paid_at > 0 && paid_at > since_start(now) + SHARE * nanos(CREDIT)
    }
}

/// The processor time that this thread has had.
pub fn busy() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time` only; Linux has had this clock since 2.6.12.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

fn since_start(now: Instant) -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    nanos(now.saturating_duration_since(*START.get_or_init(|| now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not before the first instant of all tests, of which [`since_start`] counts.
    fn start() -> Instant {
        since_start(Instant::now());
        Instant::now()
    }

    #[test]
    fn slow_calls_of_other_threads_are_followed_by_rests() {
        let (toll, start) = (Toll::default(), start());
        let ms = Duration::from_millis;
        let after = |n| start + ms(n);
        // Quick ones by none.
        for n in 0..100 {
            assert_eq!(toll.rest(after(n)), None);
            toll.called(after(n), QUICK);
        }
        assert_eq!(toll.rest(after(100)), None);
        toll.called(after(140), ms(40) + QUICK);
        assert_eq!(toll.rest(after(150)), Some(ms(350)));
        // The next peer's begins, and those after it wait at once.
        assert_eq!(toll.rest(after(500)), None);
        assert_eq!(toll.rest(after(500)), Some(ms(400)));
        toll.called(after(540), ms(40) + QUICK);
        assert_eq!(toll.rest(after(899)), Some(ms(1)));
        assert_eq!(toll.rest(after(900)), None);
    }

    /// By the clock each of these calls takes 30 ms; this thread has next to nothing of it.
    #[test]
    fn a_call_during_which_others_had_the_processor_costs_nothing() {
        let (toll, start) = (Toll::default(), start());
        for n in 0..100 {
            let at = start + n * Duration::from_millis(40);
            toll.end(&toll.begin(at), at + Duration::from_millis(30));
            assert!(!toll.is_high(at + Duration::from_millis(30)), "call {n}");
        }
    }

    #[test]
    fn only_the_first_slow_call_is_free() {
        let (toll, start) = (Toll::default(), start());
        // What a call takes of the processor from now on.
        let call = |at: Instant| {
            let began = toll.begin(at);
            let until = busy() + Duration::from_millis(3);
            while busy() < until {
                std::hint::spin_loop();
            }
            toll.end(&began, at + Duration::from_millis(3));
        };
        call(start);
        assert!(!toll.is_owed(|| start));
        let second = start + Duration::from_secs(9);
        call(second);
        assert!(toll.is_high(second + Duration::from_millis(3)));
    }

    #[test]
    fn calls_that_take_long_are_the_reactors_for_a_part_of_its_time() {
        let (toll, start) = (Toll::default(), start());
        let ms = Duration::from_millis;
        let after = |n| start + ms(n);
        // Quick ones, however many, and one hiccup.
        (0..1000).for_each(|_| toll.charge(start, FREE, 1));
        toll.charge(after(2), ms(2), 1);
        assert!(!toll.is_high(after(2)));
        // Two of 30 ms are 1.2 s of a twentieth.
        toll.charge(after(32), ms(30), 1);
        toll.charge(after(62), ms(30), 1);
        assert!(toll.is_high(after(62)) && toll.is_high(after(1000)));
        assert!(!toll.is_high(after(1300)));
        toll.charge(after(1303), ms(3), 1);
        assert!(toll.is_high(after(1303)), "nothing is saved up");
        // One that stands for ten.
        let toll = Toll::default();
        assert!(!toll.is_owed(|| after(0)));
        toll.charge(after(0), ms(1), 10);
        assert!(toll.is_high(after(159)) && !toll.is_high(after(161)));
        assert!(toll.is_owed(|| after(199)) && !toll.is_owed(|| after(201)));
    }
}
