//! The deterministic simulator: sources of requests on one side, a model of a
//! device on the other, and between them the very stack and policies that
//! the host daemon runs.
//!
//! The same sources, policy, device and seed give the same result, to the last byte: no clock is
//! read, no thread runs, and events at the same instant are handled in a fixed order (completions,
//! then the host cache's answers, then arrivals by source, then the stack).
#![forbid(unsafe_code)]

pub mod engine;
mod host_fs;
pub mod layout;
pub mod metrics;
pub mod progress;
pub mod scenario;
pub mod vcpu;

pub use engine::{Host, HostCosts, Limits, Progress, Setup, SimError, run};
pub use layout::{Layout, LayoutError, Placement};
pub use metrics::{OpResult, RunResult, VmResult};
