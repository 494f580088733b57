//! The threads of a process that has a tag of its own.

use super::*;

/// Result of a look at one thread.
enum Found {
    /// The thread has the priority it should have, or is left alone already.
    Settled,
    /// The thread needs the tag; its start time and the priority that it has now.
    Change(u64, u16),
    /// The thread is left alone from now on; the event that reports it, if any.
    Leave(Option<Event>),
}

impl Tagger {
    /// Find threads that do not carry a tag of the process's own and may be
    /// given it. The first one gives it such a tag.
    pub(super) fn look_at_threads(
        &mut self,
        system: &impl System,
        pid: i32,
        now: Instant,
        changes: &mut Vec<Change>,
    ) {
        let tids = system.threads(pid);
        let process = self.processes.get_mut(&pid).expect("met");
        process.threads.retain(|tid, _| tids.binary_search(tid).is_ok());
        let before = changes.len();
        for tid in tids {
            let process = &self.processes[&pid];
            match self.look_at_thread(system, (pid, process), tid) {
                Found::Settled => {}
                Found::Change(start, found) => {
                    let set = self.own_priority(pid, now);
                    self.given.insert(set);
                    // A priority other than none was inherited.
                    let original = if is_untouched(found) { found } else { 0 };
                    let record = Record { pid, tid, start, original, set };
                    changes.push(Change { record, found });
                }
                Found::Leave(event) => {
                    let process = self.processes.get_mut(&pid).expect("met");
                    process.threads.insert(tid, Thread::LeftAlone);
                    self.events.extend(event);
                }
            }
        }
        if changes.len() == before {
            self.give_back_unused(pid, now);
        }
    }

    /// That of a tag of its own, which it is given if it has none.
    fn own_priority(&mut self, pid: i32, now: Instant) -> u16 {
        if !self.processes[&pid].owns() {
            self.own(pid, now);
        }
        let carried = self.processes[&pid].carried.expect("just given");
        ioprio::priority(carried.tag).expect("tags of the pool have a priority")
    }

    fn look_at_thread(
        &self,
        system: &impl System,
        (pid, process): (i32, &Process),
        tid: i32,
    ) -> Found {
        let known = process.threads.get(&tid);
        let ours = match known {
            Some(Thread::LeftAlone) => return Found::Settled,
            Some(Thread::Ours(record)) => Some(record),
            None => None,
        };
        let Ok(priority) = system.priority(tid) else { return Found::Settled };
        if ours.is_some_and(|record| record.set == priority) {
            return Found::Settled;
        }
        let Some(stat) = system.stat(tid) else { return Found::Settled };
        let (comm, shown) = (process.comm.clone(), shown(priority));
        if ours.is_some_and(|record| record.start == stat.start) {
            let event = Event::Overwritten { pid, comm, tid, priority: shown };
            return Found::Leave(Some(event));
        }
        if !system.schedules_normally(tid).unwrap_or(false) {
            return Found::Leave(None);
        }
        // It may have inherited the priority from a parent or another thread.
        if !is_untouched(priority) && !self.given.contains(&priority) {
            let event = Event::Foreign { pid, comm, tid, priority: shown };
            return Found::Leave(Some(event));
        }
        Found::Change(stat.start, priority)
    }

    /// Makes the changes, which are recorded by now. Threads that changed after the look wait for
    /// the next one.
    pub fn apply(&mut self, system: &impl System, changes: &[Change], now: Instant) {
        for of_process in changes.chunk_by(|a, b| a.record.pid == b.record.pid) {
            let pid = of_process[0].record.pid;
            let Some(process) = self.processes.get_mut(&pid) else { continue };
            let mut threads = 0;
            for Change { record, found } in of_process {
                let start = system.stat(record.tid).map(|stat| stat.start);
                let as_found = start == Some(record.start)
                    && system.priority(record.tid).is_ok_and(|now| now == *found);
                if !as_found {
                    continue;
                }
                match system.set_priority(record.tid, record.set) {
                    Ok(()) => {
                        process.threads.insert(record.tid, Thread::Ours(*record));
                        threads += 1;
                    }
                    Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(e) => {
                        let (comm, error) = (process.comm.clone(), e.to_string());
                        process.refused = true;
                        self.events.push(Event::Refused { pid, comm, error });
                        break;
                    }
                }
            }
            if let (true, Some(carried)) = (threads > 0, process.carried) {
                let (comm, tag) = (process.comm.clone(), carried.tag.get());
                let shared = carried.shared;
                self.events.push(Event::Tagged { pid, comm, tag, threads, shared });
            }
            self.give_back_unused(pid, now);
        }
    }
}

/// Tells whether no program has set it.
fn is_untouched(priority: u16) -> bool {
    ioprio::class(priority) == ioprio::CLASS_NONE
}
