//! What the rounds of a scene come to, server by server, and which of them say nothing.

use crate::show::{host_full, too_late};
use crate::spread::Spread;
use seekway_live::experiment::{
    NOISY_BASE as BASE, NoisyFigures, NoisyRound, NoisyServer, NoisyWindow, VmSample,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A measurement is void when the quiet VM alone changed by more from the round's beginning to its
/// end.
pub const DRIFT_MAX: f64 = 0.2;
/// Emulated: the quiet VM's IOPS are to be the simulator's, up to this share.
pub const WITHIN: f64 = 0.1;
/// The disk below, fairway over noop: the quiet VM's IOPS at least, its p99 at most, and
/// the flood at least.
pub const IOPS_LEAST: f64 = 10.0;
pub const P99_MOST: f64 = 0.2;
pub const FLOOD_LEAST: f64 = 0.8;
/// The policy that these are asked of.
const JUDGED: &str = "fairway";

/// The same scene in the simulator, under one policy, with a quiet VM that is as fast alone. The
/// keys stay.
#[derive(Clone, Serialize)]
pub struct Simulated {
    pub quiet_alone_iops: f64,
    pub quiet_iops: f64,
    pub quiet_p99_us: f64,
    /// Over its p99 alone.
    pub quiet_p99_of_alone: f64,
    /// The flood's rate over that under noop.
    pub flood_of_base: f64,
    /// The policy's own figures in the end, by name.
    pub policy_metrics: BTreeMap<String, f64>,
}

impl Simulated {
    pub fn quiet_of_alone(&self) -> f64 {
        self.quiet_iops / self.quiet_alone_iops
    }
}

/// A row, as JSON. The keys stay. Figures are medians over the rounds that are not void;
/// over all of them in a void row.
#[derive(Serialize)]
pub struct Ran {
    pub device: String,
    pub emulated: bool,
    pub flood: String,
    pub server: String,
    /// The quiet VM under noop without the flood.
    pub quiet_alone_iops: Option<f64>,
    pub quiet_alone_p99_us: Option<f64>,
    /// The quiet VM under this server, beside the flood.
    pub quiet_iops: Option<f64>,
    /// The least and the most of the rounds.
    pub quiet_iops_range: Option<(f64, f64)>,
    pub quiet_of_alone: Option<f64>,
    pub quiet_p99_us: Option<f64>,
    pub quiet_p99_of_alone: Option<f64>,
    /// The flood under noop without the quiet VM.
    pub flood_alone_mib_s: Option<f64>,
    pub flood_mib_s: Option<f64>,
    /// Over what it gets beside the quiet VM under noop.
    pub flood_of_base: Option<f64>,
    /// The policy's own figures in the end, by name.
    pub policy_metrics: BTreeMap<String, f64>,
    pub simulated: Option<Simulated>,
    /// Share of the emulated device's commands that were late, 0 to 1.
    pub late: Option<f64>,
    /// Of the host's processors, 0 to 1.
    pub host_busy: Option<f64>,
    pub rounds: usize,
    pub void_rounds: usize,
    /// `measured`, `met`, `missed`, or `void` where the row says nothing of a server.
    pub verdict: &'static str,
    /// The reason of the verdict.
    pub why: String,
}

impl Ran {
    /// The rows of a scene.
    pub fn all(figures: &NoisyFigures, simulated: &BTreeMap<String, Simulated>) -> Vec<Ran> {
        let servers = 0..figures.scene.disk.servers.len();
        servers.map(|at| Ran::new(figures, at, simulated)).collect()
    }

    fn new(figures: &NoisyFigures, at: usize, simulated: &BTreeMap<String, Simulated>) -> Ran {
        let scene = &figures.scene;
        let server = scene.disk.servers[at].name();
        let is_base = |s: &NoisyServer| *s == NoisyServer::Policy(BASE.into());
        let base = scene.disk.servers.iter().position(is_base).expect("it always runs");
        let voids: Vec<String> = figures.rounds.iter().filter_map(|r| void(r, at, base)).collect();
        // One good round among many is luck.
        let is_void = voids.len() * 2 >= figures.rounds.len().max(1);
        let good = |round: &&NoisyRound| is_void || void(round, at, base).is_none();
        let rounds: Vec<&NoisyRound> = figures.rounds.iter().filter(good).collect();
        let median = |of: &dyn Fn(&NoisyRound) -> Option<f64>| {
            Spread::of(rounds.iter().filter_map(|round| of(round))).map(|spread| spread.median)
        };
        let iops = |round: &NoisyRound, at: usize| beside(round, at)?.quiet.as_ref().map(IOPS);
        let p99 = |round: &NoisyRound, at: usize| beside(round, at)?.quiet.as_ref().map(P99);
        let flood = |round: &NoisyRound, at: usize| mib_s(beside(round, at)?);
        let range = Spread::of(rounds.iter().filter_map(|round| iops(round, at)));
        let windows = rounds.iter().filter_map(|round| beside(round, at));
        let named: BTreeSet<&String> = windows.flat_map(|w| w.policy_metrics.keys()).collect();
        let policy_metrics = |name: &String| {
            let value = median(&|round| beside(round, at)?.policy_metrics.get(name).copied());
            Some((name.clone(), value?))
        };
        let simulated = simulated.get(&server).cloned();
        let mut row = Ran {
            device: scene.disk.name.clone(),
            emulated: scene.disk.emulate.is_some(),
            flood: scene.flood_name.clone(),
            server,
            quiet_alone_iops: median(&|r| alone(r, IOPS)),
            quiet_alone_p99_us: median(&|r| alone(r, P99)),
            quiet_iops: median(&|r| iops(r, at)),
            quiet_iops_range: range.map(|range| (range.least, range.largest)),
            quiet_of_alone: median(&|r| Some(iops(r, at)? / alone(r, IOPS)?)),
            quiet_p99_us: median(&|r| p99(r, at)),
            quiet_p99_of_alone: median(&|r| Some(p99(r, at)? / alone(r, P99)?)),
            flood_alone_mib_s: median(&|r| mib_s(r.flood_alone.as_ref().ok()?)),
            flood_mib_s: median(&|r| flood(r, at)),
            flood_of_base: median(&|r| Some(flood(r, at)? / flood(r, base)?)),
            policy_metrics: named.into_iter().filter_map(policy_metrics).collect(),
            simulated,
            late: median(&|r| late(beside(r, at)?)),
            host_busy: median(&|r| Some(beside(r, at)?.host_busy)),
            rounds: figures.rounds.len(),
            void_rounds: voids.len(),
            verdict: "void",
            why: match (&voids[..], figures.rounds.len()) {
                ([], _) => String::new(),
                ([first, ..], 1) => first.clone(),
                ([first, ..], of) => format!("{} of {of} rounds: {first}", voids.len()),
            },
        };
        if !is_void {
            let iops_over_base = median(&|r| Some(iops(r, at)? / iops(r, base)?));
            let p99_over_base = median(&|r| Some(p99(r, at)? / p99(r, base)?));
            (row.verdict, row.why) = row.judge((iops_over_base, p99_over_base));
        }
        row
    }

    /// `over_base`: the quiet VM's IOPS and p99 over those under noop.
    fn judge(&self, over_base: (Option<f64>, Option<f64>)) -> (&'static str, String) {
        let verdict = |met| if met { "met" } else { "missed" };
        if let (Some(sim), Some(iops)) = (&self.simulated, self.quiet_iops) {
            let of_sim = iops / sim.quiet_iops;
            let kept = self.quiet_of_alone.map_or(f64::NAN, |kept| kept / sim.quiet_of_alone());
            let why = format!(
                "quiet IOPS {of_sim:.2} of the simulator's (as parts of those alone: {kept:.2}); \
                 0.90 to 1.10 is asked"
            );
            return (verdict((of_sim - 1.0).abs() <= WITHIN), why);
        }
        let (Some(iops), Some(p99), Some(flood)) = (over_base.0, over_base.1, self.flood_of_base)
        else {
            return ("measured", String::new());
        };
        if self.emulated || self.server != JUDGED {
            return ("measured", String::new());
        }
        let met = iops >= IOPS_LEAST && p99 <= P99_MOST && flood >= FLOOD_LEAST;
        let why = format!(
            "over noop: quiet IOPS {iops:.1} (at least {IOPS_LEAST} is asked), p99 {p99:.2} \
             (at most {P99_MOST}), flood {flood:.2} (at least {FLOOD_LEAST})"
        );
        (verdict(met), why)
    }
}

/// The median of what the quiet VM had alone in the rounds, in requests a second.
pub fn quiet_alone_iops(figures: &NoisyFigures) -> Option<f64> {
    let alone = figures.rounds.iter().filter_map(|round| alone(round, IOPS));
    Spread::of(alone).map(|spread| spread.median)
}

/// Why a round says nothing of a server, if so.
fn void(round: &NoisyRound, at: usize, base: usize) -> Option<String> {
    let failed = |what: &str, error: &String| {
        Some(format!("{what}{}", error.lines().next().unwrap_or_default()))
    };
    let [before, after] = match &round.quiet_alone {
        [Ok(before), Ok(after)] => [before, after].map(|w| w.quiet.as_ref().map_or(0.0, IOPS)),
        [Err(error), _] | [_, Err(error)] => return failed("the quiet VM alone: ", error),
    };
    if (before - after).abs() > DRIFT_MAX * before.max(after) {
        return Some(format!(
            "the quiet VM alone went from {before:.0} to {after:.0} IOPS in the round"
        ));
    }
    let windows = [(at, ""), (base, "under noop, ")];
    let windows = if at == base { &windows[..1] } else { &windows[..] };
    for &(n, whose) in windows {
        let window = match &round.beside[n] {
            Ok(window) => window,
            Err(error) => return failed(whose, error),
        };
        let why = late(window).and_then(too_late).or_else(|| host_full(window.host_busy));
        if let Some(why) = why {
            return Some(format!("{whose}{why}"));
        }
    }
    None
}

/// Figures of the quiet VM.
const IOPS: fn(&VmSample) -> f64 = |sample| sample.iops;
const P99: fn(&VmSample) -> f64 = |sample| sample.p99_us;

/// The quiet VM's mean over the windows that it has alone in a round.
fn alone(round: &NoisyRound, of: fn(&VmSample) -> f64) -> Option<f64> {
    let windows = round.quiet_alone.iter().filter_map(|window| window.as_ref().ok());
    let alone: Vec<f64> = windows.filter_map(|w| w.quiet.as_ref()).map(of).collect();
    (!alone.is_empty()).then(|| alone.iter().sum::<f64>() / alone.len() as f64)
}

/// Both VMs under the server with this index.
fn beside(round: &NoisyRound, at: usize) -> Option<&NoisyWindow> {
    round.beside[at].as_ref().ok()
}

/// The flood, in MiB a second.
fn mib_s(window: &NoisyWindow) -> Option<f64> {
    Some(window.flood.as_ref()?.bytes_s / f64::from(1 << 20))
}

fn late(window: &NoisyWindow) -> Option<f64> {
    window.emulation.map(|e| e.late as f64 / e.commands.max(1) as f64)
}
