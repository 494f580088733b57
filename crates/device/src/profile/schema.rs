//! The TOML of a profile, field by field. Parsing fills these; `super::check`
//! turns them into specifications.

use crate::disk::QueueOrder;
use crate::disk::cache::{OnHit, Replacement};
use crate::published::Published;
use crate::ssd::{Start, WritePlace};
use serde::Deserialize;

/// A whole file: exactly one of the kinds of device.
#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct File {
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
pub(super) struct LinearFile {
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
pub(super) struct DiskFile {
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
}

#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct SsdFile {
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
    pub published: Option<Published>,
}

/// Several alike, striped.
#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Raid0File {
    pub member: String,
    pub members: u32,
    pub chunk_kib: u32,
    pub queue_depth: u32,
    pub published: Option<Published>,
}

/// A cloud volume. Without burst figures it cannot burst.
#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct CloudFile {
    pub capacity_sectors: u64,
    pub iops: u64,
    pub burst_iops: Option<u64>,
    #[serde(default)]
    pub io_credit: u64,
    pub mib_s: u64,
    pub burst_mib_s: Option<u64>,
    #[serde(default)]
    pub credit_mib: u64,
    pub unit_kib: u32,
    pub read_latency_us: f64,
    pub write_latency_us: f64,
    pub spread_us: f64,
    #[serde(default)]
    pub seed: u64,
    pub queue_depth: u32,
}

/// Another profile with changes, under a name of its own.
#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct DerivedFile {
    pub from: String,
    /// Replaces the original's.
    pub published: Option<Published>,
}

#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct LayoutFile {
    pub surfaces: u32,
    pub mapping: MappingFile,
    #[serde(default)]
    pub band_cylinders: u32,
    pub zone: Vec<ZoneFile>,
}

#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct ZoneFile {
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
pub(super) struct SeekFile {
    pub table_ms: Option<Vec<(u32, f64)>>,
    pub formula: Option<FormulaFile>,
}

/// `a_ms + b_ms·√d` to `split` cylinders, `c_ms + e_ms·d` above.
#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct FormulaFile {
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
pub(super) struct OverheadFile {
    pub read_hit_ms: [f64; 2],
    pub read_miss_ms: [f64; 2],
    pub write_hit_ms: [f64; 2],
    pub write_miss_ms: [f64; 2],
}

#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct CacheFile {
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
}

#[derive(Clone, Copy, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(super) enum MappingFile {
    Cylinder,
    Serpentine,
    Surface,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_made_of_these_files() {
        seekway_testing::schema_of_input::<File>(
            "list-device",
            "seekway list devices NAME --format json",
        );
    }
}
