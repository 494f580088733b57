//! vpt-rank: the throttle's linear model as a prediction of the detailed disk.

use super::super::judge::mean;
use super::super::metric::hits_percent;
use super::super::results::over;
use super::super::{Cell, Findings, MeasuredDrive, Options, Results, Row, Verdict};
use super::measures::{Measure, RANKED};
use super::{BUFFERED, CATS_7, CFQ, CUT_SHORT, DIRECT, DISK, LINEAR, Load};
use super::{fit, scenario, under};
use crate::metrics::RunResult;
use crate::rank::{kendall_tau, relative_error, same_order};
use seekway_device::fit::Form;

const PAPER: [&str; 3] = [CATS_7, "deadline", CFQ];
/// The same as they are today.
const TODAY: [&str; 3] = ["cats", "deadline", "cfq"];
/// How far the mean service may be off, as a share.
const SERVICE_WITHIN: f64 = 0.15;
/// Of the reads that the fit is made from; the loads have others.
const FIT_SEED: u64 = 1;

/// A disk, and what predicts it.
struct Target {
    name: &'static str,
    device: String,
    /// Name and profile; the first is ours.
    models: Vec<(&'static str, String)>,
    loads: Vec<(&'static str, Load)>,
    /// Is ours required to be right here?
    required: bool,
}

const REAL: &str = "itself";
/// The paper's throttle: a line fitted to the real drive, the shadow's cache, and a device that
/// is eight times slower (k = 8) while processes and schedulers keep their own times.
const LITERAL: &str = "fitted line, shadow's cache, k = 8";
/// The paper's virtual device itself: its own line, the shadow's cache, k = 8.
const VIRTUAL: &str = "the paper's line, k = 8";
/// Those whose times are to be divided by k.
const K_8: [&str; 2] = [LITERAL, VIRTUAL];
/// How far from the paper's a figure may be, as a share.
const FIGURE_WITHIN: f64 = 0.25;
/// The paper's k: by how much its virtual device is slower (section 6).
const SLOW: u32 = 8;
/// Line and cache fitted to reads of the disk.
const FITTED: &str = "fitted line and cache";
/// The line fitted, the cache the paper's: every hit reads 64 sectors further, in no time.
const FITTED_LINE: &str = "fitted line, shadow's cache";
const PAPERS: &str = "the paper's line";
/// A line through the real drive's trace.
const MEASURED: &str = "line of the measured drive";

fn targets(options: &Options) -> Vec<Target> {
    let (line, cache) = fitted(DISK);
    let literal = format!("slow = {SLOW}\n{line}");
    let shadow = vec![
        (FITTED, cache),
        (LITERAL, literal),
        (VIRTUAL, format!("{LINEAR}:slow={SLOW}")),
        (FITTED_LINE, line),
        (PAPERS, LINEAR.to_string()),
    ];
    let (line, cache) = fitted(CUT_SHORT);
    let cut = vec![(FITTED, cache), (FITTED_LINE, line)];
    let target = |name, device: &str, models, required| Target {
        name,
        device: device.into(),
        models,
        loads: loads().into(),
        required,
    };
    let mut targets = vec![
        target("disk", DISK, shadow, true),
        target("disk that cuts its read-ahead short", CUT_SHORT, cut, false),
    ];
    targets.extend(options.drives.iter().filter_map(measured));
    targets
}

fn loads() -> [(&'static str, Load); 2] {
    let direct = Load { requests: 20_000, ..DIRECT };
    [("direct", direct), ("buffered", Load { requests: 80_000, ..BUFFERED })]
}

/// Profiles fitted to a disk: with the shadow's cache, and with the one found.
/// What fails shows as a profile that does not load: every run says so.
fn fitted(disk: &str) -> (String, String) {
    let line = fit::of_profile(disk, Form::Points, FIT_SEED);
    let line = line.map_or_else(|e| e, |f| f.profile_toml("fitted", disk));
    let cache = fit::read_ahead(disk).map_or_else(|e| e, |found| with_cache(&line, found));
    (line, cache)
}

/// The profile with what was found of the cache. A drive that reads nothing
/// ahead under load keeps the 64 sectors: it does when it is given the time.
fn with_cache(profile: &str, found: fit::ReadAhead) -> String {
    let line = |line: &str| match line.split(' ').next() {
        Some("prefetch_sectors") if found.sectors > 0 => {
            format!("prefetch_sectors = {}\n", found.sectors)
        }
        Some("on_hit") if !found.after_hits => {
            format!("on_hit = \"keep\"\nidle_ahead = {}\n", found.when_idle)
        }
        _ => format!("{line}\n"),
    };
    profile.lines().map(line).collect()
}

/// A measured drive of which there is a detailed model too.
fn measured(drive: &MeasuredDrive) -> Option<Target> {
    let (name, device) = match drive.name.as_str() {
        n if n.starts_with("cheetah15k5") => ("Cheetah 15K.5", "cheetah-15k5"),
        n if n.starts_with("cheetah9LP") => ("Cheetah 9LP", "cheetah-9lp"),
        n if n.starts_with("atlas10k") => ("Atlas 10K", "atlas-10k"),
        _ => return None,
    };
    let profile = fit::measured(&drive.text).map(|f| f.profile_toml("measured", &drive.name));
    let profile = profile.unwrap_or_else(|e| e);
    let cache = fit::read_ahead(device).map_or_else(|e| e, |found| with_cache(&profile, found));
    // The older drives hold 9 GB.
    let guest = "image=7GiB,atime=false";
    let load = Load { requests: 10_000, guest, surge: ",files=100000", ..DIRECT };
    Some(Target {
        name,
        device: device.into(),
        models: vec![(MEASURED, cache)],
        loads: vec![("direct", load)],
        required: false,
    })
}

fn name(target: &Target, load: &str, model: &str) -> String {
    format!("{}, {load}: {model}", target.name)
}

pub(super) fn cells(options: &Options) -> Vec<Cell> {
    let mut cells = Vec::new();
    for target in targets(options) {
        let real = (REAL, target.device.clone());
        for (model, device) in std::iter::once(&real).chain(&target.models) {
            for (load, what) in &target.loads {
                let scenario = scenario(name(&target, load, model), what, device, options);
                cells.extend(under(scenario.clone(), &PAPER));
                if target.required && [REAL, FITTED].contains(model) {
                    cells.extend(under(scenario, &TODAY));
                }
            }
        }
    }
    cells
}

pub(super) fn judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for target in targets(options) {
        for (model, _) in &target.models {
            for (load, what) in &target.loads {
                let case = Case { results, target: &target, load, direct: what.direct, model };
                findings.rows.extend(case.rows());
            }
        }
    }
    findings.notes.push(NOTE.into());
    findings
}

const NOTE: &str = "What the paper's model lacks is not the shape of the seek curve but the cache. \
    With the shadow's cache every hit reads 64 sectors further and takes no time for it, so a file \
    is one miss; the disk reads ahead where its head is, after a miss or in idle time, so a long \
    file under load is a miss for every nine pages. Ours asks the drive what it reads ahead, and \
    when. Where another command cuts read-ahead short, how much is there depends on what comes \
    when, which no such cache can say: so with the disk as its profile stands, and with the \
    measured drives, whose caches have fewer or larger segments than the shadow. At k = 8 the \
    times are those of the virtual device over 8. Processes and schedulers do not know of k: they \
    think for an eighth of the time that they did, and CFQ idles for an eighth.";

/// A load on a target and on a model of it.
struct Case<'a> {
    results: &'a Results,
    target: &'a Target,
    load: &'a str,
    direct: bool,
    model: &'a str,
}

/// A figure under some policies, seed by seed.
type Each = Vec<Vec<f64>>;

impl Case<'_> {
    /// Only the literal form stands beside the paper's figures; something is asked of ours.
    fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = RANKED.iter().map(|m| self.rank_row(&PAPER, m)).collect();
        match self.model {
            LITERAL => rows.extend(RANKED.iter().flat_map(|m| self.offsets(m))),
            VIRTUAL => rows.extend(RANKED.iter().flat_map(|m| self.figures(m))),
            _ => {}
        }
        if K_8.contains(&self.model) {
            return rows;
        }
        rows.extend(PAPER.map(|policy| self.error_row(policy)));
        if self.ours() {
            let today = RANKED.iter().map(|m| self.rank_row(&TODAY, m));
            rows.extend(today.map(|row| Row { name: row.name + ", today's", ..row }));
            rows.extend(["cats", "cfq"].map(|policy| self.error_row(policy)));
        }
        rows
    }

    fn ours(&self) -> bool {
        self.target.required && self.model == FITTED
    }

    fn scenario(&self, model: &str) -> String {
        name(self.target, self.load, model)
    }

    /// A figure of each seed under each policy, predicted (with k taken out of it) and actual.
    fn both(&self, policies: &[&str], measure: &Measure) -> [Each; 2] {
        let k = if K_8.contains(&self.model) { f64::from(SLOW) } else { 1.0 };
        let unit = if measure.is_rate() { k } else { 1.0 / k };
        let each = |model: &str, unit: f64| -> Each {
            let of = |r: &RunResult| unit * (measure.of)(r);
            policies.iter().map(|p| self.results.each(&self.scenario(model), p, of)).collect()
        };
        [each(self.model, unit), each(REAL, 1.0)]
    }

    /// Kendall's τ of each seed's prediction: 1 where all three are in order.
    fn rank_row(&self, policies: &[&str; 3], measure: &Measure) -> Row {
        let both = self.both(policies, measure);
        let side =
            |side: usize, seed: usize| both[side].iter().map(|e| e[seed]).collect::<Vec<_>>();
        let seeds = both[0][0].len();
        let pairs = || (0..seeds).map(|seed| (side(0, seed), side(1, seed)));
        let tau: Vec<f64> = pairs().map(|(p, a)| kendall_tau(&p, &a).unwrap_or(f64::NAN)).collect();
        let right = pairs().filter(|(p, a)| same_order(p, a)).count();
        let [p, a] = both.map(|each| each.iter().map(|e| mean(e)).collect::<Vec<_>>());
        let three = |v: &[f64]| v.iter().map(|v| format!("{v:.2}")).collect::<Vec<_>>().join(", ");
        let why = format!(
            "right on {right} of {seeds} seeds; {} predicted {}, are {}",
            policies.join(", "),
            three(&p),
            three(&a)
        );
        let name = format!("{}, rank by {}", self.scenario(self.model), measure.name);
        let mut row = Row::measured(name, &tau, "τ", why);
        let in_the_mean = same_order(&p, &a);
        if self.model == LITERAL {
            row.paper = Some(1.0);
            row.verdict = match right {
                n if n == seeds => Verdict::Holds,
                _ if in_the_mean => Verdict::InPart,
                _ => Verdict::Refuted,
            };
        }
        // Two policies may come so close on one seed that neither order says anything.
        match self.ours() && *policies == PAPER {
            true => row.ask(in_the_mean, "the disk's own rank in the mean over the seeds"),
            false => row,
        }
    }

    /// The prediction over the disk's own figure, beside the paper's virtual over real.
    fn offsets(&self, measure: &Measure) -> Vec<Row> {
        let [predicted, actual] = self.both(&PAPER, measure);
        let [virtual_, real] = self.papers(measure);
        let row = |n: usize| {
            let scenario = self.scenario(self.model);
            let name = format!("{scenario}, {} over the disk's, {}", measure.name, PAPER[n]);
            let row = Row::factor(name, virtual_[n] / real[n], &over(&predicted[n], &actual[n]));
            row.because(format!("{:.2} against {:.2}", mean(&predicted[n]), mean(&actual[n])))
        };
        (0..PAPER.len()).map(row).collect()
    }

    /// The paper's columns of a measure, virtual and real.
    fn papers(&self, measure: &Measure) -> [[f64; 3]; 2] {
        let [direct, buffered] = measure.predicted.expect("the paper ranks by it");
        match self.direct {
            true => [direct, measure.direct],
            false => [buffered, measure.buffered],
        }
    }

    /// The prediction itself beside the paper's virtual column.
    fn figures(&self, measure: &Measure) -> Vec<Row> {
        let [predicted, _] = self.both(&PAPER, measure);
        let papers = self.papers(measure)[0];
        let row = |n: usize| {
            let scenario = self.scenario(self.model);
            let name = format!("{scenario}, {} under {}", measure.name, PAPER[n]);
            Row::value(name, papers[n], &predicted[n], measure.unit, FIGURE_WITHIN)
        };
        (0..PAPER.len()).map(row).collect()
    }

    /// By how much the mean service is off, in percent.
    fn error_row(&self, policy: &str) -> Row {
        let errors = |measure: &Measure| -> Vec<f64> {
            let [predicted, actual] = self.both(&[policy], measure);
            let error = |(p, a): (&f64, &f64)| relative_error(*p, *a).unwrap_or(f64::NAN);
            predicted[0].iter().zip(&actual[0]).map(|pair| 100.0 * error(pair)).collect()
        };
        let [service, response, throughput] = RANKED.map(errors);
        let hits =
            [self.model, REAL].map(|m| self.results.mean(&self.scenario(m), policy, hits_percent));
        let why = format!(
            "mean response {:+.0} %, throughput {:+.0} %; {:.0} % hits where the disk has {:.0} %",
            mean(&response),
            mean(&throughput),
            hits[0],
            hits[1]
        );
        let name = format!("{}, mean service under {policy}", self.scenario(self.model));
        let row = Row::measured(name, &service, "% off", why);
        let within = mean(&service).abs() <= 100.0 * SERVICE_WITHIN;
        let asked = self.ours() && PAPER.contains(&policy);
        if asked { row.ask(within, "15 % in the mean over the seeds") } else { row }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seekway_device::profile;

    #[test]
    fn what_was_found_of_a_cache_reaches_the_profile() {
        let text = fit::of_profile(LINEAR, Form::Points, 1).unwrap().profile_toml("fitted", "test");
        let found = fit::ReadAhead { sectors: 32, after_hits: false, when_idle: true };
        let changed = with_cache(&text, found);
        for line in ["prefetch_sectors = 32", "on_hit = \"keep\"", "idle_ahead = true"] {
            assert!(changed.lines().any(|l| l == line), "{line} in\n{changed}");
        }
        assert!(profile::load(&changed).is_ok());
        let found = fit::ReadAhead { sectors: 0, after_hits: true, when_idle: true };
        assert_eq!(with_cache(&text, found).trim(), text.trim(), "nothing to change");
    }
}
