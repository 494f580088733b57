//! What the paper measures of a run, and what its tables 2 and 3 say.

use super::super::metric::{
    response_ms, response_variance, service_ms, service_variance, throughput,
};
use crate::metrics::RunResult;

/// Requests done in a ms of the whole run.
fn rate(r: &RunResult) -> f64 {
    r.requests() as f64 / r.simulated.as_millis_f64()
}

/// Little's law backwards: the think time that a closed loop of `processes`
/// must have for this response at this rate (ms).
pub(super) fn think_ms(r: &RunResult, processes: u32) -> f64 {
    f64::from(processes) / rate(r) - response_ms(r)
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

const fn measure(
    name: &'static str,
    unit: &'static str,
    of: fn(&RunResult) -> f64,
    direct: [f64; 3],
    buffered: [f64; 3],
) -> Measure {
    Measure { name, unit, of, direct, buffered }
}

/// Tables 2 and 3, the columns of the real drive.
#[rustfmt::skip]
pub(super) static MEASURES: [Measure; 5] = [
    measure("mean service", "ms", service_ms, [1.96, 2.71, 1.39], [6.53, 7.41, 7.80]),
    measure("variance of service", "ms²", service_variance,
        [8.51, 9.76, 5.85], [11.13, 8.80, 17.62]),
    measure("mean response", "ms", response_ms,
        [37.35, 59.87, 124.70], [114.91, 121.87, 179.17]),
    measure("variance of response", "ms²", response_variance,
        [6961.50, 561.15, 839_270.49], [8080.16, 3296.87, 35_349.39]),
    measure("throughput", "sectors/ms", throughput, [8.19, 6.08, 2.19], [12.00, 12.04, 9.08]),
];
