//! Output for scripts: the keys of `compare --format json`, which are stable. Times in
//! milliseconds, rates per second, shares from 0 to 1.

use crate::stacks::StackNames;
use seekway_core::prefetcher::Stream as Followed;
use seekway_core::units::{Instant, Nanos, Sectors};
use seekway_policy::schedulers;
use seekway_sim::metrics::{Times, VmHost, ms, per_second};
use seekway_sim::scenario::Scenario;
use seekway_sim::vcpu::VmCpu;
use seekway_sim::{OpResult, RunResult};
use seekway_stack::cache::Usage as Counts;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `compare --format json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CompareReport {
    /// The name of the scenario with its cases and axes, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scenario: Option<String>,
    pub device: String,
    /// Parts of the stack that the names of runs tell.
    #[serde(skip)]
    pub names: StackNames,
    /// Description of what all runs have in common, in a sentence.
    #[serde(skip)]
    pub same: String,
    /// The demand of each VM is the rate of its requests.
    #[serde(skip)]
    pub is_open_loop: bool,
    /// Explanation of a VM's demand, where that is needed.
    #[serde(skip)]
    pub demand_note: Option<&'static str>,
    /// One for each stack and seed.
    pub runs: Vec<Run>,
    /// Why φ, Jain's index and the max-min share are null.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_fairness: Option<String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Run {
    /// As tables call it, with the seed where there are several.
    #[serde(skip)]
    pub label: String,
    #[serde(flatten)]
    pub stack: Stack,
    pub seed: u64,
    pub requests: u64,
    pub simulated_s: f64,
    pub wall_s: f64,
    pub iops: f64,
    pub mib_s: f64,
    pub service_ms: Mean,
    pub service_from_dispatch_ms: Mean,
    pub response_ms: Response,
    #[serde(flatten)]
    pub operations: Operations,
    pub zero_seek_share: f64,
    pub zero_seek_share_requests: f64,
    pub held_ms: BTreeMap<&'static str, f64>,
    pub waits: Waits,
    pub phi: Option<f64>,
    pub jain: Option<f64>,
    pub max_min_share: Option<f64>,
    pub commands: u64,
    pub forced: u64,
    pub barriers: u64,
    pub outstanding_max: usize,
    pub finished: bool,
    pub vms: Vec<Vm>,
    pub apps: Vec<App>,
    pub policy_metrics: BTreeMap<&'static str, f64>,
    pub device_metrics: BTreeMap<&'static str, f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// The VMs' progress, with `--fair-to private`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private: Option<PrivateRun>,
    /// The vCPUs of each VM, where VMs shared processors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vcpus: Vec<Vcpus>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Mean {
    pub mean: f64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Response {
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// Reads and writes of a run or of a VM.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Operations {
    /// Null where there are none, or where they are not known apart.
    pub reads: Option<Operation>,
    /// Null where there are none, or where they are not known apart.
    pub writes: Option<Operation>,
}

/// Reads or writes of a run or of a VM.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Operation {
    pub requests: u64,
    pub iops: f64,
    pub mib_s: f64,
    pub response_ms: Response,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Waits {
    pub tried: u64,
    pub paid: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Vm {
    pub name: String,
    pub requests: u64,
    pub iops: f64,
    pub mib_s: f64,
    pub response_ms: Response,
    #[serde(flatten)]
    pub operations: Operations,
    pub device_time_share: f64,
    /// Requests that the end of the run found waiting.
    pub unfinished: u64,
    /// When its load was over, in seconds, if that was before the run was: its rates are
    /// over the time until then.
    pub ended_s: Option<f64>,
    /// Demand, where known: φ is judged against it.
    pub demand_mib_s: Option<f64>,
    pub policy_metrics: BTreeMap<&'static str, f64>,
    /// The VM on its private disk, with `--fair-to private`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private: Option<PrivateVm>,
    /// Share of the host cache, and its use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<VmCache>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct App {
    pub vm: String,
    pub name: String,
    pub finished_s: Option<f64>,
    pub bytes: u64,
}

/// A histogram in the five figures that tables show; `worst_ns` may be the age of
/// a request that was never served.
pub fn response(times: &Times, worst_ns: u64) -> Response {
    let at = |q: f64| ms(times.value_at_quantile(q));
    Response {
        mean: times.mean() / 1e6,
        p50: at(0.5),
        p99: at(0.99),
        p999: at(0.999),
        max: ms(worst_ns),
    }
}

impl Operations {
    /// Those that were submitted, with their rates over `span`.
    pub fn new(reads: &OpResult, writes: &OpResult, span: Nanos) -> Operations {
        let some = |of: &OpResult| {
            (!of.is_empty()).then(|| Operation {
                requests: of.requests,
                iops: of.iops(span),
                mib_s: of.mib_s(span),
                response_ms: response(&of.response, of.worst_ns),
            })
        };
        Operations { reads: some(reads), writes: some(writes) }
    }

    pub fn has_both(&self) -> bool {
        self.reads.is_some() && self.writes.is_some()
    }
}

/// Demand of each VM, in MiB/s.
pub enum Demands {
    Known(Vec<f64>),
    /// There is nothing to tell VMs apart: each is taken to want all that there is.
    Equal,
    /// Not measured, for this reason.
    Unknown(String),
}

/// Fairness of one run against the VMs' demands. All figures are `None` when those are unknown.
pub struct Fairness {
    /// VMCD's index, smaller is fairer.
    pub phi: Option<f64>,
    /// Jain's index over the shares of their demands that the VMs got.
    pub jain: Option<f64>,
    /// Of the VM that came off worst: what it got over its max-min share.
    pub max_min_share: Option<f64>,
}

/// The indices of a run.
pub fn fairness(result: &RunResult, demands: &Demands, weights: &[f64]) -> Fairness {
    let got: Vec<f64> = result.vms.iter().map(|v| v.mib_s()).collect();
    let weight = |n: usize| weights.get(n).copied().unwrap_or(1.0);
    let weights: Vec<f64> = (0..got.len()).map(weight).collect();
    let total: f64 = got.iter().sum();
    let equal = vec![total; got.len()];
    let demands = match demands {
        Demands::Known(demands) => demands,
        Demands::Equal => &equal,
        Demands::Unknown(_) => return Fairness { phi: None, jain: None, max_min_share: None },
    };
    let entitled = got.iter().zip(demands).zip(&weights);
    let shares: Vec<f64> =
        entitled.filter(|((_, d), _)| **d > 0.0).map(|((g, d), w)| g / (d * w)).collect();
    Fairness {
        phi: seekway_core::fairness::phi(demands, &got, &weights),
        jain: seekway_core::fairness::jain(&shares),
        max_min_share: seekway_core::fairness::max_min_share(demands, &got, &weights),
    }
}

impl Run {
    /// The run `outcome`, judged against `demands`.
    pub fn new(outcome: &crate::runs::Outcome, demands: &Demands, weights: &[f64]) -> Run {
        let r = &outcome.result;
        let fair = fairness(r, demands, weights);
        // Causes that withheld nothing are listed, so that keys do not come and go.
        let mut held_ms: BTreeMap<&str, f64> =
            schedulers::hold_causes().into_iter().map(|cause| (cause, 0.0)).collect();
        held_ms.extend(r.holds.held.iter().map(|(why, cause)| (why, cause.time.as_millis_f64())));
        let busy: f64 = r.vms.iter().map(|v| v.device_time.as_secs_f64()).sum();
        let vm = |(n, v): (usize, &seekway_sim::VmResult)| Vm {
            name: v.name.clone(),
            requests: v.requests,
            iops: v.iops(),
            mib_s: v.mib_s(),
            response_ms: response(&v.response, v.worst_ns()),
            operations: Operations::new(&v.reads, &v.writes, v.span),
            device_time_share: v.device_time.as_secs_f64() / busy.max(f64::MIN_POSITIVE),
            unfinished: v.unfinished,
            ended_s: v.ended.map(Instant::as_secs_f64),
            demand_mib_s: match demands {
                Demands::Known(demands) => demands.get(n).copied(),
                _ => None,
            },
            policy_metrics: v.policy_metrics.iter().copied().collect(),
            private: None,
            cache: v.host.as_ref().map(VmCache::new),
        };
        let app = |a: &seekway_workload::AppReport| App {
            vm: r.vms[usize::from(a.vm)].name.clone(),
            name: a.name.clone(),
            finished_s: a.finished.map(|t| t.as_secs_f64()),
            bytes: a.bytes,
        };
        Run {
            label: outcome.label.clone(),
            stack: Stack::new(&outcome.scenario),
            seed: outcome.scenario.seed,
            requests: r.requests(),
            simulated_s: r.simulated.as_secs_f64(),
            wall_s: outcome.wall.as_secs_f64(),
            iops: r.iops(),
            mib_s: r.mib_s(),
            service_ms: Mean { mean: r.service.mean() / 1e6 },
            service_from_dispatch_ms: Mean { mean: r.service_from_dispatch.mean() / 1e6 },
            response_ms: response(&r.response, r.worst_ns()),
            operations: Operations::new(&r.reads, &r.writes, r.simulated),
            zero_seek_share: r.seeks_per_command.zero_share(),
            zero_seek_share_requests: r.seeks_per_request.zero_share(),
            held_ms,
            waits: Waits { tried: r.holds.tried, paid: r.holds.paid },
            phi: fair.phi,
            jain: fair.jain,
            max_min_share: fair.max_min_share,
            commands: r.stats.commands,
            forced: r.stats.forced,
            barriers: r.barriers,
            outstanding_max: r.outstanding_max,
            finished: r.finished,
            vms: r.vms.iter().enumerate().map(vm).collect(),
            apps: r.apps.iter().map(app).collect(),
            policy_metrics: r.policy_metrics.iter().copied().collect(),
            device_metrics: r.device_metrics.iter().copied().collect(),
            host: Host::new(r),
            private: None,
            vcpus: Vcpus::all(r),
        }
    }
}

// The keys of a run with a host cache; absent from one without.

/// Use of the cache and of the prefetcher.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Usage {
    /// Guests' reads.
    pub reads: u64,
    /// Of what they asked for, in bytes: found in the cache.
    pub hit_share: f64,
    /// Of the same: found being prefetched.
    pub late_share: f64,
    /// Prefetched and used, of all that was used (the VIO paper's accuracy).
    pub accuracy: f64,
    /// Prefetched and unused, of all that was used or prefetched (its cost).
    pub cost: f64,
    pub prefetched_mib: f64,
    /// Prefetched, and gone from the cache unused.
    pub wasted_mib: f64,
    /// Prefetches that demand pushed out before they reached the device.
    pub dropped_mib: f64,
    /// Prefetches that a guest's read took over while they waited.
    pub promoted: u64,
}

/// The host cache of a run.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Host {
    pub cache_mib: f64,
    /// Throughput of the device at best, measured before the run.
    pub device_mib_s: f64,
    #[serde(flatten)]
    pub usage: Usage,
    /// Commands of the background class.
    pub background_commands: u64,
    /// Time for which the host's thread was busy.
    pub host_busy_s: f64,
    /// Times that the prefetcher woke of its own accord.
    pub polls: u64,
    pub prefetch_metrics: BTreeMap<&'static str, f64>,
}

/// Use of the cache by a VM.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VmCache {
    #[serde(flatten)]
    pub usage: Usage,
    /// Of it in the cache when the run ended.
    pub resident_mib: f64,
    pub processes: Vec<Process>,
    /// As the run ended.
    pub streams: Vec<Stream>,
}

/// Use of the cache by a process of a VM.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Process {
    /// `null` for all that is untagged.
    pub tag: Option<u16>,
    #[serde(flatten)]
    pub usage: Usage,
}

/// A stream of reads as the prefetcher saw it.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Stream {
    pub tag: Option<u16>,
    pub armed: bool,
    /// Share of its blocks that followed its pattern.
    pub linear: f64,
    /// Aggressiveness S.
    pub scale: f64,
}

/// Bytes as MiB.
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl Usage {
    pub fn new(u: &Counts) -> Usage {
        let share = |part: u64| part as f64 / u.read.max(1) as f64;
        let sectors = |n: u64| mib(Sectors::new(n).bytes());
        Usage {
            reads: u.reads,
            hit_share: share(u.cached),
            late_share: share(u.late),
            accuracy: u.accuracy(),
            cost: u.cost(),
            prefetched_mib: sectors(u.prefetched),
            wasted_mib: sectors(u.wasted),
            dropped_mib: sectors(u.dropped),
            promoted: u.promoted,
        }
    }
}

impl Host {
    pub fn new(result: &RunResult) -> Option<Host> {
        let host = result.host.as_ref()?;
        Some(Host {
            cache_mib: mib(host.cache_bytes),
            device_mib_s: mib(host.bandwidth),
            usage: Usage::new(&host.usage),
            background_commands: result.stats.background_commands,
            host_busy_s: host.busy.as_secs_f64(),
            polls: host.polls,
            prefetch_metrics: host.metrics.iter().copied().collect(),
        })
    }
}

impl VmCache {
    pub fn new(host: &VmHost) -> VmCache {
        let stream = |s: &Followed| Stream {
            tag: s.tag.map(|t| t.get()),
            armed: s.armed,
            linear: s.linear,
            scale: s.scale,
        };
        let process = |p: &seekway_sim::metrics::ProcessUsage| Process {
            tag: p.tag.map(|t| t.get()),
            usage: Usage::new(&p.usage),
        };
        VmCache {
            usage: Usage::new(&host.usage),
            resident_mib: mib(host.resident_bytes),
            processes: host.processes.iter().map(process).collect(),
            streams: host.streams.iter().map(stream).collect(),
        }
    }
}

// The keys of `compare --fair-to private`.

/// A VM's disk beside its private disk.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PrivateVm {
    /// Factor by which the private disk is slower than the run's.
    pub slow: u32,
    /// Throughput on it: of the VM's applications if it has any, else of its requests.
    pub mib_s: f64,
    /// Of the response times of this disk.
    pub p99_ms: f64,
    /// Throughput in the run over that, at least 1 if the VM has 0.98 of its demand; null if it
    /// moves nothing on its private disk.
    pub progress: Option<f64>,
    /// The p99 of response times in the run over that on the private disk; null if that is 0.
    pub p99_over_private: Option<f64>,
}

/// The progress of all VMs.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PrivateRun {
    /// Of the VM with the least; null if no VM has any.
    pub least_progress: Option<f64>,
    /// Its name.
    pub least_progress_vm: Option<String>,
    /// The geometric mean of the VMs'.
    pub mean_progress: Option<f64>,
}

// The keys that say through which stack a run went, in every run.

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

// The keys of VMs that share the host's processors, in a comparison.

/// A VM that shared processors with others.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Vcpus {
    pub vm: String,
    pub vcpus: u16,
    /// Throughput of its applications.
    pub app_mib_s: f64,
    /// Time for which its vCPUs ran, together.
    pub ran_s: f64,
    /// Time for which they had something to run and no processor, together.
    pub stolen_s: f64,
    /// Waits of its tasks for the disk, until they ran again.
    pub wait_ms: Response,
    /// Moves of tasks that its agent made.
    pub moves: u64,
    /// CPU time of its agent.
    pub agent_s: f64,
}

impl Vcpus {
    /// Those of a run; none where no processors were shared.
    pub fn all(r: &RunResult) -> Vec<Vcpus> {
        let Some(machine) = &r.machine else { return Vec::new() };
        // Their disks come behind those of traces.
        let first = r.vms.len() - machine.vms.last().map_or(0, |vm| vm.disks.end);
        machine.vms.iter().map(|vm| Vcpus::new(r, first, vm)).collect()
    }

    /// `first`: the run's first disk that is the machine's.
    fn new(r: &RunResult, first: usize, vm: &VmCpu) -> Vcpus {
        let waits = vm.waits();
        let disks = first + vm.disks.start..first + vm.disks.end;
        let apps = r.apps.iter().filter(|app| disks.contains(&usize::from(app.vm)));
        let bytes: u64 = apps.map(|app| app.bytes).sum();
        Vcpus {
            vm: r.vms[disks.start].name.clone(),
            vcpus: vm.vcpus,
            app_mib_s: per_second(bytes as f64 / f64::from(1 << 20), r.simulated),
            ran_s: vm.ran.as_secs_f64(),
            stolen_s: vm.stolen.as_secs_f64(),
            wait_ms: response(&waits, waits.max()),
            moves: vm.moves,
            agent_s: vm.agent.as_secs_f64(),
        }
    }
}
