//! What happens inside of a guest: its application, its compute tasks and the agents.

use super::host;
use super::load::{Load, Work};
use crate::error::{LiveError, Result};
use crate::experiment::{AgentReport, look};
use crate::guest::Guest;
use serde::Serialize;
use serde_json::Value;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);
/// For an agent to start: a guest that takes longer is lost.
const START: Duration = Duration::from_secs(60);
/// The agents, as `seekway-guest` names them.
const TAG: &str = "tag";
const MIGRATE: &str = "migrate";

/// A guest with a compute task on each vCPU, which stand still at first.
pub(super) struct Inside {
    guest: Guest,
    load: Load,
    /// The compute tasks' process ids, as words.
    compute: String,
    /// The agents that run.
    agents: Vec<&'static str>,
}

/// What an application did, by its own count.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct LoadFigures {
    /// Reads and writes a second.
    pub iops: f64,
    pub mib_s: f64,
    /// Of a read or write as the application sees it, in milliseconds.
    pub mean_ms: f64,
    /// One in a hundred takes longer.
    pub p99_ms: f64,
    /// Processor time of each of its processes, 0 to 1, as the guest accounts it: a vCPU's
    /// absence counts for who was on it.
    pub busy: f64,
}

/// What compute tasks and agents have done, or do in a window.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Progress {
    /// The guest's time.
    pub seconds: f64,
    /// The counters were read within so many seconds, at the beginning and at the end of a window:
    /// `seconds` may be wrong by as much.
    pub look_s: f64,
    /// What all compute tasks have hashed.
    pub mib: f64,
    /// Processor time of `seekway-guest tag`, in seconds, as the guest accounts it.
    pub tag_cpu: f64,
    /// Of `seekway-guest migrate`, likewise.
    pub migrate_cpu: f64,
}

impl Progress {
    /// A second.
    pub fn mib_s(&self) -> f64 {
        self.mib / self.seconds
    }

    /// From this look to a later one.
    pub(super) fn until(&self, later: &Progress) -> Result<Progress> {
        let done = Progress {
            seconds: later.seconds - self.seconds,
            look_s: self.look_s.max(later.look_s),
            mib: later.mib - self.mib,
            tag_cpu: later.tag_cpu - self.tag_cpu,
            migrate_cpu: later.migrate_cpu - self.migrate_cpu,
        };
        if done.seconds > 0.0
            && [done.mib, done.tag_cpu, done.migrate_cpu].iter().all(|d| *d >= 0.0)
        {
            return Ok(done);
        }
        let what = format!("a compute task or an agent has ended in the window: {done:?}");
        Err(LiveError::Measured(what))
    }
}

impl Inside {
    pub(super) fn new(mut guest: Guest, load: Load, vcpus: u32) -> Result<Inside> {
        guest.check(load.prepare(), PATIENCE)?;
        // sha256sum never comes to the end of zeros, and the kernel counts what it has read.
        let start = format!(
            "for d in /sys/block/vd*; do echo none >$d/queue/scheduler; done; \
             for n in $(seq 0 {}); do taskset -c $n sha256sum /dev/zero >/dev/null 2>&1 & \
             echo $!; kill -STOP $!; done",
            vcpus - 1
        );
        let said = guest.check(&start, PATIENCE)?;
        let compute = said.split_whitespace().collect::<Vec<_>>().join(" ");
        Ok(Inside { guest, load, compute, agents: Vec::new() })
    }

    pub(super) fn name(&self) -> &'static str {
        self.load.name()
    }

    /// QEMU's.
    pub(super) fn pid(&self) -> u32 {
        self.guest.pid()
    }

    /// Its application does I/O.
    pub(super) fn has_load(&self) -> bool {
        self.load.processes() > 0
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

    /// The guest's page cache is emptied; inodes stay.
    pub(super) fn forget_cached(&mut self) -> Result<()> {
        self.run("sync; echo 1 >/proc/sys/vm/drop_caches").map(drop)
    }

    /// Returns when it gives tags.
    pub(super) fn start_tags(&mut self, args: &str) -> Result<()> {
        self.start(TAG, &format!("--verbose {args}"), "grep -q ' tags as ' /tmp/tag.log")
    }

    /// Returns when it is at work.
    pub(super) fn start_agent(&mut self, args: &str) -> Result<()> {
        self.start(MIGRATE, args, "seekway-guest status >/dev/null 2>&1")
    }

    fn start(&mut self, agent: &'static str, args: &str, at_work: &str) -> Result<()> {
        self.agents.push(agent);
        let command = format!(
            "rm -f /tmp/{agent}.log; (exec seekway-guest {agent} {args} >/tmp/{agent}.log 2>&1) & \
             pid=$!; echo $pid >/tmp/{agent}.pid; \
             until {at_work}; do \
             kill -0 $pid || {{ cat /tmp/{agent}.log; exit 1; }}; sleep 0.05; done"
        );
        self.guest.check(&command, START).map(drop)
    }

    /// Returns when all priorities are as they were.
    pub(super) fn end_tags(&mut self) -> Result<()> {
        self.end(TAG)
    }

    /// Returns when it has put all masks back, with what it has done.
    pub(super) fn end_agent(&mut self) -> Result<AgentReport> {
        let said = self.run("seekway-guest status --format json")?;
        self.end(MIGRATE)?;
        let wrong = |e| LiveError::Measured(format!("{}: status: {e}: {said}", self.name()));
        serde_json::from_str(&said).map_err(wrong)
    }

    fn end(&mut self, agent: &str) -> Result<()> {
        self.agents.retain(|running| *running != agent);
        self.run(&format!(
            "pid=$(cat /tmp/{agent}.pid); kill $pid || {{ cat /tmp/{agent}.log; exit 1; }}; \
             while kill -0 $pid 2>/dev/null; do sleep 0.05; done"
        ))
        .map(drop)
    }

    /// The application starts and goes on until it is told to end. Returns at once.
    pub(super) fn start_load(&mut self, work: &Work) -> Result<()> {
        let Some(fio) = self.load.fio(work) else { return Ok(()) };
        self.run(&format!("rm -f /tmp/fio.json; (exec {fio} >/tmp/fio.log 2>&1) &")).map(drop)
    }

    /// The application is to end.
    pub(super) fn interrupt_load(&mut self) -> Result<()> {
        // One process more looks after the others.
        let alive = self.load.processes() + 1;
        self.run(&format!(
            "[ $(pidof fio | wc -w) -ge {alive} ] || {{ echo ended before its time; \
             cat /tmp/fio.log; exit 1; }}; killall -INT fio 2>/dev/null; true"
        ))
        .map(drop)
    }

    /// What the application has measured, once it has ended.
    pub(super) fn end_load(&mut self) -> Result<LoadFigures> {
        let said = self.run(
            "while pidof fio >/dev/null; do sleep 0.05; done; \
             cat /tmp/fio.json || cat /tmp/fio.log",
        )?;
        let wrong = || LiveError::Measured(format!("{}: fio said {said}", self.name()));
        figures(&said).ok_or_else(wrong)
    }

    /// What the compute tasks and the agents have done, as of one moment.
    pub(super) fn progress(&mut self) -> Result<Progress> {
        let command = format!(
            "cd /proc; set --; for p in {}; do set -- $@ $p/io; done; \
             for a in {}; do set -- $@ $(cat /tmp/$a.pid)/stat; done; cat uptime $@ uptime",
            self.compute,
            self.agents.join(" ")
        );
        look::shortest(|| {
            let said = self.run(&command)?;
            let wrong = || LiveError::Measured(format!("{}: counts {said}", self.name()));
            counted(&said, &self.agents).map(|seen| (seen, seen.look_s)).ok_or_else(wrong)
        })
    }
}

/// `uptime`, each compute task's `io`, each agent's `stat`, and `uptime`.
fn counted(said: &str, agents: &[&str]) -> Option<Progress> {
    let mut progress = Progress::default();
    let mut agents = agents.iter();
    let mut times = Vec::new();
    for line in said.lines() {
        if let Some(bytes) = line.strip_prefix("rchar: ") {
            progress.mib += bytes.parse::<f64>().ok()? / f64::from(1 << 20);
        } else if line.contains(") ") {
            let cpu = host::parse(line)? as f64 / host::TICKS;
            match *agents.next()? {
                TAG => progress.tag_cpu = cpu,
                _ => progress.migrate_cpu = cpu,
            }
        } else if !line.contains(':') {
            times.push(line.split(' ').next()?.parse::<f64>().ok()?);
        }
    }
    let [first, last] = times[..] else { return None };
    (progress.seconds, progress.look_s) = ((first + last) / 2.0, last - first);
    agents.next().is_none().then_some(progress)
}

/// From fio's JSON, which may have a message before it.
fn figures(said: &str) -> Option<LoadFigures> {
    let json = &said[said.find("\n{").map_or(0, |at| at + 1)..];
    let json: Value = serde_json::from_str(json).ok()?;
    let job = json.pointer("/jobs/0")?;
    let mixed = job.get("mixed")?;
    let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_f64);
    let times = mixed.get("clat_ns")?;
    let figures = LoadFigures {
        iops: number(mixed, "iops")?,
        mib_s: number(mixed, "bw_bytes")? / f64::from(1 << 20),
        mean_ms: number(times, "mean")? / 1e6,
        p99_ms: number(times.get("percentile")?, "99.000000")? / 1e6,
        busy: (number(job, "usr_cpu")? + number(job, "sys_cpu")?) / 100.0,
    };
    (figures.iops > 0.0).then_some(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_and_agents_are_counted() {
        let stat = |ticks| format!("7 (seekway-guest) S 1 7 1 0 -1 4 5 0 0 0 {ticks} 2 0 0 20 0 9");
        let said = format!(
            "100.10 50.00\nrchar: 1048576\nwchar: 0\nrchar: 3145728\n{}\n{}\n100.12 50.00\n",
            stat(10),
            stat(20)
        );
        let progress = counted(&said, &[TAG, MIGRATE]).expect("proc(5)");
        assert!((progress.seconds - 100.11).abs() < 1e-9);
        assert!((progress.look_s - 0.02).abs() < 1e-9);
        assert_eq!((progress.mib, progress.tag_cpu, progress.migrate_cpu), (4.0, 0.12, 0.22));
        assert_eq!(counted(&said, &[TAG]), None, "whose is the second?");
        for wrong in ["", "100.10 5.0\n", "1 1\nrchar: x\n1 1\n", "cat: 1/io: none\n"] {
            assert_eq!(counted(wrong, &[]), None, "{wrong}");
        }
        let later = Progress { seconds: progress.seconds + 2.0, mib: 14.0, ..progress };
        let later = Progress { look_s: 0.5, ..later };
        let window = progress.until(&later).expect("it grew");
        assert_eq!((window.mib_s(), window.look_s), (5.0, 0.5));
        assert!(later.until(&progress).is_err());
    }

    #[test]
    fn what_fio_says_is_read() {
        let said = "fio: terminating on signal 2\n{\"jobs\": [{\"usr_cpu\": 1.5, \"sys_cpu\": 2.5, \
            \"mixed\": {\"iops\": 10.0, \"bw_bytes\": 1048576, \"clat_ns\": {\"mean\": 2000000.0, \
            \"percentile\": {\"99.000000\": 36000000}}}}]}";
        let figures = figures(said).expect("fio's JSON");
        assert_eq!((figures.iops, figures.mib_s), (10.0, 1.0));
        assert_eq!((figures.mean_ms, figures.p99_ms, figures.busy), (2.0, 36.0, 0.04));
        for wrong in ["", "{\"jobs\": []}", &said.replace("10.0", "0.0")] {
            assert_eq!(super::figures(wrong), None, "{wrong}");
        }
    }
}
