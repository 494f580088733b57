//! vmcd-real: file server, web server and OLTP, figures 12 to 14.

use super::super::{Cell, Figure, Findings, Options, Results, Row};
use super::load::{Access, Load, POLICIES, Vm, cells};
use super::measure::{our_rows, phi_claim, phi_row, short, total, vm_bars};
use crate::metrics::RunResult;

/// A server as Iometer's access specification of that name, at its mean size.
struct Server {
    name: &'static str,
    access: Access,
    reads: u32,
    /// IOPS more, and φ less, than each baseline's in the paper.
    claims: [(&'static str, f64, f64); 3],
}

/// Iometer's own: file server 80 % reads of 512 B to 64 KiB, 11 KiB on
/// average; web server all reads of 512 B to 512 KiB, 15.7 KiB on average;
/// OLTP 67 % reads of 8 KiB. All random.
const SERVERS: [Server; 3] = [
    Server {
        name: "file server",
        access: Access::direct("randrw", "11KiB"),
        reads: 80,
        claims: [("cfq", 1.115, 0.56), ("deadline", 1.112, 0.53), ("anticipatory", 1.122, 0.568)],
    },
    Server {
        name: "web server",
        access: Access::direct("randrw", "16KiB"),
        reads: 100,
        claims: [("cfq", 1.121, 0.535), ("deadline", 1.049, 0.51), ("anticipatory", 1.125, 0.54)],
    },
    Server {
        name: "OLTP",
        access: Access::direct("randrw", "8KiB"),
        reads: 67,
        claims: [("cfq", 1.11, 0.54), ("deadline", 1.057, 0.52), ("anticipatory", 1.056, 0.55)],
    },
];
const DEPTHS: [u32; 5] = [1, 4, 16, 64, 256];

/// The bandwidths of figure 14.
const MIXED_PAPER: [(&str, &[f64]); 4] = [
    ("vmcd", &[12.21, 7.49, 8.80]),
    ("cfq", &[8.48, 7.94, 8.26]),
    ("deadline", &[8.26, 7.91, 8.14]),
    ("anticipatory", &[8.70, 8.03, 8.44]),
];

impl Server {
    fn vm(&self, depth: u32) -> Vm {
        let vm = self.access.depth(depth).vm();
        Vm { spec: format!("{},rwmixread={}", vm.spec, self.reads), ..vm }
    }
    /// Three VMs with the same server.
    fn load(&self, depth: u32, options: &Options) -> Load {
        let name = format!("{}, {depth} outstanding", self.name);
        Load::new(name, vec![self.vm(depth); 3], 30, options)
    }
}

/// One server of each kind.
fn mixed(options: &Options) -> Vec<Load> {
    let of = |depth: u32| {
        let vms = SERVERS.iter().map(|server| server.vm(depth)).collect();
        Load::new(format!("mixed, {depth} outstanding"), vms, 60, options)
    };
    [1, 16].map(of).into()
}

fn loads(options: &Options) -> Vec<Load> {
    let of = |server: &Server| DEPTHS.map(|depth| server.load(depth, options));
    let mut loads: Vec<Load> = SERVERS.iter().flat_map(of).collect();
    loads.extend(mixed(options));
    loads
}

pub(super) fn real_cells(options: &Options) -> Vec<Cell> {
    cells(&loads(options))
}

pub(super) fn real_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for server in &SERVERS {
        for depth in DEPTHS {
            let load = server.load(depth, options);
            findings.rows.push(phi_row(results, &load));
            for (base, more, fairer) in server.claims {
                findings.rows.push(iops_claim(results, &load, base, more));
                findings.rows.push(phi_claim(results, &load, base, fairer));
            }
            findings.rows.extend(our_rows(results, &load));
        }
        findings.figures.push(iops_figure(server, options, results));
    }
    for load in mixed(options) {
        findings.rows.push(phi_row(results, &load));
        for (base, paper) in [("cfq", 24.68), ("deadline", 24.31), ("anticipatory", 25.17)] {
            let ratios = results.ratio(&load, ("vmcd", base), total);
            let name = format!("{}: bandwidth against {base}", load.name);
            findings.rows.push(Row::factor(name, 28.5 / paper, &ratios));
        }
        findings.rows.extend(our_rows(results, &load));
        let groups = ["file server", "web server", "OLTP"];
        let caption = "bandwidth of each VM (figure 14 of the paper).";
        findings.figures.push(vm_bars(results, &load, &groups, &MIXED_PAPER, caption));
    }
    findings
}

fn iops_claim(results: &Results, load: &Load, base: &str, more: f64) -> Row {
    let ratios = results.ratio(load, ("vmcd", base), RunResult::iops);
    let row = Row::factor(format!("{}: IOPS against {base}", load.name), more, &ratios);
    row.because(format!(
        "{} against {}",
        short(results.mean(load, "vmcd", RunResult::iops)),
        short(results.mean(load, base, RunResult::iops))
    ))
    .because(
        "four requests a turn are all that is sorted by place, then the head goes to another \
         image (vmcd-bandwidth turns that number)",
    )
}

fn iops_figure(server: &Server, options: &Options, results: &Results) -> Figure {
    let of = |policy: &&str| {
        let at = |depth: u32| {
            let load = server.load(depth, options);
            (f64::from(depth), results.mean(&load, policy, RunResult::iops))
        };
        (policy.to_string(), DEPTHS.map(at).into())
    };
    let [x, y] = ["requests outstanding in each VM", "requests a second of all VMs"];
    let caption = format!("Three VMs with a {} (figure 12 of the paper).", server.name);
    Figure::lines((x, ""), (y, ""), POLICIES.iter().map(of), caption).logarithmic()
}
