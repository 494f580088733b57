//! Who has the host's processors: the guests' vCPUs, the rest of QEMU, the daemons, and
//! whoever else runs on this machine.

use crate::error::{At, LiveError, Result};
use crate::experiment::figures::HostCpu;
use crate::experiment::inside::{self, TICKS};
use serde::Serialize;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

/// Shares of all processors in a window, 0 to 1.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct HostShares {
    /// Of each guest's vCPUs.
    pub vcpus: Vec<f64>,
    /// Of each guest's other threads: timers, interrupts and completions of an emulated guest.
    pub qemu: Vec<f64>,
    pub daemons: f64,
    /// All that is busy, whoever makes it so.
    pub busy: f64,
}

impl HostShares {
    /// What runs on this machine besides: this process, and whatever is no part of the run.
    pub fn others(&self) -> f64 {
        let ours: f64 = self.vcpus.iter().chain(&self.qemu).sum::<f64>() + self.daemons;
        (self.busy - ours).max(0.0)
    }
}

/// Processor times since the threads' starts, in ticks.
pub(super) struct Look {
    at: Instant,
    processors: f64,
    host: HostCpu,
    qemus: Vec<u64>,
    vcpus: Vec<u64>,
    daemons: u64,
}

impl Look {
    /// `vcpus`: the threads of each QEMU's vCPUs.
    pub(super) fn now(qemus: &[u32], vcpus: &[Vec<i32>], daemons: &[u32]) -> Result<Look> {
        let process = |pid: &u32| ticks(format!("/proc/{pid}/stat"));
        // Below `task`: what a thread's number names elsewhere is its whole process.
        let guest = |(pid, tids): (&u32, &Vec<i32>)| {
            let thread = |tid: &i32| ticks(format!("/proc/{pid}/task/{tid}/stat"));
            tids.iter().map(thread).sum::<Result<u64>>()
        };
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Look {
            at: Instant::now(),
            processors: processors as f64,
            host: HostCpu::now(),
            qemus: qemus.iter().map(process).collect::<Result<_>>()?,
            vcpus: qemus.iter().zip(vcpus).map(guest).collect::<Result<_>>()?,
            daemons: daemons.iter().map(process).sum::<Result<u64>>()?,
        })
    }

    /// From this look to a later one.
    pub(super) fn until(&self, later: &Look) -> HostShares {
        let all = (later.at - self.at).as_secs_f64() * TICKS * self.processors;
        let share = |then: u64, now: u64| now.saturating_sub(then) as f64 / all;
        let vcpus: Vec<f64> =
            self.vcpus.iter().zip(&later.vcpus).map(|(&then, &now)| share(then, now)).collect();
        let qemus = self.qemus.iter().zip(&later.qemus).map(|(&then, &now)| share(then, now));
        HostShares {
            qemu: qemus.zip(&vcpus).map(|(all, vcpus)| (all - vcpus).max(0.0)).collect(),
            vcpus,
            daemons: share(self.daemons, later.daemons),
            busy: self.host.busy_until(&later.host),
        }
    }
}

/// User's and system's time of a process or a thread.
fn ticks(path: String) -> Result<u64> {
    let path = PathBuf::from(path);
    let text = fs::read_to_string(&path).at("read", &path)?;
    inside::ticks(&text).ok_or_else(|| LiveError::Measured(format!("{}: {text}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_read_after_a_name_with_spaces() {
        let stat = "7 (CPU 0) /T) S 1 7 1 0 -1 4194304 5 0 0 0 25 75 3 4 20 0 1 0 300";
        assert_eq!(inside::ticks(stat), Some(100));
        assert_eq!(inside::ticks("7 (x) S 1 2"), None);
        assert!(ticks("/proc/self/stat".into()).is_ok());
        assert!(ticks("/proc/0/stat".into()).is_err());
    }

    #[test]
    fn shares_are_of_all_processors() {
        let at = Instant::now();
        let look = |seconds: u64, busy: u64, qemu: u64, vcpus: u64, daemons: u64| Look {
            at: at + Duration::from_secs(seconds),
            processors: 2.0,
            host: HostCpu::parse(&format!("cpu {busy} 0 0 {} 0 0 0 0", 200 * seconds - busy)),
            qemus: vec![qemu],
            vcpus: vec![vcpus],
            daemons,
        };
        let shares = look(1, 100, 500, 300, 40).until(&look(11, 2000, 1600, 1300, 140));
        assert_eq!((shares.vcpus[0], shares.daemons), (0.5, 0.05));
        assert!((shares.qemu[0] - 0.05).abs() < 1e-9 && (shares.busy - 0.95).abs() < 1e-9);
        assert!((shares.others() - 0.35).abs() < 1e-9);
        // Clocks of different kinds do not make it negative.
        assert_eq!(HostShares { busy: 0.5, ..shares }.others(), 0.0);
    }
}
