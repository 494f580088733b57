//! What the VIO experiments measure: throughput as the applications see it,
//! its ratio to the baseline's, the share of the array that is in use,
//! accuracy, cost and S.

pub(super) use super::super::figure::bars;
pub(super) use super::super::judge::short;
use super::super::judge::{mean, range};
pub(super) use super::super::results::{across, over};
use super::super::{Key, Results, Ways};
use super::load::{BASE, Column, Load};
use crate::metrics::{RunResult, per_second};
use seekway_policy::cache::Usage;
use seekway_workload::AppReport;

const MIB: f64 = (1 << 20) as f64;
const SECTOR_BYTES: f64 = 512.0;
/// CPU time that a guest takes for each byte that it reads 64 KiB at a time
/// through its page cache, by its defaults: 2 µs a call, 1 µs a page.
const CPU_S_PER_BYTE: f64 = 18e-6 / 65_536.0;

/// The applications that are judged.
fn judged<'a>(r: &'a RunResult, load: &Load) -> impl Iterator<Item = &'a AppReport> {
    r.apps.iter().filter(|app| app.name.starts_with(load.judged))
}

/// What the judged applications moved, MiB/s over what is measured of the run.
pub(super) fn throughput(r: &RunResult, load: &Load) -> f64 {
    let bytes: u64 = judged(r, load).map(|app| app.bytes).sum();
    per_second(bytes as f64 / MIB, r.simulated)
}

/// Of the judged applications, the one that one way serves worst beside another:
/// its name, and its throughput over that in the other way.
fn worst_of(ours: &RunResult, base: &RunResult, load: &Load) -> Option<(String, f64)> {
    let both = judged(ours, load).zip(judged(base, load));
    let ratios = both.map(|(o, b)| (o.name.clone(), o.bytes as f64 / b.bytes.max(1) as f64));
    ratios.min_by(|a, b| a.1.total_cmp(&b.1))
}

impl Ways for Load {
    type Way<'a> = Column;
    fn key(&self, column: Column) -> Key {
        let (scenario, policy) = (self.scenario(column.guest), self.policy.into());
        Key { scenario, policy, prefetch: column.prefetch.map(String::from), vcpu: None }
    }
}

/// Throughput in one way over that in another, seed by seed.
pub(super) fn ratio(results: &Results, load: &Load, ours: Column, base: Column) -> Vec<f64> {
    results.ratio(load, (ours, base), |r| throughput(r, load))
}

/// The worst served application beside the baseline, seed by seed.
pub(super) fn worst(results: &Results, load: &Load, column: Column) -> Vec<(String, f64)> {
    let (ours, base) = (results.of(load, column), results.of(load, BASE));
    ours.iter().zip(base).filter_map(|(o, b)| worst_of(o, b, load)).collect()
}

/// Throughput over the baseline's, seed by seed.
pub(super) fn speedup(results: &Results, load: &Load, column: Column) -> Vec<f64> {
    ratio(results, load, column, BASE)
}

fn usage(r: &RunResult) -> Usage {
    r.host.as_ref().map(|host| host.usage).unwrap_or_default()
}

/// What guests read of their disks, MiB.
pub(super) fn read_mib(r: &RunResult) -> f64 {
    usage(r).read as f64 * SECTOR_BYTES / MIB
}

/// What they wrote there, MiB.
pub(super) fn written_mib(r: &RunResult) -> f64 {
    let all: u64 = r.vms.iter().map(|vm| vm.bytes).sum();
    (all as f64 / MIB - read_mib(r)).max(0.0)
}

/// What the array read and wrote, in per cent of what it reads at best (the
/// paper's BW_T, measured before the run).
pub(super) fn array_percent(r: &RunResult) -> f64 {
    let Some(host) = &r.host else { return f64::NAN };
    let usage = host.usage;
    let read = (usage.missed + usage.prefetched).saturating_sub(usage.dropped);
    let best = host.bandwidth as f64 * r.simulated.as_secs_f64();
    100.0 * (written_mib(r) * MIB + read as f64 * SECTOR_BYTES) / best
}

/// The paper's accuracy: of what guests read, that which had been prefetched; %.
pub(super) fn accuracy(r: &RunResult) -> f64 {
    100.0 * usage(r).accuracy()
}

/// The paper's cost: prefetched and unused, of all that was read or prefetched; %.
pub(super) fn cost(r: &RunResult) -> f64 {
    100.0 * usage(r).cost()
}

/// Aggressiveness S of the streams that were armed when the run ended: their
/// mean; 0 where none was.
pub(super) fn scale(r: &RunResult) -> f64 {
    let streams = r.vms.iter().flat_map(|vm| vm.host.iter().flat_map(|host| &host.streams));
    let armed: Vec<f64> = streams.filter(|s| s.armed).map(|s| s.scale).collect();
    if armed.is_empty() { 0.0 } else { mean(&armed) }
}

/// Is it the device that the readers wait for, and not their own CPUs?
pub(super) fn is_latency_bound(results: &Results, load: &Load) -> bool {
    let mib_s = results.mean(load, BASE, |r| throughput(r, load));
    let names = |r: &RunResult| {
        let mut vms: Vec<u16> = judged(r, load).map(|app| app.vm).collect();
        vms.dedup();
        vms.len() as f64
    };
    let vms = results.mean(load, BASE, names);
    let cpu_share = mib_s * MIB * CPU_S_PER_BYTE / (vms * f64::from(load.vcpus));
    cpu_share < 0.5
}

/// Has the array bandwidth to spare under the baseline? Below 60 % of its best.
pub(super) fn has_room(results: &Results, load: &Load) -> bool {
    results.mean(load, BASE, array_percent) < 60.0
}

/// A load's baseline in the next window over that in its own: how much is chance.
pub(super) fn chance(results: &Results, load: &Load) -> Vec<f64> {
    let of = |load: &Load| results.each(load, BASE, |r| throughput(r, load));
    over(&of(&load.later()), &of(load))
}

/// Largest less smallest, over the mean.
pub(super) fn spread(values: &[f64]) -> f64 {
    let (least, largest) = range(values);
    (largest - least) / mean(values)
}

/// The smallest of the values; NaN for none.
pub(super) fn least(values: &[f64]) -> f64 {
    range(values).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_relative_to_the_mean() {
        assert_eq!(spread(&[1.0, 1.0]), 0.0);
        assert_eq!(spread(&[9.0, 11.0]), 0.2);
    }
}
