//! A model against the published figures of its device: sequential and random reads and writes, and
//! mixes of both, on a device as its profile has it.

use crate::DeviceModel;
use crate::closed_loop::{ClosedLoop, command};
use seekway_core::mix as random;
use seekway_core::request::{Extent, Op};
use seekway_core::units::{Instant, Lba, Nanos, SECTOR_BYTES, Sectors};
use serde::Deserialize;
use std::collections::VecDeque;

/// Figures that the maker publishes, and their method.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "PublishedFile"))]
#[serde(deny_unknown_fields)]
pub struct Published {
    // No doc comments here: the profiles' schema would show them.
    // Millions of bytes a second, 128 KiB each, SEQUENTIAL_DEPTH at a time.
    pub sequential_read_mb_s: Option<f64>,
    pub sequential_write_mb_s: Option<f64>,
    // Commands of 4 KiB in a second at random_queue_depth.
    pub random_read_iops: Option<f64>,
    pub random_write_iops: Option<f64>,
    // As above, one at a time.
    pub random_read_qd1_iops: Option<f64>,
    pub random_write_qd1_iops: Option<f64>,
    pub random_queue_depth: u32,
    // Range of random tests, from the start of the drive.
    pub span_gib: f64,
    // Time that the host adds between two commands of one slot.
    pub host_us: f64,
    #[serde(default)]
    pub(crate) mix: Vec<Mix>,
}

impl Published {
    /// Range of random tests, from the start of the drive.
    pub fn span_sectors(&self) -> u64 {
        (self.span_gib * (f64::from(1 << 30) / SECTOR_BYTES as f64)) as u64
    }
}

/// Commands at once in the sequential tests.
pub const SEQUENTIAL_DEPTH: u32 = 32;
/// A model is good when each figure is as near as this to the published one, a mix of 70 % reads
/// included.
pub const ERROR_MAX: f64 = 0.15;
/// Largest error for other mixes and for response times. The tail (p95, p99) of a load whose sizes
/// are known as means only may be off by a factor of two.
pub const CURVE_ERROR_MAX: f64 = 0.25;

const SEQUENTIAL_SECTORS: u64 = 256;
const RANDOM_SECTORS: u64 = 8;
/// Commands before the clock starts: more than any buffer here holds, so that writes are timed at
/// their lasting pace.
const WARM_UP: u64 = 10_000;
const TIMED: u64 = 20_000;
/// The clock stops with this command; as many as before are in flight until then.
const LAST: u64 = WARM_UP + TIMED;
const SEED: u64 = 0x5EED_0001;

/// One test of a drive.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// Name of the test, as in `random read 4 KiB, depth 32`.
    pub test: String,
    /// `MB/s` of sequential tests, `IOPS` of random ones, `µs` of response times.
    pub unit: &'static str,
    /// `None` if nothing was published.
    pub published: Option<f64>,
    /// Result of the model.
    pub model: f64,
    /// The error must be at least this, which is below 0,
    pub error_min: f64,
    /// and at most this.
    pub error_max: f64,
}

impl Figure {
    /// Error of the model, as a share of the published figure.
    pub fn error(&self) -> Option<f64> {
        self.published.map(|published| self.model / published - 1.0)
    }

    /// Tells whether the error is within its bound; a figure that nobody published always is.
    pub fn holds(&self) -> bool {
        self.error().is_none_or(|error| (self.error_min..=self.error_max).contains(&error))
    }
}

/// State of the drive at the start of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    /// As its profile says.
    AsStated,
    /// As its profile says, but with its data in order: makers write a drive in order before
    /// sequential tests.
    InOrder,
}

/// Runs every test on a new drive from `build`.
pub fn run(published: &Published, build: impl Fn(Begin) -> Box<dyn DeviceModel>) -> Vec<Figure> {
    let p = published;
    let host_ns = (p.host_us * 1e3).round() as u64;
    let span_sectors = p.span_sectors();
    let figure = |test, unit, published, model| Figure {
        test,
        unit,
        published,
        model,
        error_min: -ERROR_MAX,
        error_max: ERROR_MAX,
    };
    let mut figures = Vec::new();
    for (op, word, published) in
        [(Op::Read, "read", p.sequential_read_mb_s), (Op::Write, "write", p.sequential_write_mb_s)]
    {
        let test = Test { op, sectors: SEQUENTIAL_SECTORS, depth: SEQUENTIAL_DEPTH, span: None };
        let rate = test.rate(&mut *build(Begin::InOrder), host_ns);
        let name = format!("sequential {word} 128 KiB, depth {SEQUENTIAL_DEPTH}");
        let mb_s = rate * (SEQUENTIAL_SECTORS * SECTOR_BYTES) as f64 / 1e6;
        figures.push(figure(name, "MB/s", published, mb_s));
    }
    for (op, word, depth, published) in [
        (Op::Read, "read", p.random_queue_depth, p.random_read_iops),
        (Op::Write, "write", p.random_queue_depth, p.random_write_iops),
        (Op::Read, "read", 1, p.random_read_qd1_iops),
        (Op::Write, "write", 1, p.random_write_qd1_iops),
    ] {
        let test = Test { op, sectors: RANDOM_SECTORS, depth, span: Some(span_sectors) };
        let iops = test.rate(&mut *build(Begin::AsStated), host_ns);
        let name = format!("random {word} 4 KiB, depth {depth}");
        figures.push(figure(name, "IOPS", published, iops));
    }
    for mix in &p.mix {
        figures.extend(mix.run(&mut *build(Begin::AsStated), span_sectors, host_ns));
    }
    figures
}

/// The load of a test.
struct Test {
    op: Op,
    sectors: u64,
    depth: u32,
    /// Range of random offsets in sectors; `None`: sequential.
    span: Option<u64>,
}

impl Test {
    /// Commands a second with `depth` always under way, each slot's next one `host_ns` after its
    /// last was done.
    fn rate(&self, device: &mut dyn DeviceModel, host_ns: u64) -> f64 {
        let places = device.profile().capacity.get() / self.sectors;
        let places = self.span.map_or(places, |span| (span / self.sectors).clamp(1, places));
        let mut state = SEED;
        let mut next_place = |index: u64| match self.span {
            Some(_) => random::next(&mut state) % places,
            None => index % places,
        };
        let (mut done, mut begin_ns, mut end_ns) = (0, 0, 0);
        let next = |submitted| {
            let start = Lba::new(next_place(submitted) * self.sectors);
            let extent = Extent::new(start, Sectors::new(self.sectors))?;
            (submitted < LAST + u64::from(self.depth)).then_some((self.op, extent))
        };
        let think = Nanos::new(host_ns);
        ClosedLoop { depth: self.depth, think }.run(device, next, |at| {
            done += 1;
            match done {
                WARM_UP => begin_ns = at.as_nanos(),
                LAST => end_ns = at.as_nanos(),
                _ => {}
            }
        });
        TIMED as f64 * 1e9 / (end_ns - begin_ns).max(1) as f64
    }
}

// Reads beside writes: a closed loop of both, commands that come at rates of
// their own, or one beside the other.
//
// Commands at a rate come at random times (a Poisson process), however many wait; commands beyond
// the drive's queue wait in the host, and that counts. Response times are from arrival to
// completion, with the host's time.

/// Commands that may wait in the host. Beyond this the drive cannot take the rate: the run ends,
/// and waiting commands count with the time that they have waited.
const WAITING_MAX: usize = 100_000;
/// A block, of which longer commands have a whole number.
const BLOCK_SECTORS: u64 = 8;

/// Reads beside writes: a closed loop of `depth` commands, `reads` of them reads; reads and writes
/// that come at random times at their rates; or both. And the measured figures.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "MixFile"))]
#[serde(deny_unknown_fields)]
pub struct Mix {
    pub(crate) depth: Option<u32>,
    /// Share, 0 to 1.
    pub(crate) reads: Option<f64>,
    #[serde(default)]
    pub(crate) reads_per_s: f64,
    #[serde(default)]
    pub(crate) writes_per_s: f64,
    /// Above 4 and no multiple of it: a mean of whole multiples.
    #[serde(default = "block_kib")]
    pub(crate) read_kib: f64,
    #[serde(default = "block_kib")]
    pub(crate) write_kib: f64,
    /// Absent: at random offsets.
    #[serde(default)]
    pub(crate) sequential_writes: bool,
    /// Commands that the loop completes in a second.
    pub(crate) iops: Option<f64>,
    // Response times of reads.
    pub(crate) read_mean_us: Option<f64>,
    pub(crate) read_p50_us: Option<f64>,
    pub(crate) read_p95_us: Option<f64>,
    pub(crate) read_p99_us: Option<f64>,
}

fn block_kib() -> f64 {
    4.0
}

impl Mix {
    fn name(&self) -> String {
        let size =
            |kib: f64| format!("{kib:.3}").trim_end_matches('0').trim_end_matches('.').to_owned();
        let mut parts = Vec::new();
        if let (Some(depth), Some(reads)) = (self.depth, self.reads) {
            let share = (reads * 1e4).round() / 100.0;
            parts.push(format!("{share} % reads, depth {depth}"));
        }
        for (word, rate, kib) in [
            ("reads", self.reads_per_s, self.read_kib),
            ("writes", self.writes_per_s, self.write_kib),
        ] {
            if rate > 0.0 {
                parts.push(format!("{rate:.0} {word}/s of {} KiB", size(kib)));
            }
        }
        parts.join(" beside ")
    }

    fn sizes_are_means(&self) -> bool {
        [self.read_kib, self.write_kib].into_iter().any(|kib| {
            let blocks = kib * 1024.0 / (BLOCK_SECTORS * SECTOR_BYTES) as f64;
            blocks > 1.0 && blocks.fract() > 0.0
        })
    }

    /// Runs the load on a new drive; random offsets are in the first `span_sectors`.
    fn run(&self, device: &mut dyn DeviceModel, span_sectors: u64, host_ns: u64) -> Vec<Figure> {
        let measured = Run::new(self, device, span_sectors, host_ns).measure();
        let figure = |what: &str, unit, published, model, (error_min, error_max)| Figure {
            test: format!("{}{what}", self.name()),
            unit,
            published: Some(published),
            model,
            error_min,
            error_max,
        };
        let curve = (-CURVE_ERROR_MAX, CURVE_ERROR_MAX);
        let mut figures = Vec::new();
        if let Some(iops) = self.iops {
            // The one mix that makers publish has to be as near as their other figures.
            let allowed = if self.reads == Some(0.7) { (-ERROR_MAX, ERROR_MAX) } else { curve };
            figures.push(figure("", "IOPS", iops, measured.iops, allowed));
        }
        // Of sizes that are means the tail is not that of the measured sizes.
        let tail = if self.sizes_are_means() { (-0.5, 1.0) } else { curve };
        for (what, published, model, allowed) in [
            (": mean of reads", self.read_mean_us, measured.mean_us(), curve),
            (": p50 of reads", self.read_p50_us, measured.quantile_us(0.5), curve),
            (": p95 of reads", self.read_p95_us, measured.quantile_us(0.95), tail),
            (": p99 of reads", self.read_p99_us, measured.quantile_us(0.99), tail),
        ] {
            if let Some(published) = published {
                figures.push(figure(what, "µs", published, model, allowed));
            }
        }
        figures
    }
}

/// Results of a run.
struct Measured {
    iops: f64,
    /// Ascending.
    reads_ns: Vec<u64>,
}

impl Measured {
    fn mean_us(&self) -> f64 {
        let sum: u64 = self.reads_ns.iter().sum();
        sum as f64 / self.reads_ns.len().max(1) as f64 / 1e3
    }

    fn quantile_us(&self, share: f64) -> f64 {
        let last = self.reads_ns.len().saturating_sub(1);
        let at = (last as f64 * share).round() as usize;
        self.reads_ns.get(at).map_or(0.0, |&ns| ns as f64 / 1e3)
    }
}

#[derive(Clone, Copy)]
struct Arrival {
    at: Instant,
    op: Op,
    extent: Extent,
    in_loop: bool,
}

/// A load on its way.
struct Run<'a> {
    mix: &'a Mix,
    device: &'a mut dyn DeviceModel,
    span_sectors: u64,
    host_ns: u64,
    state: u64,
    /// Where the next sequential write begins.
    next_sector: u64,
    /// When the next read and the next write at a rate come.
    next: [Option<f64>; 2],
    /// Times when slots of the loop are free, ascending.
    places: VecDeque<Instant>,
    waiting: VecDeque<Arrival>,
    /// Under way, by the number of the command.
    under_way: Vec<Option<Arrival>>,
    free: Vec<u32>,
}

impl<'a> Run<'a> {
    fn new(
        mix: &'a Mix,
        device: &'a mut dyn DeviceModel,
        span_sectors: u64,
        host_ns: u64,
    ) -> Run<'a> {
        let depth = device.queue_depth();
        let first = |rate: f64| (rate > 0.0).then_some(0.0);
        Run {
            mix,
            span_sectors: span_sectors.min(device.profile().capacity.get()),
            host_ns,
            state: SEED,
            next_sector: 0,
            next: [first(mix.reads_per_s), first(mix.writes_per_s)],
            places: (0..mix.depth.unwrap_or(0)).map(|_| Instant::ZERO).collect(),
            waiting: VecDeque::new(),
            under_way: vec![None; depth as usize],
            free: (0..depth).rev().collect(),
            device,
        }
    }

    /// A number from 0 to less than 1.
    fn share(&mut self) -> f64 {
        (random::next(&mut self.state) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn measure(mut self) -> Measured {
        let (mut done, mut looped) = (0_u64, 0_u64);
        let (mut begin, mut end) = (Instant::ZERO, Instant::ZERO);
        let mut reads_ns = Vec::with_capacity(TIMED as usize);
        while done < LAST {
            let (arrival, completion) = (self.next_arrival(), self.device.next_completion());
            match (arrival, completion) {
                (at, Some(now)) if at.is_none_or(|(at, _)| now <= at) => {
                    while let Some(arrival) = self.complete(now) {
                        done += 1;
                        if done == WARM_UP {
                            begin = now;
                        }
                        if done > WARM_UP && done <= LAST {
                            end = now;
                            looped += u64::from(arrival.in_loop);
                            if arrival.op == Op::Read {
                                let wait = now.as_nanos() - arrival.at.as_nanos();
                                reads_ns.push(wait + self.host_ns);
                            }
                        }
                    }
                    self.submit(now);
                }
                (Some((at, _)), _) if self.waiting.len() == WAITING_MAX => {
                    let reads = self.waiting.iter().filter(|waits| waits.op == Op::Read);
                    reads_ns.extend(reads.map(|waits| at.since(waits.at).get()));
                    break;
                }
                (Some((at, stream)), _) => {
                    self.arrive(at, stream);
                    self.submit(at);
                }
                // Nothing comes: `check` refuses such a load.
                (None, _) => break,
            }
        }
        reads_ns.sort_unstable();
        let seconds = (end.as_nanos() - begin.as_nanos()).max(1) as f64 / 1e9;
        Measured { iops: looped as f64 / seconds, reads_ns }
    }

    /// When the next command comes, and whether it is a read (0) or a write (1)
    /// at a rate, or of the loop (2).
    fn next_arrival(&self) -> Option<(Instant, usize)> {
        let at_rate = |ns: f64| Instant::from_nanos(ns as u64);
        let [reads, writes] = self.next.map(|next| next.map(at_rate));
        [reads, writes, self.places.front().copied()]
            .into_iter()
            .enumerate()
            .filter_map(|(stream, at)| at.map(|at| (at, stream)))
            .min()
    }

    fn arrive(&mut self, at: Instant, stream: usize) {
        let in_loop = stream == 2;
        let is_read = if in_loop {
            self.places.pop_front();
            self.share() < self.mix.reads.unwrap_or(0.0)
        } else {
            let rate = [self.mix.reads_per_s, self.mix.writes_per_s][stream];
            let gap_ns = -(1.0 - self.share()).ln() * 1e9 / rate;
            self.next[stream] = self.next[stream].map(|ns| ns + gap_ns);
            stream == 0
        };
        let op = if is_read { Op::Read } else { Op::Write };
        if let Some(extent) = self.extent(op) {
            self.waiting.push_back(Arrival { at, op, extent, in_loop });
        }
    }

    /// Where the next command of this kind goes.
    fn extent(&mut self, op: Op) -> Option<Extent> {
        let kib = if op == Op::Read { self.mix.read_kib } else { self.mix.write_kib };
        let sectors = self.sectors(kib * 1024.0).min(self.span_sectors);
        let last = self.span_sectors - sectors;
        let start = if op == Op::Write && self.mix.sequential_writes {
            let start = if self.next_sector > last { 0 } else { self.next_sector };
            self.next_sector = start + sectors;
            start
        } else {
            let align = sectors.min(BLOCK_SECTORS);
            random::next(&mut self.state) % (last / align + 1) * align
        };
        Extent::new(Lba::new(start), Sectors::new(sectors))
    }

    fn sectors(&mut self, bytes: f64) -> u64 {
        let blocks = bytes / (BLOCK_SECTORS * SECTOR_BYTES) as f64;
        if blocks <= 1.0 {
            return ((bytes / SECTOR_BYTES as f64).round() as u64).max(1);
        }
        let more = blocks.fract() > 0.0 && self.share() < blocks.fract();
        (blocks as u64 + u64::from(more)) * BLOCK_SECTORS
    }

    fn submit(&mut self, now: Instant) {
        while !self.waiting.is_empty() {
            let Some(number) = self.free.pop() else { return };
            let Some(arrival) = self.waiting.pop_front() else { return };
            self.device.submit(now, &command(number, arrival.op, arrival.extent, now));
            self.under_way[number as usize] = Some(arrival);
        }
    }

    /// Completes a command that is done by `now`; its slot of the loop is free after the host's
    /// time.
    fn complete(&mut self, now: Instant) -> Option<Arrival> {
        let slot = self.device.pop_completed(now)?.slot();
        let arrival = self.under_way.get_mut(slot)?.take()?;
        self.free.push(slot as u32);
        if arrival.in_loop {
            self.places.push_back(Instant::from_nanos(now.as_nanos() + self.host_ns));
        }
        Some(arrival)
    }
}

#[cfg(test)]
mod mix_tests {
    use super::*;
    use crate::profile;

    fn mix() -> Mix {
        Mix {
            depth: None,
            reads: None,
            reads_per_s: 0.0,
            writes_per_s: 0.0,
            read_kib: 4.0,
            write_kib: 4.0,
            sequential_writes: false,
            iops: None,
            read_mean_us: None,
            read_p50_us: None,
            read_p95_us: None,
            read_p99_us: None,
        }
    }

    fn measure(mix: &Mix, device: &str) -> Measured {
        let mut device = profile::load(device).unwrap().build();
        Run::new(mix, device.as_mut(), 1 << 24, 0).measure()
    }

    #[test]
    fn a_loop_of_one_kind_is_as_fast_as_the_plain_test() {
        let published = profile::load("intel-320").unwrap().published().unwrap();
        let plain = super::run(&published, |_| profile::load("intel-320").unwrap().build());
        for (reads, plain) in [(1.0, &plain[2]), (0.0, &plain[3])] {
            let looped =
                measure(&Mix { depth: Some(32), reads: Some(reads), ..mix() }, "intel-320");
            assert!((looped.iops / plain.model - 1.0).abs() < 0.02, "{} {plain:?}", looped.iops);
        }
    }

    #[test]
    fn commands_come_at_their_rates_and_reads_wait_for_programs() {
        let alone = Mix { reads_per_s: 2_000.0, ..mix() };
        let beside = Mix { writes_per_s: 2_000.0, ..alone.clone() };
        let [alone, beside] = [alone, beside].map(|mix| measure(&mix, "intel-320"));
        assert_eq!(alone.reads_ns.len() as u64, TIMED);
        let share = beside.reads_ns.len() as f64 / TIMED as f64;
        assert!((share - 0.5).abs() < 0.02, "{share}");
        // Read latency, the array, the channel and the link, and a command's time.
        assert!((alone.quantile_us(0.5) - 176.0).abs() < 5.0, "{}", alone.quantile_us(0.5));
        assert!(beside.quantile_us(0.99) > 1_000.0, "a program takes 1.5 ms");
        assert!(beside.mean_us() > alone.mean_us());
    }

    /// A rate beyond the drive ends the run, and the reads' times say so.
    #[test]
    fn a_rate_beyond_the_drive_is_not_met() {
        let flood = measure(&Mix { reads_per_s: 1e8, ..mix() }, "intel-320");
        assert!(flood.reads_ns.len() >= WAITING_MAX, "{}", flood.reads_ns.len());
        let near = measure(&Mix { reads_per_s: 10_000.0, ..mix() }, "intel-320");
        assert!(flood.quantile_us(0.5) > 2.0 * near.quantile_us(0.5));
    }

    #[test]
    fn means_of_sizes_come_out() {
        let mut device = profile::load("intel-320").unwrap().build();
        let mix = Mix { read_kib: 11_500.0 / 1024.0, ..mix() };
        assert!(mix.sizes_are_means());
        let mut run = Run::new(&mix, device.as_mut(), 1 << 24, 0);
        let sectors: Vec<u64> = (0..10_000).map(|_| run.sectors(11_500.0)).collect();
        assert!(sectors.iter().all(|s| [16, 24].contains(s)));
        let mean = sectors.iter().sum::<u64>() as f64 / 10_000.0 * SECTOR_BYTES as f64;
        assert!((mean / 11_500.0 - 1.0).abs() < 0.01, "{mean}");
        assert_eq!((run.sectors(512.0), run.sectors(131_072.0)), (1, 256));
    }
}
