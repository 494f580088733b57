//! vmcd-stable: bandwidth over time, figure 6.

use super::super::judge::{listed, mean, range};
use super::super::results::by_seed;
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::load::{BASES, Load, POLICIES, cells, loads};
use super::measure::{bandwidth_row, our_rows, rate_claim, short, total};
use crate::metrics::{RunResult, Series};

/// The paper: about 15.5 against 12 to 14 MiB/s, 440 against 360 to 420 requests a second.
const MORE_BYTES: f64 = 15.5 / 13.0;
const MORE_REQUESTS: f64 = 440.0 / 390.0;
/// Length of the spans whose bandwidths are compared.
const SPAN_NS: u64 = 1_000_000_000;

/// What the curves of each of the paper's loads give.
const PAPERS: [f64; 3] = [MORE_BYTES, MORE_REQUESTS, MORE_REQUESTS];

/// Where there is no bandwidth there is nothing to be stable: under vmcd this load has less than
/// half of what CFQ gives it, and its stability is not judged.
const SLOW: &str = "64 KiB sequential reads";

pub(super) fn stable_cells(options: &Options) -> Vec<Cell> {
    [cells(&loads("stable-papers", options)), cells(&loads("stable", options))].concat()
}

/// Bytes of several series in each whole span of a second. What does not fill
/// a span at the end is left out.
fn spans(series: &[&Series]) -> Vec<f64> {
    let ends = |s: &&Series| s.bytes.len() as u64 * s.bin.get() / SPAN_NS;
    let count = series.iter().map(ends).max().unwrap_or(0) as usize;
    let mut sums = vec![0.0; count];
    for s in series {
        for (n, bytes) in s.bytes.iter().enumerate() {
            if let Some(sum) = sums.get_mut((n as u64 * s.bin.get() / SPAN_NS) as usize) {
                *sum += *bytes as f64;
            }
        }
    }
    sums
}

/// Standard deviation over mean, in per cent.
fn variation(values: &[f64]) -> f64 {
    let middle = mean(values);
    let squares: Vec<f64> = values.iter().map(|v| (v - middle).powi(2)).collect();
    100.0 * mean(&squares).sqrt() / middle
}

/// Variation of the bandwidth of all VMs together from second to second.
fn swing(r: &RunResult) -> f64 {
    variation(&spans(&r.vms.iter().map(|vm| &vm.bandwidth).collect::<Vec<_>>()))
}

/// Mean of the VMs' own variations: what one of them sees.
fn vm_swing(r: &RunResult) -> f64 {
    mean(&r.vms.iter().map(|vm| variation(&spans(&[&vm.bandwidth]))).collect::<Vec<_>>())
}

pub(super) fn stable_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for (load, paper) in loads("stable-papers", options).into_iter().zip(PAPERS) {
        let is_slow = load.name.ends_with(SLOW);
        for base in BASES {
            let name = (load.name.as_str(), "bandwidth");
            findings.rows.push(rate_claim(results, name, &[&load], (base, paper), total));
        }
        let row = swing_row(results, &load, "all VMs", swing);
        findings.rows.push(if is_slow { row } else { smallest(results, &load, row) });
        findings.rows.push(swing_row(results, &load, "each VM", vm_swing));
        findings.figures.push(lines(results, &load));
    }
    for load in loads("stable", options) {
        findings.rows.push(bandwidth_row(results, &load));
        findings.rows.push(swing_row(results, &load, "all VMs", swing));
        findings.rows.push(swing_row(results, &load, "each VM", vm_swing));
        findings.rows.extend(our_rows(results, &load));
        findings.figures.push(lines(results, &load));
    }
    findings
}

fn swing_row(results: &Results, load: &Load, whose: &str, of: fn(&RunResult) -> f64) -> Row {
    let values = results.each(load, "vmcd", of);
    let each = listed(POLICIES, |p| format!("{p} {}", short(results.mean(load, p, of))));
    let name = format!("{}: swing of {whose} from second to second", load.name);
    Row::measured(name, &values, "%", format!("{each} %"))
}

/// The claim that all VMs together swing least under vmcd, which has no figure in the paper.
fn smallest(results: &Results, load: &Load, row: Row) -> Row {
    let of = |policy: &str| results.each(load, policy, swing);
    let (values, least) = (of("vmcd"), by_seed(&BASES.map(of), |others| range(others).0));
    let right = values.iter().zip(&least).filter(|(own, least)| own < least).count();
    row.because(format!("smallest on {right} of {} seeds", values.len()))
        .ordered(right, values.len())
}

/// MiB/s of all VMs over time, of the first seed.
fn lines(results: &Results, load: &Load) -> Figure {
    let points = |policy: &&str| {
        let run = &results.of(load, policy)[0];
        let sums = spans(&run.vms.iter().map(|vm| &vm.bandwidth).collect::<Vec<_>>());
        let at = |(n, bytes): (usize, &f64)| (n as f64 + 0.5, bytes / f64::from(1 << 20));
        (policy.to_string(), sums.iter().enumerate().map(at).collect())
    };
    let y = ("bandwidth of all VMs", "MiB/s");
    let caption = format!("{}: bandwidth over time (figure 6 of the paper).", load.name);
    Figure::lines(("time", "s"), y, POLICIES.iter().map(points), caption)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variation_is_the_deviation_over_the_mean() {
        assert_eq!(variation(&[5.0; 4]), 0.0);
        assert_eq!(variation(&[5.0, 15.0]), 50.0);
    }
}
