//! The scheduler of a guest's block layer (`elevator=`), for those that are not noop: a
//! policy of the host's that stands before the virtual disk, with a queue for each process
//! where the host's has one for each VM.

use seekway_core::request::{Completion, Request, VmId};
use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Sectors};
use seekway_policy::schedulers;

/// Processes are told apart by their tags modulo this.
const PROCESSES: u16 = 256;

/// A policy, and what it was told of.
pub struct Elevator {
    policy: Box<dyn Scheduler>,
    profile: DeviceProfile,
    /// By number: each request that has come, and when it went to the disk.
    requests: Vec<Option<(Request, Instant)>>,
    known: Vec<bool>,
    head: Lba,
    last_done: Instant,
    /// When it wants to be asked again though nothing happens.
    pub until: Option<Instant>,
}

impl Elevator {
    /// The policy of this name for a virtual disk of `capacity`; `None` for noop. To guests
    /// such a disk does not rotate (`QUEUE_FLAG_VIRT` of virtio-blk and xen-blkfront). Panics
    /// for a name that is none: the guest's parameters list them.
    pub fn new(name: &str, capacity: Sectors) -> Option<Self> {
        (name != "noop").then(|| Elevator {
            policy: schedulers::build(name).expect("a listed name"),
            profile: DeviceProfile::unknown(capacity, false),
            requests: Vec::new(),
            known: vec![false; usize::from(PROCESSES)],
            head: Lba::ZERO,
            last_done: Instant::ZERO,
            until: None,
        })
    }

    /// A read or write joins the queue: its process is its tag's, whatever `vm` says.
    pub fn arrived(&mut self, now: Instant, request: Request) {
        let process = VmId::new(request.tag.map_or(0, |tag| tag.get() % PROCESSES));
        if !std::mem::replace(&mut self.known[process.index()], true) {
            self.policy.attach(now, process, VmSpec::default());
        }
        let (request, number) = (Request { vm: process, tag: None, ..request }, request.id.slot());
        if self.requests.len() <= number {
            self.requests.resize(number + 1, None);
        }
        self.requests[number] = Some((request, now));
        self.policy.arrived(now, request);
    }

    /// The next request for the disk, of which `in_flight` of at most `depth` are there.
    pub fn next(&mut self, now: Instant, in_flight: u32, depth: u32) -> Option<u32> {
        let view = DeviceView {
            in_flight,
            depth,
            commands: in_flight,
            ..DeviceView::idle(self.head, &self.profile)
        };
        self.until = None;
        match self.policy.decide(now, &view) {
            // None of those that a guest may have cuts what is as short as a guest's.
            Decision::Dispatch(id) | Decision::DispatchPart { id, .. } => {
                let (request, sent) = self.requests[id.slot()].as_mut()?;
                (*sent, self.head) = (now, request.extent.end());
                Some(id.slot() as u32)
            }
            Decision::Hold { until, .. } => {
                self.until = Some(until);
                None
            }
            Decision::Wait { until, .. } => {
                self.until = until;
                None
            }
            Decision::Idle => None,
        }
    }

    /// The disk is done with a request, if it is one that came by here.
    pub fn completed(&mut self, now: Instant, number: u32) {
        let slot = self.requests.get_mut(number as usize);
        if let Some((request, sent)) = slot.and_then(Option::take) {
            let service = now.since(sent.max(self.last_done));
            self.last_done = now;
            self.policy.completed(now, &Completion::alone(request, sent, service));
        }
    }
}
