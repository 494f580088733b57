//! The agent's status: a file that is written at the start and each time that `seekway-guest
//! status` asks for it by SIGUSR1. So it costs nothing without readers, and users who may signal
//! the agent (root) may read it.

use super::clock;
use super::coordinator::View;
use super::shared::Shared;
use super::tasks::TaskView;
use super::wakeups::{Wakeups, WakeupsStatus};
use crate::procfs;
use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::VcpuView;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Samples of the agent's own time: one a second.
const SAMPLES_MAX: usize = 10;

/// The whole. JSON keys stay.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    pub pid: i32,
    /// When that started, in ticks after boot.
    pub start: u64,
    /// Counts how often this was written.
    pub serial: u64,
    /// Time since the agent began.
    pub running_s: f64,
    #[serde(flatten)]
    pub about: About,
    /// Scheduling of the monitors.
    pub rank: String,
    /// The policy has answered in time. Otherwise vCPUs and metrics are those of its last answer.
    pub answered: bool,
    /// No sharing was detected: loads are not read.
    pub inert: bool,
    /// Time of the agent, in per cent of one vCPU, since it began.
    pub cpu_percent: f64,
    /// `cpu_percent` of the last ten seconds.
    pub cpu_percent_lately: f64,
    /// Moves of tasks to other vCPUs, since the agent began.
    pub moves: u64,
    /// Moves that were not made because all workers of a vCPU were blocked.
    pub moves_dropped: u64,
    pub vcpus: Vec<VcpuStatus>,
    /// The tasks that are known: each did I/O in the last seconds, or was moved.
    pub tasks: Vec<TaskStatus>,
    /// Disks with fewer queues than there are vCPUs.
    pub narrow_disks: Vec<DiskStatus>,
    /// Metrics that only the policy knows.
    pub metrics: BTreeMap<String, f64>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct VcpuStatus {
    pub vcpu: usize,
    /// The vCPU runs, as far as is known.
    pub active: bool,
    /// The slice that it is expected to have.
    pub slice_ms: Option<f64>,
    /// Expected remainder of its slice.
    pub remaining_ms: Option<f64>,
    /// Slices of this vCPU that were seen since the agent began.
    pub slices: u64,
    /// Time for which it was away since the agent began, in per cent, as far as is known.
    pub away_percent: f64,
    /// Why its monitor woke, since the agent began.
    pub wakeups: WakeupsStatus,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TaskStatus {
    pub tid: i32,
    pub pid: i32,
    pub comm: String,
    /// Where it ran last.
    pub vcpu: usize,
    /// Time of its last window in which it waited for I/O, in per cent.
    pub io_percent: f64,
    /// Seconds from then until now.
    pub seen_s: f64,
    pub allowed: String,
    /// The task is confined to some of these just now.
    pub confined: bool,
    /// Number of moves.
    pub moves: u64,
    /// Why it is not moved, if it is not.
    pub left_alone: Option<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DiskStatus {
    pub disk: String,
    pub queues: usize,
}

/// The first thread's counters for the status.
#[derive(Debug)]
pub struct Meter {
    began: Instant,
    serial: u64,
    /// CPU time of the agent, sampled once a second.
    samples: VecDeque<(Instant, Duration)>,
}

/// Facts that hold while the agent runs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct About {
    /// The policy, as it was asked for.
    pub policy: String,
    /// Detector of preemption.
    pub preemption: String,
    /// Detector of waiting for I/O.
    pub loads: String,
    /// Better detectors, and why they do not work in this guest.
    pub passed_over: Vec<String>,
}

impl Meter {
    pub fn new(now: Instant) -> Meter {
        let samples = VecDeque::from([(now, cpu_time())]);
        Meter { began: now, serial: 0, samples }
    }

    /// Notes the agent's CPU time; called once a second.
    pub fn sample(&mut self, now: Instant) {
        if self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back((now, cpu_time()));
    }

    /// The status now, with `online` vCPUs; each call raises the serial number by one.
    pub fn status(
        &mut self,
        about: &About,
        shared: &Shared,
        (view, answered): (&View, bool),
        online: usize,
    ) -> Status {
        self.serial += 1;
        let (tasks, now) = (shared.tasks.view(), clock::now());
        let running = now.since(self.began);
        let oldest = self.samples.front().copied().unwrap_or((self.began, Duration::ZERO));
        let used = cpu_time();
        let percent = |used: Duration, span: Nanos| percent(used.as_nanos() as u64, span.get());
        Status {
            pid: std::process::id().cast_signed(),
            start: procfs::stat(std::process::id().cast_signed()).map_or(0, |stat| stat.start),
            serial: self.serial,
            running_s: running.as_secs_f64(),
            about: about.clone(),
            rank: shared.rank().map(|rank| rank.to_string()).unwrap_or_default(),
            answered,
            inert: view.windows.is_none(),
            cpu_percent: percent(used, running),
            cpu_percent_lately: percent(used.saturating_sub(oldest.1), now.since(oldest.0)),
            moves: shared.tasks.moves(),
            moves_dropped: shared.dropped.load(Relaxed),
            vcpus: vcpus(view, &shared.wakeups, running),
            tasks: tasks.into_iter().map(|task| task_status(task, now)).collect(),
            narrow_disks: narrow_disks(online),
            metrics: view.metrics.iter().map(|(name, value)| (name.to_string(), *value)).collect(),
        }
    }
}

fn vcpus(view: &View, wakeups: &[Wakeups], running: Nanos) -> Vec<VcpuStatus> {
    let status = |v: &VcpuView| VcpuStatus {
        vcpu: v.vcpu.index(),
        active: v.active,
        slice_ms: v.slice.map(Nanos::as_millis_f64),
        remaining_ms: v.remaining.map(Nanos::as_millis_f64),
        slices: v.slices,
        away_percent: percent(v.away.get(), running.get()),
        wakeups: wakeups[v.vcpu.index()].status(),
    };
    view.vcpus.iter().map(status).collect()
}

fn task_status(task: TaskView, now: Instant) -> TaskStatus {
    let (waited, window) = task.waited;
    TaskStatus {
        tid: task.tid,
        pid: task.pid,
        comm: task.comm.to_string(),
        vcpu: task.vcpu.index(),
        io_percent: percent(waited.get(), window.get()),
        seen_s: now.since(task.seen).as_secs_f64(),
        allowed: task.original.to_string(),
        confined: task.confined,
        moves: task.moves,
        left_alone: task.left_alone.map(str::to_string),
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    (part as f64 / whole.max(1) as f64 * 1000.0).round() / 10.0
}

fn narrow_disks(online: usize) -> Vec<DiskStatus> {
    let narrow = procfs::disk_queues().into_iter().filter(|(_, queues)| *queues < online);
    narrow.map(|(disk, queues)| DiskStatus { disk, queues }).collect()
}

/// Of all threads of this process.
fn cpu_time() -> Duration {
    Duration::from_nanos(clock::read(libc::CLOCK_PROCESS_CPUTIME_ID))
}

/// The text that `seekway-guest status` prints by default.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Status { pid, rank, about: About { policy, preemption, loads, passed_over }, .. } =
            self;
        writeln!(f, "agent {pid}, {:.0} s: policy {policy}", self.running_s)?;
        writeln!(f, "preemption by {preemption}, loads by {loads}, monitors {rank}")?;
        for why in passed_over {
            writeln!(f, "  not by {why}")?;
        }
        if !self.answered {
            writeln!(f, "no vCPU has answered in time: what is said of them is older")?;
        }
        let state = match self.inert {
            false => "vCPUs are shared",
            true if self.metrics.get("rests") == Some(&1.0) => {
                "rests: moves save less than they cost"
            }
            true => "inert: no vCPU is taken away",
        };
        writeln!(f, "{state}; {} moves, {} dropped", self.moves, self.moves_dropped)?;
        let (all, last) = (self.cpu_percent, self.cpu_percent_lately);
        writeln!(f, "own cost: {all} % of a vCPU since the start, {last} % in the last 10 s")?;
        for DiskStatus { disk, queues } in &self.narrow_disks {
            writeln!(
                f,
                "warning: {disk} has {queues} queues for {} vCPUs: completions of one queue come \
                 to a few vCPUs only, and wait while these are away (give the disk num-queues={})",
                self.vcpus.len(),
                self.vcpus.len()
            )?;
        }
        writeln!(f, "\nvCPU  state   slice ms  left ms  slices  away %  wake-ups/s")?;
        let ms = |ms: Option<f64>| ms.map_or("-".into(), |ms| format!("{ms:.1}"));
        for v in &self.vcpus {
            writeln!(
                f,
                "{:>4}  {:<6}  {:>8}  {:>7}  {:>6}  {:>6.1}  {:>10.1}",
                v.vcpu,
                if v.active { "runs" } else { "away" },
                ms(v.slice_ms),
                ms(v.remaining_ms),
                v.slices,
                v.away_percent,
                v.wakeups.sum() as f64 / self.running_s.max(1.0)
            )?;
        }
        writeln!(f, "\n   task  process  name             vCPU  I/O %    moves  allowed")?;
        for t in &self.tasks {
            let confined = if t.confined { ", confined to some" } else { "" };
            let why = t.left_alone.iter().map(|why| format!(", left alone: {why}"));
            writeln!(
                f,
                "{:>7}  {:>7}  {:<15}  {:>4}  {:>5.1}  {:>7}  {}{confined}{}",
                t.tid,
                t.pid,
                t.comm,
                t.vcpu,
                t.io_percent,
                t.moves,
                t.allowed,
                why.collect::<String>()
            )?;
        }
        Ok(())
    }
}
