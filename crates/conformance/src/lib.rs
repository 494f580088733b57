//! Tests for every scheduling policy: ours, and those of programs that add their own
//! ([`Registry::add`](seekway_core::registry::Registry::add)).
//!
//! ```
//! use seekway_conformance::{Policy, check};
//! check(&Policy::registered("noop"));
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod contract;
mod engine;
mod golden;
pub mod seeded;
mod starvation;

pub use contract::keeps_contract;
pub use engine::Lcg;
pub use golden::decisions;
pub use starvation::starves_as_said;

use seekway_core::params::{Params, parse_spec};
use seekway_core::scheduler::Scheduler;
use seekway_policy::schedulers::{Entry, REGISTRY};
use std::fmt;

/// An entry and the parameters that it gets: something to test.
pub struct Policy {
    entry: &'static Entry,
    params: Params,
    given: String,
}

impl Policy {
    /// An entry with parameters, `key=value,key=value`; none for its defaults.
    ///
    /// # Panics
    /// The entry does not take these parameters.
    pub fn new(entry: &'static Entry, given: &str) -> Policy {
        let spec = format!("{}:{given}", entry.name);
        let params = parse_spec(&spec).and_then(|s| Params::with(entry.params, s.name, &s.given));
        let params = params.unwrap_or_else(|e| panic!("{e}"));
        Policy { entry, params, given: given.into() }
    }

    /// A policy of the registry, `name:key=value,key=value`.
    ///
    /// # Panics
    /// There is none, or it does not take these parameters.
    pub fn registered(spec: &str) -> Policy {
        let (name, given) = spec.split_once(':').unwrap_or((spec, ""));
        Policy::new(REGISTRY.find(name).unwrap_or_else(|e| panic!("{e}")), given)
    }

    fn build(&self) -> Box<dyn Scheduler> {
        (self.entry.build)(&self.params).unwrap_or_else(|e| panic!("{self}: {e}"))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = if self.given.is_empty() { "" } else { ":" };
        write!(f, "{}{colon}{}", self.entry.name, self.given)
    }
}

/// Runs all tests: the contract on random events, the fixed scene, and starvation.
///
/// # Panics
/// With the policy's fault, and for random events with the seed and a short sequence.
pub fn check(policy: &Policy) {
    keeps_contract(policy);
    decisions(policy);
    starves_as_said(policy);
}
