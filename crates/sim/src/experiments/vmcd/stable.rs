//! vmcd-stable: bandwidth over time, figure 6.

use super::super::judge::mean;
use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::load::{Access, Load, POLICIES, cells};
use super::measure::{our_rows, short, total};
use crate::metrics::{RunResult, Series};

/// The paper: about 15.5 against 12 to 14 MiB/s, 440 against 360 to 420 requests a second.
const MORE_BYTES: f64 = 15.5 / 13.0;
const MORE_REQUESTS: f64 = 440.0 / 390.0;
const BASES: [&str; 3] = ["cfq", "deadline", "anticipatory"];
/// Length of the spans whose bandwidths are compared.
const SPAN_NS: u64 = 1_000_000_000;

/// The text says random writes, the figure sequential reads: both, and the
/// factor that the paper's curves give.
fn loads(options: &Options) -> Vec<(Load, f64)> {
    let three = |name: &str, access: Access, seconds, paper| {
        (Load::new(name, vec![access.vm(); 3], seconds, options), paper)
    };
    let read = Access::direct("read", "512B");
    let large = Access::direct("read", "64KiB");
    let write = Access::direct("randwrite", "64KiB");
    vec![
        three("512 B sequential reads, one at a time", read, 20, MORE_BYTES),
        three("512 B sequential reads, guest read-ahead", read.buffered(), 12, MORE_BYTES),
        three("64 KiB sequential reads, one at a time", large, 20, MORE_REQUESTS),
        three("64 KiB random writes, one at a time", write, 40, MORE_REQUESTS),
        three("64 KiB random writes, 16 outstanding", write.depth(16), 40, MORE_REQUESTS),
    ]
}

pub(super) fn stable_cells(options: &Options) -> Vec<Cell> {
    loads(options).iter().flat_map(|(load, _)| cells(std::slice::from_ref(load))).collect()
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
    for (load, paper) in loads(options) {
        for base in BASES {
            let ratios = results.ratio(&load, ("vmcd", base), total);
            let name = format!("{}: bandwidth against {base}", load.name);
            let [ours, theirs] = ["vmcd", base].map(|p| results.mean(&load, p, total));
            let why = format!("{} against {} MiB/s", short(ours), short(theirs));
            findings.rows.push(Row::factor(name, paper, &ratios).because(why));
        }
        findings.rows.push(smallest(results, &load, "all VMs", swing));
        findings.rows.push(smallest(results, &load, "each VM", vm_swing));
        findings.rows.extend(our_rows(results, &load));
        findings.figures.push(lines(results, &load));
    }
    findings
}

/// The claim that vmcd swings least, which the paper gives no figure for.
fn smallest(results: &Results, load: &Load, whose: &str, of: fn(&RunResult) -> f64) -> Row {
    let values = results.each(load, "vmcd", of);
    let others = BASES.map(|base| results.each(load, base, of));
    let least = |seed: usize| others.iter().map(|o| o[seed]).fold(f64::INFINITY, f64::min);
    let right = (0..values.len()).filter(|&seed| values[seed] < least(seed)).count();
    let each: Vec<String> = POLICIES
        .iter()
        .map(|policy| format!("{policy} {}", short(results.mean(load, policy, of))))
        .collect();
    let why = format!("smallest on {right} of {} seeds: {} %", values.len(), each.join(", "));
    let name = format!("{}: swing of {whose} from second to second", load.name);
    // The paper's others swing between 12 and 14: 7.7 % each way.
    let paper = Some(100.0 / 13.0);
    let row = Row::measured(name, &values, "%", why).ordered(right, values.len());
    Row { paper, ..row }
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
