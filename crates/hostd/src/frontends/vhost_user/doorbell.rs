//! The eventfds through which a guest kicks and is called. They belong to the
//! VMM as much as to us: nothing may block on them, and their flags are not ours
//! to change.
//!
//! A write to an eventfd blocks while its counter is full, and the VMM can fill
//! the counter at any time: `poll` before the write is a race, and O_NONBLOCK is
//! a flag that the VMM shares and can clear. So nothing here writes. [`Bell`]
//! lets the kernel signal the eventfd, as KVM's and vhost's own devices do:
//! `eventfd_signal` never waits, whatever the counter and the flags are.

use crate::sandbox::{self, Kind};
use crate::threads::{STACK_BYTES, spawn};
use io_uring::register::Restriction;
use io_uring::{IoUring, opcode};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::sync::{Arc, OnceLock};
use vmm_sys_util::eventfd::EventFd;

/// An eventfd of the VMM's.
#[derive(Debug)]
pub struct Doorbell(File);

impl Doorbell {
    /// Fails for what is not an eventfd: writing to anything else could block.
    pub fn new(file: File) -> io::Result<Doorbell> {
        let target = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        match target.as_os_str() == "anon_inode:[eventfd]" {
            true => Ok(Doorbell(file)),
            false => Err(io::Error::other(format!("{} is not an eventfd", target.display()))),
        }
    }

    /// Duplicates the descriptor of the eventfd.
    pub fn try_clone(&self) -> io::Result<Doorbell> {
        self.0.try_clone().map(Doorbell)
    }

    /// Signal it once; for what happens seldom. Creates a [`Bell`] each time.
    pub fn ring_once(&self) -> io::Result<()> {
        Bell::new(self).map(|mut bell| bell.ring())
    }
}

/// Signals an eventfd of the VMM's and never blocks: an io_uring of one entry
/// with which the eventfd is registered. The kernel signals the eventfd when it
/// posts a completion, so that a NOP does it: one system call.
pub struct Bell(Box<IoUring>);

/// Number of times that a NOP is handed in again after the kernel refused it for lack of memory.
const RETRIES_MAX: u32 = 16;

/// An eventfd to make a ring for, and where the ring goes.
type Wish = (Doorbell, SyncSender<io::Result<IoUring>>);
/// The thread that makes rings, once there is one.
static MAKER: OnceLock<Sender<Wish>> = OnceLock::new();

/// Start the thread that makes rings for those that may not: a connection, or a reactor, that was
/// taken over could otherwise make a ring that does everything. Called by a thread that may.
pub fn start_maker() {
    MAKER.get_or_init(|| {
        let (sender, wishes) = mpsc::channel::<Wish>();
        // Without the thread each wish fails, and VMMs are told so.
        let _ = spawn("rings", STACK_BYTES, move || {
            sandbox::enter(Kind::Rings);
            for (doorbell, reply) in wishes {
                let _ = reply.send(make_ring(&doorbell)); // who asked may have gone
            }
        });
        sender
    });
}

/// A ring that rings this bell, and does nothing else.
fn make_ring(doorbell: &Doorbell) -> io::Result<IoUring> {
    let ring = IoUring::builder().setup_r_disabled().build(1)?;
    // Refused by the kernel for what is not an eventfd.
    ring.submitter().register_eventfd(doorbell.as_raw_fd())?;
    ring.submitter().register_restrictions(&mut [Restriction::sqe_op(opcode::Nop::CODE)])?;
    ring.submitter().register_enable_rings()?;
    Ok(ring)
}

impl Bell {
    /// Fails when there is no memory or descriptor for the io_uring.
    pub fn new(doorbell: &Doorbell) -> io::Result<Bell> {
        let ring = match MAKER.get() {
            Some(maker) => {
                let (reply, made) = mpsc::sync_channel(1);
                let gone = || io::Error::other("the thread that makes rings has ended");
                maker.send((doorbell.try_clone()?, reply)).map_err(|_| gone())?;
                made.recv().map_err(|_| gone())??
            }
            None => make_ring(doorbell)?,
        };
        Ok(Bell(Box::new(ring)))
    }

    /// Add one to the eventfd's counter, as far as it goes, and wake whoever
    /// watches it.
    pub fn ring(&mut self) {
        // The last completion: the queue must not overflow.
        self.0.completion().for_each(drop);
        // SAFETY: a NOP points to nothing. A NOP that an earlier call could not
        // hand in is still there, and as good as a new one.
        let _ = unsafe { self.0.submission().push(&opcode::Nop::new().build()) };
        for _ in 0..RETRIES_MAX {
            if self.0.submit().is_ok_and(|taken| taken > 0) {
                return;
            }
        }
    }
}

impl AsRawFd for Doorbell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

// Work that the reactor's ports leave to the thread of their connection, because it may take as
// long as the VMM likes. That thread also calls guests whose calls take long (`crate::toll`).

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
    use std::os::fd::{FromRawFd, IntoRawFd};
    use std::sync::atomic::{AtomicBool, Ordering};
    use vmm_sys_util::eventfd::EventFd;

    fn file(event: &EventFd) -> File {
        // SAFETY: the clone's descriptor is handed over.
        unsafe { File::from_raw_fd(event.try_clone().unwrap().into_raw_fd()) }
    }

    /// Tells it from a poll and a write: those leave a full counter as it is, or
    /// block, and this test then does not end.
    #[test]
    fn rings_and_does_not_block_when_full() {
        let event = EventFd::new(0).unwrap();
        let doorbell = Doorbell::new(file(&event)).unwrap();
        let mut bell = Bell::new(&doorbell).unwrap();
        bell.ring();
        bell.ring();
        doorbell.try_clone().unwrap().ring_once().unwrap();
        assert_eq!(event.read().unwrap(), 3);
        event.write(u64::MAX - 1).unwrap();
        bell.ring();
        // Now nobody could write, and the kernel signals all the same.
        bell.ring();
        assert_eq!(event.read().unwrap(), u64::MAX);
    }

    /// Threads that may make no ring are given one, which does nothing but ring.
    #[test]
    fn confined_threads_have_their_rings_made() {
        start_maker();
        let event = EventFd::new(0).unwrap();
        let doorbell = Doorbell::new(file(&event)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sandbox::enter(Kind::FrontEnd);
                let mut bell = Bell::new(&doorbell).unwrap();
                bell.ring();
                let ring = &mut bell.0;
                let close = opcode::Close::new(io_uring::types::Fd(0)).build();
                // SAFETY: the entry points to nothing.
                unsafe { ring.submission().push(&close) }.unwrap();
                ring.submit_and_wait(1).unwrap();
                let answers: Vec<i32> = ring.completion().map(|cqe| cqe.result()).collect();
                assert_eq!(answers, [0, -libc::EACCES]);
            });
        });
        assert!(event.read().unwrap() >= 1);
    }

    /// The VMM fills, empties and changes the flags of the eventfd while it rings:
    /// with a poll and a write this does not end.
    #[test]
    fn a_vmm_that_plays_with_its_eventfd_does_not_stop_it() {
        let event = EventFd::new(0).unwrap();
        let mut bell = Bell::new(&Doorbell::new(file(&event)).unwrap()).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let fd = event.as_raw_fd();
                while !done.load(Ordering::Relaxed) {
                    for flags in [libc::O_NONBLOCK, 0] {
                        // SAFETY: plain system call on a descriptor that is open.
                        unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK) };
                        let _ = event.read();
                        let _ = event.write(u64::MAX - 1);
                        // SAFETY: as above.
                        unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_RDWR | flags) };
                    }
                }
            });
            for _ in 0..100_000 {
                bell.ring();
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn other_files_are_refused() {
        let error = Doorbell::new(File::open("/dev/null").unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "/dev/null is not an eventfd");
    }

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
