//! What the part for a disk with a head keeps of one VM: its requests by place and by age, where
//! its sweep stands, and the streams that it reads.

use crate::queues::{ExpiryQueue, LbaQueue, Links};
use crate::request::{Request, RequestId};
use crate::schedulers::vmcd::Mean;
use crate::units::{Instant, Lba, Nanos};

/// Streams that are known of a VM; the one that went on least recently is forgotten.
const STREAMS: usize = 8;

/// Where a run of adjacent requests ended.
#[derive(Clone, Copy, Default)]
struct Stream {
    end: Lba,
    /// Requests that continued it.
    run: u32,
    /// When it last went on, as a count.
    used: u64,
}

#[derive(Default)]
pub struct Vm {
    /// Tells a VM from the one that had its number before.
    pub serial: u64,
    pub sorted: LbaQueue,
    pub fifo: ExpiryQueue,
    /// Where its own sweep stands: at zero once nothing lay ahead.
    position: Lba,
    streams: [Stream; STREAMS],
    served: u64,
    /// Its request in the common sweep.
    pub placed: Option<Request>,
    /// It is too far ahead of others to be served.
    pub spent: bool,
    pub in_flight: u32,
    /// Mean device time of a command.
    pub cost: Mean,
    /// Where its last stream goes on, and the device time that this has had.
    pub stream_end: Lba,
    pub stream_had: Nanos,
    /// The device time that it has had since the head came to it.
    pub slice_had: Nanos,
    /// When the request before its end was done.
    pub stream_since: Option<Instant>,
    /// What its commands cost beside what they were charged.
    pub owed: Owed,
    /// Mean time from arrival to dispatch.
    pub wait: Mean,
    /// Mean time from a completion that left it without work to its next request.
    pub think: Mean,
    /// Mean time from the completion of a stream's request to the next one.
    pub stream_think: Mean,
    /// When its last completion left it without work that somebody waited for.
    pub idle_since: Option<Instant>,
    pub last_service: Instant,
    pub device_time: Nanos,
}

/// The difference between what a VM's commands cost and what they were charged, in
/// nanoseconds. A part of it is charged with each command, and at once what exceeds
/// [`OWED_MAX`].
#[derive(Clone, Copy, Default)]
pub struct Owed(i64);

/// The most that a VM may owe or be owed.
pub(super) const OWED_MAX: i64 = 50_000_000;
/// A command is charged so small a part of it: positions and turns of the platter differ from
/// command to command by half of what one costs, and would decide the order of equal VMs.
const OWED_PART: i64 = 32;

impl Owed {
    /// What a command is charged that costs `mean` on average.
    pub fn charge(self, mean: Nanos) -> Nanos {
        let beyond = self.0 - self.0.clamp(-OWED_MAX, OWED_MAX);
        let part = (self.0 - beyond) / OWED_PART + beyond;
        let charged = i64::try_from(mean.get()).unwrap_or(i64::MAX).saturating_add(part);
        Nanos::new(charged.max(0) as u64)
    }

    /// It cost `had` and was charged `charged`.
    pub fn settle(&mut self, had: Nanos, charged: Nanos) {
        let signed = |time: Nanos| i64::try_from(time.get()).unwrap_or(i64::MAX);
        self.0 = self.0.saturating_add(signed(had)).saturating_sub(signed(charged));
    }
}

impl Vm {
    pub fn new(now: Instant, serial: u64) -> Self {
        Vm { serial, last_service: now, ..Vm::default() }
    }

    /// Nothing queued and nothing on the device.
    pub fn is_idle(&self) -> bool {
        self.sorted.is_empty() && self.in_flight == 0
    }

    pub fn insert(&mut self, links: &mut Links, request: &Request) {
        self.sorted.insert(request);
        self.fifo.push(links, request.id);
    }

    /// Take out a request that leaves unserved.
    pub fn withdraw(&mut self, links: &mut Links, request: &Request) {
        self.sorted.remove(request);
        self.fifo.remove(links, request.id);
    }

    /// Take out a request that is dispatched. How many before it it continues without a gap.
    pub fn take(&mut self, links: &mut Links, request: &Request) -> u32 {
        self.withdraw(links, request);
        self.position = request.extent.end();
        self.served += 1;
        let (start, end) = (request.extent.start(), request.extent.end());
        let known = self.streams.iter_mut().find(|s| s.used > 0 && s.end == start);
        let stream = match known {
            Some(stream) => {
                stream.run = stream.run.saturating_add(1);
                stream
            }
            None => {
                let oldest = self.streams.iter_mut().min_by_key(|s| s.used).expect("some streams");
                oldest.run = 0;
                oldest
            }
        };
        (stream.end, stream.used) = (end, self.served);
        stream.run
    }

    /// Does this request, which has just come, come before the one that stands in the common
    /// sweep?
    pub fn goes_before_placed(&self, request: &Request) -> bool {
        let place = |request: &Request| {
            let start = request.extent.start();
            (start < self.position, start)
        };
        self.placed.as_ref().is_none_or(|placed| place(request) < place(placed))
    }

    /// The next of its own sweep: ascending from where that stands, then from the lowest.
    pub fn next(&mut self) -> Option<RequestId> {
        let ahead = self.sorted.at_or_after(self.position);
        if ahead.is_none() {
            self.position = Lba::ZERO;
        }
        ahead.or_else(|| self.sorted.first()).map(|(_, id)| id)
    }

    /// The sweep passes over what begins at its position.
    pub fn skip(&mut self) {
        self.position = Lba::new(self.position.get().saturating_add(1));
    }

    /// The request that begins at `end`.
    pub fn following(&self, end: Lba) -> Option<RequestId> {
        let (lba, id) = self.sorted.at_or_after(end)?;
        (lba == end).then_some(id)
    }
}
