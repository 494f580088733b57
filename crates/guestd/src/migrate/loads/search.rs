//! The slow look: which threads are worth a look in each window. It goes over all
//! processes, a little in each window, and names the threads whose bytes from and to
//! disks have moved since it was there last. If no disk did anything since, it does not go
//! at all.

use crate::migrate::clock;
use crate::procfs;
use seekway_policy::units::{Instant, Nanos};
use std::collections::BTreeMap;
use std::fs;
use std::io;

/// From the start of one round to that of the next.
const ROUND: Nanos = Nanos::from_millis(100);
/// Of a window (5 ms) for the round under way, however many processes there are: 1 %.
const TIME_MAX: Nanos = Nanos::from_micros(50);
/// Rounds from one look at whether a kernel thread's number is still one's to the next.
const SELDOM: u64 = 16;
/// Threads of a process that are all looked at when its bytes have moved for the first
/// time. With more of them, those whose own bytes move by the next round.
const FEW: usize = 8;

/// What is known of each process, and how far the round is.
#[derive(Debug)]
pub struct Search {
    /// Not this one.
    except: i32,
    known: BTreeMap<i32, Process>,
    round: Round,
    /// The first round only learns what each has done so far.
    rounds: u64,
    next_round: Instant,
    disks: Vec<u8>,
}

#[derive(Default, Debug)]
struct Process {
    /// A thread of the kernel's, which moves bytes for others.
    kernel: bool,
    bytes: u64,
    /// Its threads, if its bytes have ever moved.
    threads: BTreeMap<i32, u64>,
}

/// What is left of a round, the last first.
#[derive(Default, Debug)]
struct Round {
    processes: Vec<i32>,
    /// Threads of the first one.
    of: i32,
    threads: Vec<i32>,
    few: bool,
}

impl Search {
    /// For threads of all processes but `except`.
    pub fn new(except: i32) -> Search {
        Search {
            except,
            known: BTreeMap::new(),
            round: Round::default(),
            rounds: 0,
            next_round: Instant::ZERO,
            disks: Vec::new(),
        }
    }

    /// Go on; each thread found (with its process) is told to `found`.
    ///
    /// # Errors
    /// Processes cannot be listed.
    pub fn go_on(&mut self, now: Instant, found: &mut dyn FnMut(i32, i32)) -> io::Result<()> {
        if self.round.processes.is_empty() && self.round.threads.is_empty() {
            if now < self.next_round {
                return Ok(());
            }
            self.next_round = now + ROUND;
            if !self.disks_moved() {
                return Ok(());
            }
            self.begin()?;
        }
        let end = clock::now() + TIME_MAX;
        loop {
            if let Some(tid) = self.round.threads.pop() {
                self.look_at_thread(tid, found);
            } else if let Some(pid) = self.round.processes.pop() {
                self.look_at_process(pid);
            } else {
                return Ok(());
            }
            if clock::now() >= end {
                return Ok(());
            }
        }
    }

    /// Has any disk of this guest done anything since this was asked last? Where that is
    /// not told: yes.
    fn disks_moved(&mut self) -> bool {
        let Ok(disks) = fs::read("/proc/diskstats") else { return true };
        std::mem::replace(&mut self.disks, disks) != self.disks
    }

    fn begin(&mut self) -> io::Result<()> {
        let here = procfs::processes()?;
        self.known.retain(|pid, _| here.binary_search(pid).is_ok());
        self.round.processes = here;
        self.rounds += 1;
        Ok(())
    }

    fn look_at_process(&mut self, pid: i32) {
        if pid == self.except {
            return;
        }
        let new = !self.known.contains_key(&pid);
        let process = self.known.entry(pid).or_default();
        if new || process.kernel && self.rounds.is_multiple_of(SELDOM) {
            process.kernel = procfs::stat(pid).is_some_and(|stat| stat.kernel);
        }
        if process.kernel {
            return;
        }
        let Ok(bytes) = procfs::io_bytes(pid) else { return };
        let before = std::mem::replace(&mut process.bytes, bytes);
        // Fewer than before: another process has the number now.
        if bytes == before || new && self.rounds == 1 {
            return;
        }
        let threads = procfs::threads(pid);
        process.threads.retain(|tid, _| threads.binary_search(tid).is_ok());
        self.round.of = pid;
        self.round.few = threads.len() <= FEW;
        self.round.threads = threads;
    }

    fn look_at_thread(&mut self, tid: i32, found: &mut dyn FnMut(i32, i32)) {
        let Ok(bytes) = procfs::thread_io_bytes(self.round.of, tid) else { return };
        let Some(process) = self.known.get_mut(&self.round.of) else { return };
        let before = process.threads.insert(tid, bytes);
        if before.map_or(self.round.few && bytes > 0, |before| bytes != before) {
            found(self.round.of, tid);
        }
    }
}
