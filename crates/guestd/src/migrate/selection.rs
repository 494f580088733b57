//! Selects the processes whose tasks are moved: all, or the user's choice with its descendants.

use crate::system::System;
use crate::tagger::Selection as Chosen;
use seekway_core::units::{Instant, Nanos};
use std::collections::BTreeMap;

/// Time after which a process's program and parent are read again.
const KNOWN_FOR: Nanos = Nanos::from_secs(1);
/// Most steps from a process up to the first one, a bound for a tree that changes while it is read.
const ANCESTORS_MAX: usize = 64;
/// Processes that are remembered.
const KNOWN_MAX: usize = 4096;

/// The choice, and who was found to be in it.
pub struct Selection<S> {
    system: S,
    chosen: Chosen,
    /// Never to be moved: this process.
    own: i32,
    known: BTreeMap<i32, (bool, Instant)>,
}

impl<S: System> Selection<S> {
    /// Selects by the user's choice, without this process.
    pub fn new(system: S, chosen: Chosen, own: i32) -> Selection<S> {
        Selection { system, chosen, own, known: BTreeMap::new() }
    }

    /// Are the tasks of this process to be moved?
    pub fn has(&mut self, pid: i32, now: Instant) -> bool {
        if pid == self.own {
            return false;
        }
        if self.chosen.is_all() {
            return true;
        }
        match self.known.get(&pid) {
            Some(&(has, at)) if now.since(at) < KNOWN_FOR => has,
            _ => {
                if self.known.len() >= KNOWN_MAX {
                    self.known.clear();
                }
                let has = self.descends(pid);
                self.known.insert(pid, (has, now));
                has
            }
        }
    }

    /// Is it, or who started it, chosen?
    fn descends(&self, mut pid: i32) -> bool {
        for _ in 0..ANCESTORS_MAX {
            let Some(stat) = self.system.stat(pid) else { return false };
            if self.chosen.names(pid, &stat.comm) {
                return true;
            }
            pid = stat.parent;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::fake::Fake;

    fn selection(comms: &[&str], pids: &[i32]) -> Selection<Fake> {
        let fake = Fake::default();
        for (pid, parent, comm) in [(10, 1, "db"), (11, 10, "worker"), (12, 1, "other")] {
            fake.start(pid, parent, comm);
        }
        let comms: Vec<String> = comms.iter().map(ToString::to_string).collect();
        Selection::new(fake, Chosen::new(&comms, pids), 99)
    }

    fn chosen(selection: &mut Selection<Fake>, at: Instant) -> Vec<i32> {
        (10..100).filter(|pid| selection.has(*pid, at)).collect()
    }

    #[test]
    fn it_is_all_but_itself_or_the_chosen_and_what_they_start() {
        let now = Instant::ZERO;
        assert_eq!(chosen(&mut selection(&[], &[]), now), (10..99).collect::<Vec<_>>());
        assert_eq!(chosen(&mut selection(&["db"], &[]), now), [10, 11]);
        assert_eq!(chosen(&mut selection(&[], &[12, 99]), now), [12]);
    }

    #[test]
    fn a_process_that_runs_another_program_is_looked_at_again() {
        let mut s = selection(&["db"], &[]);
        assert_eq!(chosen(&mut s, Instant::ZERO), [10, 11]);
        s.system.exec(12, "db");
        assert_eq!(chosen(&mut s, Instant::ZERO), [10, 11]);
        assert_eq!(chosen(&mut s, Instant::ZERO + KNOWN_FOR), [10, 11, 12]);
    }
}
