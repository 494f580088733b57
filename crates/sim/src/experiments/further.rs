//! What a user puts through an experiment beside what is its own: a policy of the
//! disk, a policy for vCPUs. It runs wherever the experiment's base runs, and is set
//! beside it.

use super::judge::Row;
use super::metric::bandwidth;
use super::results::over;
use super::{Cell, Experiment, Judged, Options, Results};

/// What is put through an experiment beside its own.
#[derive(Clone, Copy, Default, Debug)]
pub struct Further<'a> {
    /// A scheduling policy, as `schedulers::build` reads it.
    pub policy: Option<&'a str>,
    /// A policy for vCPUs, on every machine, as `vcpu::build` reads it.
    pub vcpu: Option<&'a str>,
}

/// A further cell, and the one of the experiment's own that it is set beside.
struct Pair {
    further: Cell,
    base: Cell,
    /// How a row calls the two.
    name: String,
}

impl Pair {
    /// `further` in place of `base`, which names what differs; `rest` is what they share.
    fn new(cell: &Cell, further: Cell, names: (&str, &str), rest: &[Option<&String>]) -> Pair {
        let with: String = rest.iter().flatten().map(|part| format!(" with {part}")).collect();
        let name = format!("{}{with}: {} against {}", cell.scenario.name, names.0, names.1);
        Pair { further, base: cell.clone(), name }
    }
}

/// What a further policy is set beside: cfq where it runs, else the policy that
/// the experiment has first.
fn base_policy(cells: &[Cell]) -> Option<&str> {
    let cfq = cells.iter().find(|cell| cell.policy == "cfq");
    cfq.or(cells.first()).map(|cell| cell.policy.as_str())
}

/// What a further policy for vCPUs is set beside: vanilla where it runs, else the one
/// that the experiment has first.
fn base_vcpu(cells: &[Cell]) -> Option<&str> {
    let mut policies = cells.iter().filter_map(|cell| cell.vcpu.as_deref());
    policies.clone().find(|policy| *policy == "vanilla").or_else(|| policies.next())
}

impl Further<'_> {
    fn pairs(self, own: &[Cell]) -> Vec<Pair> {
        let mut pairs = Vec::new();
        if let (Some(policy), Some(base)) = (self.policy, base_policy(own)) {
            let pair = |c: &Cell| {
                let further = Cell { policy: policy.into(), ..c.clone() };
                Pair::new(c, further, (policy, base), &[c.prefetch.as_ref(), c.vcpu.as_ref()])
            };
            pairs.extend(own.iter().filter(|c| c.policy == base).map(pair));
        }
        if let (Some(vcpu), Some(base)) = (self.vcpu, base_vcpu(own)) {
            let pair = |c: &Cell| {
                let further = Cell { vcpu: Some(vcpu.into()), ..c.clone() };
                Pair::new(c, further, (vcpu, base), &[c.prefetch.as_ref(), Some(&c.policy)])
            };
            pairs.extend(own.iter().filter(|c| c.vcpu.as_deref() == Some(base)).map(pair));
        }
        pairs
    }
}

/// Each once, in the order in which they come.
fn unique(cells: impl IntoIterator<Item = Cell>) -> Vec<Cell> {
    let mut unique: Vec<Cell> = Vec::new();
    for cell in cells {
        if !unique.contains(&cell) {
            unique.push(cell);
        }
    }
    unique
}

/// The cells of an experiment, and those of what is further on every scenario on which
/// its base runs.
pub fn cells(experiment: &Experiment, options: &Options, further: Further<'_>) -> Vec<Cell> {
    let own = unique((experiment.cells)(options));
    let more: Vec<Cell> = further.pairs(&own).into_iter().map(|pair| pair.further).collect();
    unique(own.into_iter().chain(more))
}

/// Judge an experiment; with something further, rows that set it beside its base.
pub fn judge(
    experiment: &Experiment,
    options: &Options,
    further: Further<'_>,
    results: &Results,
) -> Judged {
    let mut judged = (experiment.judge)(options, results);
    let own = unique((experiment.cells)(options));
    if let (Some(policy), None) = (further.policy, base_policy(&own)) {
        judged.notes.push(format!("Nothing runs in this experiment, {policy} neither."));
    }
    if let (Some(vcpu), None) = (further.vcpu, base_vcpu(&own)) {
        judged.notes.push(format!("No vCPUs in this experiment: {vcpu} is not run."));
    }
    for pair in further.pairs(&own) {
        let rates = |cell: &Cell| -> Vec<f64> {
            results.of_cell(cell).iter().map(|r| bandwidth(r)).collect()
        };
        let (ours, beside) = (rates(&pair.further), rates(&pair.base));
        let ratios = over(&ours, &beside);
        let name = format!("{}, bandwidth", pair.name);
        judged.rows.push(Row::measured(name, &ratios, "×", "the paper does not know this policy"));
    }
    judged
}
