//! Waiting: for a time, and for guests to be at work.

use super::figures::device;
use crate::daemon::Daemon;
use crate::error::{LiveError, Result};
use seekway_hostd::control::HostReport;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// For applications to begin.
const PATIENCE: Duration = Duration::from_secs(600);

/// Sleeps until this time. It ends soon, with an error, after `interrupted` is set.
pub(super) fn sleep_until(until: Instant, interrupted: &AtomicBool) -> Result<()> {
    loop {
        if interrupted.load(Ordering::Relaxed) {
            return Err(LiveError::Measured("interrupted".into()));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
}

/// Waits until each of these disks has had so many requests more than in `idle`.
pub(super) fn until_all_work(
    daemon: &Daemon,
    disks: &[impl AsRef<str>],
    idle: &HostReport,
    requests_more: u64,
) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = daemon.status()?;
        let mut waiting = Vec::new();
        for disk in disks.iter().map(AsRef::as_ref) {
            if requests(&now, disk)? < requests(idle, disk)? + requests_more {
                waiting.push(disk);
            }
        }
        if waiting.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let who = waiting.join(", ");
            let what = format!("{who}: no I/O within {} s", PATIENCE.as_secs());
            return Err(LiveError::Measured(what));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Reads and writes of a disk since its daemon's start.
fn requests(report: &HostReport, disk: &str) -> Result<u64> {
    let found = device(report)?.disks.iter().find(|d| d.name == disk);
    let disk = found.ok_or_else(|| LiveError::Daemon(format!("status: no disk {disk}")))?;
    Ok(disk.ops.values().map(|op| op.requests).sum())
}
