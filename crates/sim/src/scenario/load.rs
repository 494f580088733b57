//! From VMs as they are described to sources of requests: traces and generated VMs, placed on a
//! disk.

use super::run::{self, ScannedTrace};
use super::{Group, Images, Scenario, TraceText, Vm, VmLoad};
use crate::layout::{self, LayoutError, Placement};
use crate::vcpu::{PlannedVm, VmSpec};
use anyhow::{Context, Result, anyhow, bail};
use seekway_core::units::{Instant, Nanos, Sectors};
use seekway_stack::stack::limit::{DiskLimits, GroupName, Limits};
use seekway_workload::generators::{VmPlan, disk_limits};
use seekway_workload::replay::{Layout, Pace, ReplayOptions, TimeScale, TraceSource};
use seekway_workload::traces::{
    Format, Scan, TraceError, TraceFiles, TraceOptions, check_columns, expand, scannable,
};
use seekway_workload::{Source, VmDisk};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::num::NonZeroU32;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Requests outstanding over all VMs of one trace beyond which its clock waits.
const OPEN_LOOP_OUTSTANDING_MAX: u32 = 16_384;
/// Requests outstanding over all traces beyond which their clocks wait, where guests have queues of
/// their own: all of a backlog is measured.
const BACKLOG_REQUESTS_MAX: u32 = 1 << 18;
/// Millionths of a whole by which each copy of a load begins later than the one before: by the
/// golden ratio no two copies of any number of them begin together.
const TURN_MILLIONTHS: u64 = 618_034;

/// Default length of a run if a VM's load does not end by itself.
pub const RUN_DEFAULT: Nanos = Nanos::from_secs(60);

/// A trace that can be read as often as there are runs.
pub struct Trace {
    /// Where to read it.
    pub path: PathBuf,
    /// Its name in messages.
    pub shown: String,
    /// Other files that are a part of it and were not named yet.
    others: Vec<PathBuf>,
    /// Keeps the copy of a stream open; it has no name on the disk.
    _spooled: Option<File>,
}

impl Trace {
    /// Opens the trace at `path`. An input that can be read only once (the standard input, a named
    /// pipe, `<(command)` of a shell) is copied to a temporary file first.
    fn open(path: &Path, format: Option<Format>) -> Result<Trace> {
        let mut shown = path.display().to_string();
        if scannable(path) || path.is_dir() {
            let TraceFiles { files, twins, .. } = TraceFiles::find(path, format)?;
            let others = files.into_iter().chain(twins).filter(|file| file != path);
            return Ok(Trace {
                path: path.into(),
                shown,
                others: others.collect(),
                _spooled: None,
            });
        }
        let mut input: Box<dyn Read> = if shown == "-" {
            shown = "stdin".into();
            Box::new(std::io::stdin())
        } else {
            Box::new(File::open(path).with_context(|| shown.clone())?)
        };
        let mut file = tempfile::tempfile().context("cannot make a temporary file")?;
        std::io::copy(&mut input, &mut file)
            .with_context(|| format!("cannot copy {shown} to a temporary file"))?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(Trace { path, shown, others: Vec::new(), _spooled: Some(file) })
    }

    /// Opens all named traces. A pattern means the files that it matches. Files of one blktrace, as
    /// a shell makes them of `sda.blktrace.*`, are one trace.
    pub fn open_all(paths: &[PathBuf], format: Option<Format>) -> Result<Vec<Trace>> {
        let paths: Vec<_> = paths.iter().map(|path| (path.as_path(), format, ())).collect();
        Ok(Trace::open_each(&paths)?.into_iter().map(|(trace, ())| trace).collect())
    }

    /// As [`Trace::open_all`], with a format of its own for each, and a value that goes with it.
    fn open_each<T: Copy>(paths: &[(&Path, Option<Format>, T)]) -> Result<Vec<(Trace, T)>> {
        if paths.iter().filter(|(path, ..)| path.as_os_str() == "-").count() > 1 {
            bail!("`-`, the standard input, can be one trace only");
        }
        let mut traces: Vec<(Trace, T)> = Vec::new();
        for (given, format, with) in paths {
            for path in expand(given)? {
                if !traces.iter_mut().any(|(trace, _)| trace.takes(&path)) {
                    traces.push((Trace::open(&path, *format)?, *with));
                }
            }
        }
        Ok(traces)
    }

    /// Is the file a part of this trace that was not named yet? The same name once more is
    /// another VM with the same load.
    fn takes(&mut self, file: &Path) -> bool {
        let same = |other: &PathBuf| match (other.canonicalize(), file.canonicalize()) {
            (Ok(other), Ok(file)) => other == file,
            _ => false,
        };
        let found = self.others.iter().position(same);
        found.map(|at| self.others.swap_remove(at)).is_some()
    }

    /// Name of the VM on a volume of the trace. A volume without a letter in its name gets the
    /// file's name: alone if it is the only one, else in front of its own.
    pub fn vm_name(&self, volume: &str, alone: bool) -> String {
        if volume.chars().any(char::is_alphabetic) {
            return volume.into();
        }
        let file = self.shown.rsplit('/').next().unwrap_or_default();
        let stem = file.split('.').find(|part| !part.is_empty()).unwrap_or("trace");
        if alone { stem.into() } else { format!("{stem}.{volume}") }
    }

    /// An error about it, under the name that the user knows.
    pub fn error(&self, error: TraceError) -> anyhow::Error {
        let shown = self.shown_in(error.path());
        error.renamed(&shown).into()
    }

    /// A text with the name that the user knows.
    pub fn shown_in(&self, text: &str) -> String {
        text.replace(&self.path.display().to_string(), &self.shown)
    }
}

/// Everything that a run needs to make its sources, as often as needed.
#[derive(Clone)]
pub struct Load {
    traces: Vec<(Arc<Trace>, Arc<ScannedTrace>, ReplayOptions)>,
    made: Vec<Made>,
    /// The disks of all VMs, in order, names made unique.
    pub disks: Vec<VmDisk>,
    /// Which of them is the first one of each source.
    first_disks: Vec<usize>,
    pub placement: Placement,
    /// Weights in the VMs' order.
    pub weights: Vec<NonZeroU32>,
    /// Rate limits in the VMs' order; empty where none has any.
    pub limits: Vec<DiskLimits>,
    /// Rate limits of groups of VMs.
    pub groups: Vec<(GroupName, Limits)>,
    /// Tells whether a clock issues all requests (else completions do).
    pub open_loop: bool,
    /// Copies of each VM on the place of the first, which comes first.
    copies: usize,
}

/// A VM that replays no trace.
#[derive(Clone)]
enum Made {
    Guest {
        plan: VmPlan,
        /// The stream of random numbers.
        stream: u16,
        cpu_weight: NonZeroU32,
        agent: bool,
    },
    /// On shared processors only.
    Tasks { spec: VmSpec, limits: DiskLimits },
}

impl Made {
    fn name(&self) -> &str {
        match self {
            Made::Guest { plan, .. } => &plan.name,
            Made::Tasks { spec, .. } => &spec.name,
        }
    }

    /// The rate limits of its disks.
    fn limits(&self) -> Vec<&DiskLimits> {
        match self {
            Made::Guest { plan, .. } => plan.limits_by_disk().collect(),
            Made::Tasks { limits, .. } => vec![limits],
        }
    }

    fn is_like(&self, other: &Made) -> bool {
        match (self, other) {
            (Made::Guest { plan: a, .. }, Made::Guest { plan: b, .. }) => a.is_like(b),
            (Made::Tasks { spec: a, limits: x }, Made::Tasks { spec: b, limits: y }) => {
                x == y && *a == VmSpec { name: a.name.clone(), ..b.clone() }
            }
            _ => false,
        }
    }
}

/// Most VMs of a run, and most disks of all of them: they are counted in 16 bits.
const VMS_MAX: usize = 65_535;

impl Load {
    /// Checks the VMs of a scenario and scans its traces. `tell` gets each trace that is new to
    /// this process, with its format.
    ///
    /// # Errors
    /// A trace cannot be read, or VMs contradict each other.
    pub fn new(scenario: &Scenario, tell: &mut dyn FnMut(&Trace, &Scan)) -> Result<Load> {
        let Images(placement) = scenario.images.clone();
        let mut load = Load {
            traces: Vec::new(),
            made: Vec::new(),
            disks: Vec::new(),
            first_disks: Vec::new(),
            placement,
            weights: scenario.weights.clone(),
            limits: Vec::new(),
            groups: Vec::new(),
            open_loop: false,
            copies: 1,
        };
        let names = load.take_traces(&scenario.vm, tell)?;
        if scenario.guest_queue.is_some() {
            let each = BACKLOG_REQUESTS_MAX / load.traces.len().max(1) as u32;
            load.bound_outstanding(each.max(1));
        }
        load.take_guests(&scenario.vm)?;
        if load.source_count() == 0 {
            bail!("nothing to run: give --trace FILE or --vm SPEC (see --help), or [[vm]]");
        }
        load.groups = groups(&scenario.group, &load.made)?;
        let timed =
            |(.., options): &(_, _, ReplayOptions)| matches!(options.pace, Pace::Timed { .. });
        load.open_loop = load.made.is_empty() && load.traces.iter().all(timed);
        load.take_disks(&names)?;
        Ok(load)
    }

    /// Opens and scans the traces; the names that are given to them.
    fn take_traces(
        &mut self,
        vms: &[Vm],
        tell: &mut dyn FnMut(&Trace, &Scan),
    ) -> Result<Vec<Option<String>>> {
        let mut given = Vec::new();
        for (n, vm) in vms.iter().enumerate() {
            let VmLoad::Trace(trace) = &vm.load else { continue };
            let path = trace.path.display();
            if n > 0 && !matches!(vms[n - 1].load, VmLoad::Trace(_)) {
                bail!("VM of {path}: VMs that replay traces stand before generated ones");
            }
            let options = replay_options(trace).with_context(|| path.to_string())?;
            judge_count(given.len() + vm.count as usize)?;
            given.extend((0..vm.count).map(|_| (trace, options.clone(), vm.name.clone())));
        }
        let paths: Vec<(&Path, Option<Format>, usize)> = given
            .iter()
            .enumerate()
            .map(|(n, (trace, options, _))| (trace.path.as_path(), options.trace.format, n))
            .collect();
        let mut names = Vec::new();
        for (trace, n) in Trace::open_each(&paths)? {
            let (_, options, name) = &given[n];
            let scanned = run::scanned(&trace.path, &options.trace);
            let (scanned, is_new) = scanned.map_err(|e| trace.error(e))?;
            if is_new {
                tell(&trace, &scanned.scan);
            }
            self.traces.push((Arc::new(trace), scanned, options.clone()));
            names.push(name.clone());
        }
        Ok(names)
    }

    fn take_guests(&mut self, vms: &[Vm]) -> Result<()> {
        for vm in vms {
            let name = vm.name.as_deref().unwrap_or("vm");
            let what = || format!("VM {name}");
            let (cpu_weight, agent) =
                (vm.cpu_weight.unwrap_or(NonZeroU32::MIN), vm.agent.unwrap_or(true));
            let first = vm.stream.map(u32::from);
            for n in 0..vm.count {
                judge_count(self.traces.len() + self.made.len() + 1)?;
                let made = match &vm.load {
                    VmLoad::Trace(_) => break,
                    VmLoad::Guest(text) => {
                        let stream = first.map_or(self.made.len() as u32, |first| first + n);
                        let stream = u16::try_from(stream)
                            .map_err(|_| anyhow!("VM {name}: stream {stream}: at most 65535"))?;
                        let plan = text.plan().with_context(what)?;
                        Made::Guest { plan, stream, cpu_weight, agent }
                    }
                    VmLoad::Tasks(tasks) => Made::Tasks {
                        spec: tasks.spec(name, cpu_weight, agent),
                        limits: disk_limits(&tasks.limits).with_context(what)?,
                    },
                };
                self.made.push(made);
            }
        }
        Ok(())
    }

    /// The disks with their names, limits and weights. `names` are those given to traces.
    fn take_disks(&mut self, names: &[Option<String>]) -> Result<()> {
        let mut limits = Vec::new();
        for n in 0..self.source_count() {
            let disks = match n.checked_sub(self.traces.len()).map(|n| &self.made[n]) {
                None => {
                    let mut disks = self.source(n, 0)?.vms().to_vec();
                    let (trace, alone) = (&self.traces[n].0, disks.len() == 1);
                    for disk in &mut disks {
                        disk.name = match (names.get(n).and_then(Option::as_ref), alone) {
                            (Some(name), true) => name.clone(),
                            (Some(name), false) => format!("{name}.{}", disk.name),
                            (None, _) => trace.vm_name(&disk.name, alone),
                        };
                    }
                    limits.resize(limits.len() + disks.len(), DiskLimits::default());
                    disks
                }
                Some(made) => {
                    limits.extend(made.limits().into_iter().cloned());
                    match made {
                        Made::Guest { .. } => self.source(n, 0)?.vms().to_vec(),
                        Made::Tasks { spec, .. } => {
                            vec![VmDisk { name: spec.name.clone(), capacity: spec.disk }]
                        }
                    }
                }
            };
            self.first_disks.push(self.disks.len());
            judge_count(self.disks.len() + disks.len())?;
            self.disks.extend(disks);
        }
        self.disks = unique(std::mem::take(&mut self.disks));
        self.take_weights(&mut limits)?;
        if limits.iter().any(|l| !l.is_none()) {
            self.limits = limits;
        }
        if self.weights.len() > self.disks.len() {
            let (given, vms) = (self.weights.len(), self.disks.len());
            bail!("--weights: {given} weights for {vms} VMs");
        }
        Ok(())
    }

    /// New sources, at their beginning.
    pub fn sources(&self, seed: u64) -> Result<Vec<Box<dyn Source>>> {
        (0..self.source_count()).map(|n| self.source(n, seed)).collect()
    }

    /// New sources of the traces alone.
    pub fn traced(&self, seed: u64) -> Result<Vec<Box<dyn Source>>> {
        (0..self.traces.len()).map(|n| self.source(n, seed)).collect()
    }

    /// The VMs that replay no trace, for shared processors.
    pub fn guests(&self) -> impl Iterator<Item = PlannedVm<'_>> {
        self.made.iter().map(|made| match made {
            Made::Guest { plan, stream, cpu_weight, agent } => {
                let (stream, cpu_weight, agent) = (*stream, *cpu_weight, *agent);
                PlannedVm::Guest { plan, stream, cpu_weight, agent }
            }
            Made::Tasks { spec, .. } => PlannedVm::Tasks(spec),
        })
    }

    /// True if a VM has tasks without a guest, which need shared processors.
    pub fn has_tasks(&self) -> bool {
        self.made.iter().any(|made| matches!(made, Made::Tasks { .. }))
    }

    /// A new source, by its number: traces come before generated VMs.
    pub fn source(&self, number: usize, seed: u64) -> Result<Box<dyn Source>> {
        if let Some((trace, scanned, options)) = self.traces.get(number) {
            let ScannedTrace { scan, kept } = &**scanned;
            let source = TraceSource::with_scan(&trace.path, scan, kept.as_ref(), options);
            return Ok(Box::new(source.map_err(|e| trace.error(e))?));
        }
        match &self.made[number - self.traces.len()] {
            Made::Guest { plan, stream, .. } => {
                plan.source(seed, *stream).map_err(|e| anyhow!("{e}"))
            }
            Made::Tasks { spec, .. } => bail!(
                "VM {}: its tasks run on processors of the host: say how many, as cpu.count = 4",
                spec.name
            ),
        }
    }

    fn bound_outstanding(&mut self, most: u32) {
        for (.., options) in &mut self.traces {
            if let Pace::Timed { outstanding_max, .. } = &mut options.pace {
                *outstanding_max = most;
            }
        }
    }

    /// `copies` of each VM on the same place, each begun elsewhere in its trace's time and its
    /// disk's addresses. `None` if a VM does not replay a trace that is in memory by its clock.
    pub fn beside(&self, copies: u32) -> Option<Load> {
        let are_kept = self.traces.iter().all(|(_, scanned, _)| scanned.kept.is_some());
        if !self.open_loop || !are_kept || self.copies > 1 {
            return None;
        }
        let mut load = Load { copies: copies as usize, ..self.clone() };
        let (sources, disks) = (self.traces.len(), self.disks.len());
        for copy in 1..u64::from(copies) {
            let turn_millionths = (copy * TURN_MILLIONTHS % 1_000_000) as u32;
            let turned = self.traces.iter().map(|(trace, scanned, options)| {
                let options = ReplayOptions { turn_millionths, ..options.clone() };
                (trace.clone(), scanned.clone(), options)
            });
            load.traces.extend(turned);
            load.disks.extend_from_slice(&self.disks);
            let first = copy as usize * disks;
            load.first_disks.extend(self.first_disks.iter().map(|disk| first + disk));
        }
        load.disks = unique(load.disks);
        load.weights.resize(disks, NonZeroU32::MIN);
        load.weights = load.weights.repeat(copies as usize);
        load.bound_outstanding((BACKLOG_REQUESTS_MAX / (sources as u32 * copies)).max(1));
        Some(load)
    }

    /// Where its disks lie on a device.
    ///
    /// # Errors
    /// They do not fit on it.
    pub fn layout(&self, capacity: Sectors) -> Result<layout::Layout, LayoutError> {
        let disks = &self.disks[..self.disks.len() / self.copies];
        Ok(layout::Layout::place(disks, capacity, &self.placement)?.repeated(self.copies))
    }

    /// Time in which the requests of all traces come, to a mean gap after the last one of the
    /// longest; zero if they come at once. `None` for loads without a clock.
    pub fn span(&self) -> Option<Nanos> {
        let of = |(_, scanned, options): &(_, Arc<ScannedTrace>, ReplayOptions)| {
            let (Pace::Timed { time_scale, .. }, stats) = (options.pace, &scanned.scan.stats)
            else {
                return Nanos::ZERO;
            };
            let gaps = stats.requests().saturating_sub(1).max(1);
            time_scale.apply(stats.duration + Nanos::new(stats.duration.get() / gaps))
        };
        self.open_loop.then(|| self.traces.iter().map(of).max()).flatten()
    }

    /// True if two sources are the same trace, or VMs that differ in name only.
    pub fn alike(&self, a: usize, b: usize) -> bool {
        let plan = |n: usize| n.checked_sub(self.traces.len()).map(|n| &self.made[n]);
        match (plan(a), plan(b)) {
            (Some(a), Some(b)) => a.is_like(b),
            (None, None) => self.traces[a].0.path == self.traces[b].0.path,
            _ => false,
        }
    }

    /// The disks of a source, as indices into [`Load::disks`].
    pub fn disks_of(&self, source: usize) -> Range<usize> {
        let end = self.first_disks.get(source + 1).copied().unwrap_or(self.disks.len());
        self.first_disks[source]..end
    }

    /// Can each VM run alone? Several volumes of one trace are VMs of one source, which cannot.
    pub fn can_split(&self) -> bool {
        (0..self.traces.len()).all(|trace| self.disks_of(trace).len() == 1)
    }

    /// Of a source that is a generated VM: its number among [`Load::guests`].
    pub fn guest_number(&self, source: usize) -> Option<usize> {
        source.checked_sub(self.traces.len())
    }

    /// Number of sources.
    pub fn source_count(&self) -> usize {
        self.traces.len() + self.made.len()
    }

    /// The first VM whose load does not end by itself.
    pub fn endless(&self) -> Option<&str> {
        let is_endless = |made: &&Made| match made {
            Made::Guest { plan, .. } => plan.is_endless(),
            Made::Tasks { .. } => true,
        };
        self.made.iter().find(is_endless).map(Made::name)
    }

    /// Time when each run stops: `given`, else [`RUN_DEFAULT`] after `settle` if a load does not
    /// end by itself, else the load's end.
    pub fn until(&self, given: Option<Nanos>, settle: Nanos) -> Option<Instant> {
        let span = given.or_else(|| self.endless().map(|_| settle + RUN_DEFAULT));
        span.map(|span| Instant::ZERO + span)
    }

    /// Requests of one run, where they are known beforehand.
    pub fn requests(&self) -> Option<u64> {
        let traced = self.traces.iter().map(|(_, s, _)| s.scan.stats.requests()).sum();
        self.made.is_empty().then_some(traced)
    }

    /// An error of a run, with the traces' names as the user knows them.
    pub fn error(&self, error: impl std::fmt::Display) -> anyhow::Error {
        let mut text = error.to_string();
        for (trace, ..) in &self.traces {
            text = text.replace(&trace.path.display().to_string(), &trace.shown);
        }
        anyhow!("{text}")
    }

    /// The weights that VMs have among their limits.
    fn take_weights(&mut self, limits: &mut [DiskLimits]) -> Result<()> {
        let own: Vec<_> = limits.iter_mut().map(|l| l.limits.weight.take()).collect();
        if own.iter().all(Option::is_none) {
            return Ok(());
        }
        if !self.weights.is_empty() {
            bail!("--weights and a weight in --vm contradict: give one of them");
        }
        self.weights = own.into_iter().map(|weight| weight.unwrap_or(NonZeroU32::MIN)).collect();
        Ok(())
    }

    /// True if any VM or group has a rate limit, a promise or a group.
    pub fn is_limited(&self) -> bool {
        !(self.limits.is_empty() && self.groups.is_empty())
    }

    /// Outstanding requests at which an open-loop trace's clock waits.
    pub fn stalls_at(&self) -> Option<usize> {
        let most = self.traces.iter().find_map(|(.., options)| match options.pace {
            Pace::Timed { outstanding_max, .. } => Some(outstanding_max as usize),
            Pace::Outstanding { .. } => None,
        });
        most.filter(|_| self.open_loop)
    }
}

fn judge_count(vms: usize) -> Result<()> {
    if vms > VMS_MAX {
        bail!("{vms} VMs and disks, and more: at most {VMS_MAX} are possible; give fewer");
    }
    Ok(())
}

/// Checks that the groups are those that VMs are in.
fn groups(given: &[Group], vms: &[Made]) -> Result<Vec<(GroupName, Limits)>> {
    let mut groups: Vec<(GroupName, Limits)> = Vec::new();
    for Group { name, limits, .. } in given {
        if groups.iter().any(|(known, _)| known == name) {
            bail!("--group {name}: a group '{name}' is there already; names differ");
        }
        groups.push((name.clone(), *limits));
    }
    let limits = |made| Made::limits(made).into_iter().map(move |limits| (made, limits));
    let joined = vms.iter().flat_map(limits);
    for (made, group) in joined.filter_map(|(m, limits)| Some((m, limits.group.as_ref()?))) {
        if !groups.iter().any(|(name, _)| name == group) {
            let vm = made.name();
            bail!(
                "--vm name={vm}: no group '{group}'; give it its limits, as in \
                 --group {group}:bandwidth=300MiB (in a scenario a [[group]])"
            );
        }
    }
    Ok(groups)
}

/// Options for reading a trace.
///
/// # Errors
/// A value that cannot be, or two that contradict each other.
pub fn trace_options(trace: &TraceText) -> Result<TraceOptions> {
    let format = match &trace.format {
        None => None,
        Some(name) => Some(
            Format::from_name(name)
                .ok_or_else(|| anyhow!("--input-format {name}: not one of {}", Format::names()))?,
        ),
    };
    if let Some(list) = &trace.columns {
        if !list.contains('%') {
            check_columns(list).map_err(|e| anyhow!("--columns {list}: {e}"))?;
        }
        let of = if list.contains('%') { Format::Blkparse } else { Format::Csv };
        if let Some(format) = format.filter(|format| *format != of) {
            bail!("--columns {list} is a trace in the format {of}, not {format}: give one of both");
        }
    }
    if trace.split == Some(0) {
        bail!("--split 0: at least 1 VM, or nothing would be read");
    }
    Ok(TraceOptions {
        format,
        blktrace_event: trace.event.map(Into::into),
        columns: trace.columns.clone(),
        lenient: trace.lenient,
        limit: trace.max_requests,
        duration_max: trace.max_time.map(|time| time.0),
    })
}

/// Options for replaying a trace.
///
/// # Errors
/// As [`trace_options`].
pub fn replay_options(trace: &TraceText) -> Result<ReplayOptions> {
    let time_scale = TimeScale::new(trace.time_scale).ok_or_else(|| {
        anyhow!("--time-scale {}: expected a factor from 0.000001 to 1000000", trace.time_scale)
    })?;
    if trace.outstanding == Some(0) {
        bail!("--outstanding 0: at least 1, or nothing would be issued");
    }
    let capacity = trace.capacity.map(|size| size.0);
    Ok(ReplayOptions {
        trace: trace_options(trace)?,
        pace: match trace.outstanding {
            Some(per_vm) => Pace::Outstanding { per_vm },
            None => Pace::Timed { time_scale, outstanding_max: OPEN_LOOP_OUTSTANDING_MAX },
        },
        layout: match trace.split {
            Some(vms_max) => Layout::Split { vms_max },
            None => Layout::OneVm,
        },
        capacity,
        turn_millionths: 0,
    })
}

/// Two VMs of the same name get numbers.
fn unique(mut disks: Vec<VmDisk>) -> Vec<VmDisk> {
    let mut taken: HashSet<String> = disks.iter().map(|disk| disk.name.clone()).collect();
    let mut before: HashMap<String, usize> = HashMap::new();
    for disk in &mut disks {
        let count = before.entry(disk.name.clone()).or_default();
        *count += 1;
        if *count == 1 {
            continue;
        }
        let mut name = format!("{}-{count}", disk.name);
        while !taken.insert(name.clone()) {
            *count += 1;
            name = format!("{}-{count}", disk.name);
        }
        disk.name = name;
    }
    disks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_unique() {
        let disk = |name: &str| VmDisk { name: name.into(), capacity: Sectors::new(1) };
        let named = unique(["a", "b", "a", "a-2", "a"].map(disk).into());
        let names: Vec<&str> = named.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "a-3", "a-2", "a-4"]);
    }
}
