//! A policy that moves every I/O task to a running vCPU, as soon as its own does not run.

use seekway_core::units::{Instant, Nanos};
use seekway_vcpu::*;
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Nomad {
    online: Option<VcpuSet>,
    runs: Option<VcpuSet>,
    /// Where each task is, and where it may be.
    tasks: BTreeMap<TaskId, (VcpuId, VcpuSet)>,
    under_way: Vec<TaskId>,
}

impl VcpuPolicy for Nomad {
    fn attach(&mut self, _: Instant, online: &VcpuSet) {
        (self.online, self.runs) = (Some(*online), Some(*online));
    }

    fn heard(&mut self, _: Instant, vcpu: VcpuId, sign: Sign) {
        let runs = self.runs.as_mut().expect("attached");
        match sign {
            Sign::Preempted | Sign::Lost { .. } | Sign::Idle => runs.remove(vcpu),
            Sign::Resumed | Sign::Beat { .. } => runs.insert(vcpu),
        }
    }

    fn window(&mut self, _: Instant, loads: &[TaskLoad]) {
        for load in loads {
            self.tasks.entry(load.task).or_insert((load.vcpu, load.allowed));
        }
    }

    fn moved(&mut self, _: Instant, task: TaskId, _: Outcome) {
        self.under_way.retain(|&other| other != task);
    }

    fn next(&mut self, _: Instant) -> Option<Action> {
        let runs = self.runs?;
        let idle = |task: &TaskId| !self.under_way.contains(task);
        let mut stuck = self.tasks.iter_mut().filter(|(t, (on, _))| idle(t) && !runs.contains(*on));
        let (task, to, within) = stuck.find_map(|(&task, (on, allowed))| {
            let to = runs.and(allowed).iter().next()?;
            *on = to;
            Some((task, to, runs.and(allowed)))
        })?;
        self.under_way.push(task);
        Some(Action::Move { task, to, within, by: Means::Pull })
    }

    fn windows(&self) -> Option<Nanos> {
        Some(Nanos::from_millis(5))
    }
}
