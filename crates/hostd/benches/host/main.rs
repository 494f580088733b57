//! The host daemon beside its peers, in one run: `make bench-host`.
//!
//! Every figure is measured in rounds. In a round each contender is started,
//! loaded and ended in turn, forwards in one round and backwards in the next, so
//! that what else the machine does falls on all alike. The table shows medians;
//! a ratio is the median of the rounds' ratios. Nothing is asserted: a target
//! that is not met says so. docs/bench-host.md has the details.

mod cache;
mod contest;
mod emulated;
mod fio;
mod idle;
mod image;
mod load;
mod report;
mod server;

use image::{Image, Place};
use seekway_client::{Result, Span, Wait, in_memory};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const HELP: &str = "\
usage: make bench-host [ARGS='OPTION…']
  --quick          a third of the time: three rounds of half a second
  --json           JSON instead of the table
  --all            also p50 and the servers' CPU time (JSON always has them)
  --only PART      vhost, nbd, poll, threads, raw, policies, cache, emulated
                   or idle; may be repeated
  --filter TEXT    only figures in whose names it occurs, as \"depth 16\"
  --peers-alone    each peer against itself: what the machine's noise is
  --before FILE    our program as it was before a change in the place of the
                   peer, in the part vhost
  --rounds N       rounds of each figure (5)
  --seconds S      counted seconds of each measurement (1)
  --size-mib N     size of each image (2048)
  --dir DIR        where the image on the disk goes (cargo's target directory)
  --policy P       ours in the comparisons with peers (noop)
  --spin           the vhost client looks at its ring all the time instead of
                   waiting for its eventfd";

/// Why a measurement ends early: the user has asked for it.
const INTERRUPTED: &str = "interrupted";

/// Options of the command line, with defaults for the rest.
pub struct Options {
    rounds: usize,
    span: Span,
    wait: Wait,
    json: bool,
    all: bool,
    only: Vec<String>,
    filter: String,
    peers_alone: bool,
    image_bytes: u64,
    disk_dir: PathBuf,
    policy: String,
    /// The program to measure: SEEKWAY of the environment, else target/release/seekway.
    seekway: PathBuf,
    /// Our program before a change.
    before: Option<PathBuf>,
    stop: Arc<AtomicBool>,
}

impl Options {
    fn parse(args: impl Iterator<Item = String>) -> Result<Option<Options>> {
        let mut options = Options {
            rounds: 5,
            span: Span { warm_up: Duration::from_millis(250), counted: Duration::from_secs(1) },
            wait: Wait::Event,
            json: false,
            all: false,
            only: Vec::new(),
            filter: String::new(),
            peers_alone: false,
            image_bytes: 2048 << 20,
            disk_dir: PathBuf::from(env!("CARGO_TARGET_TMPDIR")),
            policy: "noop".to_owned(),
            seekway: std::env::var_os("SEEKWAY").map_or_else(default_program, PathBuf::from),
            before: None,
            stop: Arc::default(),
        };
        let mut args = args.peekable();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg}: a value is missing"));
            match arg.as_str() {
                "--bench" => {} // cargo's own
                "--quick" => {
                    options.rounds = 3;
                    options.span.counted = Duration::from_millis(500);
                    options.span.warm_up = Duration::from_millis(150);
                }
                "--json" => options.json = true,
                "--all" => options.all = true,
                "--only" => options.only.push(value()?),
                "--filter" => options.filter = value()?,
                "--peers-alone" => options.peers_alone = true,
                "--rounds" => options.rounds = number(&value()?, 1.0..=1000.0)? as usize,
                "--seconds" => {
                    options.span.counted = Duration::from_secs_f64(number(&value()?, 0.1..=600.0)?);
                }
                "--size-mib" => options.image_bytes = (number(&value()?, 64.0..=1e6)? as u64) << 20,
                "--dir" => options.disk_dir = value()?.into(),
                "--policy" => options.policy = value()?,
                "--before" => options.before = Some(value()?.into()),
                "--spin" => options.wait = Wait::Spin,
                "--help" | "-h" => return Ok(None),
                _ => return Err(format!("unknown option {arg}\n{HELP}")),
            }
        }
        Ok(Some(options))
    }

    /// Is this part asked for?
    fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == part)
    }

    /// An error once the user has asked to stop: what runs is then ended and
    /// what was written removed on the way out.
    fn go_on(&self) -> Result<()> {
        if self.stop.load(Ordering::SeqCst) {
            return Err(INTERRUPTED.to_owned());
        }
        Ok(())
    }
}

fn number(text: &str, range: std::ops::RangeInclusive<f64>) -> Result<f64> {
    let value = text.parse::<f64>().map_err(|error| format!("{text:?}: {error}"))?;
    if range.contains(&value) {
        return Ok(value);
    }
    Err(format!("{text}: not within {} to {}", range.start(), range.end()))
}

/// target/release/seekway, seen from cargo's directory for benches.
fn default_program() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("../release/seekway")
}

/// Measurements, and the number of parts that could not be measured.
#[derive(Default)]
struct Found {
    rows: Vec<report::Row>,
    failures: usize,
}

impl Found {
    /// A part that fails says so and leaves the others their rows.
    fn take(&mut self, outcome: Result<Vec<report::Row>>) {
        match outcome {
            Ok(rows) => self.rows.extend(rows),
            // Said by whoever stops for it.
            Err(error) if error == INTERRUPTED => {}
            Err(error) => {
                eprintln!("bench-host: {error}");
                self.failures += 1;
            }
        }
    }
}

/// Measure all that is wanted. Fails when nothing can be measured, and when the
/// user has had enough.
fn run(options: &Options, found: &mut Found) -> Result<()> {
    if !options.peers_alone && !options.seekway.exists() {
        let path = options.seekway.display();
        return Err(format!("{path} is missing: make build, or name it in SEEKWAY"));
    }
    if in_memory(&options.disk_dir)? {
        eprintln!(
            "bench-host: {} is in memory, and so the rows that say disk are not: --dir",
            options.disk_dir.display()
        );
    }
    for (place, dir) in
        [(Place::Disk, options.disk_dir.as_path()), (Place::Memory, Path::new("/dev/shm"))]
    {
        let contests = contest::all(options, place);
        let cache = place == Place::Memory && options.wants("cache") && !options.peers_alone;
        if contests.is_empty() && !cache {
            continue;
        }
        eprintln!("writing {} MiB in {}", options.image_bytes >> 20, dir.display());
        let image = Image::create(place, dir, options.image_bytes)?;
        for contest in contests {
            found.take(contest.run(options, &image));
            options.go_on()?;
        }
        if cache {
            found.take(cache::run(options, &image));
            options.go_on()?;
        }
    }
    if options.wants("emulated") && !options.peers_alone {
        found.take(emulated::run(options));
        options.go_on()?;
    }
    if options.wants("idle") && !options.peers_alone {
        found.take(idle::run(options));
        options.go_on()?;
    }
    Ok(())
}

fn show(options: &Options, rows: &[report::Row]) {
    if options.json {
        let counted_s = options.span.counted.as_secs_f64();
        return println!("{:#}", report::json(rows, options.rounds, counted_s));
    }
    println!("{}", report::head());
    let shown = rows.iter().filter(|row| options.all || row.matters());
    shown.for_each(|row| println!("{}", report::text(row)));
    println!("\n{}", report::summary(rows));
}

fn main() -> ExitCode {
    // `cargo test --all-targets` runs benches too, without this argument.
    if !std::env::args().any(|arg| arg == "--bench") {
        println!("a bench: make bench-host");
        return ExitCode::SUCCESS;
    }
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("bench-host: {error}");
            return ExitCode::from(2);
        }
    };
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        if let Err(error) = signal_hook::flag::register(signal, Arc::clone(&options.stop)) {
            eprintln!("bench-host: signal {signal}: {error}");
        }
    }
    let mut found = Found::default();
    let outcome = run(&options, &mut found);
    if !found.rows.is_empty() {
        show(&options, &found.rows);
    }
    if let Err(error) = &outcome {
        eprintln!("bench-host: {error}");
    }
    match outcome.is_ok() && found.failures == 0 {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
