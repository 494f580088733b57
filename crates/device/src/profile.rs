//! Device profiles: TOML files in `profiles/`, embedded in the program, each figure with its source
//! beside it; and the spelling `name:key=value,key=value` for the keys that experiments vary.

mod check;
#[cfg(test)]
mod tests;

use crate::DeviceModel;
use crate::cloud::Cloud;
use crate::disk::cache::{OnHit, Replacement};
use crate::disk::{Disk, QueueOrder};
use crate::linear::Linear;
use crate::published::{Begin, Published};
use crate::raid0::{Member, Raid0};
use crate::slowed::{SLOW_MAX, Slowed};
use crate::ssd::{FlashTimes, Ssd, SsdSpec, Start, WritePlace};
use seekway_core::params::{ParamError, parse_count, parse_size};
use serde::Deserialize;
use std::num::NonZeroU32;
use thiserror::Error;
use toml::{Table, Value};

const EMBEDDED: &[(&str, &str)] = &[
    ("linear-15k4", include_str!("../profiles/linear-15k4.toml")),
    ("linear-7200", include_str!("../profiles/linear-7200.toml")),
    ("cheetah-15k4", include_str!("../profiles/cheetah-15k4.toml")),
    ("cheetah-15k5", include_str!("../profiles/cheetah-15k5.toml")),
    ("cheetah-9lp", include_str!("../profiles/cheetah-9lp.toml")),
    ("atlas-10k", include_str!("../profiles/atlas-10k.toml")),
    ("seagate-1tb-7200", include_str!("../profiles/seagate-1tb-7200.toml")),
    ("seagate-exos-x18", include_str!("../profiles/seagate-exos-x18.toml")),
    ("seagate-exos-x24", include_str!("../profiles/seagate-exos-x24.toml")),
    ("intel-320", include_str!("../profiles/intel-320.toml")),
    ("intel-x25m-g2", include_str!("../profiles/intel-x25m-g2.toml")),
    ("samsung-970-pro", include_str!("../profiles/samsung-970-pro.toml")),
    ("samsung-970-pro-gc", include_str!("../profiles/samsung-970-pro-gc.toml")),
    ("samsung-970-pro-512gb", include_str!("../profiles/samsung-970-pro-512gb.toml")),
    ("samsung-860-250gb", include_str!("../profiles/samsung-860-250gb.toml")),
    ("micron-5400-pro", include_str!("../profiles/micron-5400-pro.toml")),
    ("intel-dc-p3700", include_str!("../profiles/intel-dc-p3700.toml")),
    ("intel-dc-p3600", include_str!("../profiles/intel-dc-p3600.toml")),
    ("intel-d7-p5600", include_str!("../profiles/intel-d7-p5600.toml")),
    ("samsung-pm9a3", include_str!("../profiles/samsung-pm9a3.toml")),
    ("aws-i3-nvme", include_str!("../profiles/aws-i3-nvme.toml")),
    ("cloud-flash", include_str!("../profiles/cloud-flash.toml")),
    ("raid0-8x-x25m-g2", include_str!("../profiles/raid0-8x-x25m-g2.toml")),
    ("raid10-8x-exos-x18", include_str!("../profiles/raid10-8x-exos-x18.toml")),
    ("aws-gp3", include_str!("../profiles/aws-gp3.toml")),
    ("aws-gp2", include_str!("../profiles/aws-gp2.toml")),
    ("aws-gp2-100gib", include_str!("../profiles/aws-gp2-100gib.toml")),
    ("aws-io2", include_str!("../profiles/aws-io2.toml")),
    ("azure-premium-ssd", include_str!("../profiles/azure-premium-ssd.toml")),
    ("azure-p10", include_str!("../profiles/azure-p10.toml")),
    ("gcp-pd-balanced", include_str!("../profiles/gcp-pd-balanced.toml")),
    ("gcp-pd-ssd", include_str!("../profiles/gcp-pd-ssd.toml")),
];

/// Longest profile text that is parsed.
pub const PROFILE_BYTES_MAX: usize = 1 << 20;

/// An error in a profile or in its overrides.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ProfileError {
    /// No embedded profile has this name.
    #[error("no device profile is called `{name}`; known are: {known}")]
    Unknown {
        /// The name that was given.
        name: String,
        known: String,
    },
    /// Not TOML, or a key that is missing, unknown or of another type; the
    /// message names line and key.
    #[error("device profile does not parse: {0}")]
    Toml(String),
    /// A figure out of its range.
    #[error("device profile: {key}: expected {expected}, found {found}")]
    Value {
        /// Path of the key, as in `disk.layout.zone[3].sectors_per_track`.
        key: String,
        /// The allowed values.
        expected: String,
        found: String,
    },
    /// An override that does not fit.
    #[error("device profile `{profile}`: {key}={value}: expected {expected}")]
    Override {
        profile: String,
        /// The key before the `=`.
        key: String,
        value: String,
        expected: String,
    },
}

/// A validated profile, of which devices can be built. Building never fails.
#[derive(Clone)]
pub struct Profile {
    file: File,
    /// The profile as a table, to which overrides apply.
    table: Table,
}

/// Names of the embedded profiles, in the order of the help text.
pub fn names() -> impl Iterator<Item = &'static str> {
    EMBEDDED.iter().map(|&(name, _)| name)
}

/// The TOML text of the embedded profile `name`, with the sources of its figures.
///
/// # Errors
/// [`ProfileError::Unknown`].
pub fn text(name: &str) -> Result<&'static str, ProfileError> {
    let embedded = EMBEDDED.iter().find(|&&(n, _)| n == name);
    embedded.map(|&(_, text)| text).ok_or_else(|| ProfileError::Unknown {
        name: name.to_owned(),
        known: names().collect::<Vec<_>>().join(", "),
    })
}

/// Loads a profile: TOML text when `what` holds a line break, else the name of
/// an embedded one with optional overrides, as in
/// `seagate-1tb-7200:read_ahead_idle=false,queue_depth=8`.
///
/// Keys for drives: `segments`, `segment_sectors`, `replacement` (fifo, lru),
/// `on_hit` (consume, extend, keep), `read_ahead`, `read_ahead_min`,
/// `read_ahead_max`, `resume_below`, `read_ahead_idle`, `cut_short`,
/// `read_hits_on_writes`, `write_cache`, `write_segments`, `write_order` (fcfs,
/// sptf), `queue_depth`, `queue_order` (fcfs, sptf). For linear devices: `segments`,
/// `segment_sectors`, `prefetch_sectors`, `replacement`, `on_hit`, `base_ms`,
/// `stroke_ms`, `hit_ms`, `queue_depth`. For solid-state drives: `channels`,
/// `dies_per_channel`, `spare`, `filled` (share of the drive that holds data
/// when it is built), `state` (in-order; gc: full, and garbage is being
/// collected), `read_us`, `program_us`, `erase_us`, `host_mb_s`,
/// `read_latency_us`, `write_latency_us`, `write_buffer_kib`,
/// `capacity_sectors`, `queue_depth`, `separate_paths`, `program_spread_us`,
/// `seed`, `overlap`, `planes`, `write_place` (idlest, home), `reads_first`,
/// `program_suspends`, `program_suspend_us`, `program_resume_us`,
/// `program_keep_us`, `erase_suspends`, `erase_suspend_us`, `erase_resume_us`,
/// `erase_keep_us`, `resume_min_us`, `map_cache_kib`, `map_entry_bytes`,
/// `power_loss_protection`. For arrays: `members`, `mirrors`, `chunk_kib`,
/// `queue_depth`, and what their members take. For cloud volumes: `iops`,
/// `burst_iops`, `io_credit`, `mib_s`, `burst_mib_s`, `credit_mib`, `unit_kib`,
/// `read_latency_us`, `write_latency_us`, `spread_us`, `seed`,
/// `capacity_sectors`, `queue_depth`. A derived profile takes what the one that
/// it is derived from takes. `slow=8` makes any device eight times slower.
///
/// `capacity=500GiB` makes a volume of that size with the rates that the provider's rule gives it,
/// a drive with fewer surfaces in use, or a solid-state or linear device of that size that is as
/// fast. An array has the size of its members.
///
/// # Errors
/// Names the key, the expected values and the one found.
pub fn load(what: &str) -> Result<Profile, ProfileError> {
    if what.contains('\n') {
        return Profile::parse(what);
    }
    let (name, overrides) = what.split_once(':').unwrap_or((what, ""));
    Profile::parse_with(text(name)?, overrides)
}

/// Splits the name of a file (not of an embedded profile) into path and overrides: `FILE.toml`,
/// `FILE.toml:key=value,…`, or a path with a `/` in it, which is all path unless it ends in
/// `.toml`.
pub fn path_of(what: &str) -> Option<(&str, &str)> {
    const END: &str = ".toml";
    if let Some(at) = what.find(&format!("{END}:")) {
        let (path, rest) = what.split_at(at + END.len());
        return Some((path, &rest[1..]));
    }
    (what.ends_with(END) || what.contains('/')).then_some((what, ""))
}

impl Profile {
    /// Parses TOML text and sets overrides (see [`load`]).
    ///
    /// # Errors
    /// As [`load`].
    pub fn parse_with(text: &str, overrides: &str) -> Result<Profile, ProfileError> {
        Profile::parse(text)?.with(overrides)
    }

    /// With overrides, `key=value,…` (see [`load`]).
    ///
    /// # Errors
    /// As [`load`].
    pub fn with(mut self, overrides: &str) -> Result<Profile, ProfileError> {
        for part in overrides.split(',').filter(|p| !p.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            self.vary(key.trim(), value.trim())?;
        }
        // Once all are in: `segment_sectors=64,read_ahead_max=64` may come in any order.
        self.check()?;
        Ok(self)
    }

    /// Parses and checks TOML text.
    ///
    /// # Errors
    /// As [`load`].
    pub fn parse(text: &str) -> Result<Profile, ProfileError> {
        if text.len() > PROFILE_BYTES_MAX {
            let expected = format!("at most {PROFILE_BYTES_MAX} bytes");
            let found = format!("{} bytes", text.len());
            return Err(ProfileError::Value { key: "the file".into(), expected, found });
        }
        let wrong = |e: toml::de::Error| ProfileError::Toml(e.to_string());
        Profile::checked(toml::from_str(text).map_err(wrong)?, toml::from_str(text).map_err(wrong)?)
    }

    /// Checks a profile that is a table already.
    ///
    /// # Errors
    /// As [`load`].
    pub fn from_table(table: Table) -> Result<Profile, ProfileError> {
        let file = table.clone().try_into().map_err(|e| ProfileError::Toml(e.to_string()))?;
        Profile::checked(file, table)
    }

    fn checked(file: File, table: Table) -> Result<Profile, ProfileError> {
        let profile = derive(Profile { file, table })?;
        profile.check()?;
        Ok(profile)
    }

    pub fn name(&self) -> &str {
        &self.file.name
    }

    /// A sentence on the device.
    pub fn summary(&self) -> &str {
        &self.file.summary
    }

    /// Does it describe a drive by a straight line, as papers do? Such a model says nothing of
    /// caches, and has its drive's own profile beside it.
    pub fn is_linear(&self) -> bool {
        self.file.linear.is_some()
    }

    /// Size of the device in sectors.
    pub fn capacity_sectors(&self) -> u64 {
        let file = &self.file;
        if let Some(linear) = &file.linear {
            linear.capacity_sectors
        } else if let Some(disk) = &file.disk {
            disk.capacity_sectors
        } else if let Some(ssd) = &file.ssd {
            ssd.capacity_sectors
        } else if let Some(cloud) = &file.cloud {
            cloud.capacity_sectors
        } else {
            // Only an array has to be asked: its members and chunks decide.
            self.device().map_or(0, |device| device.profile().capacity.get())
        }
    }

    /// A new device at rest at time 0.
    pub fn build(&self) -> Box<dyn DeviceModel> {
        match self.device() {
            Ok(device) => device,
            // Every way to a `Profile` goes through `check`, which builds the same.
            Err(error) => unreachable!("a checked profile does not build: {error}"),
        }
    }

    /// A new device for a test of [`crate::published`]. A drive takes as many commands as the
    /// published tests sent.
    pub fn build_for(&self, begin: Begin) -> Box<dyn DeviceModel> {
        let mut profile = self.clone();
        let depth = self.published().map_or(1, |published| published.random_queue_depth);
        match &mut profile.file {
            File { ssd: Some(ssd), .. } if begin == Begin::InOrder => ssd.state = Start::InOrder,
            File { disk: Some(disk), .. } => disk.queue_depth = disk.queue_depth.max(depth),
            _ => {}
        }
        profile.build()
    }

    /// The drive itself, for tests and tools that look inside; `None` for a linear device.
    pub fn build_disk(&self) -> Option<Disk> {
        let file = self.file.disk.as_ref()?;
        check::disk(file).ok().map(Disk::new)
    }

    /// The solid-state drive itself, for tests; `None` for another device.
    #[cfg(test)]
    pub(crate) fn build_ssd(&self) -> Option<Ssd> {
        check::ssd(self.file.ssd.as_ref()?).ok().map(Ssd::new)
    }

    /// Published figures; `None` where the profile states nothing, or is of a linear device.
    pub fn published(&self) -> Option<Published> {
        match &self.file {
            File { slow: 1, disk: Some(disk), .. } => disk.published.clone(),
            File { slow: 1, ssd: Some(ssd), .. } => ssd.published.clone(),
            File { slow: 1, raid0: Some(raid0), .. } => raid0.published.clone(),
            File { slow: 1, cloud: Some(cloud), .. } => cloud.published.clone(),
            _ => None,
        }
    }

    fn device(&self) -> Result<Box<dyn DeviceModel>, ProfileError> {
        let device = self.at_full_speed()?;
        match NonZeroU32::new(self.file.slow).filter(|slow| slow.get() <= SLOW_MAX) {
            Some(NonZeroU32::MIN) => Ok(device),
            Some(slow) => Ok(Box::new(Slowed::new(device, slow))),
            None => Err(ProfileError::Value {
                key: "slow".into(),
                expected: format!("1 to {SLOW_MAX}"),
                found: self.file.slow.to_string(),
            }),
        }
    }

    fn at_full_speed(&self) -> Result<Box<dyn DeviceModel>, ProfileError> {
        one_kind(&self.file)?;
        match &self.file {
            File { linear: Some(linear), .. } => Ok(Box::new(Linear::new(check::linear(linear)?))),
            File { disk: Some(disk), .. } => Ok(Box::new(Disk::new(check::disk(disk)?))),
            File { ssd: Some(ssd), .. } => Ok(Box::new(Ssd::new(check::ssd(ssd)?))),
            File { raid0: Some(raid0), .. } => array(raid0),
            File { cloud: Some(cloud), .. } => Ok(Box::new(Cloud::new(check::cloud(cloud)?))),
            _ => unreachable!("a derived profile was replaced by what it is derived from"),
        }
    }

    fn check(&self) -> Result<(), ProfileError> {
        self.device().map(drop)
    }
}

/// A file describes one kind of device.
fn one_kind(file: &File) -> Result<(), ProfileError> {
    let File { linear, disk, ssd, raid0, cloud, derived, .. } = file;
    let kinds = [
        linear.is_some(),
        disk.is_some(),
        ssd.is_some(),
        raid0.is_some(),
        cloud.is_some(),
        derived.is_some(),
    ];
    match kinds.iter().filter(|&&is| is).count() {
        1 => Ok(()),
        found => Err(ProfileError::Value {
            key: "the file".into(),
            expected: "exactly one of [linear], [disk], [ssd], [raid0], [cloud] and [derived]"
                .into(),
            found: if found == 0 { "none".into() } else { format!("{found} of them") },
        }),
    }
}

/// Builds a derived profile on its original, under its own name. Its own published figures, if any,
/// replace the original's.
fn derive(profile: Profile) -> Result<Profile, ProfileError> {
    one_kind(&profile.file)?;
    let Some(derived) = &profile.file.derived else { return Ok(profile) };
    if derived.from.contains('\n') {
        return Err(ProfileError::Value {
            key: "derived.from".into(),
            expected: "the name of an embedded profile, with changes".into(),
            found: "a text".into(),
        });
    }
    let Profile { file: original, mut table } = load(&derived.from)?;
    let kinds = ["disk", "ssd", "raid0", "cloud"];
    let kind = kinds.into_iter().find(|kind| table.contains_key(*kind));
    if kind.is_none() && derived.published.is_some() {
        return Err(ProfileError::Value {
            key: "derived.published".into(),
            expected: "derived.from not to be a linear device".into(),
            found: derived.from.clone(),
        });
    }
    if let Some(original) = kind.and_then(|kind| table[kind].as_table_mut()) {
        let own = profile.table["derived"].get("published");
        original.remove("published");
        original.extend(own.map(|published| ("published".into(), published.clone())));
    }
    let slow = original.slow.saturating_mul(profile.file.slow);
    for (key, value) in [("name", &profile.file.name), ("summary", &profile.file.summary)] {
        table.insert(key.into(), Value::String(value.clone()));
    }
    table.insert("slow".into(), Value::Integer(slow.into()));
    let file = table.clone().try_into().map_err(|e| ProfileError::Toml(e.to_string()))?;
    Ok(Profile { file, table })
}

/// The array of `file`.
fn array(file: &Raid0File) -> Result<Box<dyn DeviceModel>, ProfileError> {
    let spec = check::raid0(file)?;
    let member = load(&file.member)?;
    let members = match &member.file {
        File { slow: 1, ssd: Some(ssd), .. } => {
            let member = check::ssd(ssd)?;
            // Each member's programs vary in their own way.
            let seeded = |number| FlashTimes {
                seed: member.flash.seed.wrapping_add(u64::from(number)),
                ..member.flash
            };
            let drive = |number| Ssd::new(SsdSpec { flash: seeded(number), ..member });
            (0..spec.members).map(|number| Member::Flash(Box::new(drive(number)))).collect()
        }
        File { slow: 1, disk: Some(disk), .. } => (0..spec.members)
            .map(|_| check::disk(disk).map(|disk| Member::Disk(Box::new(Disk::new(disk)))))
            .collect::<Result<_, _>>()?,
        _ => {
            return Err(ProfileError::Value {
                key: "raid0.member".into(),
                expected: "a drive's profile, without `slow`: that is the array's".into(),
                found: file.member.clone(),
            });
        }
    };
    Ok(Box::new(Raid0::new(spec, members)))
}

// Overrides: the keys that experiments vary, by name. An override replaces a key's value in the
// profile's TOML.

/// The keys of each kind of device, as messages list them.
const LINEAR: &str = "segments, segment_sectors, prefetch_sectors, replacement, on_hit, \
                      idle_ahead, base_ms, stroke_ms, hit_ms, queue_depth";

const DISK: &str = "segments, segment_sectors, replacement, on_hit, read_ahead, read_ahead_min, \
                    read_ahead_max, resume_below, read_ahead_idle, cut_short, \
                    read_hits_on_writes, write_cache, write_segments, write_order, queue_depth, \
                    queue_order";

const SSD: &str = "channels, dies_per_channel, spare, filled, state, read_us, program_us, \
                   erase_us, host_mb_s, read_latency_us, write_latency_us, write_buffer_kib, \
                   capacity_sectors, queue_depth, separate_paths, program_spread_us, seed, \
                   overlap, planes, write_place, reads_first, program_suspends, \
                   program_suspend_us, program_resume_us, program_keep_us, erase_suspends, \
                   erase_suspend_us, erase_resume_us, erase_keep_us, resume_min_us, \
                   map_cache_kib, map_entry_bytes, power_loss_protection";

const CLOUD: &str = "iops, burst_iops, io_credit, mib_s, burst_mib_s, credit_mib, unit_kib, \
                     read_latency_us, write_latency_us, spread_us, seed, capacity_sectors, \
                     queue_depth";

const RAID0: &str = "members, mirrors, chunk_kib, queue_depth";

impl Profile {
    /// Sets one override; ranges are checked when all are set.
    fn vary(&mut self, key: &str, value: &str) -> Result<(), ProfileError> {
        self.set(key, value).map_err(|expected| ProfileError::Override {
            profile: self.file.name.clone(),
            key: key.to_owned(),
            value: value.to_owned(),
            expected,
        })
    }

    /// As [`Profile::vary`]; the error names the expected values.
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        if key == "capacity" {
            return self.resize(value);
        }
        let (path, keys): (&[&str], &str) = match &self.file {
            _ if key == "slow" => (&[], "slow"),
            File { linear: Some(_), .. } => (&["linear"], LINEAR),
            File { disk: Some(_), .. } if matches!(key, "queue_depth" | "queue_order") => {
                (&["disk"], DISK)
            }
            File { disk: Some(_), .. } => (&["disk", "cache"], DISK),
            File { ssd: Some(_), .. } => (&["ssd"], SSD),
            File { cloud: Some(_), .. } => (&["cloud"], CLOUD),
            _ => (&["raid0"], RAID0),
        };
        let is_known = keys.split(", ").any(|known| known == key);
        match &self.file.raid0 {
            Some(array) if !is_known => {
                // Keys that are not the array's own go to its members.
                let member = varied(&array.member, key, value)?;
                return self.put(path, "member", Value::String(member));
            }
            _ if !is_known => return Err(format!("one of {keys}")),
            _ => {}
        }
        if (key, value) == ("state", "gc") {
            self.put(path, "filled", Value::Float(1.0))?;
        }
        self.put(path, key, read(value))
    }

    /// Sets the size; a drive has as many surfaces as that takes.
    fn resize(&mut self, value: &str) -> Result<(), String> {
        let refused = |e: ParamError| {
            let text = e.to_string();
            text.strip_prefix("expected ").map_or(format!("a size: {text}"), str::to_owned)
        };
        let sectors = parse_size(value).map_err(refused)?.get();
        let number = |n: u64| i64::try_from(n).map(Value::Integer).map_err(|e| e.to_string());
        let kind = match &self.file {
            File { linear: Some(_), .. } => "linear",
            File { ssd: Some(_), .. } => "ssd",
            File { cloud: Some(_), .. } => {
                // They are of the size in the profile.
                let table = self.table.get_mut("cloud").and_then(Value::as_table_mut);
                table.map(|cloud| cloud.remove("published"));
                "cloud"
            }
            File { disk: Some(disk), .. } => {
                let (whole, surfaces) = (disk.capacity_sectors, u64::from(disk.layout.surfaces));
                if sectors > whole {
                    let most = whole as f64 / f64::from(1 << 21);
                    return Err(format!("at most {most:.0}GiB, which its platters hold"));
                }
                let used = (u128::from(sectors) * u128::from(surfaces)).div_ceil(whole.into());
                self.put(&["disk", "layout"], "surfaces", number(used as u64)?)?;
                "disk"
            }
            _ => return Err("capacity_sectors (of each member) or members".into()),
        };
        self.put(&[kind], "capacity_sectors", number(sectors)?)
    }

    fn put(&mut self, path: &[&str], key: &str, value: Value) -> Result<(), String> {
        let mut table = &mut self.table;
        for name in path {
            table = table.get_mut(*name).and_then(Value::as_table_mut).ok_or("a device")?;
        }
        table.insert(key.into(), value);
        self.file = self.table.clone().try_into().map_err(|_| expected(key))?;
        Ok(())
    }
}

/// A member of an array with one more override.
fn varied(member: &str, key: &str, value: &str) -> Result<String, String> {
    load(member)
        .map_err(|e| e.to_string())?
        .set(key, value)
        .map_err(|expected| format!("{RAID0}, or of its members {expected}"))?;
    let separator = if member.contains(':') { ',' } else { ':' };
    Ok(format!("{member}{separator}{key}={value}"))
}

/// A number, a switch or a word.
fn read(value: &str) -> Value {
    let count = parse_count(value).ok().and_then(|n| i64::try_from(n).ok());
    let number = count.or_else(|| value.parse().ok()).map(Value::Integer);
    let number = number.or_else(|| value.parse().map(Value::Float).ok());
    let switch = || value.parse().map(Value::Boolean).ok();
    number.or_else(switch).unwrap_or_else(|| Value::String(value.into()))
}

/// Type of a key's value, in words.
fn expected(key: &str) -> &'static str {
    match key {
        "replacement" => "fifo or lru",
        "on_hit" => "consume or extend or keep",
        "state" => "in-order or gc",
        "write_place" => "idlest or home",
        "queue_order" | "write_order" => "fcfs or sptf",
        "spare" | "filled" | "reads_first" => "a share",
        "idle_ahead"
        | "read_ahead"
        | "read_ahead_idle"
        | "cut_short"
        | "read_hits_on_writes"
        | "write_cache"
        | "power_loss_protection"
        | "separate_paths"
        | "overlap" => "true or false",
        _ if key.ends_with("_ms") => "a time in ms",
        _ if key.ends_with("_us") => "a time in µs",
        _ => "a whole number",
    }
}

// The TOML of a profile, field by field. Parsing fills these; `check`
// turns them into specifications.

/// A whole file: exactly one of the kinds of device.
#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct File {
    pub name: String,
    pub summary: String,
    /// Factor by which the device is slower than the figures below, 1 to 1024. Absent: 1.
    #[serde(default = "one")]
    pub slow: u32,
    pub linear: Option<LinearFile>,
    pub disk: Option<DiskFile>,
    pub ssd: Option<SsdFile>,
    pub raid0: Option<Raid0File>,
    pub cloud: Option<CloudFile>,
    pub derived: Option<DerivedFile>,
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct LinearFile {
    pub capacity_sectors: u64,
    pub base_ms: f64,
    pub stroke_ms: f64,
    /// With `near_ms`: distance in sectors from the head within which a seek takes that time
    /// instead of the line's. Absent: the line holds.
    #[serde(default)]
    pub near_sectors: u64,
    pub near_ms: Option<f64>,
    pub rotation_ms: f64,
    pub hit_ms: f64,
    /// Of every write, if the drive's write cache answers them. Absent: they are served like reads.
    pub write_ms: Option<f64>,
    pub queue_depth: u32,
    pub segments: u32,
    pub segment_sectors: u64,
    pub prefetch_sectors: u64,
    pub replacement: Replacement,
    pub on_hit: OnHit,
    /// Absent: not.
    #[serde(default)]
    pub idle_ahead: bool,
}

#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct DiskFile {
    pub capacity_sectors: u64,
    pub rpm: f64,
    pub head_switch_ms: f64,
    pub write_settle_ms: f64,
    pub bus_sector_us: f64,
    pub queue_depth: u32,
    pub queue_order: QueueOrder,
    pub layout: LayoutFile,
    pub seek: SeekFile,
    pub overhead: OverheadFile,
    pub cache: CacheFile,
    pub published: Option<Published>,
}

#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct SsdFile {
    pub capacity_sectors: u64,
    pub channels: u32,
    pub dies_per_channel: u32,
    pub page_kib: u32,
    pub mapping_kib: u32,
    pub block_pages: u32,
    pub spare: f64,
    pub filled: f64,
    /// Layout of the data at the start; absent: in order, as from the factory.
    #[serde(default)]
    pub state: Start,
    pub read_us: f64,
    pub program_us: f64,
    pub erase_us: f64,
    pub channel_mb_s: u64,
    pub host_mb_s: u64,
    pub full_duplex: bool,
    pub read_command_us: f64,
    pub write_command_us: f64,
    pub read_latency_us: f64,
    pub write_latency_us: f64,
    pub write_buffer_kib: u32,
    pub queue_depth: u32,
    /// Reads have a controller to themselves. Absent: not.
    #[serde(default)]
    pub separate_paths: bool,
    /// Largest deviation of a program from `program_us`, to either side. Absent: 0.
    #[serde(default)]
    pub program_spread_us: f64,
    /// Where the sequence of these differences begins. Absent: 0.
    #[serde(default)]
    pub seed: u64,
    /// A die's register sends or takes a page while its array works. Absent: it does.
    #[serde(default = "yes")]
    pub overlap: bool,
    /// Planes of a die: pages that are read, programmed or erased in one go. Absent: 1.
    #[serde(default = "one")]
    pub planes: u32,
    /// Which die a page is programmed to. Absent: the idlest.
    #[serde(default)]
    pub write_place: WritePlace,
    /// Fill of the write buffer, as a share, below which reads go before programs and erases that
    /// have not begun: 0 never, 1 always. Absent: 0.
    #[serde(default)]
    pub reads_first: f64,
    /// Suspensions of one program for reads, at most. Absent: 0.
    #[serde(default)]
    pub program_suspends: u32,
    /// From the wish to suspend a program until the die is free for the read. Absent: 0.
    #[serde(default)]
    pub program_suspend_us: f64,
    /// Time by which each suspension lengthens the rest of a program. Absent: 0.
    #[serde(default)]
    pub program_resume_us: f64,
    /// With no more than this left a program is not suspended. Absent: 0.
    #[serde(default)]
    pub program_keep_us: f64,
    /// As of a program, of an erase.
    #[serde(default)]
    pub erase_suspends: u32,
    #[serde(default)]
    pub erase_suspend_us: f64,
    #[serde(default)]
    pub erase_resume_us: f64,
    #[serde(default)]
    pub erase_keep_us: f64,
    /// Least time between two suspensions for which the suspended job runs on. Absent: 0.
    #[serde(default)]
    pub resume_min_us: f64,
    /// Memory for the mapping table. Absent: all of it is in memory.
    pub map_cache_kib: Option<u32>,
    /// Bytes of an entry of the table, only with `map_cache_kib`. Absent: 4.
    pub map_entry_bytes: Option<u32>,
    /// The write buffer survives a loss of power, so that a flush is answered at once. Absent: a
    /// flush waits until all of it is programmed.
    #[serde(default)]
    pub power_loss_protection: bool,
    pub published: Option<Published>,
}

/// Several alike, striped.
#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct Raid0File {
    pub member: String,
    pub members: u32,
    /// Members that hold the same data: 2 makes it RAID 10. Absent: 1.
    #[serde(default = "one")]
    pub mirrors: u32,
    pub chunk_kib: u32,
    pub queue_depth: u32,
    pub published: Option<Published>,
}

/// A cloud volume. Without burst figures it cannot burst. Rates that are absent are the rule's.
#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct CloudFile {
    pub capacity_sectors: u64,
    pub iops: Option<u64>,
    pub burst_iops: Option<u64>,
    pub io_credit: Option<u64>,
    pub mib_s: Option<u64>,
    pub burst_mib_s: Option<u64>,
    pub credit_mib: Option<u64>,
    pub unit_kib: u32,
    pub read_latency_us: f64,
    pub write_latency_us: f64,
    pub spread_us: f64,
    #[serde(default)]
    pub seed: u64,
    pub queue_depth: u32,
    /// The smallest volume that is sold; the last rule has the largest.
    #[serde(default)]
    pub from_gib: u64,
    /// Where the provider says what is sold.
    pub source: Option<String>,
    /// Rates by size, ascending: the first rule that reaches the volume's size counts.
    #[serde(default)]
    pub rule: Vec<RuleFile>,
    /// Limits for rates that are not the rule's. Without them rates are not for sale.
    pub limits: Option<LimitsFile>,
    /// Groups of sizes, by their largest: a volume may be sold with the rates of a larger one of
    /// its group.
    #[serde(default)]
    pub tiers_up_to_gib: Vec<u64>,
    pub published: Option<Published>,
}
/// Rates of the volumes up to a size: each the sum of its parts.
#[derive(Clone, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
struct RuleFile {
    pub up_to_gib: u64,
    pub iops: u64,
    pub iops_per_gib: f64,
    pub iops_most: Option<u64>,
    pub burst_iops: Option<u64>,
    pub io_credit: u64,
    pub mib_s: u64,
    pub mib_s_per_gib: f64,
    pub mib_s_per_io: f64,
    pub mib_s_most: Option<u64>,
    pub burst_mib_s: Option<u64>,
    pub credit_mib: u64,
}

/// Rates that can be bought: from the least to the smaller of two for I/Os, and of two for MiB.
#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct LimitsFile {
    #[serde(default)]
    pub iops_least: u64,
    pub iops: u64,
    pub iops_per_gib: u64,
    #[serde(default)]
    pub mib_s_least: u64,
    pub mib_s: u64,
    pub mib_s_per_io: f64,
}

/// Another profile with changes, under a name of its own.
#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct DerivedFile {
    pub from: String,
    /// Replaces the original's.
    pub published: Option<Published>,
}

#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct LayoutFile {
    pub surfaces: u32,
    pub mapping: MappingFile,
    #[serde(default)]
    pub band_cylinders: u32,
    pub zone: Vec<ZoneFile>,
}

#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct ZoneFile {
    pub first_cylinder: u32,
    pub last_cylinder: u32,
    pub sectors_per_track: u32,
    pub track_skew: f64,
    pub cylinder_skew: f64,
    #[serde(default)]
    pub first_angle: f64,
    #[serde(default)]
    pub spares: u64,
    #[serde(default)]
    pub slips: Vec<u64>,
}

#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct SeekFile {
    pub table_ms: Option<Vec<(u32, f64)>>,
    pub formula: Option<FormulaFile>,
}

/// `a_ms + b_ms·√d` to `split` cylinders, `c_ms + e_ms·d` above.
#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct FormulaFile {
    pub a_ms: f64,
    pub b_ms: f64,
    pub split: u32,
    pub c_ms: f64,
    pub e_ms: f64,
}

/// Each: [after a read, after a write].
#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct OverheadFile {
    pub read_hit_ms: [f64; 2],
    pub read_miss_ms: [f64; 2],
    pub write_hit_ms: [f64; 2],
    pub write_miss_ms: [f64; 2],
}

#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct CacheFile {
    pub segments: u32,
    pub segment_sectors: u64,
    pub replacement: Replacement,
    pub on_hit: OnHit,
    pub read_ahead: bool,
    pub read_ahead_min: u64,
    pub read_ahead_max: u64,
    pub resume_below: u64,
    pub read_ahead_idle: bool,
    pub cut_short: bool,
    pub read_hits_on_writes: bool,
    pub write_cache: bool,
    pub write_segments: u32,
    /// In which order cached writes reach the medium. Absent: fcfs.
    #[serde(default)]
    pub write_order: QueueOrder,
}

#[derive(Clone, Copy, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum MappingFile {
    Cylinder,
    Serpentine,
    Surface,
}

#[cfg(test)]
mod schema_tests {
    use super::*;

    #[test]
    fn a_schema_is_made_of_these_files() {
        seekway_testing::schema_of_input::<File>(
            "list-device",
            "seekway list devices NAME --format json",
        );
    }
}
