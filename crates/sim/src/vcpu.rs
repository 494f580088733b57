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
mod guest;
mod guests;
mod machine;
mod spec;
mod state;
#[cfg(test)]
mod tests;

pub use crate::metrics::{MachineResult, PcpuResult, TaskResult, VmCpu};
pub use build::{PlannedVm, Processors};
pub use machine::Machine;
pub use spec::{
    Ablation, Completes, Costs, Detector, GuestCpu, HostCpu, Load, MachineSpec, Start, TaskSpec,
    VmSpec,
};
