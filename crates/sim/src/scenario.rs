//! The description of a run: VMs, stack, device, measurement and seed. [`read`] reads it from TOML,
//! with lists as axes; [`run`](run()) makes the run.
//!
//! Values are as on the command line, by the same parsers. A key that nothing could carry out is
//! no key: reading refuses it.

mod cpu;
pub mod load;
pub mod read;
mod run;
pub mod tables;
#[cfg(test)]
mod tests;

pub use cpu::{Cpu, NO_AGENT, SPECS};
pub use load::{Load, Trace};
pub use read::{ByteSize, Bytes, Map, Place, Scalar, Size, Time};
pub use read::{SCENARIO_BYTES_MAX, Study, study};
pub use run::{Outcome, Ready, With, run};

use crate::engine::{HostCosts, HostPath};
use crate::layout::Placement;
use crate::vcpu;
use anyhow::{Context, Result, bail};
use read::{Chosen, none_or};
use seekway_core::units::{Lba, Nanos};
use seekway_device::profile::{self, Profile};
use seekway_policy::prefetchers;
use seekway_stack::cache::BLOCK_BYTES;
use seekway_stack::dispatcher::Config;
use seekway_stack::stack::PIECE_MAX;
use seekway_stack::stack::limit::{GroupName, Limits, LimitsDraft, new_group};
use seekway_workload::generators::{AppText, DiskText, Pairs, VmText};
use seekway_workload::traces::BlktraceEvent;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

/// The disk unless one is given: a turning disk, because there a policy decides most, of a size that
/// is sold.
pub const DEVICE_DEFAULT: &str = "seagate-exos-x24";
/// Longest file of a profile.
const PROFILE_BYTES_MAX: u64 = 1 << 20;
/// The prefetcher that does nothing.
pub const NO_PREFETCH: &str = "none";
/// Size of a host cache unless one is given: 1 GiB.
pub const CACHE_BYTES_DEFAULT: u64 = 1 << 30;
/// Most of a cache: its books, not its data, are in memory here.
const CACHE_BYTES_MAX: u64 = 1 << 40;

/// A run. Its default is no load under noop.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// Name in tables; changes nothing.
    pub name: String,
    /// Specification of the scheduling policy; one of the caller's own by its name.
    pub policy: String,
    /// Seed of generated loads and of the processors.
    pub seed: u64,
    pub device: Device,
    pub stack: Dispatch,
    pub images: Images,
    /// The host's thread that all requests pass on their way to the stack, if there is one.
    pub path: Option<Path>,
    /// The host's cache with its prefetcher.
    #[serde(deserialize_with = "none_or::<CacheTable, _>")]
    pub cache: Option<Cache>,
    pub limits: LimitsChoice,
    /// The processors that the VMs' vCPUs share; each vCPU has one of its own if none.
    #[serde(deserialize_with = "none_or::<cpu::CpuTable, _>")]
    pub cpu: Option<Cpu>,
    /// The VMs: those that replay traces, then those that are generated.
    #[serde(deserialize_with = "shared", serialize_with = "as_list")]
    pub vm: Arc<Vec<Vm>>,
    pub group: Vec<Group>,
    /// Weights of the VMs' disks in their order; those missing are 1.
    pub weights: Vec<NonZeroU32>,
    pub measure: Measure,
    pub outcome: Wanted,
    /// Only this source of requests, by its number from 0, where it lies among the others: a
    /// trace, or a generated VM.
    pub only: Option<usize>,
    /// Requests that a VM has outside of its guest at once; the others wait in it. Not bounded if
    /// none. Commands set it.
    #[serde(skip)]
    pub guest_queue: Option<NonZeroU32>,
}

impl Default for Scenario {
    fn default() -> Scenario {
        Scenario {
            name: String::new(),
            policy: "noop".into(),
            seed: 1,
            device: Device::default(),
            stack: Dispatch::default(),
            images: Images::default(),
            path: None,
            cache: None,
            limits: LimitsChoice::Given,
            cpu: None,
            vm: Arc::default(),
            group: Vec::new(),
            weights: Vec::new(),
            measure: Measure::default(),
            outcome: Wanted::default(),
            only: None,
            guest_queue: None,
        }
    }
}

impl Scenario {
    /// Size of its host cache in MiB, if it has one.
    pub fn cache_mib(&self) -> Option<f64> {
        self.cache.as_ref().map(|cache| cache.size as f64 / f64::from(1 << 20))
    }

    /// The prefetcher of its host cache, if it has one.
    pub fn prefetch(&self) -> Option<&str> {
        self.cache.as_ref().map(|cache| cache.prefetch.as_str())
    }

    /// The policy for vCPUs of the agent in each guest.
    pub fn agent(&self) -> &str {
        self.cpu.as_ref().map_or(NO_AGENT, |cpu| cpu.agent.as_str())
    }

    /// Whether the processors of its VMs are also those of others, which are not among the VMs.
    pub fn has_others(&self) -> bool {
        self.cpu.as_ref().is_some_and(|cpu| cpu.processors.part > 1)
    }

    /// A copy under another policy.
    pub fn under(&self, policy: &str) -> Scenario {
        Scenario { policy: policy.into(), ..self.clone() }
    }

    /// The scenario without the keys by which runs of one load on one device differ: policy, cache,
    /// limits, processors and seed.
    pub fn base(&self) -> Scenario {
        let Scenario { policy, seed, cache, limits, cpu, .. } = Scenario::default();
        Scenario { policy, seed, cache, limits, cpu, ..self.clone() }
    }

    /// One of its sources alone on the device itself, where it lies among the others: under noop,
    /// without the host's thread and cache, shared processors and agent.
    pub fn alone(&self, source: usize) -> Scenario {
        let outcome = Wanted { journal: false, requests: false, ..self.outcome.clone() };
        Scenario {
            policy: "noop".into(),
            path: None,
            cache: None,
            cpu: None,
            only: Some(source),
            outcome,
            ..self.clone()
        }
    }

    /// One of its `sources` alone on a device of its own, `slow` times slower, with its part of the
    /// host's processors and cache, under noop. `is_guest`: a trace has nothing to share
    /// processors with.
    pub fn private(&self, source: usize, slow: u32, sources: u32, is_guest: bool) -> Scenario {
        let mut private = self.alone(source);
        private.device.slow = self.device.slow.saturating_mul(slow);
        private.cache = self.cache.as_ref().map(|cache| Cache {
            size: cache.size / u64::from(sources),
            prefetch: NO_PREFETCH.into(),
            ..cache.clone()
        });
        private.cpu = self.cpu.clone().filter(|_| is_guest).map(|cpu| cpu.one_of(sources));
        private
    }
}

fn shared<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Arc<Vec<Vm>>, D::Error> {
    Vec::deserialize(from).map(Arc::new)
}

fn as_list<S: serde::Serializer>(vms: &Arc<Vec<Vm>>, to: S) -> Result<S::Ok, S::Error> {
    vms.as_ref().serialize(to)
}

/// The model of the disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Device {
    /// A name with changes (`NAME:key=value`), a path, or the profile itself as a table.
    pub profile: ProfileText,
    /// Changes of the profile, after those in its name.
    pub change: Map,
    /// Factor that slows all of it, beside the profile's own `slow`.
    pub slow: u32,
}

impl Default for Device {
    fn default() -> Device {
        Device::named(DEVICE_DEFAULT)
    }
}

/// A profile by name or in full.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a profile's name, a path, or a profile as a table")]
pub enum ProfileText {
    Named(String),
    Table(toml::Table),
}

impl Device {
    /// A profile by its name, with changes behind a colon, or by its path.
    pub fn named(profile: impl Into<String>) -> Device {
        Device { profile: ProfileText::Named(profile.into()), change: Map::new(), slow: 1 }
    }

    /// As results call it.
    pub fn shown(&self) -> String {
        let mut text = match &self.profile {
            ProfileText::Named(name) => name.clone(),
            ProfileText::Table(table) => {
                table.get("name").and_then(|name| name.as_str()).unwrap_or("profile").to_string()
            }
        };
        for (key, Scalar(value)) in &self.change {
            text.push(if text.contains(':') { ',' } else { ':' });
            text.push_str(&format!("{key}={value}"));
        }
        text
    }

    /// The profile, read and checked.
    ///
    /// # Errors
    /// There is none of that name, it cannot be read, or a change does not fit.
    pub fn load(&self) -> Result<Profile> {
        let changes: Vec<String> =
            self.change.iter().map(|(key, Scalar(value))| format!("{key}={value}")).collect();
        let what = || format!("device {}", self.shown());
        let base = match &self.profile {
            ProfileText::Named(name) if changes.is_empty() => return profile_of(name),
            ProfileText::Named(name) => profile_of(name)?,
            ProfileText::Table(table) => Profile::from_table(table.clone()).with_context(what)?,
        };
        base.with(&changes.join(",")).with_context(what)
    }
}

/// A profile by name, or from a TOML file; with changes after a colon.
///
/// # Errors
/// There is none of that name, it cannot be read, or a change does not fit.
pub fn profile_of(what: &str) -> Result<Profile> {
    if let Some((file, changes)) = profile::path_of(what) {
        let text = read::text_of_file(file.as_ref(), PROFILE_BYTES_MAX)?;
        return Profile::parse_with(&text, changes).with_context(|| what.to_string());
    }
    profile::load(what).with_context(|| format!("device {what}"))
}

/// Settings of the stack beside the policy.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dispatch {
    /// Adjacent requests are coalesced up to this size; 0 turns it off.
    #[serde(deserialize_with = "piece")]
    pub coalesce: Size,
    /// Requests are merged up to `coalesce` as they arrive, before the policy sees them.
    pub merge: bool,
    /// Longest wait of a request, after which it goes against the policy.
    #[serde(deserialize_with = "above_zero")]
    pub hard_limit: Time,
}

fn piece<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Size, D::Error> {
    let size = Size::deserialize(from)?;
    if size.0 > PIECE_MAX {
        return Err(serde::de::Error::custom("expected at most 1MiB, or 0"));
    }
    Ok(size)
}

fn above_zero<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
    let time = Time::deserialize(from)?;
    if time.0 == Nanos::ZERO {
        return Err(serde::de::Error::custom("expected more than 0, such as 30s"));
    }
    Ok(time)
}

impl Default for Dispatch {
    fn default() -> Dispatch {
        let Config { coalesce, merge, hard_limit, .. } = Config::default();
        Dispatch { coalesce: Size(coalesce), merge, hard_limit: Time(hard_limit) }
    }
}

impl Dispatch {
    /// As the dispatcher takes it.
    pub fn config(&self) -> Config {
        let Dispatch { coalesce: Size(coalesce), merge, hard_limit: Time(hard_limit) } = *self;
        Config { coalesce, merge, hard_limit, ..Config::default() }
    }
}

/// Where the images lie on the device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(try_from = "ImagesTable", into = "ImagesTable")]
pub struct Images(pub Placement);

impl Default for Images {
    fn default() -> Images {
        Images(Placement::Packed(Lba::ZERO))
    }
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ImagesTable {
    map: Form,
    from: Option<Place>,
    at: Vec<Place>,
}

#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Form {
    #[default]
    Packed,
    Spread,
    Identity,
    Ext3,
    At,
}

impl TryFrom<ImagesTable> for Images {
    type Error = String;

    fn try_from(table: ImagesTable) -> Result<Images, String> {
        let ImagesTable { map, from, at } = table;
        if from.is_some() && !matches!(map, Form::Packed | Form::Ext3) {
            return Err("from: only with map = \"packed\" or \"ext3\"".into());
        }
        if at.is_empty() == (map == Form::At) {
            return Err("at: give one place for each disk with map = \"at\", and only there".into());
        }
        let from = from.map_or(Lba::ZERO, |Place(from)| from);
        Ok(Images(match map {
            Form::Packed => Placement::Packed(from),
            Form::Ext3 => Placement::Ext3(from),
            Form::Spread => Placement::Spread,
            Form::Identity => Placement::Identity,
            Form::At => Placement::At(at.into_iter().map(|Place(at)| at).collect()),
        }))
    }
}

impl From<Images> for ImagesTable {
    fn from(Images(placement): Images) -> ImagesTable {
        let (map, from, at) = match placement {
            Placement::Packed(from) => (Form::Packed, Some(Place(from)), Vec::new()),
            Placement::Ext3(from) => (Form::Ext3, Some(Place(from)), Vec::new()),
            Placement::Spread => (Form::Spread, None, Vec::new()),
            Placement::Identity => (Form::Identity, None, Vec::new()),
            Placement::At(at) => (Form::At, None, at.into_iter().map(Place).collect()),
        };
        ImagesTable { map, from, at }
    }
}

/// A thread of the host that all requests pass, one at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Path {
    /// Time that a request takes it.
    pub request: Time,
    /// Whether it waits for the answer of a read before it takes the next request.
    pub waits: bool,
}

impl Default for Path {
    fn default() -> Path {
        Path { request: Time(Nanos::ZERO), waits: false }
    }
}

impl Path {
    fn path(self) -> HostPath {
        HostPath { request: self.request.0, waits: self.waits }
    }
}

/// A cache in the host with its prefetcher.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Cache {
    /// Bytes of data that it keeps at most.
    #[serde(serialize_with = "as_bytes")]
    pub size: u64,
    /// Specification of the prefetcher; `none` caches guests' reads and nothing else.
    pub prefetch: String,
    pub costs: CacheCosts,
}

impl Cache {
    /// With the default costs.
    pub fn new(size: u64, prefetch: impl Into<String>) -> Cache {
        Cache { size, prefetch: prefetch.into(), costs: CacheCosts::default() }
    }
}

fn as_bytes<S: serde::Serializer>(bytes: &u64, to: S) -> Result<S::Ok, S::Error> {
    Bytes(*bytes).serialize(to)
}

/// A cache as it is written.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CacheTable {
    size: Scalar,
    prefetch: String,
    costs: CacheCosts,
}

impl Default for CacheTable {
    fn default() -> CacheTable {
        CacheTable {
            size: Scalar(ByteSize(CACHE_BYTES_DEFAULT).to_string()),
            prefetch: NO_PREFETCH.into(),
            costs: CacheCosts::default(),
        }
    }
}

impl Chosen for CacheTable {
    type Made = Cache;

    fn made(self) -> Result<Option<Cache>, String> {
        prefetchers::build(&self.prefetch).map_err(|e| format!("prefetch: {e}"))?;
        if self.size.0 == "none" {
            return Ok(None);
        }
        let size = cache_bytes(&self.size.0).map_err(|e| format!("size = {}: {e}", self.size.0))?;
        Ok(Some(Cache { size, prefetch: self.prefetch, costs: self.costs }))
    }
}

/// The size of a host cache.
///
/// # Errors
/// Says what is expected, without the text.
pub fn cache_bytes(text: &str) -> Result<u64> {
    let bytes = seekway_core::params::parse_size(text)?.bytes();
    if !(BLOCK_BYTES..=CACHE_BYTES_MAX).contains(&bytes) {
        bail!("at least one block of 4KiB, at most 1TiB");
    }
    Ok(bytes)
}

/// Time of the host that a cache and its prefetcher take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CacheCosts {
    /// A guest's read.
    pub request: Time,
    /// A command to the device.
    pub command: Time,
    /// Copied to guests, bytes a second.
    pub copy: Bytes,
    /// Cost of telling cache and prefetcher of a read.
    pub event: Time,
    /// A poll of the prefetcher.
    pub poll: Time,
    /// More of a poll, for each read since the last one.
    pub poll_event: Time,
}

impl Default for CacheCosts {
    fn default() -> CacheCosts {
        let HostCosts { request, command, copy_bytes_per_s, event, poll, poll_event } =
            HostCosts::default();
        CacheCosts {
            request: Time(request),
            command: Time(command),
            copy: Bytes(copy_bytes_per_s),
            event: Time(event),
            poll: Time(poll),
            poll_event: Time(poll_event),
        }
    }
}

impl CacheCosts {
    fn costs(&self) -> HostCosts {
        HostCosts {
            request: self.request.0,
            command: self.command.0,
            copy_bytes_per_s: self.copy.0,
            event: self.event.0,
            poll: self.poll.0,
            poll_event: self.poll_event.0,
        }
    }
}

/// Which rate limits and promises hold in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum LimitsChoice {
    /// Those of VMs and groups.
    #[default]
    #[serde(rename = "given")]
    Given,
    /// No rate limits, reservations, targets and groups; weights stay.
    #[serde(rename = "none")]
    Dropped,
}

impl LimitsChoice {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            LimitsChoice::Given => "given",
            LimitsChoice::Dropped => "none",
        }
    }
}

/// Limits of several VMs together.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(try_from = "GroupTable", into = "GroupTable")]
pub struct Group {
    table: GroupTable,
    pub name: GroupName,
    pub limits: Limits,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupTable {
    name: String,
    #[serde(default)]
    limits: Map,
}

impl Group {
    /// From its text, `tenant1:bandwidth=300MiB`.
    ///
    /// # Errors
    /// Names the fault in name or limits.
    pub fn parse(text: &str) -> Result<Group, String> {
        let spec = seekway_core::params::parse_spec(text).map_err(|e| e.to_string())?;
        let pair = |&(key, value): &(&str, &str)| (key.to_string(), Scalar(value.to_string()));
        let limits = spec.given.iter().map(pair).collect();
        Group::try_from(GroupTable { name: spec.name.into(), limits })
    }
}

impl TryFrom<GroupTable> for Group {
    type Error = String;

    fn try_from(table: GroupTable) -> Result<Group, String> {
        let pairs = table.limits.iter().map(|(key, Scalar(value))| (key.as_str(), value.as_str()));
        let group = LimitsDraft::read(pairs).and_then(|draft| new_group(&table.name, draft));
        let (name, limits) = group.map_err(|e| e.to_string())?;
        Ok(Group { table, name, limits })
    }
}

impl From<Group> for GroupTable {
    fn from(group: Group) -> GroupTable {
        group.table
    }
}

/// Begin of the measuring, and end of the run.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Measure {
    /// Requests before this time are not measured.
    pub settle: Option<Time>,
    /// The simulated time at which the run stops, the time to settle included.
    pub until: Option<Time>,
    /// Number of requests after which the run stops.
    pub requests: Option<u64>,
}

impl Measure {
    /// When the measuring begins, if not with the run.
    pub fn settle(&self) -> Option<Nanos> {
        self.settle.map(|Time(settle)| settle).filter(|settle| *settle > Nanos::ZERO)
    }
}

/// Results that are kept of a run, and runs that `compare` makes beside it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Wanted {
    /// Its journal, for `seekway replay`.
    pub journal: bool,
    /// All requests: 40 bytes each.
    pub requests: bool,
    /// The tables that are made; all if the list is empty.
    #[serde(deserialize_with = "table_names")]
    pub tables: Vec<String>,
    /// When `compare` runs each VM alone as well.
    pub alone: Alone,
    /// Yardstick of `compare` for each VM's share.
    pub fair_to: FairTo,
}

fn table_names<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let wanted: Vec<String> = Vec::deserialize(from)?;
    match wanted.iter().find(|name| !tables::names().any(|known| known == *name)) {
        None => Ok(wanted),
        Some(name) => {
            let known = tables::names().collect::<Vec<_>>().join(", ");
            Err(serde::de::Error::custom(format!("no table '{name}'; there are {known}")))
        }
    }
}

/// When each VM runs once more, alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Alone {
    Never,
    /// With at most 16 different VMs.
    #[default]
    Auto,
    Always,
}

/// Yardstick for each VM's share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FairTo {
    /// The VM's demand of the disk, which it has to itself.
    #[default]
    Alone,
    /// Also a disk of its own, as many times slower as there are VMs.
    Private,
}

/// A VM: a trace that is replayed, or a guest with its loads.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(try_from = "VmTable", into = "VmTable")]
pub struct Vm {
    pub name: Option<String>,
    /// Number of equal VMs.
    pub count: u32,
    /// The stream of random numbers; by default its index among the generated VMs.
    pub stream: Option<u16>,
    /// Its share of shared processors; 1 if none.
    pub cpu_weight: Option<NonZeroU32>,
    /// Has it an agent, where there are agents? It has if none.
    pub agent: Option<bool>,
    pub load: VmLoad,
}

/// Load of a VM.
#[derive(Clone, PartialEq, Debug)]
pub enum VmLoad {
    Trace(TraceText),
    /// Boxed: with its own keys it is large.
    Guest(Box<VmText>),
    Tasks(TaskVm),
}

/// Tasks without a guest, on shared processors.
#[derive(Clone, PartialEq, Debug)]
pub struct TaskVm {
    pub vcpus: u16,
    /// Size of its disk.
    pub size: Size,
    pub tasks: Vec<Task>,
    /// Limits of its disk.
    pub limits: Pairs,
}

/// A task of a VM without a guest.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    pub name: String,
    /// Number of the vCPU that it starts on; any if none.
    pub start: Option<u16>,
    /// The vCPUs on which it may run; all if none is given.
    #[serde(default)]
    pub allowed: Vec<u16>,
    /// From when it runs.
    pub from: Option<Time>,
    pub load: TaskLoad,
}

/// Load of a task.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum TaskLoad {
    /// Computes without a pause.
    Compute,
    /// Computes for `permille` thousandths of the time, in bursts of length `burst`.
    Partly { burst: Time, permille: u16 },
    /// Reads one block after the other.
    Io {
        block: Size,
        #[serde(default)]
        sequential: bool,
        /// CPU time before each block.
        cpu: Time,
        #[serde(default = "one_block")]
        depth: u16,
        /// Blocks after which it computes or sleeps for `between`; 0 for never.
        #[serde(default)]
        burst: u32,
        between: Option<Time>,
        #[serde(default)]
        computes: bool,
    },
}

fn one_block() -> u16 {
    1
}

impl Task {
    fn spec(&self) -> vcpu::TaskSpec {
        let load = match self.load {
            TaskLoad::Compute => vcpu::Load::Compute,
            TaskLoad::Partly { burst: Time(burst), permille } => {
                vcpu::Load::Partly { burst, permille }
            }
            TaskLoad::Io { block, sequential, cpu, depth, burst, between, computes } => {
                vcpu::Load::Io {
                    block: block.0,
                    sequential,
                    cpu: cpu.0,
                    depth,
                    burst,
                    between: between.map_or(Nanos::ZERO, |time| time.0),
                    computes,
                }
            }
        };
        let start = self.start.map_or(vcpu::Start::Any, vcpu::Start::On);
        let from = self.from.map_or(Nanos::ZERO, |time| time.0);
        vcpu::TaskSpec {
            allowed: self.allowed.clone(),
            from,
            ..vcpu::TaskSpec::new(&self.name, start, load)
        }
    }
}

impl TaskVm {
    /// As the machine has it.
    fn spec(&self, name: &str, cpu_weight: NonZeroU32, agent: bool) -> vcpu::VmSpec {
        vcpu::VmSpec {
            name: name.into(),
            vcpus: self.vcpus,
            cpu_weight,
            agent,
            disk: self.size.0,
            tasks: self.tasks.iter().map(Task::spec).collect(),
        }
    }
}

impl Vm {
    /// A VM that replays a trace.
    pub fn traced(trace: TraceText) -> Vm {
        Vm::new(None, VmLoad::Trace(trace))
    }

    fn new(name: Option<String>, load: VmLoad) -> Vm {
        Vm { name, count: 1, stream: None, cpu_weight: None, agent: None, load }
    }

    /// A VM whose load is generated.
    pub fn generated(text: VmText) -> Vm {
        Vm::new(text.name.clone(), VmLoad::Guest(Box::new(text)))
    }
}

/// A trace, and how it is replayed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceText {
    pub path: PathBuf,
    pub format: Option<String>,
    pub columns: Option<String>,
    pub event: Option<Event>,
    #[serde(default)]
    pub lenient: bool,
    pub split: Option<usize>,
    pub max_requests: Option<u64>,
    pub max_time: Option<Time>,
    #[serde(default = "one")]
    pub time_scale: f64,
    pub outstanding: Option<u32>,
    pub capacity: Option<Size>,
}

fn one() -> f64 {
    1.0
}

impl TraceText {
    /// As it is, at its own speed.
    pub fn new(path: impl Into<PathBuf>) -> TraceText {
        TraceText {
            path: path.into(),
            format: None,
            columns: None,
            event: None,
            lenient: false,
            split: None,
            max_requests: None,
            max_time: None,
            time_scale: 1.0,
            outstanding: None,
            capacity: None,
        }
    }
}

/// Events of a blktrace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    Queue,
    Issue,
    Complete,
}

impl From<Event> for BlktraceEvent {
    fn from(event: Event) -> BlktraceEvent {
        match event {
            Event::Queue => BlktraceEvent::Queued,
            Event::Issue => BlktraceEvent::Issued,
            Event::Complete => BlktraceEvent::Completed,
        }
    }
}

/// A VM as it is written.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct VmTable {
    name: Option<String>,
    count: Option<u32>,
    stream: Option<u16>,
    guest: Map,
    limits: Map,
    weight: Option<Scalar>,
    disk: Vec<DiskTable>,
    load: Vec<Map>,
    trace: Option<TraceText>,
    cpu_weight: Option<NonZeroU32>,
    agent: Option<bool>,
    vcpus: Option<u16>,
    size: Option<Size>,
    task: Vec<Task>,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DiskTable {
    name: String,
    size: Scalar,
    weight: Option<Scalar>,
    #[serde(default)]
    limits: Map,
}

/// The key of a weight among limits.
const WEIGHT: &str = "weight";

fn pairs(map: Map) -> Pairs {
    map.into_iter().map(|(key, Scalar(value))| (key, value)).collect()
}

fn map(pairs: Pairs) -> Map {
    pairs.into_iter().map(|(key, value)| (key, Scalar(value))).collect()
}

/// Limits with the weight, which a table has beside them.
fn with_weight(limits: Map, weight: Option<Scalar>) -> Result<Pairs, String> {
    if limits.contains_key(WEIGHT) {
        return Err("limits.weight: write weight = N beside limits".into());
    }
    let weight = weight.map(|Scalar(weight)| (WEIGHT.into(), weight));
    Ok(pairs(limits).into_iter().chain(weight).collect())
}

fn without_weight(limits: Pairs) -> (Map, Option<Scalar>) {
    let mut limits = map(limits);
    let weight = limits.remove(WEIGHT);
    (limits, weight)
}

impl TryFrom<VmTable> for Vm {
    type Error = String;

    fn try_from(table: VmTable) -> Result<Vm, String> {
        let count = table.count.unwrap_or(1);
        if !(1..=65_535).contains(&count) {
            return Err(format!("count = {count}: expected 1 to 65535"));
        }
        table.refuse_strangers()?;
        let VmTable { name, stream, cpu_weight, agent, .. } = table.clone();
        let load = match (table.trace.clone(), table.task.is_empty()) {
            (Some(trace), _) => VmLoad::Trace(trace),
            (None, true) => VmLoad::Guest(Box::new(table.text()?)),
            (None, false) => VmLoad::Tasks(table.tasks()?),
        };
        Ok(Vm { name, count, stream, cpu_weight, agent, load })
    }
}

impl VmTable {
    /// Refuses keys that mean nothing for the kind of VM that it is.
    fn refuse_strangers(&self) -> Result<(), String> {
        let of_guest = [
            ("guest", !self.guest.is_empty()),
            ("disk", !self.disk.is_empty()),
            ("load", !self.load.is_empty()),
            ("stream", self.stream.is_some()),
        ];
        let of_any = [
            ("limits", !self.limits.is_empty()),
            (WEIGHT, self.weight.is_some()),
            ("cpu_weight", self.cpu_weight.is_some()),
            ("agent", self.agent.is_some()),
        ];
        let of_tasks = [("vcpus", self.vcpus.is_some()), ("size", self.size.is_some())];
        let task = [("task", !self.task.is_empty())];
        let (what, strange): (_, Vec<(&str, bool)>) = if self.trace.is_some() {
            ("replays a trace", [&of_guest[..], &of_any, &of_tasks, &task].concat())
        } else if self.task.is_empty() {
            ("generates a load", of_tasks.to_vec())
        } else {
            ("has tasks of its own", of_guest.to_vec())
        };
        match strange.into_iter().find(|(_, is_given)| *is_given) {
            Some((key, _)) => Err(format!("{key}: a VM that {what} has none: leave it out")),
            None => Ok(()),
        }
    }

    fn tasks(self) -> Result<TaskVm, String> {
        let missing = |key: &str| format!("{key}: a VM with tasks of its own needs it");
        let limits = with_weight(self.limits, self.weight)?;
        seekway_workload::generators::disk_limits(&limits).map_err(|e| e.to_string())?;
        Ok(TaskVm {
            vcpus: self.vcpus.ok_or_else(|| missing("vcpus"))?,
            size: self.size.ok_or_else(|| missing("size"))?,
            tasks: self.task,
            limits,
        })
    }

    fn text(self) -> Result<VmText, String> {
        let VmTable { name, guest, limits, weight, disk, load, .. } = self;
        let app = |mut load: Map| {
            let Some(Scalar(app)) = load.remove("app") else {
                return Err("load: say which generator, as app = \"sysbench\"".to_string());
            };
            let disk = load.remove("disk").map(|Scalar(disk)| disk);
            Ok(AppText { app, given: pairs(load), disk })
        };
        let of_disk = |disk: DiskTable| {
            let limits = with_weight(disk.limits, disk.weight)?;
            Ok::<_, String>(DiskText { name: disk.name, size: disk.size.0, limits })
        };
        let text = VmText {
            name,
            guest: pairs(guest),
            limits: with_weight(limits, weight)?,
            disks: disk.into_iter().map(of_disk).collect::<Result<_, _>>()?,
            apps: load.into_iter().map(app).collect::<Result<_, _>>()?,
        };
        text.plan().map_err(|e| e.to_string())?;
        Ok(text)
    }
}

impl From<Vm> for VmTable {
    fn from(vm: Vm) -> VmTable {
        let Vm { name, count, stream, cpu_weight, agent, load } = vm;
        let count = Some(count).filter(|count| *count != 1);
        let table = VmTable { name, count, stream, cpu_weight, agent, ..VmTable::default() };
        match load {
            VmLoad::Tasks(TaskVm { vcpus, size, tasks, limits }) => {
                let (limits, weight) = without_weight(limits);
                let (vcpus, size) = (Some(vcpus), Some(size));
                VmTable { limits, weight, vcpus, size, task: tasks, ..table }
            }
            VmLoad::Trace(trace) => VmTable { trace: Some(trace), ..table },
            VmLoad::Guest(text) => {
                let (limits, weight) = without_weight(text.limits);
                let disk = |disk: DiskText| {
                    let (limits, weight) = without_weight(disk.limits);
                    DiskTable { name: disk.name, size: Scalar(disk.size), weight, limits }
                };
                let app = |app: AppText| {
                    let names = [("app".into(), app.app)].into_iter();
                    let disk = app.disk.map(|disk| ("disk".into(), disk));
                    map(names.chain(disk).chain(app.given).collect())
                };
                VmTable {
                    guest: map(text.guest),
                    limits,
                    weight,
                    disk: text.disks.into_iter().map(disk).collect(),
                    load: text.apps.into_iter().map(app).collect(),
                    ..table
                }
            }
        }
    }
}
