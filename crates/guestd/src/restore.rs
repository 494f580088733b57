//! Putting priorities back: at the agent's end, after its death, at its next start.

use crate::events::Event;
use crate::state::{Record, State};
use crate::system::System;
use seekway_policy::ioprio::CLASS_NONE;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// Threads start others, with the priority they have, while this goes on.
const ROUNDS_MAX: usize = 5;

/// Put back what `state` tells of, and take what has been inherited from it
/// away; what came of it, as [`Event::Restored`].
///
/// A thread is left alone when its priority is not the one that it was given.
/// Heirs that are not written down are found by their priorities: where these
/// are hints, nobody else sets them; where they are levels, only new threads
/// and new children of processes that are written down, as what these carry.
///
/// # Errors
/// Processes cannot be listed.
pub fn restore(system: &impl System, state: &State) -> io::Result<Event> {
    let mut count = Count::default();
    let threads = state.threads.iter().filter(|r| count.put_back(system, r)).count();
    let mut heirs = state.heirs.iter().filter(|r| count.put_back(system, r)).count();
    for _ in 0..ROUNDS_MAX {
        let found = take_from_heirs(system, state)?;
        if found == 0 {
            break;
        }
        heirs += found;
    }
    let Count { changed, failed } = count;
    Ok(Event::Restored { threads, heirs, changed, failed })
}

/// Threads that are not as they were.
#[derive(Default)]
struct Count {
    changed: usize,
    failed: usize,
}

impl Count {
    /// True when the thread has been put back.
    fn put_back(&mut self, system: &impl System, record: &Record) -> bool {
        if !lives(system, record.tid, record.start) {
            return false;
        }
        match system.priority(record.tid) {
            Ok(now) if now == record.set => {
                let set = system.set_priority(record.tid, record.original);
                let gone = |e: &io::Error| e.raw_os_error() == Some(libc::ESRCH);
                self.failed += usize::from(set.as_ref().is_err_and(|e| !gone(e)));
                return set.is_ok();
            }
            // Written down, and the agent died before the change.
            Ok(now) if now == record.original => {}
            Ok(_) => self.changed += 1,
            Err(_) => {}
        }
        false
    }
}

/// Neither gone, nor another thread of the same number.
fn lives(system: &impl System, tid: i32, start: u64) -> bool {
    system.stat(tid).is_some_and(|s| s.start == start)
}

/// One look at all threads; how many were changed.
fn take_from_heirs(system: &impl System, state: &State) -> io::Result<usize> {
    let given: BTreeSet<u16> = state.given.iter().copied().collect();
    let family = if state.hints { None } else { Some(Family::new(system, state)?) };
    let mut found = 0;
    for pid in system.processes()? {
        let Some(carried) = family.as_ref().map_or(Some(&given), |f| f.carried(pid)) else {
            continue;
        };
        for tid in system.threads(pid) {
            let heir = system.priority(tid).is_ok_and(|now| carried.contains(&now))
                && !family.as_ref().is_some_and(|f| f.left_alone.contains(&tid));
            // What could not be done before cannot be done now.
            found += usize::from(heir && system.set_priority(tid, CLASS_NONE).is_ok());
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
        for record in state.threads.iter().chain(&state.heirs) {
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
