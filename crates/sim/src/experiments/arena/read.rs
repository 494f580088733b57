//! The arena's scenes as a TOML file states them. The file is part of the program:
//! what is wrong with it is a programmer error, and a test reads all of it.

use super::{Judging, Scene, Unit};
use crate::experiments::Scenario;
use seekway_policy::params::{ParamError, parse_duration};
use seekway_policy::stack::limit::{DiskLimits, Limits, parse_group};
use seekway_policy::units::{Lba, Nanos};
use seekway_workload::generators::parse_vm;
use serde::Deserialize;
use std::num::NonZeroU32;
use std::sync::Arc;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    device: Vec<DeviceFile>,
    scene: Vec<SceneFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeviceFile {
    pub(super) name: String,
    pub(super) profile: String,
    pub(super) medium: Medium,
    pub(super) settle: String,
    pub(super) measure: String,
    window: String,
    pub(super) set: Vec<String>,
}

/// What kind of device scenes run on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Medium {
    /// Solid-state drives and arrays of them.
    Flash,
    /// Volumes over a network.
    Cloud,
    /// Disks with a head.
    Disk,
}

impl Medium {
    pub const ALL: [Medium; 3] = [Medium::Flash, Medium::Cloud, Medium::Disk];

    /// As in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Medium::Flash => "flash",
            Medium::Cloud => "cloud",
            Medium::Disk => "disk",
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SceneFile {
    pub(super) name: String,
    pub(super) about: String,
    pub(super) on: Vec<String>,
    pub(super) quiet: Option<String>,
    pub(super) vms: Vec<GroupFile>,
    #[serde(default)]
    pub(super) unit: Unit,
    #[serde(default = "yes")]
    pub(super) steady: bool,
    #[serde(default = "yes")]
    pub(super) latency: bool,
    #[serde(default = "yes")]
    pub(super) shares: bool,
    #[serde(default)]
    pub(super) groups: Vec<String>,
    pub(super) settle: Option<String>,
    pub(super) measure: Option<String>,
    #[serde(default)]
    pub(super) place: u64,
    pub(super) group: Option<String>,
    pub(super) late: Option<String>,
    #[serde(default)]
    pub(super) prefetch: bool,
}

/// So many equal VMs, and their load.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupFile {
    pub(super) load: String,
    #[serde(default = "one")]
    pub(super) count: u32,
    #[serde(default = "one")]
    pub(super) weight: u32,
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

/// Reads all scenes; times are divided by `shrink`.
pub(super) fn scenes(text: &str, shrink: u64) -> Result<Vec<Scene>, String> {
    let file: File = toml::from_str(text).map_err(|e| e.to_string())?;
    let mut scenes: Vec<Scene> = Vec::new();
    // In the order of the devices, so that what happens on one stands together.
    for device in &file.device {
        for scene in file.scene.iter().filter(|scene| scene.on.contains(&device.name)) {
            scenes.push(read(device, scene, shrink)?);
        }
    }
    let listed: usize = file.scene.iter().map(|scene| scene.on.len()).sum();
    if listed != scenes.len() {
        return Err("a scene is on a device that is not in the file".into());
    }
    Ok(scenes)
}

/// The devices of the file.
pub(super) fn devices(text: &str) -> Vec<DeviceFile> {
    toml::from_str::<File>(text).expect("the scenes are part of the program").device
}

/// A scene on a device; times are divided by `shrink`.
pub(super) fn read(device: &DeviceFile, file: &SceneFile, shrink: u64) -> Result<Scene, String> {
    let name = format!("{}/{}", device.name, file.name);
    let time = |text: &String| {
        let time = parse_duration(text).map_err(|e| format!("{name}: {text}: {e}"))?;
        Ok::<Nanos, String>(time.scaled(1, shrink))
    };
    let late = file.late.as_ref().map(time).transpose()?;
    let starts = late.map(|late| format!(",start={}ns", late.get())).unwrap_or_default();
    let quiet_load = file.quiet.as_ref().map(|load| format!("{load}{starts}"));
    let quiet = quiet_load.iter().map(|load| (1, 1, load));
    let groups = file.vms.iter().map(|group| (group.count, group.weight, &group.load));
    let (mut vms, mut kinds, mut kind_of) = (Vec::new(), Vec::new(), Vec::new());
    let (mut weights, mut limits) = (Vec::new(), Vec::new());
    for (count, weight, load) in quiet.chain(groups) {
        let kind = kinds.iter().position(|known| known == load).unwrap_or_else(|| {
            kinds.push(load.clone());
            kinds.len() - 1
        });
        let weight = NonZeroU32::new(weight).ok_or_else(|| format!("{name}: a weight of 0"))?;
        let plan = parse_vm(&format!("name=vm,{load}")).map_err(|e| format!("{name}: {e}"))?;
        if !plan.disks.is_empty() {
            return Err(format!("{name}: a scene judges VMs with one disk each; drop disk="));
        }
        for _ in 0..count {
            let quiet = file.quiet.is_some() && vms.is_empty();
            let vm = if quiet { "quiet".into() } else { format!("vm{}", vms.len() + 1) };
            vms.push(format!("name={vm},{load}"));
            kind_of.push(kind);
            weights.push(weight);
            limits.push(plan.limits.clone());
        }
    }
    let settle = time(file.settle.as_ref().unwrap_or(&device.settle))?;
    let measure = time(file.measure.as_ref().unwrap_or(&device.measure))?;
    let window = Some(time(&device.window)?).filter(|_| file.steady);
    let judging = Judging {
        quiet: file.quiet.is_some().then_some(0),
        latency: file.latency,
        unit: file.unit,
        window,
        settle,
        shares: file.shares,
        weights: shares(&weights, &limits, &file.groups).map_err(|e| format!("{name}: {e}"))?,
        promises: limits.iter().map(|own| own.limits).collect(),
    };
    let scenario = Scenario {
        place: Lba::new(file.place),
        weights,
        groups: file.groups.clone(),
        ..Scenario::new(name.clone(), vms, device.profile.clone()).measured(settle, measure)
    };
    Ok(Scene {
        name,
        about: file.about.clone(),
        group: file.group.clone(),
        device: device.name.clone(),
        medium: device.medium,
        judging,
        scenario: Arc::new(scenario),
        prefetch: file.prefetch,
        set: device.set.clone(),
        kinds,
        kind_of,
    })
}

/// Each VM's part of the device where all are busy: its weight, or its part of its group's.
fn shares(
    weights: &[NonZeroU32],
    limits: &[DiskLimits],
    groups: &[String],
) -> Result<Vec<f64>, ParamError> {
    let groups = groups.iter().map(|text| parse_group(text)).collect::<Result<Vec<_>, _>>()?;
    let vms = || weights.iter().zip(limits);
    let share = |(weight, own): (&NonZeroU32, &DiskLimits)| {
        let own_weight = f64::from(weight.get());
        let group = groups.iter().find(|(name, _)| own.group.as_ref() == Some(name));
        let Some((name, Limits { weight: Some(of_group), .. })) = group else { return own_weight };
        let members = vms().filter(|(_, other)| other.group.as_ref() == Some(name));
        let total: f64 = members.map(|(weight, _)| f64::from(weight.get())).sum();
        f64::from(of_group.get()) * own_weight / total
    };
    Ok(vms().map(share).collect())
}
