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
    /// The policy's own figures at the end of each round, by name.
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
        let rounds: Vec<Figures> =
            figures.rounds.iter().filter(good).map(|r| Figures::new(r, at, base)).collect();
        let spread = |of: fn(&Figures) -> Option<f64>| Spread::of(rounds.iter().filter_map(of));
        let over = |of| spread(of).map(|spread| spread.median);
        let simulated = simulated.get(&server).cloned();
        let mut row = Ran {
            device: scene.disk.name.clone(),
            emulated: scene.disk.emulate.is_some(),
            flood: scene.flood_name.clone(),
            server,
            quiet_alone_iops: over(|f| f.alone_iops),
            quiet_alone_p99_us: over(|f| f.alone_p99),
            quiet_iops: over(|f| f.iops),
            quiet_iops_range: spread(|f| f.iops).map(|s| (s.least, s.largest)),
            quiet_of_alone: over(|f| Some(f.iops? / f.alone_iops?)),
            quiet_p99_us: over(|f| f.p99),
            quiet_p99_of_alone: over(|f| Some(f.p99? / f.alone_p99?)),
            flood_alone_mib_s: over(|f| f.flood_alone),
            flood_mib_s: over(|f| f.flood),
            flood_of_base: over(|f| Some(f.flood? / f.base_flood?)),
            policy_metrics: medians(&rounds),
            simulated,
            late: over(|f| f.late),
            host_busy: over(|f| f.host_busy),
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
            let over_base =
                (over(|f| Some(f.iops? / f.base_iops?)), over(|f| Some(f.p99? / f.base_p99?)));
            (row.verdict, row.why) = row.judge(over_base);
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

/// The medians of the policy's own figures over the rounds.
fn medians(rounds: &[Figures]) -> BTreeMap<String, f64> {
    let names: BTreeSet<&String> = rounds.iter().flat_map(|round| round.metrics.keys()).collect();
    let median = |name: &String| {
        let of_rounds = rounds.iter().filter_map(|round| round.metrics.get(name).copied());
        Some((name.clone(), Spread::of(of_rounds)?.median))
    };
    names.into_iter().filter_map(median).collect()
}

/// The median of what the quiet VM had alone in the rounds, in requests a second.
pub fn quiet_alone_iops(figures: &NoisyFigures) -> Option<f64> {
    let alone = figures.rounds.iter().filter_map(|round| Figures::new(round, 0, 0).alone_iops);
    Spread::of(alone).map(|spread| spread.median)
}

/// Why a round says nothing of a server, if so.
fn void(round: &NoisyRound, at: usize, base: usize) -> Option<String> {
    let failed = |what: &str, error: &String| {
        Some(format!("{what}{}", error.lines().next().unwrap_or_default()))
    };
    let [before, after] = match &round.quiet_alone {
        [Ok(before), Ok(after)] => [before, after].map(|w| quiet(w).map_or(0.0, |q| q.iops)),
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

fn quiet(window: &NoisyWindow) -> Option<&VmSample> {
    window.quiet.as_ref()
}

fn late(window: &NoisyWindow) -> Option<f64> {
    window.emulation.map(|e| e.late as f64 / e.commands.max(1) as f64)
}

/// One round of a server.
struct Figures {
    alone_iops: Option<f64>,
    alone_p99: Option<f64>,
    iops: Option<f64>,
    p99: Option<f64>,
    flood_alone: Option<f64>,
    flood: Option<f64>,
    base_iops: Option<f64>,
    base_p99: Option<f64>,
    base_flood: Option<f64>,
    late: Option<f64>,
    host_busy: Option<f64>,
    metrics: BTreeMap<String, f64>,
}

impl Figures {
    fn new(round: &NoisyRound, at: usize, base: usize) -> Figures {
        let alone: Vec<&VmSample> =
            round.quiet_alone.iter().filter_map(|w| quiet(w.as_ref().ok()?)).collect();
        let mean = |of: fn(&VmSample) -> f64| {
            let sum: f64 = alone.iter().map(|sample| of(sample)).sum();
            (!alone.is_empty()).then(|| sum / alone.len() as f64)
        };
        let (own, noop) = (round.beside[at].as_ref().ok(), round.beside[base].as_ref().ok());
        let mib_s = |window: Option<&NoisyWindow>| {
            Some(window?.flood.as_ref()?.bytes_s / f64::from(1 << 20))
        };
        Figures {
            alone_iops: mean(|sample| sample.iops),
            alone_p99: mean(|sample| sample.p99_us),
            iops: own.and_then(quiet).map(|q| q.iops),
            p99: own.and_then(quiet).map(|q| q.p99_us),
            flood_alone: mib_s(round.flood_alone.as_ref().ok()),
            flood: mib_s(own),
            base_iops: noop.and_then(quiet).map(|q| q.iops),
            base_p99: noop.and_then(quiet).map(|q| q.p99_us),
            base_flood: mib_s(noop),
            late: own.and_then(late),
            host_busy: own.map(|window| window.host_busy),
            metrics: own.map(|window| window.policy_metrics.clone()).unwrap_or_default(),
        }
    }
}
