//! Nothing is done: host and guest schedule as they do.

use super::{Action, Entry, Outcome, Sign, TaskId, TaskLoad, VcpuId, VcpuPolicy, VcpuSet};
use crate::units::Instant;

pub(super) const ENTRY: Entry = Entry {
    name: "vanilla",
    summary: "nothing: tasks stay where the guest's scheduler has them",
    source: "vMigrater, section 2.3",
    params: &[],
    build: |_| Ok(Box::new(Vanilla)),
};

struct Vanilla;

impl VcpuPolicy for Vanilla {
    fn attach(&mut self, _now: Instant, _online: &VcpuSet) {}
    fn heard(&mut self, _at: Instant, _vcpu: VcpuId, _sign: Sign) {}
    fn window(&mut self, _now: Instant, _loads: &[TaskLoad]) {}
    fn moved(&mut self, _now: Instant, _task: TaskId, _outcome: Outcome) {}
    fn next(&mut self, _now: Instant) -> Option<Action> {
        None
    }
}
