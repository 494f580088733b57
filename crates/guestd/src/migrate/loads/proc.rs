//! The way that every Linux has: the files of `/proc`, read at each window, of the threads
//! that may be doing I/O.

use super::estimate::{Counters, Estimate};
use super::search::Search;
use super::thread::Thread;
use super::{Loads, ThreadLoad};
use crate::migrate::clock;
use seekway_policy::units::{Instant, Nanos};
use std::collections::BTreeMap;
use std::io;

/// As `status` names it.
pub const NAME: &str = "proc";
/// Threads that are looked at in each window, at most. Each costs some 2 us and
/// [`Thread::FILES`] descriptors, of the 1024 that a process may have open.
const CANDIDATES_MAX: usize = 256 / Thread::FILES;
/// One that did no I/O for so long is not looked at any more. Bursts are farther apart
/// than windows, and who sleeps costs little.
const COLD: Nanos = Nanos::from_secs(2);
/// One that did no I/O for so long makes room for another: a round of the search.
const COOL: Nanos = Nanos::from_millis(100);

/// Of a window (5 ms) for looks at candidates: whoever looks does not beat meanwhile. Who is
/// not looked at in one is the first in the next.
const TIME_MAX: Nanos = Nanos::from_micros(500);

/// What else is known of a thread than `/proc` says.
pub trait Delays: Send {
    /// Waits for I/O that ended, and their time together, over its life; `None` when it
    /// has gone.
    fn of(&mut self, tid: i32) -> Option<(u64, Nanos)>;
}

/// Nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoDelays;

impl Delays for NoDelays {
    fn of(&mut self, _tid: i32) -> Option<(u64, Nanos)> {
        Some((0, Nanos::ZERO))
    }
}

/// Looks at threads in `/proc`, and at their `delays`.
#[derive(Debug)]
pub struct Proc<D> {
    name: &'static str,
    delays: D,
    search: Search,
    candidates: BTreeMap<i32, Candidate>,
    /// The one to be looked at first.
    next: i32,
}

#[derive(Debug)]
struct Candidate {
    pid: i32,
    thread: Thread,
    estimate: Estimate,
    looked: Instant,
    /// It did I/O at that time.
    warm: Instant,
}

impl Proc<NoDelays> {
    /// For threads of all processes but `except`.
    ///
    /// # Errors
    /// This kernel does not count the I/O of threads, or their time.
    pub fn open(except: i32) -> io::Result<Proc<NoDelays>> {
        Proc::with(NAME, NoDelays, except)
    }
}

impl<D: Delays> Proc<D> {
    /// The same with delays from elsewhere, under another name.
    ///
    /// # Errors
    /// This kernel does not count the I/O of threads, or their time.
    pub fn with(name: &'static str, delays: D, except: i32) -> io::Result<Proc<D>> {
        let own = std::process::id() as i32;
        let seen = Thread::open(own, own)?.look(None);
        let seen = seen.ok_or_else(|| io::Error::other("unknown form of /proc/PID/stat"))?;
        // All zeroes where it is not counted: who sleeps could not be told from who runs.
        if seen.turns == 0 {
            return Err(io::Error::other("no /proc/PID/schedstat (CONFIG_SCHED_INFO)"));
        }
        let (search, candidates) = (Search::new(except), BTreeMap::new());
        Ok(Proc { name, delays, search, candidates, next: 0 })
    }

    /// Of each candidate until `end`, of one at least; those that have gone or cold are
    /// candidates no more.
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

    /// False if it is a candidate no more.
    fn look_at(&mut self, tid: i32, now: Instant, loads: &mut Vec<ThreadLoad>) -> bool {
        let Some(candidate) = self.candidates.get_mut(&tid) else { return false };
        let last = candidate.estimate.last();
        let Some(counters) = look(&mut candidate.thread, tid, &mut self.delays, Some(last)) else {
            return false;
        };
        let elapsed = now.since(candidate.looked);
        candidate.looked = now;
        if let Some(load) = candidate.estimate.look(counters, elapsed) {
            candidate.warm = now;
            loads.push(ThreadLoad {
                tid,
                pid: candidate.pid,
                vcpu: counters.vcpu,
                waited: load.waited,
                ran: load.ran,
                ios: load.ios,
                io_time: load.io_time,
            });
        }
        now.since(candidate.warm) < COLD
    }

    fn admit(&mut self, now: Instant, pid: i32, tid: i32) {
        if self.candidates.contains_key(&tid) || !self.make_room(now) {
            return;
        }
        let Ok(mut thread) = Thread::open(pid, tid) else { return };
        let Some(first) = look(&mut thread, tid, &mut self.delays, None) else { return };
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

/// All that is known of a thread now. Delays end when it is put on a processor.
fn look(
    thread: &mut Thread,
    tid: i32,
    delays: &mut impl Delays,
    last: Option<&Counters>,
) -> Option<Counters> {
    let now = thread.look(last)?;
    let same = last.filter(|last| last.turns == now.turns);
    let delays = same.map_or_else(|| delays.of(tid), |last| Some(last.delays))?;
    Some(Counters { delays, ..now })
}

impl<D: Delays> Loads for Proc<D> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn window(&mut self, now: Instant, loads: &mut Vec<ThreadLoad>) -> io::Result<()> {
        loads.clear();
        self.look(now, clock::now() + TIME_MAX, loads);
        let mut found = Vec::new();
        self.search.go_on(now, &mut |pid, tid| found.push((pid, tid)))?;
        for (pid, tid) in found {
            self.admit(now, pid, tid);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
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
                let tids = tids.clone();
                scope.spawn(move || {
                    // SAFETY: gettid takes nothing and cannot fail.
                    tids.send(unsafe { libc::gettid() }).unwrap();
                    assert!(sleeps.recv().is_err());
                });
            }
            let mut seer = Proc::open(-1).unwrap();
            let pid = std::process::id() as i32;
            let ms = |ms: u64| Instant::from_nanos(ms * 1_000_000);
            for n in 0..CANDIDATES_MAX {
                seer.admit(ms(n as u64 % 2), pid, tid_of.recv().unwrap());
            }
            let has = |seer: &Proc<NoDelays>, at| {
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
            let looked = |seer: &Proc<NoDelays>| {
                seer.candidates.values().filter(|candidate| candidate.looked == ms(101)).count()
            };
            assert_eq!(looked(&seer), CANDIDATES_MAX - 1);
            seer.look(ms(101), ms(0), &mut loads);
            assert_eq!(looked(&seer), CANDIDATES_MAX);

            // Who has done nothing for long, or has gone, is looked at no more.
            loads.clear();
            seer.look(ms(2001), never, &mut loads);
            assert_eq!((loads.len(), seer.candidates.len()), (0, 1));
            drop(awake);
        });
    }
}
