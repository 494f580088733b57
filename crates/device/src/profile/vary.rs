//! Overrides: the keys that experiments vary, by name. An override replaces a key's value in the
//! profile's TOML.

use super::schema::File;
use super::{Profile, ProfileError};
use seekway_core::params::parse_count;
use toml::Value;

/// The keys of each kind of device, as messages list them.
const LINEAR: &str = "segments, segment_sectors, prefetch_sectors, replacement, on_hit, \
                      idle_ahead, base_ms, stroke_ms, hit_ms, queue_depth";
const DISK: &str = "segments, segment_sectors, replacement, on_hit, read_ahead, read_ahead_min, \
                    read_ahead_max, resume_below, read_ahead_idle, cut_short, \
                    read_hits_on_writes, write_cache, write_segments, queue_depth, queue_order";
const SSD: &str = "channels, dies_per_channel, spare, filled, state, read_us, program_us, \
                   erase_us, host_mb_s, read_latency_us, write_latency_us, write_buffer_kib, \
                   capacity_sectors, queue_depth, separate_paths, program_spread_us, seed, \
                   overlap, planes, write_place, reads_first, program_suspends, \
                   program_suspend_us, program_resume_us, program_keep_us, erase_suspends, \
                   erase_suspend_us, erase_resume_us, erase_keep_us, resume_min_us, \
                   map_cache_kib, map_entry_bytes";
const CLOUD: &str = "iops, burst_iops, io_credit, mib_s, burst_mib_s, credit_mib, unit_kib, \
                     read_latency_us, write_latency_us, spread_us, seed, capacity_sectors, \
                     queue_depth";
const RAID0: &str = "members, chunk_kib, queue_depth";

impl Profile {
    /// Sets one override; ranges are checked when all are set.
    pub(super) fn vary(&mut self, key: &str, value: &str) -> Result<(), ProfileError> {
        self.set(key, value).map_err(|expected| ProfileError::Override {
            profile: self.file.name.clone(),
            key: key.to_owned(),
            value: value.to_owned(),
            expected,
        })
    }

    /// As [`Profile::vary`]; the error names the expected values.
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
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
    super::load(member)
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
        "queue_order" => "fcfs or sptf",
        "spare" | "filled" | "reads_first" => "a share",
        "idle_ahead"
        | "read_ahead"
        | "read_ahead_idle"
        | "cut_short"
        | "read_hits_on_writes"
        | "write_cache"
        | "separate_paths"
        | "overlap" => "true or false",
        _ if key.ends_with("_ms") => "a time in ms",
        _ if key.ends_with("_us") => "a time in µs",
        _ => "a whole number",
    }
}
