//! `seekway inspect --zones`: zones of a trace by Pregather's model. A bare trace has no turns, so
//! windows are counted in the trace's own time.

use crate::args::{Format, InspectArgs, ZoneArgs};
use crate::load::{self, Trace};
use crate::{Verdict, output};
use anyhow::{Result, bail};
use seekway_core::request::Extent;
use seekway_core::units::{Instant, Lba, Nanos};
use seekway_policy::vnavigator::{ModelParams, VNavigator};
use seekway_report::html::{Block, Report, Section};
use seekway_report::plot::{Axis, HeatMap, Lines, Outline, Series};
use seekway_report::table::Table;
use seekway_workload::traces::{Scan, TraceReader, scan};
use serde::Serialize;

/// Columns and rows of a heat map.
const COLUMNS: usize = 120;
const ROWS: usize = 100;
/// Hot zones in a table; JSON has all.
const HOT_SHOWN: usize = 12;
/// VMs with a heat map of their own.
const MAPS_MAX: usize = 16;
/// Most VMs that are looked at.
const VMS_MAX: usize = 4096;

/// `inspect --zones --format json` at one time; several times are a list.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Snapshot {
    at_s: f64,
    vms: Vec<VmSnapshot>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct VmSnapshot {
    name: String,
    window: u64,
    /// Mean density of the zones with at least 1; null where there is none.
    threshold: Option<f64>,
    zones_at_least_1: usize,
    hot: Vec<Hot>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Hot {
    zone: u64,
    start_lba: u64,
    density: f64,
    interval_ms: f64,
}

/// One VM under inspection: its model, and what its figures show.
struct InspectedVm {
    name: String,
    /// The volume of the trace that it is; all of them if none.
    volume: Option<u32>,
    model: VNavigator,
    capacity: u64,
    requests: u64,
    /// Highest density seen in each cell, row by row from the lowest LBA.
    cells: Vec<f64>,
    /// (time in s, threshold) at the end of each column.
    thresholds: Vec<(f64, f64)>,
    /// (time in s, number of hot zones).
    hot: Vec<(f64, f64)>,
    /// Units predicted at the end of each column.
    outlines: Vec<Outline>,
}

pub fn run(args: &InspectArgs) -> Result<Verdict> {
    let params = params(&args.zones)?;
    let options = load::trace_options(&args.reading)?;
    let mut traces = Vec::new();
    for trace in Trace::open_all(&args.traces, options.format)? {
        let scanned = scan(&trace.path, &options).map_err(|e| trace.error(e))?;
        load::tell(&trace, &scanned);
        traces.push((trace, scanned));
    }
    let end = traces.iter().map(|(_, s)| s.stats.duration).max().unwrap_or(Nanos::ZERO);
    let mut times =
        args.zones.at.iter().map(|t| load::duration("--at", t)).collect::<Result<Vec<Nanos>>>()?;
    if times.is_empty() {
        times.push(end);
    }
    times.sort_unstable();
    let mut seen: Vec<Snapshot> =
        times.iter().map(|t| Snapshot { at_s: t.as_secs_f64(), vms: Vec::new() }).collect();
    let mut watched = Vec::new();
    for (trace, scanned) in &traces {
        let mut vms = vms_of(trace, scanned, params, args.reading.split);
        if watched.len() + vms.len() > VMS_MAX {
            bail!("more than {VMS_MAX} VMs: give --split a smaller number");
        }
        let reader = TraceReader::open(&trace.path, &options).map_err(|e| trace.error(e))?;
        let fed = feed(reader, &mut vms, scanned, &times, &mut seen, end);
        fed.map_err(|e| trace.error(e))?;
        watched.extend(vms);
    }
    output::write_report(args.report.as_deref(), || report(&watched, &seen, end, params))?;
    print(&seen, args.out.format)?;
    Ok(Verdict::Done)
}

fn params(args: &ZoneArgs) -> Result<ModelParams> {
    let zone = load::size("--zone", &args.zone)?;
    let window = load::duration("--window", &args.window)?;
    if zone.get() == 0 || window == Nanos::ZERO {
        bail!("--zone and --window must be more than nothing");
    }
    if !(args.lambda > 1.0 && args.lambda <= 1e6) {
        bail!("--lambda {}: expected a factor above 1", args.lambda);
    }
    let zones = seekway_policy::vnavigator::ZONES_MAX;
    Ok(ModelParams { zone, window, lambda: args.lambda, zones, ..ModelParams::default() })
}

/// The VMs of a trace: all volumes one VM, or each its own.
fn vms_of(
    trace: &Trace,
    scanned: &Scan,
    params: ModelParams,
    split: Option<usize>,
) -> Vec<InspectedVm> {
    let watch = |name: String, volume: Option<u32>, capacity: u64| InspectedVm {
        name,
        volume,
        model: VNavigator::new(params),
        capacity: capacity.max(1),
        requests: 0,
        cells: vec![0.0; COLUMNS * ROWS],
        thresholds: Vec::new(),
        hot: Vec::new(),
        outlines: Vec::new(),
    };
    let Some(most) = split else {
        // Volumes one after the other, as `compare` lays them.
        let total: u64 = scanned.volumes.iter().map(|v| v.capacity().get()).sum();
        let name = match &scanned.volumes[..] {
            [only] => trace.vm_name(&only.name, true),
            _ => trace.vm_name("", true),
        };
        return vec![watch(name, None, total)];
    };
    let mut busiest: Vec<usize> = (0..scanned.volumes.len()).collect();
    busiest.sort_by_key(|&n| std::cmp::Reverse(scanned.volumes[n].stats.ops.total()));
    busiest.truncate(most);
    busiest.sort_unstable();
    let vm = |n: usize| {
        let volume = &scanned.volumes[n];
        let name = trace.vm_name(&volume.name, scanned.volumes.len() == 1);
        watch(name, Some(n as u32), volume.capacity().get())
    };
    busiest.into_iter().map(vm).collect()
}

/// Feed a trace to its VMs' models, looking at them at `times` and at the end
/// of each column of the maps.
fn feed(
    mut reader: TraceReader,
    vms: &mut [InspectedVm],
    scanned: &Scan,
    times: &[Nanos],
    seen: &mut [Snapshot],
    end: Nanos,
) -> Result<(), seekway_workload::traces::TraceError> {
    let mut bases = Vec::new();
    let mut base = 0;
    for volume in &scanned.volumes {
        bases.push(base);
        base += volume.capacity().get();
    }
    let column_end = |n: usize| Nanos::new(end.get() / COLUMNS as u64 * (n as u64 + 1));
    let (mut next_time, mut column) = (0, 0);
    loop {
        let record = reader.next_record()?;
        let now = record.map_or(Nanos::new(u64::MAX), |r| r.at);
        while next_time < times.len() && times[next_time] < now {
            let at = times[next_time];
            seen[next_time].vms.extend(vms.iter_mut().map(|vm| look(vm, at)));
            next_time += 1;
        }
        while column < COLUMNS && column_end(column) < now {
            vms.iter_mut().for_each(|vm| snapshot(vm, column_end(column)));
            column += 1;
        }
        let Some(record) = record else { return Ok(()) };
        let is_of = |vm: &&mut InspectedVm| vm.volume.is_none_or(|v| v == record.volume);
        let Some(vm) = vms.iter_mut().find(is_of) else { continue };
        let base = if vm.volume.is_none() { bases[record.volume as usize] } else { 0 };
        let start = Lba::new(record.start.get() + base);
        let Some(extent) = Extent::new(start, record.len).filter(|_| record.op.is_data()) else {
            continue;
        };
        vm.model.observe(record.at, Instant::ZERO + record.at, extent);
        vm.requests += 1;
        let row = (start.get() as u128 * ROWS as u128 / vm.capacity as u128) as usize;
        let cell = &mut vm.cells[row.min(ROWS - 1) * COLUMNS + column.min(COLUMNS - 1)];
        *cell = cell.max(vm.model.density_at(start));
    }
}

/// The model of one VM at `at`.
fn look(vm: &mut InspectedVm, at: Nanos) -> VmSnapshot {
    vm.model.advance(at);
    let hot = vm.model.hot_zones().map(|z| Hot {
        zone: z.zone,
        start_lba: z.start.get(),
        density: z.density,
        interval_ms: z.interval.as_millis_f64(),
    });
    VmSnapshot {
        name: vm.name.clone(),
        window: vm.model.window(),
        threshold: vm.model.threshold(),
        zones_at_least_1: vm.model.zones_at_least_1(),
        hot: hot.collect(),
    }
}

/// Note how a column of the map ends.
fn snapshot(vm: &mut InspectedVm, at: Nanos) {
    vm.model.advance(at);
    let x = at.as_secs_f64();
    vm.thresholds.push((x, vm.model.threshold().unwrap_or(f64::NAN)));
    let hot: Vec<_> = vm.model.hot_zones().collect();
    vm.hot.push((x, hot.len() as f64));
    for zone in hot.iter().take(4) {
        let start = zone.start.get() as f64;
        let label = format!(
            "zone {} at {:.1} s: density {:.1}, next request in {:.1} ms",
            zone.zone,
            x,
            zone.density,
            zone.interval.as_millis_f64()
        );
        // One row high, however small the zone is.
        let height = (vm.capacity as f64 / ROWS as f64).max(1.0);
        vm.outlines.push(Outline { x: (x, x), y: (start, start + height), label });
    }
}

fn print(seen: &[Snapshot], format: Format) -> Result<()> {
    let tables: Vec<Table> = seen.iter().map(table).collect();
    match seen {
        [one] => output::print_as(format, &tables, one),
        all => output::print_as(format, &tables, all),
    }
}

fn table(seen: &Snapshot) -> Table {
    let mut rows: Vec<(&VmSnapshot, Option<&Hot>)> = Vec::new();
    let mut notes = Vec::new();
    for vm in &seen.vms {
        let mut densest: Vec<&Hot> = vm.hot.iter().collect();
        densest.sort_by(|a, b| b.density.total_cmp(&a.density));
        if densest.is_empty() {
            rows.push((vm, None));
        }
        rows.extend(densest.iter().take(HOT_SHOWN).map(|hot| (vm, Some(*hot))));
        if densest.len() > HOT_SHOWN {
            let more = densest.len() - HOT_SHOWN;
            notes.push(format!("{}: {more} more hot zones (--format json has all)", vm.name));
        }
    }
    Table::of(format!("The model at {:.3} s", seen.at_s), &rows)
        .text("VM", |(vm, _)| &vm.name)
        .number("threshold", "", |(vm, _)| vm.threshold)
        .number("zones ≥ 1", "", |(vm, _)| vm.zones_at_least_1)
        .number("hot zone", "", |(_, hot)| hot.map(|hot| hot.zone))
        .number("first LBA", "", |(_, hot)| hot.map(|hot| hot.start_lba))
        .number("density", "", |(_, hot)| hot.map(|hot| hot.density))
        .number("next in", "ms", |(_, hot)| hot.map(|hot| hot.interval_ms))
        .notes(notes)
        .done()
}

fn report(watched: &[InspectedVm], seen: &[Snapshot], end: Nanos, params: ModelParams) -> Report {
    let end_s = end.as_secs_f64().max(f64::MIN_POSITIVE);
    let mut sections = Vec::new();
    for vm in watched.iter().take(MAPS_MAX) {
        let map = HeatMap {
            x: Axis::time("time", "s"),
            y: Axis::linear("LBA", "sectors"),
            x_range: (0.0, end_s),
            y_range: (0.0, vm.capacity as f64),
            columns: COLUMNS,
            values: vm.cells.clone(),
            value_label: "highest density of a zone".into(),
            outlines: vm.outlines.clone(),
        };
        let line = |title: &str, points: &[(f64, f64)]| Lines {
            x: Axis::time("time", "s"),
            y: Axis::linear(title, "").from_zero(),
            series: vec![Series::new(&vm.name, points.to_vec())],
        };
        let map = map.render();
        let threshold = line("threshold", &vm.thresholds).render();
        let hot = line("hot zones", &vm.hot).render();
        sections.push(Section {
            intro: format!("{} requests.", vm.requests),
            ..Section::new(
                &vm.name,
                vec![
                    Block::figure(
                        map,
                        "Density of the zones over time; marks are hot zones, whose \
                         predicted interval is read under the pointer.",
                    ),
                    Block::figure(
                        threshold,
                        "The threshold δ: from this density on a zone is hot.",
                    ),
                    Block::figure(hot, "How many zones are hot."),
                ],
            )
        });
    }
    let tables = seen.iter().map(|s| Block::Table(table(s))).collect();
    sections.insert(0, Section::new("The model", tables));
    let subtitle = format!(
        "Zones of {} sectors, windows of {}, λ = {}.",
        params.zone, params.window, params.lambda
    );
    output::report("Seekway: what the zone model sees", subtitle, [], sections)
}
