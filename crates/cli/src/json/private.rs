//! The keys of `compare --fair-to private`.

use serde::Serialize;

/// A VM's disk beside its private disk.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PrivateVm {
    /// Factor by which the private disk is slower than the run's.
    pub slow: u32,
    /// Throughput on it: of the VM's applications if it has any, else of its requests.
    pub mib_s: f64,
    /// Of the response times of this disk.
    pub p99_ms: f64,
    /// Throughput in the run over that, at least 1 if the VM has 0.98 of its demand; null if it
    /// moves nothing on its private disk.
    pub progress: Option<f64>,
    /// The p99 of response times in the run over that on the private disk; null if that is 0.
    pub p99_over_private: Option<f64>,
}

/// The progress of all VMs.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PrivateRun {
    /// Of the VM with the least; null if no VM has any.
    pub least_progress: Option<f64>,
    /// Its name.
    pub least_progress_vm: Option<String>,
    /// The geometric mean of the VMs'.
    pub mean_progress: Option<f64>,
}
