//! Which process gets which tag, and which threads have to be changed for it.
//!
//! A turn has two halves: [`Tagger::scan`] looks and returns the changes that it wants,
//! [`Tagger::apply`] makes them. The caller writes the state file in between, so every change
//! that is made can be undone.
//!
//! A process is tagged when it does I/O (bytes of its threads in `/proc/PID/task/TID/io`
//! grow, or it waits for a disk), at once when it is chosen by name or number, or when it is
//! new and the kernel announces new processes. Children inherit a tag from the kernel; a
//! child that does I/O gets a tag of its own.

#[cfg(test)]
mod tests;

use crate::events::{Event, shown};
use crate::pool::Pool;
use crate::procfs::Stat;
use crate::state::{Record, State};
use crate::system::System;
use seekway_core::ioprio;
use seekway_core::ioprio::{HINT_MAX, HINT_MIN};
use seekway_core::request::ProcessTag;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

/// Time for which a freed tag is not given to another process: longer than the host remembers a
/// stream.
pub const REST: Duration = Duration::from_secs(5);

/// Scans from one look at control groups and exited processes to the next.
const SELDOM: u64 = 10;

/// Which processes are tagged.
#[derive(Clone, Default, Debug)]
pub struct Selection {
    /// Process names, cut as by the kernel and escaped as by [`Stat`].
    pub comms: Vec<String>,
    pub pids: Vec<i32>,
}

impl Selection {
    /// From names and numbers as the user wrote them.
    pub fn new(comms: &[String], pids: &[i32]) -> Selection {
        // The kernel keeps 15 bytes of a name.
        let cut = |name: &String| {
            let bytes = &name.as_bytes()[..name.len().min(15)];
            String::from_utf8_lossy(bytes).escape_debug().to_string()
        };
        Selection { comms: comms.iter().map(cut).collect(), pids: pids.to_vec() }
    }

    /// Whether the user named no process: then all are tagged.
    pub fn is_all(&self) -> bool {
        self.comms.is_empty() && self.pids.is_empty()
    }

    /// Whether the user named this process.
    pub fn names(&self, pid: i32, comm: &str) -> bool {
        self.pids.contains(&pid) || self.comms.iter().any(|c| c == comm)
    }
}

/// A tag and whether it is the process's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Carried {
    tag: ProcessTag,
    own: bool,
    shared: bool,
}

/// A thread of a process that has a tag of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Thread {
    /// The process carries the tag.
    Ours(Record),
    /// Another program set its priority, or its scheduling class has its own.
    LeftAlone,
}

/// A thread that needs a tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    record: Record,
    /// The priority that it had at the look.
    found: u16,
}

#[derive(Clone, Debug)]
struct Process {
    start: u64,
    comm: String,
    kernel: bool,
    /// Named by the selection, or a descendant of such a process.
    chosen: bool,
    /// The kernel refused a change; it is not tried again.
    refused: bool,
    /// At the last look; `None` if the kernel does not show it.
    io_bytes: Option<u64>,
    /// `io_bytes` of each of its threads.
    thread_io_bytes: BTreeMap<i32, u64>,
    carried: Option<Carried>,
    /// The tag that it had inherited from a tagged process.
    inherited: Option<ProcessTag>,
    threads: BTreeMap<i32, Thread>,
}

/// The tagged processes, their threads and the pool of tags.
#[derive(Debug)]
pub struct Tagger {
    selection: Selection,
    /// The kernel announces new processes, so they are tagged before their first I/O.
    eager: bool,
    pool: Pool,
    processes: BTreeMap<i32, Process>,
    /// Every priority that was given.
    given: BTreeSet<u16>,
    scans: u64,
    events: Vec<Event>,
    /// Control groups that were reported.
    groups: BTreeSet<String>,
}

impl Tagger {
    /// Makes a tagger without tags. `eager`: [`Tagger::look_at`] reports new processes as soon as
    /// they start.
    pub fn new(selection: Selection, eager: bool) -> Tagger {
        Tagger {
            selection,
            eager,
            pool: Pool::new((HINT_MIN, HINT_MAX), REST),
            processes: BTreeMap::new(),
            given: BTreeSet::new(),
            scans: 0,
            events: Vec::new(),
            groups: BTreeSet::new(),
        }
    }

    /// Looks at all processes, and returns the changes to make. The first scan only learns each
    /// process's totals, and tags those that were chosen.
    ///
    /// # Errors
    /// Processes cannot be listed.
    pub fn scan(&mut self, system: &impl System, now: Instant) -> io::Result<Vec<Change>> {
        let pids = system.processes()?;
        let here: BTreeSet<i32> = pids.iter().copied().collect();
        let known = self.processes.keys().copied();
        let gone: Vec<i32> = known.filter(|pid| !here.contains(pid)).collect();
        gone.into_iter().for_each(|pid| self.forget(pid, now));
        let mut changes = Vec::new();
        for pid in pids {
            self.look(system, pid, now, &mut changes);
        }
        self.scans += 1;
        self.pool.tidy(now);
        Ok(changes)
    }

    /// Look at some processes that are new or run another program.
    pub fn look_at(&mut self, system: &impl System, pids: &[i32], now: Instant) -> Vec<Change> {
        let mut changes = Vec::new();
        for &pid in pids {
            // Another process may have taken a kernel thread's number.
            if let Some(process) = self.processes.get_mut(&pid) {
                process.kernel = false;
            }
            self.look(system, pid, now, &mut changes);
        }
        changes
    }

    /// Takes the events after the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Updates `state` to hold `changes` before they are made. Returns true if that changes it.
    pub fn write_down(&self, changes: &[Change], state: &mut State) -> bool {
        let known = self.processes.values().flat_map(|process| process.threads.values());
        let ours = known.filter_map(|thread| match thread {
            Thread::Ours(record) => Some(*record),
            Thread::LeftAlone => None,
        });
        let mut threads: Vec<Record> = ours.chain(changes.iter().map(|c| c.record)).collect();
        threads.sort_unstable_by_key(|r| (r.pid, r.tid));
        let given: Vec<u16> = self.given.iter().copied().collect();
        if (&given, &threads) == (&state.given, &state.threads) {
            return false;
        }
        (state.given, state.threads) = (given, threads);
        true
    }

    fn look(&mut self, system: &impl System, pid: i32, now: Instant, changes: &mut Vec<Change>) {
        let seldom = self.scans.is_multiple_of(SELDOM);
        if !seldom && self.processes.get(&pid).is_some_and(|p| p.kernel) {
            return;
        }
        let Some(stat) = system.stat(pid) else {
            self.forget(pid, now);
            return;
        };
        if self.processes.get(&pid).is_some_and(|p| p.start != stat.start) {
            self.forget(pid, now);
        }
        if !self.processes.contains_key(&pid) {
            self.meet(system, pid, &stat, now);
        }
        if stat.kernel {
            self.processes.get_mut(&pid).expect("met").kernel = true;
            return;
        }
        let is_new = self.processes[&pid].io_bytes.is_none();
        let active = self.has_worked(system, pid, &stat);
        let process = self.processes.get_mut(&pid).expect("met");
        if process.comm != stat.comm {
            // It runs another program.
            process.comm = stat.comm;
            process.chosen |= self.selection.names(pid, &process.comm);
        }
        if let (true, Some(carried)) = (active, process.carried) {
            self.pool.active(carried.tag, now);
        }
        let named = process.chosen && !self.selection.is_all();
        let early = self.eager && is_new && self.scans > 0 && self.pool.has_plenty();
        let owned = process.owns();
        if process.refused || !process.chosen || !(active || named || early || owned) {
            return;
        }
        if !owned || active || seldom {
            self.look_at_threads(system, pid, now, changes);
        }
        let owns = self.processes[&pid].owns();
        if owns && (!owned || seldom) {
            self.look_at_group(system, pid);
        }
    }

    /// Does it wait for a disk, or has it moved bytes since the last look?
    fn has_worked(&mut self, system: &impl System, pid: i32, stat: &Stat) -> bool {
        let process = self.processes.get_mut(&pid).expect("met");
        let Ok(bytes) = system.io_bytes(pid) else { return stat.waits };
        // A process that was not there at the first scan began with nothing.
        let is_first = process.io_bytes.is_none() && self.scans == 0;
        let before = process.io_bytes.replace(bytes).unwrap_or_default();
        if bytes == before {
            return stat.waits;
        }
        // They may have been children: their bytes are added to their parent when it waits for
        // them, and never to one of its threads.
        let of_threads = system.threads(pid).into_iter();
        let of_threads = of_threads.filter_map(|t| Some((t, system.thread_io_bytes(pid, t).ok()?)));
        let of_threads: BTreeMap<i32, u64> = of_threads.collect();
        let before = std::mem::replace(&mut process.thread_io_bytes, of_threads);
        let grown = |(tid, bytes): (&i32, &u64)| *bytes > before.get(tid).copied().unwrap_or(0);
        stat.waits || (!is_first && process.thread_io_bytes.iter().any(grown))
    }

    /// A process that is new here.
    fn meet(&mut self, system: &impl System, pid: i32, stat: &Stat, now: Instant) {
        let parent = self.processes.get(&stat.parent);
        let chosen = self.selection.is_all()
            || self.selection.names(pid, &stat.comm)
            || parent.is_some_and(|p| p.chosen);
        let priority = if stat.kernel { 0 } else { system.priority(pid).unwrap_or(0) };
        let inherited = ioprio::tag(priority.into()).filter(|_| self.given.contains(&priority));
        if let Some(tag) = inherited {
            self.pool.carry(tag, now);
        }
        let process = Process {
            start: stat.start,
            comm: stat.comm.clone(),
            kernel: stat.kernel,
            chosen,
            refused: false,
            io_bytes: None,
            thread_io_bytes: BTreeMap::new(),
            carried: inherited.map(|tag| Carried { tag, own: false, shared: false }),
            inherited,
            threads: BTreeMap::new(),
        };
        self.processes.insert(pid, process);
    }

    /// Gives the process a tag of its own, in place of an inherited one.
    fn own(&mut self, pid: i32, now: Instant) {
        let process = self.processes.get_mut(&pid).expect("met");
        if let Some(inherited) = process.carried.take() {
            self.pool.drop_carrier(inherited.tag, now);
        }
        let (tag, shared) = self.pool.take(now);
        process.carried = Some(Carried { tag, own: true, shared });
    }

    /// A tag that none of its threads could be given, or has any more.
    fn give_back_unused(&mut self, pid: i32, now: Instant) {
        let process = self.processes.get_mut(&pid).expect("met");
        if process.threads.values().any(|t| matches!(t, Thread::Ours(_))) {
            return;
        }
        if let Some(own) = process.carried.take_if(|c| c.own) {
            self.pool.drop_carrier(own.tag, now);
            if let Some(tag) = process.inherited {
                self.pool.carry(tag, now);
                process.carried = Some(Carried { tag, own: false, shared: false });
            }
        }
    }

    /// Ends a process: its tag rests if nobody else carries it.
    fn forget(&mut self, pid: i32, now: Instant) {
        let Some(process) = self.processes.remove(&pid) else { return };
        let Some(carried) = process.carried else { return };
        self.pool.drop_carrier(carried.tag, now);
        if carried.own {
            self.events.push(Event::Ended { pid, tag: carried.tag.get() });
        }
    }

    fn look_at_group(&mut self, system: &impl System, pid: i32) {
        let Some((group, class)) = system.io_class(pid) else { return };
        // block/blk-ioprio.c: restrict-to-be leaves best effort as it is, and
        // before Linux 6.5 none-to-rt did too.
        let replaces = ["promote-to-rt", "none-to-rt", "idle"].contains(&class.as_str());
        if replaces && self.groups.insert(group.clone()) {
            self.events.push(Event::Group { group, class });
        }
    }
}

impl Process {
    fn owns(&self) -> bool {
        self.carried.is_some_and(|c| c.own)
    }
}

// The agent's activity, for its status file.

/// The whole. JSON keys stay.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Status {
    /// `hints`: how tags are encoded in priorities.
    pub encoding: &'static str,
    /// Tags that there are.
    pub tags: usize,
    /// Tags that some process carries.
    pub carried: usize,
    /// Processes with a tag of their own, by their numbers.
    pub processes: Vec<ProcessStatus>,
    /// Control groups whose `io.prio.class` replaces tags.
    pub groups: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ProcessStatus {
    pub pid: i32,
    pub comm: String,
    /// Its tag, as the host sees it.
    pub tag: u16,
    /// Other processes had the same when it was given.
    pub shared: bool,
    /// Threads that carry it.
    pub threads: usize,
    /// Threads with another program's priorities, or of a scheduling class that has its own.
    pub left_alone: usize,
    /// Bytes moved from and to disks since the process began.
    pub io_bytes: u64,
}

impl Tagger {
    /// The agent's present activity, process by process.
    pub fn status(&self) -> Status {
        let tagged = self.processes.iter().filter_map(|(&pid, process)| {
            let carried = process.carried.filter(|c| c.own)?;
            let ours = process.threads.values().filter(|t| matches!(t, Thread::Ours(_))).count();
            Some(ProcessStatus {
                pid,
                comm: process.comm.clone(),
                tag: carried.tag.get(),
                shared: carried.shared,
                threads: ours,
                left_alone: process.threads.len() - ours,
                io_bytes: process.io_bytes.unwrap_or_default(),
            })
        });
        Status {
            encoding: "hints",
            tags: self.pool.size(),
            carried: self.pool.carried(),
            processes: tagged.collect(),
            groups: self.groups.iter().cloned().collect(),
        }
    }
}

// The threads of a process that has a tag of its own.

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
    fn look_at_threads(
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
