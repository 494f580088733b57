//! The kernel's process events (`CONFIG_PROC_EVENTS`, netlink's connector): who
//! was forked and who runs another program, without a poll. Optional: it needs
//! CAP_NET_ADMIN in the first namespaces.
//!
//! Layouts: include/uapi/linux/netlink.h, connector.h, cn_proc.h.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const CN_IDX_PROC: u32 = 1;
const CN_VAL_PROC: u32 = 1;
const PROC_CN_MCAST_LISTEN: u32 = 1;
const PROC_EVENT_FORK: u32 = 1;
const PROC_EVENT_EXEC: u32 = 2;
const NLMSG_DONE: u16 = 3;
/// Header of netlink, and of the connector after it.
const HEADERS_BYTES: usize = 16 + 20;
/// `what`, `cpu`, `timestamp_ns`.
const EVENT_HEADER_BYTES: usize = 16;

/// A subscription.
#[derive(Debug)]
pub struct Connector {
    socket: OwnedFd,
}

/// What has been heard.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct News {
    /// Processes that are new or run a new program.
    pub pids: Vec<i32>,
    /// More happened than the socket could hold.
    pub lost: bool,
}

impl Connector {
    /// Subscribe.
    ///
    /// # Errors
    /// EPERM without the right to; EPROTONOSUPPORT or ECONNREFUSED where the
    /// kernel has no connector.
    pub fn open() -> io::Result<Connector> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: socket takes no pointers, and the descriptor it gives is ours.
        let socket = unsafe {
            let fd = checked(libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_CONNECTOR))?;
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: all zeroes is a valid address.
        let mut address: libc::sockaddr_nl = unsafe { mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = CN_IDX_PROC;
        let size = mem::size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address is as long as it is said to be.
        checked(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) })?;
        let ask = subscription(std::process::id());
        // SAFETY: the buffer is as long as it is said to be.
        let sent = unsafe { libc::send(socket.as_raw_fd(), ask.as_ptr().cast(), ask.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Connector { socket })
    }

    /// To be polled for input.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// All that has come, without waiting.
    ///
    /// # Errors
    /// The socket is of no more use.
    pub fn news(&self) -> io::Result<News> {
        let mut news = News::default();
        let mut buffer = [0u8; 8192];
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
            let Ok(len) = usize::try_from(got) else {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(news),
                    Some(libc::ENOBUFS) => news.lost = true,
                    Some(libc::EINTR) => {}
                    _ => return Err(error),
                }
                continue;
            };
            // Other processes may send here too; the kernel's address is 0.
            if from.nl_pid == 0 {
                news.pids.extend(parse(&buffer[..len]));
            }
        }
    }
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// "Send me process events."
fn subscription(own: u32) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADERS_BYTES + 4);
    message.extend((HEADERS_BYTES as u32 + 4).to_ne_bytes());
    message.extend(NLMSG_DONE.to_ne_bytes());
    message.extend(0u16.to_ne_bytes());
    message.extend([0u32, own, CN_IDX_PROC, CN_VAL_PROC, 0, 0].map(u32::to_ne_bytes).concat());
    message.extend(4u16.to_ne_bytes());
    message.extend(0u16.to_ne_bytes());
    message.extend(PROC_CN_MCAST_LISTEN.to_ne_bytes());
    message
}

/// The processes in a datagram of the kernel's: one message or more.
fn parse(mut bytes: &[u8]) -> Vec<i32> {
    let mut pids = Vec::new();
    while let Some(len) = word(bytes, 0).map(|len| len as usize) {
        if len < HEADERS_BYTES || len > bytes.len() {
            break;
        }
        pids.extend(process_of(&bytes[..len]));
        bytes = &bytes[len.next_multiple_of(4).min(bytes.len())..];
    }
    pids
}

/// The process of a fork or an exec; `None` for threads and other events.
fn process_of(message: &[u8]) -> Option<i32> {
    if (word(message, 16)?, word(message, 20)?) != (CN_IDX_PROC, CN_VAL_PROC) {
        return None;
    }
    let number =
        |n: usize| word(message, HEADERS_BYTES + EVENT_HEADER_BYTES + 4 * n).map(u32::cast_signed);
    match word(message, HEADERS_BYTES)? {
        // The parent's thread and process, the child's thread and process.
        PROC_EVENT_FORK => number(3).filter(|&process| number(2) == Some(process)),
        PROC_EVENT_EXEC => number(1),
        _ => None,
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(what: u32, numbers: [i32; 4]) -> Vec<u8> {
        let body = 16 + 4 * numbers.len();
        let mut message = vec![0; HEADERS_BYTES];
        message[0..4].copy_from_slice(&((HEADERS_BYTES + body) as u32).to_ne_bytes());
        message[16..20].copy_from_slice(&CN_IDX_PROC.to_ne_bytes());
        message[20..24].copy_from_slice(&CN_VAL_PROC.to_ne_bytes());
        message.extend(what.to_ne_bytes());
        message.extend([0; 12]);
        message.extend(numbers.map(i32::to_ne_bytes).concat());
        message
    }

    #[test]
    fn forks_and_programs_are_heard_and_threads_are_not() {
        assert_eq!(parse(&event(PROC_EVENT_FORK, [1, 1, 20, 20])), [20]);
        assert_eq!(parse(&event(PROC_EVENT_FORK, [1, 1, 21, 20])), [] as [i32; 0]);
        assert_eq!(parse(&event(PROC_EVENT_EXEC, [31, 30, 0, 0])), [30]);
        assert_eq!(parse(&event(0x8000_0000, [31, 30, 0, 0])), [] as [i32; 0]);
        let two =
            [event(PROC_EVENT_EXEC, [5, 5, 0, 0]), event(PROC_EVENT_EXEC, [6, 6, 0, 0])].concat();
        assert_eq!(parse(&two), [5, 6]);
    }

    proptest! {
        #[test]
        fn noise_is_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn a_cut_event_is_none(cut in 0usize..68) {
            let whole = event(PROC_EVENT_FORK, [1, 1, 20, 20]);
            prop_assert!(parse(&whole[..cut]).is_empty());
        }
    }
}
