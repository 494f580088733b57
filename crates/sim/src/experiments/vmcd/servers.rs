//! vmcd-real: file server, web server and OLTP, figures 12 to 14.

use super::super::{Cell, Figure, Findings, Options, Results};
use super::load::{Load, POLICIES, RING, Vm, cells};
use super::measure::{bandwidth_row, our_rows, phi_claim, phi_row, rate_claim, total, vm_bars};
use crate::metrics::RunResult;

/// A server as Iometer's access specification of that name, at its mean size.
struct Server {
    name: &'static str,
    /// Size of its requests.
    block: &'static str,
    reads_percent: u32,
    /// IOPS more, and φ less, than each baseline's in the paper.
    claims: [(&'static str, f64, f64); 3],
}

/// Iometer's own: file server 80 % reads of 512 B to 64 KiB, 11 KiB on
/// average; web server all reads of 512 B to 512 KiB, 15.7 KiB on average;
/// OLTP 67 % reads of 8 KiB. All random.
const SERVERS: [Server; 3] = [
    Server {
        name: "file server",
        block: "11KiB",
        reads_percent: 80,
        claims: [("cfq", 1.115, 0.56), ("deadline", 1.112, 0.53), ("anticipatory", 1.122, 0.568)],
    },
    Server {
        name: "web server",
        block: "16KiB",
        reads_percent: 100,
        claims: [("cfq", 1.121, 0.535), ("deadline", 1.049, 0.51), ("anticipatory", 1.125, 0.54)],
    },
    Server {
        name: "OLTP",
        block: "8KiB",
        reads_percent: 67,
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
        let Server { block, reads_percent, .. } = self;
        let mut vm = Vm::worker(&format!("rw=randrw,bs={block},iodepth={depth},direct=true"));
        vm.spec.push_str(&format!(",rwmixread={reads_percent}"));
        vm
    }
    /// Three VMs with the same server.
    fn load(&self, depth: u32, options: &Options) -> Load {
        let name = format!("{}, {depth} outstanding", self.name);
        Load::new(name, vec![self.vm(depth); 3], 30, options)
    }
}

/// One server of each kind.
fn mixed(options: &Options) -> [Load; 2] {
    let of = |depth: u32| {
        let vms = SERVERS.iter().map(|server| server.vm(depth)).collect();
        Load::new(format!("mixed, {depth} outstanding"), vms, 60, options)
    };
    [1, 16].map(of)
}

/// The loads of [`real_cells`] on the bare disk.
fn bare(options: &Options) -> Vec<Load> {
    let of = |server: &Server| DEPTHS.map(|depth| server.load(depth, options));
    SERVERS.iter().flat_map(of).chain(mixed(options)).collect()
}

pub(super) fn real_cells(options: &Options) -> Vec<Cell> {
    let bare = bare(options);
    let papers: Vec<Load> = bare.iter().map(|load| load.clone().on_papers_host(RING)).collect();
    [cells(&bare), cells(&papers)].concat()
}

pub(super) fn real_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    for server in &SERVERS {
        let loads = DEPTHS.map(|depth| server.load(depth, options).on_papers_host(RING));
        let all: Vec<&Load> = loads.iter().collect();
        let name = format!("{} on three VMs, all depths", server.name);
        for (base, more, fairer) in server.claims {
            let of = RunResult::iops;
            findings.rows.push(rate_claim(results, (&name, "IOPS"), &all, (base, more), of));
            findings.rows.push(phi_claim(results, &name, &all, base, fairer));
        }
        findings.rows.extend(loads.iter().map(|load| phi_row(results, load)));
        findings.figures.push(iops_figure(server, options, results));
    }
    for load in mixed(options).map(|load| load.on_papers_host(RING)) {
        for (base, paper) in [("cfq", 24.68), ("deadline", 24.31), ("anticipatory", 25.17)] {
            let name = (load.name.as_str(), "bandwidth");
            findings.rows.push(rate_claim(results, name, &[&load], (base, 28.5 / paper), total));
        }
        findings.rows.push(phi_row(results, &load));
        let groups = ["file server", "web server", "OLTP"];
        let caption = "bandwidth of each VM (figure 14 of the paper).";
        findings.figures.push(vm_bars(results, &load, &groups, &MIXED_PAPER, caption));
    }
    for load in bare(options) {
        findings.rows.extend([phi_row(results, &load), bandwidth_row(results, &load)]);
        findings.rows.extend(our_rows(results, &load));
    }
    findings
}

fn iops_figure(server: &Server, options: &Options, results: &Results) -> Figure {
    let of = |policy: &&str| {
        let at = |depth: u32| {
            let load = server.load(depth, options).on_papers_host(RING);
            (f64::from(depth), results.mean(&load, policy, RunResult::iops))
        };
        (policy.to_string(), DEPTHS.map(at).into())
    };
    let [x, y] = ["requests outstanding in each VM", "requests a second of all VMs"];
    let caption = format!("Three VMs with a {} (figure 12 of the paper).", server.name);
    Figure::lines((x, ""), (y, ""), POLICIES.iter().map(of), caption).logarithmic()
}
