//! The registry of policies for virtual CPUs. A new one is one file here and one
//! line in [`REGISTRY`]; the command line, its help, the documentation and the
//! conformance tests follow from it.

use super::{VcpuPolicy, vanilla, vmigrater, vsched, vslicer, xballoon};
use seekway_core::params::ParamError;
use seekway_core::registry::{PolicyEntry, Registry};

/// A policy as the registry knows it.
pub type Entry = PolicyEntry<dyn VcpuPolicy>;

/// All policies for virtual CPUs, in the order in which tables list them.
pub static REGISTRY: Registry<Entry> = Registry::new(
    "vCPU policy",
    &[vanilla::ENTRY, vslicer::ENTRY, xballoon::ENTRY, vsched::ENTRY, vmigrater::ENTRY],
);

/// Build a policy from `name:key=value,key=value`.
///
/// # Errors
/// An unknown name or parameter, or values that cannot be.
pub fn build(text: &str) -> Result<Box<dyn VcpuPolicy>, ParamError> {
    REGISTRY.build(text)
}
