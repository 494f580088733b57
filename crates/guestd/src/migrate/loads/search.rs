//! Finds the threads that are worth a look in each window: those whose bytes from and to disks have
//! changed after the last round over all processes. Rounds take long, so an ordinary thread makes
//! them, and no monitor waits for it. If no disk worked after the last one, there is no round.

use crate::migrate::clock;
use crate::{kernel, procfs};
use seekway_core::units::{Instant, Nanos};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::{self, Builder};
use std::time::Duration;
use std::{fs, io};

/// From the start of one round to that of the next,
const ROUND: Nanos = Nanos::from_millis(100);
/// or the CPU time of a round times this: rounds take 2 % of a vCPU.
const PAUSE: u64 = 50;
/// An emulated guest on a busy host takes absences for CPU time: a pause is no longer than this.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Most threads of a process that are all looked at when its bytes have changed for the first time.
/// With more of them, those whose own bytes change by the next round.
const FEW: usize = 8;

/// The process and the number of a thread.
type Found = (i32, i32);

/// The thread that goes rounds, until this is dropped.
#[derive(Debug)]
pub struct Search {
    rounds: SyncSender<()>,
    found: Receiver<io::Result<Vec<Found>>>,
    next: Instant,
}

impl Search {
    /// For threads of all processes but `except`.
    ///
    /// # Errors
    /// There can be no more threads.
    pub fn start(except: i32) -> io::Result<Search> {
        let ((rounds, asked), (tell, found)) = (sync_channel(1), channel());
        Builder::new().name("search".into()).spawn(move || {
            kernel::leave_signals_to_others();
            let mut known = Known { except, ..Known::default() };
            let cpu_time = || clock::read(libc::CLOCK_THREAD_CPUTIME_ID);
            for () in asked {
                let before = cpu_time();
                if tell.send(known.round()).is_err() {
                    return;
                }
                let pause = Duration::from_nanos((cpu_time() - before) * PAUSE);
                thread::sleep(pause.min(PAUSE_MAX));
            }
        })?;
        Ok(Search { rounds, found, next: Instant::ZERO })
    }

    /// The threads that were found since the last call. Asks for a round if it is time. Does not
    /// wait.
    ///
    /// # Errors
    /// Processes cannot be listed.
    pub fn found(&mut self, now: Instant) -> io::Result<Vec<Found>> {
        if now >= self.next {
            self.next = now + ROUND;
            // If it is full, one is about to begin.
            let _ = self.rounds.try_send(());
        }
        let found: io::Result<Vec<Vec<Found>>> = self.found.try_iter().collect();
        found.map(|found| found.concat())
    }
}

/// Bytes of each process when it was looked at last.
#[derive(Default)]
struct Known {
    /// The process whose threads are left out: the agent's own.
    except: i32,
    processes: BTreeMap<i32, Process>,
    /// The first round only learns each thread's totals.
    has_begun: bool,
    disks: Vec<u8>,
}

#[derive(Default)]
struct Process {
    bytes: u64,
    /// Of its threads, if its bytes have ever moved.
    threads: BTreeMap<i32, u64>,
}

impl Known {
    fn round(&mut self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        if !self.disks_moved() {
            return Ok(found);
        }
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let pids = procfs::processes()?;
        self.processes.retain(|pid, _| pids.binary_search(pid).is_ok());
        for pid in pids.into_iter().filter(|pid| *pid != self.except) {
            let Ok(bytes) = procfs::io_bytes(pid) else { continue };
            let process = self.processes.entry(pid).or_default();
            let before = std::mem::replace(&mut process.bytes, bytes);
            // Threads of the kernel move bytes for others.
            let is_user = || procfs::stat(pid).is_some_and(|stat| !stat.kernel);
            if bytes != before && !is_first && is_user() {
                process.look_at_threads(pid, &mut found);
            }
        }
        Ok(found)
    }

    /// Tells whether a disk of this guest has worked after the last call; true if that is unknown.
    fn disks_moved(&mut self) -> bool {
        let Ok(disks) = fs::read("/proc/diskstats") else { return true };
        std::mem::replace(&mut self.disks, disks) != self.disks
    }
}

impl Process {
    fn look_at_threads(&mut self, pid: i32, found: &mut Vec<Found>) {
        let tids = procfs::threads(pid);
        self.threads.retain(|tid, _| tids.binary_search(tid).is_ok());
        let few = tids.len() <= FEW;
        for tid in tids {
            let Ok(bytes) = procfs::thread_io_bytes(pid, tid) else { continue };
            let before = self.threads.insert(tid, bytes);
            if before.map_or(few && bytes > 0, |before| bytes != before) {
                found.push((pid, tid));
            }
        }
    }
}
