//! A host whose processors are shared by the vCPUs of several VMs: what decides when
//! a guest's task runs, and so when it asks its disk for anything.
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

mod machine;
mod result;
mod spec;

pub use machine::Machine;
pub use result::{MachineResult, TaskResult, VmCpu};
pub use spec::{
    Ablation, Completes, Costs, Detector, GuestCpu, HostCpu, Load, MachineSpec, Start, TaskSpec,
    VmSpec,
};
