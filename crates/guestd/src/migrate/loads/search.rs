//! The slow look: which threads are worth a look in each window. It goes over all
//! processes, a little in each window, and names the threads whose bytes from and to
//! disks have moved since it was there last. If no disk did anything since, it does not go
//! at all.

use super::walk::Walk;
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
    /// Process whose threads are left out: the agent's own.
    except: i32,
    known: BTreeMap<i32, Process>,
    /// The first round only learns what each has done so far.
    rounds: u64,
    next_round: Instant,
    /// All processes, while a round is under way.
    processes: Option<Walk>,
    /// The threads of one of them.
    threads: Option<Threads>,
    disks: Vec<u8>,
}

#[derive(Default, Debug)]
struct Process {
    /// Seen last in this round.
    round: u64,
    /// A thread of the kernel's, which moves bytes for others.
    kernel: bool,
    bytes: u64,
    /// Its threads, if its bytes have ever moved: bytes, and the round.
    threads: BTreeMap<i32, (u64, u64)>,
}

#[derive(Debug)]
struct Threads {
    pid: i32,
    walk: Walk,
    few: bool,
}

impl Search {
    /// For threads of all processes but `except`.
    pub fn new(except: i32) -> Search {
        Search {
            except,
            known: BTreeMap::new(),
            rounds: 0,
            next_round: Instant::ZERO,
            processes: None,
            threads: None,
            disks: Vec::new(),
        }
    }

    /// Go on; each thread found (with its process) is told to `found`.
    ///
    /// # Errors
    /// Processes cannot be listed.
    pub fn go_on(&mut self, now: Instant, found: &mut dyn FnMut(i32, i32)) -> io::Result<()> {
        if self.processes.is_none() {
            if now < self.next_round {
                return Ok(());
            }
            self.next_round = now + ROUND;
            if !self.disks_moved() {
                return Ok(());
            }
            self.processes = Some(Walk::new("/proc")?);
            self.rounds += 1;
        }
        let end = clock::now() + TIME_MAX;
        while self.step(found) && clock::now() < end {}
        Ok(())
    }

    /// One thread or one process; false at the end of the round.
    fn step(&mut self, found: &mut dyn FnMut(i32, i32)) -> bool {
        if let Some(threads) = &mut self.threads {
            let (pid, few, tid) = (threads.pid, threads.few, threads.walk.next());
            match tid {
                Some(tid) => self.look_at_thread(pid, tid, few, found),
                None => self.leave(pid),
            }
            return true;
        }
        let pid = self.processes.as_mut().and_then(Walk::next);
        match pid {
            Some(pid) => self.look_at_process(pid),
            None => {
                self.processes = None;
                self.known.retain(|_, process| process.round == self.rounds);
            }
        }
        pid.is_some()
    }

    /// That were all threads of this process.
    fn leave(&mut self, pid: i32) {
        self.threads = None;
        if let Some(process) = self.known.get_mut(&pid) {
            process.threads.retain(|_, (_, round)| *round == self.rounds);
        }
    }

    /// Has any disk of this guest done anything since this was asked last? Where that is
    /// not told: yes.
    fn disks_moved(&mut self) -> bool {
        let Ok(disks) = fs::read("/proc/diskstats") else { return true };
        std::mem::replace(&mut self.disks, disks) != self.disks
    }

    fn look_at_process(&mut self, pid: i32) {
        if pid == self.except {
            return;
        }
        let new = !self.known.contains_key(&pid);
        let process = self.known.entry(pid).or_default();
        process.round = self.rounds;
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
        let walk = Walk::new(&format!("/proc/{pid}/task")).ok();
        self.threads = walk.map(|walk| Threads { pid, few: walk.at_hand() <= FEW, walk });
    }

    fn look_at_thread(&mut self, pid: i32, tid: i32, few: bool, found: &mut dyn FnMut(i32, i32)) {
        let Ok(bytes) = procfs::thread_io_bytes(pid, tid) else { return };
        let Some(process) = self.known.get_mut(&pid) else { return };
        let before = process.threads.insert(tid, (bytes, self.rounds));
        if before.map_or(few && bytes > 0, |(before, _)| bytes != before) {
            found(pid, tid);
        }
    }
}
