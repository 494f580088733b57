//! The registry of policies for virtual CPUs. A new one is one file here and one
//! line in [`REGISTRY`]; the command line, its help, the documentation and the
//! conformance tests follow from it.

use super::{VcpuPolicy, vanilla, vmigrater, vsched, vslicer, xballoon};
use crate::params::{ParamError, ParamSpec, Params, parse_spec};

/// A policy as the registry knows it.
pub struct Entry {
    /// The name on the command line.
    pub name: &'static str,
    /// One line: what it does.
    pub summary: &'static str,
    /// Where it comes from: paper and section.
    pub source: &'static str,
    /// Its parameters with their defaults.
    pub params: &'static [ParamSpec],
    /// A new instance. Fails only for combinations that no single value shows.
    pub build: fn(&Params) -> Result<Box<dyn VcpuPolicy>, ParamError>,
}

/// All policies, in the order in which tables list them.
pub static REGISTRY: &[Entry] =
    &[vanilla::ENTRY, vslicer::ENTRY, xballoon::ENTRY, vsched::ENTRY, vmigrater::ENTRY];

/// The entry of that name.
pub fn find(name: &str) -> Result<&'static Entry, ParamError> {
    REGISTRY.iter().find(|e| e.name == name).ok_or_else(|| {
        let names: Vec<&str> = REGISTRY.iter().map(|e| e.name).collect();
        ParamError::new(format!("no vCPU policy '{name}'; there are {}", names.join(", ")))
    })
}

/// Build a policy from `name:key=value,key=value`.
pub fn build(text: &str) -> Result<Box<dyn VcpuPolicy>, ParamError> {
    let spec = parse_spec(text)?;
    let entry = find(spec.name)?;
    (entry.build)(&Params::with(entry.params, spec.name, &spec.given)?)
}
