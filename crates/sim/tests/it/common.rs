//! A device and a source simple enough that every time can be worked out by hand.

use seekway_core::request::{Extent, Op, ProcessTag, Request, RequestId};
use seekway_core::scheduler::DeviceProfile;
use seekway_core::units::{Instant, Lba, Nanos, Sectors};
use seekway_device::DeviceModel;
use seekway_workload::{Issue, Source, SourceError, VmDisk};
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex};

pub fn ms(n: u64) -> Instant {
    Instant::ZERO + Nanos::from_millis(n)
}

/// Sectors of each VM's disk.
pub const DISK: u64 = 10_000;
/// Sectors of the device.
pub const CAPACITY: Sectors = Sectors::new(1 << 20);

/// Commands that reached a device, in order.
pub type Log = Arc<Mutex<Vec<(Op, Extent)>>>;

/// Every command takes 5 ms; `depth` at once.
pub struct Constant {
    depth: u32,
    rotational: bool,
    flying: VecDeque<(Instant, RequestId)>,
    log: Log,
}

impl Constant {
    pub fn new(depth: u32) -> Self {
        Constant { depth, rotational: true, flying: VecDeque::new(), log: Log::default() }
    }
    /// A device without an arm, which records its commands.
    pub fn solid(depth: u32, log: Log) -> Self {
        Constant { rotational: false, log, ..Constant::new(depth) }
    }
}

impl DeviceModel for Constant {
    fn profile(&self) -> DeviceProfile {
        DeviceProfile::unknown(CAPACITY, self.rotational)
    }
    fn queue_depth(&self) -> u32 {
        self.depth
    }
    fn submit(&mut self, now: Instant, command: &Request) {
        assert!(self.flying.len() < self.depth as usize, "more than the device takes");
        self.flying.push_back((now + Nanos::from_millis(5), command.id));
        self.log.lock().unwrap().push((command.op, command.extent));
    }
    fn next_completion(&self) -> Option<Instant> {
        self.flying.front().map(|f| f.0)
    }
    fn pop_completed(&mut self, now: Instant) -> Option<RequestId> {
        self.flying.pop_front_if(|f| f.0 <= now).map(|f| f.1)
    }
}

/// A request of a plan: milliseconds, VM, operation, first sector, sectors.
pub type Planned = (u64, u16, Op, u64, u64);

/// Issues at given times, regardless of completions; each token completes once.
pub struct Timed {
    disks: Vec<VmDisk>,
    plan: VecDeque<(Instant, Issue)>,
    open: HashSet<u64>,
    pub forever: bool,
}

impl Timed {
    /// Two VMs, a and b; the plan's times ascend.
    pub fn new(plan: &[Planned]) -> Self {
        let issue = |(n, &(at, vm, op, start, len)): (usize, &Planned)| {
            let (start, len) = (Lba::new(start), Sectors::new(len));
            let issue = Issue { token: n as u64, vm, tag: None, op, sync: true, start, len };
            (ms(at), issue)
        };
        let disk = |name: &str| VmDisk { name: name.into(), capacity: Sectors::new(DISK) };
        Timed {
            disks: vec![disk("a"), disk("b")],
            plan: plan.iter().enumerate().map(issue).collect(),
            open: HashSet::new(),
            forever: false,
        }
    }

    /// As [`Timed::new`]; nobody waits for writes.
    pub fn write_back(plan: &[Planned]) -> Self {
        let mut timed = Timed::new(plan);
        timed.plan.iter_mut().for_each(|(_, issue)| issue.sync = issue.op != Op::Write);
        timed
    }

    /// As [`Timed::new`], with requests of two processes by turns: tags 8 and 9.
    pub fn tagged(plan: &[Planned]) -> Self {
        let mut timed = Timed::new(plan);
        for (n, (_, issue)) in timed.plan.iter_mut().enumerate() {
            issue.tag = ProcessTag::new(8 + n as u16 % 2);
        }
        timed
    }
}

impl Source for Timed {
    fn vms(&self) -> &[VmDisk] {
        &self.disks
    }
    fn poll(&mut self, now: Instant, out: &mut Vec<Issue>) -> Result<(), SourceError> {
        while let Some((_, issue)) = self.plan.pop_front_if(|p| p.0 <= now) {
            self.open.insert(issue.token);
            if self.forever {
                self.plan.push_back((now, issue));
                out.push(Issue { op: Op::Flush, ..issue });
                return Ok(());
            }
            out.push(issue);
        }
        Ok(())
    }
    fn completed(&mut self, _: Instant, token: u64) {
        assert!(self.open.remove(&token), "request {token} completes and is not open");
    }
    fn next_wake(&self) -> Option<Instant> {
        self.plan.front().map(|p| p.0)
    }
    fn finished(&self) -> bool {
        self.plan.is_empty() && self.open.is_empty()
    }
}
