//! Descriptors that come with the bytes of a unix socket.
//!
//! Where nobody asks for them, the kernel drops them in the task that receives the bytes, and the
//! last descriptor of a file is closed there and then: that may free gigabytes, or wait for a file
//! system of the sender's for ever. A socket that takes none has them refused at the sender.

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use std::io::{self, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// `SO_PASSRIGHTS` of Linux 6.16, which `libc` does not have.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Most descriptors of a message.
const FILES_MAX: usize = 32;

/// Let nobody send descriptors to this unix socket, or, if it listens, to those that it accepts.
/// False on kernels before Linux 6.16.
pub fn refuse_on(socket: BorrowedFd<'_>) -> bool {
    set_passes(socket, 0)
}

/// The opposite, for a socket that was accepted by one that refuses them.
pub fn take_on(socket: BorrowedFd<'_>) {
    set_passes(socket, 1);
}

fn set_passes(socket: BorrowedFd<'_>, passes: libc::c_int) -> bool {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option reads an int, which is valid.
    unsafe {
        let passes = (&raw const passes).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, passes, len) == 0
    }
}

/// Receive bytes, and the descriptors that come with them. No bytes: the peer has hung up.
///
/// # Errors
/// The system's error; ENOBUFS when there is no room for all the descriptors.
pub fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: RecvFlags,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let (parts, flags) = (&mut [IoSliceMut::new(bytes)], flags | RecvFlags::CMSG_CLOEXEC);
    let received = recvmsg(socket, parts, &mut control, flags)?;
    let mut files = Vec::new();
    // Descriptors that came are ours: all are taken, so that none stays open.
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            files.extend(came);
        }
    }
    match received.flags.contains(ReturnFlags::CTRUNC) {
        true => Err(Errno::NOBUFS.into()),
        false => Ok((received.bytes, files)),
    }
}

// Advice for administrators when the system has no more descriptors, or no more of another resource.

/// The error and, if something is short, what to do about it.
pub fn told(error: &io::Error) -> String {
    let advice = match error.raw_os_error() {
        Some(libc::EMFILE) => {
            "; raise LimitNOFILE= in the daemon's unit (ulimit -n), or detach disks"
        }
        // The kernel cuts off what it has no descriptors for.
        Some(libc::ENOBUFS) => {
            "; the descriptors of a message could not be taken: raise LimitNOFILE= in the daemon's \
             unit (ulimit -n), or detach disks"
        }
        Some(libc::ENFILE) => "; raise /proc/sys/fs/file-max",
        Some(libc::ENOMEM) => "; give the daemon more memory (MemoryMax= in its unit, ulimit -v)",
        Some(libc::EAGAIN) => "; raise TasksMax= in the daemon's unit (ulimit -u), or its memory",
        _ => "",
    };
    format!("{error}{advice}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream};
    use vmm_sys_util::sock_ctrl_msg::ScmSocket;

    #[test]
    fn descriptors_are_refused_from_the_first_byte_on() {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("s")).unwrap();
        if !refuse_on(listener.as_fd()) {
            return seekway_testing::skip("SO_PASSRIGHTS (Linux 6.16)");
        }
        // Before it is accepted.
        let mut client = UnixStream::connect(folder.path().join("s")).unwrap();
        let sent = |client: &UnixStream| client.send_with_fds(&[&[1u8][..]], &[0]).is_ok();
        assert!(!sent(&client));
        client.write_all(&[2]).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert!(!sent(&client));
        let mut byte = [0];
        assert_eq!(accepted.recv_with_fd(&mut byte).unwrap().0, 1);
        assert_eq!(byte, [2], "what was refused is not there");
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(sent(&theirs) && refuse_on(ours.as_fd()) && !sent(&theirs));
        take_on(ours.as_fd());
        assert!(sent(&theirs));
    }

    #[test]
    fn what_is_short_is_said() {
        let told = |errno| told(&io::Error::from_raw_os_error(errno));
        assert!(told(libc::EMFILE).starts_with("Too many open files (os error 24); raise"));
        assert!(told(libc::ENOMEM).contains("MemoryMax="));
        assert_eq!(told(libc::EPERM), "Operation not permitted (os error 1)");
    }
}
