//! The kernel's process events (`CONFIG_PROC_EVENTS`, netlink's connector): who
//! was forked and who runs another program, without a poll. Optional: it needs
//! CAP_NET_ADMIN in the first namespaces.
//!
//! Layouts: include/uapi/linux/connector.h, cn_proc.h.

use crate::netlink::{HEADER_BYTES, NLMSG_DONE, Socket, message, messages, word};
use std::io;
use std::os::fd::RawFd;

const CN_IDX_PROC: u32 = 1;
const CN_VAL_PROC: u32 = 1;
const PROC_CN_MCAST_LISTEN: u32 = 1;
const PROC_EVENT_FORK: u32 = 1;
const PROC_EVENT_EXEC: u32 = 2;
/// Header of netlink, and of the connector after it.
const HEADERS_BYTES: usize = HEADER_BYTES + 20;
/// `what`, `cpu`, `timestamp_ns`.
const EVENT_HEADER_BYTES: usize = 16;

/// A subscription.
#[derive(Debug)]
pub struct Connector {
    socket: Socket,
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
        let socket = Socket::open(libc::NETLINK_CONNECTOR, CN_IDX_PROC)?;
        socket.send(&subscription(std::process::id()))?;
        Ok(Connector { socket })
    }

    /// To be polled for input.
    pub fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    /// All that has come, without waiting.
    ///
    /// # Errors
    /// The socket is of no more use.
    pub fn news(&self) -> io::Result<News> {
        let mut news = News::default();
        let mut buffer = [0u8; 8192];
        loop {
            match self.socket.receive(&mut buffer) {
                Ok(Some(bytes)) => news.pids.extend(parse(bytes)),
                Ok(None) => return Ok(news),
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => news.lost = true,
                Err(e) => return Err(e),
            }
        }
    }
}

/// "Send me process events."
fn subscription(own: u32) -> Vec<u8> {
    let mut body = [CN_IDX_PROC, CN_VAL_PROC, 0, 0].map(u32::to_ne_bytes).concat();
    body.extend(4u16.to_ne_bytes());
    body.extend(0u16.to_ne_bytes());
    body.extend(PROC_CN_MCAST_LISTEN.to_ne_bytes());
    message(NLMSG_DONE, 0, own, &body)
}

/// The processes in a datagram of the kernel's: one message or more.
fn parse(bytes: &[u8]) -> Vec<i32> {
    messages(bytes).filter_map(process_of).collect()
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
