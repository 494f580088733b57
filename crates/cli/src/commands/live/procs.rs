//! `seekway experiment run vio-procs --live`: sequential processes in one real
//! guest under the daemon's prefetchers, beside the simulator.

use super::COALESCE;
use crate::args::ExperimentArgs;
use crate::{Verdict, output, progress};
use anyhow::{Context, Result, anyhow, bail};
use seekway_live::Accelerator;
use seekway_live::experiment::{
    PROCS_SETTLE as SETTLE, ProcsFigures, ProcsOptions, ProcsRun, run_procs,
};
use seekway_policy::units::{Lba, Nanos};
use seekway_report::html::{Block, Report, Section};
use seekway_report::plot::{Axis, Bar, BarSeries, Bars};
use seekway_report::table::{Cell as TableCell, Column, Table};
use seekway_sim::RunResult;
use seekway_sim::experiments::{Cell, HostSetup, Scenario, run_cell};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The experiment.
pub const NAME: &str = "vio-procs";
/// One of the paper's eight drives: what an emulated guest can keep busy.
const DEVICE: &str = "intel-x25m-g2";
const CACHE_BYTES: u64 = 512 << 20;
/// The paper has 1 to 12; a guest of two emulated processors has no more to give.
const COUNTS: [u32; 3] = [1, 3, 6];
const WINDOW: Duration = Duration::from_secs(8);
const QUICK: Duration = Duration::from_secs(1);
const AGENT: &str = "seekway-guest";

/// A way of reading ahead: the host's prefetcher, whether the guest's processes
/// have tags, and the guest's own window in KiB.
type Way = (&'static str, bool, u32);

/// The first is what the others are set beside.
const WAYS: [Way; 7] = [
    ("none", false, 128),
    ("linux", false, 128),
    ("flashy", false, 128),
    ("vio", false, 128),
    ("vio", true, 128),
    ("vio:interval=continuous,threshold=auto", true, 128),
    ("none", false, 512),
];

/// One row, measured and simulated.
struct Pair<'a> {
    live: &'a ProcsFigures,
    sim: RunResult,
}

/// Run the command.
pub fn run(args: &ExperimentArgs) -> Result<Verdict> {
    let program = std::env::current_exe().context("the path of this program")?;
    let counts = if args.quick { &COUNTS[1..2] } else { &COUNTS[..] };
    let run = |&processes: &u32| {
        WAYS.map(|(prefetch, tagged, read_ahead_kb)| ProcsRun {
            processes,
            prefetch: prefetch.into(),
            tagged,
            read_ahead_kb,
        })
    };
    let options = ProcsOptions {
        agent: agent(&program)?,
        program,
        runs: counts.iter().flat_map(run).collect(),
        // Times are absolute: a real completion that comes late is counted.
        device: format!("{DEVICE}:k=1"),
        cache_bytes: CACHE_BYTES,
        window: if args.quick { QUICK } else { WINDOW },
        accelerator: if args.kvm { Accelerator::Kvm } else { Accelerator::Tcg },
    };
    let bar = progress::steps(NAME);
    let made = run_procs(&options, &mut |step| bar.set_message(step.to_string()));
    let made = made.context("--live")?;
    bar.set_message("the simulator");
    let pairs: Vec<Pair<'_>> = made
        .iter()
        .map(|live| Ok(Pair { live, sim: simulate(&live.run, options.window, args.seed)? }))
        .collect::<Result<_>>()?;
    bar.finish_and_clear();
    let rows: Vec<Ran> = pairs.iter().map(Ran::new).collect();
    let table = table(&rows, options.window);
    if let Some(path) = &args.out.report {
        let report = page(&rows, &table, args.quick);
        output::write_file(path, |out| report.write_html(out))?;
        eprintln!("report: {}", path.display());
    }
    output::print_as(args.out.format, &[table], &rows)?;
    Ok(Verdict::Done)
}

/// The agent, beside this program or in the path.
fn agent(program: &std::path::Path) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs = std::env::split_paths(&path);
    let beside = program.with_file_name(AGENT);
    if beside.is_file() {
        return Ok(beside);
    }
    let found = dirs.find_map(|dir| Some(dir.join(AGENT)).filter(|p| p.is_file()));
    let Some(found) = found else {
        bail!(
            "--live: no {AGENT} beside {} and none in PATH: build it with \
             `cargo build --release --package seekway-guestd`",
            program.display()
        );
    };
    Ok(found)
}

/// The same guest, load and drive in the simulator.
fn simulate(run: &ProcsRun, window: Duration, seed: u64) -> Result<RunResult> {
    let ProcsRun { processes, prefetch, tagged, read_ahead_kb } = run;
    let vm = format!(
        "name=vm0,image=64GiB,ram=768MiB,reserved=200MiB,vcpus=2,tags={tagged},\
         read_ahead_kb={read_ahead_kb},\
         app=fio:rw=read,bs=64KiB,size=4GiB,io_size=1TiB,numjobs={processes}"
    );
    let settle = nanos(SETTLE)?;
    let scenario = Scenario {
        name: NAME.into(),
        vms: vec![vm],
        device: DEVICE.into(),
        coalesce: COALESCE,
        place: Lba::new(0),
        settle,
        until: Some(settle + nanos(window).context("the window")?),
        weights: Vec::new(),
        host: HostSetup { cache_bytes: CACHE_BYTES, ..HostSetup::default() },
    };
    let cell = Cell::new(Arc::new(scenario), "noop");
    let cell = Cell { prefetch: Some(prefetch.clone()), ..cell };
    run_cell(&cell, seed, &mut |_, _| true).map_err(|e| anyhow!("{e}"))
}

fn nanos(span: Duration) -> Result<Nanos> {
    Ok(Nanos::new(u64::try_from(span.as_nanos())?))
}

/// As JSON. The keys stay.
#[derive(Serialize)]
struct Ran {
    processes: u32,
    prefetch: String,
    tagged: bool,
    read_ahead_kb: u32,
    live: Figures,
    simulated: Figures,
    /// Tags that the daemon told apart.
    tags: usize,
    /// Of the guest's processors, 0 to 1.
    guest_busy: f64,
    /// Of the host's processors, 0 to 1.
    host_busy: f64,
    /// Commands whose real completion came after the emulated drive's.
    late_commands: u64,
}

#[derive(Serialize)]
struct Figures {
    mib_s: f64,
    /// Prefetched and used, of all that the guest read; 0 to 1.
    accuracy: f64,
    /// Prefetched and unused, of all that was read or prefetched; 0 to 1.
    cost: f64,
}

impl Ran {
    fn new(pair: &Pair<'_>) -> Ran {
        let (live, run) = (pair.live, &pair.live.run);
        let vm = &pair.sim.vms[0];
        let usage = vm.host.as_ref().map(|host| host.usage).unwrap_or_default();
        Ran {
            processes: run.processes,
            prefetch: run.prefetch.clone(),
            tagged: run.tagged,
            read_ahead_kb: run.read_ahead_kb,
            live: Figures {
                mib_s: live.mib_s,
                accuracy: live.usage.accuracy,
                cost: live.usage.cost,
            },
            simulated: Figures {
                mib_s: vm.mib_s(),
                accuracy: usage.accuracy(),
                cost: usage.cost(),
            },
            tags: live.tags,
            guest_busy: live.guest_busy,
            host_busy: live.host_busy,
            late_commands: live.late,
        }
    }

    fn way(&self) -> String {
        let tags = if self.tagged { ", tags" } else { "" };
        let window = match self.read_ahead_kb {
            128 => String::new(),
            kib => format!(", guest's window {kib} KiB"),
        };
        format!("{}{tags}{window}", self.prefetch)
    }
}

/// Over the first way with as many processes.
fn over(rows: &[Ran], at: usize, figures: fn(&Ran) -> &Figures) -> f64 {
    let base = rows.iter().find(|r| r.processes == rows[at].processes).expect("itself at least");
    figures(&rows[at]).mib_s / figures(base).mib_s
}

fn table(rows: &[Ran], window: Duration) -> Table {
    let mut columns = vec![Column::number("processes", ""), Column::text("prefetcher")];
    for (name, unit) in
        [("bandwidth", "MiB/s"), ("over none", "×"), ("accuracy", "%"), ("cost", "%")]
    {
        columns.push(Column::number(format!("{name}, real"), unit));
        columns.push(Column::number("simulator", unit));
    }
    for (name, unit) in [("tags", ""), ("guest CPU", "%"), ("host CPU", "%"), ("late", "")] {
        columns.push(Column::number(name, unit));
    }
    let mut table = Table::new(format!("{NAME} on a real guest"), columns);
    for (at, r) in rows.iter().enumerate() {
        let figures = [
            r.live.mib_s,
            r.simulated.mib_s,
            over(rows, at, |r| &r.live),
            over(rows, at, |r| &r.simulated),
            100.0 * r.live.accuracy,
            100.0 * r.simulated.accuracy,
            100.0 * r.live.cost,
            100.0 * r.simulated.cost,
        ];
        let row = [TableCell::Count(r.processes.into()), TableCell::Text(r.way())];
        let end = [
            TableCell::Count(r.tags as u64),
            TableCell::Number(100.0 * r.guest_busy),
            TableCell::Number(100.0 * r.host_busy),
            TableCell::Count(r.late_commands),
        ];
        table.push(row.into_iter().chain(figures.map(TableCell::Number)).chain(end));
    }
    table.notes.push(format!(
        "fio reads 64 KiB at a time through the page cache of a guest with two processors for \
         {} s; `seekway serve --emulate {DEVICE}:k=1 --cache 512MiB --policy noop`; tags by \
         `seekway-guest tag`. Near 100 % it is the guest's, or the host's, processors that are \
         measured. late: commands whose real completion came after the emulated drive's.",
        window.as_secs()
    ));
    table
}

fn page(rows: &[Ran], table: &Table, quick: bool) -> Report {
    let counts: Vec<u32> = rows.iter().map(|r| r.processes).collect();
    let mut groups = counts.clone();
    groups.dedup();
    let bar = |value| Some(Bar { value, range: None });
    let series = |way: usize| {
        let of_way: Vec<&Ran> = rows.iter().skip(way).step_by(WAYS.len()).collect();
        let of = |name: &str, figures: fn(&Ran) -> &Figures, reference| BarSeries {
            name: format!("{}, {name}", of_way[0].way()),
            bars: of_way.iter().map(|r| bar(figures(r).mib_s)).collect(),
            reference,
        };
        [of("real", |r| &r.live, false), of("simulator", |r| &r.simulated, true)]
    };
    let bars = Bars {
        title: String::new(),
        axis: Axis::linear("bandwidth", "MiB/s"),
        groups: groups.iter().map(u32::to_string).collect(),
        series: (0..WAYS.len()).flat_map(series).collect(),
    };
    let caption = "What all processes read, by their number.".into();
    let section = Section {
        heading: "A real guest and the simulator".into(),
        intro: "Sequential processes in one guest, by who reads ahead of them.".into(),
        blocks: vec![Block::Figure { svg: bars.render(), caption }, Block::Table(table.clone())],
    };
    Report {
        title: format!("Seekway: {NAME} on a real guest"),
        subtitle: if quick { "A quick run: not a result.".into() } else { String::new() },
        meta: vec![
            ("Command".into(), output::command_line()),
            ("Version".into(), env!("CARGO_PKG_VERSION").into()),
        ],
        sections: vec![section],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_policy::prefetchers;

    #[test]
    fn every_way_is_a_prefetcher() {
        for (prefetch, ..) in WAYS {
            assert!(prefetchers::build(prefetch).is_ok(), "{prefetch}");
        }
    }
}
