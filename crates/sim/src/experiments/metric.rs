//! The figures of a run that several experiments judge.

use crate::metrics::RunResult;

/// Sum of the VMs' mean bandwidths, each over the VM's own time (MiB/s): what
/// the Pregather paper calls total bandwidth.
pub(super) fn bandwidth(r: &RunResult) -> f64 {
    r.vms.iter().map(crate::metrics::VmResult::mib_s).sum()
}

/// When application number `app` was done, in seconds: NaN if it never was.
pub(super) fn app_time(r: &RunResult, app: usize) -> f64 {
    let finished = r.apps.get(app).and_then(|a| a.finished);
    finished.map_or(f64::NAN, |t| t.as_secs_f64())
}

fn metric(metrics: &[(&'static str, f64)], name: &str) -> f64 {
    metrics.iter().find(|(n, _)| *n == name).map_or(f64::NAN, |m| m.1)
}

/// A figure of the policy's own; NaN where it has none.
pub(super) fn policy_metric(r: &RunResult, name: &str) -> f64 {
    metric(&r.policy_metrics, name)
}

/// Mean service time, from the later of dispatch and the completion before (ms).
pub(super) fn service_ms(r: &RunResult) -> f64 {
    r.service.mean() / 1e6
}

/// Mean response time (ms).
pub(super) fn response_ms(r: &RunResult) -> f64 {
    r.response.mean() / 1e6
}

/// The longest response time (s).
pub(super) fn worst_response_s(r: &RunResult) -> f64 {
    r.response.max() as f64 / 1e9
}

/// What a command carries (KiB).
pub(super) fn kib_per_command(r: &RunResult) -> f64 {
    r.bytes() as f64 / 1024.0 / r.stats.commands as f64
}

/// Share of the commands that begin where the head stands, in percent.
pub(super) fn zero_seeks_percent(r: &RunResult) -> f64 {
    100.0 * r.seeks_per_command.zero_share()
}

/// Waits for a request that the policy began.
pub(super) fn waits(r: &RunResult) -> f64 {
    r.holds.tried as f64
}
