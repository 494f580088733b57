//! Preemption as KVM tells its guests of it (`bpf/steal.bpf.c`): exact.

use super::{Edges, Given, load, possible_vcpus, watch};
use crate::migrate::bpf::{self, BpfError};
use crate::migrate::preemption::{Monitor, Preemption};
use seekway_policy::units::Nanos;
use seekway_policy::vcpu::VcpuId;
use std::io;
use std::sync::Arc;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/steal.bpf.o"));

/// Who was away for less was not away: the least that the heartbeat can see, half a period
/// of 300 us (algorithms.md, section 7).
const LEAST: Nanos = Nanos::from_micros(150);
/// From one look at the other vCPUs to the next.
const LOOK: Nanos = Nanos::from_micros(100);

/// What the program `steal_told` answers.
const NOT_TOLD: u32 = 1;
const TOLD: u32 = 2;

/// The programs at work.
#[derive(Debug)]
pub struct Steal(Arc<Edges>);

impl Steal {
    /// As `status` names it.
    pub const NAME: &str = "steal-bpf";

    /// Load them.
    ///
    /// # Errors
    /// The host's KVM tells this guest nothing, there is no KVM, or BPF is not allowed.
    pub fn open() -> Result<Steal, BpfError> {
        Steal::with(possible_vcpus()?)
    }

    /// For so many vCPUs.
    fn with(vcpus: usize) -> Result<Steal, BpfError> {
        let steal_from_rq = bpf::distance("runqueues", "steal_time")?;
        let given = Given { least: LEAST, look: LOOK, vcpus, steal_from_rq };
        let mut edges = load("steal", OBJECT, given)?;
        match edges.programs.run("steal_told")? {
            TOLD => {}
            NOT_TOLD => {
                return Err(BpfError::Absent(
                    "the host does not tell this guest when its vCPUs are taken away: it is not \
                     run by KVM, or KVM's steal time is off"
                        .into(),
                ));
            }
            _ => return Err(BpfError::Absent("steal_time was not found in the kernel".into())),
        }
        edges.programs.attach()?;
        Ok(Steal(Arc::new(edges)))
    }

    /// What its programs cost.
    #[cfg(test)]
    pub fn costs(&self) -> Vec<bpf::Cost> {
        self.0.programs.costs()
    }
}

impl Preemption for Steal {
    fn name(&self) -> &'static str {
        Steal::NAME
    }

    fn exact(&self) -> bool {
        true
    }

    fn monitor(&self, vcpu: VcpuId) -> io::Result<Box<dyn Monitor>> {
        watch(&self.0, vcpu)
    }
}

#[cfg(test)]
mod tests;
