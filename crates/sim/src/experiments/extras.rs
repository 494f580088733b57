//! Extra policies that the user runs in an experiment beside its own: one for the disk, one
//! for vCPUs. An extra policy runs wherever the experiment's base policy runs, and its rows
//! compare the two.

use super::judge::Row;
use super::metric::bandwidth;
use super::results::over;
use super::{Cell, Experiment, Findings, Options, Results};

/// The extra policies of a run; `None` for none.
#[derive(Clone, Copy, Default, Debug)]
pub struct Extras<'a> {
    /// A scheduling policy, as `schedulers::build` reads it.
    pub policy: Option<&'a str>,
    /// A policy for vCPUs, on every machine, as `vcpu::build` reads it.
    pub vcpu: Option<&'a str>,
}

/// An extra cell, and the experiment's own cell that it is compared with.
struct Pair {
    extra: Cell,
    base: Cell,
    /// How a row calls the two.
    name: String,
}

impl Pair {
    /// `names` are the two policies, the extra one first; `rest` is what both cells share.
    fn new(cell: &Cell, extra: Cell, names: (&str, &str), rest: &[Option<&String>]) -> Pair {
        let with: String = rest.iter().flatten().map(|part| format!(" with {part}")).collect();
        let name = format!("{}{with}: {} against {}", cell.scenario.name, names.0, names.1);
        Pair { extra, base: cell.clone(), name }
    }
}

/// The policy that an extra one is compared with: cfq where it runs, else the first policy
/// of the experiment.
fn base_policy(cells: &[Cell]) -> Option<&str> {
    let cfq = cells.iter().find(|cell| cell.policy == "cfq");
    cfq.or(cells.first()).map(|cell| cell.policy.as_str())
}

/// The vCPU policy that an extra one is compared with: vanilla where it runs, else the
/// first of the experiment.
fn base_vcpu(cells: &[Cell]) -> Option<&str> {
    let mut policies = cells.iter().filter_map(|cell| cell.vcpu.as_deref());
    policies.clone().find(|policy| *policy == "vanilla").or_else(|| policies.next())
}

impl Extras<'_> {
    fn pairs(self, own: &[Cell]) -> Vec<Pair> {
        let mut pairs = Vec::new();
        if let (Some(policy), Some(base)) = (self.policy, base_policy(own)) {
            let pair = |c: &Cell| {
                let extra = Cell { policy: policy.into(), ..c.clone() };
                Pair::new(c, extra, (policy, base), &[c.prefetch.as_ref(), c.vcpu.as_ref()])
            };
            pairs.extend(own.iter().filter(|c| c.policy == base).map(pair));
        }
        if let (Some(vcpu), Some(base)) = (self.vcpu, base_vcpu(own)) {
            let pair = |c: &Cell| {
                let extra = Cell { vcpu: Some(vcpu.into()), ..c.clone() };
                Pair::new(c, extra, (vcpu, base), &[c.prefetch.as_ref(), Some(&c.policy)])
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

/// The cells of an experiment, and those of the extra policies on every scenario on which
/// its base runs.
pub fn cells(experiment: &Experiment, options: &Options, extras: Extras<'_>) -> Vec<Cell> {
    let own = unique((experiment.cells)(options));
    let more: Vec<Cell> = extras.pairs(&own).into_iter().map(|pair| pair.extra).collect();
    unique(own.into_iter().chain(more))
}

/// Judge an experiment. Extra policies get rows that compare them with their base.
pub fn judge(
    experiment: &Experiment,
    options: &Options,
    extras: Extras<'_>,
    results: &Results,
) -> Findings {
    let mut findings = (experiment.judge)(options, results);
    let own = unique((experiment.cells)(options));
    if let (Some(policy), None) = (extras.policy, base_policy(&own)) {
        findings.notes.push(format!("Nothing runs in this experiment, {policy} neither."));
    }
    if let (Some(vcpu), None) = (extras.vcpu, base_vcpu(&own)) {
        findings.notes.push(format!("No vCPUs in this experiment: {vcpu} is not run."));
    }
    for pair in extras.pairs(&own) {
        let [ours, beside] = [&pair.extra, &pair.base].map(|cell| results.each_of(cell, bandwidth));
        let (name, ratios) = (format!("{}, bandwidth", pair.name), over(&ours, &beside));
        let why = "the paper does not know this policy";
        findings.rows.push(Row::measured(name, &ratios, "×", why));
    }
    findings
}
