//! `seekway ctl`: the control protocol for people.

use crate::args::{CtlArgs, CtlCommand, Format};
use crate::control::{self, SIGINT, SIGTERM};
use crate::{Verdict, load, output, stacks};
use anyhow::{Context, Result, anyhow, bail};
use seekway_core::scheduler::Promise;
use seekway_hostd::config::{CacheSize, DiskConfig};
use seekway_hostd::control::{
    Client, DeviceReport, DiskReport, HostReport, LimitRequest, PendingReport, Request,
    SandboxReport, SlowReport, SlowRequestReport, UsageReport,
};
use seekway_report::number::rate_mib_s;
use seekway_report::table::{Cell, Table};
use seekway_stack::stack::limit::DiskLimits;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;

pub fn run(args: &CtlArgs) -> Result<Verdict> {
    let socket = control::socket(args.daemon.socket.clone())?;
    if let (CtlCommand::Metrics, Format::Json | Format::Csv | Format::Markdown) =
        (&args.command, args.format)
    {
        bail!(
            "metrics have one format, Prometheus's text; for JSON: seekway ctl status --format json"
        );
    }
    if let CtlCommand::Freeze { disks, timeout, command } = &args.command {
        let client = &mut Client::connect(&socket)?;
        return freeze(client, disks, timeout, command, args.format);
    }
    if let CtlCommand::Thaw { disks } = &args.command {
        thaw(&mut Client::connect(&socket)?, disks)?;
        done(args.format, &json!({}))?;
        return Ok(Verdict::Done);
    }
    let request = request(&args.command)?;
    let answer = Client::connect(&socket)?.ask(&request)?;
    match &args.command {
        CtlCommand::Status => status(args.format, answer)?,
        CtlCommand::Slow { over, .. } => print(args.format, over, &answer)?,
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
        // What is changed is what was asked for.
        _ => {}
    }
    Ok(Verdict::Done)
}

/// The answer to a command that changed something: as JSON the daemon's, as a table its keys.
fn done(format: Format, answer: &Value) -> Result<()> {
    if format == Format::Table {
        return Ok(());
    }
    let mut rows: Vec<(&String, String)> = Vec::new();
    for (key, value) in answer.as_object().into_iter().flatten() {
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let text = |value: &Value| value.as_str().map_or(value.to_string(), str::to_string);
        rows.extend(values.iter().map(|value| (key, text(value))));
    }
    let table = Table::of("", &rows).text("key", |row| row.0).text("value", |row| &row.1).done();
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
            let time = load::duration("--over", over)?;
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
            let request = LimitRequest::new(disk.as_deref(), group.as_deref(), limits);
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
            let size = size.as_deref().map(|text| load::size("resize", text)).transpose()?;
            let size_bytes = size.map(|size| size.bytes());
            Request::Resize { disk: disk.clone(), size_bytes, shrink: *shrink }
        }
    })
}

fn status(format: Format, answer: Value) -> Result<()> {
    let report: HostReport = control::read(answer.clone())?;
    let mut tables = vec![devices(&report.devices), disks(&report.devices)];
    tables[0].notes.push(sandbox(&report.sandbox));
    let silent = report.silent.iter();
    let hangs = |name: &String| format!("{name} does not answer: its disk may hang (see dmesg)");
    tables[0].notes.extend(silent.map(hangs));
    tables[0].notes.extend(report.pending.iter().map(pending));
    tables.extend(failed(&report));
    tables.extend(limits(&report));
    tables.extend(table(&report));
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

/// Describes the daemon's sandbox, in a line.
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
    let table = Table::of("NOT SERVED", &report.failed)
        .text("disk", |failed| &failed.name)
        .text("image", |failed| &failed.path)
        .text("why", |failed| &failed.error)
        .text("tried again", |failed| if failed.retried { "by itself" } else { "on command" })
        .note("once it is mended, at once: seekway ctl attach DISK");
    Some(table.done())
}

/// Table of the fairness between the disks of each device in the last interval, for devices with
/// several disks.
fn fairness(devices: &[DeviceReport]) -> Option<Table> {
    let shared: Vec<&DeviceReport> = devices.iter().filter(|d| d.disks.len() > 1).collect();
    let interval_s = shared.first()?.fairness.interval_s;
    let table = Table::of(format!("Fairness over the last whole {interval_s} s"), shared)
        .text("device", |d| &d.name)
        .number("busy disks", "", |d| d.fairness.busy_disks)
        .number("Jain", "", |d| d.fairness.jain)
        .number("max-min", "", |d| d.fairness.max_min_share)
        .number("φ", "MiB/s", |d| d.fairness.phi_mib_s)
        .note(
            "busy: had a request outstanding for half of the time. Jain (1 is fair) of their device \
             time by weight; max-min (1 is fair): what the worst disk got of its max-min share; φ of \
             VMCD (0 is fair) of the busy disks' bandwidths.",
        );
    Some(table.done())
}

/// Rate limits of disks and groups, where there are some or were.
fn limits(report: &HostReport) -> Option<Table> {
    let disks = report.devices.iter().flat_map(|d| &d.disks);
    let limited = disks.filter(|d| d.limits != "none" || d.limited_ms > 0.0);
    let groups = report.groups.iter().map(|(name, limits)| format!("group {name}: {limits}"));
    let table = Table::of("Limits", limited)
        .text("disk", |disk| &disk.name)
        .text("limits", |disk| &disk.limits)
        .number("waiting", "", |disk| disk.limited)
        .number("waited", "s", |disk| disk.limited_ms / 1e3)
        .notes(groups)
        .note("waiting: requests that wait for limits now; waited: time in which some did.")
        .done();
    (!table.rows.is_empty() || !report.groups.is_empty()).then_some(table)
}

/// Table of the use of caches by disks, if there are caches.
fn caches(devices: &[DeviceReport]) -> Option<Table> {
    let cached: Vec<_> = devices.iter().filter_map(|d| Some((d, d.cache.as_ref()?))).collect();
    cached.first()?;
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let share = |part: u64, usage: &UsageReport| match usage.read_bytes {
        0 => None,
        whole => Some(Cell::Share(part as f64 / whole as f64)),
    };
    let disks = cached.iter().flat_map(|(device, _)| &device.disks);
    let rows: Vec<_> =
        disks.filter_map(|d| Some((d, d.cache.as_ref()?, &d.cache.as_ref()?.usage))).collect();
    let mut table = Table::of("Caches", &rows)
        .text("disk", |(disk, ..)| &disk.name)
        .number("resident", "MiB", |(_, cache, _)| mebibytes(cache.resident_bytes))
        .number("read", "MiB", |(.., usage)| mebibytes(usage.read_bytes))
        .number("hits", "", |(.., usage)| share(usage.hit_bytes, usage))
        .number("late", "", |(.., usage)| share(usage.late_bytes, usage))
        .number("prefetched", "MiB", |(.., usage)| mebibytes(usage.prefetched_bytes))
        .number("used", "MiB", |(.., usage)| mebibytes(usage.used_bytes))
        .number("wasted", "MiB", |(.., usage)| mebibytes(usage.wasted_bytes))
        .number("dropped", "MiB", |(.., usage)| mebibytes(usage.dropped_bytes))
        .number("promoted", "", |(.., usage)| usage.promoted)
        .number("accuracy", "", |(.., usage)| Cell::Share(usage.accuracy))
        .number("cost", "", |(.., usage)| Cell::Share(usage.cost))
        .number("streams", "", |(_, cache, _)| cache.streams)
        .number("armed", "", |(_, cache, _)| cache.armed)
        .number("S max", "", |(_, cache, _)| {
            cache.processes.iter().filter_map(|p| p.scale_max).reduce(f64::max)
        });
    for (device, cache) in cached {
        let bandwidth = cache
            .bandwidth_bytes_per_s
            .map_or("not known".to_string(), |bytes_per_s| rate_mib_s(mebibytes(bytes_per_s)));
        table = table
            .note(format!(
                "{}: {:.1} of {:.0} MiB{}, memory {:.1} MiB, prefetch {}, bandwidth {bandwidth}",
                device.name,
                mebibytes(cache.resident_bytes),
                mebibytes(cache.capacity_bytes),
                if cache.auto { " (auto)" } else { "" },
                mebibytes(cache.memory_bytes),
                cache.prefetcher
            ))
            .notes(known(&device.name, &cache.prefetcher_metrics));
    }
    let table = table.note(
        "hits: of the bytes read, found in the cache; late: found on their way there. accuracy: \
         prefetched and used, of all that was used; cost: prefetched and unused, of all that was \
         used or prefetched. For each process: --format json.",
    );
    Some(table.done())
}

fn devices(devices: &[DeviceReport]) -> Table {
    let paid = |d: &DeviceReport| {
        (d.waits_tried > 0).then(|| Cell::Share(d.waits_paid as f64 / d.waits_tried as f64))
    };
    Table::of("Devices", devices)
        .text("device", |d| &d.name)
        .text("policy", |d| &d.policy)
        .number("depth", "", |d| d.depth)
        .number("in flight", "", |d| d.in_flight)
        .number("waiting", "", |d| d.outstanding.saturating_sub(d.in_flight.into()))
        .number("requests", "", |d| d.requests)
        .number("commands", "", |d| d.commands)
        .number("forced", "", |d| d.forced)
        .number("held", "ms", |d| d.held_ms.values().sum::<f64>())
        .number("waits paid", "", paid)
        .number("k", "", |d| d.emulated.as_ref().map(|e| e.k))
        .number("late", "", |d| d.emulated.as_ref().map(|e| e.late))
        .notes(devices.iter().filter_map(|d| known(&d.name, &d.policy_metrics)))
        .done()
}

/// Policy's own figures of something, if any is not zero.
fn known(name: &str, metrics: &BTreeMap<String, f64>) -> Option<String> {
    let some = metrics.iter().filter(|(_, value)| **value != 0.0);
    let shown = |value: f64| (value * 1e3).round() / 1e3;
    let known: Vec<String> =
        some.map(|(name, value)| format!("{name} {}", shown(*value))).collect();
    (!known.is_empty()).then(|| format!("{name}: {}", known.join(", ")))
}

fn disks<'d>(devices: &'d [DeviceReport]) -> Table {
    let rows: Vec<(&DeviceReport, &DiskReport)> =
        devices.iter().flat_map(|d| d.disks.iter().map(move |disk| (d, disk))).collect();
    Table::of("Disks", &rows)
        .text("disk", |(_, disk)| &disk.name)
        .text("device", |(device, _)| &device.name)
        .number("weight", "", |(_, disk)| disk.weight)
        .number("size", "GiB", |(_, disk)| disk.capacity_bytes as f64 / f64::from(1 << 30))
        .number("ports", "", |(_, disk)| disk.ports)
        .number("waiting", "", |(_, disk)| disk.outstanding)
        .each([("read", "reads", "read"), ("write", "writes", "written")], |table, names| {
            let (op, requests, mebibytes) = names;
            let of = |disk: &'d DiskReport| disk.ops.get(op);
            table
                .number(requests, "", |(_, disk)| Some(of(disk)?.requests))
                .number(mebibytes, "MiB", |(_, d)| Some(of(d)?.bytes as f64 / f64::from(1 << 20)))
                .number("mean", "ms", |(_, disk)| Some(of(disk)?.latency?.mean_ms))
                .number("p99", "ms", |(_, disk)| Some(of(disk)?.latency?.p99_ms))
        })
        .number("held", "ms", |(_, disk)| disk.held_ms.values().sum::<f64>())
        .number("errors", "", |(_, disk)| disk.ops.values().map(|op| op.errors).sum::<u64>())
        .notes(rows.iter().flat_map(|(_, disk)| remarks(disk)))
        .done()
}

/// Remarks on a disk, a line each.
fn remarks(disk: &DiskReport) -> Vec<String> {
    let mut remarks: Vec<String> = known(&disk.name, &disk.policy_metrics).into_iter().collect();
    if let Some(seconds) = disk.frozen_s {
        let left = format!("frozen for {seconds:.0} s more; seekway ctl thaw {}", disk.name);
        remarks.push(format!("{}: {left}", disk.name));
    }
    if disk.elsewhere {
        let where_to = "another daemon has its image: its guest migrates, or has migrated";
        remarks.push(format!("{}: {where_to}", disk.name));
    }
    remarks.extend(disk.warnings.iter().map(|w| format!("warning: {}: {w}", disk.name)));
    remarks
}

// Reservations and targets of latency in `ctl status`: are they kept?

/// A target counts as missed from this part of late requests on.
const MISSED: f64 = 0.01;
/// Reservations count as met from this part on.
const MET: f64 = 0.99;

/// A row for each promise to a disk, if there are some.
fn table(report: &HostReport) -> Option<Table> {
    let mut rows: Vec<(&str, String, String)> = Vec::new();
    for device in &report.devices {
        for disk in &device.disks {
            let Ok(limits) = DiskLimits::parse(&disk.limits) else { continue };
            let not_kept = stacks::targets_not_kept(&device.policy, [&limits.limits]);
            for (promise, key) in limits.limits.promises() {
                let kept = match not_kept.contains(&key) {
                    true => format!("no: policy {} does not keep it", device.policy),
                    false => kept(device, disk, promise),
                };
                rows.push((&disk.name, pair(&disk.limits, key), kept));
            }
        }
    }
    let table = Table::of("Reservations and latency", &rows)
        .text("disk", |row| row.0)
        .text("promised", |row| &row.1)
        .text("kept", |row| &row.2);
    (!rows.is_empty()).then(|| table.done())
}

/// The pair of this key in the text of limits.
fn pair(limits: &str, key: &str) -> String {
    let found = limits.split(',').find(|pair| pair.split('=').next() == Some(key));
    found.unwrap_or(key).to_string()
}

fn kept(device: &DeviceReport, disk: &DiskReport, promise: Promise) -> String {
    let of = |key: &str| disk.policy_metrics.get(key).copied();
    let ms = |us: f64| format!("{:.3} ms", us / 1e3);
    match promise {
        Promise::Iops | Promise::Bandwidth => match of("reservation_met") {
            Some(met) if met < MET => format!(
                "{:.0} %: {} cannot do all that is reserved on it",
                100.0 * met,
                device.name
            ),
            _ => "yes".into(),
        },
        Promise::Latency => {
            let Some(missed) = of("latency_missed") else { return "no request yet".into() };
            let p99 = ms(of("latency_p99_us").unwrap_or(0.0));
            match of("latency_unreachable_best_us") {
                Some(best) => format!("unreachable: p99 {} at best, {p99} now", ms(best)),
                None if missed > MISSED => format!("not yet: p99 {p99}"),
                None => format!("yes: p99 {p99}"),
            }
        }
        Promise::Group => String::new(),
    }
}

// `seekway ctl slow`: the last slow requests, and where their time went.

/// Print them, oldest first.
fn print(format: Format, over: &str, answer: &Value) -> Result<()> {
    let report: SlowReport = control::read(answer.clone())?;
    let note = match report.requests.len() {
        0 => "none lately",
        _ => {
            "limited: held by rate limits; queued: in the policy's queue, until the device got \
              the first of it; device: from then until it was done. The last hundred of each device \
              are kept."
        }
    };
    let operation = |request: &SlowRequestReport| match request.ok {
        true => request.op.clone(),
        false => format!("{} (failed)", request.op),
    };
    let table = Table::of(format!("Requests that took {over} or longer"), &report.requests)
        .number("ago", "s", |r| r.ago_s)
        .text("disk", |r| &r.disk)
        .text("operation", operation)
        .number("offset", "KiB", |r| r.offset_bytes as f64 / 1024.0)
        .number("size", "KiB", |r| r.len_bytes as f64 / 1024.0)
        .number("took", "ms", |r| r.response_ms)
        .number("limited", "ms", |r| r.limited_ms)
        .number("queued", "ms", |r| r.queued_ms)
        .number("device", "ms", |r| r.device_ms)
        .note(note)
        .done();
    output::print_as(format, &[table], answer)
}

// `seekway ctl freeze`: disks stand still while somebody takes a snapshot of their images.

/// Freeze the disks, for `timeout` at the most. With a command: run it, and thaw them.
///
/// # Errors
/// A disk that cannot be frozen; a command that cannot be run or fails; a disk that thawed before
/// the command had ended. No disk stays frozen then.
pub fn freeze(
    client: &mut Client,
    names: &[String],
    timeout: &str,
    command: &[String],
    format: Format,
) -> Result<Verdict> {
    let time = load::duration("--timeout", timeout)?;
    let status = control::status(client)?;
    let disks = names.iter().map(|name| find(&status, name)).collect::<Result<Vec<_>>>()?;
    // A signal that ended us now would leave disks frozen until their time is over.
    let ended = control::noted(&[SIGINT, SIGTERM])?;
    for (at, disk) in disks.iter().enumerate() {
        let request = Request::Freeze { disk: disk.name.clone(), timeout_s: time.as_secs_f64() };
        let frozen = client.ask(&request).map_err(|e| anyhow!(e)).and_then(|_| sync(disk));
        if let Err(e) = frozen {
            // The last one may be frozen and not synced. What thaws by itself need not be told.
            let _ = thaw(client, &names[..=at]);
            return Err(e);
        }
    }
    let Some((program, arguments)) = command.split_first() else {
        if format != Format::Table {
            done(format, &json!({}))?;
            return Ok(Verdict::Done);
        }
        let list = names.join(" ");
        output::print(&format!(
            "frozen for up to {timeout}: {list}\nthaw with: seekway ctl thaw {list}\n"
        ))?;
        return Ok(Verdict::Done);
    };
    let status = match ended.load(Ordering::Relaxed) {
        true => Err(anyhow!("interrupted before {program} was started")),
        false => Command::new(program).args(arguments).status().with_context(|| program.clone()),
    };
    let thawed = thaw(client, names);
    let status = status?;
    if !status.success() {
        bail!("{program}: {status}; the disks take requests again");
    }
    thawed.context(
        "what the command made is not a snapshot of one moment: give a longer --timeout",
    )?;
    Ok(Verdict::Done)
}

/// Take requests of all these disks again.
///
/// # Errors
/// The first disk that was not frozen any more, or is unknown; the others are thawed.
fn thaw(client: &mut Client, names: &[String]) -> Result<()> {
    let ask = |name: &String| client.ask(&Request::Thaw { disk: name.clone() });
    let answers: Vec<_> = names.iter().map(ask).collect();
    for answer in answers {
        answer?;
    }
    Ok(())
}

fn find<'r>(status: &'r HostReport, name: &str) -> Result<&'r DiskReport> {
    let mut disks = status.devices.iter().flat_map(|device| &device.disks);
    let found = disks.find(|disk| disk.name == name);
    found.with_context(|| format!("there is no disk {name}: see `seekway ctl status`"))
}

/// Flushes the page cache of an image to its device. The image is opened again: the kernel reports
/// a failure once to each open file, and the daemon's must report it at its guest's next flush.
fn sync(disk: &DiskReport) -> Result<()> {
    let path = Path::new(&disk.path);
    match std::fs::File::open(path).and_then(|file| file.sync_all()) {
        Ok(()) => Ok(()),
        // Guests' data is not in the page cache.
        Err(_) if disk.direct => Ok(()),
        Err(e) => {
            Err(anyhow!(e).context(format!("disk {}: {}: cannot sync", disk.name, disk.path)))
        }
    }
}

#[cfg(test)]
mod promised_tests {
    use super::*;

    #[test]
    fn a_pair_is_found_by_its_key() {
        let limits = "iops=5,reserve_iops=3,latency=2ms,group=a";
        assert_eq!(pair(limits, "reserve_iops"), "reserve_iops=3");
        assert_eq!(pair(limits, "latency"), "latency=2ms");
    }
}
