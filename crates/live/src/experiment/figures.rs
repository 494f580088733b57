//! What is measured: differences of the daemon's counters, its journal, what
//! sysbench says, and how busy the host was.

use super::Mode;
use crate::error::{LiveError, Result};
use seekway_hostd::control::{DeviceReport, HostReport, OpReport};
use seekway_policy::journal::{Entry, entry};
use seekway_policy::units::Lba;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, PartialEq, Debug)]
pub struct PolicyFigures {
    pub policy: String,
    /// How long the window was, in seconds.
    pub seconds: f64,
    /// One for each disk, in the daemon's order.
    pub vms: Vec<VmFigures>,
    /// Requests of all guests that were dispatched in the window.
    pub requests: u64,
    /// Commands that they were coalesced into.
    pub commands: u64,
    /// Time for which the policy withheld work, by cause, in milliseconds.
    pub held_ms: BTreeMap<String, f64>,
    /// Waits that the policy began.
    pub waits_tried: u64,
    /// Those of them that ended in time with a request that arrived meanwhile.
    pub waits_paid: u64,
    /// Commands whose real completion came after the emulated disk's.
    pub late: u64,
    /// How busy the host's processors were, 0 to 1. Near 1 it is the guests'
    /// emulation that is measured, not the disk.
    pub host_busy: f64,
    /// Share of dispatches that began where the head stood, 0 to 1, over the
    /// policy's whole run.
    pub zero_seeks: f64,
}

/// One guest in a window.
#[derive(Clone, PartialEq, Debug)]
pub struct VmFigures {
    pub name: String,
    /// What its disk read, in MiB a second.
    pub mib_s: f64,
    /// Requests of its disk, a second.
    pub iops: f64,
    /// Mean time of a request since the daemon's start, in milliseconds.
    pub held_ms: f64,
    pub apps: Vec<AppFigures>,
}

/// One application in a window.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AppFigures {
    pub mode: Mode,
    /// What it has read, in MiB a second, by its own count.
    pub mib_s: f64,
}

impl PolicyFigures {
    /// What happened between two reports.
    pub(super) fn new(
        policy: &str,
        before: &HostReport,
        after: &HostReport,
        took: Duration,
        host_busy: f64,
    ) -> Result<PolicyFigures> {
        let (was, is) = (device(before)?, device(after)?);
        let seconds = took.as_secs_f64();
        let mut vms = Vec::new();
        for disk in &is.disks {
            let (first, last) = (reads(before, &disk.name)?, reads(after, &disk.name)?);
            if last.errors > first.errors {
                let what = format!("{}: {} reads failed", disk.name, last.errors - first.errors);
                return Err(LiveError::Measured(what));
            }
            let earlier = was.disks.iter().find(|d| d.name == disk.name);
            let held = |d: &BTreeMap<String, f64>| d.values().sum::<f64>();
            vms.push(VmFigures {
                name: disk.name.clone(),
                mib_s: (last.bytes - first.bytes) as f64 / f64::from(1 << 20) / seconds,
                iops: (last.requests - first.requests) as f64 / seconds,
                held_ms: held(&disk.held_ms) - earlier.map_or(0.0, |d| held(&d.held_ms)),
                apps: Vec::new(),
            });
        }
        let held_ms = is
            .held_ms
            .iter()
            .map(|(why, ms)| (why.clone(), ms - was.held_ms.get(why).copied().unwrap_or_default()));
        let late = |d: &DeviceReport| d.emulated.as_ref().map_or(0, |e| e.late);
        Ok(PolicyFigures {
            policy: policy.to_string(),
            seconds,
            vms,
            requests: is.requests - was.requests,
            commands: is.commands - was.commands,
            held_ms: held_ms.collect(),
            waits_tried: is.waits_tried - was.waits_tried,
            waits_paid: is.waits_paid - was.waits_paid,
            late: late(is) - late(was),
            host_busy,
            zero_seeks: 0.0,
        })
    }

    /// What all disks read, in MiB a second.
    pub fn mib_s(&self) -> f64 {
        self.vms.iter().map(|v| v.mib_s).sum()
    }

    /// What a command carries, in KiB.
    pub fn kib_per_command(&self) -> f64 {
        self.mib_s() * self.seconds * 1024.0 / self.commands.max(1) as f64
    }
}

/// The device of a report; an error unless there is exactly one.
pub(super) fn device(report: &HostReport) -> Result<&DeviceReport> {
    let none = || LiveError::Daemon("status: not one device".into());
    report.devices.first().filter(|_| report.devices.len() == 1).ok_or_else(none)
}

/// The reads of a disk.
pub(super) fn reads<'a>(report: &'a HostReport, disk: &str) -> Result<&'a OpReport> {
    let found = device(report)?.disks.iter().find(|d| d.name == disk);
    let reads = found.and_then(|d| d.ops.get("read"));
    reads.ok_or_else(|| LiveError::Daemon(format!("status: no reads of a disk {disk}")))
}

/// MiB a second from sysbench's lines:
/// `[ 3s ] reads: 12.34 MiB/s writes: 0.00 MiB/s fsyncs: 0.00/s latency (ms,95%): 1.234`.
pub(super) fn sysbench_rates(said: &str) -> Vec<f64> {
    let rate = |line: &str| {
        let (_, rest) = line.split_once("] reads: ")?;
        rest.split(' ').next()?.parse().ok()
    };
    said.lines().filter_map(rate).collect()
}

/// Sets each run's share of commands that begin where the last one ended, from
/// the daemon's journal: a run lasts from one change of policy to the next.
///
/// # Errors
/// The journal has another number of changes than there are runs.
pub(super) fn add_seeks(journal: &str, runs: &mut [PolicyFigures]) -> Result<()> {
    let mut shares = Vec::new();
    let (mut zero, mut total, mut head) = (0u64, 0u64, None::<Lba>);
    for entry in journal.lines().filter_map(entry).chain([Entry::Switch("end")]) {
        match entry {
            Entry::Switch(_) => {
                shares.push(zero as f64 / total.max(1) as f64);
                (zero, total) = (0, 0);
            }
            Entry::Issue(_, extent) => {
                zero += u64::from(head == Some(extent.start()));
                total += 1;
                head = Some(extent.end());
            }
            Entry::Submit(_) => {}
        }
    }
    // The first stretch is the boot's, under the policy of the start.
    if shares.len() != runs.len() + 1 {
        let what = format!("{} stretches of {} policies in the journal", shares.len(), runs.len());
        return Err(LiveError::Measured(what));
    }
    for (run, share) in runs.iter_mut().zip(&shares[1..]) {
        run.zero_seeks = *share;
    }
    Ok(())
}

/// Processor time of the whole host, in ticks (proc(5), `/proc/stat`).
pub(super) struct HostCpu {
    busy: u64,
    all: u64,
}

impl HostCpu {
    pub(super) fn now() -> HostCpu {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Self::parse(text.lines().next().unwrap_or_default())
    }

    /// From the first line of a `/proc/stat`, this machine's or a guest's.
    pub(super) fn parse(line: &str) -> HostCpu {
        let fields = line.split_whitespace().skip(1).map(|field| field.parse().unwrap_or(0));
        // user nice system idle iowait irq softirq steal; guest time is in user.
        let fields: Vec<u64> = fields.take(8).collect();
        let all: u64 = fields.iter().sum();
        let idle: u64 = fields.iter().skip(3).take(2).sum();
        HostCpu { busy: all - idle, all }
    }

    /// Share of the time since then, 0 to 1.
    pub(super) fn busy_since(&self) -> f64 {
        self.busy_until(&HostCpu::now())
    }

    /// Share of the time from then to a later look, 0 to 1.
    pub(super) fn busy_until(&self, later: &HostCpu) -> f64 {
        let all = later.all.saturating_sub(self.all).max(1);
        later.busy.saturating_sub(self.busy) as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_from_what_sysbench_says() {
        let said = "Threads started!\n\n\
            [ 1s ] reads: 12.34 MiB/s writes: 0.00 MiB/s fsyncs: 0.00/s latency (ms,95%): 1.234\n\
            noise\n\
            [ 2s ] reads: 0.50 MiB/s writes: 0.00 MiB/s fsyncs: 0.00/s latency (ms,95%): 1.234\n";
        assert_eq!(sysbench_rates(said), [12.34, 0.5]);
    }

    #[test]
    fn seeks_are_counted_between_changes_of_policy() {
        let journal = "seekway-journal 2 policy=cfq depth=1\n\
            0 issue 0 R 0+8\n\
            1 switch a\n\
            2 submit 0 R sync 8+8 tag=0 token=0\n\
            2 issue 0 R 8+8\n\
            3 issue 1 R 100+8\n\
            4 switch b\n\
            5 issue 1 R 0+8\n";
        let run = PolicyFigures {
            policy: "a".into(),
            seconds: 1.0,
            vms: Vec::new(),
            requests: 0,
            commands: 0,
            held_ms: BTreeMap::new(),
            waits_tried: 0,
            waits_paid: 0,
            late: 0,
            host_busy: 0.0,
            zero_seeks: -1.0,
        };
        let mut runs = [run.clone(), run.clone()];
        add_seeks(journal, &mut runs).expect("two policies");
        assert_eq!(runs.map(|r| r.zero_seeks), [0.5, 0.0]);
        assert!(add_seeks(journal, &mut [run]).is_err());
    }
}
