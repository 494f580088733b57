//! **deadline**: reads and writes in ascending batches, with an expiry each.
//!
//! Source: Linux `block/deadline-iosched.c`, 2.6 to 4.x.
//!
//! Each direction keeps its requests by sector and by age. A batch takes up to
//! `fifo_batch` requests of one direction in ascending order. Then the
//! direction is chosen anew: reads, unless writes have been passed over
//! `writes_starved` times; and in it the oldest request if that has expired or
//! if the ascending order has come to its end, otherwise the next in order.
//! The order never wraps by itself: at its end the oldest request says where
//! it goes on.
//!
//! As in Linux, "next" is the request that followed the one dispatched *when it
//! was dispatched*: one that arrives in between afterwards is not taken in
//! passing. Requests at the same sector go in slot order.

use crate::entry::{Entry, Starves};
use seekway_core::params::{Kind, ParamSpec, Params, param};
use seekway_core::queues::{ExpiryQueue, LbaQueue, Links, Pool};
use seekway_core::request::{Extent, Op, Request, RequestId, VmId};
use seekway_core::scheduler::{Decision, DeviceView, Scheduler};
use seekway_core::units::{Instant, Nanos};

#[rustfmt::skip]
static PARAMS: &[ParamSpec] = &[
    param("read_expire", Kind::Duration, "500ms",
        "a read older than this goes first when the next batch begins"),
    param("write_expire", Kind::Duration, "5s", "the same for a write"),
    param("writes_starved", Kind::Count(0, 1_000_000), "2",
        "how often reads may be preferred while writes wait"),
    param("fifo_batch", Kind::Count(1, 1_000_000), "16", "requests in a batch"),
];

pub(super) const ENTRY: Entry = Entry {
    name: "deadline",
    summary: "ascending batches of reads or writes, oldest first when expired",
    source: "Linux block/deadline-iosched.c, 2.6 to 4.x",
    params: PARAMS,
    holds: &[],
    keeps: &[],
    starves: &[Starves { with: "writes_starved=0", why: "reads go only when no write waits" }],
    build: |params| Ok(Box::new(Deadline::new(params))),
};

const READ: usize = 0;
const WRITE: usize = 1;

/// The requests of one direction.
#[derive(Default)]
struct Direction {
    sorted: LbaQueue,
    fifo: ExpiryQueue,
    expire: Nanos,
}

#[derive(Default)]
struct Deadline {
    writes_starved: u64,
    fifo_batch: u64,
    queued: Pool,
    links: Links,
    directions: [Direction; 2],
    /// The next request in ascending order, and its direction.
    next: Option<(usize, RequestId)>,
    /// Requests dispatched in the running batch.
    batched: u64,
    /// Number of times that reads were preferred since writes were last chosen.
    starved: u64,
    /// Batches that began with an expired request.
    expired_batches: u64,
}

fn direction(request: &Request) -> usize {
    if request.op == Op::Read { READ } else { WRITE }
}

impl Deadline {
    fn new(params: &Params) -> Self {
        let direction =
            |expire| Direction { expire: params.duration(expire), ..Direction::default() };
        Deadline {
            writes_starved: params.count("writes_starved"),
            fifo_batch: params.count("fifo_batch"),
            directions: [direction("read_expire"), direction("write_expire")],
            ..Deadline::default()
        }
    }

    /// The request that is to go, by the rules above; `None` when nothing is queued.
    fn select(&mut self, now: Instant) -> Option<RequestId> {
        if let Some((_, id)) = self.next
            && self.batched < self.fifo_batch
        {
            return Some(id);
        }
        let chosen = self.choose_direction()?;
        self.batched = 0;
        let head = self.directions[chosen].fifo.head()?;
        if self.expiry(chosen).is_some_and(|expiry| now >= expiry) {
            self.expired_batches += 1;
            return Some(head);
        }
        match self.next {
            Some((direction, id)) if direction == chosen => Some(id),
            _ => Some(head),
        }
    }

    fn choose_direction(&mut self) -> Option<usize> {
        let reads = !self.directions[READ].fifo.is_empty();
        let writes = !self.directions[WRITE].fifo.is_empty();
        match (reads, writes) {
            (false, false) => None,
            (true, false) => Some(READ),
            (true, true) if self.starved < self.writes_starved => {
                self.starved += 1;
                Some(READ)
            }
            (_, true) => {
                self.starved = 0;
                Some(WRITE)
            }
        }
    }

    /// When the oldest request of a direction expires.
    fn expiry(&self, direction: usize) -> Option<Instant> {
        let direction = &self.directions[direction];
        let head = self.queued.get(direction.fifo.head()?)?;
        Some(head.arrived + direction.expire)
    }

    /// Take a request out of its direction's queues; the one behind it.
    fn unlink(&mut self, request: &Request) -> Option<RequestId> {
        let of = &mut self.directions[direction(request)];
        of.fifo.remove(&mut self.links, request.id);
        of.sorted.take(request)?.map(|(_, id)| id)
    }

    /// A request leaves unserved: the ascending order goes on behind it.
    fn leaves(&mut self, request: &Request) {
        let behind = self.unlink(request);
        if let Some((direction, id)) = self.next
            && id == request.id
        {
            self.next = behind.map(|id| (direction, id));
        }
    }
}

impl Scheduler for Deadline {
    fn detach(&mut self, _now: Instant, vm: VmId) -> Vec<Request> {
        let leaving = self.queued.take_vm(vm);
        leaving.iter().for_each(|request| self.leaves(request));
        leaving
    }

    fn merged(&mut self, _now: Instant, id: RequestId, extent: Extent) -> bool {
        let before = self.queued.resize(id, extent);
        self.directions[direction(&before)].sorted.resize(&before, extent);
        true
    }

    fn withdraw(&mut self, _now: Instant, id: RequestId) {
        let request = self.queued.take(id);
        self.leaves(&request);
    }

    fn arrived(&mut self, _now: Instant, request: Request) {
        let direction = &mut self.directions[direction(&request)];
        direction.fifo.push(&mut self.links, request.id);
        direction.sorted.insert(&request);
        self.queued.insert(request);
    }

    fn decide(&mut self, now: Instant, _device: &DeviceView<'_>) -> Decision {
        let Some(id) = self.select(now) else { return Decision::Idle };
        let request = self.queued.take(id);
        self.next = self.unlink(&request).map(|behind| (direction(&request), behind));
        self.batched += 1;
        Decision::Dispatch(id)
    }

    fn metrics(&self, sink: &mut dyn FnMut(&'static str, f64)) {
        sink("expired_batches", self.expired_batches as f64);
    }
}

#[cfg(test)]
mod tests {
    use crate::schedulers::tests::Rig;

    #[test]
    fn a_batch_ascends_from_the_oldest_and_never_wraps() {
        let mut rig = Rig::new("deadline");
        for lba in [500, 100, 900, 300] {
            rig.read(0, lba);
        }
        assert_eq!(rig.serve_n(4), [500, 900, 100, 300]);
        assert!(rig.is_idle());
    }

    #[test]
    fn a_batch_is_sixteen_and_reads_go_on_where_they_were() {
        let mut rig = Rig::new("deadline");
        rig.reads(0, (0..20).map(|i| 1_000 + 100 * i));
        let writes: Vec<u64> = (0..40).map(|i| 100_000 + 100 * i).collect();
        rig.writes(1, writes.iter().copied());
        // Two batches may be reads; the second holds the four that are left.
        let order = rig.serve_n(20);
        assert!(order.iter().all(|&lba| lba < 100_000), "{order:?}");
        assert_eq!(rig.serve_n(40), writes);
    }

    #[test]
    fn writes_go_after_reads_were_preferred_twice() {
        let mut rig = Rig::new("deadline:fifo_batch=2");
        rig.reads(0, (0..12).map(|i| 1_000 + 100 * i));
        rig.writes(1, (0..12).map(|i| 100_000 + 100 * i));
        let order: Vec<bool> = rig.serve_n(12).iter().map(|&lba| lba < 100_000).collect();
        let (r, w) = (true, false);
        assert_eq!(order, [r, r, r, r, w, w, r, r, r, r, w, w]);
    }

    #[test]
    fn an_expired_head_goes_first_when_the_batch_ends_and_not_before() {
        let mut rig = Rig::new("deadline:fifo_batch=4");
        rig.reads(0, (1..10).map(|i| 1_000 * i));
        rig.serve_n(1);
        rig.read(0, 10);
        rig.reads(0, (10..20).map(|i| 1_000 * i));
        rig.wait_ms(501);
        // 1000 to 4000 are a batch. 5000 is the oldest then, and 9000 after it: both have
        // expired, and both lie where the order goes on anyway. 10 comes fourth.
        assert_eq!(rig.serve_n(8), [2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000]);
        assert_eq!(rig.serve_n(5), [10_000, 11_000, 12_000, 10, 13_000]);
        assert_eq!(rig.metric("expired_batches"), 3.0);
    }

    #[test]
    fn a_late_arrival_in_between_is_not_taken_in_passing() {
        let mut rig = Rig::new("deadline");
        rig.reads(0, [100, 900, 950]);
        rig.serve_n(1);
        rig.read(0, 500);
        assert_eq!(rig.serve_n(3), [900, 950, 500]);
    }

    #[test]
    fn choosing_the_other_direction_forgets_next() {
        let mut rig = Rig::new("deadline:fifo_batch=1,writes_starved=0");
        rig.reads(0, [500, 900]);
        rig.write(0, 700);
        // Writes are never passed over here.
        assert_eq!(rig.serve(1), 700);
        rig.read(0, 100);
        // 500 is the oldest: the write has cleared the readers' place.
        assert_eq!(rig.serve_n(3), [500, 900, 100]);
    }

    #[test]
    fn detach_of_the_next_request_moves_next_on() {
        let mut rig = Rig::new("deadline");
        for (vm, lba) in [(0, 100), (1, 200), (0, 300), (1, 50)] {
            rig.read(vm, lba);
        }
        assert_eq!(rig.serve(1), 100);
        let now = rig.now;
        let left = rig.policy.detach(now, seekway_core::request::VmId::new(1));
        assert_eq!(left.iter().map(|r| r.extent.start().get()).collect::<Vec<_>>(), [200, 50]);
        assert_eq!(rig.serve(1), 300);
        assert!(rig.is_idle());
    }
}
