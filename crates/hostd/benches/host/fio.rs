//! fio, as a client of NBD or on a file without any server.

use crate::load::Sample;
use seekway_client::{Load, Result, Span};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Loads the NBD server at a socket. `cpu` returns its CPU time up to now.
pub fn nbd(
    socket: &Path,
    load: Load,
    span: Span,
    cpu: impl Fn() -> Result<Duration>,
) -> Result<Sample> {
    let before = cpu()?;
    let uri = format!("--uri=nbd+unix:///x?socket={}", socket.display());
    let mut sample = run(["--ioengine=nbd", &uri], load, span)?;
    let used = cpu()?.saturating_sub(before);
    // The warm-up's share is not counted.
    let share = span.counted.as_secs_f64() / (span.warm_up + span.counted).as_secs_f64();
    let counted = sample.iops * span.counted.as_secs_f64();
    sample.server_cpu_us = used.as_secs_f64() * share * 1e6 / counted.max(1.0);
    Ok(sample)
}

/// Read a file by io_uring, as one process does without a server. The CPU time is fio's.
pub fn raw(file: &Path, load: Load, span: Span) -> Result<Sample> {
    run(["--ioengine=io_uring", &format!("--filename={}", file.display())], load, span)
}

fn run(target: [&str; 2], load: Load, span: Span) -> Result<Sample> {
    let order = if load.sequential { "read" } else { "randread" };
    let output = Command::new("fio")
        .args(["--name=bench", "--thread", "--time_based", "--readonly"])
        .args(["--output-format=json", "--randrepeat=1", "--randseed=1"])
        .args(["--norandommap=1", "--unlink=0"])
        .args(target)
        .arg(format!("--rw={order}"))
        .arg(format!("--bs={}", load.block_bytes))
        .arg(format!("--iodepth={}", load.depth))
        .arg(format!("--ramp_time={}ms", span.warm_up.as_millis()))
        .arg(format!("--runtime={}ms", span.counted.as_millis()))
        .output()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => "fio is missing: apt-get install fio".to_owned(),
            _ => format!("fio: {error}"),
        })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let fail = |what: &str| {
        let errors = String::from_utf8_lossy(&output.stderr);
        format!("fio: {what}\n{errors}{text}")
    };
    if !output.status.success() {
        return Err(fail(&output.status.to_string()));
    }
    // Notes may come before the object.
    let start = text.find('{').ok_or_else(|| fail("no JSON"))?;
    let json: Value =
        serde_json::from_str(&text[start..]).map_err(|error| fail(&error.to_string()))?;
    let job = &json["jobs"][0];
    let number = |path: &str| job.pointer(path).and_then(Value::as_f64);
    let all = || {
        let iops = number("/read/iops")?;
        let cpu_percent = number("/usr_cpu")? + number("/sys_cpu")?;
        Some(Sample {
            iops,
            mib_per_s: number("/read/bw_bytes")? / f64::from(1 << 20),
            p50_us: number("/read/clat_ns/percentile/50.000000")? / 1e3,
            mean_us: number("/read/clat_ns/mean")? / 1e3,
            p99_us: number("/read/clat_ns/percentile/99.000000")? / 1e3,
            server_cpu_us: cpu_percent * 1e4 / iops.max(1.0),
        })
    };
    all().ok_or_else(|| fail("a figure is missing"))
}
