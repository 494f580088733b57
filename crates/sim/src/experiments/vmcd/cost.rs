//! vmcd-cpu: what the policy costs, figure 16.
//!
//! The simulator has no clock. What a policy is asked to do is counted here,
//! and where the caller lends a clock of CPU time, the time that this takes:
//! the policy alone, round and round, without engine, device or guests. Times
//! the requests a second of the simulated run it is a share of a CPU.

use super::super::figure::bars;
use super::super::judge::mean;
use super::super::{Figure, Findings, Options, Results, Row};
use super::load::{Load, Vm};
use super::measure::{our_rows, short};
use crate::metrics::RunResult;
use seekway_policy::request::{Completion, Extent, Op, Request, RequestId, VmId};
use seekway_policy::scheduler::{Decision, DeviceProfile, DeviceView, Scheduler, VmSpec};
use seekway_policy::schedulers;
use seekway_policy::units::{Instant, Lba, Nanos, Sectors};

/// More CPU time than CFQ, points of a per cent of the machine's.
const MORE: f64 = 3.0;
const VMS: [usize; 5] = [1, 2, 3, 4, 5];
const MEASURED: [&str; 3] = ["cfq", "vmcd", "vmcd-time"];
/// Requests of a measurement, far beyond the tick of a CPU clock, and how often.
const REQUESTS: u64 = 1_000_000;
const TIMES: usize = 5;
const SERVICE: Nanos = Nanos::from_micros(150);
const IMAGE_SECTORS: u64 = 1 << 24;
const BLOCK: Sectors = Sectors::new(8);

fn load(vms: usize, options: &Options) -> Load {
    let vm = Vm::worker("rw=read,bs=512B,iodepth=1,direct=true");
    Load::new(format!("{vms} VMs"), vec![vm; vms], 20, options)
}

pub(super) fn loads(options: &Options) -> [Load; 5] {
    VMS.map(|vms| load(vms, options))
}

pub(super) fn cpu_judge(options: &Options, results: &Results) -> Findings {
    let mut findings = Findings::default();
    let mut shares: Vec<(&str, Vec<Vec<f64>>)> = MEASURED.map(|p| (p, Vec::new())).into();
    let mut most = vec![f64::NEG_INFINITY; TIMES];
    for vms in VMS {
        let load = load(vms, options);
        findings.rows.extend(our_rows(results, &load));
        let Some(clock) = options.cpu_clock else { continue };
        let requests = (REQUESTS / options.shrink.max(1)).max(1000);
        let of = |policy: &str| share_of_cpu(results, &load, policy, requests, clock);
        let measured = MEASURED.map(of);
        findings.rows.extend(rows(&load, &measured));
        let [cfq, vmcd, _] = &measured;
        most.iter_mut().zip(more(vmcd, cfq)).for_each(|(most, this)| *most = most.max(this));
        for ((_, groups), measured) in shares.iter_mut().zip(&measured) {
            groups.push(measured.share.clone());
        }
    }
    if options.cpu_clock.is_none() {
        findings.notes.push("No clock of CPU time: the cost was not measured.".into());
        return findings;
    }
    let name = "1 to 5 VMs: share of a CPU, vmcd above cfq at most";
    findings.rows.push(Row::limit(name, MORE, &most, "points"));
    findings.notes.push(
        "CPU time of the policy alone on the machine that ran this; it is the one figure here that \
         another run does not repeat. The paper's 3 % are of Dom0 as a whole and on kernels of \
         2013."
            .into(),
    );
    findings.figures.push(Figure::bars(
        ("share of a CPU", "%"),
        VMS.map(|vms| format!("{vms} VMs")),
        shares.iter().map(|(policy, groups)| bars(policy, groups)).collect(),
        "CPU time of the policy at the requests a second that it serves (figure 16 of the paper).",
    ));
    findings
}

/// What a policy costs under a load.
struct Cost {
    /// Nanoseconds a request, each time.
    ns: Vec<f64>,
    /// Requests a second of the simulated run.
    iops: f64,
    /// Per cent of a CPU, each time.
    share: Vec<f64>,
}

fn share_of_cpu(
    results: &Results,
    load: &Load,
    policy: &str,
    requests: u64,
    clock: fn() -> Nanos,
) -> Cost {
    let iops = results.mean(load, policy, RunResult::iops);
    let once = |_| {
        let mut this = Loop::new(policy, load.vms.len() as u16);
        let before = clock();
        (0..requests).for_each(|_| this.serve_one());
        clock().saturating_sub(before).get() as f64 / requests as f64
    };
    let ns: Vec<f64> = (0..TIMES).map(once).collect();
    // Nanoseconds a second, of 10⁹, in per cent.
    let share = ns.iter().map(|ns| ns * iops / 1e7).collect();
    Cost { ns, iops, share }
}

/// Points of a CPU that a policy costs more than CFQ, each time.
fn more(cost: &Cost, cfq: &Cost) -> Vec<f64> {
    cost.share.iter().zip(&cfq.share).map(|(a, b)| a - b).collect()
}

fn rows(load: &Load, [cfq, vmcd, time]: &[Cost; 3]) -> [Row; 2] {
    let row = |cost: &Cost, name: &str| {
        let why = format!(
            "{name} {} ns a request at {} requests/s, cfq {} ns at {}",
            short(mean(&cost.ns)),
            short(cost.iops),
            short(mean(&cfq.ns)),
            short(cfq.iops)
        );
        let name = format!("{}: share of a CPU, {name} above cfq", load.name);
        Row::measured(name, &more(cost, cfq), "points", why)
    };
    [row(vmcd, "vmcd"), row(time, "vmcd-time")]
}

/// Sequential readers around one policy, each with a request outstanding.
struct Loop {
    policy: Box<dyn Scheduler>,
    profile: DeviceProfile,
    now: Instant,
    head: Lba,
    requests: Vec<Request>,
}

impl Loop {
    fn new(name: &str, vms: u16) -> Loop {
        let mut policy = schedulers::build(name).expect("a registered policy");
        let capacity = Sectors::new(IMAGE_SECTORS * u64::from(vms));
        let mut requests = Vec::new();
        for vm in 0..vms {
            policy.attach(Instant::ZERO, VmId::new(vm), VmSpec::default());
            let start = Lba::new(IMAGE_SECTORS * u64::from(vm));
            let request = Request {
                id: RequestId::new(u32::from(vm)),
                vm: VmId::new(vm),
                tag: None,
                op: Op::Read,
                sync: true,
                extent: Extent::new(start, BLOCK).expect("in range"),
                arrived: Instant::ZERO,
            };
            requests.push(request);
            policy.arrived(Instant::ZERO, request);
        }
        let profile = DeviceProfile::unknown(capacity, true);
        Loop { policy, profile, now: Instant::ZERO, head: Lba::ZERO, requests }
    }

    /// Until a request is done and its successor has arrived.
    fn serve_one(&mut self) {
        loop {
            let view = DeviceView::idle(self.head, &self.profile);
            match self.policy.decide(self.now, &view) {
                Decision::Hold { until, .. } => self.now = until,
                Decision::Dispatch(id) => return self.complete(id),
                other => unreachable!("every VM has a request: {other:?}"),
            }
        }
    }

    fn complete(&mut self, id: RequestId) {
        let (request, dispatched) = (self.requests[id.slot()], self.now);
        self.head = request.extent.end();
        self.now = self.now + SERVICE;
        let completion = Completion::alone(request, dispatched, SERVICE);
        self.policy.completed(self.now, &completion);
        let next = self.head.get() % IMAGE_SECTORS;
        let first = request.extent.start().get() / IMAGE_SECTORS * IMAGE_SECTORS;
        let extent = Extent::new(Lba::new(first + next), BLOCK).expect("in range");
        let request = Request { extent, arrived: self.now, ..request };
        self.requests[id.slot()] = request;
        self.policy.arrived(self.now, request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The loop that is timed does what it says: every VM is served, in sequence.
    #[test]
    fn the_timed_loop_serves_every_vm() {
        for policy in MEASURED {
            let mut this = Loop::new(policy, 3);
            (0..30_000).for_each(|_| this.serve_one());
            for (vm, request) in this.requests.iter().enumerate() {
                let into = request.extent.start().get() - IMAGE_SECTORS * vm as u64;
                assert!(into > 0 && into < IMAGE_SECTORS, "{policy}: VM {vm} at {into}");
            }
        }
    }
}
