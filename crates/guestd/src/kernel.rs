//! The few system calls that the agent makes on other threads, and the features of the running
//! kernel.

use seekway_core::ioprio::{self, CLASS_NONE, HINT_MAX};
use seekway_core::request::ProcessTag;
use seekway_vcpu::{VCPUS_MAX, VcpuId, VcpuSet};
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// Open files that are enough.
const FILES_WANTED: libc::rlim_t = 4096;
const WHO_PROCESS: libc::c_int = 1;
/// Of `include/uapi/linux/sched.h`, Linux 6.12; the C library does not name it.
const SCHED_EXT: i32 = 7;

/// Turns a system call's result into the value, or the error that it has set.
pub fn checked<T: Into<i64> + Copy>(result: T) -> io::Result<T> {
    if result.into() < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Until one of these can be read, `at_most` has passed, or a signal has come. A negative number
/// is no descriptor. False if it was only the time.
///
/// # Errors
/// Those of ppoll(2).
pub fn wait_for_input<const N: usize>(
    fds: [RawFd; N],
    at_most: Option<Duration>,
) -> io::Result<bool> {
    let left = at_most.map(|left| libc::timespec {
        tv_sec: left.as_secs() as libc::time_t,
        tv_nsec: left.subsec_nanos().into(),
    });
    let left = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let mut watched = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: `N` descriptors and one time, all ours and alive; no signal mask.
    let ready = unsafe { libc::ppoll(watched.as_mut_ptr(), N as u64, left, std::ptr::null()) };
    match checked(ready) {
        Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(e),
        ready => Ok(!matches!(ready, Ok(0))),
    }
}

/// The I/O priority that was set for a thread (0 names the caller); class none when none was set.
///
/// # Errors
/// ESRCH: there is no such thread.
pub fn priority(tid: i32) -> io::Result<u16> {
    // SAFETY: ioprio_get takes no pointers.
    let got = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, tid) };
    u16::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Set a thread's I/O priority (0 names the caller).
///
/// # Errors
/// ESRCH: there is no such thread. EPERM: it is another user's, and the caller lacks CAP_SYS_NICE.
/// EINVAL: the kernel knows no such priority.
pub fn set_priority(tid: i32, priority: u16) -> io::Result<()> {
    // Kernels before 6.0 show "never set" as class none with a level, and take
    // it without one only.
    let priority = if ioprio::class(priority) == CLASS_NONE { 0 } else { priority };
    let priority = libc::c_int::from(priority);
    // SAFETY: ioprio_set takes no pointers.
    let set = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, tid, priority) };
    checked(set).map(drop)
}

/// Is the thread scheduled as most are? Real-time and idle threads have their
/// I/O class from there, and a tag would take it away.
///
/// # Errors
/// ESRCH: there is no such thread.
pub fn schedules_normally(tid: i32) -> io::Result<bool> {
    Ok([libc::SCHED_OTHER, libc::SCHED_BATCH, SCHED_EXT].contains(&scheduler(tid)?))
}

/// Has it a deadline of its own? The kernel admits such a thread to all CPUs or to none.
///
/// # Errors
/// ESRCH: there is no such thread.
pub fn has_deadline(tid: i32) -> io::Result<bool> {
    Ok(scheduler(tid)? == libc::SCHED_DEADLINE)
}

fn scheduler(tid: i32) -> io::Result<libc::c_int> {
    // SAFETY: sched_getscheduler takes no pointers.
    let policy = checked(unsafe { libc::sched_getscheduler(tid) })?;
    // Ored to the policy of threads whose children do not inherit it.
    Ok(policy & !libc::SCHED_RESET_ON_FORK)
}

/// Does this kernel take hints in I/O priorities? Tries it on a thread that ends afterwards.
///
/// # Errors
/// The kernel takes no I/O priorities at all (a sandbox forbids the call).
pub fn takes_hints() -> io::Result<bool> {
    let tries = || -> io::Result<bool> {
        let last = ProcessTag::new(HINT_MAX).and_then(ioprio::priority);
        let hinted = last.expect("the last tag has a priority");
        match set_priority(0, hinted) {
            Ok(()) => Ok(priority(0)? == hinted),
            // Before hints, every value but a level was invalid.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            Err(e) => Err(e),
        }
    };
    std::thread::scope(|scope| scope.spawn(tries).join().expect("no panic"))
}

/// The vCPUs on which a thread may run (0 names the caller), of those that are on line.
///
/// # Errors
/// ESRCH: there is no such thread. EINVAL: this computer has more CPUs than [`VcpuSet`] holds.
pub fn affinity(tid: i32) -> io::Result<VcpuSet> {
    // SAFETY: all zeroes is a valid set, and the set is as long as it is said to be.
    let (got, set) = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (libc::sched_getaffinity(tid, size_of::<libc::cpu_set_t>(), &raw mut set), set)
    };
    checked(got)?;
    // SAFETY: the numbers are below the set's size.
    let isin = |&n: &usize| unsafe { libc::CPU_ISSET(n, &set) };
    Ok((0..VCPUS_MAX).filter(isin).map(|n| VcpuId::new(n as u16)).collect())
}

/// Have a thread run on these vCPUs only (0 names the caller). Waits where the thread
/// is the current one of a vCPU that does not run and is not in the set.
///
/// # Errors
/// ESRCH: there is no such thread. EPERM: it is another user's, and the caller lacks CAP_SYS_NICE;
/// or it may not be moved. EINVAL: none of these is on line.
pub fn set_affinity(tid: i32, vcpus: &VcpuSet) -> io::Result<()> {
    // SAFETY: all zeroes is a valid set; numbers of vCPUs are below its size; it is as
    // long as it is said to be.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        vcpus.iter().for_each(|vcpu| libc::CPU_SET(vcpu.index(), &mut set));
        libc::sched_setaffinity(tid, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    checked(set).map(drop)
}

/// The vCPU on which the caller is.
pub fn current_vcpu() -> Option<VcpuId> {
    // SAFETY: sched_getcpu takes nothing.
    let number = unsafe { libc::sched_getcpu() };
    u16::try_from(number).ok().filter(|n| usize::from(*n) < VCPUS_MAX).map(VcpuId::new)
}

/// As many open files as this process may have: each task that is followed takes some.
pub fn allow_more_files() {
    // SAFETY: the struct is ours. A limit that cannot be raised bounds the tasks.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max.min(FILES_WANTED).max(limit.rlim_cur);
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// No signal is handled by this thread: they are the first one's.
pub fn leave_signals_to_others() {
    // SAFETY: the set is filled before it is used.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

/// The caller's effective user.
pub fn user() -> u32 {
    // SAFETY: geteuid cannot fail.
    unsafe { libc::geteuid() }
}

/// Is the caller root?
pub fn is_root() -> bool {
    user() == 0
}

/// Sends SIGUSR1 to a process, which asks it for its status.
///
/// # Errors
/// When the process has ended or may not be signalled.
pub fn ask(pid: i32) -> io::Result<()> {
    // SAFETY: kill takes no pointers.
    checked(unsafe { libc::kill(pid, libc::SIGUSR1) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_read_back_and_taken_back() {
        if !takes_hints().unwrap() {
            return seekway_testing::skip("a kernel that takes hints in I/O priorities");
        }
        let before = priority(0).unwrap();
        let wanted = ioprio::priority(ProcessTag::new(HINT_MAX).unwrap()).unwrap();
        set_priority(0, wanted).unwrap();
        assert_eq!(priority(0).unwrap(), wanted);
        set_priority(0, before).unwrap();
        assert_eq!(ioprio::class(priority(0).unwrap()), CLASS_NONE);
        assert!(schedules_normally(0).unwrap());
        assert_eq!(priority(i32::MAX).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
