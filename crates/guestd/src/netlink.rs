//! Netlink sockets (netlink(7)) and the kernel's messages.
//!
//! Layouts: include/uapi/linux/netlink.h.

use crate::kernel::checked;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Of a message's header: length, type, flags, sequence, port.
pub const HEADER_BYTES: usize = 16;
/// The type of the last, or the only, message.
pub const NLMSG_DONE: u16 = 3;

/// A socket of one protocol.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl Socket {
    /// Open it, and listen to these groups.
    ///
    /// # Errors
    /// EPERM: these groups need CAP_NET_ADMIN. EPROTONOSUPPORT: the kernel has no such
    /// protocol.
    pub fn open(protocol: libc::c_int, groups: u32) -> io::Result<Socket> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: socket takes no pointers, and the descriptor it gives is ours.
        let socket = unsafe {
            let fd = checked(libc::socket(libc::AF_NETLINK, kind, protocol))?;
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: all zeroes is a valid address.
        let mut address: libc::sockaddr_nl = unsafe { mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = groups;
        let size = mem::size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address is as long as it is said to be.
        checked(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) })?;
        Ok(Socket(socket))
    }

    /// Enlarges the buffer of unread messages to `bytes`.
    pub fn make_room(&self, bytes: libc::c_int) {
        let size = size_of_val(&bytes) as libc::socklen_t;
        let set = |option| {
            // SAFETY: the value is as long as it is said to be.
            unsafe {
                let value = (&raw const bytes).cast();
                libc::setsockopt(self.fd(), libc::SOL_SOCKET, option, value, size)
            }
        };
        // Beyond the system's limit only with CAP_NET_ADMIN; as much as there may be is well.
        if set(libc::SO_RCVBUFFORCE) != 0 {
            set(libc::SO_RCVBUF);
        }
    }

    /// To be polled for input.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Send a message to the kernel.
    ///
    /// # Errors
    /// ECONNREFUSED: nobody listens there. ENOBUFS: the kernel has no memory for it.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        // SAFETY: the buffer is as long as it is said to be.
        let sent = unsafe { libc::send(self.fd(), message.as_ptr().cast(), message.len(), 0) };
        checked(sent as i64).map(drop)
    }

    /// A datagram from the kernel, if one has come.
    ///
    /// # Errors
    /// ENOBUFS: more came than the socket could hold; some is lost.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        loop {
            // SAFETY: all zeroes is a valid address.
            let mut from: libc::sockaddr_nl = unsafe { mem::zeroed() };
            let mut size = mem::size_of_val(&from) as libc::socklen_t;
            // SAFETY: buffer and address are as long as they are said to be.
            let got = unsafe {
                let buffer_at = buffer.as_mut_ptr().cast();
                let from_at = (&raw mut from).cast();
                libc::recvfrom(self.fd(), buffer_at, buffer.len(), 0, from_at, &raw mut size)
            };
            match usize::try_from(got) {
                // Other processes may send here too; the kernel's address is 0.
                Ok(len) if from.nl_pid == 0 => return Ok(Some(&buffer[..len])),
                Ok(_) => {}
                Err(_) => {
                    let error = io::Error::last_os_error();
                    match error.kind() {
                        io::ErrorKind::WouldBlock => return Ok(None),
                        io::ErrorKind::Interrupted => {}
                        _ => return Err(error),
                    }
                }
            }
        }
    }
}

/// A message of this type from this port, without flags.
pub fn message(kind: u16, port: u32, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER_BYTES + body.len());
    message.extend(((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
    message.extend([kind, 0].map(u16::to_ne_bytes).concat());
    message.extend([0, port].map(u32::to_ne_bytes).concat());
    message.extend(body);
    message
}

/// The messages in a datagram, each whole with its header. They begin at multiples of four
/// bytes. A message that is cut, and all after it, are left out.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let len = word(bytes, 0)? as usize;
        if len < HEADER_BYTES || len > bytes.len() {
            return None;
        }
        let message = &bytes[..len];
        bytes = &bytes[len.next_multiple_of(4).min(bytes.len())..];
        Some(message)
    })
}

/// The 32 bits there.
pub fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_ne_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_begin_at_multiples_of_four() {
        let (one, two) = (message(7, 2, b"abc"), message(8, 2, b""));
        let both = [&one[..], &[0], &two].concat();
        assert_eq!(messages(&both).collect::<Vec<_>>(), [&one[..], &two]);
        assert_eq!(word(&one, 12), Some(2));
    }

    proptest! {
        #[test]
        fn noise_is_no_panic_and_messages_are_not_longer_than_the_whole(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            prop_assert!(messages(&bytes).map(<[u8]>::len).sum::<usize>() <= bytes.len());
        }
    }
}
