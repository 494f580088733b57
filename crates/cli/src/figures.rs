//! From measurements to the report's figures.

use seekway_report::plot::{Axis, Figure, Histogram, Lines, Panels, Scatter, SeekBins, Series};
use seekway_sim::metrics::{SeekDistances, Times, ms};
use seekway_sim::{RunResult, VmResult};

/// A run that is drawn, by its name.
pub type Shown<'a> = (&'a str, &'a RunResult);

/// Points of a distribution's line.
const CDF_POINTS: usize = 200;
/// Bins of a bandwidth line.
const TIME_POINTS: usize = 60;

/// Where each VM's requests went over time, as in figure 1 of the Pregather paper.
pub fn places(result: &RunResult) -> Figure {
    let points = |vm: &VmResult| {
        let point = |&(at, lba, _): &(seekway_core::units::Instant, _, bool)| {
            let lba: seekway_core::units::Lba = lba;
            (at.as_secs_f64(), lba.get() as f64)
        };
        vm.scatter.points.iter().map(point).collect()
    };
    Scatter {
        x: Axis::time("arrival", "s"),
        y: Axis::linear("LBA", "sectors"),
        series: result.vms.iter().map(|vm| Series::new(&vm.name, points(vm))).collect(),
        panels: Panels::Auto,
    }
    .render()
}

/// Seek distances of each run, one panel a run.
pub fn seeks(runs: &[Shown<'_>]) -> Figure {
    let panel = |(name, run): &Shown<'_>| (name.to_string(), bins(&run.seeks_per_command));
    Histogram {
        label: "seek distance".into(),
        unit: "sectors".into(),
        series: runs.iter().map(panel).collect(),
    }
    .render()
}

fn bins(seeks: &SeekDistances) -> SeekBins {
    let mut bins = SeekBins::default();
    bins.record_n(0, seeks.zero);
    for n in 0..62 {
        // The middle of [2^n, 2^(n+1)) on a logarithmic scale.
        let middle = ((1u64 << n) as f64 * std::f64::consts::SQRT_2) as i64;
        bins.record_n(middle, seeks.forward[n]);
        bins.record_n(-middle, seeks.backward[n]);
    }
    bins
}

/// Response times of each run as cumulative distributions.
pub fn responses(runs: &[Shown<'_>]) -> Figure {
    let series = |(name, run): &Shown<'_>| Series::new(*name, distribution(&run.response));
    cdf(runs.iter().map(series).collect())
}

/// Response times of one VM in each run.
pub fn responses_of_vm(runs: &[Shown<'_>], vm: usize) -> Figure {
    let series = |(name, run): &Shown<'_>| {
        Some(Series::new(*name, distribution(&run.vms.get(vm)?.response)))
    };
    cdf(runs.iter().filter_map(series).collect())
}

fn cdf(series: Vec<Series>) -> Figure {
    let x = Axis::log("response time", "ms");
    Lines { x, y: Axis::nines("requests within it"), series }.render()
}

fn distribution(times: &Times) -> Vec<(f64, f64)> {
    let total = times.len().max(1) as f64;
    let mut seen = 0u64;
    let mut points: Vec<(f64, f64)> = times
        .counts()
        .map(|(ns, count)| {
            seen += count;
            (ms(ns), seen as f64 / total)
        })
        .collect();
    if points.len() > CDF_POINTS {
        // Keep what moves the line: equal steps in its height, and the tail whole.
        let mut kept = Vec::new();
        let mut last = f64::NEG_INFINITY;
        let step = 1.0 / CDF_POINTS as f64;
        for (n, &point) in points.iter().enumerate() {
            let tail_step = step * (1.0 - point.1).clamp(1e-4, 1.0);
            if n == 0 || n + 1 == points.len() || point.1 - last >= tail_step {
                kept.push(point);
                last = point.1;
            }
        }
        points = kept;
    }
    points
}

/// Bandwidth of one VM over time in each run.
pub fn bandwidth_of_vm(runs: &[Shown<'_>], vm: usize) -> Figure {
    let series =
        |(name, run): &Shown<'_>| Some(Series::new(*name, rates(&[run.vms.get(vm)?], run)));
    lines_over_time(runs.iter().filter_map(series).collect())
}

/// Total bandwidth of each run over time.
pub fn total_bandwidth(runs: &[Shown<'_>]) -> Figure {
    let series = |(name, run): &Shown<'_>| {
        let vms: Vec<&VmResult> = run.vms.iter().collect();
        Series::new(*name, rates(&vms, run))
    };
    lines_over_time(runs.iter().map(series).collect())
}

fn lines_over_time(series: Vec<Series>) -> Figure {
    let (x, y) = (Axis::time("time", "s"), Axis::linear("bandwidth", "MiB/s").from_zero());
    Lines { x, y, series }.render()
}

/// MiB/s of some VMs together, from the end of the time to settle on, in bins that divide the run
/// into TIME_POINTS parts at most.
fn rates(vms: &[&VmResult], result: &RunResult) -> Vec<(f64, f64)> {
    let (begin, end) = (result.began.as_secs_f64(), result.simulated.as_secs_f64());
    let Some(bin_s) = vms.iter().map(|v| v.bandwidth.bin.as_secs_f64()).reduce(f64::max) else {
        return Vec::new();
    };
    let width = bin_s * (end / TIME_POINTS as f64 / bin_s).ceil().max(1.0);
    let mut sums = vec![0.0; (end / width).ceil() as usize];
    for vm in vms {
        let own = vm.bandwidth.bin.as_secs_f64();
        for (n, &bytes) in vm.bandwidth.bytes.iter().enumerate() {
            let at = (n as f64 + 0.5) * own - begin;
            let at = (at >= 0.0).then_some((at / width) as usize);
            if let Some(sum) = at.and_then(|at| sums.get_mut(at)) {
                *sum += bytes as f64;
            }
        }
    }
    let rate = |(n, bytes): (usize, f64)| {
        // The last bin may be cut short by the end of the run.
        let span = width.min(end - n as f64 * width).max(width / 100.0);
        (begin + (n as f64 + 0.5) * width, bytes / span / f64::from(1 << 20))
    };
    sums.into_iter().enumerate().map(rate).collect()
}
