//! The stack that a run goes through: what a command line chooses of it, as lists, and how
//! runs are named by what differs between them.

use crate::host::{NO_AGENT, SharedHost};
use anyhow::{Result, bail};
use clap::ValueEnum;
use std::fmt;

/// Most stacks of one command. Each runs with every seed.
const STACKS_MAX: usize = 1_000;

/// A cache in the host with its prefetcher.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChosenCache {
    pub bytes: u64,
    /// Specification of the prefetcher; `none` caches what is read and nothing else.
    pub prefetch: String,
}

/// Which rate limits and promises hold in a run, as `--limits` lists them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LimitsChoice {
    /// Those of --vm and --group
    Given,
    /// No rate limits, reservations, targets and groups; weights stay
    #[value(name = "none")]
    Dropped,
}

impl LimitsChoice {
    /// As `--limits` takes it.
    pub fn name(self) -> &'static str {
        match self {
            LimitsChoice::Given => "given",
            LimitsChoice::Dropped => "none",
        }
    }
}

/// All that a run chooses besides its load, its device and its seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StackSpec {
    pub policy: String,
    pub cache: Option<ChosenCache>,
    pub limits: LimitsChoice,
    /// Processors that the VMs' vCPUs share; each vCPU has one of its own if none.
    pub host: Option<SharedHost>,
    /// Policy for vCPUs of the agent in each guest.
    pub vcpu: String,
}

impl StackSpec {
    /// A policy and nothing else.
    pub fn new(policy: &str) -> StackSpec {
        StackSpec {
            policy: policy.into(),
            cache: None,
            limits: LimitsChoice::Given,
            host: None,
            vcpu: NO_AGENT.into(),
        }
    }

    /// Size of its host cache in MiB, if it has one.
    pub fn cache_mib(&self) -> Option<f64> {
        self.cache.as_ref().map(|cache| cache.bytes as f64 / f64::from(1 << 20))
    }

    /// The prefetcher of its host cache, if it has one.
    pub fn prefetch(&self) -> Option<&str> {
        self.cache.as_ref().map(|cache| cache.prefetch.as_str())
    }
}

/// What a command line lists of each part of the stack.
#[derive(Clone, Debug)]
pub struct StackLists {
    pub policies: Vec<String>,
    pub caches: Vec<Option<ChosenCache>>,
    pub limits: Vec<LimitsChoice>,
    /// How processors are shared, with the policy for vCPUs.
    pub hosts: Vec<(Option<SharedHost>, String)>,
}

impl StackLists {
    /// Every combination, the policies outermost.
    pub fn product(&self) -> Result<Vec<StackSpec>> {
        let parts = [
            (self.policies.len(), "policies"),
            (self.caches.len(), "caches with prefetchers"),
            (self.limits.len(), "choices of limits"),
            (self.hosts.len(), "hosts with agents"),
        ];
        let count = parts.iter().fold(1usize, |count, (n, _)| count.saturating_mul(*n));
        if count > STACKS_MAX {
            let several = parts.iter().filter(|(n, _)| *n > 1);
            let product: Vec<String> = several.map(|(n, what)| format!("{n} {what}")).collect();
            bail!(
                "{} are {count} stacks to run, at most {STACKS_MAX} are possible: shorten a list",
                product.join(" × ")
            );
        }
        let mut stacks = Vec::with_capacity(count);
        for policy in &self.policies {
            for cache in &self.caches {
                for &limits in &self.limits {
                    stacks.extend(self.hosts.iter().map(|(host, vcpu)| StackSpec {
                        policy: policy.clone(),
                        cache: cache.clone(),
                        limits,
                        host: host.clone(),
                        vcpu: vcpu.clone(),
                    }));
                }
            }
        }
        Ok(stacks)
    }
}

/// Which parts of the stack differ between the runs of a command. Runs are named by these.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StackNames {
    policy: bool,
    cache: bool,
    /// Between runs that have a cache.
    prefetch: bool,
    limits: bool,
    host: bool,
    /// Between runs that share processors.
    vcpu: bool,
}

impl StackNames {
    /// The parts that differ between these stacks.
    pub fn of<'a>(stacks: impl IntoIterator<Item = &'a StackSpec>) -> StackNames {
        let mut names = StackNames::default();
        let (mut first, mut cached, mut sharing) = (None, None, None);
        for stack in stacks {
            let first: &StackSpec = first.get_or_insert(stack);
            names.policy |= stack.policy != first.policy;
            names.cache |= stack.cache_mib() != first.cache_mib();
            names.limits |= stack.limits != first.limits;
            names.host |= stack.host != first.host;
            if stack.cache.is_some() {
                let cached: &StackSpec = cached.get_or_insert(stack);
                names.prefetch |= stack.prefetch() != cached.prefetch();
            }
            if stack.host.is_some() {
                let sharing: &StackSpec = sharing.get_or_insert(stack);
                names.vcpu |= stack.vcpu != sharing.vcpu;
            }
        }
        names
    }

    /// The same, always with the policy and with a cache's prefetcher: for names of files.
    pub fn for_files(self) -> StackNames {
        StackNames { policy: true, prefetch: true, ..self }
    }

    /// Is the policy in each name?
    fn by_policy(self) -> bool {
        self.policy || self == StackNames::default()
    }

    /// Heading of a column with names.
    pub fn heading(self) -> &'static str {
        if self.by_policy() { "policy" } else { "run" }
    }

    /// The name of a run: the parts of its stack that differ; its policy if none does.
    pub fn label(self, stack: &StackSpec) -> String {
        let prefetch = stack.prefetch().filter(|_| self.prefetch);
        let what = if self.by_policy() { "" } else { "prefetch " };
        let parts = [
            self.by_policy().then(|| stack.policy.clone()),
            self.cache.then(|| cache(stack)),
            prefetch.map(|prefetch| format!("{what}{prefetch}")),
            self.limits.then(|| limits(stack)),
            self.host.then(|| host(stack)),
            (self.vcpu && stack.host.is_some()).then(|| agent(stack)),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" + ")
    }

    /// What all runs have in common, the parts that were not chosen among it. `stacks` are the
    /// runs'.
    pub fn same(self, stacks: &[StackSpec]) -> String {
        let Some(first) = stacks.first() else { return String::new() };
        let of_cache = first.cache.as_ref().map_or("cache none".into(), |_| cache(first));
        let prefetch = stacks.iter().find_map(StackSpec::prefetch).unwrap_or("none");
        let sharing = stacks.iter().find(|stack| stack.host.is_some()).unwrap_or(first);
        let parts = [
            (!self.by_policy()).then(|| format!("policy {}", first.policy)),
            (!self.cache).then_some(of_cache),
            (!self.prefetch).then(|| format!("prefetch {prefetch}")),
            (!self.limits).then(|| limits(first)),
            (!self.host).then(|| host(first)),
            (!self.vcpu).then(|| agent(sharing)),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        format!("The same in all runs: {}.", parts.join(", "))
    }
}

fn cache(stack: &StackSpec) -> String {
    stack.cache.as_ref().map_or("no cache".into(), |c| format!("cache {}", ByteSize(c.bytes)))
}

fn limits(stack: &StackSpec) -> String {
    match stack.limits {
        LimitsChoice::Given => "limits as given".into(),
        LimitsChoice::Dropped => "no limits".into(),
    }
}

fn host(stack: &StackSpec) -> String {
    stack.host.as_ref().map_or("vCPUs not shared".into(), |host| format!("host {host}"))
}

fn agent(stack: &StackSpec) -> String {
    let name = stack.vcpu.as_str();
    if name == NO_AGENT { "no agent".into() } else { format!("agent {name}") }
}

/// Bytes in the largest unit that divides them: `512MiB`.
struct ByteSize(u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(bits, _)| self.0.is_multiple_of(1 << bits)) {
            Some((bits, unit)) => write!(f, "{}{unit}", self.0 >> bits),
            None => write!(f, "{}B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(policy: &str, mib: u64, prefetch: &str) -> StackSpec {
        let cache = Some(ChosenCache { bytes: mib << 20, prefetch: prefetch.into() });
        StackSpec { cache, ..StackSpec::new(policy) }
    }

    fn labels(stacks: &[StackSpec]) -> Vec<String> {
        let names = StackNames::of(stacks);
        stacks.iter().map(|stack| names.label(stack)).collect()
    }

    fn same(stacks: &[StackSpec]) -> String {
        StackNames::of(stacks).same(stacks)
    }

    #[test]
    fn runs_are_named_by_what_differs_and_the_rest_is_said_once() {
        let policies = [StackSpec::new("noop"), StackSpec::new("cfq")];
        assert_eq!(labels(&policies), ["noop", "cfq"]);
        assert_eq!(
            same(&policies),
            "The same in all runs: cache none, prefetch none, limits as given, vCPUs not shared, \
             no agent."
        );
        let caches = [StackSpec::new("cfq"), cached("cfq", 512, "vio"), cached("cfq", 2048, "vio")];
        assert_eq!(labels(&caches), ["no cache", "cache 512MiB", "cache 2GiB"]);
        assert!(
            same(&caches).starts_with("The same in all runs: policy cfq, prefetch vio, limits")
        );
        let both = [StackSpec::new("cfq"), cached("cfq", 512, "none"), cached("noop", 512, "vio")];
        assert_eq!(
            labels(&both),
            ["cfq + no cache", "cfq + cache 512MiB + none", "noop + cache 512MiB + vio"]
        );
        let prefetch = [cached("cfq", 512, "none"), cached("cfq", 512, "vio")];
        assert_eq!(labels(&prefetch), ["prefetch none", "prefetch vio"]);
        assert_eq!(StackNames::of(&prefetch).heading(), "run");
        assert_eq!(StackNames::of(&prefetch).for_files().label(&prefetch[1]), "cfq + vio");
        // Nothing differs: one run, or several seeds.
        assert_eq!(labels(&prefetch[1..]), ["cfq"]);
        assert!(same(&prefetch[1..]).contains("cache 512MiB, prefetch vio"));
    }

    #[test]
    fn limits_hosts_and_agents_are_named_too() {
        let shared = |vcpu: &str, cpus: u64| StackSpec {
            host: Some(SharedHost::parse(&format!("cpus={cpus}")).unwrap()),
            vcpu: vcpu.into(),
            ..StackSpec::new("noop")
        };
        let free = StackSpec { limits: LimitsChoice::Dropped, ..StackSpec::new("noop") };
        assert_eq!(
            labels(&[free.clone(), StackSpec::new("noop")]),
            ["no limits", "limits as given"]
        );
        assert!(same(&[free]).contains(", no limits, "));
        let all = [StackSpec::new("noop"), shared("vanilla", 2), shared("vmigrater", 2)];
        assert_eq!(
            labels(&all),
            ["vCPUs not shared", "host cpus=2 + no agent", "host cpus=2 + agent vmigrater"]
        );
        let one = [shared("vmigrater", 2), shared("vmigrater", 4)];
        assert_eq!(labels(&one), ["host cpus=2", "host cpus=4"]);
        assert!(same(&one).ends_with(", agent vmigrater."), "{}", same(&one));
    }

    #[test]
    fn a_product_that_explodes_is_refused_with_its_factors() {
        let lists = |policies: usize, caches: usize| StackLists {
            policies: vec!["noop".into(); policies],
            caches: vec![None; caches],
            limits: vec![LimitsChoice::Given, LimitsChoice::Dropped],
            hosts: vec![(None, NO_AGENT.into())],
        };
        assert_eq!(lists(20, 25).product().unwrap().len(), STACKS_MAX);
        let error = lists(21, 25).product().unwrap_err().to_string();
        assert!(
            error.starts_with(
                "21 policies × 25 caches with prefetchers × 2 choices of limits are 1050 stacks"
            ),
            "{error}"
        );
    }

    #[test]
    fn sizes_are_shown_as_they_are_given() {
        let shown = [1 << 30, 3 << 29, 4096, 4097].map(|n| ByteSize(n).to_string());
        assert_eq!(shown, ["1GiB", "1536MiB", "4KiB", "4097B"]);
    }
}
