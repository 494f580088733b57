//! Figures of traces, as JSON has them.

use crate::load::Trace;
use seekway_core::units::{Nanos, SECTOR_BYTES, Sectors};
use seekway_workload::trace_stats::counts::Counts;
use seekway_workload::trace_stats::depth::Depth;
use seekway_workload::trace_stats::rates::{Busiest, Timeline};
use seekway_workload::trace_stats::reuse::{BLOCK_SECTORS, Reuse};
use seekway_workload::trace_stats::{OpFigures, TraceFigures, WINDOWS};
use seekway_workload::traces::{Scan, ScannedVolume};
use serde::Serialize;
use std::cmp::Reverse;

/// Most common sizes that are listed.
const SIZES_LISTED: usize = 5;
/// The blocks that a volume touches are told if at least this number of them is followed: the
/// standard error is a quarter at most.
const FOLLOWED_LEAST: usize = 16;
/// A clock with this step or a longer one hides bursts.
const CLOCK_COARSE: Nanos = Nanos::from_millis(100);
/// Starts and lengths that all are multiples of this may be bytes that were read as sectors.
const BYTES_ALIGN: u64 = SECTOR_BYTES * SECTOR_BYTES;

/// `inspect --format json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Inspected {
    pub traces: Vec<InspectedTrace>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InspectedTrace {
    pub trace: String,
    pub format: String,
    /// Units of times, starts and lengths, as they were read.
    pub units: String,
    /// Remarks on how the trace was read.
    pub notes: Vec<String>,
    /// Reasons to doubt the units or the figures.
    pub warnings: Vec<String>,
    /// From the first request to the last.
    pub span_s: f64,
    /// The greatest time that divides all others; null if all requests come at once.
    pub clock_step_ns: Option<u64>,
    /// The greatest power of two that divides all starts and lengths of reads and writes.
    pub aligned_bytes: Option<u64>,
    pub requests: u64,
    pub flushes: u64,
    pub discards: u64,
    pub write_zeroes: u64,
    /// Requests that were rounded to whole sectors.
    pub rounded: u64,
    /// Requests that came too late to be sorted, and were moved in time.
    pub moved: u64,
    /// Records that could not be read (--lenient).
    pub skipped: u64,
    /// Of the reads and writes.
    pub read_share: Option<f64>,
    /// Reads and writes together.
    pub all: OpPart,
    pub reads: OpPart,
    pub writes: OpPart,
    /// Null if the trace does not tell when requests are done.
    pub depth: Option<DepthPart>,
    pub reuse: ReusePart,
    pub volumes: usize,
    /// The volumes with the most requests.
    pub by_volume: Vec<VolumePart>,
    /// All others together; null if there are none.
    pub other_volumes: Option<VolumePart>,
    pub over_time: OverTime,
}

/// Figures of reads, writes or both.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OpPart {
    pub requests: u64,
    pub mib: f64,
    /// Requests per second in the mean; null if all come at once.
    pub iops: Option<f64>,
    pub mib_s: Option<f64>,
    pub mean_kib: Option<f64>,
    /// Exact up to 1 MiB, else rounded up by less than 1 %.
    pub p50_kib: Option<f64>,
    pub p99_kib: Option<f64>,
    /// The most common first.
    pub common_sizes: Vec<CommonSize>,
    /// Requests that begin where one of the 16 latest streams of the same operation on their
    /// volume ended.
    pub sequential_share: Option<f64>,
    /// In blocks of 4 KiB, each counted once.
    pub touched_mib: f64,
    /// Relative standard error of it: 0 if exact.
    pub touched_error: f64,
    /// The busiest 1, 10 and 60 s.
    pub busiest: Vec<BusiestPart>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CommonSize {
    pub kib: f64,
    /// Of the requests.
    pub share: f64,
}

/// The busiest windows of one length, which begin at multiples of a tenth of it. Null if the trace
/// is shorter.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BusiestPart {
    pub window_s: f64,
    pub iops: Option<f64>,
    pub iops_at_s: Option<f64>,
    pub mib_s: Option<f64>,
    pub mib_s_at_s: Option<f64>,
}

/// Requests under way at once.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DepthPart {
    /// Number of requests that it is of.
    pub requests: u64,
    /// Over time.
    pub mean: Option<f64>,
    /// When a request comes, itself included.
    pub p50: Option<u64>,
    pub p99: Option<u64>,
    pub max: Option<u64>,
    /// Time until a request is done, rounded up: to whole microseconds, above 2 ms by less than
    /// 1 %.
    pub response_p50_ms: Option<f64>,
    pub response_p99_ms: Option<f64>,
}

/// Reads that a cache would answer: LRU, with all blocks read and written.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReusePart {
    pub block_kib: f64,
    /// Share of all blocks that were followed; 1: the curve is exact.
    pub sampled_share: f64,
    /// Ascending sizes; the last finds all that is read again. Empty if nothing is.
    pub curve: Vec<CurvePoint>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CurvePoint {
    pub cache_mib: f64,
    /// Share of the blocks read that it does not have.
    pub miss_share: f64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VolumePart {
    /// Null for several volumes together.
    pub volume: Option<String>,
    pub requests: u64,
    pub reads: u64,
    pub writes: u64,
    pub read_mib: f64,
    pub written_mib: f64,
    pub sequential_share: Option<f64>,
    /// Requests per second in the mean.
    pub iops: Option<f64>,
    /// Reads and writes in the busiest second.
    pub busiest_iops: Option<f64>,
    /// Null if too few of its blocks were followed.
    pub touched_mib: Option<f64>,
    pub touched_error: Option<f64>,
    /// End of the last request: the least size of the disk.
    pub end_mib: f64,
}

/// Reads and writes over time: one entry for each step from the start of the trace on.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OverTime {
    pub step_s: f64,
    pub reads: Vec<u64>,
    pub writes: Vec<u64>,
    pub read_mib: Vec<f64>,
    pub written_mib: Vec<f64>,
}

fn mib(sectors: f64) -> f64 {
    sectors * SECTOR_BYTES as f64 / f64::from(1 << 20)
}

fn sectors_mib(sectors: Sectors) -> f64 {
    mib(sectors.get() as f64)
}

fn kib(sectors: u64) -> f64 {
    sectors as f64 * SECTOR_BYTES as f64 / 1024.0
}

pub fn share(part: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| part as f64 / all as f64)
}

/// A number per second over a span.
fn rate(number: f64, span: Nanos) -> Option<f64> {
    (span > Nanos::ZERO).then(|| number / span.as_secs_f64())
}

impl InspectedTrace {
    pub fn new(
        trace: &Trace,
        scan: &Scan,
        figures: &TraceFigures,
        depth: &Depth,
        listed: usize,
    ) -> InspectedTrace {
        let (stats, ops) = (&scan.stats, &scan.stats.ops);
        let TraceFigures { reads, writes, .. } = figures;
        let span = stats.duration;
        let touched = figures.reuse.touched();
        let part = |of: &OpFigures, blocks| OpPart::new(of, blocks, &figures.reuse, span);
        let all = OpFigures {
            sizes: reads.sizes.with(&writes.sizes),
            sequential: reads.sequential + writes.sequential,
            busiest: figures.busiest.clone(),
        };
        let volumes = volumes(scan, figures, span);
        let (by_volume, other_volumes) = split(volumes, listed, span);
        InspectedTrace {
            trace: trace.shown.clone(),
            format: scan.format.to_string(),
            units: scan.units.clone(),
            notes: scan.notes.iter().map(|note| trace.shown_in(note)).collect(),
            warnings: scan.warnings().into_iter().chain(doubts(scan, figures)).collect(),
            span_s: span.as_secs_f64(),
            clock_step_ns: figures.clock.step().map(Nanos::get),
            aligned_bytes: figures.aligned_bytes(),
            requests: stats.requests(),
            flushes: ops.flush,
            discards: ops.discard,
            write_zeroes: ops.write_zeroes,
            rounded: stats.rounded,
            moved: stats.clamped,
            skipped: stats.skipped.iter().map(|kind| kind.count).sum(),
            read_share: share(ops.read, ops.read + ops.write),
            all: part(&all, touched.blocks),
            reads: part(reads, touched.read),
            writes: part(writes, touched.written),
            depth: DepthPart::new(depth, span),
            reuse: ReusePart::new(&figures.reuse),
            volumes: scan.volumes.len(),
            by_volume,
            other_volumes,
            over_time: OverTime::new(&figures.timeline),
        }
    }
}

/// Signs that the trace was read in other units than its own, or tells less than it seems.
fn doubts(scan: &Scan, figures: &TraceFigures) -> Vec<String> {
    let mut doubts = Vec::new();
    let are_sectors = scan.units.contains("sectors") && !scan.units.contains("bytes");
    if let Some(aligned) = figures.aligned_bytes()
        && are_sectors
        && aligned >= BYTES_ALIGN
    {
        doubts.push(format!(
            "all starts and lengths are multiples of {} sectors: are they bytes? --columns names \
             the units, such as time_us,op,offset_bytes,size_bytes",
            aligned / SECTOR_BYTES
        ));
    }
    let cut = figures.reuse.cut();
    if cut > 0 {
        doubts.push(format!(
            "{cut} requests longer than 64 MiB: of each, the blocks beyond are not counted as \
             touched"
        ));
    }
    if let Some(step) = figures.clock.step()
        && step >= CLOCK_COARSE
        && scan.stats.duration > step
    {
        doubts.push(format!(
            "all times are multiples of {step}: shorter bursts and the order within are not known"
        ));
    }
    doubts
}

impl OpPart {
    fn new(of: &OpFigures, blocks: f64, reuse: &Reuse, span: Nanos) -> OpPart {
        let OpFigures { sizes, sequential, busiest } = of;
        let requests = sizes.total();
        let moved_mib = mib(sizes.sum() as f64);
        // The sample has this number of them.
        let followed = (blocks * reuse.rate()).round() as usize;
        OpPart {
            requests,
            mib: moved_mib,
            iops: rate(requests as f64, span),
            mib_s: rate(moved_mib, span),
            mean_kib: sizes.mean().map(|mean| mib(mean) * 1024.0),
            p50_kib: sizes.quantile(0.5).map(kib),
            p99_kib: sizes.quantile(0.99).map(kib),
            common_sizes: common(sizes),
            sequential_share: share(*sequential, requests),
            touched_mib: mib(blocks * BLOCK_SECTORS as f64),
            touched_error: reuse.error(followed),
            busiest: busiest.0.iter().map(|window| BusiestPart::new(window, span)).collect(),
        }
    }
}

fn common(sizes: &Counts) -> Vec<CommonSize> {
    let mut all: Vec<(u64, u64)> = sizes.all().collect();
    all.sort_by_key(|(size, count)| (Reverse(*count), *size));
    all.truncate(SIZES_LISTED);
    let total = sizes.total() as f64;
    let size =
        |(size, count): (u64, u64)| CommonSize { kib: kib(size), share: count as f64 / total };
    all.into_iter().map(size).collect()
}

impl BusiestPart {
    fn new(busiest: &Busiest, span: Nanos) -> BusiestPart {
        let window = busiest.window();
        let is_within = span >= window;
        let (requests, sectors) = (busiest.requests(), busiest.sectors());
        let at = |peak: Nanos| is_within.then(|| peak.as_secs_f64());
        let per_second = |number: f64| rate(number, window).filter(|_| is_within);
        BusiestPart {
            window_s: window.as_secs_f64(),
            iops: per_second(requests.count as f64),
            iops_at_s: at(requests.at),
            mib_s: per_second(mib(sectors.count as f64)),
            mib_s_at_s: at(sectors.at),
        }
    }
}

impl DepthPart {
    fn new(depth: &Depth, span: Nanos) -> Option<DepthPart> {
        let (depths, responses) = (depth.at_arrival(), depth.response_us());
        let ms = |us: u64| us as f64 / 1000.0;
        (responses.total() > 0).then(|| DepthPart {
            requests: responses.total(),
            mean: depth.mean(span),
            p50: depths.quantile(0.5),
            p99: depths.quantile(0.99),
            max: depths.max(),
            response_p50_ms: responses.quantile(0.5).map(ms),
            response_p99_ms: responses.quantile(0.99).map(ms),
        })
    }
}

impl ReusePart {
    fn new(reuse: &Reuse) -> ReusePart {
        let point = |(blocks, miss_share): (u64, f64)| CurvePoint {
            cache_mib: mib((blocks * BLOCK_SECTORS) as f64),
            miss_share,
        };
        ReusePart {
            block_kib: kib(BLOCK_SECTORS),
            sampled_share: reuse.rate(),
            curve: reuse.misses().into_iter().map(point).collect(),
        }
    }

    /// Share of the blocks read that a cache of this size does not have; null if none is read
    /// again.
    pub fn miss_share(&self, cache_mib: f64) -> Option<f64> {
        let smaller = self.curve.iter().take_while(|point| point.cache_mib <= cache_mib);
        self.curve.first()?;
        Some(smaller.last().map_or(1.0, |point| point.miss_share))
    }
}

/// A volume, and the number of its reads and writes that are sequential.
type Counted = (VolumePart, u64);

/// All volumes, those with the most requests first.
fn volumes(scan: &Scan, figures: &TraceFigures, span: Nanos) -> Vec<Counted> {
    let touched = figures.reuse.touched_by_volume();
    let volume = |(number, volume): (usize, &ScannedVolume)| {
        let ops = &volume.stats.ops;
        let of = figures.volumes.get(number);
        let sequential = of.map_or(0, |of| of.sequential);
        let (blocks, followed) = touched.get(&(number as u32)).copied().unwrap_or_default();
        let is_known = followed >= FOLLOWED_LEAST || figures.reuse.rate() == 1.0;
        let busiest = of.and_then(|of| BusiestPart::new(&of.second, span).iops);
        let part = VolumePart {
            volume: Some(volume.name.clone()),
            requests: ops.read + ops.write,
            reads: ops.read,
            writes: ops.write,
            read_mib: sectors_mib(volume.stats.read),
            written_mib: sectors_mib(volume.stats.written),
            sequential_share: share(sequential, ops.read + ops.write),
            iops: rate((ops.read + ops.write) as f64, span),
            busiest_iops: busiest,
            touched_mib: is_known.then(|| mib(blocks.blocks * BLOCK_SECTORS as f64)),
            touched_error: is_known.then(|| figures.reuse.error(followed)),
            end_mib: mib(volume.stats.end.get() as f64),
        };
        (part, sequential)
    };
    let mut volumes: Vec<Counted> = scan.volumes.iter().enumerate().map(volume).collect();
    volumes.sort_by_key(|(part, _)| Reverse(part.requests));
    volumes
}

/// The first `listed` volumes, and the sum of all others.
fn split(
    mut volumes: Vec<Counted>,
    listed: usize,
    span: Nanos,
) -> (Vec<VolumePart>, Option<VolumePart>) {
    let others = volumes.split_off(listed.min(volumes.len()));
    let by_volume = volumes.into_iter().map(|(part, _)| part).collect();
    let parts = || others.iter().map(|(part, _)| part);
    let sum = |of: fn(&VolumePart) -> u64| parts().map(of).sum::<u64>();
    let sum_mib = |of: fn(&VolumePart) -> f64| parts().map(of).sum::<f64>();
    let (requests, reads, writes) = (sum(|v| v.requests), sum(|v| v.reads), sum(|v| v.writes));
    let sequential = others.iter().map(|(_, sequential)| sequential).sum();
    let rest = VolumePart {
        volume: None,
        requests,
        reads,
        writes,
        read_mib: sum_mib(|v| v.read_mib),
        written_mib: sum_mib(|v| v.written_mib),
        sequential_share: share(sequential, reads + writes),
        iops: rate(requests as f64, span),
        busiest_iops: None,
        touched_mib: None,
        touched_error: None,
        end_mib: sum_mib(|v| v.end_mib),
    };
    (by_volume, (!others.is_empty()).then_some(rest))
}

impl OverTime {
    fn new(timeline: &Timeline) -> OverTime {
        let columns = || timeline.columns().iter();
        OverTime {
            step_s: timeline.width().as_secs_f64(),
            reads: columns().map(|column| column.reads).collect(),
            writes: columns().map(|column| column.writes).collect(),
            read_mib: columns().map(|column| sectors_mib(column.read)).collect(),
            written_mib: columns().map(|column| sectors_mib(column.written)).collect(),
        }
    }
}

/// Windows in seconds, for headings.
pub fn windows_s() -> impl Iterator<Item = u64> {
    WINDOWS.iter().map(|window| window.get() / Nanos::from_secs(1).get())
}
