//! Which disks wait for which, and why, as far as the daemon's figures tell. Pure.

use super::history::{DeviceSample, DiskSample};
use super::report::DiskReport;

/// Shares of the time below this are not worth a sentence.
const SOME: f64 = 0.05;

/// Why requests of a disk waited in the last interval, a sentence each, the weightiest cause first.
pub fn of(disk: &DiskReport, now: &DiskSample, on: &DeviceSample, seconds: f64) -> Vec<String> {
    let share = |ms: f64| ms / 1e3 / seconds;
    let mut reasons = Vec::new();
    if let Some(left_s) = disk.frozen_s {
        reasons.push((2.0, format!("it is frozen for {left_s:.0} s more (ctl freeze)")));
    }
    if disk.elsewhere {
        reasons.push((2.0, "another daemon has its image: its guest migrates".into()));
    }
    let limited = share(now.limited_ms);
    if disk.limited > 0 || limited > SOME {
        let text = format!(
            "{} wait for its limits, which held requests for {:.0} % of the time",
            disk.limited,
            100.0 * limited.min(1.0)
        );
        reasons.push((1.0 + limited, text));
    }
    let all_ms: f64 = on.disks.iter().map(|d| d.device_time_ms).sum();
    let most = on.disks.iter().filter(|d| d.name != now.name);
    let most = most.max_by(|a, b| a.device_time_ms.total_cmp(&b.device_time_ms));
    let waits_for_device = u64::from(disk.outstanding) > disk.limited;
    if let Some(other) = most.filter(|o| waits_for_device && o.device_time_ms > SOME * all_ms) {
        let part = other.device_time_ms / all_ms;
        let text = format!("{} has {:.0} % of the device's time", other.name, 100.0 * part);
        reasons.push((part, text));
    }
    if waits_for_device {
        for (why, ms) in on.held_ms.iter().filter(|(_, ms)| share(**ms) > SOME) {
            let text = format!(
                "the policy withheld the device for {:.0} % of the time ({why})",
                100.0 * share(*ms).min(1.0)
            );
            reasons.push((share(*ms), text));
        }
    }
    reasons.sort_by(|a, b| b.0.total_cmp(&a.0));
    reasons.into_iter().map(|(_, text)| text).collect()
}
