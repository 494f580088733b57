//! The kernel's delay accounting, thread by thread, over generic netlink
//! (Documentation/accounting/taskstats.rst): how often and how long each waited for
//! block I/O, to the nanosecond. It needs CAP_NET_ADMIN, and the accounting switched on.
//! The rest is as without it ([`super::proc`]).
//!
//! The switch, `kernel.task_delayacct`, is off since Linux 5.14, and the kernel
//! accounts only for threads that start while it is on (kernel/delayacct.c,
//! `delayacct_tsk_init`): what already runs never has delays. So the agent does not turn
//! it on: it would leave a trace, and learn nothing of the threads that are there. Those
//! without delays are seen as by `proc`.
//!
//! Layouts: include/uapi/linux/genetlink.h, taskstats.h.

use super::proc::{Delays, Proc};
use crate::netlink::{
    HEADER_BYTES, NLM_F_REQUEST, NLMSG_ERROR, Socket, attribute, half, long, message, messages,
    word,
};
use seekway_policy::units::Nanos;
use std::{fs, io};

/// As `status` names it.
pub const NAME: &str = "taskstats";
const SWITCH: &str = "/proc/sys/kernel/task_delayacct";

/// The type of messages to generic netlink itself.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const FAMILY: &[u8] = b"TASKSTATS\0";
/// Command, version and two bytes of nothing, after the header of netlink.
const GENL_HEADER_BYTES: usize = 4;
const TASKSTATS_CMD_GET: u8 = 1;
const TASKSTATS_CMD_ATTR_PID: u16 = 1;
const TASKSTATS_TYPE_STATS: u16 = 3;
const TASKSTATS_TYPE_AGGR_PID: u16 = 4;
/// Of `struct taskstats`, the same in each version.
const BLKIO_COUNT: usize = 32;
const BLKIO_DELAY_TOTAL_NS: usize = 40;
/// Longest answer: 400 bytes in 2026, and grows with the kernel.
const ANSWER_BYTES_MAX: usize = 4096;

/// Asks the kernel for a thread's delays.
#[derive(Debug)]
pub struct Taskstats {
    socket: Socket,
    family: u16,
}

/// For threads of all processes but `except`.
///
/// # Errors
/// The kernel has no taskstats, CAP_NET_ADMIN is missing, or delays are not accounted.
pub fn open(except: i32) -> io::Result<Proc<Taskstats>> {
    // Without the switch, before 5.14, they are accounted unless the command line says no.
    let switch = fs::read_to_string(SWITCH).unwrap_or_else(|_| "1".into());
    if switch.trim() != "1" {
        let off = "delays are not accounted; boot with `delayacct`, or set kernel.task_delayacct=1 \
                   before what is to be seen starts";
        return Err(io::Error::other(off));
    }
    Proc::with(NAME, Taskstats::open()?, except)
}

impl Taskstats {
    /// Whether delays are accounted or not.
    ///
    /// # Errors
    /// The kernel has no taskstats, or CAP_NET_ADMIN is missing.
    pub fn open() -> io::Result<Taskstats> {
        let socket = Socket::open(libc::NETLINK_GENERIC, 0)?;
        let ask = request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, FAMILY);
        let family = answer(&socket, &ask, parse_family)?;
        let taskstats = Taskstats { socket, family };
        taskstats.delays(std::process::id() as i32)?;
        Ok(taskstats)
    }

    fn delays(&self, tid: i32) -> io::Result<(u64, Nanos)> {
        let tid = tid.to_ne_bytes();
        let ask = request(self.family, TASKSTATS_CMD_GET, TASKSTATS_CMD_ATTR_PID, &tid);
        answer(&self.socket, &ask, parse_delays)
    }
}

impl Delays for Taskstats {
    fn of(&mut self, tid: i32) -> Option<(u64, Nanos)> {
        self.delays(tid).ok()
    }
}

/// A command with one attribute.
fn request(family: u16, command: u8, attribute: u16, value: &[u8]) -> Vec<u8> {
    let mut body = vec![command, 1, 0, 0];
    body.extend((4 + value.len() as u16).to_ne_bytes());
    body.extend(attribute.to_ne_bytes());
    body.extend(value);
    message(family, NLM_F_REQUEST, 0, &body)
}

/// Ask, and take the answer: the kernel gives exactly one, before `send` returns.
fn answer<T>(socket: &Socket, ask: &[u8], parse: fn(&[u8]) -> Option<T>) -> io::Result<T> {
    socket.send(ask)?;
    let mut buffer = [0; ANSWER_BYTES_MAX];
    let bytes = socket.receive(&mut buffer)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let message = messages(bytes).next().ok_or(io::ErrorKind::InvalidData)?;
    if half(message, 4) == Some(NLMSG_ERROR) {
        let code = word(message, HEADER_BYTES).map_or(0, u32::cast_signed);
        return Err(io::Error::from_raw_os_error(code.saturating_neg()));
    }
    let body = message.get(HEADER_BYTES + GENL_HEADER_BYTES..);
    body.and_then(parse).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn parse_family(body: &[u8]) -> Option<u16> {
    half(attribute(body, CTRL_ATTR_FAMILY_ID)?, 0)
}

fn parse_delays(body: &[u8]) -> Option<(u64, Nanos)> {
    let stats = attribute(attribute(body, TASKSTATS_TYPE_AGGR_PID)?, TASKSTATS_TYPE_STATS)?;
    Some((long(stats, BLKIO_COUNT)?, Nanos::new(long(stats, BLKIO_DELAY_TOTAL_NS)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn attribute_of(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = (4 + value.len() as u16).to_ne_bytes();
        [&len, &kind.to_ne_bytes(), value].concat()
    }

    /// As `struct taskstats` has them.
    fn body(count: u64, total: u64) -> Vec<u8> {
        let stats = [0, 0, 0, 0, count, total, 0].map(u64::to_ne_bytes).concat();
        let pid = attribute_of(TASKSTATS_CMD_ATTR_PID, &7u32.to_ne_bytes());
        let stats = attribute_of(TASKSTATS_TYPE_STATS, &stats);
        attribute_of(TASKSTATS_TYPE_AGGR_PID, &[pid, stats].concat())
    }

    #[test]
    fn count_and_delay_are_where_the_kernel_puts_them() {
        assert_eq!(parse_delays(&body(3, 4)), Some((3, Nanos::new(4))));
        let family = attribute_of(CTRL_ATTR_FAMILY_ID, &[1, 1]);
        assert_eq!(parse_family(&family), Some(0x0101));
    }

    proptest! {
        #[test]
        fn noise_is_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = (parse_delays(&bytes), parse_family(&bytes));
        }

        #[test]
        fn a_cut_answer_is_none(cut in 0usize..68) {
            prop_assert_eq!(parse_delays(&body(3, 4)[..cut]), None);
        }
    }

    #[test]
    fn the_kernel_answers_for_threads_that_are_there() {
        let mut taskstats = match Taskstats::open() {
            Ok(taskstats) => taskstats,
            Err(e) if !crate::kernel::is_root() => return seekway_testing::skip(e),
            Err(e) => panic!("{e}"),
        };
        assert!(taskstats.of(std::process::id() as i32).is_some());
        assert_eq!(taskstats.delays(i32::MAX).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        assert!(taskstats.of(std::process::id() as i32).is_some(), "answers are not mixed up");
    }
}
