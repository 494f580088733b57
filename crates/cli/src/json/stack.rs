//! The keys that say through which stack a run went, in every run.

use crate::caching::NO_PREFETCH;
use crate::stacks::{ChosenCache, LimitsChoice, StackSpec};
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

/// Largest cache that a file may claim, in MiB: 1 TiB, as on the command line.
const CACHE_MIB_MAX: f64 = 1048576.0;

impl CacheChoice {
    /// The cache of a command line that is the same; `None` if it cannot be one.
    pub fn host_cache(&self) -> Option<Option<ChosenCache>> {
        let Some(mib) = self.cache_mib else { return Some(None) };
        let bytes = (mib * f64::from(1 << 20)).round();
        let possible = mib > 0.0 && mib <= CACHE_MIB_MAX;
        let prefetch = self.prefetch.clone().unwrap_or_else(|| NO_PREFETCH.into());
        possible.then_some(Some(ChosenCache { bytes: bytes as u64, prefetch }))
    }

    pub fn new(stack: &StackSpec) -> CacheChoice {
        CacheChoice { cache_mib: stack.cache_mib(), prefetch: stack.prefetch().map(str::to_string) }
    }
}

impl Stack {
    pub fn new(stack: &StackSpec) -> Stack {
        Stack {
            policy: stack.policy.clone(),
            cache: CacheChoice::new(stack),
            limits: match stack.limits {
                LimitsChoice::Given => "given",
                LimitsChoice::Dropped => "none",
            },
            shared_cpus: stack.host.as_ref().map(ToString::to_string),
            vcpu: stack.vcpu.clone(),
        }
    }
}
