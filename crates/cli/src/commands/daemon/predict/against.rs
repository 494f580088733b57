//! Other side of a prediction: another profile, a measured trace, or the figures of a real run.

use super::Prediction;
use super::figures::{Figures, MEASURES, SECTORS_PER_MS, Side};
use crate::args::PredictArgs;
use crate::json::{CacheChoice, Operation, Operations};
use crate::stacks::NO_PREFETCH;
use crate::{Verdict, output};
use anyhow::{Context, Result, bail};
use seekway_device::profile::{self, Profile};
use seekway_device::published::{self, ERROR_MAX, Figure};
use seekway_device::validate::{self, Pace, Record};
use seekway_report::html::{Block, Section};
use seekway_report::table::Table;
use seekway_sim::scenario::read::text_of_file;
use seekway_sim::scenario::{Cache, profile_of};
use serde::{Deserialize, Deserializer, Serialize};
use std::path::Path;

/// Largest file that is read, in bytes: it is held whole.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Most runs of a file.
const RUNS_MAX: usize = 100_000;
/// Largest cache that a file may claim, in MiB: 1 TiB, as on the command line.
const CACHE_MIB_MAX: f64 = 1048576.0;
/// The one policy of a trace of which each request waited for the one before.
const ONE_AT_A_TIME: &str = "one at a time";

/// Other side, as `--against` names it.
pub enum Against {
    /// Another profile, by its name or path.
    Profile(String),
    Measured(String, Vec<Record>),
    /// Figures of a real run, or of an earlier prediction.
    Run(Side),
}

impl Against {
    /// Opens what `--against WHAT` names: a profile by name, a file by its content.
    pub fn open(what: &str) -> Result<Against> {
        let name = what.split(':').next().unwrap_or_default();
        let file = Path::new(what);
        if what.ends_with(".toml") || profile::names().any(|n| n == name) || !file.exists() {
            profile_of(what).with_context(|| {
                format!(
                    "--against {what}: expected a profile (by name, or a .toml file), a measured \
                     trace, or a JSON file of a real run"
                )
            })?;
            return Ok(Against::Profile(what.into()));
        }
        let shown = || format!("--against {what}");
        let text = text_of_file(file, FILE_BYTES_MAX).context("--against")?;
        if text.trim_start().starts_with(['{', '[']) {
            return Ok(Against::Run(run(what, &text).with_context(shown)?));
        }
        let records = validate::parse(&text).with_context(|| {
            format!("{}: neither JSON of a real run nor a measured trace", shown())
        })?;
        Ok(Against::Measured(what.into(), records))
    }
}

/// A JSON file with runs: `compare`'s, `predict`'s, that of `scripts/lab live`, or one written by
/// hand.
#[derive(Deserialize)]
#[serde(untagged)]
enum File {
    Runs { runs: Vec<Run> },
    Bare(Vec<Run>),
}

#[derive(Deserialize)]
struct Run {
    policy: String,
    seed: Option<u64>,
    /// Null for no cache, absent if nobody says.
    #[serde(default, deserialize_with = "given")]
    cache_mib: Option<Option<f64>>,
    prefetch: Option<String>,
    /// Options that `predict` does not have, where `compare` has chosen them.
    limits: Option<String>,
    shared_cpus: Option<String>,
    vcpu: Option<String>,
    #[serde(flatten)]
    figures: RunFigures,
    /// Where an experiment gives the real run beside the simulated one.
    live: Option<RunFigures>,
}

/// The key's value where the key is there: `Some(None)` is a null, `None` no key.
fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<f64>>, D::Error> {
    Option::deserialize(from).map(Some)
}

impl Run {
    /// The host cache in front of the disk, if the file says.
    fn cache(&self) -> Result<Option<CacheChoice>> {
        let Some(cache_mib) = self.cache_mib else { return Ok(None) };
        let cache = CacheChoice { cache_mib, prefetch: self.prefetch.clone() };
        if host_cache(&cache).is_none() {
            let mib = cache_mib.unwrap_or_default();
            bail!("the run of {} has a cache_mib of {mib}: up to 1048576, or null", self.policy);
        }
        Ok(Some(cache))
    }
}

/// The cache of a command line that is the same; `None` if it cannot be one.
pub fn host_cache(cache: &CacheChoice) -> Option<Option<Cache>> {
    let Some(mib) = cache.cache_mib else { return Some(None) };
    let bytes = (mib * f64::from(1 << 20)).round();
    let possible = mib > 0.0 && mib <= CACHE_MIB_MAX;
    let prefetch = cache.prefetch.clone().unwrap_or_else(|| NO_PREFETCH.into());
    possible.then_some(Some(Cache::new(bytes as u64, prefetch)))
}

#[derive(Deserialize)]
struct RunFigures {
    service_ms: Option<Time>,
    service_from_dispatch_ms: Option<Time>,
    response_ms: Option<Time>,
    response_p99_ms: Option<f64>,
    mib_s: Option<f64>,
    sectors_per_ms: Option<f64>,
    #[serde(default, deserialize_with = "if_known")]
    reads: Option<Operation>,
    #[serde(default, deserialize_with = "if_known")]
    writes: Option<Operation>,
}

/// Reads or writes, if they are as `compare` and `predict` write them.
fn if_known<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Operation>, D::Error> {
    Ok(serde_json::from_value(serde_json::Value::deserialize(from)?).ok())
}

/// A mean, alone or as `compare` writes a distribution.
#[derive(Deserialize)]
#[serde(untagged)]
enum Time {
    Mean(f64),
    Distribution { mean: f64, p99: Option<f64> },
}

impl Time {
    fn mean(&self) -> f64 {
        match self {
            Time::Mean(mean) | Time::Distribution { mean, .. } => *mean,
        }
    }

    fn p99(&self) -> Option<f64> {
        match self {
            Time::Mean(_) => None,
            Time::Distribution { p99, .. } => *p99,
        }
    }
}

/// The figures of a real run.
fn run(what: &str, text: &str) -> Result<Side> {
    const EXPECTED: &str = "expected {\"runs\": [{\"policy\": …, \"service_ms\": …, \
                            \"response_ms\": …, \"mib_s\": …}]}, as `seekway compare` and \
                            `seekway predict` write it with --format json";
    // What serde says of an untagged enum names no line: is it JSON at all?
    let value: serde_json::Value = serde_json::from_str(text).context(EXPECTED)?;
    let parsed: File = serde_json::from_value(value).ok().context(EXPECTED)?;
    let (File::Runs { runs } | File::Bare(runs)) = parsed;
    if runs.is_empty() || runs.len() > RUNS_MAX {
        bail!("{} runs; 1 to {RUNS_MAX} are expected", runs.len());
    }
    let others: [fn(&Run) -> &Option<String>; 3] =
        [|run| &run.limits, |run| &run.shared_cpus, |run| &run.vcpu];
    for (key, other) in ["limits", "shared_cpus", "vcpu"].into_iter().zip(others) {
        if runs.iter().any(|run| other(run) != other(&runs[0])) {
            bail!("the runs differ in {key}, which `predict` does not choose: keep those of one");
        }
    }
    let figures: Vec<Figures> = runs.iter().map(of_run).collect::<Result<_>>()?;
    Ok(Side { what: what.into(), runs: figures, warnings: Vec::new(), notes: Vec::new() })
}

fn of_run(run: &Run) -> Result<Figures> {
    let given = run.live.as_ref().unwrap_or(&run.figures);
    let mean = |time: &Option<Time>| time.as_ref().map(Time::mean);
    let p99 = || given.response_ms.as_ref().and_then(Time::p99);
    let mib_s = given.mib_s.or_else(|| given.sectors_per_ms.map(|s| s / SECTORS_PER_MS));
    let figures = Figures {
        policy: run.policy.clone(),
        cache: run.cache()?,
        seed: run.seed,
        service_ms: mean(&given.service_ms),
        service_from_dispatch_ms: mean(&given.service_from_dispatch_ms),
        response_ms: mean(&given.response_ms),
        response_p99_ms: given.response_p99_ms.or_else(p99),
        sectors_per_ms: mib_s.map(|m| m * SECTORS_PER_MS),
        mib_s,
        operations: Operations { reads: given.reads.clone(), writes: given.writes.clone() },
        ..Figures::default()
    };
    let measures = MEASURES.each_ref().map(|measure| (measure.of)(&figures));
    if measures.iter().all(Option::is_none) {
        bail!(
            "the run of {} has none of service_ms, response_ms, sectors_per_ms and mib_s",
            run.policy
        );
    }
    if let Some(wrong) = measures.iter().flatten().find(|v| !(v.is_finite() && **v >= 0.0)) {
        bail!("the run of {} has a figure of {wrong}", run.policy);
    }
    Ok(figures)
}

/// Both sides of a measured trace: its requests on the profile one at a time,
/// and what the drive took.
pub fn measured(
    (on, profile): (&str, &Profile),
    (what, records): (&str, &[Record]),
) -> Result<Prediction> {
    let shown = || what.to_string();
    let mut device = profile.build();
    let model = validate::replay(device.as_mut(), records, Pace::Closed).with_context(shown)?;
    let real: Vec<u64> = records.iter().map(|r| r.service_ns).collect();
    let found = validate::compare(&real, &model).with_context(shown)?;
    let side = |what: &str, services: &[u64], notes: Vec<String>| Side {
        what: what.into(),
        runs: vec![one_at_a_time(records, services)],
        warnings: Vec::new(),
        notes,
    };
    let note = format!(
        "Each request of the trace waited for the one before, as on the drive: every policy gives \
         the same, and ranks say nothing. Demerit figure (RMS distance of the distributions) \
         {:.3} ms, {:.1} % of the mean.",
        found.demerit_ms,
        100.0 * found.demerit_relative
    );
    Ok(Prediction {
        predicted: side(on, &model, vec![note]),
        against: Some(side(what, &real, Vec::new())),
        demerit_ms: Some(found.demerit_ms),
        heading: "policy",
        same: None,
    })
}

/// Figures of a drive that serves one request after the other.
fn one_at_a_time(records: &[Record], services_ns: &[u64]) -> Figures {
    let n = services_ns.len().max(1) as f64;
    let mean_ms = services_ns.iter().map(|ns| *ns as f64 / 1e6).sum::<f64>() / n;
    let mut sorted = services_ns.to_vec();
    sorted.sort_unstable();
    let p99 = sorted.get(((n - 1.0) * 0.99).round() as usize).map(|ns| *ns as f64 / 1e6);
    let gaps_ms = records.iter().map(|r| r.gap_ns as f64 / 1e6).sum::<f64>();
    let sectors: f64 = records.iter().map(|r| r.extent.len().get() as f64).sum();
    let span_ms = mean_ms * n + gaps_ms;
    let rate = (span_ms > 0.0).then(|| sectors / span_ms);
    Figures {
        policy: ONE_AT_A_TIME.into(),
        service_ms: Some(mean_ms),
        service_from_dispatch_ms: Some(mean_ms),
        response_ms: Some(mean_ms),
        response_p99_ms: p99,
        sectors_per_ms: rate,
        mib_s: rate.map(|r| r / SECTORS_PER_MS),
        ..Figures::default()
    }
}

// `predict --against published`: a device's model against the figures that were published of it.

/// `predict --against published --format json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PublishedReport<'a> {
    profile: &'a str,
    error_max: f64,
    holds: bool,
    figures: Vec<PublishedFigure>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct PublishedFigure {
    test: String,
    unit: &'static str,
    published: Option<f64>,
    model: f64,
    error: Option<f64>,
    error_min: f64,
    error_max: f64,
    holds: bool,
}

impl PublishedFigure {
    fn new(figure: Figure) -> PublishedFigure {
        PublishedFigure {
            error: figure.error(),
            holds: figure.holds(),
            error_min: figure.error_min,
            error_max: figure.error_max,
            test: figure.test,
            unit: figure.unit,
            published: figure.published,
            model: figure.model,
        }
    }
}

/// Runs the published tests on the model `on`. Not accepted if a figure is missed.
pub fn of_maker(args: &PredictArgs, on: &str) -> Result<Verdict> {
    let profile = profile_of(on).context("--on")?;
    let Some(of) = profile.published() else {
        bail!(
            "--on {on}: it has no published figures ([disk.published], [ssd.published], …; those of \
             a size hold for that size alone): leave out capacity=, or give --against TRACE of a \
             measured drive"
        );
    };
    let figures = published::run(&of, |begin| profile.build_for(begin));
    let figures: Vec<PublishedFigure> = figures.into_iter().map(PublishedFigure::new).collect();
    let holds = figures.iter().all(|figure| figure.holds);
    let report = PublishedReport { profile: on, error_max: ERROR_MAX, holds, figures };
    let table = table(&report);
    output::write_report(args.out.report.as_deref(), || {
        let said = format!("{on} {} what was published.", if holds { "meets" } else { "misses" });
        let result = Section::new("Result", vec![Block::Table(table.clone())]);
        output::report("Seekway: prediction", said, [("Disk", on.to_string())], vec![result])
    })?;
    output::print_as(args.out.format, &[table], &report)?;
    Ok(if holds { Verdict::Done } else { Verdict::NotAccepted })
}

fn table(report: &PublishedReport<'_>) -> Table {
    let allowed =
        |f: &PublishedFigure| format!("{:.0} to +{:.0}", 100.0 * f.error_min, 100.0 * f.error_max);
    let verdict = |f: &PublishedFigure| match (f.error, f.holds) {
        (None, _) => "not published",
        (Some(_), true) => "yes",
        (Some(_), false) => "no",
    };
    Table::of("", &report.figures)
        .text("test", |f| &f.test)
        .number("published", "", |f| f.published)
        .number("model", "", |f| f.model)
        .text("unit", |f| f.unit)
        .number("error", "%", |f| f.error.map(|error| 100.0 * error))
        .text("allowed, %", allowed)
        .text("holds", verdict)
        .done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shapes_of_a_real_run() {
        let by_hand = r#"{"runs":[{"policy":"cfq","service_ms":1.5,"response_ms":3,"mib_s":2}]}"#;
        let made = run("x", by_hand).expect("read").runs;
        assert_eq!((made[0].service_ms, made[0].response_ms), (Some(1.5), Some(3.0)));
        assert_eq!((made[0].sectors_per_ms, made[0].response_p99_ms), (Some(4.096), None));
        let compared = r#"{"device":"d","runs":[{"policy":"noop","seed":3,"iops":1.0,"mib_s":1.0,
            "service_ms":{"mean":2.0},"response_ms":{"mean":5.0,"p50":4.0,"p99":9.0,"max":10.0}}]}"#;
        let made = run("x", compared).expect("read").runs;
        assert_eq!((made[0].seed, made[0].response_p99_ms), (Some(3), Some(9.0)));
        let live = r#"[{"policy":"cfq","seconds":20.0,"mib_s":3.5,"vms":[]}]"#;
        assert_eq!(run("x", live).expect("read").runs[0].mib_s, Some(3.5));
        let scene = r#"[{"policy":"cats","live":{"mib_s":2.5,"response_ms":4.0,"service_ms":null},
            "simulated":{"mib_s":9.0}}]"#;
        let made = run("x", scene).expect("read").runs;
        assert_eq!((made[0].mib_s, made[0].response_ms), (Some(2.5), Some(4.0)));
        assert_eq!(made[0].service_ms, None);
        let papers = r#"{"runs":[{"policy":"cats","sectors_per_ms":8.192}]}"#;
        assert_eq!(run("x", papers).expect("read").runs[0].mib_s, Some(4.0));
    }

    #[test]
    fn what_is_no_run_is_refused() {
        for (text, part) in [
            ("{", "expected {\"runs\""),
            ("{}", "expected {\"runs\""),
            ("{\"runs\":[{\"policy\":3}]}", "expected {\"runs\""),
            ("{\"runs\":[]}", "0 runs"),
            ("{\"runs\":[{\"policy\":\"cfq\"}]}", "cfq has none of service_ms"),
            ("{\"runs\":[{\"policy\":\"cfq\",\"mib_s\":-1}]}", "a figure of -"),
            ("{\"runs\":[{\"policy\":\"cfq\",\"mib_s\":1e999}]}", "expected {\"runs\""),
        ] {
            let error = format!("{:#}", run("x", text).err().expect("refused"));
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
