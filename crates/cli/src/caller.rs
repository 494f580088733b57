//! Caller's part of runs: policies of its own, and a request to stop.

use anyhow::{Result, anyhow};
use seekway_core::scheduler::Scheduler;
use seekway_policy::schedulers;
use std::sync::atomic::{AtomicBool, Ordering};

/// Makes a policy; called once for each run, on the run's thread.
type Make = Box<dyn Fn() -> Result<Box<dyn Scheduler>> + Send + Sync>;

/// A policy that is not in the registry.
pub struct OwnPolicy {
    pub name: String,
    pub make: Make,
}

/// Caller of the runs.
pub struct Caller {
    policies: Vec<OwnPolicy>,
    stop: AtomicBool,
}

/// The command line: it has no policies of its own. Whoever stops it stops all its commands in
/// this process.
pub static NOBODY: Caller = Caller { policies: Vec::new(), stop: AtomicBool::new(false) };

impl Caller {
    /// Brings these policies.
    ///
    /// # Errors
    /// A name that is taken, or that `--policies` could not say.
    pub fn new(policies: Vec<OwnPolicy>) -> Result<Caller> {
        for (n, policy) in policies.iter().enumerate() {
            let name = &policy.name;
            schedulers::REGISTRY.check_name(name)?;
            if policies[..n].iter().any(|other| other.name == *name) {
                return Err(anyhow!("policy '{name}': there is one of this name; choose another"));
            }
        }
        Ok(Caller { policies, stop: AtomicBool::new(false) })
    }

    /// Builds a policy of the caller's or of the registry.
    ///
    /// # Errors
    /// There is none of that name, or it cannot be built.
    pub fn build(&self, spec: &str) -> Result<Box<dyn Scheduler>> {
        match self.own(spec) {
            Some(own) => (own.make)(),
            None => Ok(schedulers::build(spec)?),
        }
    }

    /// Is this one of the caller's own?
    pub fn has(&self, spec: &str) -> bool {
        self.own(spec).is_some()
    }

    fn own(&self, spec: &str) -> Option<&OwnPolicy> {
        self.policies.iter().find(|own| own.name == spec)
    }

    /// Runs end soon, with an error. For another thread.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Runs may begin again.
    pub fn resume(&self) {
        self.stop.store(false, Ordering::Relaxed);
    }

    /// True after [`Caller::stop`] and until [`Caller::resume`].
    pub fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> OwnPolicy {
        OwnPolicy { name: name.into(), make: Box::new(|| Ok(schedulers::build("noop")?)) }
    }

    #[test]
    fn own_policies_are_found_beside_the_registry() {
        let caller = Caller::new(vec![named("mine")]).unwrap();
        assert!(caller.has("mine") && !caller.has("noop"));
        assert!(caller.build("mine").is_ok() && caller.build("cfq:quantum=4").is_ok());
        assert!(caller.build("theirs").is_err_and(|e| e.to_string().contains("noop")));
    }

    #[test]
    fn names_are_plain_and_not_taken() {
        for name in ["", "all", "a,b", "cfq", "a:b"] {
            assert!(Caller::new(vec![named(name)]).is_err(), "{name}");
        }
        assert!(Caller::new(vec![named("a"), named("a")]).is_err());
    }
}
