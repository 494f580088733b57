//! The few system calls that the agent makes on other threads, and what the
//! running kernel takes.

use seekway_policy::ioprio::{self, CLASS_NONE, Encoding, HINT_MAX};
use seekway_policy::request::ProcessTag;
use std::io;

const WHO_PROCESS: libc::c_int = 1;
/// Of `include/uapi/linux/sched.h`, Linux 6.12; the C library does not name it.
const SCHED_EXT: i32 = 7;

/// The I/O priority that was set for a thread (0 names the caller); class none
/// when nobody has set one.
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
/// ESRCH: there is no such thread. EPERM: it is somebody else's, and the caller
/// lacks CAP_SYS_NICE. EINVAL: the kernel knows no such priority.
pub fn set_priority(tid: i32, priority: u16) -> io::Result<()> {
    // Kernels before 6.0 show "never set" as class none with a level, and take
    // it without one only.
    let priority = if ioprio::class(priority) == CLASS_NONE { 0 } else { priority };
    let priority = libc::c_int::from(priority);
    // SAFETY: ioprio_set takes no pointers.
    let set = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, tid, priority) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Is the thread scheduled as most are? Real-time and idle threads have their
/// I/O class from there, and a tag would take it away.
///
/// # Errors
/// ESRCH: there is no such thread.
pub fn schedules_normally(tid: i32) -> io::Result<bool> {
    // SAFETY: sched_getscheduler takes no pointers.
    let policy = unsafe { libc::sched_getscheduler(tid) };
    if policy < 0 {
        return Err(io::Error::last_os_error());
    }
    // Ored to the policy of threads whose children shall not inherit it.
    let policy = policy & !libc::SCHED_RESET_ON_FORK;
    Ok([libc::SCHED_OTHER, libc::SCHED_BATCH, SCHED_EXT].contains(&policy))
}

/// How this kernel takes tags: tried on a thread that ends afterwards.
///
/// # Errors
/// The kernel takes no I/O priorities at all (a sandbox forbids the call).
pub fn probe() -> io::Result<Encoding> {
    let tries = || -> io::Result<Encoding> {
        let last = ProcessTag::new(HINT_MAX).and_then(|t| Encoding::Hints.priority(t));
        let hinted = last.expect("the last tag can be written");
        if set_priority(0, hinted).is_ok() && priority(0)? == hinted {
            return Ok(Encoding::Hints);
        }
        let tag = ProcessTag::new(1).and_then(|t| Encoding::Levels.priority(t));
        set_priority(0, tag.expect("the first tag can be written"))?;
        Ok(Encoding::Levels)
    };
    std::thread::scope(|scope| scope.spawn(tries).join().expect("no panic"))
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

/// Have the kernel send SIGTERM to this process when its parent has gone.
/// False when it has gone already.
pub fn end_with_parent(parent: u32) -> bool {
    // SAFETY: prctl takes plain numbers here; getppid cannot fail.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
        u32::try_from(libc::getppid()) == Ok(parent)
    }
}

/// Send SIGTERM to a process.
pub fn terminate(pid: u32) {
    if let Ok(pid) = i32::try_from(pid) {
        // SAFETY: kill takes no pointers. A process that has ended is no error.
        unsafe { libc::kill(pid, libc::SIGTERM) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_read_back_and_taken_back() {
        let encoding = probe().unwrap();
        let before = priority(0).unwrap();
        let tag = ProcessTag::new(encoding.tags().1).unwrap();
        let wanted = encoding.priority(tag).unwrap();
        set_priority(0, wanted).unwrap();
        assert_eq!(priority(0).unwrap(), wanted);
        set_priority(0, before).unwrap();
        assert_eq!(ioprio::class(priority(0).unwrap()), CLASS_NONE);
        assert!(schedules_normally(0).unwrap());
        assert_eq!(priority(i32::MAX).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
