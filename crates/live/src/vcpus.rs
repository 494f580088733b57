//! The threads of a guest's vCPUs on the host: which processor each runs on, and for how
//! long at a time. Several guests on few processors take them from each other, as on a
//! server with more vCPUs than cores.

use crate::error::{At, LiveError, Result};
use crate::guest::Guest;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The numbers of `guest`'s vCPU threads, in the order of the vCPUs.
///
/// # Errors
/// QEMU has ended, or names its threads in another way than `CPU 0/TCG`, `CPU 1/KVM`.
pub fn threads(guest: &Guest) -> Result<Vec<i32>> {
    let dir = PathBuf::from(format!("/proc/{}/task", guest.pid()));
    let mut found = Vec::new();
    for entry in fs::read_dir(&dir).at("list", &dir)? {
        let path = entry.at("list", &dir)?.path();
        // A thread of another kind may end between the list and this.
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        if let (Some(vcpu), Some(tid)) = (vcpu(name.trim()), number(&path)) {
            found.push((vcpu, tid));
        }
    }
    found.sort_unstable();
    if found.is_empty() || found.iter().enumerate().any(|(n, (vcpu, _))| *vcpu != n) {
        let what = format!("guest {}: threads of vCPUs in {found:?}", guest.name());
        return Err(LiveError::Measured(what));
    }
    Ok(found.into_iter().map(|(_, tid)| tid).collect())
}

/// Spread `guest`'s vCPUs evenly over the processors. Their threads.
///
/// # Errors
/// As [`threads`] and [`pin`].
pub fn place(guest: &Guest, processors: &[usize]) -> Result<Vec<i32>> {
    let threads = threads(guest)?;
    for (&tid, &processor) in threads.iter().zip(processors.iter().cycle()) {
        pin(tid, processor)?;
    }
    Ok(threads)
}

/// The vCPU of a thread that QEMU has named, with `debug-threads=on`: `CPU 3/TCG`.
fn vcpu(name: &str) -> Option<usize> {
    name.strip_prefix("CPU ")?.split('/').next()?.parse().ok()
}

fn number(path: &Path) -> Option<i32> {
    path.file_name()?.to_str()?.parse().ok()
}

/// The processors that this process may use, in ascending order.
///
/// # Errors
/// The kernel does not tell.
pub fn processors() -> Result<Vec<usize>> {
    // SAFETY: a set of processors is plain bits, of which all 0 are none.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a set of that size, which the kernel fills.
    let done = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    checked(done).at("ask for the processors of", Path::new("/proc/self"))?;
    let most = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
    // SAFETY: every number is below the set's size.
    Ok((0..most).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect())
}

/// Let a thread run on this processor only.
///
/// # Errors
/// The thread has ended, or this process has no such processor.
pub fn pin(tid: i32, processor: usize) -> Result<()> {
    // SAFETY: as in `processors`.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if processor < usize::try_from(libc::CPU_SETSIZE).unwrap_or(0) {
        // SAFETY: the number is below the set's size.
        unsafe { libc::CPU_SET(processor, &mut set) };
    }
    // SAFETY: the pointer is to a set of that size, which the kernel reads.
    let done = unsafe { libc::sched_setaffinity(tid, size_of_val(&set), &raw const set) };
    checked(done).at("pin", &thread_path(tid))
}

/// `struct sched_attr` of `sched_setattr(2)`, its first version.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

const SCHED_ATTR_BYTES: u32 = 48;
const _: () = assert!(size_of::<SchedAttr>() == SCHED_ATTR_BYTES as usize);

/// Ask for slices of this length for a thread of the ordinary class. Linux has taken it
/// since 6.12, between 0.1 and 100 ms, and cuts slices at its ticks; kernels before
/// ignore it. What it is then is returned: zero before 6.12.
///
/// # Errors
/// The thread has ended, or the kernel refuses.
pub fn set_slice(tid: i32, slice: Duration) -> Result<Duration> {
    let runtime_ns = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
    let mut attr = SchedAttr { size: SCHED_ATTR_BYTES, runtime_ns, ..SchedAttr::default() };
    // SAFETY: the pointer is to a structure that says its own size, which the kernel reads.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attr, 0) };
    checked(done).at("set the slice of", &thread_path(tid))?;
    attr = SchedAttr { size: SCHED_ATTR_BYTES, ..SchedAttr::default() };
    // SAFETY: the kernel writes at most that many bytes to the structure.
    let done =
        unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, SCHED_ATTR_BYTES, 0) };
    checked(done).at("read the slice of", &thread_path(tid))?;
    Ok(Duration::from_nanos(attr.runtime_ns))
}

fn thread_path(tid: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{tid}"))
}

fn checked(result: impl Into<i64>) -> io::Result<()> {
    if result.into() == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_vcpus_are_known_by_their_names() {
        assert_eq!((vcpu("CPU 0/TCG"), vcpu("CPU 12/KVM")), (Some(0), Some(12)));
        for other in ["qemu-system-x86", "call_rcu", "CPU", "CPU x/TCG", "xCPU 1/TCG"] {
            assert_eq!(vcpu(other), None, "{other}");
        }
    }

    #[test]
    fn a_thread_is_pinned_and_sliced() {
        let processors = processors().expect("known");
        let thread = std::thread::spawn(move || {
            // SAFETY: gettid has no arguments and cannot fail.
            let tid = unsafe { libc::gettid() };
            let last = *processors.last().expect("this runs on one");
            pin(tid, last).expect("it is this process's own");
            assert_eq!(super::processors().expect("known"), [last]);
            let slice = Duration::from_millis(11);
            let set = set_slice(tid, slice).expect("it is this process's own");
            assert!(set == slice || set.is_zero(), "{set:?}");
            assert!(pin(tid, usize::MAX).is_err());
        });
        thread.join().expect("no panic");
        assert!(pin(-1, 0).is_err());
    }
}
