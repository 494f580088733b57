//! The agent's activity, for its status file.

use super::*;
use serde::Serialize;

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
