//! A solid-state drive's model against its published figures: sequential and random reads and
//! writes, and mixes of both, on a drive as its profile has it.

mod mix;

pub use mix::Mix;

use crate::DeviceModel;
use crate::closed_loop::ClosedLoop;
use seekway_core::mix as random;
use seekway_core::request::{Extent, Op};
use seekway_core::units::{Lba, Nanos, SECTOR_BYTES, Sectors};
use serde::Deserialize;

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
