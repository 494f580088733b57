//! From a parsed file to a specification: every figure's range, and the relations between figures.

use super::{ProfileError, *};
use crate::cloud::{Cap, CloudSpec};
use crate::disk::cache::{CacheShape, Replacement};
use crate::disk::geometry::{Geometry, Mapping, ZoneSpec};
use crate::disk::mechanics::{Mechanics, SeekCurve};
use crate::disk::{CacheRules, DiskSpec, Overheads};
use crate::linear::LinearSpec;
use crate::published::{Mix, Published};
use crate::raid0::Raid0Spec;
use crate::ssd::{
    FlashTimes, Layout, MapSpec, ReadRules, SPARE_BLOCKS_MIN, SsdSpec, Start, Suspension, UNITS_MAX,
};
use std::ops::RangeInclusive;

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
/// Rules of a cloud volume: sizes that are sold.
const RULES_MAX: usize = 64;
/// Sizes of cloud volumes that are looked at for a rate.
const GIB_MAX: u64 = 1 << 17;
/// Sectors of a KiB.
const KIB_SECTORS: u32 = 2;
/// Sectors of a GiB.
const GIB_SECTORS: u32 = 1 << 21;

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
    if let Some(figures) = &f.published {
        published("disk.published", figures)?;
    }
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
        write_order: f.write_order,
    })
}

/// A time in µs, from 0 to 10 s, to ns.
fn us(key: &str, value: f64) -> Result<u64, ProfileError> {
    Ok((within(key, value, 0.0..=1e7)? * 1e3).round() as u64)
}

/// A cloud volume's figures.
pub(super) fn cloud(f: &CloudFile) -> Result<CloudSpec, ProfileError> {
    const MIB: u64 = 1 << 20;
    if let Some(figures) = &f.published {
        published("cloud.published", figures)?;
    }
    let capacity = within("cloud.capacity_sectors", f.capacity_sectors, 1..=CAPACITY_MAX)?;
    let [ios, mib] = rates(f, capacity as f64 / f64::from(GIB_SECTORS))?;
    let ios = cap(["iops", "burst_iops", "io_credit"], ios)?;
    let mib = cap(["mib_s", "burst_mib_s", "credit_mib"], mib)?;
    let depth = within("cloud.queue_depth", f.queue_depth, 1..=QUEUE_DEPTH_MAX)?;
    Ok(CloudSpec {
        capacity,
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

/// Caps on I/Os and on MiB of a volume of `gib`: stated ones, and the rule's in place of absent
/// ones.
fn rates(f: &CloudFile, gib: f64) -> Result<[Cap; 2], ProfileError> {
    let rule = rule(f, gib)?;
    let included = rule.iops_of(gib);
    let iops = f.iops.unwrap_or(included);
    let included_mib = rule.mib_s_of(gib, iops);
    let mib_s = f.mib_s.unwrap_or(included_mib);
    if let Some(limits) = &f.limits {
        let most = sum(0, limits.iops_per_gib as f64 * gib, Some(limits.iops));
        sold(f, "iops", iops, limits.iops_least..=most.max(included))?;
        let most = sum(0, limits.mib_s_per_io * iops as f64, Some(limits.mib_s));
        sold(f, "mib_s", mib_s, limits.mib_s_least..=most.max(included_mib))?;
    }
    let capped = |base, burst: Option<u64>, credit: Option<u64>, ruled: (Option<u64>, u64)| {
        // The rule's burst is none for a base rate above it.
        let burst = burst.or(ruled.0.filter(|&burst| burst > base)).unwrap_or(base);
        Cap { base, burst, credit: credit.unwrap_or(if burst > base { ruled.1 } else { 0 }) }
    };
    let ios = capped(iops, f.burst_iops, f.io_credit, (rule.burst_iops, rule.io_credit));
    let mib = capped(mib_s, f.burst_mib_s, f.credit_mib, (rule.burst_mib_s, rule.credit_mib));
    if !f.rule.is_empty() {
        within("cloud.burst_iops", ios.burst, 0..=rule.burst_iops.unwrap_or(0).max(iops))?;
        within("cloud.burst_mib_s", mib.burst, 0..=rule.burst_mib_s.unwrap_or(0).max(mib_s))?;
    }
    Ok([ios, mib])
}

fn sum(base: u64, more: f64, most: Option<u64>) -> u64 {
    base.saturating_add(more.max(0.0).round() as u64).min(most.unwrap_or(u64::MAX))
}

impl RuleFile {
    /// I/Os a second of a volume of `gib`.
    fn iops_of(&self, gib: f64) -> u64 {
        sum(self.iops, self.iops_per_gib * gib, self.iops_most)
    }

    /// MiB a second of a volume of `gib` with `iops`.
    fn mib_s_of(&self, gib: f64, iops: u64) -> u64 {
        let more = self.mib_s_per_gib * gib + self.mib_s_per_io * iops as f64;
        sum(self.mib_s, more, self.mib_s_most)
    }
}

/// Checks a rate that is for sale.
fn sold(
    f: &CloudFile,
    key: &str,
    value: u64,
    range: RangeInclusive<u64>,
) -> Result<(), ProfileError> {
    if range.contains(&value) {
        return Ok(());
    }
    let (least, most) = range.into_inner();
    let expected = format!("{} to {most}, as is sold{}", least.max(1), by_source(f));
    Err(wrong(format!("cloud.{key}"), expected, value))
}

/// Names where the provider says what is sold.
fn by_source(f: &CloudFile) -> String {
    f.source.as_ref().map_or_else(String::new, |source| format!(" ({source})"))
}

/// Rule of a volume of `gib`. Where rates are not for sale, stated ones are those of its size or of
/// a tier that it may have.
fn rule(f: &CloudFile, gib: f64) -> Result<RuleFile, ProfileError> {
    within("cloud.rule", f.rule.len(), 0..=RULES_MAX)?;
    let Some(largest) = f.rule.iter().map(|rule| rule.up_to_gib).max() else {
        return Ok(RuleFile::default());
    };
    let own = f.rule.iter().position(|rule| gib <= rule.up_to_gib as f64);
    let Some(own) = own.filter(|_| gib >= f.from_gib as f64) else {
        let expected = format!("{} to {largest} GiB, as is sold{}", f.from_gib, by_source(f));
        return Err(wrong("cloud.capacity_sectors", expected, in_gib(f.capacity_sectors)));
    };
    if f.limits.is_some() {
        return Ok(f.rule[own].clone());
    }
    let end = f.tiers_up_to_gib.iter().copied().find(|end| gib <= *end as f64);
    let is_sold = |rule: &&RuleFile| end.is_some_and(|end| rule.up_to_gib <= end);
    let tiers = f.rule[own + 1..].iter().take_while(is_sold);
    let mut tiers: Vec<&RuleFile> = std::iter::once(&f.rule[own]).chain(tiers).collect();
    type RateOf = fn(&RuleFile, f64) -> u64;
    let stated: [(&str, Option<u64>, RateOf); 2] = [
        ("iops", f.iops, |rule, gib| rule.iops_of(gib)),
        ("mib_s", f.mib_s, |rule, gib| rule.mib_s_of(gib, rule.iops_of(gib))),
    ];
    for (key, stated, of) in stated {
        let Some(value) = stated else { continue };
        let mut sold: Vec<u64> = tiers.iter().map(|rule| of(rule, gib)).collect();
        tiers.retain(|rule| of(rule, gib) == value);
        if tiers.is_empty() {
            sold.dedup();
            let expected = expected_rate(f, &sold, |rule, gib| of(rule, gib) >= value);
            return Err(wrong(format!("cloud.{key}"), expected, value));
        }
    }
    Ok(tiers[0].clone())
}

/// Rates that a volume is sold with, and the size from which on it has the rate that was stated.
fn expected_rate(f: &CloudFile, sold: &[u64], reaches: impl Fn(&RuleFile, f64) -> bool) -> String {
    let sold = sold.iter().map(u64::to_string).collect::<Vec<_>>().join(" or ");
    let rule = |gib: u64| f.rule.iter().find(|rule| gib <= rule.up_to_gib);
    let largest = f.rule.iter().map(|rule| rule.up_to_gib.min(GIB_MAX)).max().unwrap_or(0);
    match (1..=largest).find(|gib| rule(*gib).is_some_and(|rule| reaches(rule, *gib as f64))) {
        Some(gib) => {
            format!("{sold}, as volumes of its size are sold (capacity={gib}GiB has as much)")
        }
        None => format!("{sold}, as volumes of its size are sold (no size has as much)"),
    }
}

/// A size that is known in sectors.
fn in_gib(sectors: u64) -> String {
    let gib = sectors as f64 / f64::from(GIB_SECTORS);
    format!("{gib:.3}").trim_end_matches('0').trim_end_matches('.').to_owned() + " GiB"
}

/// Checks a cap, by the keys of its base rate, its burst rate and its credit.
fn cap(keys: [&str; 3], cap: Cap) -> Result<Cap, ProfileError> {
    let [base_key, burst_key, credit_key] = keys.map(|key| format!("cloud.{key}"));
    let base = within(&base_key, cap.base, 1..=RATE_MAX)?;
    let burst = within(&burst_key, cap.burst, base..=RATE_MAX)?;
    let credit = within(&credit_key, cap.credit, 0..=CREDIT_MAX)?;
    if (burst > base) != (credit > 0) {
        let expected = format!("with {credit_key} above {base_key}, without it the same");
        return Err(wrong(burst_key, expected, burst));
    }
    Ok(cap)
}

/// An array's figures, without its members.
pub(super) fn raid0(f: &Raid0File) -> Result<Raid0Spec, ProfileError> {
    if let Some(figures) = &f.published {
        published("raid0.published", figures)?;
    }
    let chunk_kib = within("raid0.chunk_kib", f.chunk_kib, 1..=CHUNK_KIB_MAX)?;
    if f.member.contains('\n') {
        return Err(wrong("raid0.member", "the name of an embedded profile", "a text"));
    }
    let members = within("raid0.members", f.members, 1..=MEMBERS_MAX)?;
    let mirrors = within("raid0.mirrors", f.mirrors, 1..=members)?;
    if members % mirrors != 0 {
        let expected = format!("a divisor of raid0.members, which is {members}");
        return Err(wrong("raid0.mirrors", expected, mirrors));
    }
    Ok(Raid0Spec {
        members,
        mirrors,
        chunk_sectors: u64::from(chunk_kib * KIB_SECTORS),
        queue_depth: within("raid0.queue_depth", f.queue_depth, 1..=ARRAY_QUEUE_DEPTH_MAX)?,
    })
}

// A solid-state drive's figures.

const CHANNELS_MAX: u32 = 64;
const DIES_PER_CHANNEL_MAX: u32 = 64;
const PLANES_MAX: u32 = 16;
const SUSPENDS_MAX: u32 = 1_000;
/// Enough to address 16 TiB of pages of 4 KiB.
const ENTRY_BYTES_MIN: u32 = 4;
const ENTRY_BYTES_MAX: u32 = 64;
const MAP_CACHE_KIB_MAX: u32 = 1 << 30;
const PAGE_KIB_MAX: u32 = 1_024;
const BLOCK_PAGES_MAX: u32 = 1 << 14;
/// A bus faster than this takes no time at all.
const MB_S_MAX: u64 = 1_000_000;
const WRITE_BUFFER_KIB_MAX: u32 = 1 << 22;
/// Nothing is collected on a drive with more room than this leaves.
const GC_FILLED_MIN: f64 = 0.5;

/// A solid-state drive's figures.
pub(super) fn ssd(f: &SsdFile) -> Result<SsdSpec, ProfileError> {
    let channels = within("ssd.channels", f.channels, 1..=CHANNELS_MAX)?;
    let layout = ssd_layout(f)?;
    let buffer_kib =
        within("ssd.write_buffer_kib", f.write_buffer_kib, f.page_kib..=WRITE_BUFFER_KIB_MAX)?;
    if let Some(figures) = &f.published {
        published("ssd.published", figures)?;
    }
    Ok(SsdSpec {
        capacity: f.capacity_sectors,
        channels,
        layout,
        unit_sectors: f.mapping_kib * KIB_SECTORS,
        flash: flash(f)?,
        host_mb_s: mb_s("ssd.host_mb_s", f.host_mb_s)?,
        full_duplex: f.full_duplex,
        read_command_ns: us("ssd.read_command_us", f.read_command_us)?,
        write_command_ns: us("ssd.write_command_us", f.write_command_us)?,
        read_latency_ns: us("ssd.read_latency_us", f.read_latency_us)?,
        write_latency_ns: us("ssd.write_latency_us", f.write_latency_us)?,
        buffer_units: buffer_kib / f.mapping_kib,
        queue_depth: within("ssd.queue_depth", f.queue_depth, 1..=QUEUE_DEPTH_MAX)?,
        separate_paths: f.separate_paths,
        power_loss_protection: f.power_loss_protection,
        write_place: f.write_place,
        rules: read_rules(f, buffer_kib / f.mapping_kib)?,
        map: map(f)?,
    })
}

/// Checks the rules for reads beside programs and erases, with a buffer of `buffer_units` units.
fn read_rules(f: &SsdFile, buffer_units: u32) -> Result<ReadRules, ProfileError> {
    let first = within("ssd.reads_first", f.reads_first, 0.0..=1.0)?;
    let program = [f.program_suspend_us, f.program_resume_us, f.program_keep_us];
    let erase = [f.erase_suspend_us, f.erase_resume_us, f.erase_keep_us];
    let program = suspension("program", f.program_suspends, program)?;
    let erase = suspension("erase", f.erase_suspends, erase)?;
    let is_suspended = program.times > 0 || erase.times > 0;
    if is_suspended && first == 0.0 {
        // The read would then wait for others that have not begun.
        let expected = "above 0 with ssd.program_suspends or ssd.erase_suspends above 0";
        return Err(wrong("ssd.reads_first", expected, first));
    }
    let resume_min_ns = us("ssd.resume_min_us", f.resume_min_us)?;
    if resume_min_ns > 0 && program.times < 2 && erase.times < 2 {
        let expected = "0, or ssd.program_suspends or ssd.erase_suspends above 1";
        return Err(wrong("ssd.resume_min_us", expected, f.resume_min_us));
    }
    let first_below_units =
        if first == 1.0 { u32::MAX } else { (f64::from(buffer_units) * first).ceil() as u32 };
    Ok(ReadRules { first_below_units, program, erase, resume_min_ns })
}

/// Checks a program's or an erase's suspension: µs to stop, µs to go on, and the remainder in µs
/// below which it is not suspended.
fn suspension(what: &str, times: u32, figures: [f64; 3]) -> Result<Suspension, ProfileError> {
    let key = |figure: &str| format!("ssd.{what}_{figure}");
    let names = ["suspend_us", "resume_us", "keep_us"].map(key);
    for (name, figure) in names.iter().zip(figures) {
        if times == 0 && figure > 0.0 {
            return Err(wrong(name, format!("0, or {} above 0", key("suspends")), figure));
        }
    }
    Ok(Suspension {
        times: within(&key("suspends"), times, 0..=SUSPENDS_MAX)?,
        stop_ns: us(&names[0], figures[0])?,
        resume_ns: us(&names[1], figures[1])?,
        keep_ns: us(&names[2], figures[2])?,
    })
}

fn mb_s(key: &str, value: u64) -> Result<u64, ProfileError> {
    within(key, value, 1..=MB_S_MAX)
}

/// Checks the times of the flash.
fn flash(f: &SsdFile) -> Result<FlashTimes, ProfileError> {
    let spread_us =
        within("ssd.program_spread_us", f.program_spread_us, 0.0..=f.program_us.max(0.0))?;
    if f.seed > 0 && spread_us == 0.0 {
        return Err(wrong("ssd.seed", "0, or ssd.program_spread_us above 0", f.seed));
    }
    Ok(FlashTimes {
        read_ns: us("ssd.read_us", f.read_us)?,
        program_ns: us("ssd.program_us", f.program_us)?,
        program_spread_ns: us("ssd.program_spread_us", spread_us)?,
        seed: f.seed,
        erase_ns: us("ssd.erase_us", f.erase_us)?,
        channel_mb_s: mb_s("ssd.channel_mb_s", f.channel_mb_s)?,
        overlap: f.overlap,
    })
}

/// The mapping table, if the drive's memory does not hold it.
fn map(f: &SsdFile) -> Result<Option<MapSpec>, ProfileError> {
    let Some(cache_kib) = f.map_cache_kib else {
        return match f.map_entry_bytes {
            None => Ok(None),
            Some(found) => Err(wrong("ssd.map_entry_bytes", "ssd.map_cache_kib beside it", found)),
        };
    };
    let entry_bytes = f.map_entry_bytes.unwrap_or(ENTRY_BYTES_MIN);
    let entry_bytes =
        within("ssd.map_entry_bytes", entry_bytes, ENTRY_BYTES_MIN..=ENTRY_BYTES_MAX)?;
    let cache_kib = within("ssd.map_cache_kib", cache_kib, f.mapping_kib..=MAP_CACHE_KIB_MAX)?;
    Ok(Some(MapSpec {
        entries: f.mapping_kib * 1_024 / entry_bytes,
        cached_pages: cache_kib / f.mapping_kib,
    }))
}

/// Computes the blocks: each die has its part of the logical units, the spare share on top, and at
/// least [`SPARE_BLOCKS_MIN`].
fn ssd_layout(f: &SsdFile) -> Result<Layout, ProfileError> {
    let per_channel = within("ssd.dies_per_channel", f.dies_per_channel, 1..=DIES_PER_CHANNEL_MAX)?;
    let capacity = within("ssd.capacity_sectors", f.capacity_sectors, 1..=CAPACITY_MAX)?;
    let page_kib = within("ssd.page_kib", f.page_kib, 1..=PAGE_KIB_MAX)?;
    let mapping_kib = within("ssd.mapping_kib", f.mapping_kib, 1..=page_kib)?;
    if page_kib % mapping_kib != 0 {
        let expected = format!("a divisor of ssd.page_kib, which is {page_kib}");
        return Err(wrong("ssd.mapping_kib", expected, mapping_kib));
    }
    let planes = within("ssd.planes", f.planes, 1..=PLANES_MAX)?;
    // A block of the model is a row of blocks, one in each plane.
    let block_pages =
        within("ssd.block_pages", f.block_pages, 1..=BLOCK_PAGES_MAX / planes)? * planes;
    let spare = within("ssd.spare", f.spare, 0.0..=10.0)?;
    let filled = within("ssd.filled", f.filled, 0.0..=1.0)?;
    if f.state == Start::Collecting && filled < GC_FILLED_MIN {
        let expected = format!("{GC_FILLED_MIN} to 1 with ssd.state = \"gc\"");
        return Err(wrong("ssd.filled", expected, filled));
    }
    let (dies, page_units) = (f.channels * per_channel, page_kib / mapping_kib);
    let host_units = capacity.div_ceil(u64::from(mapping_kib * KIB_SECTORS));
    let map_units = map(f)?.map_or(0, |map| host_units.div_ceil(u64::from(map.entries)));
    let units = host_units + map_units;
    let block_units = u64::from(block_pages) * u64::from(page_units);
    let held = units.div_ceil(u64::from(page_units)).div_ceil(u64::from(dies));
    let held = (held * u64::from(page_units)).div_ceil(block_units);
    let share = (units as f64 * (1.0 + spare) / f64::from(dies) / block_units as f64).ceil() as u64;
    let blocks = share.max(held + u64::from(SPARE_BLOCKS_MIN));
    let physical = blocks * u64::from(dies) * block_units;
    if physical > UNITS_MAX {
        let expected = format!("at most {UNITS_MAX} physical units of ssd.mapping_kib");
        return Err(wrong("ssd.capacity_sectors", expected, physical));
    }
    // Below UNITS_MAX all of these fit.
    Ok(Layout {
        dies,
        blocks: blocks as u32,
        block_pages,
        planes,
        page_units,
        units: units as u32,
        map_units: map_units as u32,
        filled_units: (host_units as f64 * filled).round() as u32,
        start: f.state,
    })
}

// Checks published figures: their ranges, and the keys of a mix.

const MIXES_MAX: usize = 64;

/// `prefix` is the table's name, as in `ssd.published`.
fn published(prefix: &str, p: &Published) -> Result<(), ProfileError> {
    let figures = [
        ("sequential_read_mb_s", p.sequential_read_mb_s),
        ("sequential_write_mb_s", p.sequential_write_mb_s),
        ("random_read_iops", p.random_read_iops),
        ("random_write_iops", p.random_write_iops),
        ("random_read_qd1_iops", p.random_read_qd1_iops),
        ("random_write_qd1_iops", p.random_write_qd1_iops),
    ];
    for (key, value) in figures {
        if let Some(value) = value {
            within(&format!("{prefix}.{key}"), value, 1.0..=1e9)?;
        }
    }
    let depth = format!("{prefix}.random_queue_depth");
    within(&depth, p.random_queue_depth, 1..=QUEUE_DEPTH_MAX)?;
    within(&format!("{prefix}.span_gib"), p.span_gib, 0.001..=1e6)?;
    us(&format!("{prefix}.host_us"), p.host_us)?;
    within(&format!("{prefix}.mix"), p.mix.len(), 0..=MIXES_MAX)?;
    for (index, m) in p.mix.iter().enumerate() {
        mix(&format!("{prefix}.mix[{index}]"), m)?;
    }
    Ok(())
}

fn mix(key: &str, m: &Mix) -> Result<(), ProfileError> {
    let at = |field: &str| format!("{key}.{field}");
    if let Some(depth) = m.depth {
        within(&at("depth"), depth, 1..=QUEUE_DEPTH_MAX)?;
    }
    match (m.reads, m.depth) {
        (Some(reads), Some(_)) => drop(within(&at("reads"), reads, 0.0..=1.0)?),
        (None, None) => {}
        (Some(reads), None) => {
            return Err(wrong(at("reads"), "with depth: it is the loop's share of reads", reads));
        }
        (None, Some(_)) => return Err(wrong(at("reads"), "0 to 1 with depth", "none")),
    }
    for (field, rate) in [("reads_per_s", m.reads_per_s), ("writes_per_s", m.writes_per_s)] {
        if rate != 0.0 {
            within(&at(field), rate, 1.0..=1e8)?;
        }
    }
    for (field, kib) in [("read_kib", m.read_kib), ("write_kib", m.write_kib)] {
        within(&at(field), kib, 0.5..=1024.0)?;
    }
    if m.depth.is_none() && m.reads_per_s == 0.0 {
        let expected = "depth, or reads_per_s above 0";
        return Err(wrong(key, expected, "a load without reads to judge"));
    }
    let figures = [
        ("iops", m.iops),
        ("read_mean_us", m.read_mean_us),
        ("read_p50_us", m.read_p50_us),
        ("read_p95_us", m.read_p95_us),
        ("read_p99_us", m.read_p99_us),
    ];
    if figures.iter().all(|(_, figure)| figure.is_none()) {
        let expected = "one of iops, read_mean_us, read_p50_us, read_p95_us and read_p99_us";
        return Err(wrong(key, expected, "none"));
    }
    for (field, figure) in figures {
        if let Some(figure) = figure {
            within(&at(field), figure, 1.0..=1e9)?;
        }
    }
    match (m.iops, m.depth) {
        (Some(iops), None) => Err(wrong(at("iops"), "with depth: it is the loop's rate", iops)),
        _ => Ok(()),
    }
}
