//! vio-mixed-vms, vio-mixed-procs: sequential readers beside VMs or processes
//! that read and write at random (figures 5(c) and 5(d) of the paper), and
//! vio-random: guests that do nothing else (ours).

use super::super::judge::mean;
use super::super::{Findings, HostSetup, Options, Results, Row};
use super::load::{BARE, BASE, Column, Load, OURS_ON, PAPER_ON, VIO_ON};
use super::load::{Vm, large_vm, random, sequential, small_vm};
use super::measure::{accuracy, cost, short, speedup, throughput};
use super::rows::{Paper, figure};
use super::sequential::{COUNTS, MILLIS, above_flashy, judge};
use crate::engine::HostCosts;

/// Readers and random ones together.
const TOGETHER: usize = 12;

pub(super) fn vms(options: &Options) -> Vec<Load> {
    let load = |count: usize| {
        let mut vms = vec![small_vm(sequential(1)); count];
        vms.resize(TOGETHER, small_vm(random(1)));
        let name = format!("{count} of {TOGETHER} VMs read in sequence");
        Load::new(name, vms, MILLIS, options).readers(1)
    };
    COUNTS.map(load).into()
}

pub(super) fn procs(options: &Options) -> Vec<Load> {
    let load = |count: usize| {
        let mut apps = vec![sequential(count)];
        if count < TOGETHER {
            apps.push(random(TOGETHER - count));
        }
        let name = format!("{count} of {TOGETHER} processes read in sequence");
        Load::new(name, vec![large_vm(apps)], MILLIS, options).readers(12)
    };
    COUNTS.map(load).into()
}

pub(super) fn vms_judge(options: &Options, results: &Results) -> Findings {
    let paper = Paper { vio: Some(1.13), flashy: Some(1.13) };
    let caption = "VMs that read in sequence among 12 (figure 5(c) of the paper).";
    judge(results, &vms(options), |_| Paper::default(), paper, caption)
}

pub(super) fn procs_judge(options: &Options, results: &Results) -> Findings {
    let loads = procs(options);
    let one = Paper { vio: Some(1.10), flashy: Some(1.08) };
    let paper = Paper { vio: Some(1.13), flashy: Some(1.06) };
    let caption = "Processes that read in sequence among 12 (figure 5(d) of the paper).";
    let of_one = |n| if n == 1 { one } else { Paper::default() };
    let mut findings = judge(results, &loads, of_one, paper, caption);
    findings.rows.extend(above_flashy(results, &loads, 0.07, None));
    findings
}

/// A guest that only reads and writes at random may lose so much.
const RANDOM_FLOOR: f64 = 0.98;
pub(super) const RANDOM_COLUMNS: [Column; 5] = [BASE, BARE, PAPER_ON, VIO_ON, OURS_ON];

pub(super) fn random_loads(options: &Options) -> Vec<Load> {
    let mixed =
        |name: &str, vms: Vec<Vm>| Load { judged: "fio", ..Load::new(name, vms, MILLIS, options) };
    let reads = "fio:rw=randread,bs=64KiB,size=4GiB,io_size=1TiB";
    let small = "fio:rw=randread,bs=4KiB,size=4GiB,io_size=1TiB,iodepth=8";
    let small = mixed("4 VMs, 4 KiB reads, 8 outstanding", vec![small_vm(small.into()); 4]);
    let host = HostSetup { costs: HostCosts::default(), ..small.host };
    let passes = format!("{}, every poll passes over the reads", small.name);
    vec![
        mixed("12 VMs, 64 KiB, half writes", vec![small_vm(random(1)); 12]),
        mixed("12 VMs, 64 KiB reads", vec![small_vm(reads.into()); 12]),
        Load { name: passes, host, ..small.clone() },
        small,
        mixed("12 processes in a VM, 64 KiB, half writes", vec![large_vm(vec![random(12)])]),
    ]
}

pub(super) fn random_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    let loads = random_loads(options);
    for load in &loads {
        let row = |&column| random_row(results, load, column);
        findings.rows.extend(RANDOM_COLUMNS[1..].iter().map(row));
    }
    let groups = loads.iter().map(|load| load.name.clone()).collect();
    let caption = "Guests that read and write at random only.";
    findings.figures.push(figure(results, &loads, groups, &RANDOM_COLUMNS, caption));
    findings
}

fn random_row(results: &Results, load: &Load, column: Column) -> Row {
    let values = speedup(results, load, column);
    let enough = mean(&values) >= RANDOM_FLOOR;
    // Ours does not pass over reads at polls, as the paper's does.
    let is_ours = load.host.costs == Load::costs();
    let asked = is_ours && [VIO_ON, OURS_ON].contains(&column);
    let why = format!(
        "{}; {} MiB/s against {}; accuracy {} %, cost {} %",
        column.form(),
        short(results.mean(load, column, |r| throughput(r, load))),
        short(results.mean(load, BASE, |r| throughput(r, load))),
        short(results.mean(load, column, accuracy)),
        short(results.mean(load, column, cost)),
    );
    let row = Row::measured(format!("{}: {}", load.name, column.name), &values, "×", why);
    if asked { row.ask(enough, &format!("at least {RANDOM_FLOOR}")) } else { row }
}
