//! What the reactor's ports leave to the thread of their connection: whatever may take as long as
//! the VMM likes.
//!
//! Signalling an eventfd runs the callbacks of all who wait for it, and a VMM can have thousands.
//! A [`Toll`] measures what the calls of a disk take; where they take long, the connection's thread
//! calls the guest, and seldom enough to leave the processor to others.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use vmm_sys_util::eventfd::EventFd;

/// The guest of this queue is to be called.
pub const CALL: u8 = 1;
/// The queue has stopped because of its guest: its VMM is to be told.
pub const BROKEN: u8 = 2;

/// Notes about the queues of a connection.
pub struct Notes {
    queues: Box<[AtomicU8]>,
    wake: Option<EventFd>,
    /// A thread reads them.
    has_reader: AtomicBool,
}

impl Notes {
    pub fn new(queues: u16) -> Arc<Notes> {
        let wake = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC).ok();
        let queues = (0..queues).map(|_| AtomicU8::new(0)).collect();
        Arc::new(Notes { queues, wake, has_reader: AtomicBool::new(false) })
    }

    /// What to poll for them: a thread reads them from now on.
    pub fn read(&self) -> io::Result<RawFd> {
        let out_of_descriptors = || io::Error::from_raw_os_error(libc::EMFILE);
        let fd = self.wake.as_ref().ok_or_else(out_of_descriptors)?.as_raw_fd();
        self.has_reader.store(true, Ordering::Relaxed);
        Ok(fd)
    }

    /// Does a thread read them?
    pub fn has_reader(&self) -> bool {
        self.has_reader.load(Ordering::Relaxed)
    }

    /// Leave a note about a queue. Does not wait: the eventfd is the daemon's own.
    pub fn leave(&self, queue: u16, note: u8) {
        self.queues[usize::from(queue)].fetch_or(note, Ordering::Release);
        if let Some(wake) = &self.wake {
            let _ = wake.write(1); // full: it is awake
        }
    }

    /// The notes are looked at: the next one wakes again.
    pub fn seen(&self) {
        if let Some(wake) = &self.wake {
            let _ = wake.read(); // nothing there
        }
    }

    /// Take a note about this queue away. Was there one?
    pub fn take(&self, queue: usize, note: u8) -> bool {
        let notes = &self.queues[queue];
        notes.load(Ordering::Relaxed) & note != 0
            && notes.fetch_and(!note, Ordering::Acquire) & note != 0
    }
}

/// What calls of one disk's guests cost whoever calls. It is paid off over time.
#[derive(Default)]
pub struct Toll {
    /// When it is paid off, in nanoseconds of [`since_start`].
    paid_at: AtomicU64,
}

/// A call that takes no longer costs nothing.
const FREE: Duration = Duration::from_micros(50);
/// The part of a reactor's time that slow calls of one disk may take: one in this many.
const SHARE: u64 = 20;
/// So much may be owed before another thread calls.
const CREDIT: Duration = Duration::from_millis(2);

impl Toll {
    /// A call took from `began` to `ended`.
    pub fn charge(&self, began: Instant, ended: Instant) {
        let took = ended - began;
        if took > FREE {
            let paid_at = self.paid_at.load(Ordering::Relaxed).max(since_start(ended));
            self.paid_at.store(paid_at + SHARE * nanos(took), Ordering::Relaxed);
        }
    }

    /// Is more owed than a reactor may spend?
    pub fn is_high(&self, now: Instant) -> bool {
        let paid_at = self.paid_at.load(Ordering::Relaxed);
        paid_at > 0 && paid_at > since_start(now) + SHARE * nanos(CREDIT)
    }
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

    #[test]
    fn a_note_is_taken_once_and_wakes_its_reader() {
        let notes = Notes::new(3);
        notes.leave(2, CALL);
        notes.leave(2, BROKEN);
        assert_eq!(notes.wake.as_ref().unwrap().read().unwrap(), 2);
        assert!(!notes.take(1, CALL) && notes.take(2, CALL) && !notes.take(2, CALL));
        assert!(notes.take(2, BROKEN));
    }

    #[test]
    fn calls_that_take_long_are_the_reactors_for_a_part_of_its_time() {
        let (toll, start) = (Toll::default(), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        // Quick ones, however many, and one hiccup.
        (0..1000).for_each(|_| toll.charge(start, start + FREE));
        toll.charge(start, after(2));
        assert!(!toll.is_high(after(2)));
        // Two of 30 ms are 1.2 s of a twentieth.
        toll.charge(after(2), after(32));
        toll.charge(after(32), after(62));
        assert!(toll.is_high(after(62)) && toll.is_high(after(1000)));
        assert!(!toll.is_high(after(1300)));
        toll.charge(after(1300), after(1303));
        assert!(toll.is_high(after(1303)), "nothing is saved up");
    }
}
