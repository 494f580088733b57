//! vio-ratio, vio-schedulers, vio-mix, vio-queues: the paper's figures 9 to 12.

use super::super::judge::mean;
use super::super::results::over;
use super::super::{Findings, Options, Results, Row};
use super::apps::{DARWIN, FILE_SERVER, WEB_PROXY, WEB_SERVER, most};
use super::load::{ARRAY, BASE, BUFFERED, Column, Load, OURS_ON, PAPER_ON};
use super::load::{ROOM, VIO_ON, Vm, WINDOW_512, sequential};
use super::measure::{short, speedup, throughput, worst};
use super::rows::{Paper, sweep};

const MILLIS: u64 = 1_000;

/// vio-ratio: not the protocol of figure 5, which would have O_DIRECT writers beside a baseline
/// whose writers have a page cache.
pub(super) const RATIO_COLUMNS: [Column; 5] = [BASE, PAPER_ON, VIO_ON, OURS_ON, WINDOW_512];

/// vio-ratio: eight VMs with four processes each, of which so many read and the
/// others write, all in sequence. Guests keep little dirty: in a run as long as
/// the paper's, which moves 32 GB, writers go at the disk's pace.
pub(super) fn ratio_loads(options: &Options) -> Vec<Load> {
    let load = |readers: usize| {
        let writers = 4 - readers;
        let write = format!("fio:rw=write,bs=64KiB,size=1GiB,io_size=1TiB,numjobs={writers}");
        let mut apps = Vec::new();
        if readers > 0 {
            apps.push(sequential(readers));
        }
        if writers > 0 {
            apps.push(write);
        }
        let vm = Vm {
            keys: "image=24GiB,ram=1GiB,vcpus=1,dirty=4,dirty_background=2,tags=true".into(),
            apps,
        };
        let name = format!("{} % readers", readers * 25);
        Load::new(name, vec![vm; 8], MILLIS, options).with(ROOM)
    };
    (0..=4).map(load).collect()
}

pub(super) fn ratio_judge(options: &Options, results: &Results) -> Findings {
    let paper = Paper { vio: Some(1.1), flashy: None };
    let caption = "Eight VMs with four processes each (figure 9 of the paper).";
    let loads = ratio_loads(options);
    let mut findings = sweep(results, &loads, PAPER_ON, &RATIO_COLUMNS, paper, caption);
    let of = |at: usize| speedup(results, &loads[at], PAPER_ON);
    let name = "three readers of four over none: vio as in the paper";
    findings.rows.push(above(name, &over(&of(3), &of(0))));
    let name = "all readers over three of four: vio as in the paper";
    findings.rows.push(above(name, &over(&of(4), &of(3))));
    findings
}

/// The paper's form above 1, without a figure.
fn above(name: &str, values: &[f64]) -> Row {
    Row::ordering(name, values, 1.0, "×").because(PAPER_ON.form())
}

/// vio-schedulers: Darwin in one VM of 8 vCPUs and 8 GB.
fn darwin_alone() -> Vm {
    let keys = "image=40GiB,ram=8GiB,vcpus=8,tags=true".into();
    Vm { keys, apps: vec![DARWIN.spec.into()] }
}

/// In the guest, and on the host.
const SCHEDULERS: [(&str, &str); 4] =
    [("noop", "noop"), ("noop", "cfq"), ("cfq", "noop"), ("cfq", "cfq")];

pub(super) fn scheduler_loads(options: &Options) -> Vec<Load> {
    let load = |(guest, policy): (&str, &'static str)| {
        let name = format!("guest {guest}, host {policy}");
        let load = Load::new(name, vec![darwin_alone()], MILLIS, options).with(ROOM);
        Load { policy, vcpus: 8, ..load.with(&format!(",elevator={guest}")) }
    };
    SCHEDULERS.map(load).into()
}

pub(super) fn scheduler_judge(options: &Options, results: &Results) -> Findings {
    let loads = scheduler_loads(options);
    let caption = "Darwin under host schedulers (figure 10 of the paper).";
    let mut findings = sweep(results, &loads, PAPER_ON, &BUFFERED, Paper::default(), caption);
    // The paper: the gain is best with CFQ in both, the throughput best with noop in both.
    let gain = |load: &Load| speedup(results, load, PAPER_ON);
    let speed = |load: &Load| results.each(load, PAPER_ON, |r| throughput(r, load));
    let [noop, .., cfq] = &loads[..] else { unreachable!("four of them") };
    for (name, values) in [
        (
            "speed-up under cfq in both over the most of the others",
            over(&gain(cfq), &most(&loads[..3], gain)),
        ),
        (
            "throughput under noop in both over the most of the others",
            over(&speed(noop), &most(&loads[1..], speed)),
        ),
    ] {
        findings.rows.push(above(&format!("{name}: {}", PAPER_ON.name), &values));
    }
    findings
}

/// vio-mix: of eight VMs so many stream; the others are servers in turn, where
/// the paper draws them at random.
pub(super) fn mix_loads(options: &Options) -> Vec<Load> {
    let database = Vm { apps: vec!["oltp:threads=8,writers=2".into()], ..FILE_SERVER.vm() };
    let servers = [FILE_SERVER.vm(), WEB_SERVER.vm(), WEB_PROXY.vm(), database];
    let load = |streaming: usize| {
        let mut vms = vec![DARWIN.vm(); streaming];
        vms.extend(servers.iter().cycle().take(8 - streaming).cloned());
        let load = Load::new(format!("{streaming} of 8 VMs stream"), vms, MILLIS, options);
        let load = load.with(ROOM);
        // Two file servers in eight decide what all of them move.
        if streaming <= 2 { load.of_whole_files() } else { load }
    };
    [0, 2, 4, 6, 8].map(load).into()
}

pub(super) fn mix_judge(options: &Options, results: &Results) -> Findings {
    let loads = mix_loads(options);
    let paper = Paper { vio: Some(1.07), flashy: None };
    let caption = "Streaming VMs among eight (figure 11 of the paper).";
    let mut findings = sweep(results, &loads, PAPER_ON, &BUFFERED, paper, caption);
    // Where the servers that may lose are most.
    findings.rows.extend([VIO_ON, OURS_ON].map(|column| worst_row(results, &loads[0], column)));
    let of = |at: usize| speedup(results, &loads[at], PAPER_ON);
    let name = "speed-up of vio as in the paper with 8 of 8 streaming over that with none";
    findings.rows.push(above(name, &over(&of(4), &of(0))));
    findings
}

/// What somebody pays for what another gains.
fn worst_row(results: &Results, load: &Load, column: Column) -> Row {
    let all = worst(results, load, column);
    let values: Vec<f64> = all.iter().map(|(_, ratio)| *ratio).collect();
    let mut names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let name = format!("{}: worst VM with {}", load.name, column.name);
    let why = format!("against the same VM without host prefetching: {}", names.join(", "));
    Row::measured(name, &values, "×", why)
}

/// Of the paper's queue sizes the default and the longest; its 512 and 2048 are alike to 1 %.
const SIZES: [u32; 2] = [128, 8192];
const YCSB: &str = "ycsb";

/// vio-queues: one VM of each with the guest's or the host's queue so long.
pub(super) fn queue_loads(options: &Options) -> Vec<Load> {
    let load = |app: &str, spec: &str, guest: u32, host: u32| {
        let keys = format!("image=40GiB,ram=8GiB,vcpus=8,tags=true,nr_requests={guest}");
        let vm = Vm { keys, apps: vec![spec.into()] };
        let name = format!("{app}, guest {guest}, host {host}");
        let device = format!("{ARRAY}:queue_depth={host}");
        Load { device, vcpus: 8, ..Load::new(name, vec![vm], MILLIS, options).with(ROOM) }
    };
    let mut loads = Vec::new();
    for (app, spec) in [("Darwin", DARWIN.spec), ("YCSB3", YCSB)] {
        loads.extend(SIZES.map(|size| load(app, spec, size, SIZES[0])));
        loads.extend(SIZES[1..].iter().map(|&size| load(app, spec, SIZES[0], size)));
    }
    loads
}

pub(super) fn queue_judge(options: &Options, results: &Results) -> Findings {
    let loads = queue_loads(options);
    let caption = "Darwin and YCSB3 by queue sizes (figure 12 of the paper).";
    let mut findings = sweep(results, &loads, PAPER_ON, &BUFFERED, Paper::default(), caption);
    // Three loads of each application: the default, longer in the guest, in the host.
    for (app, first) in [("Darwin", 0), ("YCSB3", 3)] {
        for (where_, longer) in [("guest", first + 1), ("host", first + 2)] {
            let loads = (&loads[first], &loads[longer]);
            findings.rows.push(queue_row(results, loads, (app, where_)));
        }
    }
    findings
}

/// How much of the speed-up a longer queue adds: that with the longer one over the
/// default's. The paper: nothing for Darwin, nothing in the host; 1.04 to 1.1
/// for YCSB3 in the guest.
fn queue_row(
    results: &Results,
    (default, longer): (&Load, &Load),
    (app, where_): (&str, &str),
) -> Row {
    let base = speedup(results, default, PAPER_ON);
    let values = over(&speedup(results, longer, PAPER_ON), &base);
    let name = format!("{app}: speed-up with a longer queue in the {where_} over the default's");
    let ours = mean(&speedup(results, default, OURS_ON));
    let default = format!(
        "{} at the default ({} continuous); {}",
        short(mean(&base)),
        short(ours),
        PAPER_ON.form()
    );
    match (app, where_) {
        ("YCSB3", "guest") => Row::factor(name, 1.1 / 1.04, &values).because(default),
        _ => {
            let why = format!("the paper: a longer queue adds little; {default}");
            Row::measured(name, &values, "×", why)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_in_the_order_that_the_rows_take_them_in() {
        let options = super::super::super::testing::options(1);
        let names: Vec<String> = queue_loads(&options).into_iter().map(|l| l.name).collect();
        assert_eq!(names[0], "Darwin, guest 128, host 128");
        assert_eq!(names[1], "Darwin, guest 8192, host 128");
        assert_eq!(names[2], "Darwin, guest 128, host 8192");
        assert_eq!(names[3], "YCSB3, guest 128, host 128");
        assert_eq!(names.len(), 6);
    }
}
