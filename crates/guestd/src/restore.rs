//! Putting priorities back: at the agent's end, after its death, at its next start.

use crate::events::Event;
use crate::state::{Record, State};
use crate::system::System;
use seekway_policy::ioprio::CLASS_NONE;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// Threads start others, with the priority they have, while this goes on.
const ROUNDS_MAX: usize = 5;

/// What came of putting back.
#[derive(Debug)]
pub struct Outcome {
    /// To be said, as [`Event::Restored`].
    pub event: Event,
    /// What is still to be put back, if anything.
    pub left: Option<State>,
    /// The last look at all threads found heirs still.
    pub unfinished: bool,
}

/// Put back what `state` tells of, and take what has been inherited from it
/// away.
///
/// A thread is left alone when its priority is not the one that it was given.
/// Heirs that are not written down are found by their priorities: where these
/// are hints, nobody else sets them; where they are levels, only new threads
/// and new children of processes that are written down, as what these carry.
///
/// # Errors
/// Processes cannot be listed.
pub fn restore(system: &impl System, state: &State) -> io::Result<Outcome> {
    let mut tally = Tally::default();
    let threads = state.threads.iter().filter(|r| tally.put_back(system, r)).count();
    let threads = threads + state.left.iter().filter(|r| tally.put_back(system, r)).count();
    let mut heirs = state.heirs.iter().filter(|r| tally.put_back(system, r)).count();
    let mut unfinished = true;
    for _ in 0..ROUNDS_MAX {
        let found = take_from_heirs(system, state, &mut tally)?;
        heirs += found;
        if found == 0 {
            unfinished = false;
            break;
        }
    }
    let Tally { changed, failed } = tally;
    let event = Event::Restored { threads, heirs, changed, failed: failed.len() };
    let left = match (unfinished, failed.is_empty()) {
        // Heirs are found by the whole.
        (true, _) => Some(state.clone()),
        (false, true) => None,
        (false, false) => {
            let left = failed.into_values().collect();
            let (threads, heirs, given) = Default::default();
            Some(State { threads, heirs, given, left, ..state.clone() })
        }
    };
    Ok(Outcome { event, left, unfinished })
}

/// Threads that are not as they were.
#[derive(Default)]
struct Tally {
    changed: usize,
    /// By their numbers.
    failed: BTreeMap<i32, Record>,
}

impl Tally {
    /// True when the thread has been put back.
    fn put_back(&mut self, system: &impl System, record: &Record) -> bool {
        if !lives(system, record.tid, record.start) {
            return false;
        }
        match system.priority(record.tid) {
            Ok(now) if now == record.set => return self.change(system, record),
            // Written down, and the agent died before the change.
            Ok(now) if now == record.original => {}
            Ok(_) => self.changed += 1,
            Err(_) => {}
        }
        false
    }

    fn change(&mut self, system: &impl System, record: &Record) -> bool {
        let set = system.set_priority(record.tid, record.original);
        if set.as_ref().is_err_and(|e| e.raw_os_error() != Some(libc::ESRCH)) {
            self.failed.insert(record.tid, *record);
        }
        set.is_ok()
    }
}

/// Neither gone, nor another thread of the same number.
fn lives(system: &impl System, tid: i32, start: u64) -> bool {
    system.stat(tid).is_some_and(|s| s.start == start)
}

/// One look at all threads; how many were changed.
fn take_from_heirs(system: &impl System, state: &State, tally: &mut Tally) -> io::Result<usize> {
    let of_left = state.left.iter().map(|r| r.set);
    let given: BTreeSet<u16> = state.given.iter().copied().chain(of_left).collect();
    let family = if state.hints { None } else { Some(Family::new(system, state)?) };
    let mut found = 0;
    for pid in system.processes()? {
        let Some(carried) = family.as_ref().map_or(Some(&given), |f| f.carried(pid)) else {
            continue;
        };
        for tid in system.threads(pid) {
            // What could not be done before cannot be done now.
            if tally.failed.contains_key(&tid)
                || family.as_ref().is_some_and(|f| f.left_alone.contains(&tid))
            {
                continue;
            }
            let set = system.priority(tid).ok().filter(|now| carried.contains(now));
            let start = system.stat(tid).map(|stat| stat.start);
            if let (Some(set), Some(start)) = (set, start) {
                let heir = Record { pid, tid, start, original: CLASS_NONE, set };
                found += usize::from(tally.change(system, &heir));
            }
        }
    }
    Ok(found)
}

/// Who may have a level from whom.
struct Family {
    /// The priorities that are written down of each process that still lives.
    written: BTreeMap<i32, BTreeSet<u16>>,
    /// Parents of the processes that the agent has never looked at. The others
    /// are written down, or have not inherited.
    parents: BTreeMap<i32, i32>,
    left_alone: BTreeSet<i32>,
}

impl Family {
    fn new(system: &impl System, state: &State) -> io::Result<Family> {
        let mut written: BTreeMap<i32, BTreeSet<u16>> = BTreeMap::new();
        for record in state.records() {
            if lives(system, record.tid, record.start) {
                written.entry(record.pid).or_default().insert(record.set);
            }
        }
        let mut parents = BTreeMap::new();
        for pid in system.processes()? {
            // Of one tick, the later ones cannot be told from the youngest.
            if let Some(stat) = system.stat(pid).filter(|stat| stat.start >= state.seen) {
                parents.insert(pid, stat.parent);
            }
        }
        let left_alone = state.left_alone.iter().filter(|k| lives(system, k.tid, k.start));
        Ok(Family { written, parents, left_alone: left_alone.map(|k| k.tid).collect() })
    }

    /// What a process, or who started it, has been given.
    fn carried(&self, mut pid: i32) -> Option<&BTreeSet<u16>> {
        for _ in 0..=self.parents.len() {
            if let Some(carried) = self.written.get(&pid) {
                return Some(carried);
            }
            // What comes from one that is left alone has its priority.
            if self.left_alone.contains(&pid) {
                return None;
            }
            pid = *self.parents.get(&pid)?;
        }
        None
    }
}
