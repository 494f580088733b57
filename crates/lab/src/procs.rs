//! vio-procs: sequential processes in one real guest under the daemon's
//! prefetchers.

use crate::args::LabArgs;
use crate::show::{
    HOST_FULL, LATE_MAX, Page, bars, finish, host_full, series, too_late, with_steps,
};
use crate::simulate::{Loads, simulate};
use anyhow::{Context, Result};
use seekway_cli::{Verdict, programs};
use seekway_live::experiment::{
    PROCS_SETTLE as SETTLE, ProcsFigures, ProcsOptions, ProcsRun, run_procs,
};
use seekway_report::html::{Block, Section};
use seekway_report::plot::Axis;
use seekway_report::table::Table;
use seekway_sim::RunResult;
use seekway_sim::scenario::{Cache, Scenario};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

pub const NAME: &str = "vio-procs";
/// One of the paper's eight drives: what an emulated guest can keep busy.
const DEVICE: &str = "intel-x25m-g2";
const CACHE_BYTES: u64 = 512 << 20;
/// The paper has 1 to 12; a guest of two emulated processors has no more to give.
const COUNTS: [u32; 3] = [1, 3, 6];
const WINDOW: Duration = Duration::from_secs(8);
const QUICK: Duration = Duration::from_secs(1);

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

/// Of these, by their place: what the others are set beside, and what is judged.
const NONE: usize = 0;
const VIO: usize = 4;
const OURS: usize = 5;
/// What is asked of these, as in the simulator.
const FLOOR: f64 = 0.98;

/// Runs vio-procs; `NotAccepted` if a row misses what is asked.
pub fn run(args: &LabArgs) -> Result<Verdict> {
    let counts = if args.quick { &COUNTS[1..2] } else { &COUNTS[..] };
    let options = ProcsOptions {
        agent: agent()?,
        program: args.daemon()?,
        runs: counts.iter().flat_map(|&count| WAYS.map(|way| run_of(count, way))).collect(),
        // Times are absolute: a real completion that comes late is counted.
        device: format!("{DEVICE}:k=1"),
        cache_bytes: CACHE_BYTES,
        window: if args.quick { QUICK } else { WINDOW },
        accelerator: args.accelerator(),
    };
    let made = with_steps(NAME, |step| run_procs(&options, step)).context("--live")?;
    let row =
        |live: &ProcsFigures| Ok(Ran::new(live, &simulated(&live.run, options.window, args.seed)?));
    let mut rows: Vec<Ran> =
        with_steps("the simulator", |_| made.iter().map(row).collect::<Result<_>>())?;
    judge(&mut rows);
    let table = table(&rows, options.window);
    finish(args, page(&rows, &table), &[table], &rows, rows.iter().map(|r| r.verdict))
}

fn run_of(processes: u32, (prefetch, tagged, read_ahead_kb): Way) -> ProcsRun {
    ProcsRun { processes, prefetch: prefetch.into(), tagged, read_ahead_kb }
}

/// The agent for guests, beside this program or in PATH.
pub fn agent() -> Result<PathBuf> {
    programs::find("seekway-guest", "seekway-guestd").context("--live")
}

/// The same guest, load and drive in the simulator.
fn simulated(run: &ProcsRun, window: Duration, seed: u64) -> Result<RunResult> {
    let ProcsRun { processes, prefetch, tagged, read_ahead_kb } = run;
    let vm = format!(
        "name=vm0,image=64GiB,ram=768MiB,reserved=200MiB,vcpus=2,tags={tagged},\
         read_ahead_kb={read_ahead_kb},\
         app=fio:rw=read,bs=64KiB,size=4GiB,io_size=1TiB,numjobs={processes}"
    );
    let loads = Loads { vms: vec![vm], device: DEVICE.into() };
    let cache = Some(Cache::new(CACHE_BYTES, prefetch.clone()));
    simulate(Scenario { cache, ..loads.scenario()? }, (SETTLE, window), "noop", seed)
}

/// As JSON. The keys stay.
#[derive(Serialize)]
struct Ran {
    #[serde(flatten)]
    run: ProcsRun,
    live: Figures,
    simulated: Figures,
    /// Tags that the daemon told apart.
    tags: usize,
    /// Of the guest's processors, 0 to 1.
    guest_busy: f64,
    /// Of the host's processors, 0 to 1.
    host_busy: f64,
    /// Commands of the emulated drive.
    commands: u64,
    /// Those of them whose real completion came after the drive's.
    late_commands: u64,
    /// `measured`, `met`, `missed`, or `void` where the row says nothing of a prefetcher.
    verdict: &'static str,
    /// The reason of the verdict.
    why: String,
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
    fn new(live: &ProcsFigures, sim: &RunResult) -> Ran {
        let vm = &sim.vms[0];
        let usage = vm.host.as_ref().map(|host| host.usage).unwrap_or_default();
        Ran {
            run: live.run.clone(),
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
            commands: live.commands,
            late_commands: live.late,
            verdict: "measured",
            why: String::new(),
        }
    }

    /// Why the row says nothing of what it is about, if so.
    fn void(&self) -> Option<String> {
        let late = self.late_commands as f64 / self.commands.max(1) as f64;
        too_late(late).or_else(|| host_full(self.host_busy))
    }

    fn way(&self) -> String {
        let tags = if self.run.tagged { ", tags" } else { "" };
        let window = match self.run.read_ahead_kb {
            128 => String::new(),
            kib => format!(", guest's window {kib} KiB"),
        };
        format!("{}{tags}{window}", self.run.prefetch)
    }
}

/// What is asked of vio as it is by default and of the continuous form, with tags:
/// against the guest's own read-ahead, and of the latter against the former.
fn judge(rows: &mut [Ran]) {
    for at in 0..rows.len() {
        let way = at % WAYS.len();
        let beside = |other: usize| at - way + other;
        let against: &[usize] = match way {
            VIO => &[NONE],
            OURS => &[NONE, VIO],
            _ => &[],
        };
        let voids = std::iter::once(at).chain(against.iter().map(|&way| beside(way)));
        let void = voids.filter_map(|n| Some(format!("{}: {}", rows[n].way(), rows[n].void()?)));
        let void: Vec<String> = void.collect();
        let ratio = |way: &usize| rows[at].live.mib_s / rows[beside(*way)].live.mib_s;
        let least = against.iter().map(ratio).fold(f64::INFINITY, f64::min);
        let (verdict, why) = if !void.is_empty() {
            ("void", void.join("; "))
        } else if against.is_empty() {
            ("measured", String::new())
        } else {
            let verdict = if least >= FLOOR { "met" } else { "missed" };
            (verdict, format!("at least {FLOOR} is asked of {least:.2}"))
        };
        (rows[at].verdict, rows[at].why) = (verdict, why);
    }
}

/// Over the first way with as many processes.
fn over(rows: &[Ran], row: &Ran, figures: fn(&Ran) -> &Figures) -> f64 {
    let base = rows.iter().find(|r| r.run.processes == row.run.processes).expect("itself at least");
    figures(row).mib_s / figures(base).mib_s
}

fn table(rows: &[Ran], window: Duration) -> Table {
    Table::of(format!("{NAME} on a real guest"), rows)
        .number("processes", "", |r| r.run.processes)
        .text("prefetcher", Ran::way)
        .number("bandwidth, real", "MiB/s", |r| r.live.mib_s)
        .number("simulator", "MiB/s", |r| r.simulated.mib_s)
        .number("over none, real", "×", |r| over(rows, r, |r| &r.live))
        .number("simulator", "×", |r| over(rows, r, |r| &r.simulated))
        .number("accuracy, real", "%", |r| 100.0 * r.live.accuracy)
        .number("simulator", "%", |r| 100.0 * r.simulated.accuracy)
        .number("cost, real", "%", |r| 100.0 * r.live.cost)
        .number("simulator", "%", |r| 100.0 * r.simulated.cost)
        .number("tags", "", |r| r.tags)
        .number("guest CPU", "%", |r| 100.0 * r.guest_busy)
        .number("host CPU", "%", |r| 100.0 * r.host_busy)
        .number("late", "", |r| r.late_commands)
        .text("verdict", |r| r.verdict)
        .text("why", |r| &r.why)
        .note(format!(
            "fio reads 64 KiB at a time through the page cache of a guest with two processors for \
             {} s; `seekway serve --emulate {DEVICE}:k=1 --cache 512MiB --policy noop`; tags by \
             `seekway-guest tag`. Near 100 % it is the guest's, or the host's, processors that are \
             measured. late: commands whose real completion came after the emulated drive's. A row \
             is void when more than {} % of its commands are late or the host's processors are over \
             {} % busy, or what it is set beside is. Bandwidth is measured after {} s, here and in \
             the simulator; the real accuracy and cost are of those seconds too.",
            window.as_secs(),
            100.0 * LATE_MAX,
            100.0 * HOST_FULL,
            SETTLE.as_secs()
        ))
        .done()
}

fn page(rows: &[Ran], table: &Table) -> Page {
    let mut counts: Vec<u32> = rows.iter().map(|r| r.run.processes).collect();
    counts.dedup();
    let of_way = |way: usize| {
        let of = |place: &str, figures: fn(&Ran) -> &Figures, reference| {
            let values = rows.iter().skip(way).step_by(WAYS.len()).map(|r| figures(r).mib_s);
            series(format!("{}, {place}", rows[way].way()), values, reference)
        };
        [of("real", |r| &r.live, false), of("simulator", |r| &r.simulated, true)]
    };
    let groups = counts.iter().map(u32::to_string).collect();
    let series = (0..WAYS.len()).flat_map(of_way).collect();
    let caption = "What all processes read, by their number.";
    let figure = bars(Axis::linear("bandwidth", "MiB/s"), groups, series, caption);
    let section = Section {
        heading: "A real guest and the simulator".into(),
        intro: "Sequential processes in one guest, by who reads ahead of them.".into(),
        blocks: vec![figure, Block::Table(table.clone())],
    };
    Page::new(format!("Seekway: {NAME} on a real guest"), vec![section])
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
        assert_eq!(WAYS[NONE], ("none", false, 128));
        assert!(WAYS[VIO].0 == "vio" && WAYS[VIO].1);
        assert!(WAYS[OURS].0.contains("continuous") && WAYS[OURS].1);
    }

    fn rows(mib_s: [f64; WAYS.len()]) -> Vec<Ran> {
        let row = |(way, mib_s): (Way, f64)| {
            let figures = || Figures { mib_s, accuracy: 0.0, cost: 0.0 };
            Ran {
                run: run_of(1, way),
                live: figures(),
                simulated: figures(),
                tags: 0,
                guest_busy: 0.5,
                host_busy: 0.5,
                commands: 1_000,
                late_commands: 10,
                verdict: "",
                why: String::new(),
            }
        };
        WAYS.into_iter().zip(mib_s).map(row).collect()
    }

    fn verdicts(mut rows: Vec<Ran>) -> Vec<&'static str> {
        judge(&mut rows);
        rows.iter().map(|r| r.verdict).collect()
    }

    #[test]
    fn rows_are_judged_unless_drive_or_host_failed_them() {
        let good = [100.0, 90.0, 90.0, 90.0, 110.0, 109.0, 90.0];
        let fine = verdicts(rows(good));
        assert_eq!(
            fine,
            ["measured", "measured", "measured", "measured", "met", "met", "measured"]
        );
        let slower = verdicts(rows([100.0, 100.0, 100.0, 100.0, 110.0, 100.0, 100.0]));
        assert_eq!(slower[VIO..=OURS], ["met", "missed"], "worse than half a second");
        let mut late = rows(good);
        late[VIO].late_commands = 11;
        assert_eq!(verdicts(late)[VIO..=OURS], ["void", "void"]);
        let mut full = rows(good);
        full[NONE].host_busy = 0.96;
        let full = verdicts(full);
        assert_eq!(
            [full[NONE], full[1], full[VIO], full[OURS]],
            ["void", "measured", "void", "void"]
        );
    }
}
