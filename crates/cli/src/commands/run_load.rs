//! `seekway load`: a generated load on a real disk.

use crate::args::RunLoadArgs;
use crate::{Verdict, load, output};
use anyhow::{Context, Result, bail};
use seekway_drive::{DriveOptions, Measurement, drive};
use seekway_report::table::Table;
use seekway_workload::generators::parse_vm;
use serde::Serialize;
use std::time::Duration;

/// The result as JSON. The keys stay.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Ran {
    seconds: f64,
    requests: u64,
    reads: u64,
    bytes: u64,
    iops: f64,
    mib_s: f64,
    response_ms: Response,
    /// Requests carried process tags, and the kernel took them.
    tagged: bool,
    /// The load came to its end within the window.
    finished: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Response {
    mean: f64,
    stdev: f64,
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

pub fn run(args: &RunLoadArgs) -> Result<Verdict> {
    let plan = parse_vm(&args.vm).context("--vm")?;
    if !plan.disks.is_empty() {
        bail!("--vm: it has {} disks, and --on is one: drop disk=", plan.disks.len() + 1);
    }
    if !plan.limits.is_none() {
        bail!("--vm: {}: a real disk is not limited here; `seekway serve` does it", plan.limits);
    }
    if plan.is_endless() && args.window.is_none() {
        bail!("--vm: the load does not end by itself: give --for TIME, as --for 60s");
    }
    let source = plan.source(args.seed, 0).context("--vm")?;
    let time = |flag: &str, text: &str| {
        load::duration(flag, text).map(|span| Duration::from_nanos(span.get()))
    };
    let options = DriveOptions {
        on: args.on.clone(),
        threads: args.threads,
        settle: time("--settle", &args.settle)?,
        window: args.window.as_deref().map(|t| time("--for", t)).transpose()?,
        write: args.write,
    };
    let ran = Ran::new(&drive(source, &options).with_context(|| args.on.display().to_string())?);
    output::print_as(args.out.format, &[table(&ran, args)], &ran)?;
    Ok(Verdict::Done)
}

impl Ran {
    fn new(driven: &Measurement) -> Ran {
        let seconds = driven.took.as_secs_f64();
        let per_second = |n: f64| if seconds > 0.0 { n / seconds } else { 0.0 };
        let times = &driven.response;
        let at = |quantile| times.value_at_quantile(quantile) as f64 / 1e6;
        Ran {
            seconds,
            requests: driven.requests,
            reads: driven.reads,
            bytes: driven.bytes,
            iops: per_second(driven.requests as f64),
            mib_s: per_second(driven.bytes as f64 / f64::from(1 << 20)),
            response_ms: Response {
                mean: times.mean() / 1e6,
                stdev: times.stdev() / 1e6,
                p50: at(0.5),
                p99: at(0.99),
                p999: at(0.999),
                max: times.max() as f64 / 1e6,
            },
            tagged: driven.tagged,
            finished: driven.finished,
        }
    }
}

fn table(ran: &Ran, args: &RunLoadArgs) -> Table {
    let r = &ran.response_ms;
    let ended = if ran.finished { "the load came to its end" } else { "the load went on" };
    Table::of(format!("{} on {}", args.vm, args.on.display()), [ran])
        .number("requests", "", |ran| ran.requests)
        .number("IOPS", "", |ran| ran.iops)
        .number("bandwidth", "MiB/s", |ran| ran.mib_s)
        .number("response", "ms", |_| r.mean)
        .number("deviation", "ms", |_| r.stdev)
        .number("p50", "ms", |_| r.p50)
        .number("p99", "ms", |_| r.p99)
        .number("p99.9", "ms", |_| r.p999)
        .number("worst", "ms", |_| r.max)
        .note(format!("{:.1} s measured; {ended}.", ran.seconds))
        .done()
}
