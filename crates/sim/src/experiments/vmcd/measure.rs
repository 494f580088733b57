//! What the VMCD experiments measure: φ and the other indices of fairness,
//! shares of device time, and the rows that every load gets.

use super::super::figure::{bars_by, paper_bars};
use super::super::judge::{listed, mean};
use super::super::results::across;
use super::super::{Figure, Key, Results, Row, Ways};
use super::load::{FORMS, Load, POLICIES, Vm};
use crate::metrics::{RunResult, VmResult};
use seekway_policy::fairness;

/// φ below this share of what it is measured in counts as this: less than a
/// thousandth of the bandwidth misplaced is as fair as can be measured, and a
/// ratio of two such figures says nothing.
const PHI_FLOOR: f64 = 1e-3;
/// "At least CFQ's bandwidth" is met within this, "φ no worse" within this of
/// the bandwidth (equal demands) or of each VM's due (unequal ones).
const TOLERANCE: f64 = 0.01;

const MIB: f64 = (1 << 20) as f64;

/// MiB/s of a VM over the whole run.
pub(super) fn got(r: &RunResult, vm: &VmResult) -> f64 {
    crate::metrics::per_second(vm.bytes as f64 / MIB, r.simulated)
}

/// MiB/s of all VMs over the whole run.
pub(super) fn total(r: &RunResult) -> f64 {
    r.mib_s()
}

impl Ways for Load {
    type Way<'a> = &'a str;
    fn key(&self, policy: &str) -> Key {
        self.name.key(policy)
    }
}

/// What each VM got, by seed.
fn all_got(results: &Results, load: &Load, policy: &str) -> Vec<Vec<f64>> {
    let of = |r: &RunResult| r.vms.iter().map(|vm| got(r, vm)).collect();
    results.of(load, policy).iter().map(|r| of(r)).collect()
}

/// What each VM demands, by seed: its rate, or what it has alone with that seed.
fn demands(results: &Results, load: &Load) -> Vec<Vec<f64>> {
    let seeds = results.of(load, "cfq").len();
    let of = |seed: usize| {
        let alone = |vm: &Vm| {
            let (name, policy) = load.alone(vm);
            total(&results.of(&name, policy)[seed])
        };
        load.vms.iter().map(|vm| vm.demand.unwrap_or_else(|| alone(vm))).collect()
    };
    (0..seeds).map(of).collect()
}

/// Do all VMs of the load ask for the same? (The class of φ.)
pub(super) fn equal_demands(load: &Load) -> bool {
    load.vms.windows(2).all(|pair| pair[0] == pair[1])
}

/// An index of fairness by seed, from demands, bandwidths and weights.
fn index(
    results: &Results,
    load: &Load,
    policy: &str,
    of: impl Fn(&[f64], &[f64], &[f64]) -> Option<f64>,
) -> Vec<f64> {
    let weights = vec![1.0; load.vms.len()];
    let got = all_got(results, load, policy);
    let demands = demands(results, load);
    let each = |(got, demands): (&Vec<f64>, &Vec<f64>)| of(demands, got, &weights);
    got.iter().zip(&demands).map(|both| each(both).unwrap_or(f64::NAN)).collect()
}

/// φ by seed. VMs of one specification demand the same, whatever the streams
/// of random numbers gave them when they were alone.
pub(super) fn phi(results: &Results, load: &Load, policy: &str) -> Vec<f64> {
    index(results, load, policy, fairness::phi)
}
/// φ of VMs that all demand the same, which need not be known for it.
pub(super) fn phi_of_equals(results: &Results, load: &Load, policy: &str) -> Vec<f64> {
    let ones = vec![1.0; load.vms.len()];
    let of = |got: &Vec<f64>| fairness::phi(&ones, got, &ones).unwrap_or(f64::NAN);
    all_got(results, load, policy).iter().map(of).collect()
}
/// Jain's index of what they got, each over its demand, by seed.
pub(super) fn jain(results: &Results, load: &Load, policy: &str) -> Vec<f64> {
    index(results, load, policy, |demands, got, _| {
        let shares: Vec<f64> = got.iter().zip(demands).map(|(g, d)| g / d).collect();
        fairness::jain(&shares)
    })
}
/// The worst VM's part of its max-min share by seed.
pub(super) fn max_min(results: &Results, load: &Load, policy: &str) -> Vec<f64> {
    index(results, load, policy, fairness::max_min_share)
}

/// φ of one policy over that of another, by seed, neither counted below the floor.
pub(super) fn phi_ratio(results: &Results, load: &Load, over: (&str, &str)) -> Vec<f64> {
    let floors = results.each(load, over.1, |r| floor(r, load));
    let (ours, base) = (phi(results, load, over.0), phi(results, load, over.1));
    let ratio = |((o, b), f): ((&f64, &f64), &f64)| o.max(*f) / b.max(*f);
    ours.iter().zip(&base).zip(&floors).map(ratio).collect()
}

fn floor(r: &RunResult, load: &Load) -> f64 {
    if equal_demands(load) { PHI_FLOOR * total(r) } else { PHI_FLOOR }
}

/// Device time of each VM, in per cent of all that was used, by seed.
pub(super) fn time_shares(results: &Results, load: &Load, policy: &str) -> Vec<Vec<f64>> {
    let of = |r: &RunResult| {
        let all: u64 = r.vms.iter().map(|vm| vm.device_time.get()).sum();
        let share = |vm: &VmResult| 100.0 * vm.device_time.get() as f64 / all.max(1) as f64;
        r.vms.iter().map(share).collect()
    };
    results.of(load, policy).iter().map(|r| of(r)).collect()
}

/// Mean over the seeds of each VM's figure, as `4.64/9.29/9.25`.
pub(super) fn by_vm(by_seed: &[Vec<f64>]) -> String {
    means(by_seed).map(short).collect::<Vec<_>>().join("/")
}

/// Mean over the seeds of each VM's figure.
fn means(by_seed: &[Vec<f64>]) -> impl Iterator<Item = f64> {
    let vms = by_seed.first().map_or(0, Vec::len);
    (0..vms).map(|vm| mean(&by_seed.iter().map(|seed| seed[vm]).collect::<Vec<_>>()))
}

/// A figure with the digits that matter.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// MiB/s of each VM and shares of device time under a policy.
pub(super) fn shares(results: &Results, load: &Load, policy: &str) -> String {
    let got = by_vm(&all_got(results, load, policy));
    let time = time_shares(results, load, policy);
    let time: Vec<String> = means(&time).map(|share| format!("{share:.0}")).collect();
    format!("{policy} {got} MiB/s in {} % of device time", time.join("/"))
}

/// φ as measured, with the other policies' and the other indices beside it.
pub(super) fn phi_row(results: &Results, load: &Load) -> Row {
    let values = phi(results, load, "vmcd");
    let each = listed(POLICIES, |policy| {
        format!(
            "{policy} {} (Jain {:.3}, worst of max-min {:.2})",
            short(mean(&phi(results, load, policy))),
            mean(&jain(results, load, policy)),
            mean(&max_min(results, load, policy)),
        )
    });
    let unit = if equal_demands(load) { "MiB/s" } else { "" };
    Row::measured(format!("{}: φ of vmcd", load.name), &values, unit, each)
}

/// Geometric mean over some loads, by seed: each counts the same, whichever way it differs.
pub(super) fn over_loads(loads: &[&Load], of: impl Fn(&Load) -> Vec<f64>) -> Vec<f64> {
    let logs = |load: &&Load| of(load).into_iter().map(f64::ln).collect();
    across(loads, logs).into_iter().map(f64::exp).collect()
}

/// The paper's claim that φ falls by `better` (a share) against `base`, over some loads.
pub(super) fn phi_claim(
    results: &Results,
    name: &str,
    loads: &[&Load],
    base: &str,
    better: f64,
) -> Row {
    let ratio = |load: &Load| phi_ratio(results, load, ("vmcd", base));
    let claim = format!("{name}: φ of vmcd against {base}");
    let row = Row::factor(claim, 1.0 - better, &over_loads(loads, ratio));
    let each = |load: &&Load| {
        let of = |policy: &str| short(mean(&phi(results, load, policy)));
        format!("{}: {} against {}", load.name, of("vmcd"), of(base))
    };
    row.because(listed(loads, each))
}

/// The paper's claim that bandwidth or requests a second are `more` (a factor), over some loads.
pub(super) fn rate_claim(
    results: &Results,
    (name, what): (&str, &str),
    loads: &[&Load],
    (base, more): (&str, f64),
    of: fn(&RunResult) -> f64,
) -> Row {
    let ratio = |load: &Load| results.ratio(load, ("vmcd", base), of);
    let name = format!("{name}: {what} of vmcd against {base}");
    let row = Row::factor(name, more, &over_loads(loads, ratio));
    let each = |load: &&Load| {
        let [ours, theirs] = ["vmcd", base].map(|p| short(results.mean(*load, p, of)));
        format!("{}: {ours} against {theirs}", load.name)
    };
    row.because(listed(loads, each))
}

/// What every policy moves.
pub(super) fn bandwidth_row(results: &Results, load: &Load) -> Row {
    let ratios = results.ratio(load, ("vmcd", "cfq"), total);
    let each = listed(POLICIES, |p| format!("{p} {}", short(results.mean(load, p, total))));
    let why = format!("{each} MiB/s");
    Row::measured(format!("{}: bandwidth of vmcd and cfq", load.name), &ratios, "×", why)
}

/// The ablation: what the forms that the paper's text allows make of a figure.
pub(super) fn form_rows(
    results: &Results,
    load: &Load,
    what: &str,
    of: fn(&RunResult) -> f64,
) -> Vec<Row> {
    let row = |form: &str| {
        let ratios = results.ratio(load, (form, "cfq"), of);
        let [own, vmcd, cfq] = [form, "vmcd", "cfq"].map(|p| short(results.mean(load, p, of)));
        let why = format!("{own}, vmcd {vmcd}, cfq {cfq}; {}", shares(results, load, form));
        Row::measured(format!("{}: {what} of {form} against cfq", load.name), &ratios, "×", why)
    };
    FORMS.iter().map(|form| row(form)).collect()
}

/// Does CFQ let a VM starve? Less than a quarter of an even share of its demand.
fn cfq_starves(results: &Results, load: &Load) -> bool {
    let worst = index(results, load, "cfq", |demands, got, _| {
        got.iter().zip(demands).map(|(g, d)| g / d).reduce(f64::min)
    });
    mean(&worst) < 0.25 / load.vms.len() as f64
}

/// What is asked of vmcd-time: CFQ's bandwidth, vmcd's fairness.
pub(super) fn our_rows(results: &Results, load: &Load) -> Vec<Row> {
    our_rows_but(results, load, None)
}

/// The same, but φ is not asked for the reason given.
pub(super) fn our_rows_but(results: &Results, load: &Load, not_phi: Option<&str>) -> Vec<Row> {
    let mut rows = vec![our_bandwidth(results, load)];
    if load.vms.len() > 1 {
        rows.push(our_phi(results, load, not_phi));
    }
    rows
}

/// What CFQ gains by starving a VM is not asked for.
fn our_bandwidth(results: &Results, load: &Load) -> Row {
    let bandwidths = results.ratio(load, ("vmcd-time", "cfq"), total);
    let why = format!(
        "vmcd itself has {:.2}; {}; {}",
        mean(&results.ratio(load, ("vmcd", "cfq"), total)),
        shares(results, load, "vmcd-time"),
        shares(results, load, "cfq")
    );
    let name = format!("{}: bandwidth of vmcd-time against cfq", load.name);
    let row = Row::measured(name, &bandwidths, "×", why);
    if cfq_starves(results, load) {
        return row.because("nothing is asked, for cfq starves a VM");
    }
    row.ask(mean(&bandwidths) >= 1.0 - TOLERANCE, "cfq's bandwidth, to within a per cent,")
}

/// φ of both forms, where demands are equal as a share of the bandwidth: in
/// MiB/s whoever moves little has little to misplace.
fn our_phi(results: &Results, load: &Load, not_asked: Option<&str>) -> Row {
    let equal = equal_demands(load);
    let of = |policy: &str| {
        let totals = results.each(load, policy, total);
        let over = |(phi, total): (f64, f64)| if equal { 100.0 * phi / total } else { phi };
        phi(results, load, policy).into_iter().zip(totals).map(over).collect::<Vec<f64>>()
    };
    let (ours, papers) = (of("vmcd-time"), of("vmcd"));
    let slack = TOLERANCE * if equal { 100.0 } else { load.vms.len() as f64 };
    let (what, unit) = if equal { ("φ over bandwidth", "%") } else { ("φ", "") };
    let name = format!("{}: {what} of vmcd-time", load.name);
    let why = format!("vmcd's is {}", short(mean(&papers)));
    let row = Row::measured(name, &ours, unit, why);
    let met = mean(&ours) <= mean(&papers) + slack;
    match not_asked {
        Some(why) => row.because(why),
        None => row.ask(met, &format!("no more than vmcd's, to within {},", short(slack))),
    }
}

/// Bandwidth of each VM by policy, beside the paper's.
pub(super) fn vm_bars(
    results: &Results,
    load: &Load,
    groups: &[&str],
    paper: &[(&str, &[f64])],
    caption: &str,
) -> Figure {
    let each = |&vm: &usize, policy: &str| results.each(load, policy, |r| got(r, &r.vms[vm]));
    let mut series = bars_by(&POLICIES, &Vec::from_iter(0..load.vms.len()), each);
    series.extend(paper.iter().map(|(name, values)| paper_bars(name, values)));
    let groups = groups.iter().copied();
    Figure::bars(("bandwidth", "MiB/s"), groups, series, format!("{}: {caption}", load.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_count_alike_in_a_mean_over_them() {
        let options = super::super::super::testing::options(1);
        let loads = ["a", "b"].map(|name| Load::new(name, Vec::new(), 1, &options));
        let of = |load: &Load| vec![if load.name == "a" { 4.0 } else { 0.25 }];
        assert_eq!(over_loads(&[&loads[0], &loads[1]], of), [1.0]);
    }

    #[test]
    fn figures_keep_the_digits_that_matter() {
        assert_eq!([123.4, 12.34, 1.234, 0.01234].map(short), ["123", "12.3", "1.23", "0.0123"]);
        assert_eq!(by_vm(&[vec![1.0, 20.0], vec![3.0, 40.0]]), "2.00/30.0");
    }
}
