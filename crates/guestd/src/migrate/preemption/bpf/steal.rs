//! Preemption as KVM tells its guests of it (`bpf/steal.bpf.c`): exact.

use super::{EdgeParams, Edges, load, possible_vcpus};
use crate::migrate::bpf::{self, BpfError};
use seekway_core::units::Nanos;
use std::sync::Arc;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/steal.bpf.o"));

/// Shorter absences are ignored: the least that the heartbeat can see, half a period of 300 us
/// (algorithms.md, section 7).
const LEAST: Nanos = Nanos::from_micros(150);
/// From one look at the other vCPUs to the next.
const LOOK: Nanos = Nanos::from_micros(100);

/// Answers of the program `steal_told`.
const NOT_TOLD: u32 = 1;
const TOLD: u32 = 2;

const NOT_TOLD_WHY: &str = "the host does not tell this guest when its vCPUs are taken away: it is \
                            not run by KVM, or KVM's steal time is off";

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

/// Loads the programs for this number of vCPUs.
fn with(vcpus: usize) -> Result<Arc<Edges>, BpfError> {
    let steal_from_rq = bpf::distance("runqueues", "steal_time")?;
    let given = EdgeParams { least: LEAST, look: LOOK, vcpus, steal_from_rq, blur: Nanos::ZERO };
    let mut edges = load("steal", OBJECT, given)?;
    match edges.programs.run("steal_told")? {
        TOLD => {}
        NOT_TOLD => return Err(BpfError::Absent(NOT_TOLD_WHY.into())),
        _ => return Err(BpfError::Absent("steal_time was not found in the kernel".into())),
    }
    edges.programs.attach()?;
    Ok(Arc::new(edges))
}

/// Tells whether KVM offers steal time, by the processor's own flags, which the kernel follows
/// (arch/x86/kernel/kvm.c, Documentation/virt/kvm/x86/cpuid.rst). The kernel's command line may
/// still disable it. `None` where programs cannot know.
fn kvm_offers_steal_time() -> Option<bool> {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__cpuid, CpuidResult};
        const HYPERVISOR: u32 = 1 << 31;
        const STEAL_TIME: u32 = 1 << 5;
        // SAFETY: every x86-64 has the instruction, and it changes nothing. (Safe to call from
        // Rust 1.94 on.)
        #[allow(unused_unsafe)]
        let cpuid = |leaf: u32| -> CpuidResult { unsafe { __cpuid(leaf) } };
        let is_kvm = |leaf: &u32| {
            let words = cpuid(*leaf);
            [words.ebx, words.ecx, words.edx].map(u32::to_le_bytes).concat() == b"KVMKVMKVM\0\0\0"
        };
        // Beside another hypervisor's (Hyper-V) it may be at any of these addresses.
        let mut bases = (0x4000_0000..0x4001_0000).step_by(0x100);
        let base = if cpuid(1).ecx & HYPERVISOR != 0 { bases.find(is_kvm) } else { None };
        Some(base.is_some_and(|base| cpuid(base + 1).eax & STEAL_TIME != 0))
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

#[cfg(test)]
mod tests;
