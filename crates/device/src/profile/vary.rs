//! Overrides: the keys that experiments vary, by name.

use super::schema::*;
use super::{Profile, ProfileError};

/// Sets `slot` from the text, or says what was expected.
fn set<T: std::str::FromStr>(slot: &mut T, value: &str, expected: &str) -> Result<(), String> {
    *slot = value.parse().map_err(|_| expected.to_owned())?;
    Ok(())
}

fn choose<T: Copy>(slot: &mut T, value: &str, choices: &[(&str, T)]) -> Result<(), String> {
    match choices.iter().find(|&&(word, _)| word == value) {
        Some(&(_, choice)) => {
            *slot = choice;
            Ok(())
        }
        None => Err(choices.iter().map(|&(word, _)| word).collect::<Vec<_>>().join(" or ")),
    }
}

const REPLACEMENTS: &[(&str, ReplacementFile)] =
    &[("fifo", ReplacementFile::Fifo), ("lru", ReplacementFile::Lru)];
const ON_HITS: &[(&str, OnHitFile)] =
    &[("consume", OnHitFile::Consume), ("extend", OnHitFile::Extend), ("keep", OnHitFile::Keep)];
const STATES: &[(&str, StateFile)] = &[("in-order", StateFile::InOrder), ("gc", StateFile::Gc)];
const WRITE_PLACES: &[(&str, WritePlaceFile)] =
    &[("idlest", WritePlaceFile::Idlest), ("home", WritePlaceFile::Home)];
const ORDERS: &[(&str, OrderFile)] = &[("fcfs", OrderFile::Fcfs), ("sptf", OrderFile::Sptf)];

const COUNT: &str = "a whole number";
const MS: &str = "a time in ms";
const US: &str = "a time in µs";
const SHARE: &str = "a share";
const SWITCH: &str = "true or false";

impl Profile {
    /// Sets one override; ranges are checked when all are set.
    pub(super) fn vary(&mut self, key: &str, value: &str) -> Result<(), ProfileError> {
        let file = &mut self.file;
        let outcome = if key == "slow" {
            set(&mut file.slow, value, COUNT)
        } else if let Some(linear) = &mut file.linear {
            vary_linear(linear, key, value)
        } else if let Some(disk) = &mut file.disk {
            vary_disk(disk, key, value)
        } else if let Some(ssd) = &mut file.ssd {
            vary_ssd(ssd, key, value)
        } else if let Some(raid0) = &mut file.raid0 {
            vary_raid0(raid0, key, value)
        } else if let Some(cloud) = &mut file.cloud {
            vary_cloud(cloud, key, value)
        } else {
            Err("a device".to_owned())
        };
        outcome.map_err(|expected| ProfileError::Override {
            profile: self.file.name.clone(),
            key: key.to_owned(),
            value: value.to_owned(),
            expected,
        })
    }
}

fn vary_linear(l: &mut LinearFile, key: &str, value: &str) -> Result<(), String> {
    match key {
        "segments" => set(&mut l.segments, value, COUNT),
        "segment_sectors" => set(&mut l.segment_sectors, value, COUNT),
        "prefetch_sectors" => set(&mut l.prefetch_sectors, value, COUNT),
        "replacement" => choose(&mut l.replacement, value, REPLACEMENTS),
        "on_hit" => choose(&mut l.on_hit, value, ON_HITS),
        "base_ms" => set(&mut l.base_ms, value, MS),
        "stroke_ms" => set(&mut l.stroke_ms, value, MS),
        "hit_ms" => set(&mut l.hit_ms, value, MS),
        "queue_depth" => set(&mut l.queue_depth, value, COUNT),
        "idle_ahead" => set(&mut l.idle_ahead, value, SWITCH),
        _ => Err(
            "one of segments, segment_sectors, prefetch_sectors, replacement, on_hit, idle_ahead, \
                  base_ms, stroke_ms, hit_ms, queue_depth"
                .to_owned(),
        ),
    }
}

fn vary_disk(d: &mut DiskFile, key: &str, value: &str) -> Result<(), String> {
    let c = &mut d.cache;
    match key {
        "segments" => set(&mut c.segments, value, COUNT),
        "segment_sectors" => set(&mut c.segment_sectors, value, COUNT),
        "replacement" => choose(&mut c.replacement, value, REPLACEMENTS),
        "on_hit" => choose(&mut c.on_hit, value, ON_HITS),
        "read_ahead" => set(&mut c.read_ahead, value, SWITCH),
        "read_ahead_min" => set(&mut c.read_ahead_min, value, COUNT),
        "read_ahead_max" => set(&mut c.read_ahead_max, value, COUNT),
        "resume_below" => set(&mut c.resume_below, value, COUNT),
        "read_ahead_idle" => set(&mut c.read_ahead_idle, value, SWITCH),
        "cut_short" => set(&mut c.cut_short, value, SWITCH),
        "read_hits_on_writes" => set(&mut c.read_hits_on_writes, value, SWITCH),
        "write_cache" => set(&mut c.write_cache, value, SWITCH),
        "write_segments" => set(&mut c.write_segments, value, COUNT),
        "queue_depth" => set(&mut d.queue_depth, value, COUNT),
        "queue_order" => choose(&mut d.queue_order, value, ORDERS),
        _ => Err(
            "one of segments, segment_sectors, replacement, on_hit, read_ahead, read_ahead_min, \
                  read_ahead_max, resume_below, read_ahead_idle, cut_short, read_hits_on_writes, \
                  write_cache, write_segments, queue_depth, queue_order"
                .to_owned(),
        ),
    }
}

fn vary_ssd(s: &mut SsdFile, key: &str, value: &str) -> Result<(), String> {
    match key {
        "channels" => set(&mut s.channels, value, COUNT),
        "dies_per_channel" => set(&mut s.dies_per_channel, value, COUNT),
        "spare" => set(&mut s.spare, value, SHARE),
        "filled" => set(&mut s.filled, value, SHARE),
        "state" => {
            choose(&mut s.state, value, STATES)?;
            if s.state == StateFile::Gc {
                s.filled = 1.0;
            }
            Ok(())
        }
        "read_us" => set(&mut s.read_us, value, US),
        "program_us" => set(&mut s.program_us, value, US),
        "erase_us" => set(&mut s.erase_us, value, US),
        "host_mb_s" => set(&mut s.host_mb_s, value, COUNT),
        "read_latency_us" => set(&mut s.read_latency_us, value, US),
        "write_latency_us" => set(&mut s.write_latency_us, value, US),
        "write_buffer_kib" => set(&mut s.write_buffer_kib, value, COUNT),
        "capacity_sectors" => set(&mut s.capacity_sectors, value, COUNT),
        "queue_depth" => set(&mut s.queue_depth, value, COUNT),
        "separate_paths" => set(&mut s.separate_paths, value, SWITCH),
        "program_spread_us" => set(&mut s.program_spread_us, value, US),
        "seed" => set(&mut s.seed, value, COUNT),
        "overlap" => set(&mut s.overlap, value, SWITCH),
        "planes" => set(&mut s.planes, value, COUNT),
        "reads_first" => set(&mut s.reads_first, value, SHARE),
        "program_suspends" => set(&mut s.program_suspends, value, COUNT),
        "program_suspend_us" => set(&mut s.program_suspend_us, value, US),
        "program_resume_us" => set(&mut s.program_resume_us, value, US),
        "program_keep_us" => set(&mut s.program_keep_us, value, US),
        "erase_suspends" => set(&mut s.erase_suspends, value, COUNT),
        "erase_suspend_us" => set(&mut s.erase_suspend_us, value, US),
        "erase_resume_us" => set(&mut s.erase_resume_us, value, US),
        "erase_keep_us" => set(&mut s.erase_keep_us, value, US),
        "resume_min_us" => set(&mut s.resume_min_us, value, US),
        "write_place" => choose(&mut s.write_place, value, WRITE_PLACES),
        _ => Err("one of channels, dies_per_channel, spare, filled, state, read_us, program_us, \
                  erase_us, host_mb_s, read_latency_us, write_latency_us, write_buffer_kib, \
                  capacity_sectors, queue_depth, separate_paths, program_spread_us, seed, overlap, \
                  planes, write_place, reads_first, program_suspends, program_suspend_us, \
                  program_resume_us, program_keep_us, erase_suspends, erase_suspend_us, \
                  erase_resume_us, erase_keep_us, resume_min_us"
            .to_owned()),
    }
}

fn vary_cloud(c: &mut CloudFile, key: &str, value: &str) -> Result<(), String> {
    match key {
        "iops" => set(&mut c.iops, value, COUNT),
        "burst_iops" => set(c.burst_iops.get_or_insert(0), value, COUNT),
        "io_credit" => set(&mut c.io_credit, value, COUNT),
        "mib_s" => set(&mut c.mib_s, value, COUNT),
        "burst_mib_s" => set(c.burst_mib_s.get_or_insert(0), value, COUNT),
        "credit_mib" => set(&mut c.credit_mib, value, COUNT),
        "unit_kib" => set(&mut c.unit_kib, value, COUNT),
        "read_latency_us" => set(&mut c.read_latency_us, value, US),
        "write_latency_us" => set(&mut c.write_latency_us, value, US),
        "spread_us" => set(&mut c.spread_us, value, US),
        "seed" => set(&mut c.seed, value, COUNT),
        "capacity_sectors" => set(&mut c.capacity_sectors, value, COUNT),
        "queue_depth" => set(&mut c.queue_depth, value, COUNT),
        _ => Err("one of iops, burst_iops, io_credit, mib_s, burst_mib_s, credit_mib, unit_kib, \
                  read_latency_us, write_latency_us, spread_us, seed, capacity_sectors, \
                  queue_depth"
            .to_owned()),
    }
}

/// What is not the array's own goes to its members.
fn vary_raid0(r: &mut Raid0File, key: &str, value: &str) -> Result<(), String> {
    match key {
        "members" => set(&mut r.members, value, COUNT),
        "chunk_kib" => set(&mut r.chunk_kib, value, COUNT),
        "queue_depth" => set(&mut r.queue_depth, value, COUNT),
        _ => {
            let mut member = super::load(&r.member).map_err(|e| e.to_string())?;
            member.vary(key, value).map_err(|e| match e {
                ProfileError::Override { expected, .. } => {
                    format!("members, chunk_kib, queue_depth, or of its members {expected}")
                }
                other => other.to_string(),
            })?;
            let separator = if r.member.contains(':') { ',' } else { ':' };
            r.member = format!("{}{separator}{key}={value}", r.member);
            Ok(())
        }
    }
}
