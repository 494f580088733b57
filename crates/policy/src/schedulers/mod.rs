//! The registry of scheduling policies. A new policy is one file here and one
//! line in [`REGISTRY`]; the command line, its help, the documentation, the
//! conformance and the golden tests follow from it.

mod anticipatory;
mod cats;
mod cfq;
mod cscan;
mod deadline;
mod issuers;
mod look;
mod merge;
mod noop;
mod pregather;
mod sstf;
#[cfg(test)]
mod testing;
mod vmcd;
mod vmcd_time;

use crate::params::{ParamError, ParamSpec, Params, parse_spec};
use crate::scheduler::Scheduler;

/// A policy as the registry knows it.
pub struct Entry {
    /// The name on the command line.
    pub name: &'static str,
    /// One line: what it does.
    pub summary: &'static str,
    /// Where it comes from: paper and section, or kernel file and version.
    pub source: &'static str,
    /// Its parameters with their defaults.
    pub params: &'static [ParamSpec],
    /// The causes for which it withholds work, as its decisions name them.
    pub holds: &'static [&'static str],
    /// A new instance. Fails only for combinations that no single value shows.
    pub build: fn(&Params) -> Result<Box<dyn Scheduler>, ParamError>,
}

/// All policies, in the order in which tables list them.
pub static REGISTRY: &[Entry] = &[
    noop::ENTRY,
    deadline::ENTRY,
    cscan::ENTRY,
    look::ENTRY,
    sstf::ENTRY,
    anticipatory::ENTRY,
    cfq::ENTRY,
    pregather::ENTRY,
    cats::ENTRY,
    vmcd::ENTRY,
    vmcd_time::ENTRY,
];

/// The entry of that name.
pub fn find(name: &str) -> Result<&'static Entry, ParamError> {
    REGISTRY.iter().find(|e| e.name == name).ok_or_else(|| {
        let names: Vec<&str> = REGISTRY.iter().map(|e| e.name).collect();
        ParamError::new(format!("no policy '{name}'; there are {}", names.join(", ")))
    })
}

/// Every cause for which some policy withholds work, sorted by name.
pub fn hold_causes() -> Vec<&'static str> {
    let mut causes: Vec<&str> = REGISTRY.iter().flat_map(|e| e.holds).copied().collect();
    causes.sort_unstable();
    causes.dedup();
    causes
}

/// Build a policy from `name:key=value,key=value`.
pub fn build(text: &str) -> Result<Box<dyn Scheduler>, ParamError> {
    let spec = parse_spec(text)?;
    let entry = find(spec.name)?;
    (entry.build)(&Params::with(entry.params, spec.name, &spec.given)?)
}
