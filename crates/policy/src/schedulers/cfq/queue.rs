//! A queue of CFQ: the requests of one issuer, and what is known of it.

use crate::schedulers::issuers::IssuerId;
use crate::schedulers::think::FadingMean;
use seekway_core::queues::{ExpiryQueue, LbaQueue};
use seekway_core::request::{Request, VmId};
use seekway_core::units::{Instant, Lba, Nanos, Sectors};

/// Names a queue: the synchronous queue of an issuer, or the asynchronous one
/// of a VM.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct QueueId {
    pub sync: bool,
    pub issuer: IssuerId,
}

/// Kind of a queue's load: each has its service tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Workload {
    Async = 0,
    /// Synchronous, and not worth idling for by itself.
    SyncNoIdle = 1,
    #[default]
    Sync = 2,
}

/// Seeks longer than this count as seeks (`CFQQ_SEEK_THR`).
const SEEK_LONG: Sectors = Sectors::new(800);
/// Of the last 32 seeks, more long ones than this make a queue seeky.
const SEEKS_LONG_MAX: u32 = 4;

/// A moving mean of the time from a completion to the next arrival.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Think {
    pub last_completion: Instant,
    mean: FadingMean,
}

impl Think {
    /// A request arrives; a gap longer than twice the idle time counts as that.
    pub fn arrived(&mut self, now: Instant, slice_idle: Nanos) {
        let longest = slice_idle.get().min(1 << 50) * 2;
        self.mean.add(now.since(self.last_completion).get().min(longest));
    }
    /// Are there enough samples?
    pub fn is_known(&self) -> bool {
        self.mean.is_known()
    }
    /// Is the mean known, and above `span`? (Without the division.)
    pub fn is_longer_than(&self, span: Nanos) -> bool {
        let limit = u128::from(span.get()) * u128::from(self.mean.samples);
        self.is_known() && u128::from(self.mean.total) > limit
    }
}

/// Where a queue stands in the service trees: tree, key, and number of entry.
pub(super) type Place = (Workload, i64, u64);

pub(super) struct Queue {
    pub vm: VmId,
    pub sync: bool,
    pub weight: u64,
    pub sorted: LbaQueue,
    pub fifo: ExpiryQueue,
    /// The sector after its last dispatch, from which the choose rule counts.
    pub position: Option<Lba>,
    /// Its commands on the device; requests that share one count once.
    pub in_flight: u32,
    pub think: Think,
    /// Worth idling for, by its seeks and its think time.
    pub idle_window: bool,
    pub place: Option<Place>,
    /// Order of entry among the waiting queues of its VM; `None`: does not wait.
    pub waits: Option<u64>,
    /// When its slice ends; `None` until the first completion starts it.
    pub slice_end: Option<Instant>,
    /// Time remaining of the last slice when it was cut short; negative: overrun.
    pub residual_ns: i64,
    /// Commands dispatched in this slice.
    pub slice_commands: u64,
    /// The FIFO has been looked at in this slice.
    pub fifo_looked: bool,
    /// The last 32 seeks, a bit for each long one.
    seeks: u32,
    /// The end of the last request that arrived.
    last_end: Option<Lba>,
}

impl Queue {
    pub fn new(now: Instant, vm: VmId, sync: bool, weight: u64) -> Self {
        Queue {
            vm,
            sync,
            weight,
            sorted: LbaQueue::new(),
            fifo: ExpiryQueue::new(),
            position: None,
            in_flight: 0,
            think: Think { last_completion: now, ..Think::default() },
            idle_window: sync,
            place: None,
            waits: None,
            slice_end: None,
            residual_ns: 0,
            slice_commands: 0,
            fifo_looked: false,
            seeks: 0,
            last_end: None,
        }
    }

    /// Notes whether an arriving request is a long seek (`cfq_update_io_seektime`).
    pub fn learn_seek(&mut self, request: &Request) {
        let start = request.extent.start();
        let distance = self.last_end.map_or(Sectors::ZERO, |end| start.distance(end));
        self.seeks = self.seeks << 1 | (distance > SEEK_LONG) as u32;
        self.last_end = Some(request.extent.end());
    }

    pub fn is_seeky(&self) -> bool {
        self.seeks.count_ones() > SEEKS_LONG_MAX
    }

    pub fn workload(&self) -> Workload {
        match (self.sync, self.idle_window) {
            (false, _) => Workload::Async,
            (true, false) => Workload::SyncNoIdle,
            (true, true) => Workload::Sync,
        }
    }

    /// Has its slice begun and ended?
    pub fn slice_used(&self, now: Instant) -> bool {
        self.slice_end.is_some_and(|end| now >= end)
    }

    /// Begins the queue's turn on the device.
    pub fn begin_slice(&mut self) {
        self.slice_end = None;
        self.slice_commands = 0;
        self.fifo_looked = false;
    }
}
