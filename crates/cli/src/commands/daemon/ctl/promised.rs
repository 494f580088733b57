//! What `ctl status` says of reservations and targets of latency: are they kept?

use crate::promises;
use seekway_core::scheduler::Promise;
use seekway_hostd::control::{DeviceReport, DiskReport, HostReport};
use seekway_report::table::Table;
use seekway_stack::stack::limit::DiskLimits;

/// A target counts as missed from this part of late requests on.
const MISSED: f64 = 0.01;
/// Reservations count as met from this part on.
const MET: f64 = 0.99;

/// A row for each promise to a disk, if there are some.
pub fn table(report: &HostReport) -> Option<Table> {
    let mut rows: Vec<(&str, String, String)> = Vec::new();
    for device in &report.devices {
        for disk in &device.disks {
            let Ok(limits) = DiskLimits::parse(&disk.limits) else { continue };
            let not_kept = promises::not_kept(&device.policy, [&limits.limits]);
            for (promise, key) in limits.limits.promises() {
                let kept = match not_kept.contains(&key) {
                    true => format!("no: policy {} does not keep it", device.policy),
                    false => kept(device, disk, promise),
                };
                rows.push((&disk.name, pair(&disk.limits, key), kept));
            }
        }
    }
    let table = Table::of("Reservations and latency", &rows)
        .text("disk", |row| row.0)
        .text("promised", |row| &row.1)
        .text("kept", |row| &row.2);
    (!rows.is_empty()).then(|| table.done())
}

/// The pair of this key in the text of limits.
fn pair(limits: &str, key: &str) -> String {
    let found = limits.split(',').find(|pair| pair.split('=').next() == Some(key));
    found.unwrap_or(key).to_string()
}

fn kept(device: &DeviceReport, disk: &DiskReport, promise: Promise) -> String {
    let of = |key: &str| disk.policy_metrics.get(key).copied();
    let ms = |us: f64| format!("{:.3} ms", us / 1e3);
    match promise {
        Promise::Iops | Promise::Bandwidth => match of("reservation_met") {
            Some(met) if met < MET => format!(
                "{:.0} %: {} cannot do all that is reserved on it",
                100.0 * met,
                device.name
            ),
            _ => "yes".into(),
        },
        Promise::Latency => {
            let Some(missed) = of("latency_missed") else { return "no request yet".into() };
            let p99 = ms(of("latency_p99_us").unwrap_or(0.0));
            match of("latency_unreachable_best_us") {
                Some(best) => format!("unreachable: p99 {} at best, {p99} now", ms(best)),
                None if missed > MISSED => format!("not yet: p99 {p99}"),
                None => format!("yes: p99 {p99}"),
            }
        }
        Promise::Group => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_found_by_its_key() {
        let limits = "iops=5,reserve_iops=3,latency=2ms,group=a";
        assert_eq!(pair(limits, "reserve_iops"), "reserve_iops=3");
        assert_eq!(pair(limits, "latency"), "latency=2ms");
    }
}
