//! What happens inside of a guest: its compute tasks, its readers, the agent, and what the
//! guest counts of them.

use crate::error::{LiveError, Result};
use crate::experiment::look;
use crate::guest::Guest;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

/// A guest with a compute task on each vCPU, which stand still at first.
pub(super) struct Inside {
    guest: Guest,
    /// The compute tasks' process ids, as words.
    compute: String,
}

/// What a guest has counted, or counts in a window.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Counts {
    /// The guest's time, in seconds.
    pub seconds: f64,
    /// What all compute tasks have hashed, in MiB.
    pub work_mib: f64,
    /// Processor time of the readers, in seconds, as the guest accounts it: with the time
    /// for which a vCPU was away while they were on it.
    pub readers_cpu: f64,
    /// Of the agent, likewise.
    pub agent_cpu: f64,
}

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
    /// Wake-ups by cause.
    pub wakeups: BTreeMap<String, u64>,
}

/// Times of reads, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Response {
    /// On average.
    pub mean_ms: f64,
    /// One in a hundred takes longer.
    pub p99_ms: f64,
}

impl Inside {
    pub(super) fn new(mut guest: Guest, vcpus: u32) -> Result<Inside> {
        // sha256sum never comes to the end of zeros, and the kernel counts what it has read.
        let start = format!(
            "echo none >/sys/block/vda/queue/scheduler; \
             for n in $(seq 0 {}); do taskset -c $n sha256sum /dev/zero >/dev/null 2>&1 & \
             echo $!; kill -STOP $!; done",
            vcpus - 1
        );
        let said = guest.check(&start, PATIENCE)?;
        let compute = said.split_whitespace().collect::<Vec<_>>().join(" ");
        Ok(Inside { guest, compute })
    }

    /// QEMU's first thread.
    pub(super) fn qemu(&self) -> i32 {
        self.guest.pid().cast_signed()
    }

    fn run(&mut self, command: &str) -> Result<String> {
        self.guest.check(command, PATIENCE)
    }

    /// The compute tasks stand still.
    pub(super) fn pause(&mut self) -> Result<()> {
        self.run(&format!("kill -STOP {}", self.compute)).map(drop)
    }

    /// The compute tasks go on.
    pub(super) fn go_on(&mut self) -> Result<()> {
        self.run(&format!("kill -CONT {}", self.compute)).map(drop)
    }

    /// Returns when it is at work.
    pub(super) fn start_agent(&mut self, args: &str) -> Result<()> {
        self.run(&format!(
            "(exec seekway-guest migrate {args} >/tmp/agent.log 2>&1) & pid=$!; echo $pid >/tmp/agent; \
             until seekway-guest status >/dev/null 2>&1; do \
             kill -0 $pid || {{ cat /tmp/agent.log; exit 1; }}; sleep 0.05; done"
        ))
        .map(drop)
    }

    /// Returns when it has put all masks back, with what it has done.
    pub(super) fn end_agent(&mut self) -> Result<AgentReport> {
        let said = self.run(
            "seekway-guest status --format json; pid=$(cat /tmp/agent); \
             kill $pid || { cat /tmp/agent.log; exit 1; }; \
             while kill -0 $pid 2>/dev/null; do sleep 0.05; done",
        )?;
        let wrong = |e| LiveError::Measured(format!("{}: status: {e}: {said}", self.guest.name()));
        serde_json::from_str(&said).map_err(wrong)
    }

    /// Start fio, which reads until it is told to end, and measures once this time is over.
    /// Returns at once.
    pub(super) fn start_readers(&mut self, readers: u32, settle: Duration) -> Result<()> {
        self.run(&format!(
            "rm -f /tmp/fio.json; (exec fio --name=reader --filename=/dev/vda --direct=1 \
             --ioengine=psync --rw=randread --bs=4k --numjobs={readers} --time_based \
             --ramp_time={}ms --runtime=3600 --group_reporting --output-format=json \
             --output=/tmp/fio.json >/tmp/fio.log 2>&1) &",
            settle.as_millis()
        ))
        .map(drop)
    }

    /// fio is to end.
    pub(super) fn interrupt_readers(&mut self) -> Result<()> {
        // Its processes end one after the other: one may have gone before it is told.
        self.run("killall -INT fio 2>/dev/null; true").map(drop)
    }

    /// What fio has measured, once it has ended.
    pub(super) fn end_readers(&mut self) -> Result<Response> {
        let said = self.run(
            "while pidof fio >/dev/null; do sleep 0.05; done; \
             cat /tmp/fio.json || cat /tmp/fio.log",
        )?;
        let wrong = || LiveError::Measured(format!("{}: fio said {said}", self.guest.name()));
        response(&said).ok_or_else(wrong)
    }

    /// How often the agent's threads have gone to sleep so far, each to be woken once, and
    /// when that was counted (seconds of the guest's time). None where no agent runs.
    pub(super) fn agent_sleeps(&mut self) -> Result<Option<(f64, u64)>> {
        let said = self.run(
            "for p in $(pidof seekway-guest); do cat /proc/uptime; \
             cat /proc/$p/task/*/status | grep ^voluntary_ctxt_switches; done",
        )?;
        if said.trim().is_empty() {
            return Ok(None);
        }
        let wrong = || LiveError::Measured(format!("{}: switches {said}", self.guest.name()));
        sleeps(&said).map(Some).ok_or_else(wrong)
    }

    /// All counters as of one moment.
    pub(super) fn look(&mut self) -> Result<Counts> {
        let command = format!(
            "cd /proc; set --; for p in {}; do set -- $@ $p/io; done; \
             for p in $(pidof fio) $(pidof seekway-guest); do set -- $@ $p/stat; done; \
             cat uptime $@ uptime",
            self.compute
        );
        look::shortest(|| {
            let said = self.run(&command)?;
            let wrong = || LiveError::Measured(format!("{}: counts {said}", self.guest.name()));
            parse(&said).ok_or_else(wrong)
        })
    }
}

impl Counts {
    /// From this look to a later one.
    pub(super) fn until(&self, later: &Counts) -> Result<Counts> {
        let counts = Counts {
            seconds: later.seconds - self.seconds,
            work_mib: later.work_mib - self.work_mib,
            readers_cpu: later.readers_cpu - self.readers_cpu,
            agent_cpu: later.agent_cpu - self.agent_cpu,
        };
        let grew = counts.seconds > 0.0 && counts.readers_cpu >= 0.0 && counts.agent_cpu >= 0.0;
        if grew && counts.work_mib >= 0.0 {
            return Ok(counts);
        }
        let what = format!("a reader or the agent has ended in the window: {counts:?}");
        Err(LiveError::Measured(what))
    }
}

/// Ticks of `/proc/PID/stat` in a second (`USER_HZ`).
const TICKS: f64 = 100.0;

/// `uptime`, each `io`, each `stat`, and `uptime`; and how far the two are apart.
fn parse(said: &str) -> Option<(Counts, f64)> {
    let mut counts = Counts::default();
    let mut times = Vec::new();
    for line in said.lines() {
        if let Some(bytes) = line.strip_prefix("rchar: ") {
            counts.work_mib += bytes.parse::<f64>().ok()? / f64::from(1 << 20);
        } else if let Some((head, rest)) = line.rsplit_once(") ") {
            let (_, name) = head.split_once(" (")?;
            // From the third field on; the 14th and 15th are user's and system's time.
            let ticks = rest.split(' ').skip(11).take(2).map(str::parse::<f64>);
            let cpu = ticks.sum::<std::result::Result<f64, _>>().ok()? / TICKS;
            match name {
                "fio" => counts.readers_cpu += cpu,
                _ => counts.agent_cpu += cpu,
            }
        } else if !line.contains(':') {
            times.push(line.split(' ').next()?.parse::<f64>().ok()?);
        }
    }
    let [first, last] = times[..] else { return None };
    counts.seconds = (first + last) / 2.0;
    Some((counts, last - first))
}

/// `uptime`, and the switches of each thread.
fn sleeps(said: &str) -> Option<(f64, u64)> {
    let mut lines = said.lines();
    let at = lines.next()?.split(' ').next()?.parse().ok()?;
    let switches =
        lines.map(|line| line.rsplit(|c: char| c.is_whitespace()).next()?.parse::<u64>().ok());
    Some((at, switches.sum::<Option<u64>>()?))
}

/// From fio's JSON, which may have a message before it.
fn response(said: &str) -> Option<Response> {
    let json: Value =
        serde_json::from_str(&said[said.find("\n{").map_or(0, |at| at + 1)..]).ok()?;
    let times = json.pointer("/jobs/0/read/clat_ns")?;
    let mean_ms = times.get("mean")?.as_f64()? / 1e6;
    let p99_ms = times.get("percentile")?.get("99.000000")?.as_f64()? / 1e6;
    Some(Response { mean_ms, p99_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read() {
        let said = "100.10 50.00\nrchar: 1048576\nwchar: 0\nread_bytes: 0\nrchar: 3145728\n\
            71 (fio) S 1 71 1 0 -1 4194304 500 0 0 0 25 75 0 0 20 0 1 0 300\n\
            72 (seekway-guest) S 1 72 1 0 -1 4194304 500 0 0 0 10 2 0 0 20 0 9 0 300\n\
            100.12 50.00\n";
        let (counts, within) = parse(said).expect("proc(5)");
        assert_eq!((counts.work_mib, counts.readers_cpu, counts.agent_cpu), (4.0, 1.0, 0.12));
        assert!((counts.seconds - 100.11).abs() < 1e-9 && (within - 0.02).abs() < 1e-9);
        for wrong in ["", "100.10 5.0\n", "1 1\nrchar: x\n1 1\n", "cat: 1/io: none\n"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        let later = Counts { seconds: 101.0, work_mib: 8.0, readers_cpu: 2.0, agent_cpu: 0.12 };
        let between = counts.until(&later).expect("all grew");
        assert_eq!((between.work_mib, between.readers_cpu, between.agent_cpu), (4.0, 1.0, 0.0));
        assert!(later.until(&counts).is_err());
    }

    #[test]
    fn switches_of_all_threads_are_added() {
        let said = "7.50 3.00\nvoluntary_ctxt_switches:\t10\nvoluntary_ctxt_switches:\t32\n";
        assert_eq!(sleeps(said), Some((7.5, 42)));
        for wrong in ["", "x 1\n", "7.5 3\nvoluntary_ctxt_switches:\tx\n"] {
            assert_eq!(sleeps(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn responses_are_read_from_what_fio_says() {
        let said = "fio: terminating on signal 2\n{\"jobs\": [{\"read\": {\"clat_ns\": \
            {\"mean\": 2000000.0, \"percentile\": {\"99.000000\": 36000000}}}}]}";
        assert_eq!(response(said), Some(Response { mean_ms: 2.0, p99_ms: 36.0 }));
        assert_eq!(response("{\"jobs\": []}"), None);
        assert_eq!(response(""), None);
    }
}
