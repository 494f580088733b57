//! The registry of scheduling policies. A new policy is one file here and one
//! line in [`REGISTRY`]; the command line, its help, the documentation, the
//! conformance and the golden tests follow from it.

mod anticipatory;
mod bfq;
mod cats;
mod cfq;
mod cscan;
mod deadline;
mod fairway;
mod iocost;
mod issuers;
mod kyber;
mod look;
mod mclock;
mod merge;
mod noop;
mod pregather;
mod sstf;
#[cfg(test)]
mod tests;
mod think;
mod vmcd;
mod vmcd_time;

use seekway_core::params::{ParamError, ParamSpec, Params};
use seekway_core::registry::{Registry, RegistryEntry};
use seekway_core::scheduler::{Promise, Scheduler};

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
    /// Service-level targets, of those that an operator may set for a VM, that the policy meets.
    pub keeps: &'static [Promise],
    /// Where its source lets a VM wait without end; elsewhere none waits for 30 s without service.
    pub starves: &'static [Starves],
    /// A new instance. Fails only for combinations that no single value shows.
    pub build: fn(&Params) -> Result<Box<dyn Scheduler>, ParamError>,
}

/// Parameters with which a policy leaves a VM without service while others keep the device busy.
pub struct Starves {
    /// `key=value,key=value`; empty for the defaults, and so for all that keep the rule.
    pub with: &'static str,
    /// The rule of its source that does it.
    pub why: &'static str,
}

impl RegistryEntry for Entry {
    fn name(&self) -> &'static str {
        self.name
    }
    fn summary(&self) -> &'static str {
        self.summary
    }
    fn params(&self) -> &'static [ParamSpec] {
        self.params
    }
}

/// All scheduling policies, in the order in which tables list them.
pub static REGISTRY: Registry<Entry> = Registry::new(
    "policy",
    &[
        fairway::ENTRY,
        noop::ENTRY,
        deadline::ENTRY,
        cscan::ENTRY,
        look::ENTRY,
        sstf::ENTRY,
        anticipatory::ENTRY,
        cfq::ENTRY,
        bfq::ENTRY,
        kyber::ENTRY,
        mclock::ENTRY,
        iocost::ENTRY,
        pregather::ENTRY,
        cats::ENTRY,
        vmcd::ENTRY,
        vmcd_time::ENTRY,
    ],
);

/// Every cause for which some policy withholds work, sorted by name.
pub fn hold_causes() -> Vec<&'static str> {
    let mut causes: Vec<&str> = REGISTRY.iter().flat_map(|e| e.holds).copied().collect();
    causes.sort_unstable();
    causes.dedup();
    causes
}

/// Build a policy from `name:key=value,key=value`.
///
/// # Errors
/// An unknown name or parameter, or values that cannot be.
pub fn build(text: &str) -> Result<Box<dyn Scheduler>, ParamError> {
    let (entry, params) = REGISTRY.parse(text)?;
    (entry.build)(&params)
}
