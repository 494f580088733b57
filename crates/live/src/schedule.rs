//! The host's own schedule: on which processor each of some threads ran, and when, and
//! who woke whom, as the kernel's tracer (tracefs) records it in a place of its own
//! beside other users of the tracer.

mod trace;

pub use trace::{Recording, Run, Wake};

use crate::error::{At, LiveError, Result};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the kernel mounts it when it is first looked at, since 4.1.
const TRACEFS: &str = "/sys/kernel/tracing";
const EVENTS: [&str; 2] = ["events/sched/sched_switch", "events/sched/sched_waking"];
/// For each processor. An event has 60 bytes or so, and there are some 10,000 a second.
const BUFFER_KIB: u32 = 16 << 10;
const NAME: &str = "seekway-";

/// A recorder of the threads that it was made for. Dropping it takes it away.
#[derive(Debug)]
pub struct Recorder {
    dir: PathBuf,
    /// When it was started last.
    from: Duration,
}

impl Recorder {
    /// Record these threads, once [`start`](Recorder::start) is called.
    ///
    /// # Errors
    /// The kernel has no tracer, or this is not root.
    pub fn new(tids: &[i32]) -> Result<Recorder> {
        let instances = Path::new(TRACEFS).join("instances");
        let entries = fs::read_dir(&instances).map_err(|e| no_tracer(&instances, &e))?;
        for entry in entries {
            remove_abandoned(&entry.at("list", &instances)?.path());
        }
        let dir = instances.join(format!("{NAME}{}", std::process::id()));
        fs::create_dir(&dir).map_err(|e| no_tracer(&dir, &e))?;
        let recorder = Recorder { dir, from: Duration::ZERO };
        recorder.write("tracing_on", "0")?;
        // CLOCK_MONOTONIC.
        recorder.write("trace_clock", "mono")?;
        recorder.write("buffer_size_kb", &BUFFER_KIB.to_string())?;
        let tids: Vec<String> = tids.iter().map(i32::to_string).collect();
        recorder.write("set_event_pid", &tids.join(" "))?;
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
            let what = format!("{}: {lost} events lost: record for a shorter time", self.show());
            return Err(LiveError::Measured(what));
        }
        let path = self.dir.join("trace");
        let text = fs::read(&path).at("read", &path)?;
        let text = String::from_utf8_lossy(&text);
        trace::parse(&text, self.from, to).map_err(LiveError::Measured)
    }

    /// Events that found no place, of all processors.
    fn lost(&self) -> Result<u64> {
        let folder = self.dir.join("per_cpu");
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
        let path = self.dir.join(file);
        fs::write(&path, what).at("write", &path)
    }

    fn show(&self) -> std::path::Display<'_> {
        self.dir.display()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // What cannot be removed now is by the next recorder.
        let _ = self.write("tracing_on", "0");
        let _ = fs::remove_dir(&self.dir);
    }
}

/// CLOCK_MONOTONIC, as the tracer is told to use.
fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec, which the kernel fills; the clock exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Remove what a recorder left whose process was killed.
fn remove_abandoned(dir: &Path) {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let pid = name.strip_prefix(NAME).and_then(|pid| pid.parse::<u32>().ok());
    if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
        // Somebody else may have removed it meanwhile.
        let _ = fs::remove_dir(dir);
    }
}

fn no_tracer(path: &Path, error: &io::Error) -> LiveError {
    LiveError::Measured(format!(
        "{}: {error}: the schedule is recorded by the kernel's tracer, which needs root and \
         tracefs (`mount -t tracefs tracefs {TRACEFS}`)",
        path.display()
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
            Err(e) => return eprintln!("skipped: {e}"),
        };
        recorder.start().expect("the tracer starts");
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(2));
        }
        let recording = recorder.stop().expect("the tracer stops");
        let runs = recording.runs.iter().filter(|r| r.tid == tid);
        assert!(runs.count() >= 2, "{recording:?}");
        assert!(recording.wakes.iter().filter(|w| w.woken == tid).count() >= 3);
        let dir = recorder.dir.clone();
        drop(recorder);
        assert!(!dir.exists());
    }
}
