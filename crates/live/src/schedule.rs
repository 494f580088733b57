//! The host's own schedule: on which processor each of some threads ran, and when, and
//! who woke whom, as the kernel's tracer (tracefs) records it in a place of its own
//! beside other users of the tracer.

mod threads;
mod trace;
mod tracefs;

pub use trace::{Recording, Run, Wake};

use crate::error::{At, LiveError, Result};
use std::fs;
use std::io;
use std::time::Duration;
use threads::Threads;
use tracefs::Instance;

const EVENTS: [&str; 2] = ["events/sched/sched_switch", "events/sched/sched_waking"];
/// For each processor. An event has 60 bytes or so, and there are some 10,000 a second.
const BUFFER_KIB: u32 = 16 << 10;

/// A recorder of the threads that it was made for. Dropping it takes it away.
#[derive(Debug)]
pub struct Recorder {
    instance: Instance,
    threads: Threads,
    /// When it was started last.
    from: Duration,
}

impl Recorder {
    /// Record these threads, once [`start`](Recorder::start) is called. Each gets a signal that
    /// threads ignore (SIGURG); none may be stopped.
    ///
    /// # Errors
    /// The kernel has no tracer, or this is not root, or a thread has ended.
    pub fn new(tids: &[i32]) -> Result<Recorder> {
        let instance = Instance::new().map_err(|e| no_tracer(&e))?;
        let threads = Threads::find(&instance, tids)?;
        let recorder = Recorder { instance, threads, from: Duration::ZERO };
        // CLOCK_MONOTONIC.
        recorder.write("trace_clock", "mono")?;
        recorder.write("buffer_size_kb", &BUFFER_KIB.to_string())?;
        recorder.write("set_event_pid", &recorder.threads.numbers().join(" "))?;
        for event in EVENTS {
            recorder.write(&format!("{event}/enable"), "1")?;
        }
        Ok(recorder)
    }

    /// Forget what was recorded, and begin.
    ///
    /// # Errors
    /// The tracer refuses.
    pub fn start(&mut self) -> Result<()> {
        self.write("trace", "")?;
        self.from = now();
        self.write("tracing_on", "1")
    }

    /// End, and return what happened since the start.
    ///
    /// # Errors
    /// The tracer refuses, or had not the place for all of it.
    pub fn stop(&self) -> Result<Recording> {
        self.write("tracing_on", "0")?;
        let to = now();
        let lost = self.lost()?;
        if lost > 0 {
            let what = format!("{lost} events of the schedule lost: record for a shorter time");
            return Err(LiveError::Measured(what));
        }
        let path = self.instance.path("trace");
        let text = fs::read(&path).at("read", &path)?;
        let text = String::from_utf8_lossy(&text);
        let recording = trace::parse(&text, self.from, to).map_err(LiveError::Measured)?;
        Ok(self.threads.as_we_name_them(recording))
    }

    /// Events that found no place, of all processors.
    fn lost(&self) -> Result<u64> {
        let folder = self.instance.path("per_cpu");
        let mut lost = 0;
        for entry in fs::read_dir(&folder).at("list", &folder)? {
            let path = entry.at("list", &folder)?.path().join("stats");
            let stats = fs::read_to_string(&path).at("read", &path)?;
            let counts = stats.lines().filter_map(|line| line.split_once("overrun: "));
            lost += counts.filter_map(|(_, n)| n.trim().parse::<u64>().ok()).sum::<u64>();
        }
        Ok(lost)
    }

    fn write(&self, file: &str, what: &str) -> Result<()> {
        write(&self.instance, file, what)
    }
}

fn write(instance: &Instance, file: &str, what: &str) -> Result<()> {
    let path = instance.path(file);
    fs::write(&path, what).at("write", &path)
}

/// CLOCK_MONOTONIC, as the tracer is told to use.
fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec, which the kernel fills; the clock exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

fn no_tracer(error: &io::Error) -> LiveError {
    LiveError::Measured(format!(
        "tracefs: {error}: the schedule is recorded by the kernel's tracer, which needs root and \
         Linux 5.2 or a mounted tracefs (`mount -t tracefs tracefs /sys/kernel/tracing`)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_thread_is_seen_to_sleep() {
        // SAFETY: gettid has no arguments and cannot fail.
        let tid = unsafe { libc::gettid() };
        let mut recorder = match Recorder::new(&[tid]) {
            Ok(recorder) => recorder,
            Err(e) => return seekway_testing::skip(e),
        };
        recorder.start().expect("the tracer starts");
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(2));
        }
        let recording = recorder.stop().expect("the tracer stops");
        let runs = recording.runs.iter().filter(|r| r.tid == tid);
        assert!(runs.count() >= 3, "{recording:?}");
        let wakes = recording.wakes.iter().filter(|w| w.woken == tid);
        assert!(wakes.count() >= 3, "{recording:?}");
        // A recorder in use is not removed by the next, and one that is done with removes itself.
        let on = recorder.instance.path("tracing_on");
        drop(Recorder::new(&[]).expect("a second recorder"));
        assert!(on.exists());
        let again = fs::read_dir(on.with_file_name("")).expect("the instance").count();
        assert!(again > 0);
        let Recorder { instance, .. } = recorder;
        drop(instance);
    }
}
