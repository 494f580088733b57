//! What the paper measures of a run, and what its tables 2 and 3 say.

use crate::metrics::{RunResult, Times};

/// Mean service time, from the later of dispatch and the completion before (ms).
pub(super) fn service_ms(r: &RunResult) -> f64 {
    r.service.mean() / 1e6
}

/// Mean service time from dispatch (ms): with two commands outstanding it
/// counts the wait for the one before.
pub(super) fn service_from_dispatch_ms(r: &RunResult) -> f64 {
    r.service_from_dispatch.mean() / 1e6
}

/// Mean response time (ms).
pub(super) fn response_ms(r: &RunResult) -> f64 {
    r.response.mean() / 1e6
}

fn variance_ms2(times: &Times) -> f64 {
    let stdev_ms = times.stdev() / 1e6;
    stdev_ms * stdev_ms
}

/// Variance of the response times (ms²).
pub(super) fn response_variance(r: &RunResult) -> f64 {
    variance_ms2(&r.response)
}

/// Variance of the service times (ms²).
pub(super) fn service_variance(r: &RunResult) -> f64 {
    variance_ms2(&r.service)
}

/// Sectors moved in a ms of the whole run.
pub(super) fn throughput(r: &RunResult) -> f64 {
    r.bytes() as f64 / 512.0 / r.simulated.as_millis_f64()
}

/// Requests done in a ms of the whole run.
fn rate(r: &RunResult) -> f64 {
    r.requests() as f64 / r.simulated.as_millis_f64()
}

/// Little's law backwards: the think time that a closed loop of `processes`
/// must have for this response at this rate (ms).
pub(super) fn think_ms(r: &RunResult, processes: u32) -> f64 {
    f64::from(processes) / rate(r) - response_ms(r)
}

/// A percentile of the response times (ms).
pub(super) fn percentile_ms(r: &RunResult, percent: f64) -> f64 {
    r.response.value_at_percentile(percent) as f64 / 1e6
}

/// A figure of the device's own; NaN where it has none.
pub(super) fn device_metric(r: &RunResult, name: &str) -> f64 {
    let found = r.device_metrics.iter().find(|(n, _)| *n == name);
    found.map_or(f64::NAN, |m| m.1)
}

/// Share of the commands that read which the drive's cache served, in percent;
/// of a stream that it was reading as they came too.
pub(super) fn hits_percent(r: &RunResult) -> f64 {
    let stream = device_metric(r, "stream_hits");
    let hits = device_metric(r, "cache_hits") + if stream.is_nan() { 0.0 } else { stream };
    100.0 * hits / device_metric(r, "reads")
}

/// One of the figures of tables 2 and 3.
pub(super) struct Measure {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) of: fn(&RunResult) -> f64,
    /// The real drive: cats, deadline, cfq.
    pub(super) direct: [f64; 3],
    pub(super) buffered: [f64; 3],
}

/// Tables 2 and 3, the columns of the real drive.
pub(super) static MEASURES: [Measure; 5] = [
    Measure {
        name: "mean service",
        unit: "ms",
        of: service_ms,
        direct: [1.96, 2.71, 1.39],
        buffered: [6.53, 7.41, 7.80],
    },
    Measure {
        name: "variance of service",
        unit: "ms²",
        of: service_variance,
        direct: [8.51, 9.76, 5.85],
        buffered: [11.13, 8.80, 17.62],
    },
    Measure {
        name: "mean response",
        unit: "ms",
        of: response_ms,
        direct: [37.35, 59.87, 124.70],
        buffered: [114.91, 121.87, 179.17],
    },
    Measure {
        name: "variance of response",
        unit: "ms²",
        of: response_variance,
        direct: [6961.50, 561.15, 839_270.49],
        buffered: [8080.16, 3296.87, 35_349.39],
    },
    Measure {
        name: "throughput",
        unit: "sectors/ms",
        of: throughput,
        direct: [8.19, 6.08, 2.19],
        buffered: [12.00, 12.04, 9.08],
    },
];
