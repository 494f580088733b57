//! The keys that say through which stack a run went, in every run.

use seekway_sim::scenario::Scenario;
use serde::Serialize;

/// The stack of a run, what is not in it too.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Stack {
    pub policy: String,
    #[serde(flatten)]
    pub cache: CacheChoice,
    /// `given`: the limits of VMs and groups hold; `none` otherwise.
    pub limits: &'static str,
    /// The processors that vCPUs share, as `--host` has them; null if none are shared.
    pub shared_cpus: Option<String>,
    /// The policy for vCPUs; `vanilla` is no agent.
    pub vcpu: String,
}

/// The host cache that was chosen for a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CacheChoice {
    /// Its size, null without a cache.
    pub cache_mib: Option<f64>,
    /// Its prefetcher, null without a cache.
    pub prefetch: Option<String>,
}

impl CacheChoice {
    pub fn new(stack: &Scenario) -> CacheChoice {
        CacheChoice { cache_mib: stack.cache_mib(), prefetch: stack.prefetch().map(str::to_string) }
    }
}

impl Stack {
    pub fn new(stack: &Scenario) -> Stack {
        Stack {
            policy: stack.policy.clone(),
            cache: CacheChoice::new(stack),
            limits: stack.limits.name(),
            shared_cpus: stack.cpu.as_ref().map(ToString::to_string),
            vcpu: stack.agent().to_string(),
        }
    }
}
