//! Work that the reactor's ports leave to the thread of their connection, because it may take as
//! long as the VMM likes. That thread also calls guests whose calls take long ([`crate::toll`]).

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
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

    /// Returns the descriptor to poll for notes; a thread reads them from now on.
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
}
