//! `seekway calibrate --flash`: the flash model that fits a drive. It writes to it only with
//! `--overwrite`.

use super::measure::{Signals, is_stopped};
use super::{Calibrated, say_profile};
use crate::args::CalibrateArgs;
use crate::{Verdict, load, output, runs};
use anyhow::{Context, Result, bail};
use seekway_core::units::{Instant, SECTOR_BYTES, Sectors};
use seekway_device::flash_fit::{self, Cell, CellLoad, Fit, KEYS, Measured, Observed, Told};
use seekway_device::profile::Profile;
use seekway_drive::{DriveOptions, drive};
use seekway_hostd::images::{Image, OpenOptions, Surface};
use seekway_report::html::{Block, Section};
use seekway_report::table::{Cell as Shown, Table};
use seekway_workload::{Issue, Source, SourceError, VmDisk};
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const CELL_TIME: Duration = Duration::from_millis(37_500);
const CELL_TIME_QUICK: Duration = Duration::from_millis(7_500);
const CELL_TIME_MIN: Duration = Duration::from_millis(100);
const CELL_TIME_MAX: Duration = Duration::from_secs(3600);
/// The first part of a cell, which does not count.
const SETTLE_SHARE: u32 = 5;
/// Fewest sectors: 64 places for the longest command.
const SECTORS_MIN: u64 = 64 * LONGEST_SECTORS;
const LONGEST_SECTORS: u64 = 2048;
/// A file with more holes than this is not measured.
const HOLES_MAX: f64 = 0.01;

/// `calibrate --flash --format json`: these keys, in this order.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FlashReport {
    /// Each load of the matrix that was measured.
    cells: Vec<FlashCell>,
    parameters: Vec<FlashParameter>,
    /// Behaviour of a read whose die is at work for writes: `waits`, `goes first`, `suspends
    /// programs`.
    reads_beside_writes: &'static str,
    /// Error of the model in each half of which something was measured.
    halves: Vec<Half>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FlashCell {
    kib: u32,
    writes_percent: u32,
    depth: u32,
    /// `fitted`, or `held out`.
    half: &'static str,
    iops: f64,
    model_iops: f64,
    reader_reads: u64,
    /// Mean latency of the quiet reader.
    reader_mean_us: f64,
    model_reader_mean_us: f64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FlashParameter {
    key: &'static str,
    value: f64,
    unit: &'static str,
    /// `yes`; `roughly` (the cells allow neither the default nor a sharp value); `no` (the default).
    told: &'static str,
    /// Standard error of one that is told, as a share of it.
    error: Option<f64>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Half {
    /// `fitted`, or `held out`.
    half: &'static str,
    /// Mean of |model / measured - 1| over IOPS and the quiet reader's means.
    mean_error: f64,
    /// The largest, with its sign.
    worst_error: f64,
    /// Of what, and in which cell.
    worst_at: String,
}

/// The loads that were measured, of how many sectors, and what has to be said of it.
struct Matrix {
    cells: Vec<Measured>,
    sectors: u64,
    notes: Vec<String>,
}

pub fn run(args: &CalibrateArgs, name: &str) -> Result<Verdict> {
    let (matrix, seed) = (measure(args, cell_time(args)?)?, args.measuring.seed);
    let bar = runs::steps("fitting");
    let fit = flash_fit::fit(&matrix.cells, &mut |model, cells| simulate(model, cells, seed));
    bar.finish_and_clear();
    let shown = args.what.display();
    let fit = fit.with_context(|| format!("{shown}: {}", matrix.notes.join("; ")))?;
    let report = report(&matrix.cells, &fit, seed)?;
    let tables = tables(&report);
    let verdict = |half: &Half| {
        let Half { half, mean_error, worst_error, worst_at } = half;
        let (mean, worst) = (100.0 * mean_error, 100.0 * worst_error);
        format!(
            "{half}: the model is off by {mean:.1} % in the mean, at most {worst:+.1} % ({worst_at})"
        )
    };
    let mut notes: Vec<String> = report.halves.iter().map(verdict).collect();
    notes.extend(matrix.notes);
    output::print_as(args.format, &tables, &Calibrated::Flash(report))?;
    notes.iter().for_each(|note| eprintln!("note: {note}"));
    if let Some(path) = &args.profile {
        let what = format!("{shown} ({} loads, seed {seed})", matrix.cells.len());
        let text = fit.profile_toml(name, &what, &notes, matrix.sectors);
        output::write_file(path, |out| out.write_all(text.as_bytes()))?;
    }
    output::write_report(args.report.as_deref(), || {
        let said = notes.into_iter().map(Block::Text);
        let blocks = tables.into_iter().map(Block::Table).chain(said).collect();
        let subtitle = format!("The flash model fitted to {shown}.");
        let sections = vec![Section::new("Result", blocks)];
        output::report("Seekway: calibration of a flash drive", subtitle, [], sections)
    })?;
    say_profile(args);
    Ok(Verdict::Done)
}

fn cell_time(args: &CalibrateArgs) -> Result<Duration> {
    let default = if args.flash.quick { CELL_TIME_QUICK } else { CELL_TIME };
    let Some(text) = &args.flash.cell_time else { return Ok(default) };
    let time = Duration::from_nanos(load::duration("--cell-time", text)?.get());
    if !(CELL_TIME_MIN..=CELL_TIME_MAX).contains(&time) {
        bail!("--cell-time {text}: expected 100ms to 1h");
    }
    Ok(time)
}

/// Measures the matrix, or its cells that only read.
fn measure(args: &CalibrateArgs, time: Duration) -> Result<Matrix> {
    let (what, overwrite) = (&args.what, args.flash.overwrite);
    let sectors = check_surface(what)?;
    // Its lock, and of a block device the claim, last until all is measured.
    let _image = overwrite.then(|| open_to_write(what)).transpose()?;
    let cells = flash_fit::matrix(overwrite, args.flash.quick);
    let shown = what.display();
    let minutes = (time * cells.len() as u32).as_secs_f64() / 60.0;
    if overwrite {
        eprintln!("warning: --overwrite destroys what {shown} holds (Ctrl-C ends it)");
    }
    eprintln!("measuring {shown} under {} loads for {minutes:.1} minutes", cells.len());
    let signals = Signals::heard().context("cannot handle signals")?;
    let (mut measured, mut notes) = (Vec::new(), Vec::new());
    let bar = runs::runs(cells.len() as u64, "measuring");
    for (n, &cell) in cells.iter().enumerate() {
        let seed = args.measuring.seed.wrapping_add(n as u64);
        let seen = measure_cell(what, sectors, cell, time, seed, &signals)?;
        if signals.came() {
            break;
        }
        match seen.commands {
            0 => notes.push(format!("{cell}: nothing completed in its time; it is left out")),
            _ => measured.push(Measured { cell, seen }),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if signals.came() {
        let (done, all) = (measured.len(), cells.len());
        notes.push(format!("interrupted: {done} of {all} loads were measured"));
    }
    if !overwrite {
        notes
            .push("only reads were measured: what writes cost is the default (--overwrite)".into());
    }
    Ok(Matrix { cells: measured, sectors, notes })
}

/// Sectors that can be measured: whole commands of the longest size.
fn check_surface(what: &Path) -> Result<u64> {
    let surface = Surface::open(what)?;
    let held: u64 = surface.pieces().iter().map(|p| p.len).sum();
    let end = surface.pieces().last().map_or(0, |p| p.at + p.len);
    let (shown, mib) = (what.display(), (end * SECTOR_BYTES) >> 20);
    if end < SECTORS_MIN {
        bail!(
            "{shown}: it has {mib} MiB of data; --flash takes at least 64 MiB, and gigabytes say more"
        );
    }
    if (held as f64) < (1.0 - HOLES_MAX) * end as f64 {
        bail!(
            "{shown}: {} of its {mib} MiB are holes, which never reach the drive: fill it first, for \
             example with `dd if=/dev/urandom of={shown} bs=1M conv=notrunc count={mib}`",
            mib - ((held * SECTOR_BYTES) >> 20)
        );
    }
    Ok(end / LONGEST_SECTORS * LONGEST_SECTORS)
}

/// The image with its lock, so that nobody else uses what is overwritten.
fn open_to_write(what: &Path) -> Result<Image> {
    let hint = "--overwrite writes to it; without --overwrite only reads are measured";
    let is_read_only = what.metadata().is_ok_and(|about| about.permissions().readonly());
    if is_read_only {
        bail!("{}: its permissions say read-only. {hint}", what.display());
    }
    Image::open(what, &OpenOptions::writing()).context(hint)
}

/// Drives one cell. What a signal cut short is of no use.
fn measure_cell(
    what: &Path,
    sectors: u64,
    cell: Cell,
    time: Duration,
    seed: u64,
    signals: &Signals,
) -> Result<Observed> {
    let load = CellLoad::new(cell, sectors, seed);
    let threads = load.slots();
    let load = Arc::new(Mutex::new(load));
    let settle = time / SETTLE_SHARE;
    let source = Driven {
        load: Arc::clone(&load),
        disk: [VmDisk { name: "drive".into(), capacity: Sectors::new(sectors) }],
        idle: (0..threads).collect(),
        begin: Some(Instant::from_nanos(settle.as_nanos() as u64)),
        stop: signals.flag(),
    };
    let write = cell.writes_percent > 0;
    let window = Some(time - settle);
    let options = DriveOptions { on: what.into(), threads, settle, window, write };
    drive(Box::new(source), &options).with_context(|| format!("{cell}"))?;
    let seen = locked(&load).observed();
    Ok(seen)
}

/// A cell's load as a source: a slot has its next command when its last one is done.
struct Driven {
    load: Arc<Mutex<CellLoad>>,
    disk: [VmDisk; 1],
    idle: Vec<u32>,
    /// When counting begins, until it has.
    begin: Option<Instant>,
    stop: Arc<AtomicBool>,
}

fn locked(load: &Mutex<CellLoad>) -> MutexGuard<'_, CellLoad> {
    load.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Source for Driven {
    fn vms(&self) -> &[VmDisk] {
        &self.disk
    }

    fn poll(&mut self, now: Instant, out: &mut Vec<Issue>) -> Result<(), SourceError> {
        let mut load = locked(&self.load);
        if self.begin.is_some_and(|begin| now >= begin) {
            self.begin = None;
            load.begin(now);
        }
        if is_stopped(&self.stop) {
            return Ok(());
        }
        out.extend(self.idle.drain(..).map(|slot| {
            let (op, extent) = load.next(now, slot);
            let (start, len) = (extent.start(), extent.len());
            Issue { token: u64::from(slot), vm: 0, tag: None, op, sync: true, start, len }
        }));
        Ok(())
    }

    fn completed(&mut self, now: Instant, token: u64) {
        locked(&self.load).done(now, token as u32);
        self.idle.push(token as u32);
    }

    fn next_wake(&self) -> Option<Instant> {
        self.begin
    }

    fn finished(&self) -> bool {
        is_stopped(&self.stop)
    }
}

/// Runs cells on a profile, as many at once as there are processors. Each is a run of its own, so
/// their number changes nothing.
fn simulate(profile: &Profile, cells: &[Cell], seed: u64) -> Vec<Observed> {
    let simulated = |cell: &Cell| Ok(flash_fit::simulate(profile, *cell, seed, 1));
    runs::parallel(cells, runs::jobs(None), simulated).expect("no cell fails")
}

fn half(is_fitted: bool) -> &'static str {
    if is_fitted { "fitted" } else { "held out" }
}

/// The fit beside what was measured.
fn report(measured: &[Measured], fit: &Fit, seed: u64) -> Result<FlashReport> {
    let cells: Vec<Cell> = measured.iter().map(|m| m.cell).collect();
    let models = simulate(&fit.drive.model()?, &cells, seed);
    let cell = |(m, model): (&Measured, &Observed)| FlashCell {
        kib: m.cell.kib,
        writes_percent: m.cell.writes_percent,
        depth: m.cell.depth,
        half: half(m.cell.is_fitted()),
        iops: m.seen.iops,
        model_iops: model.iops,
        reader_reads: m.seen.reader_reads,
        reader_mean_us: m.seen.reader_mean_us,
        model_reader_mean_us: model.reader_mean_us,
    };
    let parameter = |n: usize| {
        let (told, error) = match fit.told[n] {
            Told::Fitted(error) => ("yes", Some(error)),
            Told::Roughly => ("roughly", None),
            Told::Not => ("no", None),
        };
        let (key, unit) = (KEYS[n].name, KEYS[n].unit);
        FlashParameter { key, value: fit.drive.value(n), unit, told, error }
    };
    let judged = |is_fitted| {
        let found = flash_fit::judge(measured, &models, is_fitted)?;
        let (cell, figure, worst_error) = found.worst;
        let worst_at = format!("{figure} of {cell}");
        Some(Half { half: half(is_fitted), mean_error: found.mean, worst_error, worst_at })
    };
    Ok(FlashReport {
        cells: measured.iter().zip(&models).map(cell).collect(),
        parameters: (0..KEYS.len()).map(parameter).collect(),
        reads_beside_writes: fit.drive.beside.word(),
        halves: [true, false].into_iter().filter_map(judged).collect(),
    })
}

fn tables(report: &FlashReport) -> [Table; 2] {
    let count = |value: f64| Shown::Count(value.round() as u64);
    let cells = Table::of("Loads, each beside a quiet reader of 4 KiB", &report.cells)
        .number("size", "KiB", |c| c.kib)
        .number("writes", "%", |c| c.writes_percent)
        .number("depth", "", |c| c.depth)
        .text("half", |c| c.half)
        .number("IOPS", "", |c| count(c.iops))
        .number("model", "", |c| count(c.model_iops))
        .number("reader's mean", "µs", |c| (c.reader_reads > 0).then_some(c.reader_mean_us))
        .number("model", "µs", |c| c.model_reader_mean_us)
        .done();
    let title =
        format!("The flash model that fits; a read beside writes {}", report.reads_beside_writes);
    let parameters = Table::of(title, &report.parameters)
        .text("parameter", |p| p.key)
        .number("value", "", |p| Shown::Text(p.value.to_string()))
        .text("unit", |p| p.unit)
        .text("told by the loads", |p| p.told)
        .number("standard error", "", |p| p.error.map(Shown::Share))
        .done();
    [cells, parameters]
}
