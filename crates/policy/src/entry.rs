//! A scheduling policy as the registry knows it.

use seekway_core::params::{ParamError, ParamSpec, Params};
use seekway_core::registry::RegistryEntry;
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
    /// Where its source lets a request wait without end; elsewhere none waits for 30 s.
    pub starves: &'static [Starves],
    /// A new instance. Fails only for combinations that no single value shows.
    pub build: fn(&Params) -> Result<Box<dyn Scheduler>, ParamError>,
}

/// Parameters with which a policy leaves a request without service while others keep the device
/// busy.
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
