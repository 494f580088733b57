//! A solid-state drive's figures.

use super::super::schema::*;
use super::published::published;
use super::{CAPACITY_MAX, KIB_SECTORS, ProfileError, QUEUE_DEPTH_MAX, us, within, wrong};
use crate::ssd::{
    FlashTimes, Layout, MapSpec, ReadRules, SPARE_BLOCKS_MIN, SsdSpec, Start, Suspension, UNITS_MAX,
};

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
pub(in crate::profile) fn ssd(f: &SsdFile) -> Result<SsdSpec, ProfileError> {
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
