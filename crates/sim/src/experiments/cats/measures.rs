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
    /// The paper's virtual drive likewise, direct and buffered, of what the paper ranks by.
    pub(super) predicted: Option<[[f64; 3]; 2]>,
}

const fn measure(
    name: &'static str,
    unit: &'static str,
    of: fn(&RunResult) -> f64,
    direct: [f64; 3],
    buffered: [f64; 3],
    predicted: Option<[[f64; 3]; 2]>,
) -> Measure {
    Measure { name, unit, of, direct, buffered, predicted }
}

/// Tables 2 and 3.
#[rustfmt::skip]
pub(super) static MEASURES: [Measure; 5] = [
    measure("mean service", "ms", service_ms, [1.96, 2.71, 1.39], [6.53, 7.41, 7.80],
        Some([[2.58, 3.24, 2.36], [7.15, 7.60, 8.57]])),
    measure("variance of service", "ms²", service_variance,
        [8.51, 9.76, 5.85], [11.13, 8.80, 17.62], None),
    measure("mean response", "ms", response_ms,
        [37.35, 59.87, 124.70], [114.91, 121.87, 179.17],
        Some([[53.79, 78.27, 117.13], [189.45, 198.33, 258.75]])),
    measure("variance of response", "ms²", response_variance,
        [6961.50, 561.15, 839_270.49], [8080.16, 3296.87, 35_349.39], None),
    measure("throughput", "sectors/ms", throughput, [8.19, 6.08, 2.19], [12.00, 12.04, 9.08],
        Some([[6.15, 5.06, 3.38], [11.44, 11.68, 8.82]])),
];

/// Those by which the paper ranks: mean service, mean response and throughput.
pub(super) static RANKED: [&Measure; 3] = [&MEASURES[0], &MEASURES[2], &MEASURES[4]];

impl Measure {
    /// Is it a rate? It falls when times grow.
    pub(super) fn is_rate(&self) -> bool {
        self.name == "throughput"
    }
}
