//! vio-ablation (ours): what decides the speed-ups. One thing at a time is
//! changed on three VMs with a sequential reader each, on six such VMs, or in the
//! number of an application's workers; what it is set beside is among the rows.
//! Its guests have no ring and no bound of their own: vio-room is about these.

use super::super::judge::mean;
use super::super::{Cell, Findings, HostSetup, Options, Results};
use super::apps::{CLOUDSTONE, FILE_SERVER, VIDEO_SERVER};
use super::load::{ARRAY, BASE, Column, Load, OURS_ON, PAPER_ON, PROTOCOL_VIO};
use super::load::{VIO_ON, Vm, WINDOW_512, cells, sequential_of};
use super::measure::speedup;
use super::rows::{Paper, asks, figure, row};
use super::sequential::MILLIS;
use crate::engine::HostCosts;
use seekway_policy::units::Nanos;

const COLUMNS: [Column; 6] = [BASE, PAPER_ON, VIO_ON, OURS_ON, WINDOW_512, PROTOCOL_VIO];

/// The paper's protocol is for the sequential readers only.
fn columns(load: &Load) -> &'static [Column] {
    if load.sequential { &COLUMNS } else { &COLUMNS[..5] }
}

struct Setting {
    name: &'static str,
    /// Of the guests, beside the defaults.
    keys: &'static str,
    vms: usize,
    /// Instead of a sequential reader; such a load has no protocol of the paper's.
    app: Option<&'static str>,
    /// Of the host and the array.
    change: fn(Load) -> Load,
}

const fn guest(name: &'static str, keys: &'static str, vms: usize) -> Setting {
    Setting { name, keys, vms, app: None, change: |load| load }
}
const fn other(name: &'static str, change: fn(Load) -> Load) -> Setting {
    Setting { name, keys: "", vms: 3, app: None, change }
}
const fn app(name: &'static str, app: &'static str) -> Setting {
    let change = |load| Load { judged: "", sequential: false, ..load };
    Setting { name, keys: "", vms: 1, app: Some(app), change }
}

fn on(load: Load, change: &str) -> Load {
    Load { device: format!("{ARRAY}:{change}"), ..load }
}
fn costs(load: Load, costs: HostCosts) -> Load {
    Load { host: HostSetup { costs, ..load.host }, ..load }
}

fn settings() -> Vec<Setting> {
    vec![
        guest("3 VMs as they are", "", 3),
        guest("3 VMs, 200 µs to the host", ",latency=200us", 3),
        guest("6 VMs as they are", "", 6),
        app("Darwin, 8 workers", "darwin:size=1GiB,clients=8,workers=8"),
        app("Darwin, 2 workers", "darwin:size=1GiB,clients=2,workers=2"),
        app("Darwin, 1 worker", "darwin:size=1GiB,clients=1,workers=1"),
        app("VS, 8 readers", VIDEO_SERVER.spec),
        app("Cloudstone, 8 workers", CLOUDSTONE.spec),
        Setting {
            change: |load| Load { judged: "", sequential: false, ..load.of_whole_files() },
            ..app("FS, 8 threads", FILE_SERVER.spec)
        },
        guest("3 VMs, twelve times the CPU time", ",cpu_page=12us,cpu_op=24us", 3),
        other("3 VMs, chunks of 1 MiB", |l| on(l, "chunk_kib=1024")),
        other("6 VMs, chunks of 1 MiB", |l| Load {
            vms: vec![l.vms[0].clone(); 6],
            ..on(l, "chunk_kib=1024")
        }),
        other("3 VMs, measured three times as long", |l| Load {
            measured: l.measured.scaled(3, 1),
            ..l
        }),
        // Files that end before an interval form has found its pace are like that.
        other("3 VMs, measured from the start", |l| Load { settle: Nanos::ZERO, ..l }),
        other("3 VMs, host four times as slow", |l| costs(l, slow())),
    ]
}

fn slow() -> HostCosts {
    let usual = Load::costs();
    HostCosts {
        request: usual.request.scaled(4, 1),
        command: usual.command.scaled(4, 1),
        copy_bytes_per_s: usual.copy_bytes_per_s / 4,
        event: usual.event.scaled(4, 1),
        poll: usual.poll.scaled(4, 1),
        ..usual
    }
}

fn loads(options: &Options) -> Vec<Load> {
    let load = |setting: Setting| {
        let keys = format!("image=40GiB,ram=512MiB,vcpus=1,tags=true{}", setting.keys);
        let app = setting.app.map_or_else(|| sequential_of("16GiB", 1), String::from);
        let vm = Vm { keys, apps: vec![app] };
        let load = Load::new(setting.name, vec![vm; setting.vms], MILLIS, options);
        (setting.change)(load.readers(1))
    };
    settings().into_iter().map(load).collect()
}

pub(super) fn ablation_cells(options: &Options) -> Vec<Cell> {
    loads(options)
        .iter()
        .flat_map(|load| cells(std::slice::from_ref(load), columns(load)))
        .collect()
}

pub(super) fn ablation_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    let loads = loads(options);
    for load in &loads {
        let columns = columns(load);
        let one = |&form| row(results, load, form, columns, Paper::default());
        let literal = [PAPER_ON, PROTOCOL_VIO];
        findings.rows.extend(literal.iter().filter(|form| columns.contains(form)).map(one));
    }
    // No load here is asked for a gain: some have no room on purpose.
    let asked: Vec<Load> =
        loads.iter().map(|load| Load { sequential: false, ..load.clone() }).collect();
    findings.rows.extend(asks(results, &asked));
    let best = loads.iter().max_by(|a, b| {
        let of = |load: &Load| mean(&speedup(results, load, OURS_ON));
        of(a).total_cmp(&of(b))
    });
    findings.notes.extend(best.map(|load| format!("The host gives most with: {}.", load.name)));
    let loads: Vec<Load> = loads.into_iter().filter(|load| load.sequential).collect();
    let groups = loads.iter().map(|load| load.name.clone()).collect();
    let caption = "What decides the speed-ups: one thing changed at a time.";
    findings.figures.push(figure(results, &loads, groups, &COLUMNS, caption));
    findings
}
