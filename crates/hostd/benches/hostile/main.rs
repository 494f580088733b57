//! An innocent reader beside each hostile load: `make hostile`.
//!
//! Two disks lie on one device in memory. The innocent reader is a VM's driver with one read of
//! 4 KiB outstanding on the one; the hostile load is whatever may connect to the other, or to the
//! daemon. The load has a processor of its own, so that what the reader loses it loses to the
//! daemon's work and not to the scheduler; where it waits for a processor all the same, the row is
//! void (`judge`). Each row has a daemon of its own: first the reader is
//! measured alone, then beside the load.

#[path = "../../tests/it/nbd/client.rs"]
mod client;
mod judge;
mod loads;
#[path = "../../tests/it/vhost/raw.rs"]
#[allow(dead_code)] // of which this uses a part
mod raw;
mod usage;
mod world;

/// Parts that the clients of the tests need.
mod common {
    use std::time::Duration;

    /// Longer than any answer takes.
    pub const PATIENCE: Duration = Duration::from_secs(60);
}

use judge::{P99_RATIO_MAX, SHARE_MIN, Sample, Verdict, judge};
use loads::HostileLoad;
use seekway_client::{Client, Load, Result, Span, Wait};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use usage::{Shares, Usage};
use world::{Processors, World};

const READ: Load = Load::random(1);

/// Options. `scripts/hostile` checks and explains them.
struct Options {
    counted: Duration,
    only: Vec<String>,
    shared: Option<PathBuf>,
    list: bool,
    seekway: PathBuf,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Options> {
        let mut options = Options {
            counted: Duration::from_secs(5),
            only: Vec::new(),
            shared: None,
            list: false,
            seekway: std::env::var_os("SEEKWAY").ok_or("SEEKWAY: the program's path")?.into(),
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg}: a value is missing"));
            match arg.as_str() {
                "--bench" => {} // cargo's own
                "--seconds" => {
                    let seconds = value()?;
                    let parsed = seconds.parse().map_err(|e| format!("{seconds:?}: {e}"))?;
                    options.counted = Duration::from_secs(parsed);
                }
                "--only" => options.only.push(value()?),
                "--scripts" => options.shared = Some(value()?.into()),
                "--list" => options.list = true,
                _ => return Err(format!("unknown option {arg}")),
            }
        }
        Ok(options)
    }
}

fn measure(world: &World, counted: Duration) -> Result<(Sample, Shares)> {
    let mut reader = Client::connect(&world.socket("good.vhost"), READ.memory_bytes())?;
    let span = Span { warm_up: Duration::from_millis(500), counted };
    let mut began = Err("nothing was counted".to_string());
    let (latencies, time) =
        reader.run(READ, span, Wait::Event, || began = Usage::now(world.daemon()))?;
    let shares = Usage::now(world.daemon())?.since(&began?);
    let sample = Sample {
        reads: latencies.len() as f64,
        seconds: time.as_secs_f64(),
        p99_us: latencies.value_at_quantile(0.99) as f64 / 1e3,
        waited_s: shares.waited_s,
    };
    Ok((sample, shares))
}

/// Measures the reader alone and beside one load.
fn row(options: &Options, processors: &Processors, load: &HostileLoad) -> Result<Verdict> {
    let world = World::start(&options.seekway, processors)?;
    let ((alone, _), stop) = (measure(&world, options.counted)?, AtomicBool::new(false));
    let (beside, attacks) = std::thread::scope(|scope| {
        let attacker = scope.spawn(|| {
            processors.attacker.pin();
            (load.run)(&world, &stop)
        });
        let beside = measure(&world, options.counted);
        stop.store(true, Ordering::Relaxed);
        (beside, attacker.join())
    });
    let attacks = attacks.map_err(|_| "the hostile load failed")??;
    let is_answered = world.control_answers();
    let (beside, shares) = beside?;
    let (share, p99) = beside.beside(&alone);
    let verdict = if is_answered { judge(&alone, &beside) } else { Verdict::Missed };
    let percent = |part: f64| format!("{:.0} %", 100.0 * part);
    let met = match verdict {
        Verdict::Met => "yes".into(),
        Verdict::Void => format!("void: no processor for {} of the time", percent(shares.waited)),
        Verdict::Missed if is_answered => "NO".into(),
        Verdict::Missed => "NO, ctl status has no answer".into(),
    };
    println!(
        "{:<42} {:>9.0} {share:>7.2} {:>9.1} {p99:>7.2} {attacks:>11} {:>7} {:>7} {:>7} {:>7}  {}",
        load.name,
        alone.reads_per_s(),
        alone.p99_us,
        percent(shares.reader),
        percent(shares.daemon),
        percent(shares.load),
        percent(shares.waited),
        met,
    );
    Ok(verdict)
}

fn run() -> Result<bool> {
    let options = Options::parse(std::env::args().skip(1))?;
    let (mut loads, left_out) = loads::all(options.shared.as_deref());
    loads.retain(|load| {
        options.only.is_empty() || options.only.iter().any(|only| load.name.contains(only.as_str()))
    });
    if options.list {
        loads.iter().for_each(|load| println!("{}", load.name));
        return Ok(true);
    }
    if loads.is_empty() {
        return Err("no load has such a name; --list lists them".into());
    }
    let processors = Processors::choose()?;
    println!("{processors}");
    println!(
        "{:<42} {:>9} {:>7} {:>9} {:>7} {:>11} {:>7} {:>7} {:>7} {:>7}  met",
        "load",
        "alone/s",
        "share",
        "p99 µs",
        "p99 ×",
        "attacks/s",
        "reader",
        "daemon",
        "load",
        "waited"
    );
    let mut verdicts = Vec::new();
    for load in &loads {
        verdicts.push(row(&options, &processors, load).unwrap_or_else(|e| {
            println!("{:<42} NO: {e}", load.name);
            Verdict::Missed
        }));
    }
    let count = |which| verdicts.iter().filter(|verdict| **verdict == which).count();
    let [met, void, missed] = [Verdict::Met, Verdict::Void, Verdict::Missed].map(count);
    left_out.iter().for_each(|text| println!("left out: {text}"));
    println!(
        "met: share ≥ {SHARE_MIN}, p99 ≤ {P99_RATIO_MAX} × that of alone: {met}; missed: {missed}; \
         void, because the reader, or who serves it, waited for a processor and without that would have \
         met it: {void}"
    );
    println!("reader, daemon, load: parts of a processor's time beside the load; waited: see void");
    Ok(missed == 0)
}

fn main() -> ExitCode {
    // `cargo test --all-targets` runs benches too, without this argument.
    if !std::env::args().any(|arg| arg == "--bench") {
        println!("a bench: make hostile");
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(e) => {
            eprintln!("hostile: {e}");
            ExitCode::from(1)
        }
    }
}
