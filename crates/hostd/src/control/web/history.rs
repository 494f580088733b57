//! The history as the page gets it: compact, for there may be 50,000 disks' seconds in it. A disk
//! is a list of numbers in the order of `columns`, or `0` where nothing happened.

use crate::control::counts::{Counts, add_counts, quantile_ms};
use crate::control::figures::Number;
use crate::control::history::{DeviceSample, DiskSample, History, Sample, find_disk};
use crate::control::report::HostReport;
use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// A request for history.
#[derive(PartialEq, Debug)]
pub struct Wanted {
    /// Only samples that ended later than this second of the daemon's life.
    pub since_s: f64,
    /// All since the start, in steps that grow with it; else the last minutes in seconds.
    pub whole: bool,
    /// The response times of this disk; else of all disks of the device together.
    pub disk: Option<String>,
    /// Without the disks' lists.
    pub brief: bool,
}

/// Quantiles of the response times of a disk's reads and writes: they follow its figures.
const QUANTILES: [(&str, f64); 2] = [("p50_ms", 0.5), ("p99_ms", 0.99)];

/// Names of the numbers of a disk.
fn columns() -> Vec<&'static str> {
    DiskSample::FIGURES.iter().copied().chain(QUANTILES.map(|(name, _)| name)).collect()
}

#[derive(Serialize)]
struct HistoryAnswer<'a> {
    /// Another process, another history.
    process: u32,
    uptime_s: f64,
    columns: Vec<&'static str>,
    /// Names in the order of the lists of `samples`.
    devices: &'a [Names<'a>],
    samples: Vec<SampleRow<'a>>,
}

#[derive(Serialize)]
struct Names<'a> {
    name: &'a str,
    disks: Vec<&'a str>,
}

#[derive(Serialize)]
struct SampleRow<'a> {
    since_s: f64,
    until_s: f64,
    /// Absent ones are null.
    devices: Vec<Option<DeviceRow<'a>>>,
}

#[derive(Serialize)]
struct DeviceRow<'a> {
    commands: u64,
    outstanding: u64,
    in_flight: u32,
    service_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    jain: Option<f64>,
    held_ms: &'a BTreeMap<String, f64>,
    regions: &'a Counts,
    responses: Counts,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    disks: Vec<DiskRow<'a>>,
}

struct DiskRow<'a>(Option<&'a DiskSample>);

impl Serialize for DiskRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some(disk) = self.0.filter(|disk| is_busy(disk)) else {
            return serializer.serialize_u8(0);
        };
        let mut row = serializer.serialize_seq(None)?;
        for figure in disk.figures() {
            match figure {
                Number::Whole(count) => row.serialize_element(&count)?,
                Number::Real(ms) => row.serialize_element(&rounded(ms))?,
            }
        }
        for (_, share) in QUANTILES {
            row.serialize_element(&quantile_ms(&disk.responses, share).map(rounded))?;
        }
        row.end()
    }
}

fn is_busy(disk: &DiskSample) -> bool {
    disk.figures().any(|figure| match figure {
        Number::Whole(count) => count > 0,
        Number::Real(ms) => ms > 0.0,
    })
}

/// To the microsecond: more digits are noise, and many.
fn rounded(ms: f64) -> f64 {
    (ms * 1e3).round() / 1e3
}

/// The part of the history that is wanted, as JSON.
pub fn text(report: &HostReport, history: &History, wanted: &Wanted) -> String {
    let all: Vec<&Sample> = match wanted.whole {
        true => history.whole().collect(),
        false => history.recent.iter().collect(),
    };
    let samples: Vec<&Sample> = all.into_iter().filter(|s| s.until_s > wanted.since_s).collect();
    let devices = names(&samples);
    let answer = HistoryAnswer {
        process: report.process,
        uptime_s: report.uptime_s,
        columns: columns(),
        devices: &devices,
        samples: samples.iter().map(|sample| sample_row(sample, &devices, wanted)).collect(),
    };
    serde_json::to_string(&answer).unwrap_or_default() // only maps with odd keys can fail
}

/// The devices and disks of all samples; those of the last one first, in its order.
fn names<'a>(samples: &[&'a Sample]) -> Vec<Names<'a>> {
    let mut all: Vec<Names<'a>> = Vec::new();
    for sample in samples.iter().rev() {
        for device in &sample.devices {
            let at = all.iter().position(|names| names.name == device.name).unwrap_or_else(|| {
                all.push(Names { name: &device.name, disks: Vec::new() });
                all.len() - 1
            });
            let disks = &mut all[at].disks;
            for (n, disk) in device.disks.iter().enumerate() {
                let name = disk.name.as_str();
                // Mostly where it was in the sample before: a search for each would take long.
                if disks.get(n) != Some(&name) && !disks.contains(&name) {
                    disks.push(name);
                }
            }
        }
    }
    all
}

fn sample_row<'a>(sample: &'a Sample, devices: &[Names<'_>], wanted: &Wanted) -> SampleRow<'a> {
    let row = |names: &Names<'_>| {
        let device = sample.devices.iter().find(|device| device.name == names.name)?;
        Some(device_row(device, names, wanted))
    };
    SampleRow {
        since_s: rounded(sample.since_s),
        until_s: rounded(sample.until_s),
        devices: devices.iter().map(row).collect(),
    }
}

fn device_row<'a>(device: &'a DeviceSample, names: &Names<'_>, wanted: &Wanted) -> DeviceRow<'a> {
    let disk = |(at, name): (usize, &&str)| DiskRow(find_disk(&device.disks, at, name));
    let mut responses = Counts::new();
    for disk in &device.disks {
        if wanted.disk.as_ref().is_none_or(|wanted| *wanted == disk.name) {
            add_counts(&mut responses, &disk.responses);
        }
    }
    DeviceRow {
        commands: device.commands,
        outstanding: device.outstanding,
        in_flight: device.in_flight,
        service_ms: rounded(device.service_ms),
        jain: device.jain,
        held_ms: &device.held_ms,
        regions: &device.regions,
        responses,
        disks: match wanted.brief {
            true => Vec::new(),
            false => names.disks.iter().enumerate().map(disk).collect(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn sample(at: u64, disks: &[&str]) -> Sample {
        let disk = |name: &&str| DiskSample {
            name: (*name).into(),
            reads: u64::from(*name != "idle") * 3,
            read_bytes: u64::from(*name != "idle") * 12_288,
            responses: vec![(20, 2), (40, 1)],
            ..DiskSample::default()
        };
        let disks = disks.iter().map(disk).collect();
        let device = DeviceSample { name: "sda".into(), disks, ..DeviceSample::default() };
        Sample { since_s: at as f64, until_s: at as f64 + 1.0, devices: vec![device] }
    }

    fn answer(samples: Vec<Sample>, wanted: &Wanted) -> Value {
        let mut history = History::default();
        samples.into_iter().for_each(|sample| history.push(sample));
        let report = json!({ "version": "1", "process": 7, "uptime_s": 9.5, "sockets": [],
            "devices": [] });
        let report = serde_json::from_value(report).unwrap();
        serde_json::from_str(&text(&report, &history, wanted)).unwrap()
    }

    const ALL: Wanted = Wanted { since_s: 0.0, whole: false, disk: None, brief: false };

    #[test]
    fn disks_keep_their_places_when_others_come_and_go() {
        let samples = vec![sample(0, &["a", "idle"]), sample(1, &["b", "a"]), sample(2, &["b"])];
        let all = answer(samples, &ALL);
        assert_eq!(all["process"], 7);
        assert_eq!(all["devices"][0]["disks"], json!(["b", "a", "idle"]));
        let row = |n: usize| all["samples"][n]["devices"][0]["disks"].clone();
        let reads = |n: usize, at: usize| row(n)[at][0].as_u64();
        assert_eq!([reads(0, 0), reads(0, 1), reads(0, 2)], [None, Some(3), None]);
        assert_eq!([reads(1, 0), reads(1, 1), reads(1, 2)], [Some(3), Some(3), None]);
        assert_eq!([reads(2, 0), reads(2, 1), reads(2, 2)], [Some(3), None, None]);
        assert_eq!(row(0)[2], 0);
        assert_eq!(row(0)[1].as_array().unwrap().len(), columns().len());
    }

    #[test]
    fn it_gives_what_is_wanted() {
        let samples = || vec![sample(0, &["a", "b"]), sample(1, &["a", "b"])];
        let later = answer(samples(), &Wanted { since_s: 1.0, ..ALL });
        assert_eq!(later["samples"].as_array().unwrap().len(), 1);
        assert_eq!(later["samples"][0]["devices"][0]["responses"], json!([[20, 4], [40, 2]]));
        let of_one = answer(samples(), &Wanted { disk: Some("a".into()), brief: true, ..ALL });
        let device = &of_one["samples"][1]["devices"][0];
        assert_eq!(device["responses"], json!([[20, 2], [40, 1]]));
        assert_eq!(device.get("disks"), None);
        let whole = answer(samples(), &Wanted { whole: true, ..ALL });
        assert_eq!(whole["samples"].as_array().unwrap().len(), 2);
    }
}
