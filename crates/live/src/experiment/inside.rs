//! What happens inside of a guest that shares processors: compute tasks, agents and fio.

use super::look;
use crate::error::{LiveError, Result};
use crate::guest::Guest;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(600);
/// For an agent to start: a guest that takes longer is lost.
const START: Duration = Duration::from_secs(600);
/// The command of `seekway-guest` that moves tasks.
pub(super) const MIGRATE: &str = "migrate";

/// What the agent says of itself: a part of `seekway-guest status --format json`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct AgentReport {
    /// How it sees preemption.
    pub preemption: String,
    /// How it sees who waits for I/O.
    pub loads: String,
    /// How its monitors are scheduled.
    pub rank: String,
    /// It found nothing that is shared.
    pub inert: bool,
    /// Moves that it has made.
    pub moves: u64,
    /// Moves for which it had no worker.
    pub moves_dropped: u64,
    /// What its policy alone knows.
    pub metrics: BTreeMap<String, f64>,
    /// Time since it began.
    #[serde(default)]
    pub running_s: f64,
    /// Why its threads woke.
    #[serde(default)]
    pub vcpus: Vec<VcpuReport>,
}

/// What the agent says of one vCPU.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct VcpuReport {
    /// Slices that it has seen.
    pub slices: u64,
    /// How often its monitor woke since the agent began, by cause.
    pub wakeups: BTreeMap<String, u64>,
}

/// A guest with a compute task on each vCPU, which stand still at first.
pub(super) struct Computing {
    pub guest: Guest,
    /// The compute tasks' process ids, as words.
    compute: String,
}

impl Computing {
    pub fn new(mut guest: Guest, vcpus: u32) -> Result<Computing> {
        // sha256sum never comes to the end of zeros, and the kernel counts what it has read.
        let start = format!(
            "for d in /sys/block/vd*; do echo none >$d/queue/scheduler; done; \
             for n in $(seq 0 {}); do taskset -c $n sha256sum /dev/zero >/dev/null 2>&1 & \
             echo $!; kill -STOP $!; done",
            vcpus - 1
        );
        let said = guest.check(&start, PATIENCE)?;
        let compute = said.split_whitespace().collect::<Vec<_>>().join(" ");
        Ok(Computing { guest, compute })
    }

    pub fn run(&mut self, command: &str) -> Result<String> {
        self.guest.check(command, PATIENCE)
    }

    /// The compute tasks stand still.
    pub fn pause(&mut self) -> Result<()> {
        self.run(&format!("kill -STOP {}", self.compute)).map(drop)
    }

    /// The compute tasks go on.
    pub fn go_on(&mut self) -> Result<()> {
        self.run(&format!("kill -CONT {}", self.compute)).map(drop)
    }

    /// Starts `seekway-guest AGENT`. Returns when the shell command `at_work` succeeds.
    pub fn start(&mut self, agent: &str, args: &str, at_work: &str) -> Result<()> {
        let command = format!(
            "rm -f /tmp/{agent}.log; (exec seekway-guest {agent} {args} >/tmp/{agent}.log 2>&1) & \
             pid=$!; echo $pid >/tmp/{agent}.pid; \
             until {at_work}; do \
             kill -0 $pid || {{ cat /tmp/{agent}.log; exit 1; }}; sleep 0.05; done"
        );
        self.guest.check(&command, START).map(drop)
    }

    /// Ends it. Returns when it has put back what it changed.
    pub fn end(&mut self, agent: &str) -> Result<()> {
        self.run(&format!(
            "pid=$(cat /tmp/{agent}.pid); kill $pid || {{ cat /tmp/{agent}.log; exit 1; }}; \
             while kill -0 $pid 2>/dev/null; do sleep 0.05; done"
        ))
        .map(drop)
    }

    /// Starts the agent that moves tasks. Returns when it is at work.
    pub fn start_agent(&mut self, args: &str) -> Result<()> {
        self.start(MIGRATE, args, "seekway-guest status >/dev/null 2>&1")
    }

    /// Returns when it has put all masks back, with what it has done.
    pub fn end_agent(&mut self) -> Result<AgentReport> {
        let said = self.run("seekway-guest status --format json")?;
        self.end(MIGRATE)?;
        let wrong = |e| LiveError::Measured(format!("{}: status: {e}: {said}", self.guest.name()));
        serde_json::from_str(&said).map_err(wrong)
    }

    /// Starts fio with these arguments. Returns at once.
    pub fn start_fio(&mut self, args: &str) -> Result<()> {
        self.run(&format!("rm -f /tmp/fio.json; (exec {args} >/tmp/fio.log 2>&1) &")).map(drop)
    }

    /// What fio has measured, by `read` from its JSON, once it has ended.
    pub fn end_fio<T>(&mut self, read: fn(&Value) -> Option<T>) -> Result<T> {
        let said = self.run(
            "while pidof fio >/dev/null; do sleep 0.05; done; \
             cat /tmp/fio.json || cat /tmp/fio.log",
        )?;
        let wrong = || LiveError::Measured(format!("{}: fio said {said}", self.guest.name()));
        fio_json(&said).and_then(|json| read(&json)).ok_or_else(wrong)
    }

    /// Counters of the compute tasks (`/proc/PID/io`) and of the processes that the shell words
    /// `others` name (`/proc/PID/stat`) as of one moment, made figures by `of`.
    pub fn look<T>(&mut self, others: &str, of: impl Fn(&Seen) -> Option<T>) -> Result<T> {
        let command = format!(
            "cd /proc; set --; for p in {}; do set -- $@ $p/io; done; \
             for p in {others}; do set -- $@ $p/stat; done; cat uptime $@ uptime",
            self.compute
        );
        look::shortest(|| {
            let said = self.run(&command)?;
            let wrong = || LiveError::Measured(format!("{}: counts {said}", self.guest.name()));
            let seen = Seen::parse(&said);
            seen.and_then(|seen| Some((of(&seen)?, seen.look_s))).ok_or_else(wrong)
        })
    }
}

/// What a guest has counted.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Seen {
    /// The guest's time, in seconds.
    pub seconds: f64,
    /// The counters were read within so many seconds.
    pub look_s: f64,
    /// What all compute tasks have hashed, in MiB.
    pub mib: f64,
    /// The other processes: name, and processor time in seconds.
    pub cpu: Vec<(String, f64)>,
}

impl Seen {
    /// `uptime`, each `io`, each `stat`, and `uptime`.
    pub fn parse(said: &str) -> Option<Seen> {
        let mut seen = Seen::default();
        let mut times = Vec::new();
        for line in said.lines() {
            if let Some(bytes) = line.strip_prefix("rchar: ") {
                seen.mib += bytes.parse::<f64>().ok()? / f64::from(1 << 20);
            } else if let Some((head, _)) = line.rsplit_once(") ") {
                let (_, name) = head.split_once(" (")?;
                seen.cpu.push((name.into(), ticks(line)? as f64 / TICKS));
            } else if !line.contains(':') {
                times.push(line.split(' ').next()?.parse::<f64>().ok()?);
            }
        }
        let [first, last] = times[..] else { return None };
        (seen.seconds, seen.look_s) = ((first + last) / 2.0, last - first);
        Some(seen)
    }
}

/// Ticks of `/proc/PID/stat` in a second (`USER_HZ`).
pub(super) const TICKS: f64 = 100.0;

/// User's and system's time by proc(5): after the name, which may have spaces, the third field is
/// the first; wanted are the 14th and the 15th.
pub(super) fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11).map(str::parse::<u64>);
    Some(fields.next()?.ok()? + fields.next()?.ok()?)
}

/// fio's JSON, which may have a message before it.
pub(super) fn fio_json(said: &str) -> Option<Value> {
    serde_json::from_str(&said[said.find("\n{").map_or(0, |at| at + 1)..]).ok()
}
