//! The stack that a run goes through: what a command line chooses of it, as lists, and how
//! runs are named by what differs between them.

use anyhow::{Result, bail};
use seekway_sim::scenario::{ByteSize, Cache, Cpu, LimitsChoice, NO_AGENT, Scenario};

/// Most stacks of one command. Each runs with every seed.
const STACKS_MAX: usize = 1_000;

/// Alternatives that a command line lists for each part of the stack.
#[derive(Clone, Debug)]
pub struct StackLists {
    pub policies: Vec<String>,
    pub caches: Vec<Option<Cache>>,
    pub limits: Vec<LimitsChoice>,
    /// Ways to share processors, each with the policy for vCPUs.
    pub hosts: Vec<Option<Cpu>>,
}

impl StackLists {
    /// Every combination for one load on one device, the policies outermost.
    pub fn product(&self, base: &Scenario) -> Result<Vec<Scenario>> {
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
                    stacks.extend(self.hosts.iter().map(|cpu| Scenario {
                        policy: policy.clone(),
                        cache: cache.clone(),
                        limits,
                        cpu: cpu.clone(),
                        ..base.clone()
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
    pub fn of<'a>(stacks: impl IntoIterator<Item = &'a Scenario>) -> StackNames {
        let mut names = StackNames::default();
        let (mut first, mut cached, mut sharing) = (None, None, None);
        for stack in stacks {
            let first: &Scenario = first.get_or_insert(stack);
            names.policy |= stack.policy != first.policy;
            names.cache |= stack.cache_mib() != first.cache_mib();
            names.limits |= stack.limits != first.limits;
            names.host |= !same_host(stack, first);
            if stack.cache.is_some() {
                let cached: &Scenario = cached.get_or_insert(stack);
                names.prefetch |= stack.prefetch() != cached.prefetch();
            }
            if stack.cpu.is_some() {
                let sharing: &Scenario = sharing.get_or_insert(stack);
                names.vcpu |= stack.agent() != sharing.agent();
            }
        }
        names
    }

    /// As `self`, always with the policy and with a cache's prefetcher: for names of files.
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
    pub fn label(self, stack: &Scenario) -> String {
        let prefetch = stack.prefetch().filter(|_| self.prefetch);
        let what = if self.by_policy() { "" } else { "prefetch " };
        let parts = [
            self.by_policy().then(|| stack.policy.clone()),
            self.cache.then(|| cache(stack)),
            prefetch.map(|prefetch| format!("{what}{prefetch}")),
            self.limits.then(|| limits(stack)),
            self.host.then(|| host(stack)),
            (self.vcpu && stack.cpu.is_some()).then(|| agent(stack)),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" + ")
    }

    /// Describes what all runs, of the stacks `stacks`, have in common, also parts that were not
    /// chosen.
    pub fn same(self, stacks: &[Scenario]) -> String {
        let Some(first) = stacks.first() else { return String::new() };
        let of_cache = first.cache.as_ref().map_or("cache none".into(), |_| cache(first));
        let prefetch = stacks.iter().find_map(Scenario::prefetch).unwrap_or("none");
        let sharing = stacks.iter().find(|stack| stack.cpu.is_some()).unwrap_or(first);
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

/// Do both share processors in the same way, or neither?
fn same_host(a: &Scenario, b: &Scenario) -> bool {
    match (&a.cpu, &b.cpu) {
        (Some(a), Some(b)) => a.is_like(b),
        (a, b) => a.is_none() && b.is_none(),
    }
}

fn cache(stack: &Scenario) -> String {
    stack.cache.as_ref().map_or("no cache".into(), |c| format!("cache {}", ByteSize(c.size)))
}

fn limits(stack: &Scenario) -> String {
    match stack.limits {
        LimitsChoice::Given => "limits as given".into(),
        LimitsChoice::Dropped => "no limits".into(),
    }
}

fn host(stack: &Scenario) -> String {
    stack.cpu.as_ref().map_or("vCPUs not shared".into(), |host| format!("host {host}"))
}

fn agent(stack: &Scenario) -> String {
    let name = stack.agent();
    if name == NO_AGENT { "no agent".into() } else { format!("agent {name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn under(policy: &str) -> Scenario {
        Scenario::default().under(policy)
    }

    fn cached(policy: &str, mib: u64, prefetch: &str) -> Scenario {
        Scenario { cache: Some(Cache::new(mib << 20, prefetch)), ..under(policy) }
    }

    fn labels(stacks: &[Scenario]) -> Vec<String> {
        let names = StackNames::of(stacks);
        stacks.iter().map(|stack| names.label(stack)).collect()
    }

    fn same(stacks: &[Scenario]) -> String {
        StackNames::of(stacks).same(stacks)
    }

    #[test]
    fn runs_are_named_by_what_differs_and_the_rest_is_said_once() {
        let policies = [under("noop"), under("cfq")];
        assert_eq!(labels(&policies), ["noop", "cfq"]);
        assert_eq!(
            same(&policies),
            "The same in all runs: cache none, prefetch none, limits as given, vCPUs not shared, \
             no agent."
        );
        let caches = [under("cfq"), cached("cfq", 512, "vio"), cached("cfq", 2048, "vio")];
        assert_eq!(labels(&caches), ["no cache", "cache 512MiB", "cache 2GiB"]);
        assert!(
            same(&caches).starts_with("The same in all runs: policy cfq, prefetch vio, limits")
        );
        let both = [under("cfq"), cached("cfq", 512, "none"), cached("noop", 512, "vio")];
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
        let shared = |agent: &str, cpus: u64| {
            let cpu = Cpu::parse(&format!("cpus={cpus}")).unwrap().with_agent(agent).unwrap();
            Scenario { cpu: Some(cpu), ..under("noop") }
        };
        let free = Scenario { limits: LimitsChoice::Dropped, ..under("noop") };
        assert_eq!(labels(&[free.clone(), under("noop")]), ["no limits", "limits as given"]);
        assert!(same(&[free]).contains(", no limits, "));
        let all = [under("noop"), shared("vanilla", 2), shared("vmigrater", 2)];
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
            hosts: vec![None],
        };
        let base = Scenario::default();
        assert_eq!(lists(20, 25).product(&base).unwrap().len(), STACKS_MAX);
        let error = lists(21, 25).product(&base).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "21 policies × 25 caches with prefetchers × 2 choices of limits are 1050 stacks"
            ),
            "{error}"
        );
    }
}
