//! From the command line to sources of requests: traces and generated VMs,
//! placed on a disk.

use crate::args::{DiskArgs, Event, LoadArgs, ReadingArgs};
use crate::kept::{self, ScannedTrace};
use anyhow::{Context, Result, anyhow, bail};
use seekway_device::profile::{self, Profile};
use seekway_policy::dispatcher::Config;
use seekway_policy::params::{parse_duration, parse_lba, parse_size};
use seekway_policy::stack::PIECE_MAX;
use seekway_policy::stack::limit::{DiskLimits, GroupName, Limits, parse_group};
use seekway_policy::units::{Instant, Lba, Nanos, Sectors};
use seekway_sim::Placement;
use seekway_workload::generators::{VmPlan, parse_vm};
use seekway_workload::replay::{Layout, Overrun, Pace, ReplayOptions, TimeScale, TraceSource};
use seekway_workload::traces::{
    BlktraceEvent, Format, Scan, TraceError, TraceFiles, TraceOptions, check_columns, expand,
    scannable,
};
use seekway_workload::{Source, VmDisk};
use std::fs::File;
use std::io::Read;
use std::num::NonZeroU32;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Requests outstanding over all VMs of one trace beyond which its clock waits.
const OPEN_LOOP_OUTSTANDING_MAX: u32 = 16_384;

pub fn duration(flag: &str, text: &str) -> Result<Nanos> {
    parse_duration(text).map_err(|e| anyhow!("{flag} {text}: {e}"))
}

/// How long a run lasts by default if a VM's load does not end by itself.
pub const RUN_DEFAULT: Nanos = Nanos::from_secs(60);

/// Most runs of each policy.
const SEEDS_MAX: u64 = 10_000;

/// The seeds of `--seed` and `--seeds`.
pub fn seeds(first: u64, count: u64) -> Result<Vec<u64>> {
    if !(1..=SEEDS_MAX).contains(&count) {
        bail!("--seeds {count}: at least 1 and at most {SEEDS_MAX}");
    }
    Ok((0..count).map(|n| first.wrapping_add(n)).collect())
}

pub fn size(flag: &str, text: &str) -> Result<Sectors> {
    parse_size(text).map_err(|e| anyhow!("{flag} {text}: {e}"))
}

/// How traces are read, by the arguments.
pub fn trace_options(reading: &ReadingArgs) -> Result<TraceOptions> {
    let format = match &reading.input_format {
        None => None,
        Some(name) => Some(
            Format::from_name(name)
                .ok_or_else(|| anyhow!("--input-format {name}: not one of {}", Format::names()))?,
        ),
    };
    if let Some(list) = &reading.columns {
        if !list.contains('%') {
            check_columns(list).map_err(|e| anyhow!("--columns {list}: {e}"))?;
        }
        let of = if list.contains('%') { Format::Blkparse } else { Format::Csv };
        if let Some(format) = format.filter(|format| *format != of) {
            bail!("--columns {list} is a trace in the format {of}, not {format}: give one of both");
        }
    }
    if reading.split == Some(0) {
        bail!("--split 0: at least 1 VM, or nothing would be read");
    }
    let duration_max =
        reading.max_time.as_deref().map(|t| duration("--max-time", t)).transpose()?;
    let blktrace_event = reading.event.map(|event| match event {
        Event::Queue => BlktraceEvent::Queued,
        Event::Issue => BlktraceEvent::Issued,
        Event::Complete => BlktraceEvent::Completed,
    });
    Ok(TraceOptions {
        format,
        blktrace_event,
        columns: reading.columns.clone(),
        lenient: reading.lenient,
        limit: reading.max_requests,
        duration_max,
        ..TraceOptions::default()
    })
}

/// A trace that can be read as often as there are runs.
pub struct Trace {
    /// Where to read it.
    pub path: PathBuf,
    /// What it is called in messages.
    pub shown: String,
    /// Other files that are a part of it and were not named yet.
    others: Vec<PathBuf>,
    /// Keeps the copy of a stream open; it has no name on the disk.
    _spooled: Option<File>,
}

impl Trace {
    /// The trace at `path`. What can be read only once (the standard input, a
    /// named pipe, `<(command)` of a shell) is copied to a temporary file first.
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

    /// All traces of a command line. A pattern stands for the files that it matches. Files of
    /// one blktrace, as a shell makes them of `sda.blktrace.*`, are one trace.
    pub fn open_all(paths: &[PathBuf], format: Option<Format>) -> Result<Vec<Trace>> {
        if paths.iter().filter(|p| p.as_os_str() == "-").count() > 1 {
            bail!("`-`, the standard input, can be one trace only");
        }
        let mut traces: Vec<Trace> = Vec::new();
        for given in paths {
            for path in expand(given)? {
                if !traces.iter_mut().any(|trace| trace.takes(&path)) {
                    traces.push(Trace::open(&path, format)?);
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

    /// What the VM on one of its volumes is called. A volume that is only a
    /// number says nothing: the file's name stands for it if it is the only
    /// one, else before it.
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
    fn shown_in(&self, text: &str) -> String {
        text.replace(&self.path.display().to_string(), &self.shown)
    }
}

/// Everything that a run needs to make its sources, as often as needed.
#[derive(Clone)]
pub struct Load {
    traces: Vec<(Arc<Trace>, Arc<ScannedTrace>, ReplayOptions)>,
    plans: Vec<VmPlan>,
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
    /// Are all requests issued by a clock (else by completions)?
    pub open_loop: bool,
}

impl Load {
    /// Read the arguments and scan the traces.
    pub fn new(args: &LoadArgs) -> Result<Load> {
        if args.traces.is_empty() && args.vms.is_empty() {
            bail!("nothing to run: give --trace FILE or --vm SPEC (see --help)");
        }
        let options = replay_options(args)?;
        let mut traces = Vec::new();
        for trace in Trace::open_all(&args.traces, options.trace.format)? {
            let scanned = kept::scanned(&trace.path, &options.trace);
            let (scanned, is_new) = scanned.map_err(|e| trace.error(e))?;
            if is_new {
                tell(&trace, &scanned.scan);
            }
            traces.push((Arc::new(trace), scanned, options.clone()));
        }
        let plan = |text: &String| parse_vm(text).with_context(|| format!("--vm {text}"));
        let plans = args.vms.iter().map(plan).collect::<Result<Vec<_>>>()?;
        let groups = groups(&args.groups, &plans)?;
        let open_loop = plans.is_empty() && args.outstanding.is_none();
        let mut load = Load {
            traces,
            plans,
            disks: Vec::new(),
            first_disks: Vec::new(),
            placement: placement(&args.map)?,
            weights: args.weights.clone(),
            limits: Vec::new(),
            groups,
            open_loop,
        };
        let mut limits = Vec::new();
        for (n, source) in load.sources(0)?.iter().enumerate() {
            let mut disks = source.vms().to_vec();
            match load.traces.get(n) {
                Some((trace, ..)) => {
                    let alone = disks.len() == 1;
                    disks.iter_mut().for_each(|d| d.name = trace.vm_name(&d.name, alone));
                    limits.resize(limits.len() + disks.len(), DiskLimits::default());
                }
                None => limits.extend(load.plans[n - load.traces.len()].limits_by_disk().cloned()),
            }
            load.first_disks.push(load.disks.len());
            load.disks.extend(disks);
        }
        load.disks = unique(load.disks);
        load.take_weights(&mut limits)?;
        if limits.iter().any(|l| !l.is_none()) {
            load.limits = limits;
        }
        if load.weights.len() > load.disks.len() {
            let (given, vms) = (load.weights.len(), load.disks.len());
            bail!("--weights: {given} weights for {vms} VMs");
        }
        Ok(load)
    }

    /// New sources, at their beginning.
    pub fn sources(&self, seed: u64) -> Result<Vec<Box<dyn Source>>> {
        (0..self.source_count()).map(|n| self.source(n, seed)).collect()
    }

    /// New sources of the traces alone.
    pub fn traced(&self, seed: u64) -> Result<Vec<Box<dyn Source>>> {
        (0..self.traces.len()).map(|n| self.source(n, seed)).collect()
    }

    /// The generated VMs, which have guests, with their numbers among themselves.
    pub fn guests(&self) -> impl Iterator<Item = (u16, &VmPlan)> {
        (0..).zip(&self.plans)
    }

    /// A new source, by its number: traces come before generated VMs.
    pub fn source(&self, number: usize, seed: u64) -> Result<Box<dyn Source>> {
        if let Some((trace, scanned, options)) = self.traces.get(number) {
            let ScannedTrace { scan, kept } = &**scanned;
            let source = TraceSource::with_scan(&trace.path, scan, kept.as_ref(), options);
            return Ok(Box::new(source.map_err(|e| trace.error(e))?));
        }
        let number = number - self.traces.len();
        self.plans[number].source(seed, number as u16).map_err(|e| anyhow!("{e}"))
    }

    /// The same traces with `rate` times the requests a second; `None` if the clock would
    /// run slower or faster than a [`TimeScale`] can say. Generated VMs stay as they are.
    pub fn at_rate(&self, rate: f64) -> Option<Load> {
        let mut load = self.clone();
        for (.., options) in &mut load.traces {
            if let Pace::Timed { time_scale, .. } = &mut options.pace {
                *time_scale = TimeScale::new(time_scale.factor() / rate)?;
            }
        }
        Some(load)
    }

    /// True if two sources are the same trace, or VMs that differ in name only.
    pub fn alike(&self, a: usize, b: usize) -> bool {
        let plan = |n: usize| n.checked_sub(self.traces.len()).map(|n| &self.plans[n]);
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

    /// How many sources there are.
    pub fn source_count(&self) -> usize {
        self.traces.len() + self.plans.len()
    }

    /// The first VM whose load does not end by itself.
    pub fn endless(&self) -> Option<&str> {
        self.plans.iter().find(|plan| plan.is_endless()).map(|plan| plan.name.as_str())
    }

    /// When each run stops: at `given`, else at [`RUN_DEFAULT`] if a load does not end by
    /// itself, else when the load ends.
    pub fn until(&self, given: Option<Nanos>) -> Option<Instant> {
        let span = given.or_else(|| self.endless().map(|_| RUN_DEFAULT));
        span.map(|span| Instant::ZERO + span)
    }

    /// Requests of one run, where they are known beforehand.
    pub fn requests(&self) -> Option<u64> {
        let traced = self.traces.iter().map(|(_, s, _)| s.scan.stats.requests()).sum();
        self.plans.is_empty().then_some(traced)
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
        self.open_loop.then_some(OPEN_LOOP_OUTSTANDING_MAX as usize)
    }
}

/// The groups of `--group`, which have to be those that VMs are in.
fn groups(texts: &[String], plans: &[VmPlan]) -> Result<Vec<(GroupName, Limits)>> {
    let mut groups: Vec<(GroupName, Limits)> = Vec::new();
    for text in texts {
        let group = parse_group(text).with_context(|| format!("--group {text}"))?;
        if groups.iter().any(|(name, _)| *name == group.0) {
            bail!("--group {text}: a group '{}' is there already; names differ", group.0);
        }
        groups.push(group);
    }
    let limits = |plan| VmPlan::limits_by_disk(plan).map(move |limits| (plan, limits));
    let joined = plans.iter().flat_map(limits);
    for (plan, group) in joined.filter_map(|(p, limits)| Some((p, limits.group.as_ref()?))) {
        if !groups.iter().any(|(name, _)| name == group) {
            let vm = &plan.name;
            bail!(
                "--vm name={vm}: no group '{group}'; give it its limits, as in \
                 --group {group}:bandwidth=300MiB"
            );
        }
    }
    Ok(groups)
}

fn replay_options(args: &LoadArgs) -> Result<ReplayOptions> {
    let time_scale = TimeScale::new(args.time_scale).ok_or_else(|| {
        anyhow!("--time-scale {}: expected a factor from 0.000001 to 1000000", args.time_scale)
    })?;
    let capacity = args.capacity.as_deref().map(|t| size("--capacity", t)).transpose()?;
    if args.outstanding == Some(0) {
        bail!("--outstanding 0: at least 1, or nothing would be issued");
    }
    Ok(ReplayOptions {
        trace: trace_options(&args.reading)?,
        pace: match args.outstanding {
            Some(per_vm) => Pace::Outstanding { per_vm },
            None => Pace::Timed { time_scale, outstanding_max: OPEN_LOOP_OUTSTANDING_MAX },
        },
        layout: match args.reading.split {
            Some(vms_max) => Layout::Split { vms_max },
            None => Layout::OneVm,
        },
        overrun: if capacity.is_some() { Overrun::Wrap } else { Overrun::Fail },
        capacity,
    })
}

/// Says as what a trace was read and what is in it, so that nobody takes a wrong reading for the
/// trace itself.
pub fn tell(trace: &Trace, scan: &Scan) {
    eprintln!("{}: {}", trace.shown, trace.shown_in(&scan.summary()));
    for warning in scan.warnings() {
        eprintln!("{}: warning: {warning}", trace.shown);
    }
}

fn placement(map: &str) -> Result<Placement> {
    let (form, at) = match map.split_once(':') {
        Some((form, at)) => (form, Some(lba(at)?)),
        None => (map, None),
    };
    Ok(match (form, at) {
        ("packed", at) => Placement::Packed(at.unwrap_or(Lba::ZERO)),
        ("ext3", at) => Placement::Ext3(at.unwrap_or(Lba::ZERO)),
        ("spread", None) => Placement::Spread,
        ("identity", None) => Placement::Identity,
        _ => Placement::At(map.split(',').map(lba).collect::<Result<_>>()?),
    })
}

fn lba(text: &str) -> Result<Lba> {
    parse_lba(text.trim()).map_err(|e| {
        anyhow!(
            "--map {text}: expected packed, packed:LBA, spread, identity, ext3, ext3:LBA, \
             or one LBA for each disk; of an LBA: {e}"
        )
    })
}

/// Two VMs of the same name get numbers.
fn unique(mut disks: Vec<VmDisk>) -> Vec<VmDisk> {
    for n in 0..disks.len() {
        let name = disks[n].name.clone();
        let before = disks[..n].iter().filter(|d| d.name == name).count();
        if before > 0 {
            let mut number = before + 1;
            while disks.iter().any(|d| d.name == format!("{name}-{number}")) {
                number += 1;
            }
            disks[n].name = format!("{name}-{number}");
        }
    }
    disks
}

/// The disk and the dispatcher's settings, by the arguments.
pub fn disk(args: &DiskArgs) -> Result<(Profile, Config)> {
    let profile = device(&args.device)?;
    let coalesce = size("--coalesce", &args.coalesce)?;
    if coalesce > PIECE_MAX {
        bail!("--coalesce {}: expected at most 1MiB, or 0", args.coalesce);
    }
    let hard_limit = duration("--hard-limit", &args.hard_limit)?;
    Ok((profile, Config { coalesce, hard_limit, ..Config::default() }))
}

/// A profile by name, or from a TOML file; with changes after a colon.
pub fn device(what: &str) -> Result<Profile> {
    if let Some((file, changes)) = profile::path_of(what) {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
        return Profile::parse_with(&text, changes).with_context(|| what.to_string());
    }
    profile::load(what).with_context(|| format!("device {what}"))
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

    #[test]
    fn places() {
        assert_eq!(placement("ext3:2048").unwrap(), Placement::Ext3(Lba::new(2048)));
        assert_eq!(placement("packed:2048").unwrap(), Placement::Packed(Lba::new(2048)));
        assert_eq!(placement("0,1MiB").unwrap(), Placement::At(vec![Lba::ZERO, Lba::new(2048)]));
        for wrong in ["pakced", "ext3:", "packed:", "spread:0"] {
            assert!(
                placement(wrong).unwrap_err().to_string().contains("expected packed"),
                "{wrong}"
            );
        }
    }
}
