//! A VM's load as tasks of its guest. Who drives it models the vCPUs: a task goes on when one
//! executes it, and the guest's kernel hears of a completion or a timer when one runs.
//!
//! A [`Source`](crate::Source) decides for itself when its VM computes. Here the same load
//! says only what each task needs next.

use crate::{AppReport, Issue, Source, SourceError, VmDisk};
use seekway_core::request::Extent;
use seekway_core::units::{Instant, Nanos};
use std::collections::VecDeque;

/// Condition for a task to go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// Time on a vCPU.
    Compute(Nanos),
    /// To be woken, or that this time comes, whatever is first.
    Wait {
        /// When a timer of its own wakes it.
        until: Option<Instant>,
        /// Does it wait for the disk (`io_schedule`)?
        io: bool,
    },
    /// Nothing: it has ended.
    Nothing,
}

/// The tasks of a VM. A pure state machine, like a [`Source`](crate::Source).
pub trait TaskSource: Send {
    /// The guest's disks, fixed for its lifetime, at least one; [`Issue::vm`] is one of them.
    fn disks(&self) -> &[VmDisk];

    /// The names of its tasks, fixed for its lifetime, at least one.
    fn tasks(&self) -> Vec<String>;

    /// Let `task` go on at `now`, until it needs something.
    ///
    /// # Errors
    /// As [`Source::poll`](crate::Source::poll).
    fn run(&mut self, now: Instant, task: u32) -> Result<Need, SourceError>;

    /// The guest's kernel hears that the request with this token is done.
    fn heard(&mut self, now: Instant, token: u64);

    /// The tasks that go on as soon as the kernel hears of this request.
    fn waiting_for(&self, token: u64) -> Vec<u32>;

    /// When the kernel's own timer goes off (its flusher and its journal).
    fn timer(&self) -> Option<Instant>;

    /// A vCPU executes what that timer is for.
    fn timer_due(&mut self, now: Instant);

    /// Append the tasks that were woken since the last call, and the requests to be issued.
    fn take(&mut self, woken: &mut Vec<u32>, issues: &mut Vec<Issue>);

    /// Time from the host's completion to the guest's interrupt.
    fn latency(&self) -> Nanos;

    /// Will it issue nothing more, and waits for nothing?
    fn finished(&self) -> bool;

    fn apps(&self) -> Vec<AppReport>;

    /// As [`Source::lacks`](crate::Source::lacks), by the number of the disk.
    fn lacks(&self, _disk: usize) -> Vec<Extent> {
        Vec::new()
    }
}

/// A bare source in a guest with one task, which makes its requests: each takes it a system
/// call's time, and it goes on when it hears of a completion or when its clock says so.
pub struct BareTask {
    source: Box<dyn Source>,
    /// CPU time of a request.
    call: Nanos,
    prepared: VecDeque<Issue>,
    issued: Vec<Issue>,
    is_woken: bool,
    waits: bool,
}

impl BareTask {
    /// The tasks of a source with one disk; `call` is the CPU time of a request.
    pub fn new(source: Box<dyn Source>, call: Nanos) -> BareTask {
        assert_eq!(source.vms().len(), 1, "a bare source has one disk");
        let (prepared, issued) = (VecDeque::new(), Vec::new());
        BareTask { source, call, prepared, issued, is_woken: false, waits: false }
    }
}

impl TaskSource for BareTask {
    fn disks(&self) -> &[VmDisk] {
        self.source.vms()
    }

    fn tasks(&self) -> Vec<String> {
        vec![self.source.vms()[0].name.clone()]
    }

    fn run(&mut self, now: Instant, _: u32) -> Result<Need, SourceError> {
        self.waits = false;
        // What it has computed for goes.
        self.issued.extend(self.prepared.pop_front());
        if self.prepared.is_empty() {
            let mut issues = Vec::new();
            self.source.poll(now, &mut issues)?;
            self.prepared.extend(issues);
        }
        if !self.prepared.is_empty() {
            return Ok(Need::Compute(self.call.max(Nanos::new(1))));
        }
        self.waits = true;
        Ok(Need::Wait { until: self.source.next_wake(), io: true })
    }

    fn heard(&mut self, now: Instant, token: u64) {
        self.source.completed(now, token);
        self.is_woken |= self.waits;
    }

    fn waiting_for(&self, _: u64) -> Vec<u32> {
        vec![0]
    }

    fn timer(&self) -> Option<Instant> {
        None
    }

    fn timer_due(&mut self, _: Instant) {}

    fn take(&mut self, woken: &mut Vec<u32>, issues: &mut Vec<Issue>) {
        woken.extend(std::mem::take(&mut self.is_woken).then_some(0));
        issues.append(&mut self.issued);
    }

    fn latency(&self) -> Nanos {
        Nanos::ZERO
    }

    fn finished(&self) -> bool {
        self.prepared.is_empty() && self.issued.is_empty() && self.source.finished()
    }

    fn apps(&self) -> Vec<AppReport> {
        self.source.apps()
    }
}
