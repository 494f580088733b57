//! Turns of vCPUs on processors, held exactly: one thread at a time may run on each
//! processor, for a slice of a given length, and then the next.
//!
//! Linux cannot be told to do that. Its fair scheduler takes a wish for slices of 11 ms,
//! but chooses anew whenever somebody else has had the processor for a moment, and QEMU's
//! own threads do that a thousand times a second: what is left are slices of 1 to 4 ms. The
//! round robin of its real-time class starves everybody else. So the others are stopped
//! (ptrace), whichever scheduler the kernel has, and go on as soon as this ends, however
//! it ends.

use crate::error::{At, LiveError, Result};
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long slices are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slices {
    /// Length of a slice, on average.
    pub mean: Duration,
    /// They are longer or shorter by up to this, by chance, evenly.
    pub jitter: Duration,
    /// Decides how long each is.
    pub seed: u64,
}

/// Threads that take turns. Dropping it lets them all run again.
#[derive(Debug)]
pub struct Turns {
    /// Their ends tell the holders to end.
    ends: Vec<Sender<()>>,
    holders: Vec<JoinHandle<()>>,
}

impl Turns {
    /// Let the threads of each queue run one after the other, in their order. They are
    /// other processes' threads, and already pinned to the queue's processor.
    ///
    /// # Errors
    /// A thread has ended, or is traced by somebody else, or may not be traced.
    pub fn hold(queues: Vec<Vec<i32>>, slices: Slices) -> Result<Turns> {
        let mut turns = Turns { ends: Vec::new(), holders: Vec::new() };
        for (n, queue) in (0..).zip(queues) {
            let slices = Slices { seed: slices.seed.wrapping_add(n), ..slices };
            let (end, ends) = mpsc::channel();
            let (say, said) = mpsc::channel();
            // Who seizes a thread is the only one who can stop it and let it go.
            let holder = thread::Builder::new().name(format!("turns-{n}"));
            let holder = holder.spawn(move || match seize(&queue) {
                Ok(()) if say.send(Ok(())).is_ok() => rotate(queue.into(), slices, &ends),
                result => drop(say.send(result)),
            });
            turns.holders.push(holder.at("start", &PathBuf::from("a thread"))?);
            turns.ends.push(end);
            let ended = || LiveError::Measured("a holder of turns has ended".into());
            said.recv().map_err(|_| ended())??;
        }
        Ok(turns)
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.ends.clear();
        for holder in self.holders.drain(..) {
            // One that has panicked has let go of its threads too.
            let _ = holder.join();
        }
    }
}

/// Attaches to the queue's threads by ptrace(2), and stops each.
fn seize(queue: &[i32]) -> Result<()> {
    for &tid in queue {
        let seized = ptrace(libc::PTRACE_SEIZE, tid, 0);
        seized.at("hold the turns of", &PathBuf::from(format!("/proc/{tid}")))?;
        stop(tid);
    }
    Ok(())
}

/// One after the other, until the sender has gone. When the thread that does this ends,
/// the kernel lets all go on.
fn rotate(mut queue: VecDeque<i32>, slices: Slices, end: &Receiver<()>) {
    let mut random = Random(slices.seed);
    let mut next = Instant::now();
    while let Some(tid) = queue.pop_front() {
        let alive = ptrace(libc::PTRACE_CONT, tid, 0).is_ok();
        next += random.slice(slices);
        let left = next.saturating_duration_since(Instant::now());
        if end.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        if alive && stop(tid) {
            queue.push_back(tid);
        }
    }
    // All have ended.
}

/// Stop a thread that runs; false when it has ended.
fn stop(tid: i32) -> bool {
    // It may have ended, of which the wait tells.
    let _ = ptrace(libc::PTRACE_INTERRUPT, tid, 0);
    loop {
        let mut status = 0;
        // SAFETY: the pointer is to an integer, which the kernel fills.
        let waited = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) };
        if waited != tid {
            if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return false;
        }
        if !libc::WIFSTOPPED(status) {
            return false;
        }
        if status >> 16 == libc::PTRACE_EVENT_STOP {
            return true;
        }
        // A signal on its way, to be passed on.
        let _ = ptrace(libc::PTRACE_CONT, tid, libc::WSTOPSIG(status));
    }
}

fn ptrace(request: libc::c_uint, tid: i32, data: i32) -> io::Result<()> {
    let data = usize::try_from(data).unwrap_or(0);
    // SAFETY: none of these requests takes a pointer.
    let done = unsafe { libc::ptrace(request, tid, 0usize, data) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Marsaglia's xorshift64, with a multiplication before each step.
struct Random(u64);

impl Random {
    fn slice(&mut self, slices: Slices) -> Duration {
        let mut x = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0 = x;
        let jitter_us = u64::try_from(slices.jitter.as_micros()).unwrap_or(u64::MAX / 4);
        (slices.mean + Duration::from_micros(x % (2 * jitter_us + 1))).saturating_sub(slices.jitter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Process;
    use std::fs;
    use std::process::Command;

    const PATIENCE: Duration = Duration::from_secs(600);

    fn state(pid: i32) -> char {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
        let (_, rest) = stat.rsplit_once(") ").expect("proc(5)");
        rest.chars().next().expect("a state")
    }

    /// Time on a processor, in nanoseconds.
    fn ran(pid: i32) -> u64 {
        let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("it runs");
        text.split(' ').next().and_then(|n| n.parse().ok()).expect("proc(5)")
    }

    fn busy(log: &std::path::Path) -> Process {
        let mut command = Command::new("sh");
        Process::start(command.args(["-c", "while :; do :; done"]), log).expect("sh runs")
    }

    #[test]
    fn one_at_a_time_runs_and_all_go_on_afterwards() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut processes: Vec<Process> =
            (0..3).map(|n| busy(&dir.path().join(n.to_string()))).collect();
        let pids: Vec<i32> = processes.iter().map(|p| p.pid().cast_signed()).collect();
        let ms = Duration::from_millis;
        let slices = Slices { mean: ms(4), jitter: ms(1), seed: 1 };
        let begun = Instant::now();
        let turns = Turns::hold(vec![pids.clone()], slices).expect("they are our own");
        let before: Vec<u64> = pids.iter().map(|&pid| ran(pid)).collect();
        let deadline = Instant::now() + PATIENCE;
        while !pids.iter().zip(&before).all(|(&pid, before)| ran(pid) > before + 100_000_000) {
            assert!(Instant::now() < deadline, "a process has no turns");
        }
        // Whatever else runs: one at a time cannot run for longer than time passes. A running
        // process's time is brought up to date at ticks only, of at most 10 ms.
        let total: u64 = pids.iter().zip(&before).map(|(&pid, before)| ran(pid) - before).sum();
        let passed = begun.elapsed() + 3 * ms(10);
        assert!(u128::from(total) <= passed.as_nanos(), "{total} ns on processors in {passed:?}");
        // One that dies is left out.
        processes[0].kill();
        let before: Vec<u64> = pids[1..].iter().map(|&pid| ran(pid)).collect();
        while !pids[1..].iter().zip(&before).all(|(&pid, before)| ran(pid) > before + 20_000_000) {
            assert!(Instant::now() < deadline, "the others have no turns any more");
        }
        drop(turns);
        while pids[1..].iter().any(|&pid| state(pid) != 'R') {
            assert!(Instant::now() < deadline, "one is still stopped");
        }
    }

    #[test]
    fn slices_lie_around_their_mean() {
        let us = Duration::from_micros;
        let slices = Slices { mean: us(11_000), jitter: us(300), seed: 7 };
        let mut random = Random(slices.seed);
        let drawn: Vec<Duration> = (0..1000).map(|_| random.slice(slices)).collect();
        assert!(drawn.iter().all(|s| (us(10_700)..=us(11_300)).contains(s)));
        let mean = drawn.iter().sum::<Duration>() / 1000;
        assert!((us(10_970)..us(11_030)).contains(&mean), "{mean:?}");
        let exact = Slices { jitter: us(0), ..slices };
        assert_eq!(random.slice(exact), exact.mean);
    }

    #[test]
    fn who_has_ended_takes_no_turns() {
        let slices = Slices { mean: Duration::from_millis(1), jitter: Duration::ZERO, seed: 1 };
        let refused = Turns::hold(vec![vec![i32::MAX]], slices).expect_err("nobody's number");
        assert!(refused.to_string().contains("hold the turns of"), "{refused}");
    }
}
