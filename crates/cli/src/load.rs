//! From the command line to a scenario: its VMs, their places and the disk; and checks of lists.

use crate::args::{DispatchArgs, Event, LoadArgs, ReadingArgs, RunsArgs};
use anyhow::{Context, Result, anyhow, bail};
use seekway_core::params::{parse_duration, parse_lba, parse_size};
use seekway_core::units::{Lba, Nanos, Sectors};
use seekway_sim::Placement;
pub use seekway_sim::scenario::Trace;
pub use seekway_sim::scenario::load::RUN_DEFAULT;
use seekway_sim::scenario::{
    self, Device, Dispatch, Group, Images, Load, Measure, Ready, Scenario, Size, Time, TraceText,
    Vm,
};
use seekway_stack::stack::PIECE_MAX;
use seekway_workload::generators::{VmText, parse_vm};
use seekway_workload::traces::{Scan, TraceOptions};
use std::path::PathBuf;
use std::sync::Arc;

pub fn duration(flag: &str, text: &str) -> Result<Nanos> {
    parse_duration(text).map_err(|e| anyhow!("{flag} {text}: {e}"))
}

/// Most runs of each policy.
const SEEDS_MAX: u64 = 10_000;

/// The seeds of `--seed` and `--seeds`.
pub fn seeds(args: &RunsArgs) -> Result<Vec<u64>> {
    let (first, count) = (args.seed.unwrap_or(1), args.seeds.unwrap_or(1));
    if !(1..=SEEDS_MAX).contains(&count) {
        bail!("--seeds {count}: at least 1 and at most {SEEDS_MAX}");
    }
    Ok((0..count).map(|n| first.wrapping_add(n)).collect())
}

pub fn size(flag: &str, text: &str) -> Result<Sectors> {
    parse_size(text).map_err(|e| anyhow!("{flag} {text}: {e}"))
}

/// When runs end, by `--until`.
pub fn measure(until: Option<&str>) -> Result<Measure> {
    let until = until.map(|text| duration("--until", text)).transpose()?;
    Ok(Measure { until: until.map(Time), ..Measure::default() })
}

/// Options for reading a trace, from the arguments.
fn read_as(path: impl Into<PathBuf>, reading: &ReadingArgs) -> Result<TraceText> {
    let max_time = reading.max_time.as_deref().map(|t| duration("--max-time", t)).transpose()?;
    Ok(TraceText {
        format: reading.input_format.clone(),
        columns: reading.columns.clone(),
        event: reading.event.map(|event| match event {
            Event::Queue => scenario::Event::Queue,
            Event::Issue => scenario::Event::Issue,
            Event::Complete => scenario::Event::Complete,
        }),
        lenient: reading.lenient,
        split: reading.split,
        max_requests: reading.max_requests,
        max_time: max_time.map(Time),
        ..TraceText::new(path)
    })
}

/// As `read_as`, in the reader's form.
pub fn trace_options(reading: &ReadingArgs) -> Result<TraceOptions> {
    scenario::load::trace_options(&read_as("-", reading)?)
}

/// The load as a scenario, with the default of everything else.
pub fn scenario(args: &LoadArgs) -> Result<Scenario> {
    let capacity = args.capacity.as_deref().map(|t| size("--capacity", t)).transpose()?;
    let like = TraceText {
        time_scale: args.pace.time_scale,
        outstanding: args.pace.outstanding,
        capacity: capacity.map(Size),
        ..read_as("-", &args.reading)?
    };
    // Wrong options are told without a trace too.
    scenario::load::replay_options(&like)?;
    let trace = |path: &PathBuf| Ok(Vm::traced(TraceText { path: path.clone(), ..like.clone() }));
    let vm = |text: &String| {
        let what = || format!("--vm {text}");
        parse_vm(text).with_context(what)?;
        Ok(Vm::generated(VmText::parse(text).with_context(what)?))
    };
    let group = |text: &String| Group::parse(text).map_err(|e| anyhow!("--group {text}: {e}"));
    let traces = args.traces.iter().map(trace);
    Ok(Scenario {
        vm: Arc::new(traces.chain(args.vms.iter().map(vm)).collect::<Result<_>>()?),
        group: args.groups.iter().map(group).collect::<Result<_>>()?,
        weights: args.weights.clone(),
        images: Images(placement(&args.pace.map)?),
        ..Scenario::default()
    })
}

/// Reads and checks load and device of a scenario, and tells of the traces.
pub fn ready(scenario: &Scenario) -> Result<Ready> {
    let profile = scenario.device.load()?;
    Ok(Ready { load: read(scenario)?, profile })
}

/// Reads and checks the load of a scenario, and tells of the traces.
pub fn read(scenario: &Scenario) -> Result<Load> {
    Load::new(scenario, &mut |trace, scan| tell(trace, scan))
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

/// A scenario with a disk, and with the dispatcher's settings of the arguments.
pub fn on_disk(disk: &str, args: &DispatchArgs, scenario: Scenario) -> Result<Scenario> {
    let coalesce = size("--coalesce", &args.coalesce)?;
    if coalesce > PIECE_MAX {
        bail!("--coalesce {}: expected at most 1MiB, or 0", args.coalesce);
    }
    let hard_limit = duration("--hard-limit", &args.hard_limit)?;
    if hard_limit == Nanos::ZERO {
        bail!(
            "--hard-limit {}: every request would go against the policy; give a time, such as 30s",
            args.hard_limit
        );
    }
    let stack =
        Dispatch { coalesce: Size(coalesce), merge: args.merge, hard_limit: Time(hard_limit) };
    Ok(Scenario { device: Device::named(disk), stack, ..scenario })
}

// Lists, on the command line above all.

/// Each item once, in the order of its first.
pub fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut kept = Vec::new();
    for item in items {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    kept
}

/// Refuses a list that names the same twice: these runs would have the same name.
pub fn check_distinct<T: PartialEq>(
    flag: &str,
    list: &[T],
    name: impl Fn(&T) -> String,
) -> Result<()> {
    for (n, item) in list.iter().enumerate() {
        if list[..n].contains(item) {
            bail!("{flag}: {} is given twice", name(item));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
