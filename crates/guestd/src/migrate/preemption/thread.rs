//! Prepares a thread to watch one vCPU: it runs there alone, before whatever else is ready there,
//! wakes on time, and stays in memory.
//!
//! The thread only sleeps and decides, a few microseconds at a time. So it may be real-time of the
//! lowest priority: the guest's own real-time threads still go first.

use crate::kernel;
use seekway_vcpu::{VcpuId, VcpuSet};
use std::{fmt, io};

/// The lowest that beats every ordinary thread.
const FIFO_LOWEST: libc::c_int = 1;
/// The most that an ordinary thread can have.
const NICE_LEAST: libc::c_int = -20;

/// Before whom a thread runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rank {
    /// SCHED_FIFO, before every ordinary thread. Children do not inherit it.
    Fifo,
    /// Ordinary with nice -20: wakes before most, and waits a little for some.
    Nice,
    /// As others: late beats may be the guest's own doing.
    Plain,
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rank::Fifo => "SCHED_FIFO 1",
            Rank::Nice => "nice -20",
            Rank::Plain => "no priority: CAP_SYS_NICE is missing",
        })
    }
}

/// The calling thread runs on this vCPU alone from now on, before others if that is
/// allowed; says how far it is.
///
/// # Errors
/// EINVAL: the vCPU is not on line, or not this thread's to use (its cpuset).
pub fn settle(vcpu: VcpuId) -> io::Result<Rank> {
    pin(vcpu)?;
    // Ordinary threads are woken up to 50 us late, so that wake-ups can be put together.
    // SAFETY: prctl takes plain numbers here; it cannot fail on the caller.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    Ok(rank())
}

/// The calling thread runs on this vCPU alone from now on.
///
/// # Errors
/// EINVAL, as [`settle`].
pub fn pin(vcpu: VcpuId) -> io::Result<()> {
    kernel::set_affinity(0, &VcpuSet::only(vcpu))
}

fn rank() -> Rank {
    let priority = libc::sched_param { sched_priority: FIFO_LOWEST };
    // SAFETY: the parameter is ours, and 0 names the caller.
    let fifo = unsafe {
        libc::sched_setscheduler(
            0,
            libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
            &raw const priority,
        )
    };
    if fifo == 0 {
        return Rank::Fifo;
    }
    // SAFETY: setpriority takes plain numbers, and 0 names the caller (a thread, on Linux).
    let nice = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE_LEAST) };
    if nice == 0 { Rank::Nice } else { Rank::Plain }
}

/// Keeps this process's memory resident, once for all its threads: a guest that does much I/O takes
/// the pages of a program that sleeps, and a monitor that waits for its own code to be read beats
/// as late as if its vCPU were away. Only pages that have been used are kept. False if that is not
/// allowed (CAP_IPC_LOCK).
pub fn stay_in_memory() -> bool {
    // SAFETY: mlockall takes plain numbers.
    unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) == 0 }
}

/// Where the caller runs.
#[cfg(test)]
pub fn here() -> VcpuId {
    kernel::current_vcpu().expect("this machine has no more than 1024")
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_vcpu::VCPUS_MAX;
    use std::thread;

    /// Reads a field of `/proc/thread-self/stat`, numbered as in its manual.
    fn stat_field(n: usize) -> String {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let rest = stat.rsplit_once(") ").unwrap().1;
        rest.split(' ').nth(n - 3).unwrap().to_string()
    }

    #[test]
    fn a_thread_settles_on_one_vcpu_with_the_rank_that_it_says() {
        let (here, own_nice) = (here(), stat_field(19));
        let settled = thread::spawn(move || {
            let rank = settle(here).unwrap();
            (rank, stat_field(39), stat_field(41), stat_field(19))
        });
        let (rank, vcpu, policy, nice) = settled.join().unwrap();
        assert_eq!(vcpu, here.index().to_string());
        let wanted = match rank {
            Rank::Fifo => ("1", own_nice.as_str()),
            Rank::Nice => ("0", "-20"),
            Rank::Plain => ("0", own_nice.as_str()),
        };
        assert_eq!((policy.as_str(), nice.as_str()), wanted);
    }

    #[test]
    fn a_vcpu_that_is_not_there_is_an_error() {
        let nowhere = VcpuId::new(VCPUS_MAX as u16 - 1);
        let error = thread::spawn(move || settle(nowhere)).join().unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
