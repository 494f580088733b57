//! Is what was read what the file means? A trace of bare numbers can be in other units than its
//! format has by custom; rates, sizes and spans that no disk has tell.

use super::figures::{
    RATE_MAX, REQUESTS_LEAST, TIMES, UPTIME_NS_MAX, YEAR_S, grouped, size, time, within, year,
};
use super::layout::ALL_READS;
use super::raw::Raw;
use super::stats::{Scan, TraceStats};
use super::{Format, VolumeStats};
use seekway_core::units::SECTOR_BYTES;

/// Of this number of requests one may be moved in time without a warning.
const MOVED_SHARE: u64 = 100;

/// A rate that one disk may have over many requests.
const RATE_USUAL: f64 = 2e4;
/// A longer mean than the block layer makes requests.
const MEAN_BYTES_MAX: f64 = (64_u64 << 20) as f64;
/// More bytes a second than a disk moves, and a larger disk than there is, if all requests are
/// aligned as bytes are.
const ALIGNED_BYTES_PER_S: f64 = 8e9;
const ALIGNED_END_BYTES: f64 = (64_u64 << 40) as f64;
/// Alignment, in what a file calls a sector, of offsets and sizes that are bytes.
const BYTES_ALIGN: u64 = 512;
const BLOCKS_ALIGN: u64 = 4096;
/// Longer than anybody traces.
const SPAN_S_MAX: f64 = 3.0 * YEAR_S;

/// Sums over the first requests of a file.
#[derive(Default)]
pub(super) struct Figures {
    /// Starts are in sectors, sizes in bytes: only the starts can be in the wrong unit, and they
    /// are not aligned to more than the sizes by chance.
    mixed: bool,
    pub(super) requests: u64,
    pub(super) bad: u64,
    /// Earliest and latest.
    times_ns: Option<(u64, u64)>,
    sectors: u64,
    end: u64,
    rounded: u64,
    /// Requests that begin and end at multiples of [`BYTES_ALIGN`] and of [`BLOCKS_ALIGN`]; if
    /// mixed, that begin there and are shorter.
    aligned: u64,
    aligned_to_blocks: u64,
}

impl Figures {
    /// None yet, of a format with these columns.
    pub(super) fn new(columns: Option<&str>) -> Figures {
        let mixed = columns.is_some_and(|list| list.contains("sector,size_bytes"));
        Figures { mixed, ..Figures::default() }
    }

    pub(super) fn add(&mut self, raw: &Raw) {
        let (start, len) = (raw.span.start.get(), raw.span.len.get());
        let (first, last) = self.times_ns.unwrap_or((raw.time_ns, raw.time_ns));
        self.times_ns = Some((first.min(raw.time_ns), last.max(raw.time_ns)));
        self.requests += 1;
        self.sectors = self.sectors.saturating_add(len);
        self.end = self.end.max(start + len);
        self.rounded += u64::from(raw.span.rounded);
        let aligned = |to| {
            let len = if self.mixed { len < to } else { len.is_multiple_of(to) };
            u64::from(len && start.is_multiple_of(to))
        };
        self.aligned += aligned(BYTES_ALIGN);
        self.aligned_to_blocks += aligned(BLOCKS_ALIGN);
    }

    fn span_s(&self) -> f64 {
        self.times_ns.map_or(0.0, |(first, last)| (last - first) as f64 / 1e9)
    }
}

/// If a file of a format that has nothing but columns would be absurd in that format's units:
/// both readings, and the options that decide.
pub(super) fn other_units(format: Format, figures: &Figures) -> Option<String> {
    let columns = format.columns()?;
    let unit = |name: &str| TIMES.iter().position(|(other, ..)| *other == name);
    let own = columns.split(',').find_map(unit)?;
    let (name, power, ..) = TIMES[own];
    let ns = 10_f64.powi(power as i32);
    // Earliest and latest, as they stand in the file.
    let (low, high) = figures.times_ns.map(|(a, b)| (a as f64 / ns, b as f64 / ns))?;
    let is_wall = |&(_, _, from, to): &(&str, u32, f64, f64)| from <= low && high < to;
    // Of these two formats the wall clock is known: one in another unit is another format's, and
    // times since a start are at a usual rate.
    let since_start = matches!(format, Format::Alibaba | Format::Msr) && !is_wall(&TIMES[own]);
    let wall = TIMES.iter().find(|unit| since_start && is_wall(unit));
    let rate_max = if since_start && low * ns <= UPTIME_NS_MAX { RATE_USUAL } else { RATE_MAX };
    let span_s = figures.span_s();
    let requests = figures.requests as f64;
    let bytes = figures.sectors as f64 * SECTOR_BYTES as f64;
    let in_sectors = columns.contains("sector");
    let too_fast = span_s > 0.0 && (requests - 1.0) / span_s > rate_max;
    let too_long = bytes / requests > MEAN_BYTES_MAX;
    let fast_or_far = bytes > ALIGNED_BYTES_PER_S * span_s
        || figures.end as f64 * SECTOR_BYTES as f64 > ALIGNED_END_BYTES;
    let are_bytes = in_sectors
        && (figures.aligned_to_blocks == figures.requests
            || (figures.aligned == figures.requests && (fast_or_far || figures.mixed)));
    let are_sectors = columns.contains("size_bytes") && figures.rounded == figures.requests;
    let enough = figures.requests >= REQUESTS_LEAST;
    if wall.is_none() && !(enough && (too_fast || too_long || are_bytes || are_sectors)) {
        return None;
    }
    let mut other = columns.to_string();
    let mut told = String::new();
    if let Some(&(wall, power, ..)) = wall {
        let wall_ns = 10_f64.powi(power as i32);
        let within = within(figures.requests, span_s * wall_ns / ns);
        other = other.replace(name, wall);
        told = format!(" (from {} on, {within})", year(wall, low * wall_ns));
    } else if too_fast {
        // The shortest unit that makes a rate of it that a disk has.
        let rate = |power: u32| (requests - 1.0) / span_s * ns / 10_f64.powi(power as i32);
        let longer = TIMES[..own].iter().rev().find(|(_, power, ..)| rate(*power) <= RATE_USUAL);
        other = other.replace(name, longer.map_or("time_s", |(name, ..)| name));
    }
    if are_bytes || (in_sectors && figures.aligned == figures.requests) {
        other = other.replace("sectors", "size_bytes").replace("sector", "offset_bytes");
    } else if are_sectors {
        other = other.replace("offset_bytes", "sector").replace("size_bytes", "sectors");
    }
    Some(format!(
        "could be {format}, in {units}: then its first {requests} requests are of {size} each, \
         {rate}; or the same columns in other units. Say --input-format {format} for the first, \
         or name the units by --columns, as in --columns {other}{told}",
        units = format.units(),
        requests = grouped(figures.requests),
        size = size(bytes / requests),
        rate = within(figures.requests, span_s),
    ))
}

impl Scan {
    /// One line for the user: as what the trace was read, and what is in it.
    pub fn summary(&self) -> String {
        let stats = &self.stats;
        let requests = stats.requests();
        let volumes = self.volumes.len();
        let mean = mean_bytes(stats).map_or(String::new(), |mean| format!(" of {}", size(mean)));
        let mut text = format!(
            "{} ({}): {} request{}{mean}, {}, {volumes} volume{}",
            self.format,
            self.units,
            grouped(requests),
            plural(requests),
            within(requests, stats.duration.as_secs_f64()),
            plural(volumes as u64),
        );
        for note in &self.notes {
            text += &format!("; {note}");
        }
        for (count, of, what) in [
            (stats.ignored, ["other line or event", "other lines or events"], "left out"),
            (stats.rounded, ["request was", "requests were"], "rounded to whole sectors"),
            (
                stats.clamped,
                ["request was", "requests were"],
                "out of order beyond the window and moved in time",
            ),
        ] {
            if count > 0 {
                text += &format!("; {} {} {what}", grouped(count), of[usize::from(count > 1)]);
            }
        }
        for skipped in &stats.skipped {
            text += &format!("; {} records skipped ({})", skipped.count, skipped.first);
        }
        text
    }

    /// Figures that no disk or trace has: signs of wrong units.
    pub fn warnings(&self) -> Vec<String> {
        let (requests, span_s) = (self.stats.requests(), self.stats.duration.as_secs_f64());
        let mut absurd = Vec::new();
        let rate = requests.saturating_sub(1) as f64 / span_s;
        if requests > 3 && span_s > 0.0 && rate > RATE_MAX {
            absurd.push(format!("{} requests a second", grouped(rate as u64)));
        }
        if let Some(mean) = mean_bytes(&self.stats).filter(|mean| *mean > MEAN_BYTES_MAX) {
            absurd.push(format!("requests of {} each", size(mean)));
        }
        if span_s > SPAN_S_MAX {
            absurd.push(format!("a span of {}", time(span_s)));
        }
        let all_reads = self.units.ends_with(ALL_READS) && self.format != Format::OracleGeneral;
        let no_op = "no column says what is a write, so all are taken as reads: if one does, name \
                     it by --columns, as op, is_write or is_read";
        let text = |what: &String| {
            format!(
                "{what}: are the units right ({})? --columns names others, such as \
                 time_us,op,offset_bytes,size_bytes",
                self.units
            )
        };
        let moved = (self.stats.clamped * MOVED_SHARE > requests).then(|| {
            format!(
                "{} of {} requests were out of order and moved in time, so that rates and bursts are \
                 not the load's: sort the trace by time",
                grouped(self.stats.clamped),
                grouped(requests)
            )
        });
        let no_op = all_reads.then(|| no_op.into());
        absurd.iter().map(text).chain(no_op).chain(moved).collect()
    }
}

/// Mean of reads and writes.
fn mean_bytes(stats: &TraceStats) -> Option<f64> {
    let moved = |v: &VolumeStats| (v.read.get() + v.written.get()) as f64;
    let sectors: f64 = stats.volumes.iter().map(moved).sum();
    let requests = stats.ops.read + stats.ops.write;
    (requests > 0).then(|| sectors * SECTOR_BYTES as f64 / requests as f64)
}

const fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}
