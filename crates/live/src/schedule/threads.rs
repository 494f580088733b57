//! The numbers by which the tracer knows threads: those of the initial PID namespace. In another
//! namespace, such as a container's, threads have other numbers.

use super::trace::Recording;
use super::tracefs::Instance;
use super::write;
use crate::error::{At, LiveError, Result};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

/// Everybody ignores it who has no handler, and QEMU has none.
const SIGNAL: i32 = libc::SIGURG;
const EVENT: &str = "events/signal/signal_generate/enable";
const MARK: &str = "seekway asks who is who";

/// Threads by the tracer's numbers.
#[derive(Debug)]
pub(super) struct Threads(BTreeMap<i32, i32>);

impl Threads {
    /// Have the tracer say the number of each thread, by a signal to each in turn.
    pub(super) fn find(instance: &Instance, tids: &[i32]) -> Result<Threads> {
        write(instance, EVENT, "1")?;
        write(instance, "tracing_on", "1")?;
        write(instance, "trace_marker", MARK)?;
        for &tid in tids {
            signal(tid).at("send a signal to", &PathBuf::from(format!("/proc/{tid}")))?;
        }
        write(instance, "tracing_on", "0")?;
        write(instance, EVENT, "0")?;
        let path = instance.path("trace");
        let text = fs::read(&path).at("read", &path)?;
        write(instance, "trace", "")?;
        let text = String::from_utf8_lossy(&text);
        let wrong = || LiveError::Measured(format!("the kernel's tracer says '{text}'"));
        let found = told(&text).filter(|found| found.len() == tids.len()).ok_or_else(wrong)?;
        Ok(Threads(found.into_iter().zip(tids.iter().copied()).collect()))
    }

    /// The tracer's numbers, in words.
    pub(super) fn numbers(&self) -> Vec<String> {
        self.0.keys().map(i32::to_string).collect()
    }

    /// With the numbers by which this process knows the threads. Others keep the tracer's.
    pub(super) fn as_we_name_them(&self, mut recording: Recording) -> Recording {
        let name = |tid: &mut i32| *tid = self.0.get(tid).copied().unwrap_or(*tid);
        recording.runs.iter_mut().for_each(|run| name(&mut run.tid));
        for wake in &mut recording.wakes {
            name(&mut wake.by);
            name(&mut wake.woken);
        }
        recording
    }
}

fn signal(tid: i32) -> io::Result<()> {
    // A thread's group is needed with it, so that the number is not somebody else's by now.
    let status = fs::read_to_string(format!("/proc/{tid}/status"))?;
    let group = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    let group: i32 = group.and_then(|n| n.trim().parse().ok()).unwrap_or(tid);
    // SAFETY: numbers only.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, group, tid, SIGNAL) };
    if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The receivers of the signals that the marker's writer has sent, in order.
fn told(text: &str) -> Option<Vec<i32>> {
    let marker = text.lines().find(|line| line.ends_with(MARK))?;
    let sender = sender(marker)?;
    let kind = format!(": signal_generate: sig={SIGNAL} ");
    let ours =
        text.lines().filter(|line| line.contains(&kind) && self::sender(line) == Some(sender));
    ours.map(|line| {
        let (_, rest) = line.rsplit_once(" pid=")?;
        rest.split(' ').next()?.parse().ok()
    })
    .collect()
}

/// `  COMM-TID  [CPU] …`, where a name may have spaces.
fn sender(line: &str) -> Option<i32> {
    let (task, _) = line.split_once(" [")?;
    let (_, tid) = task.trim_end().rsplit_once('-')?;
    tid.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "\
# tracer: nop
          go-77      [000] d..1. 1.000050: signal_generate: sig=23 errno=0 code=-6 comm=go pid=78 grp=0 res=0
    my test-1200    [001] ..... 1.000100: tracing_mark_write: seekway asks who is who
    my test-1200    [001] d..1. 1.000200: signal_generate: sig=23 errno=0 code=-6 comm=CPU 0/TCG pid=1210 grp=0 res=1
          go-77      [000] d..1. 1.000250: signal_generate: sig=23 errno=0 code=-6 comm=go pid=78 grp=0 res=0
    my test-1200    [001] d..1. 1.000300: signal_generate: sig=17 errno=0 code=1 comm=sh pid=9 grp=1 res=0
    my test-1200    [001] d..1. 1.000400: signal_generate: sig=23 errno=0 code=-6 comm=a pid=1 pid=1211 grp=0 res=1
";

    #[test]
    fn receivers_are_read_in_the_order_of_their_signals() {
        assert_eq!(told(TRACE), Some(vec![1210, 1211]));
        assert_eq!(told("# tracer: nop\n"), None, "no marker");
    }

    #[test]
    fn what_is_recorded_of_others_keeps_its_number() {
        let threads = Threads(BTreeMap::from([(1210, 10)]));
        let wake = super::super::Wake { at: std::time::Duration::ZERO, by: 1211, woken: 1210 };
        let from = std::time::Duration::ZERO;
        let recording = Recording { from, to: from, runs: Vec::new(), wakes: vec![wake] };
        let named = threads.as_we_name_them(recording).wakes[0];
        assert_eq!((named.by, named.woken), (1211, 10));
    }
}
