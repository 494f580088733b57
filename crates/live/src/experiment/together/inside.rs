//! What happens inside of a guest: its application, its compute tasks and the agents.

use super::load::{Load, Work};
use crate::error::{LiveError, Result};
use crate::experiment::AgentReport;
use crate::experiment::inside::{Computing, MIGRATE, Seen};
use crate::guest::Guest;
use serde::Serialize;
use serde_json::Value;

/// The command of `seekway-guest` that gives tags.
const TAG: &str = "tag";

/// A guest with its application.
pub(super) struct Inside {
    pub computing: Computing,
    load: Load,
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
    /// Time by the guest's clock (`/proc/uptime`), in seconds.
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
    /// What compute tasks hashed, in MiB a second of the guest's time.
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
    pub(super) fn new(guest: Guest, load: Load, vcpus: u32) -> Result<Inside> {
        let mut computing = Computing::new(guest, vcpus)?;
        computing.run(load.prepare())?;
        Ok(Inside { computing, load, agents: Vec::new() })
    }

    pub(super) fn name(&self) -> &'static str {
        self.load.name()
    }

    /// Its application does I/O.
    pub(super) fn has_load(&self) -> bool {
        self.load.processes() > 0
    }

    /// The guest's page cache is emptied; inodes stay.
    pub(super) fn forget_cached(&mut self) -> Result<()> {
        self.computing.run("sync; echo 1 >/proc/sys/vm/drop_caches").map(drop)
    }

    /// Returns when it gives tags.
    pub(super) fn start_tags(&mut self, args: &str) -> Result<()> {
        self.agents.push(TAG);
        let args = format!("--verbose {args}");
        self.computing.start(TAG, &args, "grep -q ' tags as ' /tmp/tag.log")
    }

    /// Returns when it is at work.
    pub(super) fn start_agent(&mut self, args: &str) -> Result<()> {
        self.agents.push(MIGRATE);
        self.computing.start_agent(args)
    }

    /// Ends the agents that run. Returns when priorities and masks are as they were, with what
    /// the agent that moves tasks has done.
    pub(super) fn end_agents(&mut self) -> Result<Option<AgentReport>> {
        let mut report = None;
        for agent in std::mem::take(&mut self.agents) {
            match agent {
                MIGRATE => report = Some(self.computing.end_agent()?),
                agent => self.computing.end(agent)?,
            }
        }
        Ok(report)
    }

    /// The application starts and goes on until it is told to end. Returns at once.
    pub(super) fn start_load(&mut self, work: &Work) -> Result<()> {
        self.load.fio(work).map_or(Ok(()), |fio| self.computing.start_fio(&fio))
    }

    /// The application is to end.
    pub(super) fn interrupt_load(&mut self) -> Result<()> {
        // One process more looks after the others.
        let alive = self.load.processes() + 1;
        self.computing
            .run(&format!(
                "[ $(pidof fio | wc -w) -ge {alive} ] || {{ echo ended before its time; \
             cat /tmp/fio.log; exit 1; }}; killall -INT fio 2>/dev/null; true"
            ))
            .map(drop)
    }

    /// What the application has measured, once it has ended.
    pub(super) fn end_load(&mut self) -> Result<LoadFigures> {
        self.computing.end_fio(figures)
    }

    /// What the compute tasks and the agents have done, as of one moment.
    pub(super) fn progress(&mut self) -> Result<Progress> {
        let pid = |agent: &&str| format!("$(cat /tmp/{agent}.pid)");
        let pids: Vec<String> = self.agents.iter().map(pid).collect();
        let agents = &self.agents;
        self.computing.look(&pids.join(" "), |seen| counted(seen, agents))
    }
}

/// What was seen of the compute tasks and of these agents; `None` if it is not of as many.
fn counted(seen: &Seen, agents: &[&str]) -> Option<Progress> {
    let cpu = |agent: &str| {
        agents.iter().zip(&seen.cpu).find(|(name, _)| **name == agent).map_or(0.0, |(_, of)| of.1)
    };
    let Seen { seconds, look_s, mib, .. } = *seen;
    let progress = Progress { seconds, look_s, mib, tag_cpu: cpu(TAG), migrate_cpu: cpu(MIGRATE) };
    (seen.cpu.len() == agents.len()).then_some(progress)
}

/// What a load measured, from fio's JSON; `None` where it measured nothing.
fn figures(json: &Value) -> Option<LoadFigures> {
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
    use crate::experiment::inside::fio_json;

    #[test]
    fn tasks_and_agents_are_counted() {
        let cpu = [0.12, 0.22].map(|cpu| ("seekway-guest".into(), cpu)).into();
        let seen = Seen { seconds: 100.0, look_s: 0.02, mib: 4.0, cpu };
        let progress = counted(&seen, &[TAG, MIGRATE]).expect("of two");
        assert_eq!((progress.seconds, progress.look_s, progress.mib), (100.0, 0.02, 4.0));
        assert_eq!((progress.tag_cpu, progress.migrate_cpu), (0.12, 0.22));
        assert_eq!(counted(&seen, &[TAG]), None, "whose is the second?");
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
        let read = |said| super::figures(&fio_json(said)?);
        let figures = read(said).expect("fio's JSON");
        assert_eq!((figures.iops, figures.mib_s), (10.0, 1.0));
        assert_eq!((figures.mean_ms, figures.p99_ms, figures.busy), (2.0, 36.0, 0.04));
        for wrong in ["", "{\"jobs\": []}", &said.replace("10.0", "0.0")] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
