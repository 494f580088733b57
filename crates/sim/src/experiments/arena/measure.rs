//! What a run is worth: the figures that the arena judges.

use super::Unit;
use crate::metrics::{RunResult, Times, VmResult, ms, per_second};
use seekway_policy::fairness::{jain, max_min_share};
use seekway_policy::stack::limit::Limits;
use seekway_policy::units::Nanos;

/// How a load is judged.
#[derive(Clone, PartialEq, Debug)]
pub struct Judging {
    /// The VM whose latency is judged, by number; if none, the one that comes off worst.
    pub quiet: Option<usize>,
    /// Is latency judged at all? Where weights say whose requests wait, it is not.
    pub latency: bool,
    /// What throughput is counted in.
    pub unit: Unit,
    /// Windows of Jain's index; none for a load that comes and goes.
    pub window: Option<Nanos>,
    /// Up to here nothing is measured.
    pub settle: Nanos,
    /// Are shares judged? Where promises say who gets what, they are not.
    pub shares: bool,
    /// The VMs' weights; those missing are 1.
    pub weights: Vec<f64>,
    /// What VMs were promised; those missing nothing.
    pub promises: Vec<Limits>,
}

/// What a VM has when the device is its own.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Alone {
    pub mib_s: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
}

impl Alone {
    /// Of a run with one VM.
    pub fn of(run: &RunResult) -> Alone {
        let vm = &run.vms[0];
        let times = response(vm);
        let at = |quantile| ms(times.value_at_quantile(quantile));
        Alone { mib_s: mib_s(vm, run), p99_ms: at(0.99), p999_ms: at(0.999) }
    }
}

/// A figure that policies are compared by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Measure {
    /// What the device moves.
    Throughput,
    /// The worst VM's part of its max-min share.
    WorstShare,
    /// 99 % of the judged VM's requests take no longer.
    P99,
    /// The same for 99.9 %.
    P999,
    /// Jain's index over windows.
    Jain,
    /// The part of a reservation that was had, or of 99 in 100 requests that were done within
    /// a target of latency; the least of all promises.
    Kept,
}

impl Measure {
    pub const COUNT: usize = 6;
    pub const ALL: [Measure; Measure::COUNT] = [
        Measure::Throughput,
        Measure::WorstShare,
        Measure::P99,
        Measure::P999,
        Measure::Jain,
        Measure::Kept,
    ];

    /// As in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Measure::Throughput => "throughput",
            Measure::WorstShare => "worst_share",
            Measure::P99 => "p99",
            Measure::P999 => "p999",
            Measure::Jain => "jain",
            Measure::Kept => "kept",
        }
    }

    /// How far `value` is from `best`: 0 for as good, up to 1.
    pub fn regret(self, value: f64, best: f64) -> f64 {
        let part = match self {
            Measure::P99 | Measure::P999 => best / value,
            _ => value / best,
        };
        // Where nobody got anything, nobody did worse.
        if part.is_finite() { (1.0 - part).clamp(0.0, 1.0) } else { 0.0 }
    }

    /// The better of two values.
    pub fn better(self, a: f64, b: f64) -> f64 {
        match self {
            Measure::P99 | Measure::P999 => a.min(b),
            _ => a.max(b),
        }
    }
}

/// What a run is worth; the mean of several where there are several seeds.
#[derive(Clone, PartialEq, Debug)]
pub struct Figures {
    /// By [`Measure::ALL`]; latencies as factors of what the VM has alone, or in ms where
    /// that is not known.
    pub values: [Option<f64>; Measure::COUNT],
    /// Share of the time in which the policy kept the device idle with work queued.
    pub withheld: f64,
    /// Reads and writes completed, of all VMs together.
    pub requests: f64,
    /// Was a VM's load over before the run was? Its figures are then of another load.
    pub ended_early: bool,
}

impl Figures {
    pub fn value(&self, measure: Measure) -> Option<f64> {
        self.values[measure as usize]
    }

    /// The mean of the runs with several seeds, at least one.
    pub fn mean(runs: &[Figures]) -> Figures {
        let count = runs.len() as f64;
        let mean = |of: &dyn Fn(&Figures) -> f64| runs.iter().map(of).sum::<f64>() / count;
        let value = |measure: Measure| {
            let known = runs.iter().all(|run| run.value(measure).is_some());
            known.then(|| mean(&|run| run.value(measure).unwrap_or(0.0)))
        };
        Figures {
            values: Measure::ALL.map(value),
            withheld: mean(&|run| run.withheld),
            requests: mean(&|run| run.requests),
            ended_early: runs.iter().any(|run| run.ended_early),
        }
    }
}

/// The figures of a run. `alone` is what each VM has alone, where that is known.
pub fn figures(judging: &Judging, run: &RunResult, alone: Option<&[Alone]>) -> Figures {
    let throughput = match judging.unit {
        Unit::MibS => run.mib_s(),
        Unit::Iops => run.iops(),
    };
    let latency = judging.latency.then(|| latency(judging, run, alone));
    let progress = Progress::new(judging, run, alone);
    let window = judging.window.filter(|_| judging.shares);
    Figures {
        values: [
            Some(throughput),
            progress.worst_share().filter(|_| judging.shares),
            latency.map(|(p99, _)| p99),
            latency.map(|(_, p999)| p999),
            window.and_then(|window| progress.jain(judging.settle, window)),
            kept(judging, run),
        ],
        withheld: run.holds.idle.as_secs_f64() / (run.simulated + judging.settle).as_secs_f64(),
        requests: run.requests() as f64,
        ended_early: run.vms.iter().any(|vm| vm.ended.is_some()),
    }
}

/// The least part of what was promised to anybody that was kept, 0 to 1.
fn kept(judging: &Judging, run: &RunResult) -> Option<f64> {
    let of_vm = |(vm, limits): (&VmResult, &Limits)| {
        let part = |reserved: u64, got: f64| (reserved > 0).then_some(got / reserved as f64);
        let per_s = |count: u64| per_second(count as f64, run.simulated);
        let within = limits.latency.map(|target| {
            let times = response(vm);
            let late = times.len() - times.count_between(0, target.get());
            (1.0 - late as f64 / times.len().max(1) as f64) / 0.99
        });
        let parts = [
            part(limits.reserve.iops, per_s(vm.requests)),
            part(limits.reserve.bytes_per_s, per_s(vm.bytes)),
            within,
        ];
        parts.into_iter().flatten().reduce(f64::min)
    };
    let promised = run.vms.iter().zip(&judging.promises).filter_map(of_vm);
    promised.reduce(f64::min).map(|part| part.min(1.0))
}

/// 99 and 99.9 % of the quiet VM's requests, else of the VM that comes off worst: all
/// requests together would speak for the one that is served most. Factors of what the VM
/// has alone, in ms where that is not known.
fn latency(judging: &Judging, run: &RunResult, alone: Option<&[Alone]>) -> (f64, f64) {
    let of = |(n, vm): (usize, &VmResult)| {
        let times = response(vm);
        let at = |quantile| ms(times.value_at_quantile(quantile));
        let alone = alone.and_then(|alone| alone.get(n));
        let (p99, p999) = alone.map_or((1.0, 1.0), |alone| (alone.p99_ms, alone.p999_ms));
        (at(0.99) / p99, at(0.999) / p999)
    };
    let judged = |n: usize, vm: &VmResult| match judging.quiet {
        Some(quiet) => n == quiet,
        None => vm.requests + vm.unfinished > 0,
    };
    let vms = run.vms.iter().enumerate().filter(|&(n, vm)| judged(n, vm)).map(of);
    vms.fold((0.0, 0.0), |worst, vm| (vm.0.max(worst.0), vm.1.max(worst.1)))
}

/// The VM's response times. A request that the end found waiting has taken as long
/// already: a VM that is starved looks no better for it.
fn response(vm: &VmResult) -> Times {
    let mut times = vm.response.clone();
    if vm.unfinished > 0 {
        times.saturating_record(vm.oldest.get());
    }
    times
}

/// Over the whole run, whether the VM was served to its end or not.
fn mib_s(vm: &VmResult, run: &RunResult) -> f64 {
    per_second(vm.bytes as f64 / f64::from(1 << 20), run.simulated)
}

/// VMs that read or write, each measured by what it has alone: a VM at 0.5 runs at
/// half its speed, whatever its requests cost.
struct Progress<'a> {
    run: &'a RunResult,
    /// VM, what it has alone in MiB/s, weight.
    vms: Vec<(&'a VmResult, f64, f64)>,
}

impl<'a> Progress<'a> {
    fn new(judging: &Judging, run: &'a RunResult, alone: Option<&[Alone]>) -> Progress<'a> {
        let weight = |n: usize| judging.weights.get(n).copied().unwrap_or(1.0);
        let alone = |n: usize| match alone {
            Some(alone) => alone.get(n).map_or(0.0, |alone| alone.mib_s),
            None => 0.0,
        };
        let vms = run.vms.iter().enumerate().map(|(n, vm)| (vm, alone(n), weight(n)));
        // Who moves nothing alone (discards) has no share.
        Progress { run, vms: vms.filter(|(_, alone, _)| *alone > 0.0).collect() }
    }

    /// What each got of a max-min fair division of all that was got, the least of these.
    fn worst_share(&self) -> Option<f64> {
        if self.vms.len() < 2 {
            return None;
        }
        let got: Vec<f64> =
            self.vms.iter().map(|(vm, alone, _)| mib_s(vm, self.run) / alone).collect();
        let weights: Vec<f64> = self.vms.iter().map(|(.., weight)| *weight).collect();
        // More than alone is luck, such as a neighbour's read-ahead.
        max_min_share(&vec![1.0; got.len()], &got, &weights).map(|share| share.min(1.0))
    }

    /// The mean of Jain's index over the whole windows after `settle`, of progress over weight,
    /// where a VM with more than its max-min share of the window counts as having that: what
    /// it has above, nobody lacks.
    fn jain(&self, settle: Nanos, window: Nanos) -> Option<f64> {
        if self.vms.len() < 2 {
            return None;
        }
        let end_ns = (settle + self.run.simulated).get();
        let count = (end_ns - settle.get()) / window.get();
        let mut indices = Vec::new();
        for n in 0..count {
            let from_ns = settle.get() + n * window.get();
            let got = |(vm, alone, _): &(&VmResult, f64, f64)| {
                let series = &vm.bandwidth;
                let bin = series.bin.get();
                let (first, last) = (from_ns / bin, (from_ns + window.get()).div_ceil(bin));
                let bins = series.bytes.iter().take(last as usize).skip(first as usize);
                bins.sum::<u64>() as f64 / alone
            };
            indices.extend(self.jain_of(&self.vms.iter().map(got).collect::<Vec<_>>()));
        }
        (!indices.is_empty()).then(|| indices.iter().sum::<f64>() / indices.len() as f64)
    }

    /// Jain's index of what each VM got, over its weight and at most the level that an even
    /// division of all that was got would have.
    fn jain_of(&self, got: &[f64]) -> Option<f64> {
        let weights: f64 = self.vms.iter().map(|(.., weight)| weight).sum();
        let level = got.iter().sum::<f64>() / weights;
        let capped =
            |(got, (.., weight)): (&f64, &(&VmResult, f64, f64))| (got / weight).min(level);
        jain(&got.iter().zip(&self.vms).map(capped).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regret_is_the_distance_from_the_best() {
        let close = |found: f64, expected: f64| (found - expected).abs() < 1e-12;
        assert!(close(Measure::Throughput.regret(75.0, 100.0), 0.25));
        assert!(close(Measure::P99.regret(4.0, 1.0), 0.75));
        assert!(close(Measure::Jain.regret(1.0, 1.0), 0.0));
        // Nobody got anything; only one got nothing.
        assert!(close(Measure::WorstShare.regret(0.0, 0.0), 0.0));
        assert!(close(Measure::WorstShare.regret(0.0, 0.5), 1.0));
        assert_eq!(Measure::P999.better(1.0, 2.0), 1.0);
        assert_eq!(Measure::Throughput.better(1.0, 2.0), 2.0);
        assert!(Measure::ALL.iter().enumerate().all(|(n, &measure)| measure as usize == n));
    }
}
