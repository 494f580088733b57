//! State of `seekway top`: the daemon's last report, the intervals before it, and the user's
//! choices. Pure.

use seekway_hostd::control::counts::quantile_ms;
use seekway_hostd::control::history::{DeviceSample, DiskSample, Sample};
use seekway_hostd::control::reasons;
use seekway_hostd::control::{DeviceReport, DiskReport, HostReport};
use std::collections::VecDeque;

/// Intervals kept for the sparklines: more than a wide terminal has columns.
const SAMPLES: usize = 240;

/// An order of the disks: the word for it, and a figure of which the largest comes first.
type Sort = (&'static str, fn(&DiskRow) -> f64);

/// Orders of disks, each with its key.
pub const SORTS: [Sort; 6] = [
    ("name", |_| 0.0),
    ("IOPS", |row| row.iops),
    ("bandwidth", |row| row.read_mib_s + row.written_mib_s),
    ("p99", |row| row.p99_ms.unwrap_or(0.0)),
    ("device time", |row| row.share.unwrap_or(0.0)),
    ("waiting", |row| f64::from(row.waiting)),
];

/// Value that is being typed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    Weight,
    Limit,
    Policy,
}

/// A line that is being typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Input {
    pub asked: Asked,
    /// The disk, or for a policy the device, that it is for.
    pub of: String,
    pub text: String,
}

/// Everything that is drawn.
#[derive(Debug, Default)]
pub struct View {
    pub report: Option<HostReport>,
    pub samples: VecDeque<Sample>,
    /// By which of [`SORTS`] the disks are sorted.
    pub sort: usize,
    pub reversed: bool,
    /// Name of the disk.
    pub selected: Option<String>,
    pub input: Option<Input>,
    /// Last answer of the daemon, or the reason why it does not answer.
    pub message: String,
    pub paused: bool,
    pub help: bool,
}

/// A disk in the last interval.
#[derive(Clone, PartialEq, Debug)]
pub struct DiskRow {
    pub device: String,
    pub name: String,
    pub weight: u32,
    pub iops: f64,
    pub read_mib_s: f64,
    pub written_mib_s: f64,
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    /// Of the time that all disks had on the device; absent when none had any.
    pub share: Option<f64>,
    pub waiting: u32,
    pub errors: u64,
    /// p99 of the last intervals, newest last; 0 where there was no request.
    pub p99s_ms: Vec<f64>,
    /// Why its requests wait, a sentence each.
    pub reasons: Vec<String>,
}

/// A device in the last interval.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceRow {
    pub name: String,
    pub policy: String,
    pub queued: u64,
    pub in_flight: u32,
    pub depth: u32,
    /// Share of the time in which it was busy with reads and writes.
    pub busy: f64,
    /// Shares of the time withheld, by cause, the longest first.
    pub held: Vec<(String, f64)>,
    pub jain: Option<f64>,
}

impl View {
    /// The daemon's next report.
    pub fn take(&mut self, report: HostReport) {
        if let Some(before) = &self.report {
            if before.process != report.process || report.uptime_s < before.uptime_s {
                self.samples.clear(); // another daemon: nothing of it is known
            } else if report.uptime_s > before.uptime_s {
                self.samples.push_back(Sample::between(before, &report));
            }
        }
        while self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
        self.report = Some(report);
        let disks = self.disks();
        let is_there = |name: &String| disks.iter().any(|disk| disk.name == *name);
        if !self.selected.as_ref().is_some_and(is_there) {
            self.selected = disks.first().map(|disk| disk.name.clone());
        }
    }

    /// The disks in the order that the user wants.
    pub fn disks(&self) -> Vec<DiskRow> {
        let Some(report) = &self.report else { return Vec::new() };
        let of = |device: &DeviceReport| {
            let row = |disk: &DiskReport| self.disk(device, disk);
            device.disks.iter().map(row).collect::<Vec<_>>()
        };
        let mut rows: Vec<DiskRow> = report.devices.iter().flat_map(of).collect();
        let (_, key) = SORTS[self.sort];
        rows.sort_by(|a, b| key(b).total_cmp(&key(a)).then_with(|| a.name.cmp(&b.name)));
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    /// The devices, as the daemon has them.
    pub fn devices(&self) -> Vec<DeviceRow> {
        let devices = self.report.iter().flat_map(|report| &report.devices);
        devices.map(|device| self.device(device)).collect()
    }

    fn device(&self, device: &DeviceReport) -> DeviceRow {
        let last = self.samples.back();
        let sample = last.and_then(|s| s.devices.iter().find(|d| d.name == device.name));
        let seconds = last.map_or(1.0, Sample::seconds);
        let share = |ms: f64| (ms / 1e3 / seconds).clamp(0.0, 1.0);
        let held = sample.iter().flat_map(|sample| &sample.held_ms);
        let mut held: Vec<_> = held.map(|(why, ms)| (why.clone(), share(*ms))).collect();
        held.sort_by(|a, b| b.1.total_cmp(&a.1));
        DeviceRow {
            name: device.name.clone(),
            policy: device.policy.clone(),
            queued: device.outstanding.saturating_sub(device.in_flight.into()),
            in_flight: device.in_flight,
            depth: device.depth,
            busy: sample.map_or(0.0, |sample| share(sample.service_ms)),
            held,
            jain: device.fairness.jain,
        }
    }

    fn disk(&self, device: &DeviceReport, disk: &DiskReport) -> DiskRow {
        let find = |sample: &Sample| -> Option<(DeviceSample, DiskSample)> {
            let of = sample.devices.iter().find(|d| d.name == device.name)?;
            let found = of.disks.iter().find(|d| d.name == disk.name)?;
            Some((of.clone(), found.clone()))
        };
        let seconds = self.samples.back().map_or(1.0, Sample::seconds);
        let (on, now) = self.samples.back().and_then(find).unwrap_or_default();
        let all_ms: f64 = on.disks.iter().map(|d| d.device_time_ms).sum();
        let mib_s = |bytes: u64| bytes as f64 / f64::from(1 << 20) / seconds;
        let p99 = |sample| find(sample).and_then(|(_, disk)| quantile_ms(&disk.responses, 0.99));
        DiskRow {
            device: device.name.clone(),
            name: disk.name.clone(),
            weight: disk.weight,
            iops: (now.reads + now.writes) as f64 / seconds,
            read_mib_s: mib_s(now.read_bytes),
            written_mib_s: mib_s(now.written_bytes),
            p50_ms: quantile_ms(&now.responses, 0.5),
            p99_ms: quantile_ms(&now.responses, 0.99),
            share: (all_ms > 0.0).then(|| now.device_time_ms / all_ms),
            waiting: disk.outstanding,
            errors: disk.ops.values().map(|op| op.errors).sum(),
            p99s_ms: self.samples.iter().map(|s| p99(s).unwrap_or(0.0)).collect(),
            reasons: reasons::of(disk, &now, &on, seconds),
        }
    }

    /// The disk that is selected, as the daemon reports it, with its device.
    pub fn selected_disk(&self) -> Option<(&DeviceReport, &DiskReport)> {
        let name = self.selected.as_ref()?;
        let devices = self.report.iter().flat_map(|report| &report.devices);
        let mut disks = devices.flat_map(|device| device.disks.iter().map(move |d| (device, d)));
        disks.find(|(_, disk)| disk.name == *name)
    }

    /// Moves the selection by this number of rows, down if positive.
    pub fn move_selection(&mut self, by: isize) {
        let disks = self.disks();
        let at = disks.iter().position(|d| Some(&d.name) == self.selected.as_ref()).unwrap_or(0);
        let to = at.saturating_add_signed(by).min(disks.len().saturating_sub(1));
        self.selected = disks.get(to).map(|disk| disk.name.clone());
    }
}
