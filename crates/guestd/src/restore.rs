//! Putting priorities back: at the agent's end, after its death, at its next start.

use crate::events::Event;
use crate::state::State;
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
/// Heirs are found by the priorities given: where these are hints, nobody else
/// sets them; where they are levels, only below processes that were tagged.
///
/// # Errors
/// Processes cannot be listed.
pub fn restore(system: &impl System, state: &State) -> io::Result<Event> {
    let (mut threads, mut changed, mut failed) = (0, 0, 0);
    for record in &state.threads {
        // Gone, or another thread of the same number.
        if system.stat(record.tid).is_none_or(|s| s.start != record.start) {
            continue;
        }
        match system.priority(record.tid) {
            Ok(now) if now == record.set => {
                match system.set_priority(record.tid, record.original) {
                    Ok(()) => threads += 1,
                    Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(_) => failed += 1,
                }
            }
            // Written down, and the agent died before the change.
            Ok(now) if now == record.original => {}
            Ok(_) => changed += 1,
            Err(_) => {}
        }
    }
    let mut heirs = 0;
    for _ in 0..ROUNDS_MAX {
        let found = take_from_heirs(system, state)?;
        if found == 0 {
            break;
        }
        heirs += found;
    }
    Ok(Event::Restored { threads, heirs, changed, failed })
}

/// One look at all threads; how many were changed.
fn take_from_heirs(system: &impl System, state: &State) -> io::Result<usize> {
    let given: BTreeSet<u16> = state.given.iter().copied().collect();
    let pids = system.processes()?;
    let parents: BTreeMap<i32, i32> = match state.hints {
        true => BTreeMap::new(),
        false => pids.iter().filter_map(|&pid| Some((pid, system.stat(pid)?.parent))).collect(),
    };
    let tagged: BTreeSet<i32> = state.threads.iter().map(|r| r.pid).collect();
    let mut found = 0;
    for pid in pids {
        if !state.hints && !descends(pid, &parents, &tagged) {
            continue;
        }
        for tid in system.threads(pid) {
            if system.priority(tid).is_ok_and(|now| given.contains(&now)) {
                // What could not be done before cannot be done now.
                found += usize::from(system.set_priority(tid, CLASS_NONE).is_ok());
            }
        }
    }
    Ok(found)
}

/// Is it, or does it come from, one of `tagged`?
fn descends(mut pid: i32, parents: &BTreeMap<i32, i32>, tagged: &BTreeSet<i32>) -> bool {
    for _ in 0..=parents.len() {
        if tagged.contains(&pid) {
            return true;
        }
        match parents.get(&pid) {
            Some(&parent) => pid = parent,
            None => return false,
        }
    }
    false
}
