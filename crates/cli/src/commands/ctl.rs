//! `seekway ctl`: the control protocol for people.

mod freeze;
mod promised;
mod slow;

use crate::args::{CtlArgs, CtlCommand, Format};
use crate::{Verdict, output};
use anyhow::{Context, Result, anyhow, bail};
use seekway_hostd::config::{self, CacheSize, DiskConfig};
use seekway_hostd::control::{
    Client, DeviceReport, DiskCacheReport, DiskReport, HostReport, LimitRequest, OpReport,
    PendingReport, Request, SandboxReport,
};
use seekway_policy::params::{parse_duration, parse_size};
use seekway_report::table::{Cell, Column, Table};
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub fn run(args: &CtlArgs) -> Result<Verdict> {
    let socket = match &args.socket {
        Some(path) => path.clone(),
        None => config::default_folder()
            .map(|folder| folder.join(config::CONTROL_NAME))
            .map_err(|e| anyhow!("{e}: give --socket PATH"))?,
    };
    if let (CtlCommand::Metrics, Format::Json | Format::Csv | Format::Markdown) =
        (&args.command, args.format)
    {
        bail!(
            "metrics have one format, Prometheus's text; for JSON: seekway ctl status --format json"
        );
    }
    if let CtlCommand::Freeze { disks, timeout, command } = &args.command {
        let client = &mut Client::connect(&socket)?;
        return freeze::run(client, disks, timeout, command, args.format);
    }
    if let CtlCommand::Thaw { disks } = &args.command {
        freeze::thaw(&mut Client::connect(&socket)?, disks)?;
        done(args.format, &json!({}))?;
        return Ok(Verdict::Done);
    }
    let request = request(&args.command)?;
    let answer = Client::connect(&socket)?.ask(&request)?;
    match &args.command {
        CtlCommand::Status => status(args.format, answer)?,
        CtlCommand::Slow { over, .. } => slow::print(args.format, over, &answer)?,
        CtlCommand::Metrics => {
            output::print(answer["text"].as_str().context("no metrics in the answer")?)?;
        }
        _ if args.format != Format::Table => done(args.format, &answer)?,
        CtlCommand::Attach { .. } => {
            let sockets = answer["sockets"].as_array().into_iter().flatten();
            let lines: Vec<&str> = sockets.filter_map(Value::as_str).collect();
            output::print(&format!("{}\n{}\n", bytes(&answer), lines.join("\n")))?;
            let warnings = answer["warnings"].as_array().into_iter().flatten();
            warnings.filter_map(Value::as_str).for_each(|w| eprintln!("warning: {w}"));
        }
        CtlCommand::Resize { .. } => output::print(&format!("{}\n", bytes(&answer)))?,
        CtlCommand::Policy { .. }
        | CtlCommand::Prefetch { .. }
        | CtlCommand::Cache { .. }
        | CtlCommand::Weight { .. }
        | CtlCommand::Limit { .. }
        | CtlCommand::Freeze { .. }
        | CtlCommand::Thaw { .. }
        | CtlCommand::Detach { .. } => {}
    }
    Ok(Verdict::Done)
}

/// The answer to a command that changed something: as JSON the daemon's, as a table its keys.
fn done(format: Format, answer: &Value) -> Result<()> {
    if format == Format::Table {
        return Ok(());
    }
    let columns = ["key", "value"].map(Column::text);
    let mut table = Table::new("", columns.into());
    for (key, value) in answer.as_object().into_iter().flatten() {
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        for value in values {
            let text = value.as_str().map_or(value.to_string(), str::to_string);
            table.push([Cell::Text(key.clone()), Cell::Text(text)]);
        }
    }
    output::print_as(format, &[table], answer)
}

fn bytes(answer: &Value) -> String {
    format!("{} bytes", answer["capacity_bytes"].as_u64().unwrap_or_default())
}

fn request(command: &CtlCommand) -> Result<Request> {
    Ok(match command {
        CtlCommand::Status => Request::Status {},
        CtlCommand::Metrics => Request::Metrics {},
        CtlCommand::Slow { over, disk, .. } => {
            let time = parse_duration(over);
            let time = time.with_context(|| format!("--over {over}: expected a time, as 100ms"))?;
            Request::Slow { over_ms: time.as_millis_f64(), disk: disk.clone() }
        }
        CtlCommand::Freeze { .. } | CtlCommand::Thaw { .. } => {
            unreachable!("several requests each")
        }
        CtlCommand::Policy { policy, device } => {
            Request::Policy { policy: policy.clone(), device: device.clone() }
        }
        CtlCommand::Prefetch { prefetcher, device } => {
            Request::Prefetch { prefetcher: prefetcher.clone(), device: device.clone() }
        }
        CtlCommand::Cache { size } => {
            let size = CacheSize::parse(size).map_err(|e| anyhow!("cache: {e}"))?;
            Request::Cache { size }
        }
        CtlCommand::Weight { disk, weight } => {
            Request::Weight { disk: disk.clone(), weight: *weight }
        }
        CtlCommand::Limit { disk, limits, group } => {
            let request = match (disk, group) {
                (Some(disk), _) => LimitRequest::disk(disk, limits),
                (None, Some(group)) => LimitRequest::group(group, limits),
                (None, None) => Err("give a disk or --group NAME".into()), // clap asks for one
            };
            Request::Limit(Box::new(request.map_err(|e| anyhow!("limit {limits}: {e}"))?))
        }
        CtlCommand::Attach { disk } if !disk.contains('=') => Request::Retry { disk: disk.clone() },
        CtlCommand::Attach { disk } => {
            let mut disk = DiskConfig::parse(disk).map_err(|e| anyhow!("{disk}: {e}"))?;
            // The daemon's working directory is another one.
            disk.path = std::path::absolute(&disk.path).context("where are we?")?;
            disk.sockets = disk.sockets.numbered();
            Request::Attach(Box::new(disk))
        }
        CtlCommand::Detach { disk } => Request::Detach { disk: disk.clone() },
        CtlCommand::Resize { disk, size, shrink } => {
            let size_bytes = size.as_deref().map(size_bytes).transpose()?;
            Request::Resize { disk: disk.clone(), size_bytes, shrink: *shrink }
        }
    })
}

fn size_bytes(text: &str) -> Result<u64> {
    let sectors = parse_size(text).filter(|s| s.get() <= u64::MAX / 512);
    let sectors = sectors
        .with_context(|| format!("{text}: expected bytes with a unit such as 20GiB, or sectors"))?;
    Ok(sectors.bytes())
}

fn status(format: Format, answer: Value) -> Result<()> {
    let report: HostReport = serde_json::from_value(answer.clone())
        .context("the daemon's answer is of another version of seekway")?;
    let mut tables = vec![devices(&report.devices), disks(&report.devices)];
    tables[0].notes.push(sandbox(&report.sandbox));
    let silent = report.silent.iter();
    let hangs = |name: &String| format!("{name} does not answer: its disk may hang (see dmesg)");
    tables[0].notes.extend(silent.map(hangs));
    tables[0].notes.extend(report.pending.iter().map(pending));
    tables.extend(failed(&report));
    tables.extend(limits(&report));
    tables.extend(promised::table(&report));
    tables.extend(caches(&report.devices));
    tables.extend(fairness(&report.devices));
    output::print_as(format, &tables, &answer)
}

/// A disk that is being attached, detached or resized, in a line.
fn pending(pending: &PendingReport) -> String {
    let PendingReport { disk, change, device, time_s } = pending;
    let device = device.as_ref().map_or(String::new(), |device| format!(" on {device}"));
    format!("pending: {change} of disk {disk}{device} since {time_s:.0} s")
}

/// How far the daemon is confined, in a line.
fn sandbox(report: &SandboxReport) -> String {
    if !report.problems.is_empty() {
        return format!("sandbox: {}", report.problems.join("; "));
    }
    let kept = |kind: &str| {
        let capabilities = report.threads.get(kind).and_then(|t| t.capabilities.clone());
        capabilities
            .filter(|c| !c.is_empty())
            .map(|c| format!(", {kind} threads keep {}", c.join(" ")))
    };
    let (control, reactor) = (kept("control"), kept("reactor"));
    let abi = report.landlock_abi.map_or(String::new(), |abi| format!(" (landlock ABI {abi})"));
    format!(
        "sandbox: {}{abi}{}{}",
        report.mode,
        control.unwrap_or_default(),
        reactor.unwrap_or_default()
    )
}

/// Disks of the configuration that are not served, where there are some.
fn failed(report: &HostReport) -> Option<Table> {
    report.failed.first()?;
    let columns = vec![Column::text("disk"), Column::text("image"), Column::text("why")];
    let mut table = Table::new("NOT SERVED", columns);
    for failed in &report.failed {
        let texts = [&failed.name, &failed.path, &failed.error];
        table.push(texts.map(|text| Cell::Text(text.clone())));
    }
    table.notes.push("once it is mended: seekway ctl attach DISK".into());
    Some(table)
}

/// How evenly devices were shared lately, where there are several disks to share
/// one.
fn fairness(devices: &[DeviceReport]) -> Option<Table> {
    let shared: Vec<&DeviceReport> = devices.iter().filter(|d| d.disks.len() > 1).collect();
    let interval_s = shared.first()?.fairness.interval_s;
    let columns = vec![
        Column::text("device"),
        Column::number("busy disks", ""),
        Column::number("Jain", ""),
        Column::number("max-min", ""),
        Column::number("φ", "MiB/s"),
    ];
    let title = format!("Fairness over the last whole {interval_s} s");
    let mut table = Table::new(title, columns);
    for d in shared {
        let f = &d.fairness;
        let [jain, max_min, phi] = [f.jain, f.max_min_share, f.phi_mib_s]
            .map(|value| value.map_or(Cell::Absent, Cell::Number));
        table.push([
            Cell::Text(d.name.clone()),
            Cell::Count(f.busy_disks as u64),
            jain,
            max_min,
            phi,
        ]);
    }
    table.notes.push(
        "busy: had a request outstanding for half of the time. Jain (1 is fair) of their device \
         time by weight; max-min (1 is fair): what the worst disk got of its max-min share; φ of \
         VMCD (0 is fair) of the busy disks' bandwidths."
            .into(),
    );
    Some(table)
}

/// Rate limits of disks and groups, where there are some or were.
fn limits(report: &HostReport) -> Option<Table> {
    let columns = vec![
        Column::text("disk"),
        Column::text("limits"),
        Column::number("waiting", ""),
        Column::number("waited", "s"),
    ];
    let mut table = Table::new("Limits", columns);
    let disks = report.devices.iter().flat_map(|d| &d.disks);
    for disk in disks.filter(|d| d.limits != "none" || d.limited_ms > 0.0) {
        table.push([
            Cell::Text(disk.name.clone()),
            Cell::Text(disk.limits.clone()),
            Cell::Count(disk.limited),
            Cell::Number(disk.limited_ms / 1e3),
        ]);
    }
    let groups = report.groups.iter().map(|(name, limits)| format!("group {name}: {limits}"));
    table.notes.extend(groups);
    if table.rows.is_empty() && table.notes.is_empty() {
        return None;
    }
    let note = "waiting: requests that wait for limits now; waited: time in which some did.";
    table.notes.push(note.into());
    Some(table)
}

/// What disks have of their devices' caches, where there are some.
fn caches(devices: &[DeviceReport]) -> Option<Table> {
    let cached: Vec<_> = devices.iter().filter_map(|d| Some((d, d.cache.as_ref()?))).collect();
    cached.first()?;
    let columns = vec![
        Column::text("disk"),
        Column::number("resident", "MiB"),
        Column::number("read", "MiB"),
        Column::number("hits", ""),
        Column::number("late", ""),
        Column::number("prefetched", "MiB"),
        Column::number("used", "MiB"),
        Column::number("wasted", "MiB"),
        Column::number("dropped", "MiB"),
        Column::number("promoted", ""),
        Column::number("accuracy", ""),
        Column::number("cost", ""),
        Column::number("streams", ""),
        Column::number("armed", ""),
        Column::number("S max", ""),
    ];
    let mut table = Table::new("Caches", columns);
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    for (device, cache) in cached {
        for disk in &device.disks {
            if let Some(cache) = &disk.cache {
                table.push(cache_row(&disk.name, cache));
            }
        }
        let bandwidth =
            cache.bandwidth_bytes_per_s.map_or("not known".to_string(), |bytes_per_s| {
                format!("{:.0} MiB/s", mebibytes(bytes_per_s))
            });
        table.notes.push(format!(
            "{}: {:.1} of {:.0} MiB{}, memory {:.1} MiB, prefetch {}, bandwidth {bandwidth}",
            device.name,
            mebibytes(cache.resident_bytes),
            mebibytes(cache.capacity_bytes),
            if cache.auto { " (auto)" } else { "" },
            mebibytes(cache.memory_bytes),
            cache.prefetcher
        ));
        table.notes.extend(known(&device.name, &cache.prefetcher_metrics));
    }
    table.notes.push(
        "hits: of the bytes read, found in the cache; late: found on their way there. accuracy: \
         prefetched and used, of all that was used; cost: prefetched and unused, of all that was \
         used or prefetched. For each process: --format json."
            .into(),
    );
    Some(table)
}

fn cache_row(name: &str, cache: &DiskCacheReport) -> Vec<Cell> {
    let usage = &cache.usage;
    let mebibytes = |bytes: u64| Cell::Number(bytes as f64 / f64::from(1 << 20));
    let share = |part: u64| match usage.read_bytes {
        0 => Cell::Absent,
        whole => Cell::Share(part as f64 / whole as f64),
    };
    let scales = cache.processes.iter().filter_map(|p| p.scale_max);
    vec![
        Cell::Text(name.to_string()),
        mebibytes(cache.resident_bytes),
        mebibytes(usage.read_bytes),
        share(usage.hit_bytes),
        share(usage.late_bytes),
        mebibytes(usage.prefetched_bytes),
        mebibytes(usage.used_bytes),
        mebibytes(usage.wasted_bytes),
        mebibytes(usage.dropped_bytes),
        Cell::Count(usage.promoted),
        Cell::Share(usage.accuracy),
        Cell::Share(usage.cost),
        Cell::Count(cache.streams.into()),
        Cell::Count(cache.armed.into()),
        scales.reduce(f64::max).map_or(Cell::Absent, Cell::Number),
    ]
}

fn devices(devices: &[DeviceReport]) -> Table {
    let columns = vec![
        Column::text("device"),
        Column::text("policy"),
        Column::number("depth", ""),
        Column::number("in flight", ""),
        Column::number("waiting", ""),
        Column::number("requests", ""),
        Column::number("commands", ""),
        Column::number("forced", ""),
        Column::number("held", "ms"),
        Column::number("waits paid", ""),
        Column::number("k", ""),
        Column::number("late", ""),
    ];
    let mut table = Table::new("Devices", columns);
    for d in devices {
        let waits = d.waits_tried as f64;
        let paid = (d.waits_tried > 0).then(|| d.waits_paid as f64 / waits);
        table.push([
            Cell::Text(d.name.clone()),
            Cell::Text(d.policy.clone()),
            Cell::Count(d.depth.into()),
            Cell::Count(d.in_flight.into()),
            Cell::Count(d.outstanding.saturating_sub(d.in_flight.into())),
            Cell::Count(d.requests),
            Cell::Count(d.commands),
            Cell::Count(d.forced),
            Cell::Number(d.held_ms.values().sum()),
            paid.map_or(Cell::Absent, Cell::Share),
            d.emulated.as_ref().map_or(Cell::Absent, |e| Cell::Number(e.k)),
            d.emulated.as_ref().map_or(Cell::Absent, |e| Cell::Count(e.late)),
        ]);
    }
    table.notes.extend(devices.iter().filter_map(|d| known(&d.name, &d.policy_metrics)));
    table
}

/// What the policy alone knows of something, as far as it says anything.
fn known(name: &str, metrics: &BTreeMap<String, f64>) -> Option<String> {
    let some = metrics.iter().filter(|(_, value)| **value != 0.0);
    let shown = |value: f64| (value * 1e3).round() / 1e3;
    let known: Vec<String> =
        some.map(|(name, value)| format!("{name} {}", shown(*value))).collect();
    (!known.is_empty()).then(|| format!("{name}: {}", known.join(", ")))
}

fn disks(devices: &[DeviceReport]) -> Table {
    let columns = vec![
        Column::text("disk"),
        Column::text("device"),
        Column::number("weight", ""),
        Column::number("size", "GiB"),
        Column::number("ports", ""),
        Column::number("waiting", ""),
        Column::number("reads", ""),
        Column::number("read", "MiB"),
        Column::number("mean", "ms"),
        Column::number("p99", "ms"),
        Column::number("writes", ""),
        Column::number("written", "MiB"),
        Column::number("mean", "ms"),
        Column::number("p99", "ms"),
        Column::number("held", "ms"),
        Column::number("errors", ""),
    ];
    let mut table = Table::new("Disks", columns);
    for device in devices {
        for disk in &device.disks {
            table.push(disk_row(device, disk));
            table.notes.extend(known(&disk.name, &disk.policy_metrics));
            if let Some(seconds) = disk.frozen_s {
                let left =
                    format!("frozen for {seconds:.0} s more; seekway ctl thaw {}", disk.name);
                table.notes.push(format!("{}: {left}", disk.name));
            }
            if disk.elsewhere {
                let where_to = "another daemon has its image: its guest migrates, or has migrated";
                table.notes.push(format!("{}: {where_to}", disk.name));
            }
            let warnings = disk.warnings.iter();
            table.notes.extend(warnings.map(|w| format!("warning: {}: {w}", disk.name)));
        }
    }
    table
}

fn disk_row(device: &DeviceReport, disk: &DiskReport) -> Vec<Cell> {
    let mebibytes = |op: &OpReport| Cell::Number(op.bytes as f64 / f64::from(1 << 20));
    let mut row = vec![
        Cell::Text(disk.name.clone()),
        Cell::Text(device.name.clone()),
        Cell::Count(disk.weight.into()),
        Cell::Number(disk.capacity_bytes as f64 / f64::from(1 << 30)),
        Cell::Count(disk.ports.into()),
        Cell::Count(disk.outstanding.into()),
    ];
    for name in ["read", "write"] {
        let op = disk.ops.get(name);
        let latency = op.and_then(|op| op.latency);
        row.push(op.map_or(Cell::Absent, |op| Cell::Count(op.requests)));
        row.push(op.map_or(Cell::Absent, mebibytes));
        row.push(latency.map_or(Cell::Absent, |l| Cell::Number(l.mean_ms)));
        row.push(latency.map_or(Cell::Absent, |l| Cell::Number(l.p99_ms)));
    }
    row.push(Cell::Number(disk.held_ms.values().sum()));
    row.push(Cell::Count(disk.ops.values().map(|op| op.errors).sum()));
    row
}
