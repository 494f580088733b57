//! A source that notes what becomes of each of its requests.

use crate::{AppReport, Issue, Source, SourceError, VmDisk};
use seekway_core::request::Op;
use seekway_core::units::{Instant, Lba, Sectors};
use std::collections::HashMap;
use std::sync::Mutex;

/// A request that is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// The VM's disk, counted over all sources of a run.
    pub vm: u16,
    /// The process inside the guest that asked, if it is known.
    pub process: Option<u16>,
    pub op: Op,
    pub sync: bool,
    /// First sector on the VM's disk.
    pub start: Lba,
    pub len: Sectors,
    pub submitted: Instant,
    pub completed: Instant,
}

/// A source, all of whose requests are noted when they are done.
pub struct Recording<'a> {
    source: Box<dyn Source + 'a>,
    first_vm: u16,
    under_way: HashMap<u64, Recorded>,
    done: &'a Mutex<Vec<Recorded>>,
}

impl<'a> Recording<'a> {
    /// Notes in `done` what `source` issues; its first VM has the number `first_vm`.
    pub fn new(
        source: Box<dyn Source + 'a>,
        first_vm: u16,
        done: &'a Mutex<Vec<Recorded>>,
    ) -> Recording<'a> {
        Recording { source, first_vm, under_way: HashMap::new(), done }
    }
}

impl Source for Recording<'_> {
    fn vms(&self) -> &[VmDisk] {
        self.source.vms()
    }

    fn poll(&mut self, now: Instant, out: &mut Vec<Issue>) -> Result<(), SourceError> {
        let before = out.len();
        let polled = self.source.poll(now, out);
        for issue in &out[before..] {
            let recorded = Recorded {
                vm: self.first_vm + issue.vm,
                process: issue.tag.map(|tag| tag.get()),
                op: issue.op,
                sync: issue.sync,
                start: issue.start,
                len: issue.len,
                submitted: now,
                completed: now,
            };
            self.under_way.insert(issue.token, recorded);
        }
        polled
    }

    fn completed(&mut self, now: Instant, token: u64) {
        if let Some(recorded) = self.under_way.remove(&token) {
            self.done
                .lock()
                .expect("nobody panics with it")
                .push(Recorded { completed: now, ..recorded });
        }
        self.source.completed(now, token);
    }

    fn next_wake(&self) -> Option<Instant> {
        self.source.next_wake()
    }

    fn finished(&self) -> bool {
        self.source.finished()
    }

    fn apps(&self) -> Vec<AppReport> {
        self.source.apps()
    }
}
