//! The kernel's process events (`CONFIG_PROC_EVENTS`, netlink's connector): who
//! was forked and who runs another program, without a poll. Optional: it needs
//! CAP_NET_ADMIN in the first namespaces.
//!
//! Layouts: include/uapi/linux/connector.h, cn_proc.h.

use crate::kernel;
use crate::netlink::{HEADER_BYTES, NLMSG_DONE, Socket, message, messages, word};
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

const CN_IDX_PROC: u32 = 1;
const CN_VAL_PROC: u32 = 1;
const PROC_CN_MCAST_LISTEN: u32 = 1;
const PROC_EVENT_NONE: u32 = 0;
const PROC_EVENT_FORK: u32 = 1;
const PROC_EVENT_EXEC: u32 = 2;
/// The kernel answers a subscription before the call that asks for it is over.
const ANSWER: Duration = Duration::from_millis(100);
/// Some thousand forks between two looks.
const ROOM_BYTES: libc::c_int = 4 << 20;
/// Datagrams that are read at a time: who reads has other things to do.
const DATAGRAMS_MAX: usize = 1024;
/// Header of netlink, and of the connector after it.
const HEADERS_BYTES: usize = HEADER_BYTES + 20;
/// Size of `what`, `cpu` and `timestamp_ns` of `struct proc_event`.
const EVENT_HEADER_BYTES: usize = 16;

#[derive(Debug)]
pub struct Connector {
    socket: Socket,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessEvent {
    /// A process or a thread was started.
    Forked(Fork),
    /// A process runs another program.
    Runs(i32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fork {
    /// The process that started a process; that of which the process is a child, if this
    /// is about a thread.
    pub parent: i32,
    /// The process that is new, or has a new thread.
    pub pid: i32,
    /// The new thread: the first one of a new process has its number.
    pub tid: i32,
}

/// News from the kernel.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct News {
    /// Events in the order in which the kernel reported them.
    pub told: Vec<ProcessEvent>,
    /// More happened than the socket could hold.
    pub lost: bool,
}

impl News {
    /// Processes that are new or run a new program, in ascending order.
    pub fn processes(&self) -> Vec<i32> {
        let pids = self.told.iter().filter_map(|told| match told {
            ProcessEvent::Forked(fork) => (fork.tid == fork.pid).then_some(fork.pid),
            ProcessEvent::Runs(pid) => Some(*pid),
        });
        let mut pids: Vec<i32> = pids.collect();
        pids.sort_unstable();
        // Most are forked and then run a program.
        pids.dedup();
        pids
    }
}

impl Connector {
    /// Subscribe.
    ///
    /// # Errors
    /// EPERM without the right; EPROTONOSUPPORT or ECONNREFUSED where the kernel has no connector;
    /// TimedOut without an answer, as in a PID namespace.
    pub fn open() -> io::Result<Connector> {
        let socket = Socket::open(libc::NETLINK_CONNECTOR, CN_IDX_PROC)?;
        socket.make_room(ROOM_BYTES);
        socket.send(&subscription(std::process::id()))?;
        let connector = Connector { socket };
        connector.wait_for_answer()?;
        Ok(connector)
    }

    /// Events that come before it are of no interest: nothing has been changed yet.
    fn wait_for_answer(&self) -> io::Result<()> {
        let mut buffer = [0u8; 8192];
        for _ in 0..DATAGRAMS_MAX {
            while let Some(bytes) = self.socket.receive(&mut buffer)? {
                match messages(bytes).find_map(answer_in) {
                    Some(0) => return Ok(()),
                    Some(error) => return Err(io::Error::from_raw_os_error(error)),
                    None => {}
                }
            }
            if !kernel::wait_for_input([self.fd()], Some(ANSWER))? {
                break;
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// To be polled for input.
    pub fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    /// Reads the pending events without waiting. A long backlog comes in several calls.
    ///
    /// # Errors
    /// The socket is of no more use.
    pub fn news(&self) -> io::Result<News> {
        let mut news = News::default();
        let mut buffer = [0u8; 8192];
        for _ in 0..DATAGRAMS_MAX {
            match self.socket.receive(&mut buffer) {
                Ok(Some(bytes)) => news.told.extend(parse(bytes)),
                Ok(None) => break,
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => news.lost = true,
                Err(e) => return Err(e),
            }
        }
        Ok(news)
    }
}

/// "Send me process events."
fn subscription(own: u32) -> Vec<u8> {
    let mut body = [CN_IDX_PROC, CN_VAL_PROC, 0, 0].map(u32::to_ne_bytes).concat();
    body.extend(4u16.to_ne_bytes());
    body.extend(0u16.to_ne_bytes());
    body.extend(PROC_CN_MCAST_LISTEN.to_ne_bytes());
    message(NLMSG_DONE, own, &body)
}

/// The events in a datagram of the kernel's: one message or more.
fn parse(bytes: &[u8]) -> Vec<ProcessEvent> {
    messages(bytes).filter_map(event_in).collect()
}

/// The kernel's answer to a subscription: an error's number, 0 for none.
fn answer_in(message: &[u8]) -> Option<i32> {
    let is_proc = (word(message, 16)?, word(message, 20)?) == (CN_IDX_PROC, CN_VAL_PROC);
    let is_answer = is_proc && word(message, HEADERS_BYTES)? == PROC_EVENT_NONE;
    let error = word(message, HEADERS_BYTES + EVENT_HEADER_BYTES)?.cast_signed();
    is_answer.then(|| error.saturating_abs())
}

/// A fork or an exec; `None` for other events.
fn event_in(message: &[u8]) -> Option<ProcessEvent> {
    if (word(message, 16)?, word(message, 20)?) != (CN_IDX_PROC, CN_VAL_PROC) {
        return None;
    }
    let number =
        |n: usize| word(message, HEADERS_BYTES + EVENT_HEADER_BYTES + 4 * n).map(u32::cast_signed);
    match word(message, HEADERS_BYTES)? {
        // The parent's thread and process, the child's thread and process.
        PROC_EVENT_FORK => {
            let (parent, tid, pid) = (number(1)?, number(2)?, number(3)?);
            Some(ProcessEvent::Forked(Fork { parent, pid, tid }))
        }
        PROC_EVENT_EXEC => number(1).map(ProcessEvent::Runs),
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
        message.extend([0; 4]);
        message.extend([0; 8]);
        message.extend(numbers.map(i32::to_ne_bytes).concat());
        message
    }

    #[test]
    fn forks_and_programs_are_heard() {
        let fork = |parent, pid, tid| ProcessEvent::Forked(Fork { parent, pid, tid });
        assert_eq!(parse(&event(PROC_EVENT_FORK, [1, 2, 20, 20])), [fork(2, 20, 20)]);
        assert_eq!(parse(&event(PROC_EVENT_FORK, [1, 2, 21, 20])), [fork(2, 20, 21)]);
        assert_eq!(parse(&event(PROC_EVENT_EXEC, [31, 30, 0, 0])), [ProcessEvent::Runs(30)]);
        assert_eq!(parse(&event(0x8000_0000, [31, 30, 0, 0])), []);
        let two =
            [event(PROC_EVENT_EXEC, [5, 5, 0, 0]), event(PROC_EVENT_EXEC, [6, 6, 0, 0])].concat();
        assert_eq!(parse(&two), [5, 6].map(ProcessEvent::Runs));
    }

    #[test]
    fn the_kernel_answers_or_nobody_does() {
        assert_eq!(answer_in(&event(PROC_EVENT_NONE, [0, 0, 0, 0])), Some(0));
        assert_eq!(answer_in(&event(PROC_EVENT_NONE, [1, 0, 0, 0])), Some(1));
        assert_eq!(answer_in(&event(PROC_EVENT_FORK, [1, 2, 20, 20])), None);
        match Connector::open() {
            // A listener hears of this child.
            Ok(connector) => {
                std::process::Command::new("true").status().unwrap();
                assert!(!connector.news().unwrap().told.is_empty());
            }
            Err(e) => seekway_testing::skip(format_args!("process events: {e}")),
        }
    }

    #[test]
    fn a_process_is_new_once_and_a_thread_is_none() {
        let fork = |pid, tid| ProcessEvent::Forked(Fork { parent: 1, pid, tid });
        let told = vec![fork(20, 20), fork(7, 21), ProcessEvent::Runs(20), ProcessEvent::Runs(6)];
        assert_eq!(News { told, lost: false }.processes(), [6, 20]);
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
