//! Result of one load on a server.

use hdrhistogram::Histogram;
use seekway_client::Load;
use std::time::Duration;

/// Result of one load.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Counted reads divided by the seconds in which they were counted.
    pub iops: f64,
    /// Bytes a second, in MiB.
    pub mib_per_s: f64,
    /// Half of the reads took no longer, microseconds.
    pub p50_us: f64,
    /// Mean time of a read, microseconds.
    pub mean_us: f64,
    /// 99 of a hundred took no longer, microseconds.
    pub p99_us: f64,
    /// CPU time that the server used for one read, microseconds, all its
    /// threads. To the system's tick of 10 ms, and so to about 1 %.
    pub server_cpu_us: f64,
}

impl Sample {
    /// From latencies in nanoseconds, the time that they were counted over and
    /// the server's CPU time in it.
    pub fn new(load: &Load, latencies: &Histogram<u64>, wall: Duration, cpu: Duration) -> Sample {
        let reads = latencies.len() as f64;
        let iops = reads / wall.as_secs_f64();
        Sample {
            iops,
            mib_per_s: iops * f64::from(load.block_bytes) / f64::from(1 << 20),
            p50_us: latencies.value_at_quantile(0.5) as f64 / 1e3,
            mean_us: latencies.mean() / 1e3,
            p99_us: latencies.value_at_quantile(0.99) as f64 / 1e3,
            server_cpu_us: cpu.as_secs_f64() * 1e6 / reads.max(1.0),
        }
    }
}
