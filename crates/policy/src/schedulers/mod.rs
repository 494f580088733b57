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
mod kyber;
mod look;
mod mclock;
mod noop;
mod pregather;
mod sstf;
#[cfg(test)]
mod tests;
mod vmcd;
mod vmcd_time;

pub use crate::entry::{Entry, Starves};

use seekway_core::params::ParamError;
use seekway_core::registry::Registry;
use seekway_core::scheduler::Scheduler;

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
