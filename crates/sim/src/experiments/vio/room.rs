//! vio-room (ours): the gain over how much of the array is in use without prefetching, for
//! readers behind a ring of Xen 4.1, and behind the same with a bound. vio-blend: the
//! paper's figure 1, several readers on a turning disk and on one solid-state drive, and what
//! prefetching does there.

use super::super::judge::{count, listed, mean};
use super::super::results::over;
use super::super::{Figure, Findings, Options, Results, Row};
use super::load::{ARRAY, BASE, Column, Load, OURS_ON, PAPER_ON, PROTOCOL_VIO, RING, ROOM};
use super::load::{sequential, small_vm};
use super::measure::{array_percent, short, speedup, throughput};
use super::rows::{Paper, row};
use super::sequential::MILLIS;

pub(super) const COLUMNS: [Column; 4] = [BASE, PAPER_ON, OURS_ON, PROTOCOL_VIO];
/// From a fifth of the array to all of it.
const COUNTS: [usize; 6] = [1, 2, 3, 4, 5, 6];
/// The mean speed-up that the paper gives of its applications.
const PAPER_MEAN: f64 = 1.14;

/// A way from the guest to the host: its name and the guest's keys.
const WAYS: [(&str, &str); 2] = [("ring", RING), ("ring and bound", ROOM)];
/// The middle and the other end of what the paper's VMs may have had, with three VMs.
const ENDS: [(&str, &str); 2] = [
    ("150 µs, 350 MiB/s", ",max_request_kib=44,ring=32,latency=150us,bandwidth=350MiB"),
    ("100 µs, 300 MiB/s", ",max_request_kib=44,ring=32,latency=100us,bandwidth=300MiB"),
];

fn readers(name: String, count: usize, keys: &str, options: &Options) -> Load {
    let vms = vec![small_vm(sequential(1)); count];
    Load::new(name, vms, MILLIS, options).readers(1).with(keys)
}

fn way(name: &str, keys: &str, options: &Options) -> Vec<Load> {
    COUNTS.map(|n| readers(format!("{n} VMs, {name}"), n, keys, options)).into()
}

fn ends(options: &Options) -> Vec<Load> {
    ENDS.map(|(name, keys)| readers(format!("3 VMs, ring, {name}"), 3, keys, options)).into()
}

/// All that is measured for vio-room.
pub(super) fn room_loads(options: &Options) -> Vec<Load> {
    let ways = WAYS.iter().flat_map(|(name, keys)| way(name, keys, options));
    ways.chain(ends(options)).collect()
}

pub(super) fn room_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    let mut lines = Vec::new();
    for (name, keys) in WAYS {
        let loads = way(name, keys, options);
        findings.rows.extend(loads.iter().map(|load| one(results, load)));
        for column in &COLUMNS[1..] {
            lines.push((format!("{}, {name}", column.name), curve(results, &loads, *column)));
        }
        // With the bound the curve is flat up to a full array.
        if keys == RING {
            findings.rows.extend(crossing(results, &loads));
        }
    }
    findings.rows.extend(ends(options).iter().map(|load| one(results, load)));
    let x = ("array in use without prefetching", "%");
    let y = ("throughput against the guest's own read-ahead", "×");
    let caption = "The gain over what is left of the array: one to six sequential readers.";
    findings.figures.push(Figure::lines(x, y, lines, caption));
    findings
}

fn one(results: &Results, load: &Load) -> Row {
    row(results, load, PAPER_ON, &COLUMNS, Paper::default())
}

/// The gain in one way by how much of the array the baseline uses, from little to much.
fn curve(results: &Results, loads: &[Load], column: Column) -> Vec<(f64, f64)> {
    let point = |load: &Load| {
        (results.mean(load, BASE, array_percent), mean(&speedup(results, load, column)))
    };
    let mut points: Vec<(f64, f64)> = loads.iter().map(point).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

/// Where the paper's mean lies on the curve of its form: no row if the curve does not cross it.
fn crossing(results: &Results, loads: &[Load]) -> Option<Row> {
    let points = curve(results, loads, PAPER_ON);
    let at = crosses(&points, PAPER_MEAN)?;
    let name = format!("ring: use of the array at which vio as in the paper gains {PAPER_MEAN}");
    let each = listed(&points, |(x, y)| format!("{} % {}", short(*x), short(*y)));
    let why = format!("between two points of the means: {each}; {}", PAPER_ON.form());
    Some(Row::measured(name, &[at], "%", why))
}

/// The last x at which lines between the points fall through `y`.
fn crosses(points: &[(f64, f64)], y: f64) -> Option<f64> {
    let falls = |pair: &&[(f64, f64)]| pair[0].1 >= y && pair[1].1 < y;
    let pair = points.windows(2).rfind(falls)?;
    let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
    Some(x0 + (x1 - x0) * (y0 - y) / (y0 - y1))
}

/// A disk of figure 1: its name, its profile, VMs and the time that is measured in ms.
struct Disk {
    name: &'static str,
    device: &'static str,
    counts: &'static [usize],
    millis: u64,
}

const DISKS: [Disk; 3] = [
    Disk { name: "turning disk", device: "seagate-1tb-7200", counts: &[1, 8], millis: 8_000 },
    Disk { name: "one drive", device: "intel-x25m-g2", counts: &[1, 4, 8], millis: 1_000 },
    Disk { name: "array", device: ARRAY, counts: &[1, 4, 8], millis: 1_000 },
];
pub(super) const BLEND_COLUMNS: [Column; 3] = [BASE, PAPER_ON, OURS_ON];

impl Disk {
    fn loads(&self, options: &Options) -> Vec<Load> {
        let load = |&n: &usize| {
            let vms = vec![small_vm(sequential(1)); n];
            let load = Load::new(format!("{n} VMs, {}", self.name), vms, self.millis, options);
            Load { device: self.device.into(), ..load.readers(1).with(RING) }
        };
        self.counts.iter().map(load).collect()
    }
}

pub(super) fn blend_loads(options: &Options) -> Vec<Load> {
    DISKS.iter().flat_map(|disk| disk.loads(options)).collect()
}

pub(super) fn blend_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for disk in &DISKS {
        let loads = disk.loads(options);
        let mib_s = |load: &Load| results.each(load, BASE, |r| throughput(r, load));
        for pair in loads.windows(2) {
            let fewer = mib_s(&pair[0]);
            let values = over(&mib_s(&pair[1]), &fewer);
            findings.rows.push(blended(disk, (&pair[0], &pair[1]), &values, mean(&fewer)));
        }
        // On the array vio-vms and vio-room have these.
        if disk.device != ARRAY {
            let one = |load| row(results, load, PAPER_ON, &BLEND_COLUMNS, Paper::default());
            findings.rows.extend(loads.iter().map(one));
        }
    }
    let of = |disk: &Disk| {
        let loads = disk.loads(options);
        let best = loads.iter().map(|l| results.mean(l, BASE, |r| throughput(r, l)));
        let best = best.fold(0.0, f64::max);
        let point =
            |l: &Load| (l.vms.len() as f64, results.mean(l, BASE, |r| throughput(r, l)) / best);
        (disk.name.to_string(), loads.iter().map(point).collect())
    };
    let y = ("throughput of all over the best number's", "×");
    let caption = "Several sequential readers without a prefetcher (figure 1 of the paper).";
    findings.figures.push(Figure::lines(("VMs", ""), y, DISKS.iter().map(of), caption));
    findings
}

/// More VMs against fewer, without a prefetcher. Of the turning disk the paper gives a
/// figure, of the drive that it is fastest with four.
fn blended(disk: &Disk, (fewer, more): (&Load, &Load), values: &[f64], mib_s: f64) -> Row {
    let name = format!("{}: {} VMs over {}", disk.name, more.vms.len(), fewer.vms.len());
    let why = format!("no prefetcher on the host; the fewer have {} MiB/s", short(mib_s));
    if disk.name == "turning disk" {
        return Row::factor(name, 0.5, values).because(why);
    }
    let row = Row::measured(name, values, "×", why);
    let right = count(values, |v| v > 1.0);
    if more.vms.len() == 4 { row.ordered(right, values.len()) } else { row }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_crossed_between_two_points() {
        assert_eq!(crosses(&[(20.0, 2.0), (40.0, 1.5), (60.0, 1.0)], 1.25), Some(50.0));
        assert_eq!(crosses(&[(20.0, 1.1), (40.0, 1.0)], 1.25), None);
    }
}
