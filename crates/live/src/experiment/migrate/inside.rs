//! What happens inside of a guest: its readers, and what the guest counts of them, of its compute
//! tasks and of the agent.

use crate::error::{LiveError, Result};
use crate::experiment::inside::{Computing, Seen};
use serde_json::Value;
use std::time::Duration;

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

/// Times of reads, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Response {
    /// Arithmetic mean, as fio measures it.
    pub mean_ms: f64,
    /// One in a hundred takes longer.
    pub p99_ms: f64,
}

/// Start fio, which reads until it is told to end, and measures once this time is over.
/// Returns at once.
pub(super) fn start_readers(guest: &mut Computing, readers: u32, settle: Duration) -> Result<()> {
    guest.start_fio(&format!(
        "fio --name=reader --filename=/dev/vda --direct=1 --ioengine=psync --rw=randread --bs=4k \
         --numjobs={readers} --time_based --ramp_time={}ms --runtime=3600 --group_reporting \
         --output-format=json --output=/tmp/fio.json",
        settle.as_millis()
    ))
}

/// fio is to end.
pub(super) fn interrupt_readers(guest: &mut Computing) -> Result<()> {
    // Its processes end one after the other: one may have gone before it is told.
    guest.run("killall -INT fio 2>/dev/null; true").map(drop)
}

/// How often the agent's threads have gone to sleep so far, each to be woken once, and
/// when that was counted (seconds of the guest's time). None where no agent runs.
pub(super) fn agent_sleeps(guest: &mut Computing) -> Result<Option<(f64, u64)>> {
    let said = guest.run(
        "for p in $(pidof seekway-guest); do cat /proc/uptime; \
         cat /proc/$p/task/*/status | grep ^voluntary_ctxt_switches; done",
    )?;
    if said.trim().is_empty() {
        return Ok(None);
    }
    let wrong = || LiveError::Measured(format!("{}: switches {said}", guest.guest.name()));
    sleeps(&said).map(Some).ok_or_else(wrong)
}

/// All counters as of one moment.
pub(super) fn look(guest: &mut Computing) -> Result<Counts> {
    guest.look("$(pidof fio) $(pidof seekway-guest)", |seen| Some(Counts::of(seen)))
}

impl Counts {
    fn of(seen: &Seen) -> Counts {
        let (readers, agent): (Vec<_>, Vec<_>) = seen.cpu.iter().partition(|(of, _)| of == "fio");
        let cpu = |of: Vec<&(String, f64)>| of.iter().map(|(_, cpu)| cpu).sum();
        let Seen { seconds, mib: work_mib, .. } = *seen;
        Counts { seconds, work_mib, readers_cpu: cpu(readers), agent_cpu: cpu(agent) }
    }

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

/// `uptime`, and the switches of each thread.
fn sleeps(said: &str) -> Option<(f64, u64)> {
    let mut lines = said.lines();
    let at = lines.next()?.split(' ').next()?.parse().ok()?;
    let switches =
        lines.map(|line| line.rsplit(|c: char| c.is_whitespace()).next()?.parse::<u64>().ok());
    Some((at, switches.sum::<Option<u64>>()?))
}

/// The reads' times in fio's JSON; `None` where it has none.
pub(super) fn response(json: &Value) -> Option<Response> {
    let times = json.pointer("/jobs/0/read/clat_ns")?;
    let mean_ms = times.get("mean")?.as_f64()? / 1e6;
    let p99_ms = times.get("percentile")?.get("99.000000")?.as_f64()? / 1e6;
    Some(Response { mean_ms, p99_ms })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::inside::fio_json;

    #[test]
    fn counters_are_read() {
        let said = "100.10 50.00\nrchar: 1048576\nwchar: 0\nread_bytes: 0\nrchar: 3145728\n\
            71 (fio) S 1 71 1 0 -1 4194304 500 0 0 0 25 75 0 0 20 0 1 0 300\n\
            72 (seekway-guest) S 1 72 1 0 -1 4194304 500 0 0 0 10 2 0 0 20 0 9 0 300\n\
            100.12 50.00\n";
        let seen = Seen::parse(said).expect("proc(5)");
        let counts = Counts::of(&seen);
        assert_eq!((counts.work_mib, counts.readers_cpu, counts.agent_cpu), (4.0, 1.0, 0.12));
        assert!((counts.seconds - 100.11).abs() < 1e-9 && (seen.look_s - 0.02).abs() < 1e-9);
        for wrong in ["", "100.10 5.0\n", "1 1\nrchar: x\n1 1\n", "cat: 1/io: none\n"] {
            assert_eq!(Seen::parse(wrong), None, "{wrong}");
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
        let read = |said| response(&fio_json(said)?);
        assert_eq!(read(said), Some(Response { mean_ms: 2.0, p99_ms: 36.0 }));
        assert_eq!(read("{\"jobs\": []}"), None);
        assert_eq!(read(""), None);
    }
}
