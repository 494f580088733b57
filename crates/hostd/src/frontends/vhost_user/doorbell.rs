//! The eventfds through which a guest kicks and is called. They belong to the
//! VMM as much as to us: nothing may block on them, and their flags are not ours
//! to change.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

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

    /// The same eventfd under another descriptor.
    pub fn try_clone(&self) -> io::Result<Doorbell> {
        self.0.try_clone().map(Doorbell)
    }

    /// Make whoever watches it look.
    pub fn ring(&self) {
        let fd = self.0.as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
        // An eventfd whose counter is full would block the write, and with it all
        // guests of this reactor. Only its VMM can have filled it, and then it
        // does not need us to see that something is there.
        // SAFETY: one entry.
        let writable = unsafe { libc::poll(&mut poll, 1, 0) } == 1;
        if writable && poll.revents & libc::POLLOUT != 0 {
            let one = 1u64.to_ne_bytes();
            // SAFETY: eight bytes. Nothing can be done about an error: the VMM
            // has closed its end of something, and will be gone.
            unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
        }
    }
}

impl AsRawFd for Doorbell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{FromRawFd, IntoRawFd};
    use vmm_sys_util::eventfd::EventFd;

    fn file(event: &EventFd) -> File {
        // SAFETY: the clone's descriptor is handed over.
        unsafe { File::from_raw_fd(event.try_clone().unwrap().into_raw_fd()) }
    }

    #[test]
    fn rings_and_does_not_block_when_full() {
        let event = EventFd::new(0).unwrap();
        let doorbell = Doorbell::new(file(&event)).unwrap();
        doorbell.ring();
        doorbell.try_clone().unwrap().ring();
        assert_eq!(event.read().unwrap(), 2);
        event.write(u64::MAX - 1).unwrap();
        doorbell.ring();
        assert_eq!(event.read().unwrap(), u64::MAX - 1);
    }

    #[test]
    fn other_files_are_refused() {
        let error = Doorbell::new(File::open("/dev/null").unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "/dev/null is not an eventfd");
    }
}
