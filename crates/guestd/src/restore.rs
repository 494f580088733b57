//! Putting priorities back: at the agent's end, after its death, at its next start.

use crate::events::Event;
use crate::state::{Record, State};
use crate::system::System;
use seekway_core::ioprio::CLASS_NONE;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// Threads start others, with the priority they have, while this goes on.
const ROUNDS_MAX: usize = 5;

/// Result of putting back.
#[derive(Debug)]
pub struct Outcome {
    /// To be said, as [`Event::Restored`].
    pub event: Event,
    /// Changes still to be put back, if any.
    pub left: Option<State>,
    /// The last look at all threads still found inherited tags.
    pub unfinished: bool,
}

/// Restores the threads that `state` records, and those that have inherited a tag.
///
/// A thread is left alone when its priority is not the one that the agent gave it. Threads that
/// inherited a tag are found by their priority: nobody else sets such hints.
///
/// # Errors
/// Processes cannot be listed.
pub fn restore(system: &impl System, state: &State) -> io::Result<Outcome> {
    let mut tally = Tally::default();
    let threads = state.threads.iter().filter(|r| tally.put_back(system, r)).count();
    let threads = threads + state.left.iter().filter(|r| tally.put_back(system, r)).count();
    let mut inherited = 0;
    let mut unfinished = true;
    for _ in 0..ROUNDS_MAX {
        let found = take_inherited(system, state, &mut tally)?;
        inherited += found;
        if found == 0 {
            unfinished = false;
            break;
        }
    }
    let Tally { changed, failed } = tally;
    let event = Event::Restored { threads, inherited, changed, failed: failed.len() };
    let left = match (unfinished, failed.is_empty()) {
        // Inherited tags are found by all that were given.
        (true, _) => Some(state.clone()),
        (false, true) => None,
        (false, false) => {
            Some(State { left: failed.into_values().collect(), ..State::new(state.boot.clone()) })
        }
    };
    Ok(Outcome { event, left, unfinished })
}

/// Threads that are not as they were.
#[derive(Default)]
struct Tally {
    changed: usize,
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
fn take_inherited(system: &impl System, state: &State, tally: &mut Tally) -> io::Result<usize> {
    let of_left = state.left.iter().map(|r| r.set);
    let given: BTreeSet<u16> = state.given.iter().copied().chain(of_left).collect();
    let mut found = 0;
    for pid in system.processes()? {
        for tid in system.threads(pid) {
            // A failure before is a failure now.
            if tally.failed.contains_key(&tid) {
                continue;
            }
            let set = system.priority(tid).ok().filter(|now| given.contains(now));
            let start = system.stat(tid).map(|stat| stat.start);
            if let (Some(set), Some(start)) = (set, start) {
                let record = Record { pid, tid, start, original: CLASS_NONE, set };
                found += usize::from(tally.change(system, &record));
            }
        }
    }
    Ok(found)
}
