//! Sequential processes in one real guest, under several ways of reading ahead:
//! the VIO-prefetching paper's vio-procs. The host's cache and prefetcher are the
//! daemon's, the disk an emulated solid-state drive, the processes fio's, and
//! their tags those that `seekway-guest tag` gives them.
//!
//! The guest boots once. Each row reads a part of the disk that no other row
//! reads, so that neither the guest's page cache nor the host's has it.

use super::figures::HostCpu;
use crate::daemon::Daemon;
use crate::error::{At, LiveError, Result};
use crate::guest::{Accelerator, Guest, GuestSpec};
use crate::image::GuestImage;
use crate::shipped::Shipped;
use seekway_hostd::control::{EmulationReport, HostReport, Request, UsageReport};
use serde::Serialize;
use serde_json::Value;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

const DISK: &str = "vm0";
/// What each row has of it: more than is read in a window at the drive's speed.
const AREA_BYTES: u64 = 6 << 30;
/// From the readers' start to the beginning of the window in which they are
/// measured: four of the paper's intervals. The simulator's runs have the same.
pub const PROCS_SETTLE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(600);
/// The tools, the agent, and a page cache.
const MEMORY_MB: u32 = 768;
const CPUS: u32 = 2;

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ProcsRun {
    /// Processes that read at the same time, at least one.
    pub processes: u32,
    /// The host's prefetcher with its parameters.
    pub prefetch: String,
    /// The agent gives tags.
    pub tagged: bool,
    /// The guest's own read-ahead.
    pub read_ahead_kb: u32,
}

/// How to run them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcsOptions {
    /// The `seekway` program, whose `serve` is run.
    pub program: PathBuf,
    /// Path of the `seekway-guest` program, which runs in the guest.
    pub agent: PathBuf,
    /// The rows of the experiment, in the order in which they are measured.
    pub runs: Vec<ProcsRun>,
    /// The emulated device, as `serve --emulate` takes it.
    pub device: String,
    /// Bytes of the host's cache.
    pub cache_bytes: u64,
    /// Length of each window, at least a second.
    pub window: Duration,
    /// What runs the guest.
    pub accelerator: Accelerator,
}

/// What a row gave.
#[derive(Clone, Debug)]
pub struct ProcsFigures {
    pub run: ProcsRun,
    /// What the processes read in the window, by their own count, in MiB a second.
    pub mib_s: f64,
    /// What the guest's disk and the cache did, from start to end of the processes.
    pub usage: UsageReport,
    /// Tags that the daemon told apart.
    pub tags: usize,
    /// How busy the host's processors were, 0 to 1.
    pub host_busy: f64,
    /// How busy the guest's processors were, 0 to 1.
    pub guest_busy: f64,
    /// Commands of the emulated drive.
    pub commands: u64,
    /// Those of them whose real completion came after the drive's.
    pub late: u64,
}

/// Run all rows. `progress` is told what happens next.
///
/// # Errors
/// Whatever goes wrong with daemon, guest or readers.
pub fn run_procs(
    options: &ProcsOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<ProcsFigures>> {
    progress("kernel and initramfs");
    let image = GuestImage::prepare()?;
    let mut stage = Stage::new(&image, options, progress)?;
    let mut figures = Vec::new();
    for (number, run) in (0..).zip(&options.runs) {
        let tags = if run.tagged { ", tags" } else { "" };
        progress(&format!("{} processes, {}{tags}", run.processes, run.prefetch));
        figures.push(stage.measure(run, number * AREA_BYTES, options)?);
    }
    drop(stage.guest);
    stage.daemon.stop()?;
    Ok(figures)
}

struct Stage {
    guest: Guest,
    daemon: Daemon,
    /// Folder of the image; fields are dropped in order, so it goes last.
    _dir: TempDir,
}

impl Stage {
    fn new(
        image: &GuestImage,
        options: &ProcsOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Stage> {
        let dir = tempfile::Builder::new().prefix("seekway-live-").tempdir();
        let dir = dir.at("create a directory in", &std::env::temp_dir())?;
        let path = dir.path().join("vm0.img");
        // Sparse: what is read are zeros, in the emulated drive's time.
        let file = File::create(&path).at("create", &path)?;
        file.set_len(options.runs.len() as u64 * AREA_BYTES).at("size", &path)?;
        let args = [
            "--emulate".into(),
            options.device.clone(),
            "--policy".into(),
            "noop".into(),
            "--cache".into(),
            format!("{}KiB", options.cache_bytes >> 10),
            "--disk".into(),
            format!("{DISK}={},lba=0", path.display()),
        ];
        let daemon = Daemon::start(&options.program, dir.path(), &args)?;
        let agent = Shipped::new(&options.agent, "seekway-guest", dir.path())?;
        let spec = GuestSpec { cpus: CPUS, memory_mb: MEMORY_MB, ..GuestSpec::new(DISK) };
        let spec =
            GuestSpec { accelerator: options.accelerator, extra: agent.args().into(), ..spec };
        progress("a guest boots");
        let mut guest = Guest::start(image, &spec.disk(daemon.socket(DISK)))?;
        guest.wait_ready()?;
        agent.install(&mut guest)?;
        guest.check("echo none >/sys/block/vda/queue/scheduler", PATIENCE)?;
        Ok(Stage { guest, daemon, _dir: dir })
    }

    fn measure(
        &mut self,
        run: &ProcsRun,
        area: u64,
        options: &ProcsOptions,
    ) -> Result<ProcsFigures> {
        let prefetcher = run.prefetch.clone();
        self.daemon.ask(&Request::Prefetch { prefetcher, device: None })?;
        if run.tagged {
            self.guest.check(START_AGENT, PATIENCE)?;
        }
        let cpu = HostCpu::now();
        let before = self.daemon.status()?;
        let said = self.guest.check(&read(run, area, options.window), PATIENCE + options.window)?;
        let host_busy = cpu.busy_since();
        let after = self.daemon.status()?;
        if run.tagged {
            self.guest.check(END_AGENT, PATIENCE)?;
        }
        let wrong = || LiveError::Measured(format!("{DISK}: the readers said {said}"));
        let (bytes_s, guest_busy) = parse(&said).ok_or_else(wrong)?;
        let usage = difference(&usage(&before)?, &usage(&after)?);
        Ok(ProcsFigures {
            run: run.clone(),
            mib_s: bytes_s / f64::from(1 << 20),
            usage,
            tags: tags_between(&before, &after),
            host_busy,
            guest_busy,
            commands: emulated(&after, |e| e.commands) - emulated(&before, |e| e.commands),
            late: emulated(&after, |e| e.late) - emulated(&before, |e| e.late),
        })
    }
}

/// Returns when the agent looks for readers.
const START_AGENT: &str = "rm -f /tmp/agent.log; \
    (exec seekway-guest tag --match fio --interval 20ms --verbose >/tmp/agent.log 2>&1) & \
    echo $! >/tmp/agent; until grep -q ' tags as ' /tmp/agent.log; do sleep 0.1; done";
const END_AGENT: &str =
    "kill $(cat /tmp/agent); while kill -0 $(cat /tmp/agent) 2>/dev/null; do sleep 0.1; done";

/// Reads as the paper's processes do, 64 KiB at a time through the page cache.
fn read(run: &ProcsRun, area: u64, window: Duration) -> String {
    let (settle, window) = (PROCS_SETTLE.as_secs(), window.as_secs().max(1));
    let each = AREA_BYTES / u64::from(run.processes);
    format!(
        "echo {} >/sys/block/vda/queue/read_ahead_kb; echo 3 >/proc/sys/vm/drop_caches; \
         head -n 1 /proc/stat; fio --name=reader --filename=/dev/vda --rw=read --bs=64k \
         --ioengine=psync --numjobs={} --group_reporting --offset={area} \
         --offset_increment={each} --size={each} --time_based --ramp_time={settle} \
         --runtime={window} --output-format=json --output=/tmp/fio.json && \
         head -n 1 /proc/stat && cat /tmp/fio.json",
        run.read_ahead_kb, run.processes
    )
}

/// Bytes a second, and the share of its processors' time that the guest used.
fn parse(said: &str) -> Option<(f64, f64)> {
    let mut cpu = said.lines().filter(|l| l.starts_with("cpu "));
    let (first, last) = (HostCpu::parse(cpu.next()?), HostCpu::parse(cpu.next()?));
    let json: Value = serde_json::from_str(&said[said.find('{')?..]).ok()?;
    let bytes_s = json.pointer("/jobs/0/read/bw_bytes")?.as_f64()?;
    Some((bytes_s, first.busy_until(&last)))
}

pub(super) fn usage(report: &HostReport) -> Result<UsageReport> {
    let disks = report.devices.iter().flat_map(|d| &d.disks);
    let usage = disks.filter_map(|d| d.cache.as_ref()).map(|c| c.usage).next();
    usage.ok_or_else(|| LiveError::Daemon("status: no cache".into()))
}

/// Tags under which something was read between two reports.
pub(super) fn tags_between(before: &HostReport, after: &HostReport) -> usize {
    let reads = |report: &HostReport| -> Vec<(u16, u64)> {
        let disks = report.devices.iter().flat_map(|d| &d.disks);
        let processes = disks.filter_map(|d| d.cache.as_ref()).flat_map(|c| &c.processes);
        processes.filter_map(|p| Some((p.tag?, p.usage.reads))).collect()
    };
    let earlier = reads(before);
    reads(after).iter().filter(|now| !earlier.contains(now)).count()
}

pub(super) fn emulated(report: &HostReport, count: fn(&EmulationReport) -> u64) -> u64 {
    report.devices.iter().filter_map(|d| d.emulated.as_ref()).map(count).sum()
}

/// What happened between two reports. What is prefetched and unused at the end
/// counts as unused.
pub(super) fn difference(before: &UsageReport, after: &UsageReport) -> UsageReport {
    let read_bytes = after.read_bytes - before.read_bytes;
    let prefetched_bytes = after.prefetched_bytes - before.prefetched_bytes;
    let used_bytes = after.used_bytes - before.used_bytes;
    let dropped_bytes = after.dropped_bytes - before.dropped_bytes;
    let unused = prefetched_bytes.saturating_sub(used_bytes + dropped_bytes);
    let ratio = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
    UsageReport {
        reads: after.reads - before.reads,
        read_bytes,
        hit_bytes: after.hit_bytes - before.hit_bytes,
        late_bytes: after.late_bytes - before.late_bytes,
        missed_bytes: after.missed_bytes - before.missed_bytes,
        prefetched_bytes,
        used_bytes,
        wasted_bytes: after.wasted_bytes - before.wasted_bytes,
        dropped_bytes,
        promoted: after.promoted - before.promoted,
        accuracy: ratio(used_bytes.min(read_bytes), read_bytes),
        cost: ratio(unused, read_bytes + unused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_readers_say_is_read() {
        let said = "cpu  100 0 100 800 0 0 0 0 0 0\ncpu  250 0 250 900 100 0 0 0 0 0\n\
                    {\"jobs\": [{\"read\": {\"bw_bytes\": 1048576}}]}";
        assert_eq!(parse(said), Some((1_048_576.0, 0.6)));
        assert_eq!(parse("cpu  1 0 1 1\ncpu  1 0 1 1\n{\"jobs\": []}"), None);
        assert_eq!(parse("cpu  1 0 1 1\n"), None);
    }
}
