//! An innocent reader beside each hostile load: `make hostile`.
//!
//! Two disks lie on one device in memory. The innocent reader is a VM's driver with one read of
//! 4 KiB outstanding on the one; the hostile load is whatever may connect to the other, or to the
//! daemon. The load has a processor of its own, so that what the reader loses it loses to the
//! daemon's work and not to the scheduler. Each row has a daemon of its own: first the reader is
//! measured alone, then beside the load.

#[path = "../../tests/nbd/client.rs"]
#[allow(dead_code)] // of which this uses a part
mod client;
mod loads;
#[path = "../../tests/vhost/raw.rs"]
#[allow(dead_code)] // of which this uses a part
mod raw;
mod world;

/// What the clients of the tests need.
mod common {
    use std::time::Duration;

    /// Longer than any answer takes.
    pub const PATIENCE: Duration = Duration::from_secs(60);
}

use loads::HostileLoad;
use seekway_client::{Client, Load, Result, Span, Wait};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use world::{Processors, World};

/// The reader keeps at least this part of its reads a second.
const SHARE_MIN: f64 = 0.5;
/// Its p99 is at most so many times that of alone.
const P99_RATIO_MAX: f64 = 3.0;
const READ: Load = Load::random(1);

/// What to do. `scripts/hostile` checks and explains the options.
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

/// What the reader got.
struct Sample {
    reads_per_s: f64,
    p99_us: f64,
}

fn measure(world: &World, counted: Duration) -> Result<Sample> {
    let mut reader = Client::connect(&world.socket("good.vhost"), READ.memory_bytes())?;
    let span = Span { warm_up: Duration::from_millis(500), counted };
    let (latencies, time) = reader.run(READ, span, Wait::Event, || ())?;
    Ok(Sample {
        reads_per_s: latencies.len() as f64 / time.as_secs_f64(),
        p99_us: latencies.value_at_quantile(0.99) as f64 / 1e3,
    })
}

/// Measures the reader alone and beside one load. False when a threshold is not met.
fn row(options: &Options, processors: &Processors, load: &HostileLoad) -> Result<bool> {
    let world = World::start(&options.seekway, processors)?;
    let (alone, stop) = (measure(&world, options.counted)?, AtomicBool::new(false));
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
    let (share, p99) = match &beside {
        Ok(beside) => (beside.reads_per_s / alone.reads_per_s, beside.p99_us / alone.p99_us),
        Err(_) => (0.0, f64::INFINITY),
    };
    let is_met = share >= SHARE_MIN && p99 <= P99_RATIO_MAX && is_answered;
    println!(
        "{:<42} {:>9.0} {:>7.2} {:>9.1} {:>7.2} {:>11}  {}{}",
        load.name,
        alone.reads_per_s,
        share,
        alone.p99_us,
        p99,
        attacks,
        if is_met { "yes" } else { "NO" },
        if is_answered { "" } else { ", and ctl status has no answer" },
    );
    beside.map(|_| is_met)
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
        "{:<42} {:>9} {:>7} {:>9} {:>7} {:>11}  met",
        "load", "alone/s", "share", "p99 µs", "p99 ×", "attacks/s"
    );
    let mut all_met = true;
    for load in &loads {
        all_met &= row(&options, &processors, load).unwrap_or_else(|e| {
            println!("{:<42} {e}", load.name);
            false
        });
    }
    left_out.iter().for_each(|text| println!("left out: {text}"));
    println!("met: share ≥ {SHARE_MIN}, p99 ≤ {P99_RATIO_MAX} × that of alone");
    Ok(all_met)
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
