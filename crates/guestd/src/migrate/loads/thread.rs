//! One thread's files in `/proc`, which stay open: reading an open one takes a third of the time
//! for opening, reading and closing it. They come and go, and a name may hold anything: unreadable
//! files are `None`, never a panic.

use super::estimate::{Counters, Posture};
use crate::procfs;
use seekway_core::units::Nanos;
use seekway_vcpu::{VCPUS_MAX, VcpuId};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Longest file that is read: `stat` has some 50 numbers.
const FILE_BYTES_MAX: usize = 2048;

#[derive(Debug)]
pub struct Thread {
    dir: String,
    stat: File,
    io: File,
    schedstat: File,
    /// Opened when it is found asleep for the first time.
    syscall: Option<File>,
}

/// The thread's state by `/proc/PID/task/TID/stat`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Found {
    state: u8,
    kernel: bool,
    vcpu: VcpuId,
}

impl Thread {
    /// Descriptors that one thread takes.
    pub const FILES: usize = 4;

    /// Open its files.
    ///
    /// # Errors
    /// When the task has ended or may not be read (CAP_SYS_PTRACE), or there are no descriptors left.
    pub fn open(pid: i32, tid: i32) -> io::Result<Thread> {
        let dir = format!("/proc/{pid}/task/{tid}");
        let open = |name: &str| File::open(format!("{dir}/{name}"));
        let (stat, io, schedstat) = (open("stat")?, open("io")?, open("schedstat")?);
        Ok(Thread { dir, stat, io, schedstat, syscall: None })
    }

    /// Reads the thread's counters; `None` when it has gone, or is the kernel's. `last` has the
    /// counters before: a thread that slept and has not run in between still sleeps, and finding
    /// that costs a fifth.
    pub fn look(&mut self, last: Option<&Counters>) -> Option<Counters> {
        let mut buffer = [0; FILE_BYTES_MAX];
        let (ran, queued, turns) = parse_schedstat(read(&self.schedstat, &mut buffer)?)?;
        let still = |last: &&Counters| last.posture == Posture::Sleeps && last.turns == turns;
        if let Some(last) = last.filter(still) {
            return Some(*last);
        }
        let found = parse_found(read(&self.stat, &mut buffer)?)?;
        if found.kernel {
            return None;
        }
        let posture = match found.state {
            b'R' => Posture::Ready,
            b'D' => Posture::WaitsForIo,
            _ if self.waits_in_call(&mut buffer) => Posture::WaitsForIo,
            _ => Posture::Sleeps,
        };
        let bytes = procfs::parse_io(read(&self.io, &mut buffer)?)?;
        Some(Counters { posture, vcpu: found.vcpu, ran, queued, turns, bytes })
    }

    /// Asynchronous I/O is waited for in calls of its own, and in state S.
    fn waits_in_call(&mut self, buffer: &mut [u8]) -> bool {
        if self.syscall.is_none() {
            self.syscall = File::open(format!("{}/syscall", self.dir)).ok();
        }
        let text = self.syscall.as_ref().and_then(|file| read(file, buffer));
        let waits = [libc::SYS_io_getevents, libc::SYS_io_uring_enter];
        text.and_then(parse_syscall).is_some_and(|call| waits.contains(&call))
    }
}

/// A file's content from its beginning.
fn read<'a>(file: &File, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let len = file.read_at(buffer, 0).ok()?;
    buffer.get(..len)
}

fn parse_found(bytes: &[u8]) -> Option<Found> {
    let (_, rest) = procfs::name_and_rest(bytes)?;
    let mut fields = rest.split_ascii_whitespace();
    // `nth` goes on from the field after the last one.
    let state = fields.next()?.bytes().next()?;
    let kernel = procfs::is_kernel(fields.nth(9 - procfs::STATE_FIELD - 1)?)?;
    let vcpu: u16 = fields.nth(39 - 9 - 1)?.parse().ok()?;
    let vcpu = (usize::from(vcpu) < VCPUS_MAX).then(|| VcpuId::new(vcpu))?;
    Some(Found { state, kernel, vcpu })
}

/// Time on a processor, time ready without one, times that it was put on one.
fn parse_schedstat(bytes: &[u8]) -> Option<(Nanos, Nanos, u64)> {
    let mut fields = str::from_utf8(bytes).ok()?.split_ascii_whitespace();
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some((Nanos::new(next()?), Nanos::new(next()?), next()?))
}

/// The call in which it sleeps. `running`, or -1 outside of a call.
fn parse_syscall(bytes: &[u8]) -> Option<libc::c_long> {
    str::from_utf8(bytes).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::tests::own_tid;
    use super::*;
    use proptest::prelude::*;

    const REST: &str = "D 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 1 2 3 4 5 6 7 8 9 0 1 \
                        2 3 4 5 17 3 0 0 12 0 0";

    #[test]
    fn fields_are_those_of_the_manual() {
        let found = parse_found(format!("12 (a) R 1 2) {REST}").as_bytes()).unwrap();
        assert_eq!(found, Found { state: b'D', kernel: false, vcpu: VcpuId::new(3) });
        let kernel = REST.replace("4194560", "2129984");
        assert!(parse_found(format!("2 (k) {kernel}").as_bytes()).unwrap().kernel);
        let far = REST.replace(" 17 3 ", " 17 1024 ");
        assert_eq!(parse_found(format!("2 (k) {far}").as_bytes()), None);
        let [ran, queued] = [7, 8].map(Nanos::new);
        assert_eq!(parse_schedstat(b"7 8 9\n"), Some((ran, queued, 9)));
        assert_eq!(parse_syscall(b"208 0x0 0x1\n"), Some(208));
        assert_eq!(parse_syscall(b"running\n"), None);
    }

    proptest! {
        #[test]
        fn noise_is_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = (parse_found(&bytes), parse_schedstat(&bytes), parse_syscall(&bytes));
            let _ = parse_found(&[b"1 (", &bytes[..], b") ", REST.as_bytes()].concat());
            let _ = parse_found(&[b"1 (x) ", &bytes[..]].concat());
        }

        #[test]
        fn what_is_cut_is_none_or_the_same(cut in 0usize..200) {
            let whole = format!("12 (x) {REST}");
            let found = parse_found(&whole.as_bytes()[..cut.min(whole.len())]);
            prop_assert!(found.is_none_or(|f| f.state == b'D' && f.vcpu == VcpuId::new(3)));
        }
    }

    #[test]
    fn this_thread_is_found_where_it_runs() {
        let tid = own_tid();
        let mut thread = Thread::open(std::process::id() as i32, tid).unwrap();
        let first = thread.look(None).unwrap();
        let later = thread.look(Some(&first)).unwrap();
        assert_eq!((first.posture, later.posture), (Posture::Ready, Posture::Ready));
        assert!(later.ran >= first.ran && later.turns >= first.turns && later.turns > 0);
        let slept = Counters { posture: Posture::Sleeps, bytes: u64::MAX, ..later };
        let missed = [thread.look(Some(&slept)).unwrap().bytes, slept.turns];
        // It may have been put on a processor again right now; then there is all to see.
        assert!(missed[0] == u64::MAX || thread.look(None).unwrap().turns > missed[1]);
        assert!(Thread::open(i32::MAX, i32::MAX).is_err());
    }
}
