//! The guest's block layer, with its elevator. With noop, requests go to the virtual disk in the
//! order of issue, at most `nr_requests` of each direction allocated (as the
//! single-queue block layer of Linux did, `block/blk-core.c`) and at most
//! `ring` on the virtual queue. A request that cannot leave yet grows by an
//! adjacent one behind it (`elv_merge`'s last-merge). With another
//! [`Elevator`] that decides who goes next, and nothing is merged.

use super::cache::NONE;
use seekway_core::request::{Completion, Extent, Op, ProcessTag, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceProfile, DeviceView, Scheduler, VmSpec};
use seekway_core::units::{Instant, Lba, Sectors};
use seekway_policy::schedulers;
use smallvec::{SmallVec, smallvec};
use std::collections::VecDeque;

/// Purpose of an I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Reads into page frames, for a reader or ahead of one.
    Fill,
    /// Clean page frames; background write-back counts against its own limit.
    Clean {
        /// The flusher's, or that of an fsync or a commit?
        background: bool,
    },
    /// A read or write with O_DIRECT: it carries no page frames.
    Direct,
    /// The journal process: log, commit block, barrier.
    Journal,
    /// A barrier after an fsync.
    Barrier,
}

/// Numbers of those who wait for an I/O: mostly one.
pub type Waiters = SmallVec<[u32; 2]>;

/// One request of the guest to its virtual disk.
#[derive(Clone, Debug)]
pub struct Io {
    pub purpose: Purpose,
    /// Read, write or flush.
    pub op: Op,
    /// False only for background write-back, for which nobody waits.
    pub sync: bool,
    /// The process that it is done for.
    pub tag: Option<ProcessTag>,
    /// First sector on the image.
    pub sector: u64,
    /// Length in sectors; 1 for a flush.
    pub sectors: u32,
    /// The file whose pages it carries ([`Purpose::Fill`], [`Purpose::Clean`]).
    pub file: u32,
    /// First page of that file.
    pub page: u32,
    /// Pages that it carries, from `page` on; zero if it carries none.
    pub pages: u32,
    /// Waiting threads, by number, and the journal.
    pub waiters: Waiters,
}

impl Io {
    /// One that somebody waits for and that carries no page frames.
    pub fn without_pages(
        (purpose, op, tag): (Purpose, Op, Option<ProcessTag>),
        (sector, sectors): (u64, u32),
        waiter: u32,
    ) -> Io {
        let (file, waiters) = (NONE, smallvec![waiter]);
        Io { purpose, op, sync: true, tag, sector, sectors, file, page: 0, pages: 0, waiters }
    }

    /// A read or write as a scheduler sees it.
    fn request(&self, arrived: Instant, number: u32) -> Request {
        let extent = Extent::new(Lba::new(self.sector), Sectors::new(u64::from(self.sectors)));
        Request {
            id: RequestId::new(number),
            vm: VmId::new(0),
            tag: self.tag,
            op: self.op,
            sync: self.sync,
            extent: extent.expect("it lies on the image"),
            arrived,
        }
    }
}

const READ: usize = 0;
const WRITE: usize = 1;

/// Requests from submission to completion.
pub struct BlockLayer {
    elevator: Option<Elevator>,
    ios: Vec<Io>,
    free: Vec<u32>,
    nr_requests: u32,
    ring: u32,
    sectors_max: u32,
    allocated: [u32; 2],
    waiting: [VecDeque<u32>; 2],
    staged: VecDeque<u32>,
    in_flight: u32,
}

impl BlockLayer {
    /// Limits: requests of one direction, requests on the virtual queue,
    /// sectors of one request.
    pub fn new(nr_requests: u32, ring: u32, sectors_max: u32, elevator: Option<Elevator>) -> Self {
        BlockLayer {
            elevator,
            ios: Vec::new(),
            free: Vec::new(),
            nr_requests,
            ring,
            sectors_max,
            allocated: [0; 2],
            waiting: [VecDeque::new(), VecDeque::new()],
            staged: VecDeque::new(),
            in_flight: 0,
        }
    }

    /// The I/O with this number.
    pub fn io(&self, number: u32) -> &Io {
        &self.ios[number as usize]
    }
    /// Tell `waiter` when the I/O is done.
    pub fn add_waiter(&mut self, number: u32, waiter: u32) {
        self.ios[number as usize].waiters.push(waiter);
    }
    /// Nothing is queued or in flight.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.ios.len()
    }
    /// True if reads under way are so numerous that read-ahead should not add to them
    /// (`bdi_read_congested`: 7/8 of nr_requests).
    pub fn reads_congested(&self) -> bool {
        self.allocated[READ] + self.waiting[READ].len() as u32 > self.nr_requests * 7 / 8
    }

    /// Take `io` in: the number of the request that now carries it, and
    /// whether that is an older one that it was merged with.
    pub fn submit(&mut self, io: Io) -> (u32, bool) {
        if let Some(number) = self.merge(&io) {
            return (number, true);
        }
        let number = match self.free.pop() {
            Some(number) => {
                self.ios[number as usize] = io;
                number
            }
            None => {
                self.ios.push(io);
                self.ios.len() as u32 - 1
            }
        };
        let way = direction(&self.ios[number as usize]);
        if self.allocated[way] < self.nr_requests {
            self.allocated[way] += 1;
            self.staged.push_back(number);
        } else {
            self.waiting[way].push_back(number);
        }
        (number, false)
    }

    fn merge(&mut self, io: &Io) -> Option<u32> {
        if self.in_flight + (self.staged.len() as u32) <= self.ring {
            return None; // the last one is as good as gone
        }
        let number = match self.waiting[direction(io)].back() {
            Some(last) => *last,
            None => *self.staged.back()?,
        };
        let last = &mut self.ios[number as usize];
        let carries_pages = matches!(io.purpose, Purpose::Fill | Purpose::Clean { .. });
        let alike = last.purpose == io.purpose && last.tag == io.tag && last.sync == io.sync;
        let adjacent = last.sector + u64::from(last.sectors) == io.sector
            && last.file == io.file
            && last.page + last.pages == io.page
            && last.sectors + io.sectors <= self.sectors_max;
        if !(carries_pages && alike && adjacent) {
            return None;
        }
        last.sectors += io.sectors;
        last.pages += io.pages;
        last.waiters.extend_from_slice(&io.waiters);
        Some(number)
    }

    /// The next request that may go to the disk now.
    pub fn issue(&mut self, now: Instant) -> Option<u32> {
        if self.in_flight == self.ring {
            return None;
        }
        let number = match &mut self.elevator {
            None => self.staged.pop_front()?,
            Some(elevator) => loop {
                match self.staged.pop_front() {
                    None => break elevator.next(now, self.in_flight, self.ring)?,
                    Some(flush) if self.ios[flush as usize].op == Op::Flush => break flush,
                    Some(number) => {
                        elevator.arrived(now, self.ios[number as usize].request(now, number))
                    }
                }
            },
        };
        self.in_flight += 1;
        Some(number)
    }

    /// When the elevator wants to be asked again though nothing happens.
    pub fn next_wake(&self) -> Option<Instant> {
        self.elevator.as_ref()?.until.filter(|_| self.in_flight < self.ring)
    }

    /// The disk is done with a request; its number stays taken until [`Self::release`].
    pub fn complete(&mut self, now: Instant, number: u32) {
        self.in_flight -= 1;
        if let Some(elevator) = &mut self.elevator {
            elevator.completed(now, number);
        }
        let way = direction(&self.ios[number as usize]);
        match self.waiting[way].pop_front() {
            Some(next) => self.staged.push_back(next),
            None => self.allocated[way] -= 1,
        }
    }

    /// Those who wait for the I/O.
    pub fn take_waiters(&mut self, number: u32) -> Waiters {
        std::mem::take(&mut self.ios[number as usize].waiters)
    }

    /// The number may be used again.
    pub fn release(&mut self, number: u32) {
        self.free.push(number);
    }
}

fn direction(io: &Io) -> usize {
    if io.op == Op::Read { READ } else { WRITE }
}

// The scheduler of a guest's block layer (`elevator=`), for those that are not noop: a
// policy of the host's that stands before the virtual disk, with a queue for each process
// where the host's has one for each VM.

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
