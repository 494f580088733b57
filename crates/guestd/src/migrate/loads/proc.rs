//! The detector that every Linux has: at each window it reads the files in `/proc` of the
//! threads that may be doing I/O.

use super::estimate::{Estimate, Load};
use super::search::Search;
use super::thread::Thread;
use super::{Loads, ThreadLoad};
use crate::migrate::clock;
use seekway_core::units::{Instant, Nanos};
use std::collections::BTreeMap;
use std::io;

/// The most threads that are read in a window. Each costs some 2 us and [`Thread::FILES`]
/// descriptors, of the 1024 that a process may have open.
const CANDIDATES_MAX: usize = 256 / Thread::FILES;
/// Time without I/O after which a thread is dropped. Bursts are farther apart than windows, and to
/// read a thread that sleeps costs little.
const COLD: Nanos = Nanos::from_secs(2);
/// Time without I/O (a round of the search) after which a thread makes room for another.
const COOL: Nanos = Nanos::from_millis(100);
/// The most time that a window spends on candidates: the monitor that reads them does not
/// beat meanwhile. Candidates that are left over come first in the next window.
const TIME_MAX: Nanos = Nanos::from_micros(500);

/// Reads the files of threads that do I/O.
#[derive(Debug)]
pub struct Proc {
    search: Search,
    candidates: BTreeMap<i32, Candidate>,
    /// The thread that the next window reads first.
    next: i32,
}

#[derive(Debug)]
struct Candidate {
    pid: i32,
    thread: Thread,
    estimate: Estimate,
    looked: Instant,
    /// The last window in which it did I/O.
    warm: Instant,
}

impl Proc {
    /// For threads of all processes but `except`.
    ///
    /// # Errors
    /// This kernel does not count the I/O of threads, or their time.
    pub fn open(except: i32) -> io::Result<Proc> {
        let own = std::process::id() as i32;
        let seen = Thread::open(own, own)?.look(None);
        let seen = seen.ok_or_else(|| io::Error::other("unknown form of /proc/PID/stat"))?;
        // All zeroes where it is not counted: sleeping and running look alike.
        if seen.turns == 0 {
            return Err(io::Error::other("no /proc/PID/schedstat (CONFIG_SCHED_INFO)"));
        }
        let (search, candidates) = (Search::start(except)?, BTreeMap::new());
        Ok(Proc { search, candidates, next: 0 })
    }

    /// Reads candidates until `end`, at least one. Drops those that have ended or are cold.
    fn look(&mut self, now: Instant, end: Instant, loads: &mut Vec<ThreadLoad>) {
        let (before, after) =
            (self.candidates.range(..self.next), self.candidates.range(self.next..));
        let tids: Vec<i32> = after.chain(before).map(|(tid, _)| *tid).collect();
        for tid in tids {
            if !self.look_at(tid, now, loads) {
                self.candidates.remove(&tid);
            }
            if clock::now() >= end {
                self.next = tid.saturating_add(1);
                break;
            }
        }
        loads.sort_unstable_by_key(|load| load.tid);
    }

    /// Returns false if the candidate is to be dropped.
    fn look_at(&mut self, tid: i32, now: Instant, loads: &mut Vec<ThreadLoad>) -> bool {
        let Some(candidate) = self.candidates.get_mut(&tid) else { return false };
        let last = candidate.estimate.last();
        let Some(counters) = candidate.thread.look(Some(last)) else { return false };
        let elapsed = now.since(candidate.looked);
        candidate.looked = now;
        if let Some(load) = candidate.estimate.look(counters, elapsed) {
            candidate.warm = now;
            let Load { waited, ran, ios, io_time } = load;
            let (pid, vcpu) = (candidate.pid, counters.vcpu);
            loads.push(ThreadLoad { tid, pid, vcpu, waited, ran, ios, io_time, last: None });
        }
        now.since(candidate.warm) < COLD
    }

    fn admit(&mut self, now: Instant, pid: i32, tid: i32) {
        if self.candidates.contains_key(&tid) || !self.make_room(now) {
            return;
        }
        let Ok(mut thread) = Thread::open(pid, tid) else { return };
        let Some(first) = thread.look(None) else { return };
        let estimate = Estimate::new(first);
        self.candidates.insert(tid, Candidate { pid, thread, estimate, looked: now, warm: now });
    }

    /// Is there room for one more, if the coolest goes?
    fn make_room(&mut self, now: Instant) -> bool {
        if self.candidates.len() < CANDIDATES_MAX {
            return true;
        }
        let coolest = self.candidates.iter().min_by_key(|(_, candidate)| candidate.warm);
        let coolest = coolest.filter(|(_, candidate)| now.since(candidate.warm) >= COOL);
        let tid = coolest.map(|(tid, _)| *tid);
        tid.is_some_and(|tid| self.candidates.remove(&tid).is_some())
    }
}

impl Loads for Proc {
    fn window(&mut self, now: Instant, loads: &mut Vec<ThreadLoad>) -> io::Result<()> {
        loads.clear();
        self.look(now, clock::now() + TIME_MAX, loads);
        for (pid, tid) in self.search.found(now)? {
            self.admit(now, pid, tid);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::start;
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;

    #[test]
    fn there_is_room_for_so_many_and_the_coolest_goes_first() {
        let (tids, tid_of) = channel();
        thread::scope(|scope| {
            let mut awake = Vec::new();
            for _ in 0..CANDIDATES_MAX + 1 {
                let (alive, sleeps) = channel::<()>();
                awake.push(alive);
                start(scope, &tids, move || assert!(sleeps.recv().is_err()));
            }
            let mut seer = Proc::open(-1).unwrap();
            let pid = std::process::id() as i32;
            let ms = |ms: u64| Instant::from_nanos(ms * 1_000_000);
            for n in 0..CANDIDATES_MAX {
                seer.admit(ms(n as u64 % 2), pid, tid_of.recv().unwrap());
            }
            let has = |seer: &Proc, at| {
                seer.candidates.values().filter(|candidate| candidate.warm == at).count()
            };
            let half = CANDIDATES_MAX / 2;
            assert_eq!((has(&seer, ms(0)), has(&seer, ms(1))), (half, half));
            let last = tid_of.recv().unwrap();
            seer.admit(ms(99), pid, last);
            assert!(!seer.candidates.contains_key(&last), "nobody is cool yet");
            seer.admit(ms(100), pid, last);
            assert!(seer.candidates.contains_key(&last));
            assert_eq!((has(&seer, ms(0)), has(&seer, ms(1))), (half - 1, half));

            // Each comes to its turn, however little time there is.
            let (mut loads, never) = (Vec::new(), Instant::from_nanos(u64::MAX));
            for _ in 0..CANDIDATES_MAX - 1 {
                seer.look(ms(101), ms(0), &mut loads);
            }
            let looked = |seer: &Proc| {
                seer.candidates.values().filter(|candidate| candidate.looked == ms(101)).count()
            };
            assert_eq!(looked(&seer), CANDIDATES_MAX - 1);
            seer.look(ms(101), ms(0), &mut loads);
            assert_eq!(looked(&seer), CANDIDATES_MAX);

            // A thread that has done nothing for long, or has ended, is not looked at any more.
            loads.clear();
            seer.look(ms(2001), never, &mut loads);
            assert_eq!((loads.len(), seer.candidates.len()), (0, 1));
            drop(awake);
        });
    }
}
