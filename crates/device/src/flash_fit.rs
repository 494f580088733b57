//! The flash model that fits a measured drive (docs/calibrate.md, section "Flash").
//!
//! 1. The drive is measured under a matrix of loads ([`matrix`]): a closed loop of reads and writes
//!    of one size, and beside it a quiet reader of 4 KiB, one at a time.
//! 2. Half of the cells, every other one of the matrix ([`Cell::is_fitted`]), is fitted: the
//!    parameters of [`KEYS`] whose model has, in these cells, the smallest squared logarithm of the
//!    ratios of IOPS and of the reader's mean latency.
//! 3. The cells do not determine a parameter whose standard error, while all others are free, is
//!    above [`TOLD_ERROR_MAX`]. It gets its default back, and the others are fitted again. A
//!    parameter that moves by more then is not determined either. If the default makes the fit
//!    clearly worse, the fitted value stays, and is marked as rough.
//! 4. The other half shows the model's error ([`judge`]).
//!
//! Absent: the measurement of real drives, and threads. The caller runs the models ([`simulate`]),
//! several at once or not.

use crate::closed_loop::command;
use crate::fit::{Places, quoted};
use crate::profile::{self, Profile, ProfileError};
use seekway_core::mix::nth;
use seekway_core::request::{Extent, Op};
use seekway_core::units::{Instant, Lba, Sectors};
use std::fmt::{self, Write as _};
use thiserror::Error;

// A fit as the text of a profile.

impl Fit {
    /// Writes the profile of a drive of `capacity_sectors` sectors, each figure with its origin.
    /// `source` describes the measurement in a phrase; `lines` are comments on top.
    pub fn profile_toml(
        &self,
        name: &str,
        source: &str,
        lines: &[String],
        capacity_sectors: u64,
    ) -> String {
        let plain = |text: &str| text.chars().filter(|c| !c.is_control()).collect::<String>();
        let head: String = lines.iter().map(|line| format!("# {}\n", plain(line))).collect();
        let summary = format!("A flash drive fitted to {}", plain(source));
        let text = self.drive.toml(name, &summary, capacity_sectors, None, &|key| self.said(key));
        format!("# Fitted to {}.\n{head}\n{text}", plain(source))
    }

    /// Origin of a key's figure.
    fn said(&self, key: &str) -> String {
        match key {
            "capacity_sectors" => return "the size of what was measured".into(),
            "queue_depth" => return "not told: the most that a profile can have".into(),
            "reads_first" => return "fitted: the best of three rules".into(),
            "page_kib" => return "not told: program_us is for a page of this size".into(),
            "spare" | "filled" | "erase_us" => {
                return "not told: what was collected meanwhile is in program_us".into();
            }
            _ => {}
        }
        let key = if key == "dies_per_channel" { "dies" } else { key };
        let Some(n) = KEYS.iter().position(|k| k.name == key) else {
            return format!("not told by the matrix: that of {ORIGINAL}");
        };
        let said = match self.told[n] {
            Told::Fitted(error) => format!("fitted, standard error {:.1} %", 100.0 * error),
            Told::Roughly => "fitted, and only roughly told by the matrix".into(),
            Told::Not => format!("not told by the matrix: the default, {}", KEYS[n].default),
        };
        if key == "dies" { format!("dies: {said}") } else { said }
    }
}

// The loads under which a drive is measured.

const SIZES_KIB: [u32; 3] = [4, 64, 1024];
const WRITES_PERCENT: [u32; 4] = [0, 30, 70, 100];
const DEPTHS: [u32; 4] = [1, 8, 32, 128];
/// The ends, an odd number of steps apart: each half of the matrix has both.
const DEPTHS_QUICK: [u32; 2] = [1, 128];

/// One load: a closed loop, with a quiet reader of 4 KiB at depth 1 beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// Size of each command of the loop.
    pub kib: u32,
    /// Share of writes in the loop, 0 to 100.
    pub writes_percent: u32,
    /// Commands of the loop in flight.
    pub depth: u32,
}

impl Cell {
    /// Tells whether it is in the fitted half. Of two neighbours in the matrix one is, and the
    /// other one is held out. Small reads at the largest depth are fitted, because only they show
    /// the cost of a command.
    pub fn is_fitted(&self) -> bool {
        let place = |all: &[u32], value| all.iter().position(|&v| v == value).unwrap_or(0);
        let places = place(&SIZES_KIB, self.kib)
            + place(&WRITES_PERCENT, self.writes_percent)
            + place(&DEPTHS, self.depth);
        !places.is_multiple_of(2)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { kib, writes_percent, depth } = self;
        write!(f, "{kib} KiB, {writes_percent} % writes, depth {depth}")
    }
}

/// All cells in the order of measurement: reads first, so that earlier writes do not disturb them.
/// `writes`: also those that write. `quick`: with writes, only the smallest and the largest depth.
pub fn matrix(writes: bool, quick: bool) -> Vec<Cell> {
    let shares = if writes { &WRITES_PERCENT[..] } else { &WRITES_PERCENT[..1] };
    let depths = if writes && quick { &DEPTHS_QUICK[..] } else { &DEPTHS[..] };
    let mut cells = Vec::new();
    for &writes_percent in shares {
        for kib in SIZES_KIB {
            cells.extend(depths.iter().map(|&depth| Cell { kib, writes_percent, depth }));
        }
    }
    cells
}

// A cell's load as a state machine, which real disks and models are driven by alike.

const KIB_SECTORS: u64 = 2;
const READER_KIB: u32 = 4;
/// Bytes that a simulated cell writes before it counts: twice the write buffer of a fitted drive.
const WARM_UP_BYTES: u64 = 2 << 20;
const LONG_KIB: u32 = 1024;

/// Observations of a cell.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Observed {
    /// Commands of the loop that completed.
    pub commands: u64,
    /// Commands a second. Counts half a command if none completed.
    pub iops: f64,
    /// Reads of the quiet reader that completed.
    pub reader_reads: u64,
    /// Their mean latency; if none completed, how long the last one has waited.
    pub reader_mean_us: f64,
}

/// The commands of a cell. Each has a slot: 0 to below the depth are the loop's, the last one is the
/// quiet reader's. A slot has one command at a time.
pub struct CellLoad {
    cell: Cell,
    /// Random numbers for the loop's offsets, the reader's, and the choice of writes.
    places: Places,
    reader_places: Places,
    percents: Places,
    /// When the command of each slot was issued.
    issued: Vec<Instant>,
    begin: Option<Instant>,
    last: Instant,
    commands: u64,
    reader_reads: u64,
    reader_ns: u64,
}

impl CellLoad {
    /// Of a drive's first `sectors` sectors, at least a command of the cell.
    pub fn new(cell: Cell, sectors: u64, seed: u64) -> CellLoad {
        let places =
            |n, kib| Places::new(nth(nth(seed).wrapping_add(n)), sectors / sectors_of(kib));
        CellLoad {
            cell,
            places: places(0, cell.kib),
            reader_places: places(1, READER_KIB),
            percents: Places::new(nth(nth(seed).wrapping_add(2)), 100),
            issued: vec![Instant::ZERO; cell.depth as usize + 1],
            begin: None,
            last: Instant::ZERO,
            commands: 0,
            reader_reads: 0,
            reader_ns: 0,
        }
    }

    /// Commands in flight: the loop's and the reader's.
    pub fn slots(&self) -> u32 {
        self.cell.depth + 1
    }

    /// The next command of a slot that has none.
    ///
    /// # Panics
    /// There is no such slot.
    pub fn next(&mut self, now: Instant, slot: u32) -> (Op, Extent) {
        self.issued[slot as usize] = now;
        let is_reader = slot == self.cell.depth;
        let (places, kib) = match is_reader {
            true => (&mut self.reader_places, READER_KIB),
            false => (&mut self.places, self.cell.kib),
        };
        let (place, sectors) = (places.next().unwrap_or(0), sectors_of(kib));
        let extent = Extent::new(Lba::new(place * sectors), Sectors::new(sectors));
        let percent = u64::from(self.cell.writes_percent);
        let is_write = !is_reader && self.percents.next().is_some_and(|p| p < percent);
        let op = if is_write { Op::Write } else { Op::Read };
        (op, extent.expect("a place on the drive"))
    }

    /// Begins to count: all completions from now on, and of the reader the requests issued from now
    /// on.
    pub fn begin(&mut self, now: Instant) {
        self.begin = Some(now);
        self.last = now;
    }

    /// The command of a slot has completed.
    pub fn done(&mut self, now: Instant, slot: u32) {
        let Some(begin) = self.begin else { return };
        self.last = self.last.max(now);
        let issued = self.issued[slot as usize];
        if slot < self.cell.depth {
            self.commands += 1;
        } else if issued >= begin {
            self.reader_reads += 1;
            self.reader_ns += now.since(issued).get();
        }
    }

    /// Observations from the beginning until now.
    pub fn observed(&self) -> Observed {
        let begin = self.begin.unwrap_or(self.last);
        let seconds = self.last.since(begin).get().max(1) as f64 / 1e9;
        let waits =
            self.issued.last().map_or(0, |&at| self.last.as_nanos().saturating_sub(at.as_nanos()));
        let reader_ns = match self.reader_reads {
            0 => waits as f64,
            reads => self.reader_ns as f64 / reads as f64,
        };
        Observed {
            commands: self.commands,
            iops: (self.commands as f64).max(0.5) / seconds,
            reader_reads: self.reader_reads,
            reader_mean_us: (reader_ns / 1e3).max(1e-3),
        }
    }
}

fn sectors_of(kib: u32) -> u64 {
    u64::from(kib) * KIB_SECTORS
}

/// A cell on a new drive of `profile`, counted for some hundred to a few thousand commands, and
/// `longer` times as long. The same seed gives the same commands.
///
/// # Panics
/// The drive takes fewer commands at once than the cell has, or is smaller than one of them.
pub fn simulate(profile: &Profile, cell: Cell, seed: u64, longer: u64) -> Observed {
    let mut device = profile.build();
    let mut load = CellLoad::new(cell, device.profile().capacity.get(), seed);
    let depth = u64::from(cell.depth);
    // Long commands are the model's dearest, and vary least.
    let (few, each) = if cell.kib >= LONG_KIB { (30, 4) } else { (200, 32) };
    let written = u64::from(cell.kib) * 1024 * u64::from(cell.writes_percent) / 100;
    let warm_up = few + 4 * depth + WARM_UP_BYTES.checked_div(written).unwrap_or(0);
    let last = warm_up + longer * (2 * few + each * depth);
    let submit = |device: &mut dyn crate::DeviceModel, load: &mut CellLoad, now, slot| {
        let (op, extent) = load.next(now, slot);
        device.submit(now, &command(slot, op, extent, now));
    };
    for slot in 0..load.slots() {
        submit(device.as_mut(), &mut load, Instant::ZERO, slot);
    }
    let mut done = 0;
    while done < last {
        let Some(now) = device.next_completion() else { break };
        while let Some(id) = device.pop_completed(now) {
            let slot = id.slot() as u32;
            load.done(now, slot);
            done += 1;
            if done == warm_up {
                load.begin(now);
            }
            submit(device.as_mut(), &mut load, now, slot);
        }
    }
    load.observed()
}

// A drive by its fitted parameters.

/// The profile that has all other figures of a fitted drive, and the defaults.
const ORIGINAL: &str = "samsung-970-pro";
/// Parameters that are fitted.
pub const COUNT: usize = 9;
const READ_COMMAND: usize = 0;
const READ: usize = 1;
const READ_LATENCY: usize = 2;
const WRITE_COMMAND: usize = 3;
const WRITE_LATENCY: usize = 4;
const PROGRAM: usize = 5;
const CHANNEL: usize = 6;
const HOST: usize = 7;
const DIES: usize = 8;

/// A parameter: its key in a profile, and where it is searched for.
pub struct Key {
    pub name: &'static str,
    pub unit: &'static str,
    /// That of [`ORIGINAL`].
    pub default: f64,
    pub min: f64,
    pub max: f64,
}

/// In the order of [`FlashDrive::values`].
pub const KEYS: [Key; COUNT] = [
    key("read_command_us", "µs", 1.9, 0.05, 1e3),
    key("read_us", "µs", 30.6, 1.0, 1e4),
    key("read_latency_us", "µs", 21.5, 0.1, 1e5),
    key("write_command_us", "µs", 1.9, 0.05, 1e3),
    key("write_latency_us", "µs", 4.0, 0.1, 1e5),
    key("program_us", "µs", 185.0, 5.0, 1e5),
    key("channel_mb_s", "MB/s", 800.0, 5.0, 2e4),
    key("host_mb_s", "MB/s", 3360.0, 5.0, 5e4),
    key("dies", "", 16.0, 1.0, 256.0),
];

const fn key(name: &'static str, unit: &'static str, default: f64, min: f64, max: f64) -> Key {
    Key { name, unit, default, min, max }
}

/// Channels of the dies, or one for each die if there are fewer.
const CHANNELS: u32 = 8;
const PAGE_KIB: u32 = 32;
/// Size above which a mapping unit is a page, so that a profile can have all units.
const SMALL_UNITS_SECTORS_MAX: u64 = 1 << 33;
/// Size of a simulated cell's drive: larger than the cell's writes, so that nothing is collected.
const MODEL_SECTORS: u64 = 8 << 20;
/// Of that drive: the smaller its blocks, the faster it is built. Without collection they do nothing.
const MODEL_BLOCK_PAGES: u64 = 32;
/// The most that a profile can have.
const QUEUE_DEPTH: u64 = 256;
const SUSPENDS: u32 = 100;
const SUSPEND_US: &str = "20.0";

/// Behaviour of a read whose die is busy with writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beside {
    Waits,
    /// The read goes before writes that have not begun (`reads_first`).
    GoesFirst,
    /// As above, and it suspends a program that has begun (`program_suspends`).
    Suspends,
}

impl Beside {
    /// As a word in tables and JSON.
    pub fn word(self) -> &'static str {
        match self {
            Beside::Waits => "waits",
            Beside::GoesFirst => "goes first",
            Beside::Suspends => "suspends programs",
        }
    }
}

/// A drive as it is fitted.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FlashDrive {
    /// In the order of [`KEYS`], within their ranges.
    pub values: [f64; COUNT],
    pub beside: Beside,
}

impl Default for FlashDrive {
    fn default() -> FlashDrive {
        FlashDrive { values: std::array::from_fn(|n| KEYS[n].default), beside: Beside::Waits }
    }
}

impl FlashDrive {
    /// Channels, and dies on each: the nearest even spread over them.
    fn channels(&self) -> (u32, u32) {
        let dies = self.values[DIES].round() as u32;
        let channels = dies.clamp(1, CHANNELS);
        (channels, ((f64::from(dies) / f64::from(channels)).round() as u32).max(1))
    }

    /// The value that a profile has.
    pub fn value(&self, n: usize) -> f64 {
        match n {
            DIES => {
                let (channels, dies) = self.channels();
                f64::from(channels * dies)
            }
            CHANNEL | HOST => self.values[n].round(),
            _ => (self.values[n] * 1e3).round() / 1e3,
        }
    }

    /// The drive for a simulated cell.
    ///
    /// # Errors
    /// Values out of a profile's range.
    pub fn model(&self) -> Result<Profile, ProfileError> {
        Profile::parse(
            &self.toml("model", "", MODEL_SECTORS, Some(MODEL_BLOCK_PAGES), &|_| String::new()),
        )
    }

    /// The text of a profile: that of [`ORIGINAL`] with this drive's figures and `block_pages`, and
    /// `said`'s remark beside each figure.
    fn toml(
        &self,
        name: &str,
        summary: &str,
        capacity_sectors: u64,
        block_pages: Option<u64>,
        said: &dyn Fn(&str) -> String,
    ) -> String {
        let mut text = format!("name = {}\nsummary = {}\n\n[ssd]\n", quoted(name), quoted(summary));
        let original = profile::text(ORIGINAL).unwrap_or_default().lines();
        let figures =
            original.skip_while(|&l| l != "[ssd]").skip(1).take_while(|l| !l.starts_with('['));
        for (key, rest) in figures.filter_map(|line| line.split_once(" = ")) {
            let unchanged = rest.split(" #").next().unwrap_or_default().to_owned();
            let own = match (key, block_pages) {
                ("block_pages", Some(pages)) => Some(pages.to_string()),
                _ => self.figure(key, capacity_sectors),
            };
            let value = own.unwrap_or(unchanged);
            let _ = writeln!(text, "{key} = {value} # {}", said(key));
        }
        let (first, suspends) = match self.beside {
            Beside::Waits => return text,
            Beside::GoesFirst => ("1.0", 0),
            Beside::Suspends => ("1.0", SUSPENDS),
        };
        let said = said("reads_first");
        let _ = writeln!(
            text,
            "reads_first = {first} # {said}\nprogram_suspends = {suspends} # {said}"
        );
        if suspends > 0 {
            let _ = writeln!(text, "program_suspend_us = {SUSPEND_US} # not told: assumed");
        }
        text
    }

    /// The drive's value for a key of its profile; `None`: that of the original profile.
    fn figure(&self, key: &str, capacity_sectors: u64) -> Option<String> {
        let (channels, dies) = self.channels();
        let whole = match key {
            "capacity_sectors" => capacity_sectors,
            "channels" => channels.into(),
            "dies_per_channel" => dies.into(),
            "queue_depth" => QUEUE_DEPTH,
            "mapping_kib" if capacity_sectors > SMALL_UNITS_SECTORS_MAX => PAGE_KIB.into(),
            _ => {
                let n = KEYS.iter().position(|k| k.name == key)?;
                let decimals = if KEYS[n].unit == "µs" { 3 } else { 0 };
                return Some(format!("{:.decimals$}", self.value(n)));
            }
        };
        Some(whole.to_string())
    }
}

// The search for the parameters, their precision, and the model's error.

/// Largest standard error of a determined parameter, as a share of it.
pub const TOLD_ERROR_MAX: f64 = 0.1;
/// Fewest cells that are fitted.
const CELLS_MIN: usize = 3;
/// With fewer reads the quiet reader's mean says nothing.
const READER_READS_MIN: u64 = 5;
/// Least standard error of a figure: the difference of two measurements of one cell.
const FIGURE_ERROR_MIN: f64 = 0.02;
/// A figure that changes by less while a parameter doubles does not depend on it: it is the
/// chance of a short run.
const CHANGE_MIN: f64 = 0.03;
/// Squared standard errors by which a figure is clearly worse.
const CLEARLY: f64 = 4.0;
/// Dies with which a search begins.
const DIES_TRIED: [f64; 3] = [4.0, 16.0, 64.0];
/// Rounds of a descent, at most.
const ROUNDS_MAX: usize = 60;

/// A cell as it was measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    pub cell: Cell,
    pub seen: Observed,
}

impl Measured {
    /// Logarithms of the ratios of the model's IOPS and of its quiet reader's mean latency to the
    /// measured ones; the second one if there were enough reads.
    fn errors(&self, model: &Observed) -> [Option<f64>; 2] {
        let reader = (model.reader_mean_us / self.seen.reader_mean_us).ln();
        let has_reader = self.seen.reader_reads >= READER_READS_MIN;
        [Some((model.iops / self.seen.iops).ln()), has_reader.then_some(reader)]
    }
}

/// Precision of a fitted parameter.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Told {
    /// Fitted; its standard error as a share of it.
    Fitted(f64),
    /// The cells tell it less well than [`TOLD_ERROR_MAX`], and do not allow the default.
    Roughly,
    /// The cells allow the default.
    Not,
}

/// There is no fit: too few cells of the fitted half were measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{found} cells of the fitted half of the matrix were measured; a fit needs {CELLS_MIN}")]
pub struct TooFew {
    found: usize,
}

/// The fitted drive, and the precision of its parameters.
#[derive(Clone, PartialEq, Debug)]
pub struct Fit {
    pub drive: FlashDrive,
    pub told: [Told; COUNT],
    /// Is [`FlashDrive::beside`] clearly better than its default?
    pub beside_told: bool,
}

/// Fits a drive to the cells of the fitted half. `run` simulates these cells on a profile, in order.
///
/// # Errors
/// [`TooFew`].
pub fn fit(
    measured: &[Measured],
    run: &mut dyn FnMut(&Profile, &[Cell]) -> Vec<Observed>,
) -> Result<Fit, TooFew> {
    let fitted: Vec<Measured> = measured.iter().filter(|m| m.cell.is_fitted()).copied().collect();
    if fitted.len() < CELLS_MIN {
        return Err(TooFew { found: fitted.len() });
    }
    let cells = fitted.iter().map(|m| m.cell).collect();
    let mut search = Search { measured: fitted, cells, run };
    let all = [true; COUNT];
    // A search that begins far from the drive's dies ends in another valley.
    let starts = DIES_TRIED.map(|dies| search.descend(search.guess(dies), &all, 0.7, 0.2));
    let lowest = |a: &&(FlashDrive, f64), b: &&(FlashDrive, f64)| a.1.total_cmp(&b.1);
    let start = *starts.iter().min_by(lowest).expect("several");
    let mut best = search.descend(start.0, &all, 0.3, 0.1);
    let mut beside_told = false;
    if search.cells.iter().any(|c| c.writes_percent > 0) {
        for beside in [Beside::GoesFirst, Beside::Suspends] {
            let other = search.descend(FlashDrive { beside, ..start.0 }, &all, 0.7, 0.1);
            if other.1 + search.margin(other.1, COUNT) < best.1 {
                (best, beside_told) = (other, true);
            }
        }
    }
    best = search.descend(best.0, &all, 0.1, 0.01);
    let (drive, told) = search.tell(best);
    Ok(Fit { drive, told, beside_told })
}

/// Parameters that are multiplied by a factor together, and one whose time shrinks by as much as
/// the last one's grows.
struct Move {
    scaled: &'static [usize],
    pays: Option<usize>,
}

/// Each parameter alone; and directions that leave a figure alone, along which the search would
/// creep.
static MOVES: [Move; COUNT + 7] = [
    alone(&[READ_COMMAND]),
    alone(&[READ]),
    alone(&[READ_LATENCY]),
    alone(&[WRITE_COMMAND]),
    alone(&[WRITE_LATENCY]),
    alone(&[PROGRAM]),
    alone(&[CHANNEL]),
    alone(&[HOST]),
    alone(&[DIES]),
    // Programs in a second, reads in a second, and both.
    alone(&[DIES, PROGRAM]),
    alone(&[DIES, READ]),
    alone(&[DIES, READ, PROGRAM]),
    // The time of a single read and of a single write.
    Move { scaled: &[READ], pays: Some(READ_LATENCY) },
    Move { scaled: &[READ_COMMAND], pays: Some(READ_LATENCY) },
    Move { scaled: &[DIES, READ], pays: Some(READ_LATENCY) },
    Move { scaled: &[WRITE_COMMAND], pays: Some(WRITE_LATENCY) },
];

const fn alone(scaled: &'static [usize]) -> Move {
    Move { scaled, pays: None }
}

impl Move {
    fn uses(&self, n: usize) -> bool {
        self.scaled.contains(&n) || self.pays == Some(n)
    }

    fn apply(&self, drive: &FlashDrive, factor: f64) -> FlashDrive {
        let mut moved = self.scaled.iter().fold(*drive, |drive, &n| scaled(&drive, n, factor));
        if let (Some(pays), Some(&n)) = (self.pays, self.scaled.last()) {
            let left = moved.values[pays] - (moved.values[n] - drive.values[n]);
            moved.values[pays] = left.clamp(KEYS[pays].min, KEYS[pays].max);
        }
        moved
    }
}

struct Search<'a> {
    measured: Vec<Measured>,
    cells: Vec<Cell>,
    run: &'a mut dyn FnMut(&Profile, &[Cell]) -> Vec<Observed>,
}

impl Search<'_> {
    /// Logarithms of the ratios of all figures; 0 where nothing is known.
    fn errors(&mut self, drive: &FlashDrive) -> Vec<f64> {
        let Ok(model) = drive.model() else { return vec![f64::INFINITY; 2 * self.cells.len()] };
        let models = (self.run)(&model, &self.cells);
        let pairs = self.measured.iter().zip(&models);
        pairs.flat_map(|(m, model)| m.errors(model)).map(|e| e.unwrap_or(0.0)).collect()
    }

    fn score(&mut self, drive: &FlashDrive) -> f64 {
        self.errors(drive).iter().map(|e| e * e).sum()
    }

    /// Variance of a figure, by the residue of a fit with `free` parameters.
    fn variance(&self, score: f64, free: usize) -> f64 {
        let figures = 2 * self.cells.len();
        let left = figures.saturating_sub(free).max(1);
        (score / left as f64).max(FIGURE_ERROR_MIN * FIGURE_ERROR_MIN)
    }

    /// A score that is higher by more than this is clearly worse.
    fn margin(&self, score: f64, free: usize) -> f64 {
        CLEARLY * self.variance(score, free)
    }

    /// Start of the search with `dies` dies, from bounds that the cells show directly.
    fn guess(&self, dies: f64) -> FlashDrive {
        let most = |of: &dyn Fn(&Measured) -> f64| self.measured.iter().map(of).fold(0.0, f64::max);
        let bytes = |m: &Measured| m.seen.iops * f64::from(m.cell.kib) * 1024.0;
        let writes = |m: &Measured| f64::from(m.cell.writes_percent) / 100.0;
        let least_us = 1.0 / most(&|m| 1.0 / m.seen.reader_mean_us);
        let command_us = 5e5 / most(&|m| m.seen.iops).max(1.0);
        let mut drive = FlashDrive::default();
        let written = most(&|m| bytes(m) * writes(m));
        let mut set = |n: usize, value: f64| {
            drive.values[n] = value.clamp(KEYS[n].min, KEYS[n].max);
        };
        set(READ_COMMAND, command_us);
        set(DIES, dies);
        set(READ, 0.8 * least_us);
        set(READ_LATENCY, 0.1 * least_us);
        set(HOST, 1.2e-6 * most(&bytes));
        set(CHANNEL, KEYS[CHANNEL].default.max(0.4e-6 * most(&bytes)));
        if written > 0.0 {
            set(WRITE_COMMAND, command_us);
            set(PROGRAM, 1e6 * dies * f64::from(PAGE_KIB) * 1024.0 / written);
        }
        drive
    }

    /// Goes down from `drive` by moves of the parameters that are `free`: each by the factor
    /// e^`step` at first, by half of that where neither direction is better, and so on until all
    /// steps are below `finest`. The drive and its score.
    fn descend(
        &mut self,
        drive: FlashDrive,
        free: &[bool; COUNT],
        step: f64,
        finest: f64,
    ) -> (FlashDrive, f64) {
        let may = |m: &&Move| (0..COUNT).all(|n| free[n] || !m.uses(n));
        let mut moves: Vec<(&Move, f64)> = MOVES.iter().filter(may).map(|m| (m, step)).collect();
        let mut best = (drive, self.score(&drive));
        for _ in 0..ROUNDS_MAX {
            for (way, step) in &mut moves {
                if step.abs() < finest {
                    continue;
                }
                let found = [*step, -*step].into_iter().find_map(|by| {
                    let tried = way.apply(&best.0, by.exp());
                    let is_new = tried != best.0;
                    let score = if is_new { self.score(&tried) } else { f64::INFINITY };
                    (score < best.1).then_some((tried, score, by))
                });
                match found {
                    // That direction first the next time.
                    Some((tried, score, by)) => (best, *step) = ((tried, score), by),
                    None => *step /= 2.0,
                }
            }
            if moves.iter().all(|(_, step)| step.abs() < finest) {
                break;
            }
        }
        best
    }

    /// Gives undetermined parameters their defaults, the least determined first, where the others
    /// can make up for that.
    fn tell(&mut self, fitted: (FlashDrive, f64)) -> (FlashDrive, [Told; COUNT]) {
        let errors = self.standard_errors(&fitted);
        let mut told = errors.map(Told::Fitted);
        let mut order: Vec<usize> = (0..COUNT).filter(|&n| errors[n] > TOLD_ERROR_MAX).collect();
        order.sort_by(|&a, &b| errors[b].total_cmp(&errors[a]));
        let (mut free, mut best) = ([true; COUNT], fitted);
        let allowed = fitted.1 + self.margin(fitted.1, COUNT);
        for n in order {
            free[n] = false;
            let mut without = best.0;
            without.values[n] = KEYS[n].default;
            let without = self.descend(without, &free, 0.2, 0.02);
            if without.1 <= allowed {
                (best, told[n]) = (without, Told::Not);
            } else {
                (free[n], told[n]) = (true, Told::Roughly);
            }
        }
        // Another drive fits as well, and differs there.
        let moved = |n: usize| (best.0.values[n] / fitted.0.values[n]).ln().abs();
        for (n, told) in told.iter_mut().enumerate() {
            if matches!(told, Told::Fitted(_)) && moved(n) > TOLD_ERROR_MAX {
                *told = Told::Roughly;
            }
        }
        (best.0, told)
    }

    /// Of each parameter while all others are free, as a share of it: from how the figures change
    /// with each. Infinite where none does.
    fn standard_errors(&mut self, best: &(FlashDrive, f64)) -> [f64; COUNT] {
        let changes: Vec<Vec<f64>> = (0..COUNT).map(|n| self.changes(&best.0, n)).collect();
        let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let rows = changes.iter().map(|a| changes.iter().map(|b| product(a, b)).collect());
        let inverse = inverse_diagonal(rows.collect());
        let variance = self.variance(best.1, COUNT);
        std::array::from_fn(|n| (variance * inverse[n]).sqrt())
    }

    /// Changes of each figure's logarithm with that of a parameter, around the drive.
    fn changes(&mut self, drive: &FlashDrive, n: usize) -> Vec<f64> {
        // Dies come in whole eights.
        let by: f64 = if n == DIES { 2.0 } else { 2_f64.sqrt() };
        let ends = [1.0 / by, by].map(|by| scaled(drive, n, by));
        let span = (ends[1].value(n) / ends[0].value(n)).ln();
        let [low, high] = ends.map(|end| self.errors(&end));
        let change = |(low, high): (&f64, &f64)| {
            let change = high - low;
            if span > 0.0 && change.abs() >= CHANGE_MIN { change / span } else { 0.0 }
        };
        low.iter().zip(&high).map(change).collect()
    }
}

/// The drive with one value multiplied, within its range.
fn scaled(drive: &FlashDrive, n: usize, factor: f64) -> FlashDrive {
    let mut values = drive.values;
    values[n] = (values[n] * factor).clamp(KEYS[n].min, KEYS[n].max);
    FlashDrive { values, ..*drive }
}

/// The diagonal of the inverse of a symmetric matrix without negative eigenvalues (Gauss-Jordan). A
/// little on the diagonal keeps a singular one solvable, with a huge inverse.
fn inverse_diagonal(mut rows: Vec<Vec<f64>>) -> Vec<f64> {
    const LITTLE: f64 = 1e-9;
    let size = rows.len();
    for (n, row) in rows.iter_mut().enumerate() {
        row[n] += LITTLE;
        row.extend((0..size).map(|column| f64::from(u8::from(column == n))));
    }
    for n in 0..size {
        let pivot = rows[n][n].max(LITTLE * LITTLE);
        rows[n].iter_mut().for_each(|value| *value /= pivot);
        let row = rows[n].clone();
        for (_, other) in rows.iter_mut().enumerate().filter(|(other, _)| *other != n) {
            let factor = other[n];
            other.iter_mut().zip(&row).for_each(|(value, by)| *value -= factor * by);
        }
    }
    (0..size).map(|n| rows[n][size + n].max(0.0)).collect()
}

/// Error of a model in a half of the matrix.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Judgement {
    /// Mean of |model / measured - 1| over IOPS and the quiet reader's means.
    pub mean: f64,
    /// Cell and figure with the largest error, and model / measured - 1 there.
    pub worst: (Cell, &'static str, f64),
}

/// Compares models of the same cells, in order, with the measurement: of the fitted half or the
/// other one. `None` if nothing of it was measured.
pub fn judge(measured: &[Measured], models: &[Observed], fitted: bool) -> Option<Judgement> {
    let half = measured.iter().zip(models).filter(|(m, _)| m.cell.is_fitted() == fitted);
    let figures: Vec<(Cell, &'static str, f64)> = half
        .flat_map(|(m, model)| {
            let named = ["IOPS", "mean of the reader"].into_iter().zip(m.errors(model));
            named.filter_map(|(name, error)| Some((m.cell, name, error?.exp() - 1.0)))
        })
        .collect();
    let worst = figures.iter().max_by(|a, b| a.2.abs().total_cmp(&b.2.abs()))?;
    let sum: f64 = figures.iter().map(|(_, _, off)| off.abs()).sum();
    Some(Judgement { mean: sum / figures.len() as f64, worst: *worst })
}

#[cfg(test)]
mod toml_tests {
    use super::*;
    use super::{Beside, COUNT, FlashDrive};
    use crate::profile::Profile;

    #[test]
    fn a_profile_says_of_each_figure_whether_it_was_told() {
        let mut told = [Told::Fitted(0.03); COUNT];
        for (n, key) in KEYS.iter().enumerate() {
            match key.name {
                "channel_mb_s" => told[n] = Told::Not,
                "program_us" => told[n] = Told::Roughly,
                _ => {}
            }
        }
        let drive = FlashDrive { beside: Beside::Suspends, ..FlashDrive::default() };
        let fit = Fit { drive, told, beside_told: true };
        let lines = ["half of\nit".to_owned()];
        for sectors in [1 << 17, 1 << 31] {
            let text = fit.profile_toml("mine", "the file \"a\n.img\"", &lines, sectors);
            let profile = Profile::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!((profile.name(), profile.capacity_sectors()), ("mine", sectors));
            for line in [
                "read_us = 30.600 # fitted, standard error 3.0 %",
                "program_us = 185.000 # fitted, and only roughly",
                "channel_mb_s = 800 # not told by the matrix: the default, 800",
                "dies_per_channel = 2 # dies: fitted, standard error 3.0 %",
                "program_suspends = 100 # fitted: the best of three rules",
                "# half ofit",
            ] {
                assert!(text.contains(line), "{line}\n{text}");
            }
            let figures = text.lines().skip_while(|&l| l != "[ssd]").skip(1);
            assert!(figures.clone().count() > 20, "{text}");
            assert!(figures.clone().all(|l| l.contains(" # ")), "a figure without source: {text}");
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_original() {
        let text = crate::profile::text(ORIGINAL).unwrap();
        for key in KEYS.iter().filter(|k| k.name != "dies") {
            let line = text.lines().find(|l| l.starts_with(&format!("{} = ", key.name))).unwrap();
            let value = line.split(' ').nth(2).unwrap().parse();
            assert_eq!(value, Ok(key.default), "{line}");
        }
        assert!(text.contains("channels = 8 ") && text.contains("dies_per_channel = 2 "));
    }
}

#[cfg(test)]
mod matrix_tests {
    use super::*;

    #[test]
    fn half_is_fitted_and_has_every_size_share_and_depth() {
        for (writes, quick, cells) in
            [(true, false, 48), (true, true, 24), (false, false, 12), (false, true, 12)]
        {
            let all = matrix(writes, quick);
            assert_eq!(all.len(), cells);
            let (fitted, held): (Vec<_>, Vec<_>) = all.iter().partition(|c| c.is_fitted());
            assert_eq!(fitted.len(), held.len());
            for half in [fitted, held] {
                let has = |of: fn(&Cell) -> u32| {
                    let mut values: Vec<u32> = half.iter().map(&of).collect();
                    values.sort_unstable();
                    values.dedup();
                    values
                };
                assert_eq!(has(|c| c.kib), SIZES_KIB);
                assert_eq!(has(|c| c.writes_percent).len(), if writes { 4 } else { 1 });
                assert_eq!(has(|c| c.depth).len(), if writes && quick { 2 } else { 4 });
            }
        }
    }
}

#[cfg(test)]
mod drive_tests {
    use super::*;

    #[test]
    fn dies_spread_over_channels() {
        let dies = |dies: f64| {
            let mut drive = FlashDrive::default();
            drive.values[DIES] = dies;
            (drive.channels(), drive.value(DIES))
        };
        assert_eq!(dies(1.0), ((1, 1), 1.0));
        assert_eq!(dies(5.4), ((5, 1), 5.0));
        assert_eq!(dies(16.3), ((8, 2), 16.0));
        assert_eq!(dies(256.0), ((8, 32), 256.0));
    }
}

#[cfg(test)]
mod search_tests {
    use super::*;

    #[test]
    fn a_matrix_is_inverted_and_a_singular_one_has_a_huge_inverse() {
        let near = |found: f64, value: f64| assert!((found - value).abs() < 1e-6, "{found}");
        let found = inverse_diagonal(vec![vec![4.0, 1.0], vec![1.0, 3.0]]);
        near(found[0], 3.0 / 11.0);
        near(found[1], 4.0 / 11.0);
        // Two parameters whose product alone shows, and one that shows alone.
        let rows = [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 2.0]];
        let found = inverse_diagonal(rows.iter().map(|row| row.to_vec()).collect());
        assert!(found[0] > 1e6 && found[1] > 1e6, "{found:?}");
        near(found[2], 0.5);
    }

    #[test]
    fn what_is_off_is_said_of_each_half() {
        let cell = |depth| Cell { kib: 4, writes_percent: 0, depth };
        let seen = |iops, reader_reads| Observed {
            commands: 9,
            iops,
            reader_reads,
            reader_mean_us: 100.0,
        };
        let measured = [
            Measured { cell: cell(1), seen: seen(100.0, 50) },
            Measured { cell: cell(8), seen: seen(100.0, 50) },
            Measured { cell: cell(128), seen: seen(200.0, 1) },
        ];
        let models = [seen(100.0, 50), seen(90.0, 50), seen(240.0, 50)];
        let held = judge(&measured, &models, false).expect("one cell");
        assert_eq!(held.mean, 0.0);
        // Of the last one, which had one read, only the IOPS count.
        let fitted = judge(&measured, &models, true).expect("two cells");
        assert!((fitted.mean - (0.1 + 0.0 + 0.2) / 3.0).abs() < 1e-9, "{fitted:?}");
        assert_eq!((fitted.worst.0, fitted.worst.1), (cell(128), "IOPS"));
        assert!(judge(&measured[..1], &models, true).is_none());
    }

    #[test]
    fn a_move_pays_for_what_becomes_longer() {
        let drive = FlashDrive::default();
        let way = Move { scaled: &[READ], pays: Some(READ_LATENCY) };
        let moved = way.apply(&drive, 1.5);
        let sum = |d: &FlashDrive| d.values[READ] + d.values[READ_LATENCY];
        assert!((sum(&moved) - sum(&drive)).abs() < 1e-9 && moved.values[READ] > 45.0);
        // It cannot pay more than it has.
        assert_eq!(way.apply(&drive, 9.0).values[READ_LATENCY], KEYS[READ_LATENCY].min);
    }

    #[test]
    fn too_few_cells_are_no_fit() {
        let none = fit(&[], &mut |_, _| Vec::new());
        assert_eq!(none, Err(TooFew { found: 0 }));
    }
}
