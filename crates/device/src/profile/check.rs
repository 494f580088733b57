//! From a parsed file to a specification: every figure's range, and the relations between figures.

mod published;
mod ssd;

use super::ProfileError;
use super::schema::*;
use crate::cloud::{Cap, CloudSpec};
use crate::disk::cache::{CacheShape, Replacement};
use crate::disk::geometry::{Geometry, Mapping, ZoneSpec};
use crate::disk::mechanics::Mechanics;
use crate::disk::seek::SeekCurve;
use crate::disk::{CacheRules, DiskSpec, Overheads};
use crate::linear::LinearSpec;
use crate::raid0::Raid0Spec;
use std::ops::RangeInclusive;

pub(super) use ssd::ssd;

/// No device here holds more: 2^44 sectors are 8 PiB.
const CAPACITY_MAX: u64 = 1 << 44;
const SEGMENTS_MAX: u32 = 1_024;
const SEGMENT_SECTORS_MAX: u64 = 1 << 24;
const QUEUE_DEPTH_MAX: u32 = 256;
/// Of an array: the largest request queue of Linux (nr_requests) in practice.
const ARRAY_QUEUE_DEPTH_MAX: u32 = 8192;
const CYLINDERS_MAX: u32 = 1 << 24;
const SURFACES_MAX: u32 = 64;
const ZONES_MAX: usize = 1_000;
const SECTORS_PER_TRACK_MAX: u32 = 65_535;
const MEMBERS_MAX: u32 = 64;
const CHUNK_KIB_MAX: u32 = 1 << 20;
/// I/Os or MiB a second: more than any volume is sold with.
const RATE_MAX: u64 = 10_000_000;
/// I/Os or MiB that a bucket holds.
const CREDIT_MAX: u64 = 1_000_000_000_000;
const UNIT_KIB_MAX: u32 = 1 << 20;
/// Sectors of a KiB.
const KIB_SECTORS: u32 = 2;

fn wrong(
    key: impl Into<String>,
    expected: impl Into<String>,
    found: impl ToString,
) -> ProfileError {
    ProfileError::Value { key: key.into(), expected: expected.into(), found: found.to_string() }
}

fn within<T: PartialOrd + Copy + ToString>(
    key: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<T, ProfileError> {
    if range.contains(&value) {
        return Ok(value);
    }
    let expected = format!("{} to {}", range.start().to_string(), range.end().to_string());
    Err(wrong(key, expected, value))
}

/// A time in ms, from 0 to 10 s, to ns.
fn ms(key: &str, value: f64) -> Result<u64, ProfileError> {
    Ok((within(key, value, 0.0..=10_000.0)? * 1e6).round() as u64)
}

fn pair(key: &str, [read, write]: [f64; 2]) -> Result<[u64; 2], ProfileError> {
    Ok([ms(key, read)?, ms(key, write)?])
}

fn shape(
    prefix: &str,
    segments: u32,
    segment_sectors: u64,
    replacement: Replacement,
) -> Result<CacheShape, ProfileError> {
    Ok(CacheShape {
        segments: within(&format!("{prefix}.segments"), segments, 0..=SEGMENTS_MAX)?,
        segment_sectors: within(
            &format!("{prefix}.segment_sectors"),
            segment_sectors,
            1..=SEGMENT_SECTORS_MAX,
        )?,
        replacement,
    })
}

/// A linear device's figures.
pub(super) fn linear(f: &LinearFile) -> Result<LinearSpec, ProfileError> {
    let base_ns = ms("linear.base_ms", f.base_ms)?;
    let rotation_ns = ms("linear.rotation_ms", f.rotation_ms)?;
    if rotation_ns > 2 * base_ns {
        let expected = "at most twice linear.base_ms, which holds half a turn";
        return Err(wrong("linear.rotation_ms", expected, f.rotation_ms));
    }
    Ok(LinearSpec {
        capacity: within("linear.capacity_sectors", f.capacity_sectors, 1..=CAPACITY_MAX)?,
        base_ns,
        stroke_ns: ms("linear.stroke_ms", f.stroke_ms)?,
        near: near(f)?,
        rotation_ns,
        hit_ns: ms("linear.hit_ms", f.hit_ms)?,
        write_ns: f.write_ms.map(|write_ms| ms("linear.write_ms", write_ms)).transpose()?,
        shape: shape("linear", f.segments, f.segment_sectors, f.replacement)?,
        prefetch_sectors: within(
            "linear.prefetch_sectors",
            f.prefetch_sectors,
            0..=SEGMENT_SECTORS_MAX,
        )?,
        on_hit: f.on_hit,
        idle_ahead: f.idle_ahead,
        queue_depth: within("linear.queue_depth", f.queue_depth, 1..=QUEUE_DEPTH_MAX)?,
    })
}

/// Checks the distance near the head, and its time.
fn near(f: &LinearFile) -> Result<Option<(u64, u64)>, ProfileError> {
    let sectors = within("linear.near_sectors", f.near_sectors, 0..=CAPACITY_MAX)?;
    match f.near_ms {
        Some(near_ms) => Ok(Some((sectors, ms("linear.near_ms", near_ms)?))),
        None if sectors == 0 => Ok(None),
        None => Err(wrong("linear.near_sectors", "linear.near_ms beside it", sectors)),
    }
}

pub(super) fn disk(f: &DiskFile) -> Result<DiskSpec, ProfileError> {
    let rpm = within("disk.rpm", f.rpm, 60.0..=100_000.0)?;
    let bus_us = within("disk.bus_sector_us", f.bus_sector_us, 0.0..=10_000.0)?;
    let geometry = layout(&f.layout, f.capacity_sectors)?;
    let seek = seek(&f.seek, geometry.cylinders())?;
    Ok(DiskSpec {
        mechanics: Mechanics::new(
            geometry,
            seek,
            (60e9 / rpm).round() as u64,
            ms("disk.head_switch_ms", f.head_switch_ms)?,
            ms("disk.write_settle_ms", f.write_settle_ms)?,
        ),
        overheads: Overheads {
            read_hit_ns: pair("disk.overhead.read_hit_ms", f.overhead.read_hit_ms)?,
            read_miss_ns: pair("disk.overhead.read_miss_ms", f.overhead.read_miss_ms)?,
            write_hit_ns: pair("disk.overhead.write_hit_ms", f.overhead.write_hit_ms)?,
            write_miss_ns: pair("disk.overhead.write_miss_ms", f.overhead.write_miss_ms)?,
        },
        bus_sector_ns: (bus_us * 1e3).round() as u64,
        cache: cache(&f.cache)?,
        queue_depth: within("disk.queue_depth", f.queue_depth, 1..=QUEUE_DEPTH_MAX)?,
        order: f.queue_order,
    })
}

fn layout(f: &LayoutFile, capacity: u64) -> Result<Geometry, ProfileError> {
    let surfaces = within("disk.layout.surfaces", f.surfaces, 1..=SURFACES_MAX)?;
    let capacity = within("disk.capacity_sectors", capacity, 1..=CAPACITY_MAX)?;
    let mapping = match f.mapping {
        MappingFile::Cylinder => Mapping::Cylinder,
        MappingFile::Serpentine => Mapping::Serpentine,
        MappingFile::Surface => Mapping::Surface {
            band_cylinders: within(
                "disk.layout.band_cylinders",
                f.band_cylinders,
                1..=CYLINDERS_MAX,
            )?,
        },
    };
    within("disk.layout.zone", f.zone.len(), 1..=ZONES_MAX)?;
    let mut next_cylinder = 0;
    let mut zones = Vec::with_capacity(f.zone.len());
    for (index, z) in f.zone.iter().enumerate() {
        zones.push(zone(&format!("disk.layout.zone[{index}]"), z, next_cylinder, surfaces)?);
        next_cylinder = z.last_cylinder + 1;
    }
    Geometry::new(surfaces, mapping, &zones, capacity).map_err(|held| {
        wrong("disk.capacity_sectors", format!("at most {held}, which the zones hold"), capacity)
    })
}

fn zone(
    key: &str,
    z: &ZoneFile,
    next_cylinder: u32,
    surfaces: u32,
) -> Result<ZoneSpec, ProfileError> {
    let at = |field: &str| format!("{key}.{field}");
    within(&at("first_cylinder"), z.first_cylinder, next_cylinder..=CYLINDERS_MAX)?;
    within(&at("last_cylinder"), z.last_cylinder, z.first_cylinder..=CYLINDERS_MAX)?;
    let spt = within(&at("sectors_per_track"), z.sectors_per_track, 1..=SECTORS_PER_TRACK_MAX)?;
    let cylinders = z.last_cylinder - z.first_cylinder + 1;
    let physical = u64::from(cylinders) * u64::from(surfaces) * u64::from(spt);
    let slipped = z.slips.len() as u64;
    let unused_max = physical - 1;
    within(&at("spares"), z.spares.max(slipped), 0..=unused_max)?;
    for pair in z.slips.windows(2) {
        if pair[0] >= pair[1] {
            return Err(wrong(at("slips"), "strictly ascending positions", pair[1]));
        }
    }
    if let Some(&last) = z.slips.last() {
        within(&at("slips"), last, 0..=unused_max)?;
    }
    Ok(ZoneSpec {
        first_cylinder: z.first_cylinder,
        cylinders,
        sectors_per_track: spt,
        track_skew: within(&at("track_skew"), z.track_skew, 0.0..=f64::from(spt))?,
        cylinder_skew: within(&at("cylinder_skew"), z.cylinder_skew, 0.0..=f64::from(spt))?,
        first_angle: within(&at("first_angle"), z.first_angle, 0.0..=1.0)?,
        spares: z.spares,
        slips: z.slips.clone(),
    })
}

fn seek(f: &SeekFile, cylinders: u32) -> Result<SeekCurve, ProfileError> {
    match (&f.table_ms, &f.formula) {
        (Some(table), None) => SeekCurve::from_table(table).map_err(|index| {
            let found = table.get(index).map_or("none".to_owned(), |p| format!("{p:?}"));
            let expected = "points [cylinders, ms], cylinders ascending from 1, 0 to 10000 ms";
            wrong(format!("disk.seek.table_ms[{index}]"), expected, found)
        }),
        (None, Some(g)) => {
            let (square, line) = ((g.a_ms, g.b_ms), (g.c_ms, g.e_ms));
            SeekCurve::from_formula(square, g.split, line, cylinders)
                .map_err(|_| wrong("disk.seek.formula", "times from 0 to 10000 ms", "others"))
        }
        (both, _) => {
            let found = if both.is_some() { "both" } else { "neither" };
            Err(wrong("disk.seek", "either table_ms or formula", found))
        }
    }
}

fn cache(f: &CacheFile) -> Result<CacheRules, ProfileError> {
    let shape = shape("disk.cache", f.segments, f.segment_sectors, f.replacement)?;
    let max = within("disk.cache.read_ahead_max", f.read_ahead_max, 0..=f.segment_sectors)?;
    Ok(CacheRules {
        shape,
        on_hit: f.on_hit,
        read_ahead: f.read_ahead && shape.segments > 0 && max > 0,
        read_ahead_min: within("disk.cache.read_ahead_min", f.read_ahead_min, 0..=max)?,
        read_ahead_max: max,
        resume_below: within("disk.cache.resume_below", f.resume_below, 0..=max)?,
        read_ahead_idle: f.read_ahead_idle,
        cut_short: f.cut_short,
        read_hits_on_writes: f.read_hits_on_writes,
        write_cache: f.write_cache,
        write_segments: within("disk.cache.write_segments", f.write_segments, 1..=SEGMENTS_MAX)?,
    })
}

/// A time in µs, from 0 to 10 s, to ns.
fn us(key: &str, value: f64) -> Result<u64, ProfileError> {
    Ok((within(key, value, 0.0..=1e7)? * 1e3).round() as u64)
}

/// A cloud volume's figures.
pub(super) fn cloud(f: &CloudFile) -> Result<CloudSpec, ProfileError> {
    const MIB: u64 = 1 << 20;
    let ios = cap(["iops", "burst_iops", "io_credit"], f.iops, f.burst_iops, f.io_credit)?;
    let mib = cap(["mib_s", "burst_mib_s", "credit_mib"], f.mib_s, f.burst_mib_s, f.credit_mib)?;
    let depth = within("cloud.queue_depth", f.queue_depth, 1..=QUEUE_DEPTH_MAX)?;
    Ok(CloudSpec {
        capacity: within("cloud.capacity_sectors", f.capacity_sectors, 1..=CAPACITY_MAX)?,
        ios,
        bytes: Cap { base: mib.base * MIB, burst: mib.burst * MIB, credit: mib.credit * MIB },
        unit_bytes: u64::from(within("cloud.unit_kib", f.unit_kib, 1..=UNIT_KIB_MAX)?) << 10,
        read_latency_ns: us("cloud.read_latency_us", f.read_latency_us)?,
        write_latency_ns: us("cloud.write_latency_us", f.write_latency_us)?,
        spread_ns: us("cloud.spread_us", f.spread_us)?,
        seed: f.seed,
        queue_depth: depth,
    })
}

/// Checks a cap, by the keys of its base rate, its burst rate and its credit.
fn cap(keys: [&str; 3], base: u64, burst: Option<u64>, credit: u64) -> Result<Cap, ProfileError> {
    let [base_key, burst_key, credit_key] = keys.map(|key| format!("cloud.{key}"));
    let base = within(&base_key, base, 1..=RATE_MAX)?;
    let burst = within(&burst_key, burst.unwrap_or(base), base..=RATE_MAX)?;
    let credit = within(&credit_key, credit, 0..=CREDIT_MAX)?;
    if (burst > base) != (credit > 0) {
        let expected = format!("with {credit_key} above {base_key}, without it the same");
        return Err(wrong(burst_key, expected, burst));
    }
    Ok(Cap { base, burst, credit })
}

/// An array's figures, without its members.
pub(super) fn raid0(f: &Raid0File) -> Result<Raid0Spec, ProfileError> {
    if let Some(figures) = &f.published {
        published::published("raid0.published", figures)?;
    }
    let chunk_kib = within("raid0.chunk_kib", f.chunk_kib, 1..=CHUNK_KIB_MAX)?;
    if f.member.contains('\n') {
        return Err(wrong("raid0.member", "the name of an embedded profile", "a text"));
    }
    Ok(Raid0Spec {
        members: within("raid0.members", f.members, 1..=MEMBERS_MAX)?,
        chunk_sectors: u64::from(chunk_kib * KIB_SECTORS),
        queue_depth: within("raid0.queue_depth", f.queue_depth, 1..=ARRAY_QUEUE_DEPTH_MAX)?,
    })
}
