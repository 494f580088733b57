//! What is measured, window by window.

use super::NoisyScene;
use hdrhistogram::Histogram;
use seekway_client::Load;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// What the rounds of one scene gave.
#[derive(Clone, Debug)]
pub struct NoisyFigures {
    pub scene: NoisyScene,
    pub rounds: Vec<NoisyRound>,
}

/// A window, or why there is none.
pub type Measured = std::result::Result<NoisyWindow, String>;

#[derive(Clone, Debug)]
pub struct NoisyRound {
    /// The quiet VM without the flood, at the round's beginning and at its end.
    pub quiet_alone: [Measured; 2],
    pub flood_alone: Measured,
    /// Both together, for each of the disk's servers.
    pub beside: Vec<Measured>,
}

/// One measurement of the quiet VM, of the flood, or of both.
#[derive(Clone, PartialEq, Debug)]
pub struct NoisyWindow {
    pub quiet: Option<VmSample>,
    pub flood: Option<VmSample>,
    /// How busy the host's processors were, 0 to 1.
    pub host_busy: f64,
    /// Of an emulated device.
    pub emulation: Option<Emulation>,
    /// The policy's own figures in the end, by name; none of QEMU's daemon.
    pub policy_metrics: BTreeMap<String, f64>,
}

/// Did the emulated device keep its times?
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Emulation {
    /// The factor on all times in the end.
    pub k: f64,
    pub commands: u64,
    /// Those of them whose real completion came after the model's.
    pub late: u64,
    /// By how much, together, in milliseconds.
    pub late_by_ms: f64,
}

/// What one VM got.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct VmSample {
    pub iops: f64,
    pub bytes_s: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

impl VmSample {
    pub(super) fn new(load: Load, latencies: &Histogram<u64>, wall: Duration) -> VmSample {
        let iops = latencies.len() as f64 / wall.as_secs_f64();
        VmSample {
            iops,
            bytes_s: iops * f64::from(load.block_bytes),
            p50_us: latencies.value_at_quantile(0.5) as f64 / 1e3,
            p99_us: latencies.value_at_quantile(0.99) as f64 / 1e3,
        }
    }
}
