//! The stack that a run goes through: what a command line chooses of it, as lists, and how
//! runs are named by what differs between them.

use crate::args::{PrefetchArgs, SharingArgs};
use crate::load::{check_distinct, distinct};
use anyhow::{Context, Result, anyhow, bail};
use seekway_core::params::split_specs;
use seekway_policy::schedulers::REGISTRY;
pub use seekway_sim::scenario::NO_PREFETCH;
use seekway_sim::scenario::{
    ByteSize, CACHE_BYTES_DEFAULT, Cache, Cpu, LimitsChoice, NO_AGENT, Scenario, cache_bytes,
};
use seekway_stack::stack::limit::Limits;
use seekway_vcpu as vcpu;

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

// `--host` and `--vcpu`: how VMs share the host's processors, and what the agent in each
// guest does about it.

/// Each way in which processors are shared with each policy for vCPUs. Where they are not
/// shared no agent has anything to do, and there is one run without.
pub fn sharing(args: &SharingArgs) -> Result<Vec<Option<Cpu>>> {
    let parse = |text: &String| match text.trim() {
        "none" => Ok(None),
        text => Cpu::parse(text).map(Some).map_err(|e| anyhow!("--host {text}: {e}")),
    };
    let mut hosts = args.host.iter().map(parse).collect::<Result<Vec<_>>>()?;
    if hosts.is_empty() {
        hosts.push(None);
    }
    check_distinct("--host", &hosts, |host| {
        host.as_ref().map_or("none".into(), ToString::to_string)
    })?;
    let agents = agents(args.vcpu.as_deref())?;
    if hosts.iter().all(Option::is_none)
        && let Some(agent) = agents.iter().find(|agent| *agent != NO_AGENT)
    {
        bail!(
            "--vcpu {agent}: an agent has nothing to do where each vCPU has a processor of its \
             own; share them with --host cpus=N"
        );
    }
    let mut sharing = Vec::new();
    for host in hosts {
        let Some(host) = host else {
            sharing.push(None);
            continue;
        };
        for agent in &agents {
            let host = host.clone().with_agent(agent).map_err(|e| anyhow!("--vcpu: {e}"))?;
            sharing.push(Some(host));
        }
    }
    Ok(sharing)
}

/// The policies for vCPUs that `--vcpu` names, checked.
fn agents(list: Option<&str>) -> Result<Vec<String>> {
    let agents = match list {
        None => vec![NO_AGENT.to_string()],
        Some("all") => vcpu::REGISTRY.names().map(str::to_string).collect(),
        Some(list) => split_specs(list),
    };
    if agents.is_empty() {
        bail!("--vcpu: name at least one, or `vanilla`");
    }
    for agent in &agents {
        vcpu::build(agent).context("--vcpu")?;
    }
    check_distinct("--vcpu", &agents, String::clone)?;
    Ok(agents)
}

// `--prefetch` and `--cache`, checked.

/// The host caches with their prefetchers that the arguments list: each size with each
/// prefetcher, and `None` once for no cache. Says on standard error which size it takes where
/// none is given.
pub fn caches(args: &PrefetchArgs) -> Result<Vec<Option<Cache>>> {
    let prefetchers = prefetchers(&args.prefetch)?;
    let sizes = match &args.cache {
        Some(list) => sizes(list)?,
        None if prefetchers.is_empty() => return Ok(vec![None]),
        None => {
            eprintln!("host cache: 1GiB (--cache SIZE for another)");
            vec![Some(CACHE_BYTES_DEFAULT)]
        }
    };
    let useless = prefetchers.iter().find(|spec| *spec != NO_PREFETCH);
    if let (true, Some(spec)) = (sizes.iter().all(Option::is_none), useless) {
        bail!("--prefetch {spec}: it needs a cache to prefetch into; give --cache a size");
    }
    let prefetchers =
        if prefetchers.is_empty() { vec![NO_PREFETCH.to_string()] } else { prefetchers };
    let of_size = |size: Option<u64>| match size {
        None => vec![None],
        Some(bytes) => {
            prefetchers.iter().map(|spec| Some(Cache::new(bytes, spec.clone()))).collect()
        }
    };
    Ok(sizes.into_iter().flat_map(of_size).collect())
}

fn prefetchers(lists: &[String]) -> Result<Vec<String>> {
    let all = || seekway_policy::prefetchers::REGISTRY.iter().map(|e| e.name.to_string()).collect();
    let named = |list: &String| if list == "all" { all() } else { split_specs(list) };
    let specs: Vec<String> = lists.iter().flat_map(named).collect();
    if specs.is_empty() && !lists.is_empty() {
        bail!("--prefetch: name at least one, or `none`");
    }
    for spec in &specs {
        seekway_policy::prefetchers::build(spec).context("--prefetch")?;
    }
    Ok(specs)
}

/// The sizes in bytes; `None` for no cache.
fn sizes(list: &str) -> Result<Vec<Option<u64>>> {
    let size = |text: &str| match text {
        "none" => Ok(None),
        text => cache_bytes(text).map(Some).map_err(|e| anyhow!("--cache {text}: {e}")),
    };
    let sizes = list.split(',').map(|text| size(text.trim())).collect::<Result<Vec<_>>>()?;
    let shown = |size: &Option<u64>| size.map_or("none".into(), |bytes| format!("{bytes} bytes"));
    check_distinct("--cache", &sizes, shown)?;
    Ok(sizes)
}

// Service-level targets of a VM beside its weight (a reservation, a latency, a group's share), and
// the policies that keep them.

/// The promises among these limits that a policy does not keep, by their keys, each once.
/// `policy` may have parameters; nothing is said of a policy that is not known.
pub fn targets_not_kept<'l>(
    policy: &str,
    limits: impl IntoIterator<Item = &'l Limits>,
) -> Vec<&'static str> {
    let name = policy.split(':').next().unwrap_or(policy);
    let Ok(entry) = REGISTRY.find(name) else { return Vec::new() };
    let promises = limits.into_iter().flat_map(Limits::promises);
    distinct(promises.filter(|(promise, _)| !entry.keeps.contains(promise)).map(|(_, key)| key))
}

/// The policies that keep all of these promises, for a message.
pub fn target_keepers() -> String {
    let all = REGISTRY.iter().filter(|entry| entry.keeps.len() > 1);
    all.map(|entry| entry.name).collect::<Vec<_>>().join(", ")
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

#[cfg(test)]
mod host_tests {
    use super::*;

    fn made(hosts: &[&str], vcpu: Option<&str>) -> Result<Vec<Option<Cpu>>> {
        let host = hosts.iter().map(|h| h.to_string()).collect();
        sharing(&SharingArgs { host, vcpu: vcpu.map(str::to_string) })
    }

    #[test]
    fn agents_run_only_where_processors_are_shared() {
        let shared = made(&["none", "cpus=2"], Some("vanilla,vmigrater")).unwrap();
        let shown: Vec<Option<&str>> =
            shared.iter().map(|cpu| cpu.as_ref().map(|cpu| cpu.agent.as_str())).collect();
        assert_eq!(shown, [None, Some("vanilla"), Some("vmigrater")]);
        assert_eq!(made(&[], Some("vanilla")).unwrap(), [None]);
        for (hosts, vcpu, part) in [
            (&[][..], "vmigrater", "share them with --host cpus=N"),
            (&["cpus=2"], "vsmt", "--vcpu: no vCPU policy 'vsmt'"),
            (&["cpus=2"], ",", "name at least one"),
            (&["cpus=2"], "vmigrater,vmigrater", "vmigrater is given twice"),
            (&["cpus=2", "cpus=2"], "vanilla", "cpus=2 is given twice"),
            (&["cpus=0"], "vanilla", "--host cpus=0: "),
        ] {
            let error = format!("{:#}", made(hosts, Some(vcpu)).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }
}

#[cfg(test)]
mod caching_tests {
    use super::*;

    fn made(cache: Option<&str>, prefetch: &[&str]) -> Result<Vec<(u64, String)>> {
        let prefetch = prefetch.iter().map(|p| p.to_string()).collect();
        let made = caches(&PrefetchArgs { prefetch, cache: cache.map(str::to_string) })?;
        let plain = |cache: Option<Cache>| cache.map_or((0, "".into()), |c| (c.size, c.prefetch));
        Ok(made.into_iter().map(plain).collect())
    }

    #[test]
    fn each_size_comes_with_each_prefetcher_and_no_cache_once() {
        let pairs = made(Some("none,4KiB, 1MiB"), &["none,vio"]).unwrap();
        let shown: Vec<(u64, &str)> = pairs.iter().map(|(b, p)| (*b, p.as_str())).collect();
        let (kib, mib) = (4 << 10, 1 << 20);
        assert_eq!(shown, [(0, ""), (kib, "none"), (kib, "vio"), (mib, "none"), (mib, "vio")]);
        assert_eq!(made(Some("none"), &["none"]).unwrap(), [(0, String::new())]);
        assert_eq!(made(None, &[]).unwrap(), [(0, String::new())]);
        assert_eq!(made(Some("1MiB"), &[]).unwrap(), [(mib, "none".into())]);
        assert_eq!(made(None, &["vio"]).unwrap(), [(CACHE_BYTES_DEFAULT, "vio".into())]);
    }
}
