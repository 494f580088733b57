//! Preemption as KVM tells its guests of it (`bpf/steal.bpf.c`): exact.

use super::{EdgeParams, Edges, load, possible_vcpus};
use crate::migrate::bpf::{self, BpfError};
use crate::migrate::preemption::stat::kvm_offers_steal_time;
use seekway_policy::units::Nanos;
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

const NOT_TOLD_WHY: &str = "the host does not tell this guest when its vCPUs are taken away: it is \
                            not run by KVM, or KVM's steal time is off";

/// As `status` names it.
pub const NAME: &str = "steal-bpf";

/// Load the programs.
///
/// # Errors
/// The host's KVM tells this guest nothing, there is no KVM, or BPF is not allowed.
pub fn open() -> Result<Arc<Edges>, BpfError> {
    // To find that out by the programs takes some 20 ms natively, seconds where TCG
    // emulates.
    if kvm_offers_steal_time() == Some(false) {
        return Err(BpfError::Absent(NOT_TOLD_WHY.into()));
    }
    with(possible_vcpus()?)
}

/// For so many vCPUs.
fn with(vcpus: usize) -> Result<Arc<Edges>, BpfError> {
    let steal_from_rq = bpf::distance("runqueues", "steal_time")?;
    let given = EdgeParams { least: LEAST, look: LOOK, vcpus, steal_from_rq, blur: Nanos::ZERO };
    let mut edges = load((NAME, "steal"), OBJECT, given)?;
    match edges.programs.run("steal_told")? {
        TOLD => {}
        NOT_TOLD => return Err(BpfError::Absent(NOT_TOLD_WHY.into())),
        _ => return Err(BpfError::Absent("steal_time was not found in the kernel".into())),
    }
    edges.programs.attach()?;
    Ok(Arc::new(edges))
}

#[cfg(test)]
mod tests;
