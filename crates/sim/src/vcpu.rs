//! A host whose processors the vCPUs of several VMs share. Its scheduling decides when a guest's
//! task runs, and so when it asks its disk for anything.
//!
//! ```text
//!  tasks ─▶ guest's scheduler ─▶ vCPUs ─▶ host's scheduler ─▶ processors
//!    │            ▲                                │
//!    │            └── policy::vcpu ◀── signs ──────┘
//!    └─▶ Issue ─▶ engine ─▶ dispatcher ─▶ device ─▶ completed ─▶ interrupt of a vCPU
//! ```
//!
//! It is a [`Source`](seekway_workload::Source) like any other: the engine knows
//! nothing of processors, and the disk is the one of every other run.

mod agent;
mod build;
mod check;
mod events;
mod fair;
mod guest;
mod guests;
mod host;
mod irq;
mod machine;
mod measure;
mod moves;
mod outcome;
mod plans;
mod result;
mod spec;
mod state;
mod tasks;
#[cfg(test)]
mod tests;

pub use machine::Machine;
pub use plans::{PlannedVm, Processors};
pub use result::{MachineResult, PcpuResult, TaskResult, VmCpu};
pub use spec::{
    Ablation, Completes, Costs, Detector, GuestCpu, HostCpu, Load, MachineSpec, Start, TaskSpec,
    VmSpec,
};
